"""What a search space is for: the load, the objectives, the providers, and what the user says about knobs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ortune.knobs.config import CPU, Plugin
from ortune.knobs.knob import Value


class SpaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a search space is for.

    Attributes:
        figures: Objectives, and figures with a limit.
        clients: Number of concurrent callers of a process, of all its sessions together.
        sessions: Number of sessions of the model that run in parallel in a process.
        processes: Number of processes that run the model at the same time.
        pinned: Whether each process runs on CPUs of its own.
        batches: Numbers of items in a call to choose from, the baseline's first; empty if calls are made as they are.
        n_cases: Number of different input shapes.
        has_rate: Whether calls arrive at a rate.
        has_background_load: Whether a background load runs during measurements.
        providers: Execution providers to choose from. The baseline uses the first.
        plugins: Plugins that contain the providers that are not part of onnxruntime, by the provider's name.
        tune: Values to try, by the id of a knob.
        fix: Values that all candidates have, including the baseline, by the id of a knob.
        only: Ids of the knobs to try; empty for all.
        approximate: Whether to try knobs that may change outputs beyond rounding.
        allocators: Names of the installed libraries that can replace malloc.
        onnxruntime: Installed version; empty if unknown.
    """

    figures: tuple[str, ...] = ("p50",)
    clients: int = 1
    sessions: int = 1
    processes: int = 1
    pinned: bool = False
    batches: tuple[int, ...] = ()
    n_cases: int = 1
    has_rate: bool = False
    has_background_load: bool = False
    providers: tuple[str, ...] = (CPU,)
    plugins: Mapping[str, Plugin] = {}
    tune: Mapping[str, tuple[Value, ...]] = {}
    fix: Mapping[str, Value] = {}
    only: tuple[str, ...] = ()
    approximate: bool = False
    allocators: tuple[str, ...] = ()
    onnxruntime: str = ""

    @property
    def memory_matters(self) -> bool:
        """Whether memory or session creation is an objective or has a limit."""
        return bool({"memory", "load-time"} & set(self.figures))

    @property
    def has_one_caller(self) -> bool:
        """Whether at most one call runs at a time."""
        return self.clients == 1 and self.sessions == 1
