"""The capacity: the highest rate at which a percentile of the latency keeps a limit.

The search sees only a function that measures the percentile at a rate, with its interval. It is the same for
measurements of a live system, which are noisy, and for a simulated queue.

The latency grows with the rate, and near the limit limit / latency falls about linearly: for exponentially distributed
latencies, such as those of an M/M/1 queue, it is exactly linear, and it is 0 where the queue grows without bound. A
line through the measurements near the limit gives the capacity and its interval.

Sources: E. C. Fieller, "Some problems in interval estimation", Journal of the Royal Statistical Society B 16 (1954),
for the interval of the place where a line reaches a value. A. C. Aitken, "On least squares and linear combination of
observations", Proceedings of the Royal Society of Edinburgh 55 (1936), for fits to values with correlated errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.compare.interval import DEFAULT_CONFIDENCE, Interval, share_error
from ortune.queueing.queue_model import Queue
from ortune.queueing.replications import quantile_of_normal
from ortune.queueing.simulation import HIGHEST_UTILIZATION, simulate

Measure = Callable[[float], Interval]
"""Returns a figure of the latency in ns at a rate per second, with its interval. Values are infinite where the queue
grows without bound; only the upper end is where there are too few calls for one."""

Bound = Literal["latency", "highest rate", "lowest rate"]
"""What bounds a capacity. "latency": the limit is reached there. "highest rate": the limit is kept at the highest rate
that was considered, so that the capacity is at least that. "lowest rate": the limit is not kept even at the lowest
rate that was measured, so that the capacity is less than that, or 0 if calls alone take too long."""

NEAR = 0.35
"""Measurements are near the limit if limit / latency is within this distance of 1."""

REACH, FARTHEST = 2.5, 0.8
"""If errors are large, so is that distance: this multiple of the typical error, but not more than 0.8."""

CURVATURE = 2.0
"""The line is taken to be off by about this multiple of (1 - limit / latency)^2, up or down. Chosen so that intervals
contain the capacity of M/M/c and M/D/c queues often enough (`python -m benchmarks.queueing`)."""

LEAST_STEP, LARGEST_STEP = 0.01, 0.2
"""Measurements are made where limit / latency is expected to differ from 1 by this much at least and at most."""

FEWEST_MEASUREMENTS = 4
"""Measurements near the limit that a result needs at least."""

MOST_REPEATS = 4
"""Measurements at the highest or lowest rate, as long as it is unclear whether the limit is kept there."""

MOST_FITS = 5
"""Fits at most, each to the measurements near the limit by the fit before it."""

SHARE_OF_OWN = 0.1
"""With common random numbers: the part of the standard error that is not the same at all rates."""

SMALLEST_ERROR, LARGEST_ERROR = 1e-6, 3.0
"""Bounds of standard errors of logarithms."""

LEAST_LOG = math.log(1e-3)
"""Logarithm of limit / latency that stands for all smaller ones."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement at one rate.

    Attributes:
        rate_per_s: Requests per second.
        latency_ns: The figure of the latency.
    """

    rate_per_s: float
    latency_ns: Interval


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that keeps a limit.

    Attributes:
        rate_per_s: The rate, with its interval. Where the rate is bounded by the range that was considered, the
            interval contains all rates that are not ruled out.
        bound: What bounds it.
        measurements: What was measured, in this order.
    """

    rate_per_s: Interval
    bound: Bound
    measurements: tuple[Measurement, ...]


class _Root(msgspec.Struct, frozen=True):
    """Where the line through measurements reaches the limit.

    Attributes:
        estimate: The rate.
        low: Lower end of its interval.
        high: Upper end.
        slope: Slope of limit / latency.
        error: Typical standard error of limit / latency.
        n: Measurements near the limit.
    """

    estimate: float
    low: float
    high: float
    slope: float
    error: float
    n: int


