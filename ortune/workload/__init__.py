"""The workload: how calls arrive, the input data, the objectives and the limits.

The module that makes inputs is imported on first use, so that programs start quickly under `ortune apply`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ortune.workload.figures import FIGURES, Figure, Objective, is_figure, list_figures, parse_objective
from ortune.workload.goal import Goal, Limit, make_goal, parse_limit
from ortune.workload.load import Load, make_load, parse_rate
from ortune.workload.workload import (
    APPROXIMATE_TOLERANCE,
    QUANTIZED_TOLERANCE,
    TF32_TOLERANCE,
    InputData,
    Tolerance,
    Workload,
)

if TYPE_CHECKING:
    from ortune.workload.feed import Feed, InputOptions, Tensor
    from ortune.workload.inputs import make_feed

__all__ = [
    "APPROXIMATE_TOLERANCE",
    "FIGURES",
    "QUANTIZED_TOLERANCE",
    "TF32_TOLERANCE",
    "Feed",
    "Figure",
    "Goal",
    "InputData",
    "InputOptions",
    "Limit",
    "Load",
    "Objective",
    "Tensor",
    "Tolerance",
    "Workload",
    "is_figure",
    "list_figures",
    "make_feed",
    "make_goal",
    "make_load",
    "parse_limit",
    "parse_objective",
    "parse_rate",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use (PEP 562)."""
    homes = {"Feed": "feed", "InputOptions": "feed", "Tensor": "feed", "make_feed": "inputs"}
    if name in homes:
        return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
