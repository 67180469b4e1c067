"""The workload as a pure value, as it is written to a record."""

from __future__ import annotations

from typing import Literal

import msgspec

Objective = Literal["p50"]
"""What a search makes small: the median latency of a call."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far outputs may lie from the default's: `|a - b| <= absolute + relative * |b|`.

    Attributes:
        relative: Share of the default's value.
        absolute: Share of the largest value of the output, so that it means the same for all models.
    """

    relative: float = 1e-3
    absolute: float = 1e-4


QUANTIZED_TOLERANCE = Tolerance(relative=1e-3, absolute=1 / 127)
"""For int8 models: rounding may go the other way, which is one of the 127 steps of the output's range."""


class InputData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one input is fed with: NumPy's type name ("string" for strings), sizes, and where the values come from."""

    dtype: str
    shape: tuple[int, ...]
    origin: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured.

    Attributes:
        load: How calls arrive: "single-stream" is one caller, back to back.
        objective: What is made small.
        inputs: What each input is fed with.
        tolerance: How far a candidate's outputs may lie from the default's.
    """

    load: Literal["single-stream"] = "single-stream"
    objective: Objective = "p50"
    inputs: dict[str, InputData]
    tolerance: Tolerance
