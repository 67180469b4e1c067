"""The workload: what is fed to the model, how calls arrive, and what is to be made small."""

from __future__ import annotations

from ortune.workload.inputs import Feed, InputOptions, Tensor, make_feed
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
