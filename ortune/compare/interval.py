"""An estimate and how sure it is: a value, apart from the statistics that make it."""

from __future__ import annotations

import math

import msgspec


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate with its confidence interval, of ratios or of their logarithms."""

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
