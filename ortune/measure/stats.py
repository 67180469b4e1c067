"""Statistics of paired log-ratios.

Latencies are compared as ratios, and ratios are averaged as logarithms: log(a/b) is as far from 0 as log(b/a).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Clusters = Sequence[Sequence[float]]
"""Values by launch. Those of one launch are not independent."""

TRIM = 0.1
"""Share of the values that a trimmed mean drops at each end."""

TYPICAL_TRIM = 0.25
"""The same for figures of typical calls, such as the median (interquartile mean).

A few blocks in which a process stalled then do not dominate the result.
"""

MAD_OF_NORMAL = 0.6745
"""Median absolute deviation of the standard normal distribution."""

ERROR_OF_MEDIAN = 1.2533
"""Standard error of the median of normal values, as a multiple of that of their mean: the square root of pi / 2."""

N_RESAMPLES = 10_000

N_WEIGHTINGS = 4_000

SMALLEST_ERROR = 1e-9
"""Standard error of values that are all equal."""

OCCASION_SIGMA = 0.06
"""Standard deviation, between occasions on one host, of what a setting saves, as a share of what it saves.

Source: thirteen occasions of each of two loads, with speedups of 1.47x and 1/0.81x (`python -m benchmarks.occasions`).
With the variance between occasions of DerSimonian and Laird, and both sides varying alike, it is 0.051 and 0.048.
"""

LARGEST_GAIN = math.log(10.0)
"""Log-ratio from which on the variation between occasions is that of this one. Larger ones were not measured."""

PRIOR_OCCASIONS = 4
"""Number of launches that the assumption that both sides vary alike is worth."""


def trimmed_mean(values: ArrayLike, trim: float = TRIM) -> float:
    """Return the mean without the smallest and the largest values; `trim` is the share dropped at each end."""
    ordered = np.sort(np.asarray(values, dtype=float))
    cut = int(len(ordered) * trim)
    return float(ordered[cut : len(ordered) - cut].mean())


def robust_sigma(values: Sequence[float]) -> float:
    """Return the standard deviation of values of which a few may be far off, by their median absolute deviation."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values) / MAD_OF_NORMAL


def estimate_mean(values: ArrayLike, trim: float = 0.0) -> tuple[float, float, int]:
    """Return the mean of at least two values, its standard error, and the error's degrees of freedom.

    With a share `trim` that is dropped at each end, the mean is trimmed and the error is that of winsorized values. For
    heavy tails, this error is much smaller.

    Source: J. W. Tukey and D. H. McLaughlin, "Less vulnerable confidence and significance procedures for location based
    on a single sample", Sankhya A 25 (1963).
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    cut = int(n * trim)
    kept = ordered[cut : n - cut]
    k = len(kept)
    deviation = float(np.clip(ordered, kept[0], kept[-1]).std(ddof=1))
    return float(kept.mean()), deviation * math.sqrt((n - 1) / (k * (k - 1))), k - 1


def t_interval(values: ArrayLike, confidence: float = DEFAULT_CONFIDENCE, *, trim: float = 0.0) -> Interval:
    """Return the mean with Student's interval, which is infinitely wide for fewer than two values.

    Args:
        values: Independent values.
        confidence: Coverage of the interval.
        trim: Share of the values that is dropped at each end, as in `estimate_mean`.
    """
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return Interval(estimate=float(array.mean()), low=-math.inf, high=math.inf, confidence=confidence)
    return student_interval(*estimate_mean(array, trim), confidence)


def student_interval(mean: float, error: float, n_free: int, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Return Student's interval, given a mean, its standard error, and the error's degrees of freedom."""
    from scipy.special import stdtrit

    half = float(stdtrit(n_free, (1 + confidence) / 2)) * error
    return Interval(estimate=mean, low=mean - half, high=mean + half, confidence=confidence)


