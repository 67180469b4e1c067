"""Gives the sessions of a program that knows nothing of ortune their tuned options.

It runs inside that program, on any Python from 3.10 on, with or without ortune installed there. So it imports only the
standard library. `ortune.apply.plan` writes the plan that it follows; `ortune.apply.inside.finder` loads it when the
program imports onnxruntime.

`InferenceSession.__init__` is replaced in place, so that subclasses, `isinstance` and names that were imported before
go on to work. Nothing is put between the program and its calls, but where a config has run options.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import inspect
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
AFFINITY = "session.intra_op_thread_affinities"
THREADS = "intra_op_num_threads"

CUDA_BASED = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")

ENUMS = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
}

RUNS = ("run", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
"""Methods of InferenceSession that take RunOptions."""

CHANGES = ("add_", "register_", "set_", "clear_")
"""What methods that change SessionOptions or RunOptions begin with."""

CANCELS = "set_load_cancellation_flag"
"""A method of SessionOptions that is called while a session is being created."""

RUN_SETTINGS = "_ortune_run_settings"
"""Attribute of sessions whose calls have run options."""

SETTLE_S = 0.02
"""Time until a new pool's threads have gone to the CPUs that they are pinned to."""

Plan = dict[str, Any]
"""See `ortune.apply.inside.finder.Plan`."""


class Skip(Exception):  # noqa: N818  not a fault: the session is simply left alone
    """A session is left as the program wants it; the message says why."""


