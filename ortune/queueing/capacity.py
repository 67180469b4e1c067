"""The capacity of a simulated queue: the highest rate at which a percentile of the latency, or the mean, keeps a limit.

All rates are simulated with the same random numbers, so that the latency is a smooth function of the rate. The rate at
which it reaches the limit is found with Brent's method, and so are those at which the ends of its interval do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import msgspec

from ortune.measure.interval import Interval
from ortune.queueing.queue_model import Queue
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION, simulate

Bound = Literal["latency", "highest rate", "lowest rate"]
"""What bounds a capacity. "latency": the limit is reached there. "highest rate": the limit is kept at the highest rate
that was considered, so that the capacity is at least that. "lowest rate": the limit is not kept even at the lowest
rate that was measured, so that the capacity is less than that, or 0 if calls alone take too long."""

FIRST_FACTOR, NEAR_FACTOR = 1.2, 1.02
"""Factors by which the rate is changed at first until the limit is enclosed: from a guess, and from the capacity."""

RATE_PRECISION = 1e-3
"""How closely a rate is computed, as a share of it."""

LINEAR_RATE_FACTOR = 1.05
"""Where two rates differ by this factor at most, the function between them is taken to be a line."""


APPROACH = 0.6
"""Part of the way to the highest rate that one step goes at most."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that keeps a limit.

    Attributes:
        rate_per_s: The rate, with its interval. Where the rate is bounded by the range that was considered, the
            interval contains all rates that are not ruled out.
        bound: What bounds it.
        n_measurements: Number of rates at which the latency was measured or simulated.
    """

    rate_per_s: Interval
    bound: Bound
    n_measurements: int


def find_capacity(
    simulate_at: Callable[[float], Interval],
    limit_ns: float,
    *,
    lowest_per_s: float,
    highest_per_s: float,
    start_per_s: float,
) -> Capacity:
    """Find the highest rate at which a simulated figure of the latency keeps a limit.

    Args:
        simulate_at: Returns the figure in ns at a rate, with its interval, and the same for the same rate. Values are
            infinite where the queue grows without bound.
        limit_ns: The limit in ns.
        lowest_per_s: Lowest rate that is considered.
        highest_per_s: Highest rate that is considered.
        start_per_s: Where the capacity is expected.

    Raises:
        ValueError: The rates or the limit are not positive, or not in order.
    """
    if not 0 < lowest_per_s <= start_per_s <= highest_per_s < math.inf or not 0 < limit_ns < math.inf:
        raise ValueError(
            f"rates from {lowest_per_s} to {highest_per_s} per second, first {start_per_s}, a limit of {limit_ns} ns: "
            "they must be positive, and in this order"
        )
    simulated = functools.cache(simulate_at)

    def reach(choose: Callable[[Interval], float], start: float, factor: float) -> float:
        def find_spare(rate_per_s: float) -> float:
            return limit_ns / choose(simulated(rate_per_s)) - 1

        return find_crossing(find_spare, start, factor, lowest_per_s, highest_per_s)

    estimate = reach(lambda interval: interval.estimate, start_per_s, FIRST_FACTOR)
    near = min(max(estimate, lowest_per_s), highest_per_s)
    low = reach(lambda interval: interval.high, near, NEAR_FACTOR) * (1 - RATE_PRECISION)
    high = reach(lambda interval: interval.low, near, NEAR_FACTOR) * (1 + RATE_PRECISION)
    bound: Bound = "latency"
    if estimate == 0:
        bound, low, high = "lowest rate", 0.0, max(high, lowest_per_s)
    elif math.isinf(estimate):
        bound, estimate, low, high = "highest rate", highest_per_s, min(low, highest_per_s), math.inf
    return Capacity(
        rate_per_s=Interval(
            estimate=estimate,
            low=min(low, estimate),
            high=max(high, estimate),
            confidence=simulated(near).confidence,
        ),
        bound=bound,
        n_measurements=simulated.cache_info().currsize,
    )


def find_crossing(
    find_spare: Callable[[float], float], start: float, factor: float, lowest: float, highest: float
) -> float:
    """Return the rate at which a function that falls reaches 0; 0 or infinity if that is beyond the range.

    Source: R. P. Brent, "Algorithms for Minimization without Derivatives" (1973), chapter 4.

    Args:
        find_spare: The function. Where it does not fall everywhere, any of the rates at which it reaches 0 is returned.
        start: First rate.
        factor: By which the rate is changed at first, until 0 is enclosed.
        lowest: Lowest rate.
        highest: Highest rate.
    """
    from scipy.optimize import brentq

    low = high = start
    if find_spare(start) >= 0:
        while find_spare(high) >= 0:
            if high >= highest:
                return math.inf
            low, high, factor = high, min(high * factor, approach(high, highest)), factor**2
    else:
        while find_spare(low) < 0:
            if low <= lowest:
                return 0.0
            low, high, factor = max(low / factor, lowest), low, factor**2
    if high <= LINEAR_RATE_FACTOR * low:
        below, above = find_spare(low), find_spare(high)
        return low + (high - low) * below / (below - above)
    return float(brentq(find_spare, low, high, rtol=RATE_PRECISION))


def approach(rate: float, highest: float) -> float:
    """Return a rate between this one and the highest, or the highest if that is near.

    The closer a rate is to that at which a queue grows without bound, the longer its simulation takes.
    """
    return highest if highest <= LINEAR_RATE_FACTOR * rate else rate + APPROACH * (highest - rate)


def simulate_capacity(
    queue: Queue,
    point: float | None,
    limit_ns: float,
    *,
    relative_error: float = 0.01,
    seed: int = 0,
) -> Capacity:
    """Find the capacity of a simulated queue.

    Rates are considered up to the share `HIGHEST_SIMULATED_UTILIZATION` of the rate at which the queue grows without
    bound.

    Args:
        queue: The queue.
        point: The percentile, such as 99; None for the mean.
        limit_ns: Its limit in ns.
        relative_error: Standard error of the latency at one rate, as a share.
        seed: Random seed. All rates are simulated with the same random numbers.
    """

    def simulate_at(rate_per_s: float) -> Interval:
        found = simulate(
            queue, rate_per_s, point=90 if point is None else point, relative_error=relative_error, seed=seed
        )
        return found.mean() if point is None else found.percentile(point)

    return find_capacity(
        simulate_at,
        limit_ns,
        lowest_per_s=queue.highest_per_s * (1 - HIGHEST_SIMULATED_UTILIZATION),
        highest_per_s=queue.highest_per_s * HIGHEST_SIMULATED_UTILIZATION,
        start_per_s=queue.highest_per_s * 0.7,
    )
