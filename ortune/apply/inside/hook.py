"""Give the sessions of an unmodified program their tuned options.

This module runs inside that program, on Python 3.10 or later, with or without ortune installed there.
`ortune.apply.plan` writes the plan that it follows; `ortune.apply.inside.finder` loads it when the program imports
onnxruntime.

`InferenceSession.__init__` is replaced in place, so that subclasses, `isinstance` and names that were imported earlier
keep working. Calls of sessions are only wrapped if there are records, or if the program is observed.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortune.apply.inside.calls import RUN_SETTINGS, WATCH, wrap_runs
from ortune.apply.inside.explain import describe, describe_own, list_threads, render, write_stderr
from ortune.apply.inside.fit import FitCheck
from ortune.apply.inside.options_log import OptionsLog, read_entry
from ortune.apply.inside.plugins import PluginLibraries, find_unapplied, has_providers
from ortune.apply.inside.processes import Processes
from ortune.apply.inside.providers import CUDA_BASED, Skip, read_requested
from ortune.apply.inside.settings import (
    RunSettings,
    TunedSession,
    has_run_settings,
    read_own_settings,
    share_pool,
    show_value,
)

LONGEST_NOTE = 1000
"""Length of texts that are noted."""

MOST_CHECKS = 64
"""Number of sessions whose first calls are compared with their records."""

NO_RULE = "no record is for this model"

SESSIONS_FILE = "sessions.jsonl"
"""File in the plan's folder for logs. It has a line for each session."""

EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"

Plan = dict[str, Any]
"""See `ortune.apply.inside.finder.Plan`."""