class Hook:
    """What is known in one process: the plan, the sessions so far, and how options came to be.

    Attributes:
        plan: What to do.
        matched: Sessions that got tuned options.
        others: Names of models whose sessions were left alone.
    """

    def __init__(self, get_plan: Callable[[], Plan]) -> None:
        self._get_plan = get_plan
        self.plan: Plan = {}
        self.matched = 0
        self.others: list[str] = []
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told: set[str] = set()
        self._pid = os.getpid()
        self._session_log: Log | None = None
        self._run_log: Log | None = None
        self._module: Any = None

    def patch(self, module: Any) -> None:
        """Hook into onnxruntime's module."""
        try:
            self.plan = self._get_plan()
        except Exception as error:  # noqa: BLE001  (a program is not brought down by a config that is broken)
            self._say(f"{_sentence(error)} Sessions keep the program's own options.")
            return
        self._module = module
        self._session_log = Log(module.C.SessionOptions)
        if any(_has_run_settings(rule["config"]) for rule in self.plan["rules"]):
            self._run_log = Log(module.C.RunOptions)
            self._patch_runs(module.InferenceSession)
        if hasattr(os, "register_at_fork"):
            # Another thread may hold it when a program forks.
            os.register_at_fork(after_in_child=self._renew_lock)
        own = module.InferenceSession.__init__
        hook = self

        @functools.wraps(own)
        def create(session: Any, *args: Any, **kwargs: Any) -> None:
            hook.create(own, session, args, kwargs)

        module.InferenceSession.__init__ = create
        atexit.register(self._report)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def create(self, own: Callable[..., None], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Create one session: with tuned options if there are any for its model, else as the program does."""
        if self._pid != os.getpid():  # in a forked child: what the parent counted is the parent's
            self._pid, self.matched, self.others = os.getpid(), 0, []
        model, tuned, why = self._prepare(inspect.signature(own), session, args, kwargs)
        if tuned is None:
            own(session, *args, **kwargs)
            self.others.append(model)
            self._try_to_explain(model, None, why, session)
            return
        before, fault = _threads(), None
        try:
            own(session, tuned.source, tuned.options, tuned.providers, tuned.provider_options, **tuned.extra)
        except Exception as error:  # noqa: BLE001  (it may be anything that onnxruntime raises)
            fault = error
        if fault is not None:
            own(session, *args, **kwargs)  # if the model itself is at fault, this raises as it would without ortune
            self._say(f"{model}: the tuned options fail ({fault}). The session keeps the program's own.")
            self.others.append(model)
            return
        self.matched += 1
        # What happens when a provider fails in a call is the program's to say.
        session._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        try:
            self._add_run_settings(session, tuned)
        except Exception as error:  # noqa: BLE001  (another version of onnxruntime may lack one)
            self._say(f"{model}: the tuned run options fail ({error}).")
        self._try_to_explain(model, tuned, tuned.rule["source"], session, before)

    def _prepare(
        self, signature: inspect.Signature, session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, Tuned | None, str]:
        """Return the model's name, what to create its session with, or None and why it is left alone."""
        model = "?"
        try:
            bound = signature.bind(session, *args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            extra = given.pop("kwargs", {})
            source = given["path_or_bytes"]
            model = f"{len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)
            rule = self._find_rule(source, given["sess_options"])
            if rule["config"] is None:
                return model, None, rule["reason"]
            with self._lock:
                return model, self._tune(rule, given, extra), ""
        except Skip as reason:
            return model, None, str(reason)
        except OSError as error:
            return model, None, f"it cannot be read: {error.strerror}"
        except Exception as error:  # noqa: BLE001  (a program is not brought down by ortune)
            self._say(f"{model}: {_sentence(error)} The session keeps the program's own options.")
            return model, None, "ortune failed"

    def _find_rule(self, source: Any, options: Any) -> dict[str, Any]:
        """Return the rule for a model.

        Raises:
            Skip: There is none.
        """
        rules = self.plan["rules"]
        if self.plan["any_model"]:
            return dict(rules[0])
        is_bytes = isinstance(source, bytes)
        path = None if is_bytes else Path(os.fspath(source))
        size = len(source) if path is None else path.stat().st_size
        sha256 = ""
        for rule in rules:
            if not rule["files"]:
                continue
            first, *others = rule["files"]
            if first["size_bytes"] != size:
                continue
            sha256 = sha256 or (hashlib.sha256(source).hexdigest() if path is None else _hash_file(path))
            if first["sha256"] != sha256:
                continue
            # External data of a model that is passed as bytes is looked for where the program says; if it does not
            # say, there is no telling.
            folder = self._entry(options, EXTERNAL_FOLDER) if path is None else str(path.parent)
            if folder and any(_hash_file(Path(folder, each["name"])) != each["sha256"] for each in others):
                continue
            return dict(rule)
        raise Skip("another model")

    def _tune(self, rule: dict[str, Any], given: dict[str, Any], extra: dict[str, Any]) -> Tuned:
        """Return what to create a session with.

        Raises:
            Skip: It is to be left alone.
        """
        import onnxruntime

        config, keep = rule["config"], self.plan["keep_explicit"]
        name = config["providers"][0][0]
        if name not in onnxruntime.get_available_providers():
            self._say(f"{rule['source']}: onnxruntime {onnxruntime.__version__} here has no {name}.")
            raise Skip(f"no {name} here")
        if _minor(rule["onnxruntime"]) != _minor(onnxruntime.__version__):
            self._say(
                f"{rule['source']} was tuned with onnxruntime {rule['onnxruntime']}; this is {onnxruntime.__version__}."
            )
        tuned = Tuned(rule, config, given["path_or_bytes"], dict(extra))
        self._set_providers(tuned, given, keep=keep)
        self._share_pool(config)
        number = self._counts.get(rule["source"], 0)
        self._counts[rule["source"]] = number + 1
        entries = dict(config["session_config"])
        if config["per_session"]:
            entries.update(config["per_session"][number % len(config["per_session"])])
        tuned.options = self._merge(tuned, given["sess_options"], entries, keep=keep)
        if config["io_binding"]:
            tuned.not_set.append("io_binding (the program would have to call run_with_iobinding)")
        return tuned

    def _set_providers(self, tuned: Tuned, given: dict[str, Any], *, keep: bool) -> None:
        wanted = tuned.config["providers"]
        own, own_options = given["providers"], given["provider_options"]
        options = given["sess_options"]
        if hasattr(options, "has_providers") and options.has_providers():
            raise Skip("the program chose execution providers by device")
        if keep and own:
            names = [each if isinstance(each, str) else each[0] for each in own]
            if names[0] != wanted[0][0]:
                raise Skip(f"the program asks for {names[0]}, the record is for {wanted[0][0]}")
            theirs = list(own_options or [{} if isinstance(each, str) else each[1] for each in own])
            ours = dict(wanted)
            tuned.providers = names
            tuned.provider_options = [{**ours.get(each, {}), **theirs[place]} for place, each in enumerate(names)]
        else:
            tuned.providers = [each for each, _ in wanted]
            tuned.provider_options = [options for _, options in wanted]
        # With it, a session that fails is made again on the CPU, with words on stdout. Here, as the program wants it.
        tuned.extra["enable_fallback"] = 0
        if wanted[0][0] in CUDA_BASED:
            import onnxruntime

            if hasattr(onnxruntime, "preload_dlls"):
                onnxruntime.preload_dlls()

    def _share_pool(self, config: dict[str, Any]) -> None:
        pool = config["global_thread_pool"]
        key = json.dumps(pool)
        if pool and key not in self._told:
            import onnxruntime

            onnxruntime.set_global_thread_pool_sizes(pool["intra_op_num_threads"], pool["inter_op_num_threads"])
            self._told.add(key)

    def _merge(self, tuned: Tuned, own: Any, wanted_entries: dict[str, str], *, keep: bool) -> Any:
        """Return SessionOptions with the tuned settings, and the program's own for all else.

        Args:
            tuned: Is told what was set and what was not.
            own: The program's SessionOptions, or None.
            wanted_entries: Tuned configuration entries.
            keep: Whether what the program sets by itself wins.
        """
        log = self._session_log
        assert log is not None
        default = log.kind()
        told = {} if own is None else {name: getattr(own, name) for name in log.properties}
        # What it sets to the default's value, it sets too.
        own_options = {
            name: value for name, value in told.items() if value != getattr(default, name) or name in log.set_by(own)
        }
        own_entries = {} if own is None else log.entries(own)
        wanted = {name: self._value(name, value) for name, value in tuned.config["session_options"].items()}
        if tuned.config["global_thread_pool"]:
            wanted["use_per_session_threads"] = False
        tried = tuned.rule["tried"]
        options = _combine(own_options, wanted, tried["options"], keep=keep)
        entries = _combine(own_entries, wanted_entries, tried["entries"], keep=keep)
        # An affinity string is written for a number of threads, and goes with it.
        for theirs, side in ((wanted_entries, wanted), (own_entries, own_options)):
            if entries.get(AFFINITY) == theirs.get(AFFINITY) and options.get(THREADS) != side.get(THREADS):
                entries.pop(AFFINITY, None)
        for final, ours, theirs in ((options, wanted, own_options), (entries, wanted_entries, own_entries)):
            tuned.tell(final, ours, theirs)
        if own is None:
            fresh = log.kind()
        elif log.knows(own):
            fresh = log.copy(own)
        else:
            # Made before ortune was there: which entries it holds is unknown, so that no copy can be made.
            fresh = own
            options = {**{name: getattr(default, name) for name in own_options}, **options}
        for name, value in options.items():
            setattr(fresh, name, value)
        for name, text in entries.items():
            log.add_entry(fresh, name, text)
        return fresh

    def _value(self, name: str, value: Any) -> Any:
        if name not in ENUMS:
            return value
        import onnxruntime

        return getattr(onnxruntime, ENUMS[name]).__members__[value]

    def _entry(self, options: Any, name: str) -> str:
        try:
            return str(options.get_session_config_entry(name))
        except (AttributeError, RuntimeError):
            return ""

    def _add_run_settings(self, session: Any, tuned: Tuned) -> None:
        """Let calls of this one session have the config's run options."""
        if not _has_run_settings(tuned.config):
            return
        assert self._run_log is not None
        own = RunSettings(tuned.config, self._run_log, keep=self.plan["keep_explicit"])
        setattr(session, RUN_SETTINGS, own)

    @staticmethod
    def _patch_runs(kind: Any) -> None:
        """Let sessions that have run settings pass them on in each call."""
        for name in RUNS:
            method = getattr(kind, name, None)
            if method is None:
                continue
            names = list(inspect.signature(method).parameters)
            if "run_options" not in names:
                continue
            place = names.index("run_options") - 1

            @functools.wraps(method)
            def call(session: Any, *args: Any, _method: Any = method, _place: int = place, **kwargs: Any) -> Any:
                own = getattr(session, RUN_SETTINGS, None)
                if own is not None:
                    if len(args) > _place:
                        args = (*args[:_place], own.of(args[_place]), *args[_place + 1 :])
                    else:
                        kwargs["run_options"] = own.of(kwargs.get("run_options"))
                return _method(session, *args, **kwargs)

            setattr(kind, name, call)

    def _try_to_explain(self, *args: Any) -> None:
        try:
            self._explain(*args)
        except Exception as error:  # noqa: BLE001  (a program is not brought down by what is told of it)
            self._say(f"{args[0]}: it cannot be told what became of it ({error}).")

    def _explain(self, model: str, tuned: Tuned | None, why: str, session: Any, before: set[int] | None = None) -> None:
        """Tell what became of one session, if that is wanted."""
        if not self.plan["explain"] and not self.plan["explain_json"]:
            return
        read = session.get_session_options()
        told: dict[str, Any] = {"pid": os.getpid(), "model": model, "matched": tuned is not None, "why": why}
        if tuned is not None:
            names = dict.fromkeys((THREADS, *tuned.set, *tuned.instead_of))
            told["set"] = tuned.set
            told["instead_of"] = tuned.instead_of
            told["not_set"] = tuned.not_set
            told["read_back"] = {
                name: _show(getattr(read, name)) if hasattr(read, name) else self._entry(read, name) or "unset"
                for name in names
            }
            told["run_options"] = {**tuned.config["run_options"], **tuned.config["run_config"]}
            told["providers"] = list(session.get_providers())
            if before:
                time.sleep(SETTLE_S)
                told["threads"] = [_cpus_of(thread) for thread in sorted(_threads() - before)]
        if self.plan["explain_json"]:
            with contextlib.suppress(OSError), Path(self.plan["explain_json"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(told) + "\n")
        if self.plan["explain"]:
            _write(_page(told))

    def _report(self) -> None:
        """Tell at the end of a program that made sessions, none of which any record was for."""
        if self.others and not self.matched and not self.plan["quiet"] and self._pid == os.getpid():
            models = ", ".join(sorted(set(self.others)))
            hint = f" ({self.plan['hint']})" if self.plan["hint"] else ""
            self._say(f"no session got tuned options; there were sessions of {models}{hint}.")

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _write(f"ortune: {text}\n")


class Log:
    """What was done to the options of a class, from the beginning: so that copies of them can be made.

    Entries of options can be neither listed nor taken out again.

    Args:
        kind: SessionOptions or RunOptions, whose methods and attributes are replaced.

    Attributes:
        kind: The class.
        properties: Names of the attributes that can be set.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        own = {name: value for name, value in vars(kind).items() if isinstance(value, property) and value.fset}
        self.properties = tuple(own)
        self._methods: dict[str, Callable[..., Any]] = {}
        self._calls: Any = weakref.WeakKeyDictionary()
        self._set: Any = weakref.WeakKeyDictionary()
        self._copies: Any = weakref.WeakKeyDictionary()
        for name in dir(kind):
            if name.startswith(CHANGES):
                self._methods[name] = getattr(kind, name)
                setattr(kind, name, self._logged(name, self._methods[name]))
        for name, value in own.items():
            setattr(kind, name, property(value.fget, self._logged_set(name, value.fset), doc=value.__doc__))
        make = kind.__init__

        @functools.wraps(make)
        def begin(options: Any, *args: Any, **kwargs: Any) -> None:
            make(options, *args, **kwargs)
            self._calls[options], self._set[options] = [], set()

        kind.__init__ = begin

    def _logged(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(options: Any, *args: Any, **kwargs: Any) -> Any:
            answer = method(options, *args, **kwargs)
            if options in self._calls:
                self._calls[options].append((name, args, kwargs))
                if name == CANCELS:
                    for copy in list(self._copies.get(options, ())):
                        method(copy, *args, **kwargs)
            return answer

        return call

    def _logged_set(self, name: str, fset: Any) -> Callable[[Any, Any], None]:
        def assign(options: Any, value: Any) -> None:
            fset(options, value)
            if options in self._set:
                self._set[options].add(name)
                if name == "terminate":  # by another thread, while a call is under way
                    for copy in list(self._copies.get(options, ())):
                        fset(copy, value)

        return assign

    def knows(self, options: Any) -> bool:
        """Return whether it has seen all that was done to these options."""
        return options in self._calls

    def set_by(self, options: Any) -> set[str]:
        """Return the names of the attributes that were set."""
        return set(self._set.get(options, ()))

    def entries(self, options: Any) -> dict[str, str]:
        """Return the configuration entries that were added."""
        return dict(filter(None, (_entry_of(method, args) for method, args, _ in self._calls.get(options, []))))

    def add_entry(self, options: Any, name: str, text: str) -> None:
        """Add a configuration entry."""
        add = self._methods.get("add_session_config_entry") or self._methods["add_run_config_entry"]
        add(options, name, text)

    def copy(self, options: Any) -> Any:
        """Return new options to which the same methods were applied, but those that add entries."""
        fresh = self.kind()
        for method, args, kwargs in list(self._calls[options]):
            if _entry_of(method, args) is None:
                self._methods[method](fresh, *args, **kwargs)
        self._copies.setdefault(options, weakref.WeakSet()).add(fresh)
        return fresh


class RunSettings:
    """The run options of one session's calls.

    Args:
        config: Whose run options they are.
        log: What was done to RunOptions.
        keep: Whether what the program sets by itself wins.
    """

    def __init__(self, config: dict[str, Any], log: Log, *, keep: bool) -> None:
        self._config = config
        self._log = log
        self._keep = keep
        # The program's own are not changed: it may pass them to sessions of other models. Of each copy, its entries.
        self._copies: Any = weakref.WeakKeyDictionary()
        self._alone = self._fill(log.kind(), set(), {}, {})

    def of(self, own: Any) -> Any:
        """Return RunOptions with the tuned settings, and the program's own for all else."""
        if own is None:
            return self._alone
        if not self._log.knows(own):
            return own  # made before ortune was there: no copy can be made
        known = self._copies.get(own)
        if known is None:
            known = self._copies[own] = (self._log.copy(own), {})
        copy, added = known
        for name in self._log.properties:
            value = getattr(own, name)
            if getattr(copy, name) != value:
                setattr(copy, name, value)
        return self._fill(copy, self._log.set_by(own), self._log.entries(own), added)

    def _fill(self, options: Any, set_by_program: set[str], entries: dict[str, str], added: dict[str, str]) -> Any:
        for name, value in self._config["run_options"].items():
            if not self._keep or name not in set_by_program:
                setattr(options, name, value)
        for name, text in _combine(entries, self._config["run_config"], [], keep=self._keep).items():
            if added.get(name) != text:  # to add one again is worth a warning to ONNX Runtime
                self._log.add_entry(options, name, text)
                added[name] = text
        return options


class Tuned:
    """What one session is created with, and how that came about.

    Attributes:
        rule: The rule that it follows.
        config: The config of its record.
        source: The model, as the program passes it.
        extra: Further arguments of InferenceSession.
        options: SessionOptions.
        set: Tuned settings that it has.
        instead_of: What the program had set, and does not have.
        not_set: Tuned settings that it does not have, each with the reason.
    """

    def __init__(self, rule: dict[str, Any], config: dict[str, Any], source: Any, extra: dict[str, Any]) -> None:
        self.rule = rule
        self.config = config
        self.source = source
        self.extra = extra
        self.options: Any = None
        self.providers: list[str] = []
        self.provider_options: list[dict[str, str]] = []
        self.set: dict[str, Any] = {}
        self.instead_of: dict[str, Any] = {}
        self.not_set: list[str] = []

    def tell(self, final: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        """Note what became of the settings of both sides."""
        for name, value in ours.items():
            if name in final and final[name] == value:
                self.set[name] = _show(value)
            else:
                kept = f"kept as {_show(final[name])}" if name in final else "the program keeps its own threads"
                self.not_set.append(f"{name}={_show(value)} ({kept})")
        self.instead_of.update(
            {name: _show(value) for name, value in theirs.items() if name not in final or final[name] != value}
        )


def _combine(theirs: dict[str, Any], ours: dict[str, Any], tried: list[str], *, keep: bool) -> dict[str, Any]:
    """Return the settings of a session out of the program's own and the tuned ones.

    What the search tried gets its tuned value, ONNX Runtime's default included (here: by its absence), as that is what
    was measured; what it did not try stays as the program has it. With `keep`, whatever the program sets stays.
    """
    if keep:
        return {**ours, **theirs}
    return {**{name: value for name, value in theirs.items() if name not in tried}, **ours}


def _entry_of(method: str, args: tuple[Any, ...]) -> tuple[str, str] | None:
    """Return key and value of a call that adds a configuration entry, or None for another call."""
    if method not in {"add_session_config_entry", "add_run_config_entry"}:
        return None
    return (str(args[0]), str(args[1]))  # pybind takes them by position alone


def _has_run_settings(config: dict[str, Any] | None) -> bool:
    return config is not None and bool(config["run_options"] or config["run_config"])


def _sentence(error: Exception) -> str:
    """Return what happened, ending with a full stop: of errors that are not ortune's, the kind and the first line."""
    if type(error).__module__.startswith("ortune"):
        return " ".join(str(error).splitlines())
    told = str(error).partition("\n")[0].rstrip(". ")
    return f"{type(error).__name__}: {told}."


def _write(text: str) -> None:
    """Write to stderr, if there is one: daemons close it."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stderr.write(text)


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for part in iter(lambda: file.read(1 << 20), b""):
                digest.update(part)
    except OSError:
        return ""
    return digest.hexdigest()


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _threads() -> set[int]:
    """Return the ids of this process's threads, or nothing where the system does not tell."""
    try:
        return {int(path.name) for path in Path("/proc/self/task").iterdir()}
    except OSError:
        return set()


def _cpus_of(thread: int) -> str:
    """Return the CPUs that a thread may run on, as a list of ranges; empty if it has ended."""
    try:
        lines = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("Cpus_allowed_list:")), "")


def _show(value: Any) -> Any:
    return value.name if hasattr(value, "name") else value


def _page(told: dict[str, Any]) -> str:
    """Return what became of a session, for people."""
    head = f"ortune: [{told['pid']}] {told['model']}: "
    if not told["matched"]:
        return f"{head}left alone, {told['why']}\n"

    def line(name: str, values: Any) -> str:
        if isinstance(values, dict):
            values = [", ".join(f"{key}={value}" for key, value in values.items())] if values else []
        return f"ortune:   {name:<10} {'; '.join(values)}\n" if values else ""

    text = f"{head}tuned by {told['why']}\n"
    text += line("set", {**told["set"], **told["run_options"]} or ["nothing"])
    text += line("instead of", told["instead_of"])
    text += line("not set", told["not_set"])
    text += line("read back", {**told["read_back"], "providers": ",".join(told["providers"])})
    if "threads" in told:
        cpus = "; ".join(told["threads"])
        n = len(told["threads"])
        text += line("workers", [f"{n} new thread{'' if n == 1 else 's'}{', allowed on CPUs ' if n else ''}{cpus}"])
    return text
