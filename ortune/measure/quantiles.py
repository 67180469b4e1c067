"""Confidence intervals of percentiles of latency, for calls that are spread over several launches.

The calls of a launch are not independent: they share its memory layout, and with a request rate its queue. The
intervals hold for any distribution of latencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.measure.clumps import Clumps
from ortune.measure.compute_figures import percentiles, split_by_case
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval
from ortune.measure.stats import N_RESAMPLES, expanded_tail
from ortune.worker import Block

MOST_VALUES = 200
"""Values that are tried for each end of an interval."""

MOST_RESAMPLED = 200
MOST_OF_TAIL = 5.0
"""Latencies that may be the percentile of a draw of launches: so many, evenly spaced by rank, from this multiple of the
tail's share on."""


def percentile_interval(
    launches: Sequence[Sequence[Block]],
    point: float,
    confidence: float = DEFAULT_CONFIDENCE,
    *,
    clumps: Clumps | None = None,
    by_case: bool = True,
) -> Interval:
    """Return a percentile of latency over all launches, as a logarithm of ns, and its interval.

    With several input cases, it is the mean of the cases' logarithms, or the percentile of all calls together. The
    upper end is infinite if there are too few calls, and both ends are for fewer than two launches.

    Args:
        launches: The blocks of each launch.
        point: The percentile, such as 99.
        confidence: Coverage of the interval.
        clumps: How requests wait together; None for calls that do not wait.
        by_case: Whether each input case counts as much, as where configs are compared. The target of a plan is one for
            all requests.

    Source: G. Y. Zou and A. Donner, "Construction of confidence limits about effect measures: a general approach",
    Statistics in Medicine 27 (2008), for the interval of a sum.
    """
    cases = [[np.concatenate([block.samples_ns for block in blocks]) for blocks in launches]]
    if by_case:
        split = [split_by_case(blocks) for blocks in launches]
        # A launch with few calls may lack a case.
        numbers = sorted({number for launch in split for number in launch})
        cases = [[launch[number] for launch in split if number in launch] for number in numbers]
    n = len(cases)
    if clumps:  # the requests of a clump are of all cases
        clumps = msgspec.structs.replace(clumps, size=max(clumps.size / n, 1.0))
    intervals = [quantile_interval(samples, point / 100, confidence, clumps) for samples in cases]
    estimate = sum(interval.estimate for interval in intervals) / n
    return Interval(
        estimate=estimate,
        low=estimate - math.hypot(*(interval.estimate - interval.low for interval in intervals)) / n,
        high=estimate + math.hypot(*(interval.high - interval.estimate for interval in intervals)) / n,
        confidence=confidence,
    )


