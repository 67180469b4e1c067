"""Detects calls that become slower or faster the longer a process runs, as when its memory grows.

All launches of a comparison are short. The first one is followed for longer, in rounds that count for nothing else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from ortune.measure.block_plan import FEWEST_LATE_ROUNDS
from ortune.measure.block_runner import Round
from ortune.measure.comparison import LateCalls, Speedup
from ortune.measure.compute_figures import is_of_calls, to_cost
from ortune.measure.paired_run import BASELINE_POSITION, LAUNCHES_OF_AN_INTERVAL, PairedRun
from ortune.measure.stats import TYPICAL_TRIM, student_interval, trimmed_mean
from ortune.workload import Objective

FEWEST_EARLY_ROUNDS = 2
"""Rounds of the same launch that late ones are compared with at least."""


def find_late_calls(run: PairedRun, position: int, name: Objective, speedup: Speedup) -> LateCalls | None:
    """Return how the late calls of a launch compare, or None if they do as the early ones, or too few are known.

    The ratio changes within the launch, from its early rounds to the late ones. The same change applies to the speedup,
    which is that of all launches: the followed one may be slow as a whole. As a precaution, the interval has the
    variance between launches. It must not overlap with that of the speedup. Nothing is known if the host became slow
    between early and late rounds, which the next launch shows.

    Args:
        run: The rounds of one regime.
        position: The side that is compared with the baseline.
        name: The objective.
        speedup: Its speedup in all launches, without the late calls.
    """
    launches = run.rounds_of(BASELINE_POSITION, position)
    early, late = (compute_round_ratios(rounds, position, name) for rounds in (run.followed, run.late))
    if (
        len(early) < FEWEST_EARLY_ROUNDS
        or len(late) < FEWEST_LATE_ROUNDS
        or len(launches) < LAUNCHES_OF_AN_INTERVAL
        or not is_of_calls(name)
    ):
        return None
    if all(run.before.is_slow(compute_level(rounds, name)) for rounds in (run.late, launches[1])):
        return None
    clusters = [compute_round_ratios(rounds, position, name) for rounds in launches]
    means = [trimmed_mean(cluster, TYPICAL_TRIM) for cluster in clusters]
    between, within = float(np.std(means, ddof=1)), pool_deviations(clusters)
    error = math.hypot(between, within * math.sqrt(1 / len(late) + 1 / len(early)))
    change = trimmed_mean(late, TYPICAL_TRIM) - trimmed_mean(early, TYPICAL_TRIM)
    estimate = math.log(speedup.estimate) + change
    interval = student_interval(estimate, error, len(means) - 1, speedup.confidence).exp()
    if interval.low <= speedup.high and speedup.low <= interval.high:
        return None
    return LateCalls(
        estimate=interval.estimate,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        n_calls=sum(len(measured.blocks[position].samples_ns) for measured in run.followed),
        early=speedup.estimate,
    )


def compute_round_ratios(rounds: Sequence[Round], position: int, name: Objective) -> list[float]:
    """Return the logarithms of how many times better a side is than the baseline, in each round that has both."""
    sides = (BASELINE_POSITION, position)
    costs = [
        [to_cost(name, measured.figure(name, side)) for side in sides]
        for measured in rounds
        if all(side in measured.blocks for side in sides)
    ]
    return [math.log(base / own) for base, own in costs]


def compute_level(rounds: Sequence[Round], name: Objective) -> float:
    """Return the logarithm of the baseline's cost in some rounds."""
    known = [measured for measured in rounds if BASELINE_POSITION in measured.blocks]
    return math.log(statistics.median(to_cost(name, measured.figure(name, BASELINE_POSITION)) for measured in known))


def pool_deviations(clusters: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of values within clusters; 0 if each has a single one."""
    n_free = sum(len(cluster) - 1 for cluster in clusters)
    squares = sum(float(np.var(cluster)) * len(cluster) for cluster in clusters)
    return math.sqrt(squares / n_free) if n_free else 0.0
