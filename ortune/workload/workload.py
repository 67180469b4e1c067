"""What is measured, as it is written to a record: load, objectives, limits, inputs and tolerance."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from ortune.bounds import MOST_ITEMS, MOST_TOLERANCE
from ortune.errors import UsageError
from ortune.numbers import FEW, MANY, Count
from ortune.sanitize import printable
from ortune.workload.figures import Objective
from ortune.workload.goal import Limit, all_calls_count
from ortune.workload.load import Load
from ortune.workload.program import ProgramRun

Share = Annotated[float, msgspec.Meta(ge=0, le=MOST_TOLERANCE)]


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far outputs may differ from the default's: `|a - b| <= absolute + relative * |b|`.

    Attributes:
        relative: Share of the default's value.
        absolute: Share of the largest value of the output, so that it means the same for all models.
    """

    relative: Share = 1e-3
    absolute: Share = 1e-4

    def allows_more_than(self, other: Tolerance) -> bool:
        """Return whether it is larger than another one in either respect."""
        return self.relative > other.relative or self.absolute > other.absolute

    def limit_to(self, other: Tolerance) -> Tolerance:
        """Return the smaller one of it and another one in each respect."""
        return Tolerance(
            relative=min(self.relative, other.relative),
            absolute=min(self.absolute, other.absolute),
        )


def check_tolerance(tolerance: Tolerance) -> None:
    """Check a tolerance that the user gives.

    Raises:
        UsageError: It is too large.
    """
    for option, value in (("rtol", tolerance.relative), ("atol", tolerance.absolute)):
        if value > MOST_TOLERANCE:
            raise UsageError(
                f"{value:g}: with such a tolerance, wrong outputs could pass.",
                f"Use at most {MOST_TOLERANCE:g}.",
                option=option,
            )


QUANTIZED_TOLERANCE = Tolerance(relative=1e-3, absolute=1 / 127)
"""For int8 models: a value may round in the other direction, a difference of one of the 127 steps of the output's
range."""


TF32_TOLERANCE = Tolerance(relative=5e-3, absolute=5e-3)
"""For float32 models on NVIDIA's GPUs, which multiply in TF32 by default: operands keep 10 of 23 bits, so that each has
a relative error of up to 2**-11. Differences on an H100, relative to the output's largest value: 1e-4 for ResNet-50 and
1.8e-3 for BERT base, both with random weights, and 2.7e-3 for SqueezeNet."""


APPROXIMATE_TOLERANCE = Tolerance(relative=0.05, absolute=0.05)
"""If the user allows approximations: a larger error means that the config is broken."""


MOST_SAMPLES = 100_000
"""Largest number of samples of input data. Each takes about a kilobyte in addition to its values."""


class InputData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data of one input.

    Attributes:
        dtype: NumPy's name of the type, "string" for strings.
        shapes: Shape in each sample; a single one if all samples have the same.
        origin: Source of the values.
    """

    dtype: str
    shapes: tuple[Annotated[tuple[Count, ...], FEW], ...]
    origin: str

    def __post_init__(self) -> None:
        """Reject an input without shapes, or with shapes that no array has."""
        if not self.shapes:
            raise ValueError("there are no shapes")
        if len(self.shapes) > MOST_SAMPLES:
            raise ValueError(f"there are {len(self.shapes)} shapes, more than {MOST_SAMPLES}")
        if any(size < 0 for shape in self.shapes for size in shape):
            raise ValueError("a size is negative")

    def __str__(self) -> str:
        return self.dtype + " ".join(f"[{','.join(map(str, shape))}]" for shape in self.shapes)


def list_cases(shapes: Mapping[str, Sequence[tuple[int, ...]]]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shape of each input in each sample, given the shapes of each input as in `InputData`."""
    n_cases = max(map(len, shapes.values()), default=1)
    return [{name: shape[place % len(shape)] for name, shape in shapes.items()} for place in range(n_cases)]


class BackgroundProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command of a background load, without its arguments: they may contain passwords.

    Attributes:
        program: File name of the program.
        sha256: SHA-256 of the whole command, as hexadecimal digits.
    """

    program: str
    sha256: str

    @classmethod
    def of(cls, command: str) -> BackgroundProgram:
        """Return the program of a command, which is quoted as in a shell."""
        try:
            words = shlex.split(command)
        except ValueError:
            words = []
        name = re.split(r"[/\\]", words[0])[-1] if words else ""
        return cls(program=printable(name), sha256=hashlib.sha256(command.encode(errors="surrogatepass")).hexdigest())


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured.

    Attributes:
        load: How calls arrive.
        objectives: What is optimized; several for a Pareto front.
        limits: Bounds for the result.
        n_samples: Number of samples of input data, which are used in turn, or drawn at random at a rate.
        inputs: Data of each input.
        tolerance: How far a candidate's outputs may differ from the default's.
        background_load: Program that ran during measurements, or None.
        program: The program that was measured as a whole; None if a session was measured alone.
        batches: Numbers of items in a call that were compared, the baseline's first. Throughput and CPU time are then
            those of items, and each sample is one item. Empty if calls were made with the samples as they are.
        sustained: Whether it is the speed that the host sustains for minutes: each side alone, after a minute of calls.
    """

    load: Load = Load()
    objectives: Annotated[tuple[Objective, ...], FEW] = ("p50",)
    limits: Annotated[tuple[Limit, ...], FEW] = ()
    n_samples: Count = 1
    inputs: Annotated[dict[str, InputData], MANY]
    tolerance: Tolerance = Tolerance()
    background_load: BackgroundProgram | None = None
    program: ProgramRun | None = None
    batches: Annotated[tuple[int, ...], MANY] = ()
    sustained: bool = False

    @property
    def figures(self) -> tuple[Objective, ...]:
        """All figures that the user named: those of the objectives and of the limits."""
        return tuple(dict.fromkeys((*self.objectives, *(limit.figure for limit in self.limits))))

    @property
    def counts_all_calls(self) -> bool:
        """Whether calls count also while other processes use the CPUs; see `all_calls_count`."""
        return all_calls_count(self.load, self.limits)

    def __post_init__(self) -> None:
        """Reject a workload without objectives, and numbers of items that no call has."""
        if not self.objectives:
            raise ValueError("there are no objectives")
        if any(not 1 <= batch <= MOST_ITEMS for batch in self.batches):
            raise ValueError(f"batches of {self.batches}: there must be 1 to {MOST_ITEMS} items in a call")
