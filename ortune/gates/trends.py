"""Finds changes of level in a history of gates: slow drifts and small steps that each gate allows.

Runs are read one after the other, as they came. After each one, every division of the runs since the last change into
those before and those after is tested with Student's t-test, and a change is found when the smallest p-value is below a
limit. Runs that are added only refine its place, unless they contradict it: then it is dropped. The limit is much
stricter than the desired rate of false alarms, because many divisions are tested after many runs; `python -m
benchmarks.trends` measures both that rate and how soon steps are found.

Source: M. Daly et al., "The Use of Change Point Detection to Identify Software Performance Regressions in a Continuous
Integration System", ICPE (2020); D. Hawkins, P. Qiu and C. W. Kang, "The Changepoint Model for Statistical Process
Control", Journal of Quality Technology 35 (2003), which is the method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

FEWEST_BEFORE, FEWEST_AFTER = 6, 4
"""Runs on both sides of a change. Fewer runs after it may be outliers."""

MOST_MOVED = 5
"""By how many runs a change is placed earlier, at most, than when it was found."""

WINDOW = 60
"""Number of latest runs in which changes are looked for."""

LIMIT, LIMIT_TO_HOLD = 1.5e-4, 1e-2
"""Largest p-value of a change when it is found, and as runs are added: above it, the change is dropped."""

SMALLEST = 0.005
"""Smallest change, as a log-ratio: smaller ones are of no interest."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of level.

    Attributes:
        first: Position of the first run after it.
        found: Position of the run with which it was found.
        ratio: The level after it divided by that before.
        holds: Whether later runs do not contradict it.
    """

    first: int
    found: int
    ratio: float
    holds: bool = True


def find_changes(values: Sequence[float]) -> tuple[Change, ...]:
    """Return the changes of level in a series, in the order in which they were found.

    Args:
        values: Slowdowns of consecutive runs: ratios above 0.
    """
    logs = np.log(np.asarray(values, dtype=float))
    changes: list[Change] = []
    for found in range(FEWEST_BEFORE + FEWEST_AFTER - 1, len(logs)):
        known = logs[: found + 1]
        drop_last(changes, known)
        start = max((change.first for change in changes if change.holds), default=0)
        begin = max(start, len(known) - WINDOW)
        if (place := find_change(known[begin:])) is not None:
            first = begin + place
            ratio = math.exp(float(known[first:].mean() - known[begin:first].mean()))
            changes.append(Change(first=first, found=found, ratio=ratio))
    return refine_places(changes, logs)


def refine_places(changes: Sequence[Change], logs: NDArray[np.float64]) -> tuple[Change, ...]:
    """Return changes of which those that hold are placed by all runs from the change before to the one after them."""
    starts = [0, *(change.first for change in changes if change.holds), len(logs)]
    refined, number = [], 0
    for change in changes:
        if change.holds:
            begin, end = starts[number], starts[number + 2]
            places = np.arange(max(change.first - MOST_MOVED, begin + 1), min(change.found, end - 1) + 1)
            best = int(places[np.argmin(compute_p_values(logs[begin:end], places - begin))])
            ratio = math.exp(float(logs[best:end].mean() - logs[begin:best].mean()))
            change = msgspec.structs.replace(change, first=best, ratio=ratio)
            number += 1
        refined.append(change)
    return tuple(refined)


def drop_last(changes: list[Change], logs: NDArray[np.float64]) -> None:
    """Mark the last change that holds as one that does not, if the runs since then contradict it."""
    places = [place for place, change in enumerate(changes) if change.holds]
    if not places:
        return
    last = changes[places[-1]]
    start = changes[places[-2]].first if len(places) > 1 else 0
    begin = max(start, last.first - WINDOW)
    (p_value,) = compute_p_values(logs[begin:], np.array([last.first - begin]))
    if p_value > LIMIT_TO_HOLD:
        changes[places[-1]] = msgspec.structs.replace(last, holds=False)


def find_change(logs: NDArray[np.float64]) -> int | None:
    """Return the position of the first run after the most likely change, or None if there is none."""
    places = np.arange(FEWEST_BEFORE, len(logs) - FEWEST_AFTER + 1)
    if not len(places):
        return None
    p_values = compute_p_values(logs, places)
    best = int(places[np.argmin(p_values)])
    is_large = abs(float(logs[best:].mean() - logs[:best].mean())) >= SMALLEST
    return best if is_large and p_values.min() <= LIMIT else None


def compute_p_values(logs: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the p-value of Student's t-test for each division of a series.

    Args:
        logs: The series.
        places: For each division: the number of runs before it.
    """
    n = len(logs)
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    before, after = sums[places - 1] / places, (sums[-1] - sums[places - 1]) / (n - places)
    left = squares[places - 1] - places * before**2
    right = squares[-1] - squares[places - 1] - (n - places) * after**2
    variance = np.maximum(left + right, 1e-18) / (n - 2)
    statistics = np.abs(after - before) / np.sqrt(variance * (1 / places + 1 / (n - places)))
    return np.asarray(2 * student.sf(statistics, n - 2))
