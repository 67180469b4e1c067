"""An estimate with its confidence interval, as a plain value."""

from __future__ import annotations

import math

import msgspec

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
    confidence: float

    def exp(self) -> Interval:
        """Turn an interval of logarithms into one of ratios."""
        return Interval(
            estimate=math.exp(self.estimate),
            low=math.exp(self.low),
            high=math.exp(self.high),
            confidence=self.confidence,
        )