class Hook:
    """Replacement of `InferenceSession.__init__` in one process.

    Args:
        get_plan: Returns the plan.
        load: Returns another module of this folder.
        observer: The observer of this process; see `ortune.apply.inside.observer`. None if it is not observed.

    Attributes:
        plan: What to do.
        n_tuned: Number of sessions that got tuned options.
        others: Names of the models whose sessions kept the program's own options.
    """

    def __init__(self, get_plan: Callable[[], Plan], load: Callable[[str], Any], observer: Any = None) -> None:
        self._get_plan = get_plan
        self._load = load
        self._canary: Any = None
        self._observer = observer
        self._checks: list[FitCheck] = []
        self.plan: Plan = {}
        self.n_tuned = 0
        self._processes: Processes | None = None
        self.others: list[str] = []
        self._lock = threading.Lock()
        self._n_sessions: dict[str, int] = {}
        self._pool: dict[str, int] | None = None
        self._pool_source = ""
        self._said: set[str] = set()
        self._pid = os.getpid()
        self._session_log: OptionsLog | None = None
        self._run_log: OptionsLog | None = None
        self._libraries = PluginLibraries(self._say)

    def patch(self, module: Any) -> None:
        """Hook into onnxruntime's module."""
        try:
            self.plan = self._get_plan()
            if self.plan.get("canary"):
                self._canary = self._load("canary").Canary(self.plan["canary"])
        except Exception as error:  # noqa: BLE001  (an unusable record must not stop the program)
            self._say(f"{_sentence(error)} Sessions keep the program's own options.")
            return
        if any((rule.get("measured") or {}).get("program") for rule in self.plan["rules"]):
            self._processes = Processes(self.plan)
        self._session_log = OptionsLog(module.C.SessionOptions)
        if any(has_run_settings(rule["config"]) for rule in self.plan["rules"]):
            self._run_log = OptionsLog(module.C.RunOptions)
        if any(rule["plugins"] for rule in self.plan["rules"]):
            self._libraries.patch(module.C, sys.modules.get("onnxruntime"))
        if self._observer is not None:
            self._observer.patch(module)
        if self._observer is not None or any(rule["config"] is not None for rule in self.plan["rules"]):
            wrap_runs(module.InferenceSession)
        if hasattr(os, "register_at_fork"):
            # Another thread may hold the lock when the program forks.
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
        if self._processes is not None:
            self._processes.leave()

    def create(self, own: Callable[..., None], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Create a session: with tuned options if a record is for its model, otherwise with the program's own options.

        Args:
            own: The original `InferenceSession.__init__`.
            session: The session.
            args: Arguments that the program passes.
            kwargs: Keyword arguments that the program passes.
        """
        if self._pid != os.getpid():  # a forked child does not report the parent's sessions
            self._pid, self.n_tuned, self.others, self._checks = os.getpid(), 0, [], []
        if self._processes is not None:
            self._processes.join()
        arguments = _bind(own, session, args, kwargs)
        model = _name_model(arguments)
        rule, tuned, reason = self._choose(model, arguments)
        before = list_threads() if tuned or self._observer or not self.plan["rules"] else set()
        start_ns, fault = time.perf_counter_ns(), ""
        if tuned is not None:
            fault, why = _create_tuned(own, session, tuned)
            tuned, reason = (None, why) if fault else (tuned, reason)
        if tuned is None:
            start_ns = time.perf_counter_ns()
            if self._pool and arguments:
                args, kwargs = self._share_pool(arguments)
            own(session, *args, **kwargs)  # if the model itself is at fault, this raises as it would without ortune
            self.others.append(model)
        create_ns = time.perf_counter_ns() - start_ns
        if fault:
            self._say(f"{model}: {reason} ({fault}). The session keeps the program's own options.")
        if tuned is not None:
            self._finish(session, model, tuned, kwargs)
        if self._canary is not None and rule is not None:
            self._count(session, model, rule, arguments, tuned, fault or reason)
        self._note(model, tuned, reason)
        if self._observer is not None:
            self._observe(session, arguments, tuned, reason, before, start_ns, create_ns)
        if not fault:
            self._explain(model, tuned, reason, session, before, arguments.get("sess_options"))

    def _share_pool(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the program's own arguments of InferenceSession, but with options for the global thread pool."""
        assert self._session_log is not None
        self._explain_pool()
        options = share_pool(arguments["sess_options"], self._session_log)
        positional = (arguments["path_or_bytes"], options, arguments["providers"], arguments["provider_options"])
        return positional, arguments["extra"]

    def _set_pool(self, onnxruntime: Any, pool: dict[str, int] | None, source: str) -> None:
        """Create the global thread pool of a config, unless the process has it."""
        if pool and pool != self._pool:
            onnxruntime.set_global_thread_pool_sizes(pool["intra_op_num_threads"], pool["inter_op_num_threads"])
            self._pool, self._pool_source = pool, source
        elif self._pool and not pool:
            self._explain_pool()

    def _explain_pool(self) -> None:
        """Say, once, that sessions share a pool that they were not measured with."""
        if not self.plan["quiet"]:
            self._say(
                f"{self._pool_source} has a global thread pool. All other sessions of the process use it, too, because "
                "onnxruntime refuses other sessions."
            )

    def _finish(self, session: Any, model: str, tuned: TunedSession, kwargs: dict[str, Any]) -> None:
        """Set up the calls of a session with tuned options."""
        self.n_tuned += 1
        # The program decides what happens when a provider fails during a call.
        session._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        try:
            self._add_run_settings(session, tuned)
        except Exception as error:  # noqa: BLE001  (another version of onnxruntime may lack an option)
            self._say(f"{model}: the tuned run options cannot be set ({error}).")
        measured = tuned.rule.get("measured")
        is_counted = self._canary is not None and self.plan["canary"]["folder"] is not None
        if self._observer is None and not is_counted and measured and len(self._checks) < MOST_CHECKS:
            check = FitCheck(tuned.rule["source"], model, measured, self._report_fit, self._processes)
            self._checks.append(check)
            setattr(session, WATCH, check)

    def _note(self, model: str, tuned: TunedSession | None, reason: str) -> None:
        """Note in the plan's folder for logs whether a session has a rule, and the settings of it."""
        folder = self.plan.get("log")
        if not folder or not self.plan["rules"]:
            return
        line = {
            "model": model[:LONGEST_NOTE],
            "has_rule": tuned is not None or reason != NO_RULE,
            "is_tuned": tuned is not None,
            "reason": str(reason)[:LONGEST_NOTE],
        }
        with contextlib.suppress(OSError):  # ortune has ended, and the program continues
            descriptor = os.open(Path(folder, SESSIONS_FILE), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)

    def _observe(
        self,
        session: Any,
        arguments: dict[str, Any],
        tuned: TunedSession | None,
        reason: str,
        before: set[int],
        start_ns: int,
        create_ns: int,
    ) -> None:
        """Pass a session to the observer."""
        try:
            facts = {
                **self._describe_own(arguments),
                "providers": list(session.get_providers()),
                "record": tuned.rule["source"] if tuned else "",
                "reason": "" if tuned or not self.plan["rules"] else reason,
                "n_threads": len(list_threads() - before),
            }
            self._observer.add_session(session, arguments.get("path_or_bytes", ""), facts, start_ns, create_ns)
        except Exception as error:  # noqa: BLE001  (observing must not stop the program)
            self._observer.give_up(error)

    def _describe_own(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a session that the program sets itself, as JSON types."""
        assert self._session_log is not None
        own = arguments.get("sess_options")
        options, entries = read_own_settings(own, self._session_log)
        try:
            requested = list(read_requested(arguments.get("providers"), arguments.get("provider_options")))
        except Skip:
            requested = []
        return {
            "requested": requested,
            "options": {name: show_value(value) for name, value in options.items()} | entries,
            "other_methods": [] if own is None else self._session_log.methods_of(own),
        }

    def _choose(self, model: str, arguments: dict[str, Any]) -> tuple[Plan | None, TunedSession | None, str]:
        """Return the rule for a session and its options; None where there is none, and the reason."""
        if not self.plan["rules"]:
            return None, None, "there is no record"
        rule, reason = self._try(model, lambda: self._find_rule(arguments))
        if rule is None:
            return None, None, reason
        if self._is_control:
            return rule, None, self._canary.reason
        return rule, *self._try(model, lambda: self._tune(rule, arguments))

    @property
    def _is_control(self) -> bool:
        """Whether sessions of this process keep the program's own options, for comparison with those of others."""
        return self._canary is not None and bool(self._canary.reason)

    def _count(
        self, session: Any, model: str, rule: Plan, arguments: dict[str, Any], tuned: TunedSession | None, reason: str
    ) -> None:
        """Let the calls of a session be counted, in the same way in both arms."""
        try:
            sha256 = hash_source(arguments["path_or_bytes"]) if self.plan["any_model"] else rule["files"][0]["sha256"]
            watch = self._canary.add_session(model, sha256, is_tuned=tuned is not None, reason=reason)
            if watch is not None and self._observer is None:
                setattr(session, WATCH, watch)
        except Exception as error:  # noqa: BLE001  (metrics must not stop the program)
            self._say(f"{model}: its calls cannot be counted ({error}).")

    def _try(self, model: str, function: Callable[[], Any]) -> tuple[Any, str]:
        """Return what a function returns; None and the reason if the session keeps the program's own options."""
        try:
            return function(), ""
        except Skip as reason:
            return None, str(reason)
        except OSError as error:
            return None, f"the model cannot be read: {error.strerror}"
        except Exception as error:  # noqa: BLE001  (a fault in ortune must not stop the program)
            self._say(f"{model}: {_sentence(error)} The session keeps the program's own options.")
            return None, "ortune failed"

    def _find_rule(self, arguments: dict[str, Any]) -> Plan:
        """Return the rule with the settings for the model of a session.

        Raises:
            Skip: There is no rule for the model, or it has no settings.
        """
        if not arguments:
            raise Skip("its arguments are not valid")
        rule = self._match_rule(arguments["path_or_bytes"], arguments["sess_options"])
        if rule["config"] is None:
            raise Skip(rule["reason"])
        return rule

    def _match_rule(self, source: Any, options: Any) -> Plan:
        """Return the rule for a model.

        Raises:
            Skip: There is no rule for the model.
        """
        rules = self.plan["rules"]
        if self.plan["any_model"]:
            return dict(rules[0])
        path = None if isinstance(source, bytes) else Path(os.fspath(source))
        size = len(source) if path is None else path.stat().st_size
        sha256 = ""
        for rule in rules:
            if not rule["files"]:
                continue
            first, *others = rule["files"]
            if first["size_bytes"] != size:
                continue
            sha256 = sha256 or (hashlib.sha256(source).hexdigest() if path is None else hash_file(path))
            if first["sha256"] != sha256:
                continue
            # For a model that is passed as bytes, the program may name the folder of its external data. If it does
            # not, the external data cannot be checked.
            folder = read_entry(options, EXTERNAL_FOLDER) if path is None else str(path.parent)
            if folder and any(not _is_same(Path(folder, other["name"]), other) for other in others):
                continue
            return dict(rule)
        raise Skip(NO_RULE)

    def _tune(self, rule: dict[str, Any], arguments: dict[str, Any]) -> TunedSession:
        """Return the options to create a session with.

        Raises:
            Skip: The session keeps the program's own options.
        """
        with self._lock:
            return self._tune_alone(rule, arguments)

    def _tune_alone(self, rule: dict[str, Any], arguments: dict[str, Any]) -> TunedSession:
        """Return the options; see `_tune`. The caller holds the lock."""
        import onnxruntime

        assert self._session_log is not None
        config, keep, source = rule["config"], self.plan["keep_explicit"], rule["source"]
        provider = config["providers"][0][0]
        if provider not in rule["plugins"] and provider not in onnxruntime.get_available_providers():
            self._say(f"{source} is not used: onnxruntime {onnxruntime.__version__} here has no {provider}.")
            raise Skip(f"onnxruntime here has no {provider}")
        tuned = TunedSession(rule, arguments["path_or_bytes"], dict(arguments["extra"]))
        try:
            tuned.set_providers(onnxruntime, arguments, self._session_log, self._libraries, keep=keep)
        except Skip as reason:
            if rule["plugins"] or has_providers(arguments["sess_options"]):
                self._say(f"{source} is not used: {reason}.")
            raise
        if _minor(rule["onnxruntime"]) != _minor(onnxruntime.__version__):
            self._say(
                f"{source} was tuned with onnxruntime {rule['onnxruntime']}; this is onnxruntime "
                f"{onnxruntime.__version__}."
            )
        if provider in CUDA_BASED and hasattr(onnxruntime, "preload_dlls"):
            # It prints what is missing to stdout, where only the program's own output belongs.
            onnxruntime.print = functools.partial(print, file=sys.stderr)
            try:
                onnxruntime.preload_dlls()
            finally:
                vars(onnxruntime).pop("print", None)
        self._set_pool(onnxruntime, config["global_thread_pool"], source)
        number = self._n_sessions.get(source, 0)
        self._n_sessions[source] = number + 1
        entries = {**config["session_config"], **rule["entries"]}
        if config["per_session"]:
            entries.update(config["per_session"][number % len(config["per_session"])])
        try:
            shares_pool = self._pool is not None
            tuned.set_options(arguments["sess_options"], entries, self._session_log, keep=keep, shares_pool=shares_pool)
            tuned.add_providers(self._session_log)
        except Exception:
            tuned.undo()
            raise
        for name in rule["captures"]:
            # A replay reads the buffers of the first call. Programs that do not keep them would get wrong outputs.
            tuned.not_set.append(f"{name} (the program would have to keep its inputs in buffers on the device)")
        if config["io_binding"]:
            tuned.not_set.append("io_binding (the program would have to call run_with_iobinding)")
        if config["batch"] > 1:
            tuned.not_set.append("batch (the program would have to put so many items into each call)")
        return tuned

    def _add_run_settings(self, session: Any, tuned: TunedSession) -> None:
        """Pass the config's run options to the calls of this session."""
        if has_run_settings(tuned.config):
            assert self._run_log is not None
            settings = RunSettings(tuned.config, self._run_log, keep=self.plan["keep_explicit"])
            setattr(session, RUN_SETTINGS, settings)

    def _explain(
        self, model: str, tuned: TunedSession | None, reason: str, session: Any, before: set[int], own: Any
    ) -> None:
        """Report the options of a session if the plan requests it."""
        to_file, to_stderr = self.plan["explain_json"], self.plan["explain"]
        if not to_file and not to_stderr:
            return
        try:
            description = describe(model, tuned, reason, session, before)
            if not self.plan["rules"]:
                assert self._session_log is not None
                description |= describe_own(session, *read_own_settings(own, self._session_log), before)
            self._append(description)
            if to_stderr:
                write_stderr(render(description))
        except Exception as error:  # noqa: BLE001  (a report must not stop the program)
            self._say(f"{model}: the session's options cannot be reported ({error}).")

    def _append(self, description: dict[str, Any]) -> None:
        """Append a line of JSON to the file that the plan names."""
        if self.plan["explain_json"]:
            with contextlib.suppress(OSError), Path(self.plan["explain_json"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(description) + "\n")

    def _report_fit(self, check: FitCheck) -> None:
        """Warn if a record does not fit the calls that were checked."""
        found = check.explain()
        if found:
            self._append({"pid": os.getpid(), "model": check.model, "record": check.source, "misfits": found})
        for text in [] if self.plan["quiet"] else found:
            self._say(text)

    def _report(self) -> None:
        """Warn at exit if records do not fit, or if the program created sessions, but none with tuned options."""
        if self._pid != os.getpid():
            return
        for check in self._checks:
            if not check.is_done:
                self._report_fit(check)
        if self.plan["quiet"]:
            return
        if self.others and not self.n_tuned and self.plan["rules"] and not self._is_control:
            models = ", ".join(sorted(set(self.others)))
            hint = f" ({self.plan['hint']})" if self.plan["hint"] else ""
            self._say(f"no session got tuned options; the program created sessions of {models}{hint}.")

    def _say(self, text: str) -> None:
        """Write a message to stderr, once."""
        if text not in self._said:
            self._said.add(text)
            write_stderr(f"ortune: {text}\n")


def _create_tuned(own: Callable[..., None], session: Any, tuned: TunedSession) -> tuple[str, str]:
    """Create a session with tuned options. If that fails, undo what was changed in the program's own options.

    Returns:
        The fault, and what failed; the first is empty if nothing did.
    """
    fault, reason = "", f"{tuned.rule['source']} cannot be applied"
    try:
        own(session, *tuned.arguments, **tuned.extra)
        if tuned.unproven_provider:
            fault = find_unapplied(session, tuned.unproven_provider)
    except Exception as error:  # noqa: BLE001  (onnxruntime may raise anything)
        fault, reason = str(error) or type(error).__name__, "creating the session with the tuned options failed"
    if fault:
        tuned.undo()
    return fault, reason


def _bind(own: Callable[..., None], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of InferenceSession by name, further ones as "extra"; empty if they are not valid."""
    try:
        bound = inspect.signature(own).bind(session, *args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    return {**arguments, "extra": dict(arguments.pop("kwargs", {}))}


def _name_model(arguments: dict[str, Any]) -> str:
    """Return the name of a model, as the program passes it."""
    source = arguments.get("path_or_bytes")
    if isinstance(source, bytes):
        return f"{len(source)} bytes"
    try:
        return str(os.fspath(source))  # type: ignore[arg-type]
    except TypeError:
        return "?"


def hash_source(source: Any) -> str:
    """Return the SHA-256 of a model that is passed as a path or as bytes; empty if it cannot be read."""
    return hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else hash_file(Path(os.fspath(source)))


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for part in iter(lambda: file.read(1 << 20), b""):
                digest.update(part)
    except OSError:
        return ""
    return digest.hexdigest()


def _sentence(error: Exception) -> str:
    """Return an error's message as a sentence. For errors from outside ortune, return the type and the first line."""
    if type(error).__module__.startswith("ortune"):
        return " ".join(str(error).splitlines())
    text = str(error).partition("\n")[0].rstrip(". ")
    return f"{type(error).__name__}: {text}."


def _is_same(path: Path, file: dict[str, Any]) -> bool:
    """Return whether a file is the one that a record names. Reading a device or a pipe could block forever."""
    return path.is_file() and path.stat().st_size == file["size_bytes"] and hash_file(path) == file["sha256"]


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
