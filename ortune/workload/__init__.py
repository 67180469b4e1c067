"""The workload: what is fed to the model, how calls arrive, and what is to be made small.

What makes inputs is imported when it is first asked for: a program that starts under `ortune apply` waits for imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ortune.workload.values import (
    FIGURES,
    Goal,
    InputData,
    Limit,
    Load,
    Objective,
    Tolerance,
    Workload,
    make_goal,
    make_load,
)

if TYPE_CHECKING:
    from ortune.workload.inputs import Feed, InputOptions, Tensor, make_feed

__all__ = [
    "FIGURES",
    "Feed",
    "Goal",
    "InputData",
    "InputOptions",
    "Limit",
    "Load",
    "Objective",
    "Tensor",
    "Tolerance",
    "Workload",
    "make_feed",
    "make_goal",
    "make_load",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for (PEP 562)."""
    if name in {"Feed", "InputOptions", "Tensor", "make_feed"}:
        return getattr(importlib.import_module("ortune.workload.inputs"), name)
    raise AttributeError(f"module 'ortune.workload' has no attribute {name!r}")