def t_p_value(values: ArrayLike, limit: float, *, trim: float = 0.0) -> float:
    """Return the probability of a mean at least this far above the limit if the true mean is the limit (Student)."""
    from scipy.special import stdtr

    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return 1.0
    mean, error, n_free = estimate_mean(array, trim)
    if error == 0:
        return 0.0 if mean > limit else 1.0
    return float(stdtr(n_free, (limit - mean) / error))


def bound_mean(values: ArrayLike, largest: float, confidence: float, *, seed: int = 0) -> float:
    """Return an upper bound of the mean of a distribution, also if its largest values are too rare to have occurred.

    Student's interval is that of the values that occurred. Here, a share of the distribution that may have been missed
    is at the largest value that is possible: the values and this one get random weights, as in a Bayesian bootstrap,
    and the bound is a quantile of the weighted mean.

    Args:
        values: Independent values.
        largest: The largest value that is possible. If one of the values is larger, that one is.
        confidence: Confidence of the bound.
        seed: Random seed of the weights.

    Source: N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable", Mathematical Methods of Statistics 14 (2005). That the bound holds is not proven; E. Learned-Miller and
    P. S. Thomas, "A new confidence interval for the mean of a bounded random variable" (arXiv 1905.06208), found no
    exception.
    """
    array = np.asarray(values, dtype=float)
    known = np.append(array, max(largest, float(array.max())))
    weights = np.random.default_rng(seed).exponential(size=(N_WEIGHTINGS, len(known)))
    return float(np.quantile(weights @ known / weights.sum(axis=1), confidence))


def clustered_interval(
    clusters: Sequence[ArrayLike], *, confidence: float = DEFAULT_CONFIDENCE, trim: float = TRIM, seed: int = 0
) -> Interval:
    """Return the mean of the clusters' trimmed means, with a bootstrap interval that resamples clusters.

    A cluster holds the values of one launch of the processes. They share the memory layout of that launch, so only
    launches are independent. The percentiles are widened for small numbers of clusters, for which the plain bootstrap
    is too narrow. The interval is never narrower than Student's, because no resample can leave the range of the
    clusters.

    Args:
        clusters: The values of each cluster. Empty clusters are ignored.
        confidence: Coverage of the interval.
        trim: Share of a cluster's values that is dropped at each end.
        seed: Random seed of the resampling.

    Returns:
        The interval, which is infinitely wide for fewer than two clusters.

    Raises:
        ValueError: There are no values at all.

    Source: T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69 (2015),
    section 5.3, "expanded percentile interval".
    """
    means = np.array([trimmed_mean(cluster, trim) for cluster in clusters if np.size(cluster)])
    k = len(means)
    if k == 0:
        raise ValueError("no values")
    estimate = float(means.mean())
    if k < 2:
        return Interval(estimate=estimate, low=-math.inf, high=math.inf, confidence=confidence)
    rng = np.random.default_rng(seed)
    resampled = means[rng.integers(0, k, (N_RESAMPLES, k))].mean(axis=1)
    tail = expanded_tail(k, confidence)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    student = t_interval(means, confidence)
    return Interval(
        estimate=estimate,
        low=min(float(low), student.low),
        high=max(float(high), student.high),
        confidence=confidence,
    )


def expanded_tail(k: int, confidence: float) -> float:
    """Return the share of resamples beyond each end of a bootstrap interval of `k` values, at least two."""
    from scipy.special import ndtr, stdtrit

    return float(ndtr(-math.sqrt(k / (k - 1)) * float(stdtrit(k - 1, (1 + confidence) / 2))))


