"""Figures of a config under a load, which can be objectives and limits."""

from __future__ import annotations

from typing import Literal

import msgspec

from ortune.errors import UsageError

Objective = Literal["p50", "p90", "p95", "p99", "mean", "throughput", "cpu", "memory", "load-time", "metric", "score"]
"""What a search can optimize; `FIGURES` says what each means."""

Unit = Literal["ns", "bytes", "per_s", "number"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a config under a load.

    Attributes:
        name: Its name in options.
        title: Its name in tables.
        unit: Unit of its values.
        percentile: For percentiles of latency: which one, between 0 and 100.
        larger_is_better: Whether larger values are better.
        meaning: What it is, part of a sentence.
    """

    name: Objective
    title: str
    unit: Unit = "ns"
    percentile: float | None = None
    larger_is_better: bool = False
    meaning: str


def _percentile(point: int) -> Figure:
    return Figure(
        name=f"p{point}",  # type: ignore[arg-type]
        title=f"p{point} latency",
        percentile=point,
        meaning=f"latency that {point}% of the calls do not exceed",
    )


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        *map(_percentile, (50, 90, 95, 99)),
        Figure(name="mean", title="mean latency", meaning="mean latency of a call"),
        Figure(
            name="throughput",
            title="throughput",
            unit="per_s",
            larger_is_better=True,
            meaning="calls per second of all clients together, with {batch} items per second",
        ),
        Figure(
            name="cpu",
            title="CPU time per call",
            meaning="CPU time of the whole process per call, with {batch} per item, including threads that spin "
            "between calls",
        ),
        Figure(name="memory", title="peak memory", unit="bytes", meaning="peak resident memory of the process"),
        Figure(name="load-time", title="session creation", meaning="time to create the session"),
        Figure(
            name="metric",
            title="metric",
            unit="number",
            meaning="number that a program prints ({metric}), where a smaller one is better",
        ),
        Figure(
            name="score",
            title="score",
            unit="number",
            larger_is_better=True,
            meaning="number that a program prints ({metric}), where a larger one is better ({maximize})",
        ),
    )
}


OF_PROGRAMS = frozenset({"metric", "score"})
"""Figures that only programs have."""


def parse_objective(name: str) -> Objective:
    """Return the objective of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in FIGURES:
        names = ", ".join(name for name in FIGURES if name not in OF_PROGRAMS)
        raise UsageError(f"{name}: is not a figure.", f"Choose one of {names}.")
    return FIGURES[name].name
