"""The capacity of a live system, measured near the rate where a model of its queue expects it.

At a high utilization, latencies in a short time say little: queues are short by chance most of the time, and long now
and then. The percentile of one measurement is therefore too low more often than too high. The share of the requests
that exceed the limit has no such bias, and a model says how it grows with the rate. What the model does not know is the
slowdown: the ratio of the durations of calls where requests arrive to those that the model has, which were measured at
full load. It is fitted to all measurements near the capacity. They are made at the capacity that the earlier ones
imply, so that the model only needs to be right nearby.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval, share_error
from ortune.queueing.capacity import Bound, Capacity
from ortune.queueing.rate_model import Fit, RateMeasurement, RateModel, choose_near

MEASUREMENT_RELAXATIONS = 10.0
"""How long a measurement lasts, as a multiple of the relaxation time of the queue."""

CAPACITY_TOLERANCE = 0.05
"""Half the width of the interval at which the search ends, as a share of the capacity. That makes the coverage of the
intervals a little lower."""

ENOUGH_NEAR = 4
"""Measurements near the capacity that end the search, if their interval is narrow enough."""

MOST_RATE_REPEATS = 3
"""Measurements at the highest or lowest rate, as long as it is unclear whether the limit is kept there."""

LARGEST_RISE, LARGEST_FALL = 1.5, 3.0
"""Factors by which a rate is at most higher or lower than the one before it."""

SMALLEST_RISE = 1.1
"""Factor by which the next rate is higher if the limit was kept at all rates, although the model expects that it is
not."""


def find_live_capacity(
    measure: Callable[[float, float], RateMeasurement | None],
    model: RateModel,
    *,
    lowest_per_s: float,
    highest_per_s: float,
    start_per_s: float,
    most_measurements: int = 20,
) -> Capacity:
    """Find the highest rate at which a live system keeps a limit.

    If the limit was not kept at any rate that was measured, and the capacity is far from all of them, the estimate is
    0, and the interval ends at the lowest rate at which it clearly was not kept.

    Args:
        measure: Measures at a rate, for a slowdown; returns None to end the search. Rates may repeat.
        model: What is expected.
        lowest_per_s: Lowest rate that is of interest.
        highest_per_s: Highest rate that is of interest.
        start_per_s: Where the capacity is expected.
        most_measurements: Measurements at most.

    Raises:
        ValueError: There is no measurement.
    """

    def measure_all(rate_per_s: float, slowdowns: Sequence[float]) -> tuple[RateMeasurement] | None:
        found = measure(rate_per_s, slowdowns[0])
        return (found,) if found else None

    return find_joint_capacity(
        measure_all,
        [model],
        lowest_per_s=lowest_per_s,
        highest_per_s=highest_per_s,
        start_per_s=start_per_s,
        most_measurements=most_measurements,
    )


def find_joint_capacity(
    measure: Callable[[float, Sequence[float]], Sequence[RateMeasurement] | None],
    models: Sequence[RateModel],
    *,
    lowest_per_s: float,
    highest_per_s: float,
    start_per_s: float,
    most_measurements: int = 20,
) -> Capacity:
    """Find the highest rate at which several parts of a live system keep their limits; see `find_live_capacity`.

    Args:
        measure: Measures all parts at a rate, for the slowdown of each, in the order of the models.
        models: What is expected of each part.
        lowest_per_s: Lowest rate that is of interest.
        highest_per_s: Highest rate that is of interest.
        start_per_s: Where the capacity is expected.
        most_measurements: Measurements at most.

    Raises:
        ValueError: There is no measurement.
    """
    # All intervals hold together.
    shared = share_error(len(models))
    parts = _Parts([_Search(model, lowest_per_s, highest_per_s, shared) for model in models])
    n_measurements = 0
    rate, slowdowns = min(max(start_per_s, lowest_per_s), highest_per_s), [1.0] * len(models)
    while n_measurements < most_measurements:
        found = measure(rate, slowdowns)
        if not found:
            break
        n_measurements += 1
        parts.add(found)
        if parts.is_precise or parts.is_at_end:
            break
        slowdowns = [search.fit.slowdown for search in parts.searches]
        wanted = parts.first.wanted_per_s
        rate = min(max(wanted, rate / LARGEST_FALL, lowest_per_s), rate * LARGEST_RISE, highest_per_s)
    if not n_measurements:
        raise ValueError("a capacity needs at least one measurement")
    capacity = parts.conclude()
    interval = msgspec.structs.replace(capacity.rate_per_s, confidence=DEFAULT_CONFIDENCE)
    return msgspec.structs.replace(capacity, rate_per_s=interval)


class _Search:
    """What is known after some measurements.

    Attributes:
        observed: The measurements.
        fit: The capacity that they imply.
        kept_per_s: The highest rate at which the limit is clearly kept; 0 if there is none.
        broken_per_s: The lowest rate at which it clearly is not; infinite if there is none.
    """

    fit: Fit
    kept_per_s: float
    broken_per_s: float

    def __init__(self, model: RateModel, lowest_per_s: float, highest_per_s: float, confidence: float) -> None:
        self.model = model
        self.lowest_per_s = lowest_per_s
        self.highest_per_s = highest_per_s
        self.confidence = confidence
        self.observed: list[RateMeasurement] = []

    def add(self, found: RateMeasurement) -> None:
        """Add a measurement."""
        self.observed.append(found)
        self.fit = self.model.fit(self.observed, self.confidence)
        self.kept_per_s, self.broken_per_s = self._decide()

    @property
    def likely_low_per_s(self) -> float:
        """A rate that likely is below the capacity, although there may be no measurement near it."""
        likely = self.model.find_likely_low(self.observed, self.fit.slowdown, self.confidence)
        return max(likely, self.kept_per_s)

    @property
    def wanted_per_s(self) -> float:
        """The fitted capacity, or another rate if all measurements nearby, if any, contradict it on the same side.

        A system may be so far from the model that no slowdown makes up for it.
        """
        rate_per_s, kept, broken = self.fit.rate_per_s, self.kept_per_s, self.broken_per_s
        near = choose_near(self.observed, rate_per_s)
        if rate_per_s >= broken and all(measured.value > self.model.figure.limit for measured in near):
            return math.sqrt(kept * broken) if kept else broken / LARGEST_RISE
        if rate_per_s <= kept and all(measured.value <= self.model.figure.limit for measured in near):
            return math.sqrt(kept * broken) if math.isfinite(broken) else kept * SMALLEST_RISE
        return rate_per_s

    @property
    def is_at_highest(self) -> bool:
        """Whether the last measurement was at the highest rate."""
        return self.observed[-1].rate_per_s >= self.highest_per_s

    @property
    def is_at_end(self) -> bool:
        """Whether the capacity is beyond the highest or the lowest rate."""
        last = self.observed[-1]
        low, high = self.model.bound_value(last, self.fit.slowdown, self.confidence)
        n_times = sum(measured.rate_per_s == last.rate_per_s for measured in self.observed)
        if self.is_at_highest and self.wanted_per_s >= self.highest_per_s:
            return n_times >= MOST_RATE_REPEATS or high < self.model.figure.limit
        if last.rate_per_s <= self.lowest_per_s and self.wanted_per_s <= self.lowest_per_s:
            return n_times >= MOST_RATE_REPEATS or low > self.model.figure.limit
        return False

    def conclude(self) -> Capacity:
        """Return the capacity."""
        kept, broken = self.kept_per_s, self.broken_per_s
        estimate, low, high = self.wanted_per_s, self.fit.low_per_s, self.fit.high_per_s
        near = choose_near(self.observed, estimate)
        bound: Bound = "latency"
        if estimate != self.fit.rate_per_s or not near or math.isinf(high):
            low, high = kept, broken
        if not near:
            estimate = min(max(estimate, kept), broken)
        is_missed = all(measured.value > self.model.figure.limit for measured in self.observed)
        if estimate >= self.highest_per_s and choose_near(self.observed, self.highest_per_s):
            bound, estimate, high = "highest rate", self.highest_per_s, math.inf
        elif not kept and (estimate <= self.lowest_per_s or (not near and is_missed)):
            bound, estimate, low, high = "lowest rate", 0.0, 0.0, broken
        estimate = min(estimate, self.highest_per_s)
        low = 0.0 if low < self.lowest_per_s else min(low, estimate)
        high = math.inf if high > self.highest_per_s else max(high, estimate)
        rate = Interval(estimate=estimate, low=low, high=high, confidence=self.confidence)
        return Capacity(rate_per_s=rate, bound=bound, n_measurements=len(self.observed))

    def _decide(self) -> tuple[float, float]:
        """Return the highest rate at which the limit is clearly kept, and the lowest one at which it clearly is not.

        Each measurement alone must show it, with Bonferroni's correction for their number.
        """
        confidence = share_error(len(self.observed), self.confidence)
        kept, broken = 0.0, math.inf
        for measured in self.observed:
            low, high = self.model.bound_value(measured, self.fit.slowdown, confidence)
            if high <= self.model.figure.limit:
                kept = max(kept, measured.rate_per_s)
            elif low > self.model.figure.limit:
                broken = min(broken, measured.rate_per_s)
        return min(kept, broken), max(kept, broken)  # in the wrong order, they contradict each other


class _Parts:
    """What is known of several parts, which are measured at the same rates.

    Attributes:
        searches: What is known of each.
    """

    def __init__(self, searches: Sequence[_Search]) -> None:
        self.searches = searches

    @property
    def first(self) -> _Search:
        """The part that misses its limit first when the rate rises, as far as is known."""
        return min(self.searches, key=lambda search: search.wanted_per_s)

    def add(self, found: Sequence[RateMeasurement]) -> None:
        """Add a measurement of all parts."""
        for search, measured in zip(self.searches, found, strict=True):
            search.add(measured)

    @property
    def is_precise(self) -> bool:
        """Return whether enough measurements near the capacity have an interval that is narrow enough."""
        fit = self.first.fit
        is_enough = len(choose_near(self.first.observed, fit.rate_per_s)) >= ENOUGH_NEAR
        low = min([fit.low_per_s, *self._list_other_lows(self.first)])
        return is_enough and fit.high_per_s - low <= 2 * CAPACITY_TOLERANCE * fit.rate_per_s

    @property
    def is_at_end(self) -> bool:
        """Whether the capacity is beyond the highest rate for all parts, or beyond the lowest one for any."""
        ends = [search.is_at_end for search in self.searches]
        return all(ends) if self.first.is_at_highest else any(ends)

    def conclude(self) -> Capacity:
        """Return the capacity: that of the part whose limit is missed first."""
        found = [search.conclude() for search in self.searches]
        place = min(range(len(found)), key=lambda place: found[place].rate_per_s.estimate)
        rate = found[place].rate_per_s
        low = min([rate.low, *self._list_other_lows(self.searches[place])])
        high = min(capacity.rate_per_s.high for capacity in found)
        interval = msgspec.structs.replace(rate, low=low, high=max(high, rate.estimate))
        return msgspec.structs.replace(found[place], rate_per_s=interval)

    def _list_other_lows(self, search: _Search) -> list[float]:
        return [other.likely_low_per_s for other in self.searches if other is not search]
