"""Give the sessions of an unmodified program their tuned options.

This module runs inside that program, on Python 3.10 or later, with or without ortune installed there.
`ortune.apply.plan` writes the plan that it follows; `ortune.apply.inside.finder` loads it when the program imports
onnxruntime.

`InferenceSession.__init__` is replaced in place, so that subclasses, `isinstance` and names that were imported earlier
keep working. Calls of a session are only wrapped if a config has run options.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import inspect
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortune.apply.inside.explain import describe, list_threads, read_entry, render, write_stderr
from ortune.apply.inside.options_log import OptionsLog
from ortune.apply.inside.providers import CUDA_BASED, Skip
from ortune.apply.inside.settings import RunSettings, TunedSession, has_run_settings

EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"

RUN_METHODS = ("run", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
"""Methods of InferenceSession that take RunOptions."""

RUN_SETTINGS = "_ortune_run_settings"
"""Attribute of sessions whose calls get run options."""

Plan = dict[str, Any]
"""See `ortune.apply.inside.finder.Plan`."""


class Hook:
    """Replacement of `InferenceSession.__init__` in one process.

    Args:
        get_plan: Returns the plan.

    Attributes:
        plan: What to do.
        n_tuned: Number of sessions that got tuned options.
        others: Names of the models whose sessions kept the program's own options.
    """

    def __init__(self, get_plan: Callable[[], Plan]) -> None:
        self._get_plan = get_plan
        self.plan: Plan = {}
        self.n_tuned = 0
        self.others: list[str] = []
        self._lock = threading.Lock()
        self._n_sessions: dict[str, int] = {}
        self._pools: list[dict[str, int]] = []
        self._said: set[str] = set()
        self._pid = os.getpid()
        self._session_log: OptionsLog | None = None
        self._run_log: OptionsLog | None = None

    def patch(self, module: Any) -> None:
        """Hook into onnxruntime's module."""
        try:
            self.plan = self._get_plan()
        except Exception as error:  # noqa: BLE001  (an unusable record must not stop the program)
            self._say(f"{_sentence(error)} Sessions keep the program's own options.")
            return
        self._session_log = OptionsLog(module.C.SessionOptions)
        if any(has_run_settings(rule["config"]) for rule in self.plan["rules"]):
            self._run_log = OptionsLog(module.C.RunOptions)
            _wrap_runs(module.InferenceSession)
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

    def create(self, own: Callable[..., None], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Create a session: with tuned options if a record is for its model, otherwise with the program's own options.

        Args:
            own: The original `InferenceSession.__init__`.
            session: The session.
            args: Arguments that the program passes.
            kwargs: Keyword arguments that the program passes.
        """
        if self._pid != os.getpid():  # a forked child does not report the parent's sessions
            self._pid, self.n_tuned, self.others = os.getpid(), 0, []
        model, tuned, reason = self._prepare(inspect.signature(own), session, args, kwargs)
        if tuned is None:
            own(session, *args, **kwargs)
            self.others.append(model)
            self._explain(model, None, reason, session, set())
            return
        before, fault = list_threads(), None
        try:
            own(session, tuned.model, tuned.options, tuned.providers.names, tuned.providers.options, **tuned.extra)
        except Exception as error:  # noqa: BLE001  (onnxruntime may raise anything)
            fault = error
        if fault is not None:
            own(session, *args, **kwargs)  # if the model itself is at fault, this raises as it would without ortune
            self._say(
                f"{model}: creating the session with the tuned options failed ({fault}). "
                "The session keeps the program's own options."
            )
            self.others.append(model)
            return
        self.n_tuned += 1
        # The program decides what happens when a provider fails during a call.
        session._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        try:
            self._add_run_settings(session, tuned)
        except Exception as error:  # noqa: BLE001  (another version of onnxruntime may lack an option)
            self._say(f"{model}: the tuned run options cannot be set ({error}).")
        self._explain(model, tuned, "", session, before)

    def _prepare(
        self, signature: inspect.Signature, session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, TunedSession | None, str]:
        """Return the model's name, and the options for its session, or None and the reason."""
        model = "?"
        try:
            bound = signature.bind(session, *args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            extra = arguments.pop("kwargs", {})
            source = arguments["path_or_bytes"]
            model = f"{len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)
            rule = self._find_rule(source, arguments["sess_options"])
            if rule["config"] is None:
                return model, None, rule["reason"]
            with self._lock:
                return model, self._tune(rule, arguments, extra), ""
        except Skip as reason:
            return model, None, str(reason)
        except OSError as error:
            return model, None, f"the model cannot be read: {error.strerror}"
        except Exception as error:  # noqa: BLE001  (a fault in ortune must not stop the program)
            self._say(f"{model}: {_sentence(error)} The session keeps the program's own options.")
            return model, None, "ortune failed"

    def _find_rule(self, source: Any, options: Any) -> dict[str, Any]:
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
            if folder and any(not _is_same(Path(folder, each["name"]), each) for each in others):
                continue
            return dict(rule)
        raise Skip("no record is for this model")

    def _tune(self, rule: dict[str, Any], arguments: dict[str, Any], extra: dict[str, Any]) -> TunedSession:
        """Return the options to create a session with.

        Raises:
            Skip: The session keeps the program's own options.
        """
        import onnxruntime

        assert self._session_log is not None
        config, keep, source = rule["config"], self.plan["keep_explicit"], rule["source"]
        provider = config["providers"][0][0]
        if provider not in onnxruntime.get_available_providers():
            self._say(f"{source} is not used: onnxruntime {onnxruntime.__version__} here has no {provider}.")
            raise Skip(f"onnxruntime here has no {provider}")
        tuned = TunedSession(rule, arguments["path_or_bytes"], dict(extra))
        tuned.set_providers(onnxruntime, arguments, keep=keep)
        if _minor(rule["onnxruntime"]) != _minor(onnxruntime.__version__):
            self._say(
                f"{source} was tuned with onnxruntime {rule['onnxruntime']}; this is onnxruntime "
                f"{onnxruntime.__version__}."
            )
        if provider in CUDA_BASED and hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()
        pool = config["global_thread_pool"]
        if pool and pool not in self._pools:
            onnxruntime.set_global_thread_pool_sizes(pool["intra_op_num_threads"], pool["inter_op_num_threads"])
            self._pools.append(pool)
        number = self._n_sessions.get(source, 0)
        self._n_sessions[source] = number + 1
        entries = dict(config["session_config"])
        if config["per_session"]:
            entries.update(config["per_session"][number % len(config["per_session"])])
        tuned.set_options(arguments["sess_options"], entries, self._session_log, keep=keep)
        if config["io_binding"]:
            tuned.not_set.append("io_binding (the program would have to call run_with_iobinding)")
        return tuned

    def _add_run_settings(self, session: Any, tuned: TunedSession) -> None:
        """Pass the config's run options to the calls of this session."""
        if has_run_settings(tuned.config):
            assert self._run_log is not None
            settings = RunSettings(tuned.config, self._run_log, keep=self.plan["keep_explicit"])
            setattr(session, RUN_SETTINGS, settings)

    def _explain(self, model: str, tuned: TunedSession | None, reason: str, session: Any, before: set[int]) -> None:
        """Report the options of a session if the plan requests it."""
        to_file, to_stderr = self.plan["explain_json"], self.plan["explain"]
        if not to_file and not to_stderr:
            return
        try:
            description = describe(model, tuned, reason, session, before)
            if to_file:
                with contextlib.suppress(OSError), Path(to_file).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(description) + "\n")
            if to_stderr:
                write_stderr(render(description))
        except Exception as error:  # noqa: BLE001  (a report must not stop the program)
            self._say(f"{model}: the session's options cannot be reported ({error}).")

    def _report(self) -> None:
        """Warn at exit if the program created sessions, but none with tuned options."""
        if self.others and not self.n_tuned and not self.plan["quiet"] and self._pid == os.getpid():
            models = ", ".join(sorted(set(self.others)))
            hint = f" ({self.plan['hint']})" if self.plan["hint"] else ""
            self._say(f"no session got tuned options; the program created sessions of {models}{hint}.")

    def _say(self, text: str) -> None:
        """Write a message to stderr, once."""
        if text not in self._said:
            self._said.add(text)
            write_stderr(f"ortune: {text}\n")


def _wrap_runs(kind: Any) -> None:
    """Let sessions that have run settings add them to each call.

    Args:
        kind: InferenceSession.
    """
    for name in RUN_METHODS:
        method = getattr(kind, name, None)
        if method is None:
            continue
        names = list(inspect.signature(method).parameters)
        if "run_options" not in names:
            continue
        index = names.index("run_options") - 1

        @functools.wraps(method)
        def call(session: Any, *args: Any, _method: Any = method, _index: int = index, **kwargs: Any) -> Any:
            settings = getattr(session, RUN_SETTINGS, None)
            if settings is not None:
                if len(args) > _index:
                    args = (*args[:_index], settings.merge(args[_index]), *args[_index + 1 :])
                else:
                    kwargs["run_options"] = settings.merge(kwargs.get("run_options"))
            return _method(session, *args, **kwargs)

        setattr(kind, name, call)


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
