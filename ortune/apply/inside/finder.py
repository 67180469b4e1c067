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

MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
"""The module that defines InferenceSession; `onnxruntime` only re-exports it."""

PLAN_VARIABLE = "ORTUNE_APPLY"
"""Environment variable that holds the plan, as JSON, for a program and its child processes."""

OFF = "off"
"""Value of that variable, instead of a plan, in the workers of ortune's own measurements: sessions are not changed."""

PARTS = ("options_log", "providers", "settings", "explain", "hook")
"""Modules of this folder that make up the hook. Each imports only modules that come before it."""

Plan = dict[str, Any]
"""What to do in a program: {"rules": [{"source", "path", "files", "config", "tried", "onnxruntime", "reason"}],
"any_model", "keep_explicit", "explain", "explain_json", "quiet", "hint"}. A rule whose config is None names a model
whose sessions are not changed."""

STATE = "_ortune_plan"
"""Attribute of `sys` with the active plan. It is not in this module, because a process may load this module from ortune
and from ortune-apply."""

_patched: list[ModuleType] = []


def start() -> None:
    """Activate the plan that the environment holds, if there is one."""
    text = os.environ.get(PLAN_VARIABLE)
    if text and text != OFF:
        import json

        activate(lambda: json.loads(text), environment=True)


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
    if MODULE in sys.modules:
        patch(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, Finder())
    return True


def is_from_environment() -> bool:
    """Return whether the active plan came from the environment, not from the program itself."""
    return bool(getattr(sys, STATE)[1])


def patch(module: ModuleType) -> None:
    """Hook into onnxruntime's module."""
    if module not in _patched:
        _patched.append(module)
        get_plan = getattr(sys, STATE)[0]
        load_hook().Hook(get_plan).patch(module)


def load_hook() -> Any:
    """Return the module `hook` of this folder.

    The program's Python may have no ortune, or another version of it. All modules are therefore loaded by path, and
    each is registered under its full name before the next one is loaded: then the import statements between them find
    it there, and Python does not import the package `ortune`.
    """
    for part in PARTS:
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
    """Import finder that delegates to the other finders, and patches onnxruntime's module once it is loaded."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec with a loader that patches it; None for any other module."""
        if fullname != MODULE or self._busy:
            return None
        self._busy = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(fullname, path, target) if find and finder is not self else None
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = Loader(spec.loader)
                    return spec
            return None
        finally:
            self._busy = False


class Loader:
    """Import loader that patches a module after the original loader has executed it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        """Return what the original loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, then patch it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        patch(module)
