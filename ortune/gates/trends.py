"""Finds changes of level in a history of gates: slow drifts and small steps that each gate allows.

Runs are read one after the other, as they came. After each one, every division of the runs since the last change into
those before and those after is tested with Student's t-test, and a change is found when the smallest p-value is below a
limit. Runs that are added only refine its place, unless they contradict it: then it is dropped. The limit is much
stricter than the desired rate of false alarms, because many divisions are tested after many runs; `python -m
benchmarks.trends` measures both that rate and how soon steps are found.

A single slow run would hide a change, or look like one. Before a test, runs that are far from the median of the runs
around them are therefore moved closer to it, as the Hampel filter does. A change of level moves the medians, too, so it
is kept.

Source: M. Daly et al., "The Use of Change Point Detection to Identify Software Performance Regressions in a Continuous
Integration System", ICPE (2020); D. Hawkins, P. Qiu and C. W. Kang, "The Changepoint Model for Statistical Process
Control", Journal of Quality Technology 35 (2003), which is the method; R. K. Pearson, "Outliers in Process Modeling and
Identification", IEEE Transactions on Control Systems Technology 10 (2002), for the filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import stdtr

FEWEST_BEFORE, FEWEST_AFTER = 6, 5
"""Runs on both sides of a change. Fewer runs after it may be outliers."""

MOST_MOVED = 5
"""By how many runs a change is placed earlier, at most, than when it was found."""

WINDOW = 60
"""Number of latest runs in which changes are looked for."""

LIMIT, LIMIT_TO_HOLD = 1.9e-3, 1e-2
"""Largest p-value of a change when it is found, if a single division is tested; and as runs are added: above it, the
change is dropped. For more divisions, the former is divided by the square root of their number, as their tests have
most runs in common."""

SMALLEST_CHANGE = 0.005
"""Smallest change, as a log-ratio: smaller ones are of no interest."""

AROUND, FARTHEST_CHANGE = 4, 3.0
"""Runs on each side of a run whose median it is compared with, and how far from it a run may be, in standard
deviations. These are estimated from the median deviation."""

MEDIAN_DEVIATION = 0.6745
"""Median of the absolute values of the standard normal distribution."""


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
        place = find_change(known[begin:])
        # The window may begin with a few unusual runs, which those before them contradict.
        if place is not None and not is_contradicted(known, start, begin + place):
            ratio = math.exp(compare_levels(winsorize(known[begin:]), place))
            changes.append(Change(first=begin + place, found=found, ratio=ratio))
    return refine_places(changes, logs)


def refine_places(changes: Sequence[Change], logs: NDArray[np.float64]) -> tuple[Change, ...]:
    """Return changes of which those that hold are placed by all runs from the change before to the one after them."""
    starts = [0, *(change.first for change in changes if change.holds), len(logs)]
    refined, number = [], 0
    for change in changes:
        if change.holds:
            begin, end = starts[number], starts[number + 2]
            places = np.arange(max(change.first - MOST_MOVED, begin + 1), min(change.found, end - 1) + 1)
            between = winsorize(logs[begin:end])
            best = int(places[np.argmin(compute_p_values(between, places - begin))])
            ratio = math.exp(compare_levels(between, best - begin))
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
    if is_contradicted(logs, start, last.first):
        changes[places[-1]] = msgspec.structs.replace(last, holds=False)


def is_contradicted(logs: NDArray[np.float64], start: int, first: int) -> bool:
    """Return whether there is no change at a position, given the runs before and after it.

    Args:
        logs: The series.
        start: Position of the first run since the change before.
        first: The position.
    """
    begin = max(start, first - WINDOW)
    (p_value,) = compute_p_values(winsorize(logs[begin:]), np.array([first - begin]))
    return bool(p_value > LIMIT_TO_HOLD)


def find_change(logs: NDArray[np.float64]) -> int | None:
    """Return the position of the first run after the most likely change, or None if there is none."""
    places = np.arange(FEWEST_BEFORE, len(logs) - FEWEST_AFTER + 1)
    if not len(places):
        return None
    kept = winsorize(logs)
    p_values = compute_p_values(kept, places)
    best = int(places[np.argmin(p_values)])
    is_large = abs(compare_levels(kept, best)) >= SMALLEST_CHANGE
    return best if is_large and p_values.min() <= LIMIT / math.sqrt(len(places)) else None


def compare_levels(logs: NDArray[np.float64], place: int) -> float:
    """Return by how much the mean of a series from a position on exceeds that before it."""
    return float(logs[place:].mean() - logs[:place].mean())


def winsorize(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a series whose outliers are moved closer to the runs around them."""
    n = len(logs)
    # At the ends, the runs on the other side count twice.
    mirrored = np.concatenate((logs[AROUND:0:-1], logs, logs[-2 : -AROUND - 2 : -1]))
    medians = np.sort(sliding_window_view(mirrored, 2 * AROUND + 1), axis=1)[:, AROUND]
    deviations = logs - medians
    sizes = np.sort(np.abs(deviations))
    sigma = float(sizes[(n - 1) // 2] + sizes[n // 2]) / 2 / MEDIAN_DEVIATION
    # Without noise, the deviation may be 0 although some runs differ a bit.
    most = max(FARTHEST_CHANGE * sigma, SMALLEST_CHANGE)
    return np.asarray(medians + np.clip(deviations, -most, most))


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
    return np.asarray(2 * stdtr(n - 2, -statistics))