def widen_for_occasions(interval: Interval, share: float = 0.5) -> Interval:
    """Return an interval of a log-ratio that also covers how much the same comparison differs between occasions.

    Launches that follow one another share the state of the host. Of the longer time t of the two sides, settings save
    d = t (1 - 1/ratio), and d varies between occasions by a share s. Where the slower side varies, log(ratio) varies by
    s (1 - 1/ratio); where the faster one does, by s (ratio - 1). A side that is equal to the other stays equal.

    Args:
        interval: The interval.
        share: Share of the variance that is the faster side's; see `find_varying_share`.
    """
    from scipy.special import ndtri

    gain = min(abs(interval.estimate), LARGEST_GAIN)
    saved = math.hypot(math.sqrt(1 - share) * math.expm1(-gain), math.sqrt(share) * math.expm1(gain))
    half = float(ndtri((1 + interval.confidence) / 2)) * OCCASION_SIGMA * saved
    return Interval(
        estimate=interval.estimate,
        low=interval.estimate - math.hypot(interval.estimate - interval.low, half),
        high=interval.estimate + math.hypot(interval.high - interval.estimate, half),
        confidence=interval.confidence,
    )


def find_varying_share(slower: ArrayLike, faster: ArrayLike) -> float:
    """Return which share of the variance between launches is that of the faster side, without what both share.

    Args:
        slower: The logarithm of the cost of the slower side in each of at least two launches.
        faster: The same for the faster side.
    """
    covariance = np.cov(np.asarray(slower), np.asarray(faster))
    common = min(max(covariance[0, 1], 0.0), covariance[0, 0], covariance[1, 1])
    own = np.diag(covariance) - common
    share = float(own[1] / own.sum()) if own.sum() > 0 else 0.5
    n_free = np.size(faster) - 1
    return (n_free * share + PRIOR_OCCASIONS / 2) / (n_free + PRIOR_OCCASIONS)


def pool_intervals(
    intervals: Sequence[Interval], n_values: Sequence[int], confidence: float = DEFAULT_CONFIDENCE
) -> Interval:
    """Return the mean of several occasions, and an interval that covers how much they differ.

    Args:
        intervals: Student's intervals of logarithms, one for each of at least two occasions.
        n_values: Number of independent values that each rests on.
        confidence: Coverage of the result.
    """
    errors = [student_error(interval, n) for interval, n in zip(intervals, n_values, strict=True)]
    mean, error = estimate_random_effects([interval.estimate for interval in intervals], errors)
    return student_interval(mean, error, len(intervals) - 1, confidence)


def estimate_random_effects(values: ArrayLike, errors: ArrayLike) -> tuple[float, float]:
    """Return the mean of the population that values are from, and its standard error.

    Values differ by more than their own errors, as each has a true value of its own (random effects). A few may agree
    by chance, so their own errors are the least that counts. The error of the mean has one degree of freedom less than
    there are values.

    Args:
        values: At least two values, such as one for each occasion or host.
        errors: Their standard errors. If all are the same, all values count the same.

    Source: R. DerSimonian and N. Laird, "Meta-analysis in clinical trials", Controlled Clinical Trials 7 (1986), for
    the variance between true values; C. Roever, G. Knapp and T. Friede, "Hartung-Knapp-Sidik-Jonkman approach and its
    modification for random-effects meta-analysis with few studies", BMC Medical Research Methodology 15 (2015), for the
    error.
    """
    means = np.asarray(values, dtype=float)
    variances = np.asarray(errors, dtype=float) ** 2
    k = len(means)
    weights = 1 / variances
    excess = float(weights @ (means - np.average(means, weights=weights)) ** 2) - (k - 1)
    between = max(0.0, excess / float(weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (variances + between)
    mean = float(np.average(means, weights=weights))
    spread = max(1.0, float(weights @ (means - mean) ** 2) / (k - 1))
    return mean, math.sqrt(spread / float(weights.sum()))


def student_error(interval: Interval, n_values: int) -> float:
    """Return the standard error that a Student's interval of at least two values rests on."""
    from scipy.special import stdtrit

    quantile = float(stdtrit(n_values - 1, (1 + interval.confidence) / 2))
    return max((interval.high - interval.low) / 2 / quantile, SMALLEST_ERROR)