def find_capacity(
    measure: Measure,
    limit_ns: float,
    *,
    lowest_per_s: float,
    highest_per_s: float,
    start_per_s: float | None = None,
    tolerance: float = 0.05,
    most_measurements: int = 30,
    shared_errors: bool = False,
    confidence: float = DEFAULT_CONFIDENCE,
) -> Capacity:
    """Find the highest rate at which a figure of the latency keeps a limit.

    If the limit was not kept at any rate that was measured, the estimate is 0, and the interval ends at the lowest rate
    at which it clearly was not kept.

    Args:
        measure: Measures the figure at a rate. Rates may repeat.
        limit_ns: The limit in ns.
        lowest_per_s: Lowest rate that is of interest.
        highest_per_s: Highest rate: what the servers can do at most, or what is of interest.
        start_per_s: Where the capacity is expected; None for the geometric mean of both.
        tolerance: Half the width of the interval, as a share of the capacity, at which the search ends.
        most_measurements: Measurements at most.
        shared_errors: Whether errors are the same at all rates, as with common random numbers. Then more measurements
            do not make the result more precise.
        confidence: Coverage of the interval. The search ends when it is narrow enough, which makes it a little lower.

    Raises:
        ValueError: The rates, the limit or the tolerance are not positive, or not in order.
    """
    if not 0 < lowest_per_s < highest_per_s < math.inf or not 0 < limit_ns < math.inf or tolerance <= 0:
        raise ValueError(
            f"rates from {lowest_per_s} to {highest_per_s} per second, a limit of {limit_ns} ns, a tolerance of "
            f"{tolerance}: they must be positive, and the lowest rate below the highest"
        )
    measurements: list[Measurement] = []
    rate = start_per_s or math.sqrt(lowest_per_s * highest_per_s)
    rate = min(max(rate, lowest_per_s), highest_per_s)
    while True:
        measurements.append(Measurement(rate_per_s=rate, latency_ns=measure(rate)))
        root = _find_root(measurements, limit_ns, shared_errors=shared_errors, confidence=confidence)
        if root and root.n >= FEWEST_MEASUREMENTS and root.high - root.low <= 2 * tolerance * root.estimate:
            break
        bound = _find_bound(measurements, limit_ns, lowest_per_s, highest_per_s, confidence)
        if bound:
            return bound
        if len(measurements) >= most_measurements:
            break
        # Measurements of live systems send the rate to workers, which know no numbers of NumPy.
        rate = float(_choose_rate(measurements, limit_ns, root, lowest_per_s, highest_per_s))
    if root and root.high <= lowest_per_s:
        return _describe("lowest rate", 0.0, 0.0, lowest_per_s, confidence, measurements)
    if root and root.low >= highest_per_s:
        return _describe("highest rate", highest_per_s, highest_per_s, math.inf, confidence, measurements)
    below, above = _bracket(measurements, limit_ns)
    low, high = (root.low, root.high) if root else _decided(measurements, limit_ns)
    if root is None and below is None:
        return _describe("lowest rate", 0.0, 0.0, high, confidence, measurements)
    estimate = root.estimate if root else math.sqrt((below or lowest_per_s) * (above or highest_per_s))
    estimate = min(max(estimate, low, lowest_per_s), high, highest_per_s)
    low = 0.0 if low < lowest_per_s else low
    high = math.inf if high > highest_per_s else high
    return _describe("latency", estimate, low, high, confidence, measurements)


def _describe(
    bound: Bound, estimate: float, low: float, high: float, confidence: float, measurements: list[Measurement]
) -> Capacity:
    # Measurements of live systems send rates to workers, which know no numbers of NumPy.
    return Capacity(
        rate_per_s=Interval(estimate=float(estimate), low=float(low), high=float(high), confidence=confidence),
        bound=bound,
        measurements=tuple(measurements),
    )


