"""Combine the tuned settings with those that the program sets itself, for one session and for its calls."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ortune.apply.inside.options_log import OptionsLog, read_entry
from ortune.apply.inside.plugins import (
    ASSIGNMENT_ENTRY,
    BY_POLICY,
    OwnDevices,
    PluginLibraries,
    add_providers,
    read_selected,
)
from ortune.apply.inside.providers import (
    CPU,
    KeptProviders,
    ProviderChoice,
    Skip,
    list_known,
    read_requested,
    show_option,
)

AFFINITY = "session.intra_op_thread_affinities"
THREADS = "intra_op_num_threads"
OWN_POOL = "use_per_session_threads"

POOL_SIZES = (THREADS, "inter_op_num_threads")
POOL_ENTRIES = ("session.intra_op", "session.inter_op", "session.dynamic_block_base")
"""Settings of the thread pool of a session: options, and beginnings of the names of entries."""

ENUMS = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
}
"""Attributes of SessionOptions that are enums, and their types. Configs name the members."""


class TunedSession:
    """The arguments that a session is created with, and whether each setting took effect.

    Args:
        rule: Rule of the plan that the session follows.
        model: The model, as the program passes it.
        extra: Further arguments of InferenceSession.

    Attributes:
        options: SessionOptions.
        providers: The execution providers.
        set: Tuned session options and entries that the session has.
        replaced: Those of the program that the session does not have.
        not_set: Tuned settings that the session does not have, each with the reason.
    """

    def __init__(self, rule: dict[str, Any], model: Any, extra: dict[str, Any]) -> None:
        self.rule = rule
        self.config: dict[str, Any] = rule["config"]
        self.model = model
        self.extra = extra
        self.options: Any = None
        self.providers: Any = None
        self.set: dict[str, Any] = {}
        self.replaced: dict[str, Any] = {}
        self.not_set: list[str] = []
        self._devices: dict[str, Any] = {}
        self._known: set[str] = set()
        self._before: dict[str, Any] = {}
        self._entries_before: dict[str, str] = {}

    def set_providers(
        self, onnxruntime: Any, arguments: dict[str, Any], log: OptionsLog, libraries: PluginLibraries, *, keep: bool
    ) -> None:
        """Choose the execution providers.

        Args:
            onnxruntime: The module.
            arguments: Arguments that the program passes to InferenceSession.
            log: Log of SessionOptions.
            libraries: Libraries of providers.
            keep: Whether the program's own settings take precedence.

        Raises:
            Skip: The program requests providers that the record does not cover, or the record's are missing.
        """
        # With the fallback on, onnxruntime prints to stdout when a session fails and creates it again on the CPU.
        # Instead, the hook creates the session again with the program's own options.
        self.extra["enable_fallback"] = 0
        own, plugins = arguments["sess_options"], self.rule["plugins"]
        requested = read_requested(arguments["providers"], arguments["provider_options"])
        if self.rule["own_providers"]:
            self.providers = KeptProviders(requested)
            return
        # Providers that are passed to InferenceSession replace those of the options.
        selected = None if requested else read_selected(own, log)
        if selected is not None:
            self.providers = OwnDevices(selected, self.config["providers"])
            return
        self._known = list_known(onnxruntime, requested)
        covered = self.rule["tried"]["providers"]
        known = self._known | set(plugins)
        self.providers = ProviderChoice(self.config["providers"], requested, covered, known, keep=keep)
        wanted = [name for name in self.providers.names if name in plugins]
        if wanted and own is not None and not log.is_complete(own):
            raise Skip("the program created its options before ortune was active")
        if wanted and log.called.intersection(BY_POLICY):
            # Another library would take part in what ONNX Runtime selects for the program's other sessions.
            raise Skip("the program lets ONNX Runtime select execution providers by a policy")
        self._devices = {name: libraries.find_device(onnxruntime, name, plugins[name]) for name in wanted}
        self.providers.set.update({show_option(name, "plugin"): plugins[name]["package"] for name in wanted})

    @property
    def unproven_provider(self) -> str:
        """The record's provider, if the session may run none of its nodes on it; "" for none."""
        names = self.providers.names
        first = str(self.config["providers"][0][0])
        return first if names and first in names and first != CPU else ""

    def add_providers(self, log: OptionsLog) -> None:
        """Add providers from plugins to the options, and what the record's providers need there."""
        if self.unproven_provider:
            log.add_entry(self.options, ASSIGNMENT_ENTRY, "1")
        if self._devices:
            add_providers(self.options, self.providers, self._devices, self._known)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The first arguments of InferenceSession."""
        if self._devices:  # the options have the providers
            return (self.model, self.options, None, None)
        return (self.model, self.options, self.providers.names, self.providers.options)

    def set_options(
        self, own: Any, wanted_entries: dict[str, str], log: OptionsLog, *, keep: bool, shares_pool: bool = False
    ) -> None:
        """Build SessionOptions with the tuned settings, and the program's own settings for everything else.

        Args:
            own: SessionOptions of the program, or None.
            wanted_entries: Tuned configuration entries.
            log: Log of SessionOptions.
            keep: Whether the program's own settings take precedence.
            shares_pool: Whether the process has a global thread pool, which onnxruntime requires all sessions to use.
        """
        own_options, own_entries = read_own_settings(own, log)
        wanted = {name: _to_attribute(name, value) for name, value in self.config["session_options"].items()}
        if self.config["global_thread_pool"]:
            wanted[OWN_POOL] = False
        tried = self.rule["tried"]
        options = combine(own_options, wanted, tried["options"], keep=keep)
        if shares_pool:
            options[OWN_POOL] = False
        entries = combine(own_entries, wanted_entries, tried["entries"], keep=keep)
        # An affinity string is written for a certain number of threads and is only valid with it.
        for theirs, side in ((wanted_entries, wanted), (own_entries, own_options)):
            if entries.get(AFFINITY) == theirs.get(AFFINITY) and options.get(THREADS) != side.get(THREADS):
                entries.pop(AFFINITY, None)
        self._note(options, wanted, own_options)
        self._note(entries, wanted_entries, own_entries)
        if shares_pool and not self.config["global_thread_pool"]:
            self._note_pool()
        if own is None:
            self.options = log.kind()
        elif log.is_complete(own):
            # The providers that the session has are added later, or passed to InferenceSession.
            self.options = log.copy(own, with_providers=self.providers.names is None)
        else:
            # Created before the log began: its entries are unknown, so it cannot be copied.
            self.options = own
            default = log.kind()
            if AFFINITY in entries:
                # It could not be removed again if the session fails.
                self.set.pop(AFFINITY, None)
                self.not_set.append(f"{AFFINITY} (the program created its options before ortune was active)")
                del entries[AFFINITY]
            options = {**{name: getattr(default, name) for name in own_options}, **options}
            self._remember(own, options, entries)
        for name, value in options.items():
            setattr(self.options, name, value)
        for name, text in entries.items():
            log.add_entry(self.options, name, text)

    def _remember(self, own: Any, options: dict[str, Any], entries: dict[str, str]) -> None:
        """Note what the program's own options have before they are changed, to undo that if the session fails."""
        self._before = {name: getattr(own, name) for name in options}
        self._entries_before = {name: read_entry(own, name) for name in entries}

    def undo(self) -> None:
        """Give the program's own options back the settings that they had, if they were changed.

        An entry that was not set cannot be removed.
        """
        for name, value in self._before.items():
            with contextlib.suppress(Exception):
                setattr(self.options, name, value)
        for name, text in self._entries_before.items():
            if text:
                with contextlib.suppress(Exception):
                    self.options.add_session_config_entry(name, text)

    def _note(self, final: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        """Record which settings of the program and of the config took effect."""
        for name, value in ours.items():
            if name in final and final[name] == value:
                self.set[name] = show_value(value)
            else:
                kept = show_value(final[name]) if name in final else "thread count"
                self.not_set.append(f"{name}={show_value(value)} (the program's {kept} is kept)")
        self.replaced.update(
            {name: show_value(value) for name, value in theirs.items() if name not in final or final[name] != value}
        )

    def _note_pool(self) -> None:
        """Record which settings have no effect, because they are those of a thread pool of the session."""
        for name in [name for name in self.set if name in POOL_SIZES or name.startswith(POOL_ENTRIES)]:
            self.not_set.append(f"{name}={self.set.pop(name)} (the process has a global thread pool)")


class RunSettings:
    """Run options for the calls of one session.

    Args:
        config: The config that has them.
        log: Log of RunOptions.
        keep: Whether the program's own settings take precedence.
    """

    def __init__(self, config: dict[str, Any], log: OptionsLog, *, keep: bool) -> None:
        self._config = config
        self._log = log
        self._keep = keep
        # The program's objects are copied, because it may use them for sessions of other models too. Each copy comes
        # with the entries that were added to it.
        self._copies: Any = weakref.WeakKeyDictionary()
        self._alone = self._add_tuned(log.kind(), set(), {}, {})

    def merge(self, own: Any) -> Any:
        """Return RunOptions with the tuned settings, and the program's own settings for everything else.

        Args:
            own: RunOptions of the program, or None.
        """
        if own is None:
            return self._alone
        if not self._log.is_complete(own):
            return own  # created before the log began: it cannot be copied
        known = self._copies.get(own)
        if known is None:
            known = self._copies[own] = (self._log.copy(own), {})
        copy, added = known
        for name in self._log.properties:
            value = getattr(own, name)
            if getattr(copy, name) != value:
                setattr(copy, name, value)
        return self._add_tuned(copy, self._log.attributes_of(own), self._log.entries_of(own), added)

    def _add_tuned(
        self, options: Any, own_options: set[str], own_entries: dict[str, str], added: dict[str, str]
    ) -> Any:
        for name, value in self._config["run_options"].items():
            if not self._keep or name not in own_options:
                setattr(options, name, value)
        for name, text in combine(own_entries, self._config["run_config"], [], keep=self._keep).items():
            if added.get(name) != text:  # ONNX Runtime warns if an entry is added again
                self._log.add_entry(options, name, text)
                added[name] = text
        return options


def combine(theirs: dict[str, Any], ours: dict[str, Any], tried: list[str], *, keep: bool) -> dict[str, Any]:
    """Return the settings of a session.

    A setting that the search tried gets its tuned value. If that is ONNX Runtime's default, the setting is left out,
    because the search measured the default. A setting that the search did not try keeps the program's value.

    Args:
        theirs: Settings of the program.
        ours: Tuned settings.
        tried: Names of the settings that the search tried.
        keep: Whether the program's own settings take precedence.
    """
    if keep:
        return {**ours, **theirs}
    return {**{name: value for name, value in theirs.items() if name not in tried}, **ours}


def read_own_settings(own: Any, log: OptionsLog) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the attributes and the configuration entries that a program sets.

    An attribute that it sets to the default value counts as set.

    Args:
        own: SessionOptions of the program, or None.
        log: Log of SessionOptions.
    """
    if own is None:
        return {}, {}
    default = log.kind()
    explicit = log.attributes_of(own)
    values = {name: getattr(own, name) for name in log.properties}
    changed = {name: value for name, value in values.items() if name in explicit or value != getattr(default, name)}
    return changed, log.entries_of(own)


def share_pool(own: Any, log: OptionsLog) -> Any:
    """Return the program's own options for a session that uses the global thread pool of the process.

    They are a copy, unless they were created before the log began.

    Args:
        own: SessionOptions of the program, or None.
        log: Log of SessionOptions.
    """
    if own is not None and not own.use_per_session_threads:
        return own
    attributes, entries = read_own_settings(own, log)
    if own is None:
        options = log.kind()
    elif log.is_complete(own):
        options = log.copy(own)
    else:
        options = own
    if options is not own:
        for name, value in attributes.items():
            setattr(options, name, value)
        for name, text in entries.items():
            log.add_entry(options, name, text)
    setattr(options, OWN_POOL, False)
    return options


def has_run_settings(config: dict[str, Any] | None) -> bool:
    """Return whether a config has run options."""
    return config is not None and bool(config["run_options"] or config["run_config"])


def show_value(value: Any) -> Any:
    """Return a value of an attribute as it is displayed: enums by name."""
    return value.name if hasattr(value, "name") else value


def _to_attribute(name: str, value: Any) -> Any:
    if name not in ENUMS:
        return value
    import onnxruntime

    return getattr(onnxruntime, ENUMS[name]).__members__[value]
