"""What is limited where requests arrive: the share of long latencies, the mean latency, or how busy the servers are.

Source: C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
binomial", Biometrika 26 (1934), for single shares.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from ortune.queueing.replications import quantile_of_normal
from ortune.queueing.tails import LEAST_TAIL_SHARE, Tail

LIKELY_SHARE = 0.1
"""Smallest expected share for errors, as a part of that at the capacity. A model does not know rarer latencies."""

LEAST_DEVIATION = 1e-3
"""Smallest standard deviation of the value of one request, as a share of it, so that means of constant values do not
seem to be known exactly."""


class LimitedFigure(Protocol):
    """A figure that grows with the rate, and has a limit.

    Attributes:
        limit: The value of the figure at the capacity.
        most: Values are below this one.
    """

    @property
    def limit(self) -> float: ...

    @property
    def most(self) -> float: ...

    def compute(self, latencies_ns: NDArray[Any], utilization: float) -> float:
        """Return the figure of a measurement, given the share of the servers' time that calls took."""

    def expect(self, tail: Tail, slowdown: float) -> float:
        """Return the figure of a simulated queue whose calls, and waits, take longer by a factor."""

    def extrapolate(self, value: float, last: float, utilization: float) -> float:
        """Return the figure at a higher utilization than the one at which it has this value.

        Args:
            value: The value.
            last: The utilization at which it has it, below 1.
            utilization: The higher one; above 1 if there are too few servers.
        """

    def find_misfit(self, value: float, expected: float) -> float:
        """Return minus the logarithm of the quasi-likelihood of a value, for one request."""

    def find_variance(self, expected: float) -> float:
        """Return the variance of the figure of one request, without its inflation."""

    def find_inflation(self, tail: Tail) -> float:
        """Return the variance inflation: the variance over that of as many independent requests."""

    def bound(self, value: float, n: float, confidence: float) -> tuple[float, float]:
        """Return the interval of the figure.

        Args:
            value: What was measured.
            n: Number of requests, divided by the variance inflation.
            confidence: Coverage of the interval.
        """


class ShareAbove(msgspec.Struct, frozen=True):
    """The share of the requests that take longer than the limit of a percentile.

    Attributes:
        point: The percentile.
        limit_ns: Its limit.
    """

    point: float
    limit_ns: float

    @property
    def limit(self) -> float:
        """The share at the capacity."""
        return 1 - self.point / 100

    @property
    def most(self) -> float:
        """Almost all."""
        return 1 - LEAST_TAIL_SHARE

    def compute(self, latencies_ns: NDArray[Any], utilization: float) -> float:
        """See `LimitedFigure`."""
        return float((latencies_ns > self.limit_ns).mean())

    def expect(self, tail: Tail, slowdown: float) -> float:
        """See `LimitedFigure`."""
        return tail.share_above(self.limit_ns / slowdown)

    def extrapolate(self, value: float, last: float, utilization: float) -> float:
        """Return a share that grows until all requests exceed the limit, where servers are always busy."""
        beyond = min((utilization - last) / (1 - last), 1.0)
        return min(value + beyond * (1 - value), self.most)

    def find_misfit(self, value: float, expected: float) -> float:
        """Return that of a binomial distribution."""
        return -(value * math.log(expected) + (1 - value) * math.log1p(-expected))

    def find_variance(self, expected: float) -> float:
        """See `LimitedFigure`."""
        likely = max(expected, LIKELY_SHARE * self.limit)
        return likely * (1 - likely)

    def find_inflation(self, tail: Tail) -> float:
        """See `LimitedFigure`."""
        return tail.inflation

    def bound(self, value: float, n: float, confidence: float) -> tuple[float, float]:
        """See `LimitedFigure`."""
        from scipy.special import betaincinv

        x, point = value * n, (1 - confidence) / 2
        low = float(betaincinv(x, n - x + 1, point)) if x > 0 else 0.0
        high = float(betaincinv(x + 1, n - x, 1 - point)) if x < n else 1.0
        return low, high


class _Mean(msgspec.Struct, frozen=True):
    """A positive mean, whose standard deviation is a share of it.

    Attributes:
        limit: The mean at the capacity.
    """

    limit: float

    @property
    def most(self) -> float:
        """No value is too large."""
        return math.inf

    def find_misfit(self, value: float, expected: float) -> float:
        """Return that of a gamma distribution."""
        return value / expected + math.log(expected)

    def find_variance(self, expected: float) -> float:
        """See `LimitedFigure`."""
        return expected**2

    def bound(self, value: float, n: float, confidence: float) -> tuple[float, float]:
        """See `LimitedFigure`."""
        reach = math.exp(quantile_of_normal(confidence) / math.sqrt(n))
        return value / reach, value * reach


class MeanLatency(_Mean, frozen=True):
    """The mean latency in ns."""

    def compute(self, latencies_ns: NDArray[Any], utilization: float) -> float:
        """See `LimitedFigure`."""
        return float(latencies_ns.mean())

    def expect(self, tail: Tail, slowdown: float) -> float:
        """See `LimitedFigure`."""
        return tail.mean_ns * slowdown

    def extrapolate(self, value: float, last: float, utilization: float) -> float:
        """Return a mean that grows about as 1 / (1 - utilization) does."""
        return value * (1 - last) / max(1 - utilization, LEAST_TAIL_SHARE * (1 - last))

    def find_inflation(self, tail: Tail) -> float:
        """Return the variance of the logarithm of the mean, times the requests."""
        return max(tail.mean_sd_ns / tail.mean_ns, LEAST_DEVIATION) ** 2


class Utilization(_Mean, frozen=True):
    """The share of the servers' time that calls take, where no latency is limited."""

    def compute(self, latencies_ns: NDArray[Any], utilization: float) -> float:
        """See `LimitedFigure`."""
        return utilization

    def expect(self, tail: Tail, slowdown: float) -> float:
        """Return that of the simulated queue: the rate is lower by the factor by which calls take longer."""
        return tail.utilization

    def extrapolate(self, value: float, last: float, utilization: float) -> float:
        """Return a value that grows in proportion to the rate."""
        return value * utilization / last

    def find_inflation(self, tail: Tail) -> float:
        """Return the variance of the logarithm of the mean duration of calls, times the requests."""
        return max(tail.call_variance, LEAST_DEVIATION**2)


def limit_figure(point: float | None, limit_ns: float) -> LimitedFigure:
    """Return what is limited, for a percentile, or None for the mean latency, and its limit."""
    return MeanLatency(limit_ns) if point is None else ShareAbove(point, limit_ns)