def simulate_capacity(
    queue: Queue,
    point: float | None,
    limit_ns: float,
    *,
    relative_error: float = 0.01,
    tolerance: float = 0.02,
    seed: int = 0,
    confidence: float = DEFAULT_CONFIDENCE,
) -> Capacity:
    """Find the capacity of a simulated queue.

    Rates are considered up to the share `HIGHEST_UTILIZATION` of the rate at which the queue grows without bound.

    Args:
        queue: The queue.
        point: The percentile, such as 99; None for the mean.
        limit_ns: Its limit in ns.
        relative_error: Standard error of the latency at one rate, as a share.
        tolerance: Half the width of the interval at which the search ends, as a share of the capacity.
        seed: Random seed. All rates are simulated with the same random numbers.
        confidence: Coverage of the interval.
    """

    def measure(rate_per_s: float) -> Interval:
        found = simulate(
            queue, rate_per_s, point=90 if point is None else point, relative_error=relative_error, seed=seed
        )
        return found.mean(confidence) if point is None else found.percentile(point, confidence)

    return find_capacity(
        measure,
        limit_ns,
        lowest_per_s=queue.highest_per_s * (1 - HIGHEST_UTILIZATION),
        highest_per_s=queue.highest_per_s * HIGHEST_UTILIZATION,
        start_per_s=queue.highest_per_s * 0.7,
        tolerance=tolerance,
        shared_errors=True,
        confidence=confidence,
    )


def _find_bound(
    measurements: list[Measurement], limit_ns: float, lowest_per_s: float, highest_per_s: float, confidence: float
) -> Capacity | None:
    """Return the capacity if the range of rates bounds it; None if it does not, or if that is not clear."""
    last = measurements[-1]
    bound: Bound
    if last.rate_per_s >= highest_per_s and last.latency_ns.high <= limit_ns:
        bound, estimate, low, high = "highest rate", highest_per_s, highest_per_s, math.inf
    elif last.rate_per_s <= lowest_per_s and last.latency_ns.low > limit_ns:
        bound, estimate, low, high = "lowest rate", 0.0, 0.0, lowest_per_s
    else:
        ends = [each for each in measurements if each.rate_per_s == last.rate_per_s]
        if len(ends) < MOST_REPEATS or lowest_per_s < last.rate_per_s < highest_per_s:
            return None
        is_kept = np.mean([min(limit_ns / each.latency_ns.estimate, 2.0) for each in ends]) >= 1
        if is_kept != (last.rate_per_s >= highest_per_s):
            return None
        bound, estimate = ("highest rate", highest_per_s) if is_kept else ("lowest rate", 0.0)
        low, high = _decided(measurements, limit_ns)
        high = math.inf if is_kept else high
    return _describe(bound, estimate, low, high, confidence, measurements)


def _decided(measurements: list[Measurement], limit_ns: float) -> tuple[float, float]:
    """Return the highest rate at which the limit is clearly kept, and the lowest one at which it clearly is not.

    Each of the measurements may be wrong. Together, they are with the probability of one interval (Bonferroni).
    """
    ratios, errors = _log_ratios(measurements, limit_ns)
    confidence = share_error(len(measurements), measurements[0].latency_ns.confidence)
    clear = quantile_of_normal(confidence) * errors
    rates = np.array([each.rate_per_s for each in measurements])
    kept = float(max(rates[ratios > clear], default=0.0))
    broken = float(min(rates[ratios < -clear], default=math.inf))
    return min(kept, broken), max(kept, broken)  # in the wrong order, they contradict each other


def _bracket(measurements: list[Measurement], limit_ns: float) -> tuple[float | None, float | None]:
    """Return the highest rate that seems to keep the limit, and the lowest one that seems not to.

    Noise may put rates in the wrong order. The bracket is that of the best fit that falls everywhere.
    """
    ordered = sorted(measurements, key=lambda each: each.rate_per_s)
    fitted = _fit_falling(ordered, limit_ns)
    kept = [each.rate_per_s for each, ratio in zip(ordered, fitted, strict=True) if ratio >= 1]
    broken = [each.rate_per_s for each, ratio in zip(ordered, fitted, strict=True) if ratio < 1]
    return max(kept, default=None), min(broken, default=None)


