"""The statistics of paired log-ratios.

Latencies are compared as ratios, and ratios are averaged as logarithms: log(a/b) is as far from 0 as log(b/a).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortune.compare.interval import Interval

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TRIM = 0.1
TYPICAL_TRIM = 0.25
"""Share of values that a trimmed mean leaves out at each end: usually; and where what is typical is asked for, as by a
median, so that a few blocks in which a process hung do not drown the rest (the interquartile mean)."""

N_RESAMPLES = 10_000


def trimmed_mean(values: ArrayLike, trim: float = TRIM) -> float:
    """Return the mean without the least and the greatest, of each that share, rounded down."""
    ordered = np.sort(np.asarray(values, dtype=float))
    cut = int(len(ordered) * trim)
    return float(ordered[cut : len(ordered) - cut].mean())


def t_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean with Student's interval; it is infinitely wide for fewer than two values."""
    from scipy.special import stdtrit

    array = np.asarray(values, dtype=float)
    n = len(array)
    mean = float(array.mean())
    if n < 2:
        return Interval(estimate=mean, low=-math.inf, high=math.inf, confidence=confidence)
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * float(array.std(ddof=1)) / math.sqrt(n)
    return Interval(estimate=mean, low=mean - half, high=mean + half, confidence=confidence)


def clustered_interval(
    clusters: Sequence[ArrayLike], *, confidence: float = 0.95, trim: float = TRIM, seed: int = 0
) -> Interval:
    """Return the mean of the clusters' trimmed means, with a bootstrap interval that resamples clusters.

    Values of one cluster (one launch of the processes) share that launch's luck, so that the launches are what
    varies independently. The percentiles are widened for small numbers of clusters, where the plain bootstrap
    claims too much; and as even the widest resample cannot leave the range of the clusters seen, the interval is never
    narrower than Student's.

    Args:
        clusters: The values of each cluster; clusters without values are left out.
        confidence: Coverage of the interval.
        trim: Share of a cluster's values that are left out at each end.
        seed: Seed of the resampling.

    Returns:
        The interval; infinitely wide for fewer than two clusters.

    Raises:
        ValueError: There are no values at all.

    Source: T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69 (2015),
    section 5.3, "expanded percentile interval".
    """
    from scipy.special import ndtr, stdtrit

    means = np.array([trimmed_mean(cluster, trim) for cluster in clusters if np.size(cluster)])
    k = len(means)
    if k == 0:
        raise ValueError("no values")
    estimate = float(means.mean())
    if k < 2:
        return Interval(estimate=estimate, low=-math.inf, high=math.inf, confidence=confidence)
    rng = np.random.default_rng(seed)
    resampled = means[rng.integers(0, k, (N_RESAMPLES, k))].mean(axis=1)
    tail = float(ndtr(-math.sqrt(k / (k - 1)) * float(stdtrit(k - 1, (1 + confidence) / 2))))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    student = t_interval(means, confidence)
    return Interval(
        estimate=estimate,
        low=min(float(low), student.low),
        high=max(float(high), student.high),
        confidence=confidence,
    )
