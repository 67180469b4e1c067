"""Waits until the program imports onnxruntime, and hooks into it then: until then, nothing is loaded.

It runs inside programs, as `ortune.apply.inside.hook` does. It imports little, and only from the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
"""Where InferenceSession is defined; `onnxruntime` itself only hands it on."""

PLAN_VARIABLE = "ORTUNE_APPLY"
"""Holds the plan, as JSON, for a program and its child processes."""

OFF = "off"
"""Stands there in place of a plan where sessions are to be left alone: in the workers of ortune's own measurements."""

Plan = dict[str, Any]
"""What to do: {"rules": [{"source", "path", "files", "config", "tried", "onnxruntime", "reason"}], "any_model",
"keep_explicit", "explain", "explain_json", "quiet", "hint"}. A rule without a config names a model that is left
alone."""

_active: list[Callable[[], Plan]] = []
_patched: list[ModuleType] = []

from_environment = False
"""Whether the plan that is in force came from the environment, and not from the program itself."""


def start() -> None:
    """Follow the plan that the environment holds, if there is one."""
    text = os.environ.get(PLAN_VARIABLE)
    if text and text != OFF:
        import json

        activate(lambda: json.loads(text), environment=True)


def activate(get_plan: Callable[[], Plan], *, environment: bool = False) -> bool:
    """Hook into onnxruntime: now if the program has imported it, else as soon as it does.

    Args:
        get_plan: Is called once, when onnxruntime is there.
        environment: Whether it comes from the environment.

    Returns:
        Whether it was done; False where an earlier plan is in force.
    """
    global from_environment
    if _active:
        return False
    _active.append(get_plan)
    from_environment = environment
    if MODULE in sys.modules:
        patch(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, Finder())
    return True


def patch(module: ModuleType) -> None:
    """Hook into onnxruntime's module."""
    if module not in _patched:
        _patched.append(module)
        load("ortune.apply.inside.hook", "hook.py").Hook(_active[0]).patch(module)


def load(name: str, file: str) -> Any:
    """Return a module of this folder: by its path, as the program's Python may not have ortune."""
    from importlib.util import module_from_spec, spec_from_file_location

    if name not in sys.modules:
        spec = spec_from_file_location(name, os.path.join(os.path.dirname(__file__), file))
        assert spec and spec.loader
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


class Finder:
    """Finds onnxruntime's module as the others do, and has it patched once it is loaded."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec, with a loader that patches it; None for any other module."""
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
    """Loads a module as its own loader does, and patches it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        """Return what the own loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, and patch it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        patch(module)
