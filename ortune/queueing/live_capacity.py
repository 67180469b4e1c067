"""The capacity of a live system, measured near the rate where a model of its queue expects it.

At a high utilization, latencies in a short time say little: queues are short by chance most of the time, and long now
and then. The percentile of one measurement is therefore too low more often than too high. The share of the requests
that exceed the limit has no such bias, and a model says how it grows with the rate. What the model does not know is the
slowdown: the ratio of the durations of calls where requests arrive to those that the model has, which were measured at
full load. It is fitted to all measurements near the capacity. They are made at the capacity that the earlier ones
imply, so that the model only needs to be right nearby.

Sources: P. McCullagh and J. A. Nelder, "Generalized Linear Models" (1989), chapter 9, for quasi-likelihoods: shares of
requests that are not independent, and more variation than the model expects. C. J. Clopper and E. S. Pearson, "The use
of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26 (1934), for single shares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortune.compare.interval import DEFAULT_CONFIDENCE, Interval, share_error
from ortune.queueing.capacity import Bound, Capacity
from ortune.queueing.replications import quantile_of_normal
from ortune.queueing.tails import LEAST_SHARE, SimulateTail, Tail

UTILIZATIONS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.84, 0.88, 0.91, 0.94)
"""Where the queue is simulated. Between them, shares are interpolated as logarithms. Above, a queue takes so long to
grow that a measurement shows only that the utilization is high."""

RELAXATIONS = 10.0
"""How long a measurement lasts, as a multiple of the relaxation time of the queue."""

UNKNOWN_SLOWDOWN, MEASURED_SLOWDOWN = 0.3, 0.2
"""Standard deviation of the slowdown before any measurement, as a logarithm, and of how it differs from that of the
mean duration of calls. It matters only where few requests exceed the limit, or none."""

LARGEST_SLOWDOWN = 1.2
"""Largest logarithm of a slowdown, up or down from where it is expected."""

NEAR = 0.25
"""Measurements are near a rate if the logarithms of both rates differ by at most this."""

ENOUGH_NEAR = 4
"""Measurements near the capacity that end the search, if their interval is narrow enough."""

LIKELY_SHARE = 0.1
"""Smallest expected share for errors, as a part of that at the capacity. A model does not know rarer latencies."""

MOST_REPEATS = 3
"""Measurements at the highest or lowest rate, as long as it is unclear whether the limit is kept there."""

LARGEST_RISE, LARGEST_FALL = 1.5, 3.0
"""Factors by which a rate is at most higher or lower than the one before it."""

SMALLEST_RISE = 1.1
"""Factor by which the next rate is higher if the limit was kept at all rates, although the model expects that it is
not."""

STEP = 1e-3
"""Difference of logarithms for derivatives."""


class Observation(NamedTuple):
    """A measurement at a rate.

    Attributes:
        rate_per_s: Requests per second.
        value: Share of the requests that take longer than the limit; their mean latency in ns if that is limited.
        n_calls: Number of requests.
        service_ns: Mean duration of a call, without the wait; None if it depends on the rate in itself.
    """

    rate_per_s: float
    value: float
    n_calls: int
    service_ns: float | None = None


class Fit(NamedTuple):
    """The capacity that measurements imply.

    Attributes:
        slowdown: Ratio of the durations of calls to those that the model has.
        rate_per_s: The capacity; 0 if calls alone take longer than the limit, or at most 2 % of the highest rate.
        low_per_s: Lower end of its interval.
        high_per_s: Upper end.
    """

    slowdown: float
    rate_per_s: float
    low_per_s: float
    high_per_s: float


class RateModel:
    """What a simulated queue expects at each rate, for any slowdown.

    Args:
        simulate_tail: Simulates the latencies at a utilization.
        highest_per_s: The rate at which servers are always busy.
        service_ns: Mean duration of a call; None for servers that put requests together, whose calls depend on the
            rate. As their delays do not become longer when calls do, the slowdown only changes the rates there, which
            is an approximation.
        point: The percentile that is limited; None for the mean.
        limit_ns: The limit.
    """

    def __init__(
        self,
        simulate_tail: SimulateTail,
        *,
        highest_per_s: float,
        service_ns: float | None,
        point: float | None,
        limit_ns: float,
    ) -> None:
        self.highest_per_s = highest_per_s
        self.service_ns = service_ns
        self.point = point
        self.limit_ns = limit_ns
        self._tail = functools.cache(lambda place: simulate_tail(UTILIZATIONS[place]))

    @property
    def target(self) -> float:
        """The value at the capacity."""
        return self.limit_ns if self.point is None else 1 - self.point / 100

    def observe(self, rate_per_s: float, latencies_ns: NDArray[Any], service_ns: float | None) -> Observation:
        """Return what latencies at a rate show; see `Observation`."""
        values = latencies_ns if self.point is None else latencies_ns > self.limit_ns
        return Observation(rate_per_s, float(values.mean()), len(latencies_ns), service_ns)

    def expect(self, rate_per_s: float, slowdown: float) -> float:
        """Return the expected value at a rate; see `Observation`."""
        utilization = rate_per_s * slowdown / self.highest_per_s
        low, high, weight = self._locate(utilization)
        value = self._interpolate(low, high, weight, slowdown)
        beyond = min(max((utilization - UTILIZATIONS[-1]) / (1 - UTILIZATIONS[-1]), 0.0), 1.0)
        if self.point is None:
            # The mean grows about as 1 / (1 - utilization) does.
            return value / max(1 - beyond, LEAST_SHARE)
        return min(value + beyond * (1 - value), 1 - LEAST_SHARE)

    def find_inflation(self, rate_per_s: float, slowdown: float) -> float:
        """Return the variance inflation of a share; of a mean, the variance of its logarithm times the requests."""
        low, high, weight = self._locate(rate_per_s * slowdown / self.highest_per_s)
        return (1 - weight) * self._find_inflation(low) + weight * self._find_inflation(high)

    def find_relaxation_ns(self, rate_per_s: float, slowdown: float) -> float:
        """Return the relaxation time of the queue."""
        low, high, weight = self._locate(rate_per_s * slowdown / self.highest_per_s)
        return slowdown * ((1 - weight) * low.relaxation_ns + weight * high.relaxation_ns)

    def find_capacity(self, slowdown: float) -> float:
        """Return the highest rate at which the limit is kept; 0 if it is not at the lowest utilization of the table."""
        from scipy.optimize import brentq

        highest_per_s = self.highest_per_s / slowdown

        def find_excess(utilization: float) -> float:
            return self.expect(utilization * highest_per_s, slowdown) - self.target

        low = self._find_highest_kept(find_excess)
        if low < 0:
            return 0.0
        ends = (*UTILIZATIONS, 1.0)[low : low + 2]
        if find_excess(ends[1]) <= 0:
            return highest_per_s
        return float(brentq(find_excess, *ends, rtol=1e-4)) * highest_per_s

    def _find_highest_kept(self, find_excess: Callable[[float], float]) -> int:
        """Return the place of the highest utilization in the table at which the limit is kept; -1 if there is none."""
        if self.service_ns is None:
            # Requests may wait longer for a batch at lower rates.
            places = range(len(UTILIZATIONS) - 1, -1, -1)
            return next((place for place in places if find_excess(UTILIZATIONS[place]) <= 0), -1)
        low, high = -1, len(UTILIZATIONS)
        while high - low > 1:
            middle = (low + high) // 2
            if find_excess(UTILIZATIONS[middle]) <= 0:
                low = middle
            else:
                high = middle
        return low

    def fit(self, observed: Sequence[Observation], confidence: float = DEFAULT_CONFIDENCE) -> Fit:
        """Return the capacity that measurements imply: those near it, if there are several."""
        found = self._fit(observed, confidence)
        before: list[Observation] = []
        # What is near changes with the capacity. It settles after a few steps, or goes back and forth between two.
        for _ in range(4):
            near = choose_near(observed, found.rate_per_s)
            if len(near) < 2 or near == before:
                break
            found, before = self._fit(near, confidence), near
        return found

    def _fit(self, observed: Sequence[Observation], confidence: float) -> Fit:
        from scipy.optimize import minimize_scalar
        from scipy.special import stdtrit

        center, spread = self._expect_slowdown(observed)
        log = center
        for _ in range(2):
            # These are those of the fit before. Otherwise, the slowdown that makes errors largest would fit best.
            inflations = [self.find_inflation(each.rate_per_s, math.exp(log)) for each in observed]
            most = self._find_most(math.exp(log))

            def find_loss(at: float, inflations: Sequence[float] = inflations, most: float = most) -> float:
                misfits = (
                    self._find_misfit(each, inflation, math.exp(at), most)
                    for each, inflation in zip(observed, inflations, strict=True)
                )
                return sum(misfits) + ((at - center) / spread) ** 2 / 2

            bounds = (center - LARGEST_SLOWDOWN, center + LARGEST_SLOWDOWN)
            log = float(minimize_scalar(find_loss, bounds=bounds, method="bounded", options={"xatol": 1e-4}).x)
        n, half = len(observed), math.inf
        information, excess = self._find_information(observed, inflations, log, most)
        if n > 1 and information > 0:
            # Launches and times that differ by more than the queue explains make the interval wider.
            error = math.sqrt(max(excess / (n - 1), 1.0) / information)
            half = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
        slowdown = math.exp(log)
        is_known = half < LARGEST_SLOWDOWN
        return Fit(
            slowdown=slowdown,
            rate_per_s=self.find_capacity(slowdown),
            low_per_s=self.find_capacity(slowdown * math.exp(half)) if is_known else 0.0,
            high_per_s=self.find_capacity(slowdown / math.exp(half)) if is_known else math.inf,
        )

    def _find_information(
        self, observed: Sequence[Observation], inflations: Sequence[float], log: float, most: float
    ) -> tuple[float, float]:
        """Return the information about the logarithm of the slowdown, and the sum of squared normalized errors."""
        information, excess = 0.0, 0.0
        for each, inflation in zip(observed, inflations, strict=True):
            value, expected = min(each.value, most), min(self.expect(each.rate_per_s, math.exp(log)), most)
            ends = [min(self.expect(each.rate_per_s, math.exp(log + side * STEP)), most) for side in (-1, 1)]
            slope = (ends[1] - ends[0]) / (2 * STEP)
            variance = inflation / each.n_calls
            if self.point is None:
                value, expected, slope = value / expected, 1.0, slope / expected
            else:
                likely = max(expected, LIKELY_SHARE * self.target)
                variance *= likely * (1 - likely)
            information += slope**2 / variance
            excess += (value - expected) ** 2 / variance
        return information, excess

    def _find_misfit(self, observed: Observation, inflation: float, slowdown: float, most: float) -> float:
        """Return by how much a measurement contradicts a slowdown: minus the logarithm of the quasi-likelihood.

        Values count up to `most`: above, queues grow for longer than a measurement lasts.
        """
        value, expected = min(observed.value, most), min(self.expect(observed.rate_per_s, slowdown), most)
        if self.point is None:
            # That of a gamma distribution, whose standard deviation is a share of its mean.
            return (value / expected + math.log(expected)) * observed.n_calls / inflation
        likelihood = value * math.log(expected) + (1 - value) * math.log1p(-expected)
        return -likelihood * observed.n_calls / inflation

    def _find_most(self, slowdown: float) -> float:
        """Return the expected value at the highest utilization of the table, and more than at the capacity."""
        last = self._tail(len(UTILIZATIONS) - 1)
        most = max(self._interpolate(last, last, 1.0, slowdown), 2 * self.target)
        return most if self.point is None else min(most, 1 - LEAST_SHARE)

    def _interpolate(self, low: Tail, high: Tail, weight: float, slowdown: float) -> float:
        if self.point is None:
            logs = [math.log(tail.mean_ns * (slowdown if self.service_ns else 1.0)) for tail in (low, high)]
        else:
            limit_ns = self.limit_ns / (slowdown if self.service_ns else 1.0)
            logs = [math.log(tail.share_above(limit_ns)) for tail in (low, high)]
        return math.exp((1 - weight) * logs[0] + weight * logs[1])

    def _find_inflation(self, tail: Tail) -> float:
        if self.point is None:
            return float(max(tail.mean_sd_ns / tail.mean_ns, 1e-3) ** 2)
        return tail.inflation

    def _expect_slowdown(self, observed: Sequence[Observation]) -> tuple[float, float]:
        """Return where the logarithm of the slowdown is expected from durations of calls, and how far off that may be.

        Where callers share CPUs, calls are shorter while others wait for requests: a queue with such calls does not
        behave as one whose calls are always as short.
        """
        known = [(each.service_ns, each.n_calls) for each in observed if each.service_ns]
        if not known or not self.service_ns:
            return 0.0, UNKNOWN_SLOWDOWN
        services, weights = zip(*known, strict=True)
        return math.log(float(np.average(services, weights=weights)) / self.service_ns), MEASURED_SLOWDOWN

    def _locate(self, utilization: float) -> tuple[Tail, Tail, float]:
        """Return the latencies at the utilizations of the table below and above, and the weight of the one above."""
        place = int(np.clip(np.searchsorted(UTILIZATIONS, utilization) - 1, 0, len(UTILIZATIONS) - 2))
        below, above = UTILIZATIONS[place], UTILIZATIONS[place + 1]
        weight = min(max((utilization - below) / (above - below), 0.0), 1.0)
        # Only what has a weight is simulated.
        low, high = (place + (weight == 1), place + (weight > 0))
        return self._tail(low), self._tail(high), weight

    def bound_value(self, observed: Observation, slowdown: float, confidence: float) -> tuple[float, float]:
        """Return the interval of the value at the rate of a measurement."""
        from scipy.special import betaincinv

        inflation = self.find_inflation(observed.rate_per_s, slowdown)
        if self.point is None:
            reach = math.exp(quantile_of_normal(confidence) * math.sqrt(inflation / observed.n_calls))
            return observed.value / reach, observed.value * reach
        # As many independent requests would vary as much.
        n = observed.n_calls / inflation
        x, point = observed.value * n, (1 - confidence) / 2
        low = float(betaincinv(x, n - x + 1, point)) if x > 0 else 0.0
        high = float(betaincinv(x + 1, n - x, 1 - point)) if x < n else 1.0
        return low, high


def choose_near(observed: Sequence[Observation], rate_per_s: float) -> list[Observation]:
    """Return the measurements near a rate."""
    return [each for each in observed if rate_per_s > 0 and abs(math.log(each.rate_per_s / rate_per_s)) <= NEAR]


def find_live_capacity(
    measure: Callable[[float, float], Observation | None],
    model: RateModel,
    *,
    lowest_per_s: float,
    highest_per_s: float,
    start_per_s: float,
    tolerance: float = 0.05,
    most_measurements: int = 20,
    confidence: float = DEFAULT_CONFIDENCE,
) -> tuple[Capacity, list[Observation]]:
    """Find the highest rate at which a live system keeps a limit.

    If the limit was not kept at any rate that was measured, and the capacity is far from all of them, the estimate is
    0, and the interval ends at the lowest rate at which it clearly was not kept.

    Args:
        measure: Measures at a rate, for a slowdown; returns None to end the search. Rates may repeat.
        model: What is expected.
        lowest_per_s: Lowest rate that is of interest.
        highest_per_s: Highest rate that is of interest.
        start_per_s: Where the capacity is expected.
        tolerance: Half the width of the interval, as a share of the capacity, at which the search ends.
        most_measurements: Measurements at most.
        confidence: Coverage of the interval. The search ends when it is narrow enough, which makes it a little lower.

    Returns:
        The capacity, and the measurements in their order.

    Raises:
        ValueError: There is no measurement.
    """
    search = _Search(model, lowest_per_s, highest_per_s, confidence)
    rate, slowdown = min(max(start_per_s, lowest_per_s), highest_per_s), 1.0
    while len(search.observed) < most_measurements:
        found = measure(rate, slowdown)
        if not found:
            break
        search.add(found)
        if search.is_precise(tolerance) or search.is_at_end:
            break
        slowdown = search.fit.slowdown
        rate = min(max(search.wanted_per_s, rate / LARGEST_FALL, lowest_per_s), rate * LARGEST_RISE, highest_per_s)
    if not search.observed:
        raise ValueError("a capacity needs at least one measurement")
    return search.conclude(), search.observed


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
        self.observed: list[Observation] = []

    def add(self, found: Observation) -> None:
        """Add a measurement."""
        self.observed.append(found)
        self.fit = self.model.fit(self.observed, self.confidence)
        self.kept_per_s, self.broken_per_s = self._decide()

    def is_precise(self, tolerance: float) -> bool:
        """Return whether enough measurements near the capacity have an interval that is narrow enough."""
        fit = self.fit
        is_enough = len(choose_near(self.observed, fit.rate_per_s)) >= ENOUGH_NEAR
        return is_enough and fit.high_per_s - fit.low_per_s <= 2 * tolerance * fit.rate_per_s

    @property
    def wanted_per_s(self) -> float:
        """The fitted capacity, or another rate if all measurements nearby, if any, contradict it on the same side.

        A system may be so far from the model that no slowdown makes up for it.
        """
        rate_per_s, kept, broken = self.fit.rate_per_s, self.kept_per_s, self.broken_per_s
        near = choose_near(self.observed, rate_per_s)
        if rate_per_s >= broken and all(each.value > self.model.target for each in near):
            return math.sqrt(kept * broken) if kept else broken / LARGEST_RISE
        if rate_per_s <= kept and all(each.value <= self.model.target for each in near):
            return math.sqrt(kept * broken) if math.isfinite(broken) else kept * SMALLEST_RISE
        return rate_per_s

    @property
    def is_at_end(self) -> bool:
        """Whether the capacity is beyond the highest or the lowest rate."""
        last = self.observed[-1]
        low, high = self.model.bound_value(last, self.fit.slowdown, self.confidence)
        n_times = sum(each.rate_per_s == last.rate_per_s for each in self.observed)
        if last.rate_per_s >= self.highest_per_s and self.wanted_per_s >= self.highest_per_s:
            return n_times >= MOST_REPEATS or high < self.model.target
        if last.rate_per_s <= self.lowest_per_s and self.wanted_per_s <= self.lowest_per_s:
            return n_times >= MOST_REPEATS or low > self.model.target
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
        is_missed = all(each.value > self.model.target for each in self.observed)
        if estimate >= self.highest_per_s and choose_near(self.observed, self.highest_per_s):
            bound, estimate, high = "highest rate", self.highest_per_s, math.inf
        elif not kept and (estimate <= self.lowest_per_s or (not near and is_missed)):
            bound, estimate, low, high = "lowest rate", 0.0, 0.0, broken
        estimate = min(estimate, self.highest_per_s)
        low = 0.0 if low < self.lowest_per_s else min(low, estimate)
        high = math.inf if high > self.highest_per_s else max(high, estimate)
        rate = Interval(estimate=estimate, low=low, high=high, confidence=self.confidence)
        return Capacity(rate_per_s=rate, bound=bound, measurements=())

    def _decide(self) -> tuple[float, float]:
        """Return the highest rate at which the limit is clearly kept, and the lowest one at which it clearly is not.

        Each measurement alone must show it, with Bonferroni's correction for their number.
        """
        confidence = share_error(len(self.observed), self.confidence)
        kept, broken = 0.0, math.inf
        for each in self.observed:
            low, high = self.model.bound_value(each, self.fit.slowdown, confidence)
            if high <= self.model.target:
                kept = max(kept, each.rate_per_s)
            elif low > self.model.target:
                broken = min(broken, each.rate_per_s)
        return min(kept, broken), max(kept, broken)  # in the wrong order, they contradict each other
