"""Estimates from independent replications of a simulation, with standard errors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval

MARGIN = 6.0
"""Standard errors to each side of a percentile within which values are sorted at first."""


class SimulatedLatencies:
    """The latencies of a simulation.

    Replications are independent, whatever the correlation between the requests of one. Each is one batch of the batch
    means that standard errors are computed from.

    The estimates use control variates: quantities whose true means are known. Where they explain why replications
    differ, the replications are weighted so that the weighted mean of the controls is the true one.

    Source: T. C. Hesterberg and B. L. Nelson, "Control variates for probability and quantile estimation", Management
    Science 44 (1998), for weights that serve means and quantiles alike.

    Args:
        values_ns: Latencies in ns, requests by replications.
        controls: Deviations of the controls from their true means, controls by replications.
        control_error: Standard error of the true means, as a share.
    """

    def __init__(
        self, values_ns: NDArray[np.float64], controls: NDArray[np.float64] | None = None, control_error: float = 0.0
    ) -> None:
        self.values_ns = values_ns
        self.control_error = control_error
        n = values_ns.shape[1]
        self._explained = np.zeros((n, 0))
        self._weights = np.full(n, 1 / n)
        if controls is not None:
            deviations = controls - controls.mean(axis=1, keepdims=True)
            scales = deviations.std(axis=1)
            varies = scales > 1e-9 * np.abs(controls).max(axis=1)
            # An orthonormal basis of what the controls explain. Some may follow from the others.
            left, sizes, right = np.linalg.svd((deviations[varies].T / scales[varies]), full_matrices=False)
            kept = sizes > 1e-6 * sizes.max(initial=0.0)
            self._explained = left[:, kept]
            off = (controls[varies].mean(axis=1) / scales[varies]) @ (right[kept].T / sizes[kept])
            self._weights -= self._explained @ off

    @property
    def n_requests(self) -> int:
        """Number of requests."""
        return self.values_ns.size

    def mean(self, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
        """Return the mean in ns."""
        estimate, error = self._estimate(self.values_ns.mean(axis=0))
        half = quantile_of_normal(confidence) * error
        return self._widen(
            Interval(estimate=estimate, low=estimate - half, high=estimate + half, confidence=confidence)
        )

    def percentile(self, point: float, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
        """Return a percentile in ns, for a point such as 99.

        The interval is that of the share of requests below the estimate, turned into values.

        Source: R. S. Woodruff, "Confidence intervals for medians and other position measures", Journal of the American
        Statistical Association 47 (1952).
        """
        share, n = point / 100, self.n_requests
        flat = self.values_ns.ravel()
        place = place_of(share, n)
        below = (self.values_ns <= np.partition(flat, place)[place]).mean(axis=0)
        # Only values near the percentile need to be sorted.
        reach = MARGIN * (float(below.std()) / math.sqrt(len(below)) + 1 / n)
        while True:
            places = [place_of(share - reach, n), place_of(share + reach, n)]
            bottom, top = np.partition(flat, places)[places]
            chosen = np.flatnonzero((flat >= bottom) & (flat <= top))
            chosen = chosen[np.argsort(flat[chosen])]
            weights = self._weights / self.values_ns.shape[0]
            shares = float(self._weights @ (self.values_ns < bottom).mean(axis=0)) + np.cumsum(
                weights[chosen % len(weights)]
            )
            estimate = pick(flat[chosen], shares, share)
            _, error = self._estimate((self.values_ns <= estimate).mean(axis=0))
            half = quantile_of_normal(confidence) * error
            if (places[0] == 0 or shares[0] < share - half) and (places[1] == n - 1 or shares[-1] > share + half):
                break
            reach *= 4
        low, high = (pick(flat[chosen], shares, share + side * half) for side in (-1, 1))
        return self._widen(Interval(estimate=estimate, low=low, high=high, confidence=confidence))

    def quantiles(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the latencies in ns that these shares of the requests do not exceed."""
        flat = self.values_ns.ravel()
        order = np.argsort(flat)
        # Some weights may be negative.
        below = np.maximum.accumulate(np.cumsum(self._weights[order % len(self._weights)])) / self.values_ns.shape[0]
        places = np.searchsorted(below, shares * below[-1])
        return np.asarray(flat[order[np.minimum(places, len(flat) - 1)]])

    def _widen(self, interval: Interval) -> Interval:
        """Return an interval that also covers the error of the controls' means."""
        half = quantile_of_normal(interval.confidence) * self.control_error * interval.estimate
        return Interval(
            estimate=interval.estimate,
            low=interval.estimate - math.hypot(interval.estimate - interval.low, half),
            high=interval.estimate + math.hypot(interval.high - interval.estimate, half),
            confidence=interval.confidence,
        )

    def _estimate(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """Return the mean of a figure of each replication, and its standard error."""
        residuals = values - values.mean()
        residuals = residuals - self._explained @ (self._explained.T @ residuals)
        n = len(values)
        n_free = n - 1 - self._explained.shape[1]
        error = math.sqrt(float(residuals @ residuals) / n_free * float((self._weights**2).sum()))
        return float(self._weights @ values), error


def pick(values: NDArray[np.float64], shares: NDArray[np.float64], share: float) -> float:
    """Return the first of some sorted values at which the share of values up to there reaches `share`.

    Weights may be negative, so that shares need not increase everywhere.
    """
    reached = shares >= share
    return float(values[int(np.argmax(reached)) if reached.any() else -1])


def place_of(share: float, n: int) -> int:
    """Return the place of a quantile among `n` sorted values."""
    return min(max(math.ceil(share * n) - 1, 0), n - 1)


def quantile_of_normal(confidence: float) -> float:
    """Return how many standard errors an interval extends to each side."""
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))