def _fit_falling(ordered: list[Measurement], limit_ns: float) -> NDArray[np.float64]:
    """Return limit / latency for measurements in order of their rate, as the best fit that falls everywhere."""
    from scipy.optimize import isotonic_regression

    ratios, errors = _log_ratios(ordered, limit_ns)
    finite = np.maximum(ratios, LEAST_LOG)
    return np.asarray(np.exp(isotonic_regression(finite, weights=1 / errors**2, increasing=False).x))


def _log_ratios(measurements: list[Measurement], limit_ns: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log(limit / latency) of each measurement, minus infinity without a steady state, and its error."""
    ratios, errors = [], []
    for each in measurements:
        interval = each.latency_ns
        quantile = quantile_of_normal(interval.confidence)
        if math.isinf(interval.estimate):
            ratios.append(-math.inf)
            errors.append(SMALLEST_ERROR)
            continue
        ratios.append(math.log(limit_ns / interval.estimate))
        below = math.log(interval.estimate / interval.low) if interval.low > 0 else math.inf
        above = math.log(interval.high / interval.estimate)
        ends = [end for end in (below, above) if math.isfinite(end)]
        errors.append(max(sum(ends) / len(ends) / quantile, SMALLEST_ERROR) if ends else LARGEST_ERROR)
    return np.array(ratios), np.array(errors)


def _find_root(
    measurements: list[Measurement], limit_ns: float, *, shared_errors: bool, confidence: float
) -> _Root | None:
    """Return where the line through the measurements near the limit reaches it; None if that is not clear."""
    known = sorted(
        (each for each in measurements if math.isfinite(each.latency_ns.estimate)), key=lambda each: each.rate_per_s
    )
    if len(known) < 2:
        return None
    rates = np.array([each.rate_per_s for each in known])
    ratios, errors = _log_ratios(known, limit_ns)
    # What is near the limit follows from a fit to all, because a single measurement may be there by chance.
    fitted = _fit_falling(known, limit_ns)
    near = np.zeros(0, dtype=bool)
    # Where errors are large, points close to each other would seem to be on a steep line by chance.
    reach = min(max(NEAR, REACH * float(np.median(errors))), FARTHEST)
    for _ in range(MOST_FITS):
        before, near = near, np.abs(fitted - 1) <= reach
        if len(np.unique(rates[near])) < 2:
            return None
        line = _fit_line(rates[near], ratios[near], errors[near], np.maximum(fitted[near], 1 - reach), shared_errors)
        fitted = line.coefficients[0] + line.coefficients[1] * (rates - line.center) / line.center
        if np.array_equal(near, before):
            break
    found = _fieller(line.coefficients - [1.0, 0.0], line.covariance, quantile_of_normal(confidence))
    if not found:
        return None
    estimate, low, high = (line.center * (1 + each) for each in found)
    slope = float(line.coefficients[1]) / line.center
    return _Root(estimate, low, high, slope, float(np.median(errors[near])), int(near.sum()))


class _Line(msgspec.Struct, frozen=True):
    """A line in (rate - center) / center.

    Attributes:
        center: A rate.
        coefficients: Value there, and slope.
        covariance: Covariance of the coefficients.
    """

    center: float
    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]


def _fit_line(
    rates: NDArray[np.float64],
    ratios: NDArray[np.float64],
    errors: NDArray[np.float64],
    fitted: NDArray[np.float64],
    shared_errors: bool,
) -> _Line:
    """Return the line through limit / latency.

    Args:
        rates: Rates.
        ratios: log(limit / latency). Errors are symmetrical there.
        errors: Their standard errors.
        fitted: limit / latency by an earlier fit, from which the logarithms are linearized.
        shared_errors: Whether errors are the same at all rates.
    """
    center = float(rates.mean())
    terms = np.stack([np.ones(len(rates)), (rates - center) / center])
    values = fitted * (1 + ratios - np.log(fitted))
    errors = fitted * errors
    # The curvature is the same for all, and independent of the noise: a quadratic term with a known spread.
    bend = CURVATURE * (fitted - 1) ** 2
    own = errors * (SHARE_OF_OWN if shared_errors else 1.0)
    covariance = np.diag(own**2 + (bend / 4) ** 2 + SMALLEST_ERROR**2) + np.outer(bend, bend)
    if shared_errors:
        covariance += np.outer(errors, errors)
    weighted = np.linalg.solve(covariance, terms.T)
    spread = np.linalg.inv(terms @ weighted)
    coefficients = spread @ (weighted.T @ values)
    residuals = values - terms.T @ coefficients
    if len(rates) > 2:
        # Measurements that differ by more than their intervals say make the interval wider.
        excess = float(residuals @ np.linalg.solve(covariance, residuals)) / (len(rates) - 2)
        spread = spread * max(1.0, excess)
    return _Line(center, coefficients, spread)


def _fieller(
    line: NDArray[np.float64], covariance: NDArray[np.float64], quantile: float
) -> tuple[float, float, float] | None:
    """Return where a falling line is 0, with its interval; None if the interval is not bounded."""
    a, b = line
    q = quantile**2
    square = b**2 - q * covariance[1, 1]
    if b >= 0 or square <= 0:
        return None
    middle = -(a * b - q * covariance[0, 1]) / square
    rest = (a**2 - q * covariance[0, 0]) / square
    half = math.sqrt(max(middle**2 - rest, 0.0))
    return -a / b, middle - half, middle + half


def _choose_rate(
    measurements: list[Measurement], limit_ns: float, root: _Root | None, lowest_per_s: float, highest_per_s: float
) -> float:
    """Return the rate to measure next."""
    if root and lowest_per_s < root.estimate < highest_per_s:
        step = min(max(2 * root.error, LEAST_STEP), LARGEST_STEP) / -root.slope
        # As many on one side as on the other, so that the curvature cancels.
        n_below = sum(each.rate_per_s < root.estimate for each in measurements)
        rate = root.estimate + (step if 2 * n_below > len(measurements) else -step)
        return min(max(rate, lowest_per_s), highest_per_s)
    ordered = sorted(measurements, key=lambda each: each.rate_per_s)
    if root and root.estimate <= lowest_per_s < ordered[0].rate_per_s:
        return lowest_per_s
    if root and root.estimate >= highest_per_s > ordered[-1].rate_per_s:
        return highest_per_s
    fitted = _fit_falling(ordered, limit_ns)
    rates = np.array([each.rate_per_s for each in ordered])
    if np.count_nonzero(np.abs(fitted - 1) <= NEAR) >= FEWEST_MEASUREMENTS:
        # These are too close to each other for the slope of a line. Go half way to what is not near the limit.
        middle = float(np.median(rates[np.abs(fitted - 1) <= NEAR]))
        if len(measurements) % 2:
            return (middle + max(rates[fitted > 1 + NEAR], default=lowest_per_s)) / 2
        return (middle + min(rates[fitted < 1 - NEAR], default=highest_per_s)) / 2
    below, above = _bracket(measurements, limit_ns)
    if below is None:
        assert above is not None
        return max(above / 2, lowest_per_s) if above > lowest_per_s else lowest_per_s
    if above is None:
        return min(below * 2, (below + highest_per_s) / 2) if below < 0.9 * highest_per_s else highest_per_s
    if below == above:
        return below
    ratios = np.exp(_log_ratios(ordered, limit_ns)[0])
    at_below, at_above = (float(ratios[rates == rate].mean()) for rate in (below, above))
    share = (at_below - 1) / (at_below - at_above) if at_below > at_above else 0.5
    if at_above == 0:
        share = min(share, 0.5)  # the ratio is 0 from somewhere between the two
    return below + min(max(share, 0.1), 0.9) * (above - below)
