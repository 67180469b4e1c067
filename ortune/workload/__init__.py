"""The workload: what is fed to the model, how calls arrive, and what is to be made small."""

from __future__ import annotations

from ortune.workload.inputs import Feed, InputOptions, Tensor, make_feed
from ortune.workload.values import InputData, Objective, Tolerance, Workload

__all__ = [
    "Feed",
    "InputData",
    "InputOptions",
    "Objective",
    "Tensor",
    "Tolerance",
    "Workload",
    "make_feed",
]
