"""Wait until the program imports onnxruntime, then install the hook.

This module runs inside programs, on Python 3.10 or later, with or without ortune installed there. It delays every start
of Python, so it imports little, and only from the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

SESSION_MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
"""The module that defines InferenceSession; `onnxruntime` only re-exports it."""

PLAN_VARIABLE = "ORTUNE_APPLY"
"""Environment variable that holds the plan, as JSON, for a program and its child processes."""

OFF = "off"
"""Value of that variable, instead of a plan, in the workers of ortune's own measurements: sessions are not changed."""

HOOK = "hook"

PARTS = (
    "options_log",
    "providers",
    "plugins",
    "settings",
    "explain",
    "calls",
    "processes",
    "fit",
    HOOK,
    "gate",
    "returned",
    "call_timer",
    "samples",
    "endings",
    "observer",
    "canary",
)
"""Modules of this folder. Each imports only modules that come before it. Those after the hook are for programs that are
measured or observed, and for canaries."""

Plan = dict[str, Any]
"""What to do in a program: {"rules": [{"source", "path", "files", "config", "plugins", "entries", "captures", "tried",
"own_providers", "onnxruntime", "reason", "measured"}], "any_model", "keep_explicit", "explain", "explain_json",
"quiet", "hint"}. A rule whose config is None names a model whose sessions are not changed. The entries are
configuration entries from which providers read their options. The captures are settings that programs do not get. With
own_providers, sessions keep the execution providers that the program requests.

These keys may be missing:

- "observe": folder for what is seen of the program; see `observer`.
- "save_inputs": {"folder", "max_samples", "max_bytes"}: where inputs are saved, and how many for each session; the size
  is that of all of a process.
- "log": folder for what is noted of a program while it is measured: the calls of a function, and whether sessions got
  their settings. It needs no observer, which would take CPU time.
- "call": the function whose calls are timed, as "package.module:function"; see `call_timer`. It needs "log".
- "returned": how many of the first calls of each process are noted with what they returned; see `returned`.
- "gate": folder of the gate that these calls pass; see `gate`.
- "canary": {"share", "folder", "config", "host_class"}: the share of processes whose sessions get the tuned options,
  and the folder for the metrics of all processes, which may be None; see `canary`. The others say what the metrics are
  about."""

STATE = "_ortune_plan"
"""Attribute of `sys` with the active plan. It is not in this module, because a process may load this module from ortune
and from ortune-apply."""

_patched: list[ModuleType] = []

_observers: list[Any] = []
"""The observer of this process, if it is observed."""


def start() -> None:
    """Activate the plan that the environment holds, if there is one."""
    text = os.environ.get(PLAN_VARIABLE)
    if text and text != OFF:
        import json

        if '"observe"' in text or '"log"' in text:
            watch(json.loads(text))
        activate(lambda: json.loads(text), environment=True)


def watch(plan: Plan) -> None:
    """Observe this process, and time the calls of a function, if the plan says so."""
    observer = None
    if plan.get("observe"):
        observer = load_hook("observer").Observer(plan)
        observer.start()
        _observers.append(observer)
    if plan.get("call"):
        timer = load_hook("call_timer").CallTimer(plan, observer)
        if observer is not None:
            observer.timer = timer
        if timer.module == "__main__":
            timer.watch_main()
        elif timer.module in sys.modules:
            timer.patch(sys.modules[timer.module])
        else:
            sys.meta_path.insert(0, Finder(timer.module, timer.patch))


def activate(get_plan: Callable[[], Plan], *, environment: bool = False) -> bool:
    """Hook into onnxruntime: now if the program has imported it, otherwise as soon as it does.

    Args:
        get_plan: Returns the plan. Called once, when onnxruntime is imported.
        environment: Whether the plan comes from the environment.

    Returns:
        Whether the plan is active; False if another plan was activated before.
    """
    if hasattr(sys, STATE):
        return False
    setattr(sys, STATE, (get_plan, environment))
    if SESSION_MODULE in sys.modules:
        patch(sys.modules[SESSION_MODULE])
    else:
        sys.meta_path.insert(0, Finder(SESSION_MODULE, patch))
    return True


def is_from_environment() -> bool:
    """Return whether the active plan came from the environment, not from the program itself."""
    return bool(getattr(sys, STATE)[1])


def patch(module: ModuleType) -> None:
    """Hook into onnxruntime's module."""
    if module not in _patched:
        _patched.append(module)
        get_plan = getattr(sys, STATE)[0]
        load_hook().Hook(get_plan, load_hook, *_observers).patch(module)


def load_hook(name: str = HOOK) -> Any:
    """Return the module `hook` of this folder, or another one of `PARTS`.

    The program's Python may have no ortune, or another version of it. All modules are therefore loaded by path, and
    each is registered under its full name before the next one is loaded: then the import statements between them find
    it there, and Python does not import the package `ortune`.
    """
    for part in PARTS[: PARTS.index(name) + 1]:
        module = load(part)
    return module


def load(part: str) -> Any:
    """Return a module of this folder, loaded by path."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = f"{__name__.rpartition('.')[0]}.{part}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{part}.py"))
        assert spec and spec.loader
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


class Finder:
    """Import finder that delegates to the other finders, and patches one module once it is loaded.

    Args:
        module: Name of the module.
        patch: Called with it.
    """

    def __init__(self, module: str, patch: Callable[[Any], None]) -> None:
        self._module = module
        self._patch = patch
        self._busy = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec with a loader that patches it; None for any other module."""
        if fullname != self._module or self._busy:
            return None
        self._busy = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(fullname, path, target) if find and finder is not self else None
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = Loader(spec.loader, self._patch)
                    return spec
            return None
        finally:
            self._busy = False


class Loader:
    """Import loader that patches a module after the original loader has executed it."""

    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: Any) -> Any:
        """Return what the original loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, then patch it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._patch(module)
