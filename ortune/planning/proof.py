"""Decides which deployments are proven to take more than the default."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec

from ortune.measure.interval import Interval
from ortune.measure.judge import compare
from ortune.planning.capacity import CAPACITY_RELATIVE_ERROR
from ortune.planning.choose import DEFAULT_POSITION
from ortune.planning.result import Estimate, PlannedDeployment


def mark_promising(rows: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
    """Return the rows, with those marked whose capacity is above that of the default, measured or predicted."""
    return [rows[DEFAULT_POSITION], *(mark(row, is_above(row, rows[DEFAULT_POSITION])) for row in rows[1:])]


def mark_proven(rows: Sequence[PlannedDeployment], beyond: Collection[str] = ()) -> list[PlannedDeployment]:
    """Return the rows, with those marked whose capacity is proven to be above that of the default.

    A prediction alone proves nothing: it knows neither how calls speed up on a host with idle CPUs, nor the tail of
    their durations. Unless both capacities are measured, the throughput, which is, must be proven to be higher, too.

    Args:
        rows: The rows, the default first.
        beyond: Keys of deployments at whose measured capacity the default was measured to break the target.
    """
    default = rows[DEFAULT_POSITION]
    marked = [default]
    for row in rows[1:]:
        assert row.capacity
        assert default.capacity
        is_measured = row.capacity.source == default.capacity.source == "measured" or row.deployment.key in beyond
        # That full batches have a higher throughput says nothing about how long requests wait for them.
        has_throughput = row.ratio is not None and compare(row.ratio, 1) == "above" and not row.deployment.batching
        marked.append(mark(row, is_above(row, default) and (is_measured or has_throughput)))
    return marked


def mark(row: PlannedDeployment, is_proven: bool) -> PlannedDeployment:
    """Return a row that is proven to be better than the default, or that is not."""
    return msgspec.structs.replace(row, is_proven=is_proven)


def is_above(row: PlannedDeployment, default: PlannedDeployment) -> bool:
    """Return whether a deployment has a larger capacity than the default, by more than the errors of both together.

    Of a prediction, only the error of the throughput counts here. It decides where to measure, and otherwise only
    together with a throughput that is proven to be higher.
    """
    one, other = row.capacity, default.capacity
    assert one
    assert other
    if one.estimate <= 0 or (one.source == "measured" and one.low <= 0):
        return False
    if other.estimate <= 0 and other.source == "measured":
        # The default was not found to keep the target. It is known only from which rate on it misses it.
        surely = one.low if one.source == "measured" else one.estimate
        return other.high is not None and surely > other.high
    if other.estimate <= 0:
        return one.source == "predicted" or one.low > (other.high or 0.0)
    below = math.log(one.estimate / one.low) if one.source == "measured" else find_throughput_error(row)
    above = find_throughput_error(default)
    if other.source == "measured":
        # Where the target is kept at the highest rate that was considered, the throughput bounds the capacity.
        high = other.high or default.throughput.high or math.inf
        above = max(math.log(high / other.estimate), 0.0)
    return math.log(one.estimate / other.estimate) > math.hypot(below, above)


def find_throughput_error(row: PlannedDeployment) -> float:
    """Return the error of a throughput and of a simulation with its durations, as a logarithm."""
    return math.hypot(half_width(row.ratio or row.throughput), CAPACITY_RELATIVE_ERROR)


def half_width(found: Interval | Estimate) -> float:
    """Return half the width of an interval of a positive figure, as a logarithm; 0 if it is not finite."""
    if found.high is None or not (found.low > 0 and math.isfinite(found.high)):
        return 0.0
    return math.log(found.high / found.low) / 2
