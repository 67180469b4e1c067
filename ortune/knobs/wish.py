"""What a space is wanted for: the load, the figures that count, the providers, and what the user says of knobs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ortune.knobs.config import CPU
from ortune.knobs.knob import Value


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a space is wanted for.

    Attributes:
        figures: Objectives, and what is limited.
        clients: Callers, all together.
        sessions: Sessions of the model that run side by side.
        n_cases: Different shapes that are fed.
        has_rate: Whether calls arrive at a rate.
        has_neighbour: Whether a program runs beside.
        providers: Execution providers to choose from; what a search starts from comes first.
        tune: Values to try, by the id of a knob.
        fix: Values that every candidate has, the default too, by the id of a knob.
        only: Ids of the knobs to try, or none for all.
        approximate: Whether knobs may be tried that change outputs beyond rounding.
        allocators: Libraries that can be preloaded in place of malloc: paths by name.
        onnxruntime: Version that is installed, or empty where it is not known.
    """

    figures: tuple[str, ...] = ("p50",)
    clients: int = 1
    sessions: int = 1
    n_cases: int = 1
    has_rate: bool = False
    has_neighbour: bool = False
    providers: tuple[str, ...] = (CPU,)
    tune: Mapping[str, tuple[Value, ...]] = {}
    fix: Mapping[str, Value] = {}
    only: tuple[str, ...] = ()
    approximate: bool = False
    allocators: Mapping[str, str] = {}
    onnxruntime: str = ""

    @property
    def of_memory(self) -> bool:
        """Whether memory or the creation of sessions counts."""
        return bool({"memory", "load-time"} & set(self.figures))

    @property
    def one_caller(self) -> bool:
        """Whether one call is under way at most."""
        return self.clients == 1 and self.sessions == 1
