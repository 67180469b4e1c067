"""An estimate with its confidence interval, as a plain value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Self

import msgspec

from ortune.numbers import format_interval, format_ratio

DEFAULT_CONFIDENCE = 0.95
"""Default confidence of intervals."""


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate with its confidence interval, of ratios or of their logarithms.

    Attributes:
        estimate: The estimate.
        low: Lower end of the interval.
        high: Upper end.
        confidence: Probability with which such intervals contain the true value.
    """

    estimate: float
    low: float
    high: float
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)]

    def log(self) -> Interval:
        """Turn an interval of ratios into one of logarithms."""
        return self._map(math.log)

    def exp(self) -> Interval:
        """Turn an interval of logarithms into one of ratios. Ends too far away for a number are at the largest one."""
        return self._map(lambda x: math.exp(x if math.isinf(x) else min(max(x, -LARGEST_LOG), LARGEST_LOG)))

    def include(self, other: Interval, estimate: float | None = None) -> Self:
        """Return the interval widened so that it includes another one. A given estimate replaces its own."""
        return msgspec.structs.replace(
            self,
            estimate=self.estimate if estimate is None else estimate,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
        )

    def _map(self, function: Callable[[float], float]) -> Interval:
        """Return the interval of an increasing function of the values."""
        return Interval(
            estimate=function(self.estimate),
            low=function(self.low),
            high=function(self.high),
            confidence=self.confidence,
        )


def format_speedup(speedup: Interval) -> str:
    """Return a ratio with its interval, such as `1.27x [1.19, 1.36]`."""
    return f"{format_ratio(speedup.estimate)} {format_interval(speedup.low, speedup.high)}"


LARGEST_LOG = 700.0
"""Largest logarithm of a ratio, up or down. Two launches that differ a lot can have wider intervals than any number."""


def share_error(n: int, confidence: float = DEFAULT_CONFIDENCE) -> float:
    """Return the confidence of each of `n` intervals for all of them together to have a given confidence (Bonferroni).

    Who looks for the best of several results needs intervals that hold together. Of ten independent intervals
    of 95 % each, at least one is wrong in 40 % of the cases, and often it is the one that looks best.
    """
    return 1 - (1 - confidence) / max(n, 1)
