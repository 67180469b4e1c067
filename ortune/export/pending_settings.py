"""A config's settings, taken out one by one as a target writes them. Those that remain are not supported by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ortune.knobs.config import CPU, CPU_PROVIDER, CUDA, OF_BOTH, PLUGIN, Config, Plugin, Provider, ThreadPool, alias_of
from ortune.knobs.environment import portable_variables
from ortune.knobs.ids import ALLOCATOR, BATCH
from ortune.knobs.plugin_options import spell_for_plugins

Value = int | bool | str

CAPTURED = "a replay reads its inputs from the buffers of the first call; see docs/providers.md"
"""Why captured graphs are not written: except for `python` with CUDA, exported code does not keep its inputs in fixed
buffers on the device."""

CUDA_GRAPH = "enable_cuda_graph"
"""The option of CUDA with which exported code can capture calls."""

LEFT_TO_PROGRAMS = (BATCH, "io_binding")
"""Settings of calls, which only the program itself can make."""


class PendingSettings:
    """The settings of a config that a target has not written yet.

    Each `take_...` method returns settings and removes them, so that no setting can be forgotten. Captured graphs are
    left out unless `take_capture` is called.

    Args:
        config: The config.
    """

    def __init__(self, config: Config) -> None:
        config = spell_for_plugins(config)
        self.config = config.without_captures()
        self._captured = config
        self._left = dict(config.settings)
        self._captures = self._left.keys() - self.config.settings.keys()
        if config.provider == CPU:
            self._left.pop("providers", None)
        self._reasons: dict[str, str] = {}
        self._reports: list[str] = []
        self.explain(BATCH, "the caller must put so many items into each call")
        for name in self._captures:
            self.explain(name, CAPTURED)
        for name in config.plugins:
            reason = f"the program must register the library of this package, and select the device of {name}"
            self.explain(f"{alias_of(name)}.{PLUGIN}", reason)

    def take_option(self, name: str) -> Value | None:
        """Take an attribute of SessionOptions; None if it has ONNX Runtime's default."""
        self._left.pop(name, None)
        return self.config.session_options.get(name)

    def take_options(self, supported: Collection[str] | None = None) -> dict[str, Value]:
        """Take the attributes of SessionOptions that are supported: all by default."""
        options = {
            name: value for name, value in self.config.session_options.items() if supported is None or name in supported
        }
        self._remove(options)
        return options

    def take_common_thread_count(self, reason: str) -> Value | None:
        """Take the thread count of both pools, for a target that gives them the same size; None for the default.

        Args:
            reason: Why a different inter-op thread count cannot be written.
        """
        threads = self.take_option("intra_op_num_threads")
        if self.config.session_options.get("inter_op_num_threads") == threads:
            self.take_option("inter_op_num_threads")
        self.explain("inter_op_num_threads", reason)
        return threads

    def take_entry(self, name: str) -> str | None:
        """Take a session configuration entry; None if there is none."""
        self._left.pop(name, None)
        return self.config.session_config.get(name)

    def take_entries(self) -> dict[str, str]:
        """Take all session configuration entries."""
        self._remove(self.config.session_config)
        return dict(self.config.session_config)

    def take_session_entries(self) -> tuple[dict[str, str], ...]:
        """Take the session configuration entries that differ between sessions: one dictionary for each session."""
        for number, entries in enumerate(self.config.per_session, 1):
            self._remove(f"{name} of session {number}" for name in entries)
        return self.config.per_session

    def take_run_options(self) -> dict[str, Value]:
        """Take all attributes of RunOptions."""
        self._remove(f"run.{name}" if name in OF_BOTH else name for name in self.config.run_options)
        return dict(self.config.run_options)

    def take_run_entry(self, name: str) -> str | None:
        """Take a run configuration entry; None if there is none."""
        self._left.pop(name, None)
        return self.config.run_config.get(name)

    def take_run_entries(self) -> dict[str, str]:
        """Take all run configuration entries."""
        self._remove(self.config.run_config)
        return dict(self.config.run_config)

    def take_providers(self, *, registers: bool = False) -> tuple[Provider, ...]:
        """Take the execution providers and all their options.

        Those whose libraries come from plugin packages remain, unless the target registers libraries: ONNX Runtime may
        have a provider of the same name, which was not measured.

        Args:
            registers: Whether the target registers the libraries of plugin packages, or leaves that to the program.
        """
        self._left.pop("providers", None)
        for name, options in self.config.providers:
            self._remove(f"{alias_of(name)}.{option}" for option in options)
        if registers:
            return self.config.providers
        for name, plugin in self.config.plugins.items():
            reason = f"this target cannot register the library of the package {plugin.package}"
            self.put_back_provider(name, reason)
            self.explain(f"{alias_of(name)}.{PLUGIN}", reason)
        return tuple(provider for provider in self.config.providers if provider[0] not in self.config.plugins) or (
            CPU_PROVIDER,
        )

    def take_plugins(self) -> dict[str, Plugin]:
        """Take where the libraries of execution providers come from, by the provider's name."""
        self._remove(f"{alias_of(name)}.{PLUGIN}" for name in self.config.plugins)
        return self.config.plugins

    def take_environment(self) -> dict[str, str]:
        """Take all environment variables."""
        self._remove((*self.config.environment, ALLOCATOR))
        return portable_variables(self.config)

    def take_global_pool(self) -> ThreadPool | None:
        """Take the thread pool that all sessions share; None if each session has its own."""
        self._left.pop("global_thread_pool", None)
        return self.config.global_thread_pool

    def take_io_binding(self) -> bool:
        """Take whether calls use IO binding."""
        self._left.pop("io_binding", None)
        return self.config.io_binding

    def take_capture(self) -> bool:
        """Return whether the config captures a CUDA graph, and keep the option among those of the provider.

        It is for targets whose code keeps all inputs and outputs in fixed buffers. Call it before `take_providers`.
        """
        capture = f"{alias_of(CUDA)}.{CUDA_GRAPH}"
        if self._captures != {capture} or self.config.provider != CUDA or not self.config.io_binding:
            return False
        value = self._captured.settings[capture]
        if value != "1":
            return False
        self._left.pop(capture)
        self.config = self._captured
        return True

    def take_workers(self) -> None:
        """Take the number of worker processes, which exports of servers have as that of the deployment."""
        self._left.pop("workers", None)

    def take_batch(self) -> int:
        """Take the number of items that the caller puts into each call."""
        self._left.pop(BATCH, None)
        return self.config.batch

    def take_applied(self) -> None:
        """Take all settings that `ortune apply` gives to the sessions of a program."""
        left = {*LEFT_TO_PROGRAMS, *self._captures}
        self._left = {name: value for name, value in self._left.items() if name in left}
        self.explain("io_binding", "the program must call run_with_iobinding")

    def report(self, name: str, value: Value, reason: str) -> None:
        """Note a property of the deployment that the target does not support.

        Args:
            name: The property.
            value: Its value.
            reason: What to do instead.
        """
        self._reports.append(f"{name}={value} ({reason})")

    def put_back(self, name: str, reason: str = "") -> None:
        """Return a setting that was taken, because the target does not support its value."""
        self._left[name] = self.config.settings[name]
        self.explain(name, reason)

    def put_back_provider(self, provider: str, reason: str) -> None:
        """Return an execution provider and its options, because the target does not support it."""
        known = self._left.get("providers")
        self._left["providers"] = f"{known},{alias_of(provider)}" if known else alias_of(provider)
        self.explain("providers", reason)
        self.put_back_provider_options(provider, reason)

    def put_back_provider_options(self, provider: str, reason: str, *, supported: Collection[str] = ()) -> None:
        """Return the options of an execution provider, except those that the target supports."""
        for option in dict(self.config.providers)[provider]:
            if option not in supported:
                self.put_back(f"{alias_of(provider)}.{option}", reason)

    def explain(self, name: str, reason: str) -> None:
        """Note why a setting cannot be written, in case that it remains."""
        if reason:
            self._reasons[name] = reason

    @property
    def remaining(self) -> tuple[str, ...]:
        """What was not written, a line each: `NAME=VALUE`, or `NAME=VALUE (REASON)`."""
        lines = list(self._reports)
        for name, value in self._left.items():
            reason = self._reasons.get(name)
            lines.append(f"{name}={value}" + (f" ({reason})" if reason else ""))
        return tuple(lines)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._left.pop(name, None)