def percentile_ratio_interval(
    launches: Sequence[Sequence[Block]],
    base: Sequence[Sequence[Block]],
    point: float,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> Interval:
    """Return the logarithm of the ratio of a percentile of two sides, each over all calls, and its interval.

    With several input cases, a percentile is the mean of the cases' logarithms. The interval is bootstrapped over
    launches, in which both sides were measured at the same time, with percentiles that are widened for few launches. It
    is infinitely wide for fewer than two launches.

    Args:
        launches: The blocks of each launch of one side.
        base: Those of the side that it is divided by, in the same launches.
        point: The percentile, such as 99.
        confidence: Coverage of the interval.
        seed: Random seed of the resampling.

    Source: Hesterberg, as in `ortune.measure.stats.clustered_interval`.
    """
    k = len(launches)
    # The first draw has each launch once.
    draws = np.vstack([np.ones(k), np.random.default_rng(seed).multinomial(k, np.full(k, 1 / k), N_RESAMPLES)])
    ratios = resample_percentile(launches, point, draws) - resample_percentile(base, point, draws)
    estimate = float(ratios[0])
    if k < 2:
        return Interval(estimate=estimate, low=-math.inf, high=math.inf, confidence=confidence)
    tail = expanded_tail(k, confidence)
    low, high = np.nanquantile(ratios, [tail, 1 - tail])
    return Interval(
        estimate=estimate, low=min(float(low), estimate), high=max(float(high), estimate), confidence=confidence
    )


def resample_percentile(
    launches: Sequence[Sequence[Block]], point: float, draws: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the logarithm of a percentile of latency for each draw of launches, shape (draws,).

    It is NaN for a draw without calls of one of the input cases.

    Args:
        launches: The blocks of each launch.
        point: The percentile.
        draws: How often each launch is drawn, shape (draws, launches).
    """
    split = [split_by_case(blocks) for blocks in launches]
    numbers = sorted({number for launch in split for number in launch})
    found = np.zeros(len(draws))
    for number in numbers:
        cases = [np.sort(launch.get(number, np.array([], dtype=np.int64))) for launch in split]
        samples = np.sort(np.concatenate(cases))
        first = int(len(samples) * max(1 - MOST_OF_TAIL * (1 - point / 100), 0.0))
        values = samples[np.unique(np.linspace(first, len(samples) - 1, MOST_RESAMPLED).astype(np.int64))]
        above = np.array([len(case) - np.searchsorted(case, values, side="right") for case in cases], dtype=float)
        sizes = draws @ np.array([len(case) for case in cases], dtype=float)
        # The smallest value that few enough calls exceed. A small number is for rounding.
        are_enough = draws @ above <= (sizes * (1 - point / 100))[:, None] + 1e-6
        found += np.where(sizes > 0, np.log(np.maximum(values[are_enough.argmax(axis=1)], 1)), math.nan)
    return found / len(numbers)


def quantile_interval(
    launches: Sequence[NDArray[np.int64]], share: float, confidence: float, clumps: Clumps | None = None
) -> Interval:
    """Return the logarithm of a quantile, and the interval of values that may be the quantile.

    A value may be the quantile if the share of calls above it may be that of the quantile. The interval of this share
    takes into account how much the launches differ.

    Args:
        launches: Latencies of each launch.
        share: Share of the calls below the quantile.
        confidence: Coverage of the interval.
        clumps: How requests wait together, which bounds the quantile as well; None for calls that do not wait.

    Source: R. S. Woodruff, "Confidence intervals for medians and other position measures", Journal of the American
    Statistical Association 47 (1952), for the inversion.
    """
    samples = np.sort(np.concatenate(launches))
    (value,) = percentiles(samples, [100 * share])
    place = int(np.searchsorted(samples, value))
    low, high = -math.inf, math.inf
    for position in spread(place, len(samples)):
        if bound_share(launches, samples[position], confidence)[1] < 1 - share:
            high = math.log(max(samples[position], 1))
            break
    for position in spread(place, -1):
        # Calls that take as long as the value are not above it, but the quantile may be as long.
        if bound_share(launches, samples[position] - 1, confidence)[0] > 1 - share:
            low = math.log(max(samples[position], 1))
            break
    if clumps:
        high = max(high, math.log(max(clumps.bound_quantile(samples, share, (1 - confidence) / 2), 1)))
    estimate = math.log(max(value, 1))
    return Interval(estimate=estimate, low=min(low, estimate), high=max(high, estimate), confidence=confidence)


def spread(first: int, end: int) -> list[int]:
    """Return positions from `first` up or down to `end`, which is left out: some hundred at most, evenly spread."""
    step = -(-abs(end - first) // MOST_VALUES) or 1
    return list(range(first, end, step if end > first else -step))


def bound_share(launches: Sequence[NDArray[np.int64]], value: int, confidence: float) -> tuple[float, float]:
    """Return the interval of the share of calls that take longer than a value.

    The share would be that of a binomial distribution if calls were independent. It is taken to be that of fewer calls:
    as many as would vary as much as the launches do.

    Args:
        launches: Latencies of each launch.
        value: The value in ns.
        confidence: Coverage of the interval.

    Source: E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small expected number of positive
    counts estimated from survey data", Survey Methodology 24 (1998).
    """
    from scipy.special import betaincinv, ndtri, stdtrit

    k = len(launches)
    if k < 2:
        return 0.0, 1.0
    sizes = np.array([len(launch) for launch in launches], dtype=float)
    above = np.array([np.count_nonzero(launch > value) for launch in launches], dtype=float)
    n, share = float(sizes.sum()), float(above.sum() / sizes.sum())
    # Where launches differ less than independent calls would, this is due to chance.
    excess = 1.0
    if 0 < share < 1:
        variance = float(((above - share * sizes) ** 2).sum()) * k / (k - 1) / n**2
        excess = max(1.0, variance * n / (share * (1 - share)))
    point = (1 + confidence) / 2
    m = n / excess * float(ndtri(point) / stdtrit(k - 1, point)) ** 2
    x = share * m
    low = float(betaincinv(x, m - x + 1, 1 - point)) if x > 0 else 0.0
    high = float(betaincinv(x + 1, m - x, point)) if x < m else 1.0
    return low, high
