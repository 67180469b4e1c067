"""The effect of a config on processes of several hosts, with an interval.

The value of a process is that of its host, plus the effect of the config if it has it, plus the luck of the process:
the layout of its memory, the cores that it runs on. The effect may differ between hosts. These three spreads are
normally distributed (a linear mixed model). Only processes of the same host are free of the differences between
hosts, so a host with both arms counts the most; hosts with one arm are compared as a whole. They have no difference of
their own with an error, which `ortune.measure.stats.estimate_random_effects` would need of each host.

From a few hosts, the spreads between hosts cannot be estimated well, and an interval that takes the estimates for
true is too narrow. The interval is therefore a mixture over all plausible spreads, relative to that of processes:
each is weighted by its restricted likelihood and by a weak prior. With many hosts, the priors hardly matter. On a
single host, the interval is Student's for two groups with a common variance, and holds for that host.

Source: A. Gelman, "Prior distributions for variance parameters in hierarchical models", Bayesian Analysis 1 (2006);
C. Roever, "Bayesian Random-Effects Meta-Analysis Using the bayesmeta R Package", Journal of Statistical Software 93
(2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.measure.interval import Interval

HOST_SCALE = 2.0
"""Scale of the half-Cauchy prior of the spread between hosts, relative to that between processes."""

EFFECT_SCALE = 1.0
"""Scale of the half-normal prior of the spread of the effect between hosts, relative to that between processes."""

N_HOST_SPREADS = 48
N_EFFECT_SPREADS = 16
"""Numbers of spreads that stand for all others, at equal steps of their prior probability."""

MOST_CELLS = 1 << 20
"""Numbers that are held at a time."""

LEAST_SPREAD = 1e-9
"""Spread of processes whose values are all the same."""

Array = NDArray[np.float64]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A process.

    Attributes:
        host: Its host.
        is_canary: Whether it has the config.
        value: A logarithm.
    """

    host: str
    is_canary: bool
    value: float


