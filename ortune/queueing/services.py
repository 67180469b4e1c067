"""How long servers take for a request, as a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Distribution = Literal["constant", "exponential", "lognormal", "sample"]


class ServiceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of service times: those of calls, without any wait.

    Attributes:
        distribution: Its name; "sample" draws from measured service times.
        mean_ns: Mean in ns.
        variation: Squared coefficient of variation: the variance divided by the square of the mean.
        sample_ns: For "sample": the measured service times.
    """

    distribution: Distribution
    mean_ns: float
    variation: float
    sample_ns: tuple[float, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether all requests take the same time."""
        return self.variation == 0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return independent service times in ns."""
        if self.is_constant:
            return np.full(shape, float(self.mean_ns))
        if self.distribution == "exponential":
            return rng.exponential(self.mean_ns, shape)
        if self.distribution == "lognormal":
            sigma2 = math.log1p(self.variation)
            return rng.lognormal(math.log(self.mean_ns) - sigma2 / 2, math.sqrt(sigma2), shape)
        return np.asarray(self.sample_ns)[rng.integers(0, len(self.sample_ns), shape)]

    def limited_mean(self, limits_ns: NDArray[Any]) -> NDArray[np.float64]:
        """Return the means of min(service time, limit), for a named distribution that varies."""
        from scipy.special import ndtr

        if self.distribution == "exponential":
            return np.asarray(-self.mean_ns * np.expm1(-limits_ns / self.mean_ns))
        sigma2 = math.log1p(self.variation)
        with np.errstate(divide="ignore"):
            x = (np.log(limits_ns / self.mean_ns) + sigma2 / 2) / math.sqrt(sigma2)
        return np.asarray(self.mean_ns * ndtr(x - math.sqrt(sigma2)) + limits_ns * ndtr(-x))


def make_services(
    mean_ns: float, distribution: Literal["constant", "exponential", "lognormal"] = "constant", variation: float = 0.0
) -> ServiceTimes:
    """Return a named distribution.

    Args:
        mean_ns: Mean in ns.
        distribution: Its name.
        variation: For "lognormal": the squared coefficient of variation.

    Raises:
        ValueError: There is no such distribution.
    """
    if not 0 < mean_ns < math.inf or not 0 <= variation < math.inf:
        raise ValueError(
            f"a mean of {mean_ns} ns with a variation of {variation}: both must be finite, the mean positive"
        )
    variation = {"constant": 0.0, "exponential": 1.0, "lognormal": variation}[distribution]
    return ServiceTimes(distribution=distribution, mean_ns=mean_ns, variation=variation)


def resample(sample_ns: Sequence[float] | NDArray[np.int64]) -> ServiceTimes:
    """Return the distribution that draws from measured service times, each with the same probability.

    The order of the measured times is lost, and with it any correlation between successive ones.

    Raises:
        ValueError: There are none, or one is not positive.
    """
    values = np.asarray(sample_ns, dtype=float)
    if not len(values) or not (values > 0).all() or not np.isfinite(values).all():
        raise ValueError("service times must be positive, and there must be at least one")
    mean_ns = float(values.mean())
    variation = float(values.var()) / mean_ns**2 if values.min() < values.max() else 0.0
    return ServiceTimes(
        distribution="sample", mean_ns=mean_ns, variation=variation, sample_ns=tuple(map(float, values))
    )