class _Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of each host, summed up.

    Attributes:
        counts: Number of processes by host and arm.
        means: Mean of their values; 0 where there are none.
        within: Sum of squares of the deviations from these means.
    """

    counts: Array
    means: Array
    within: float


def estimate_effect(units: Sequence[Unit], confidence: float) -> Interval | None:
    """Return by how much the values of canaries differ from the others; None if there are too few processes.

    Args:
        units: The processes.
        confidence: Coverage of the interval.
    """
    n_canaries = sum(unit.is_canary for unit in units)
    if len(units) < 3 or n_canaries in (0, len(units)):
        return None
    groups = _group(units)
    one_host = len(groups.counts) == 1
    host_spreads = np.zeros(1) if one_host else HOST_SCALE * np.tan(_middles(N_HOST_SPREADS) * math.pi / 2)
    effect_spreads = np.zeros(1) if one_host else EFFECT_SCALE * _half_normal(_middles(N_EFFECT_SPREADS))
    pairs = np.array([(host, effect) for host in host_spreads for effect in effect_spreads])
    n_parts = max(1, math.ceil(len(pairs) * len(groups.counts) / MOST_CELLS))
    parts = [_fit(groups, part, len(units)) for part in np.array_split(pairs, n_parts)]
    likelihoods, effects, errors = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    weights = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    cumulate = _mix(weights, effects, errors, len(units) - 2)
    reach = float(errors.max())
    return Interval(
        estimate=float(weights @ effects),
        low=_invert(cumulate, (1 - confidence) / 2, float(effects.min()), reach),
        high=_invert(cumulate, (1 + confidence) / 2, float(effects.max()), reach),
        confidence=confidence,
    )


def _group(units: Sequence[Unit]) -> _Groups:
    hosts = {host: place for place, host in enumerate(dict.fromkeys(unit.host for unit in units))}
    cells: dict[tuple[int, int], list[float]] = {}
    for unit in units:
        cells.setdefault((hosts[unit.host], int(unit.is_canary)), []).append(unit.value)
    counts, means = np.zeros((len(hosts), 2)), np.zeros((len(hosts), 2))
    within = 0.0
    for cell, values in cells.items():
        counts[cell], means[cell] = len(values), np.mean(values)
        within += float(np.square(np.array(values) - means[cell]).sum())
    # The common level does not matter. Without it, sums of squares are exact.
    means = np.where(counts > 0, means - np.mean([unit.value for unit in units]), 0.0)
    return _Groups(counts=counts, means=means, within=within)


def _fit(groups: _Groups, pairs: Array, n_units: int) -> tuple[Array, Array, Array]:
    """Return the logarithm of the restricted likelihood, the effect and its standard error, for pairs of spreads.

    Args:
        groups: The processes.
        pairs: The spread between hosts and that of the effect, relative to that of processes.
        n_units: Number of processes.
    """
    shared, split = pairs[:, :1] ** 2, pairs[:, 1:] ** 2 / 4  # variances of the mean of both arms, and of each half
    n_control, n_canary = groups.counts.T
    with np.errstate(divide="ignore"):
        one, other = 1 / n_control + shared + split, 1 / n_canary + shared + split
    both = (n_control > 0) & (n_canary > 0)
    covariance = np.where(both, shared - split, 0.0)
    # An arm without processes has an infinite variance, so its weight is 0.
    determinant = np.where(both, one * other - covariance**2, 1.0)
    w_control = np.where(both, other / determinant, np.where(n_control > 0, 1 / one, 0.0))
    w_canary = np.where(both, one / determinant, np.where(n_canary > 0, 1 / other, 0.0))
    w_both = np.where(both, -covariance / determinant, 0.0)
    log_determinants = np.log(np.where(both, determinant, np.where(n_control > 0, one, other))).sum(axis=1)
    y_control, y_canary = groups.means.T
    # Weighted sums for the level of the control arm (0) and the effect (1).
    a00 = (w_control + 2 * w_both + w_canary).sum(axis=1)
    a01 = (w_both + w_canary).sum(axis=1)
    a11 = w_canary.sum(axis=1)
    b0 = (w_control * y_control + w_both * (y_control + y_canary) + w_canary * y_canary).sum(axis=1)
    b1 = (w_both * y_control + w_canary * y_canary).sum(axis=1)
    squares = w_control * y_control**2 + 2 * w_both * y_control * y_canary + w_canary * y_canary**2
    determinant_2 = a00 * a11 - a01**2
    level, effect = (a11 * b0 - a01 * b1) / determinant_2, (a00 * b1 - a01 * b0) / determinant_2
    residual = groups.within + np.maximum(squares.sum(axis=1) - level * b0 - effect * b1, 0.0)
    n_free = n_units - 2
    residual = np.maximum(residual, LEAST_SPREAD**2 * n_free)
    likelihood = -0.5 * (log_determinants + np.log(determinant_2) + n_free * np.log(residual))
    return likelihood, effect, np.sqrt(residual / n_free * a00 / determinant_2)


def _mix(weights: Array, effects: Array, errors: Array, n_free: int) -> Callable[[float], float]:
    """Return the distribution function of a mixture of Student's distributions."""
    from scipy.special import stdtr

    def cumulate(value: float) -> float:
        return float(weights @ stdtr(n_free, (value - effects) / errors))

    return cumulate


def _invert(cumulate: Callable[[float], float], share: float, start: float, reach: float) -> float:
    """Return where an increasing function has a value, near a start."""
    from scipy.optimize import brentq

    while cumulate(start - reach) > share or cumulate(start + reach) < share:
        reach *= 2
    return float(brentq(lambda value: cumulate(value) - share, start - reach, start + reach, xtol=1e-9))


def _middles(n: int) -> Array:
    """Return the middles of equal parts of the range from 0 to 1."""
    return (np.arange(n) + 0.5) / n


def _half_normal(shares: Array) -> Array:
    """Return quantiles of the half-normal distribution."""
    from scipy.special import ndtri

    return np.asarray(ndtri((1 + shares) / 2))
