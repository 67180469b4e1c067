"""The capacity of a live system, measured near the rate where a model of its queue expects it.

At a high utilization, latencies in a short time say little: queues are short by chance most of the time, and long for
the rest. The percentile of one measurement is therefore too low more often than too high. The share of the requests
that exceed the limit has no such bias, and a model says how it grows with the rate. What the model does not know is by
how much calls take longer, or less long, where requests arrive than where it got its durations from. This slowdown is
fitted to all measurements near the capacity. They are made at the capacity that the ones before them say, so that the
model only needs to be right nearby.

Source: P. McCullagh and J. A. Nelder, "Generalized Linear Models" (1989), chapter 9, for quasi-likelihoods: shares of
requests that are not independent, and more variation than the model expects.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ortune.compare.interval import DEFAULT_CONFIDENCE, Interval, share_error
from ortune.queueing.capacity import Bound, Capacity
from ortune.queueing.replications import quantile_of_normal
from ortune.queueing.tails import LEAST_SHARE, SimulateTail

UTILIZATIONS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.84, 0.88, 0.91, 0.94, 0.97)
"""Where the queue is simulated. Between them, shares are interpolated as logarithms."""

RELAXATIONS = 10.0
"""How long a measurement lasts at least, as a multiple of the queue's relaxation time."""

UNKNOWN_SLOWDOWN, MEASURED_SLOWDOWN = 0.3, 0.2
"""Standard deviation of the slowdown before any measurement, as a logarithm, and of how it differs from that of the
mean duration of calls. It decides only where measurements have few requests above the limit or none."""

LARGEST_SLOWDOWN = 1.2
"""Largest logarithm of a slowdown, up or down from where it is expected."""

NEAR = 0.25
"""Measurements are near a rate if theirs differs by a factor of at most e to this power."""

FEWEST_MEASUREMENTS = 4
"""Measurements near the capacity that end the search, if their interval is narrow enough."""

MOST_REPEATS = 3
"""Measurements at the highest or lowest rate, as long as it is unclear whether the limit is kept there."""

LARGEST_RISE, LARGEST_FALL = 1.5, 3.0
"""Factors by which a rate is at most higher or lower than that before it."""

SMALLEST_RISE = 1.1
"""Factor by which the next rate is higher if the limit was kept at all rates, also where the model expects that it is
not."""

STEP = 1e-3
"""Difference of logarithms for derivatives."""


class Seen(NamedTuple):
    """A measurement at a rate.

    Attributes:
        rate_per_s: Requests per second.
        value: Share of the requests that take longer than the limit; their mean latency in ns if that is limited.
        n_calls: How many requests there were.
        service_ns: Mean duration of a call, without the wait; None if it depends on the rate in itself.
    """

    rate_per_s: float
    value: float
    n_calls: int
    service_ns: float | None = None


class Fit(NamedTuple):
    """The capacity that measurements say.

    Attributes:
        slowdown: By which factor calls take longer than the model knows.
        rate_per_s: The capacity; 0 if calls alone take longer than the limit.
        low_per_s: Lower end of its interval.
        high_per_s: Upper end.
    """

    slowdown: float
    rate_per_s: float
    low_per_s: float
    high_per_s: float


class RateModel:
    """What a simulated queue expects at each rate, if calls take longer than it knows by some factor.

    Args:
        simulate_tail: Simulates the latencies at a utilization.
        highest_per_s: The rate at which servers are always busy.
        service_ns: Mean duration of a call; None if it depends on the rate.
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

    def expect(self, rate_per_s: float, slowdown: float) -> float:
        """Return the expected value at a rate; see `Seen`."""
        utilization = rate_per_s * slowdown / self.highest_per_s
        place, weight = self._locate(utilization)
        if self.point is None:
            # It grows about as 1 / (1 - utilization) does.
            means = [self._tail(each).mean_ns * (1 - UTILIZATIONS[each]) for each in (place, place + 1)]
            left = max(1 - max(utilization, UTILIZATIONS[0]), LEAST_SHARE)
            return slowdown * ((1 - weight) * means[0] + weight * means[1]) / left
        low, high = (self._tail(each).share_above(self.limit_ns / slowdown) for each in (place, place + 1))
        share = math.exp((1 - weight) * math.log(low) + weight * math.log(high))
        beyond = min(max((utilization - UTILIZATIONS[-1]) / (1 - UTILIZATIONS[-1]), 0.0), 1.0)
        return min(share + beyond * (1 - share), 1 - LEAST_SHARE)

    def find_factor(self, rate_per_s: float, slowdown: float) -> float:
        """Return the variance of the value times the requests: in itself, or as a multiple of that if independent."""
        place, weight = self._locate(rate_per_s * slowdown / self.highest_per_s)
        low, high = (self._tail(each) for each in (place, place + 1))
        if self.point is None:
            return float((slowdown * ((1 - weight) * low.mean_sd_ns + weight * high.mean_sd_ns)) ** 2)
        return (1 - weight) * low.clump + weight * high.clump

    def find_relaxation_ns(self, rate_per_s: float, slowdown: float) -> float:
        """Return the time after which the queue has forgotten its state, about."""
        place, weight = self._locate(rate_per_s * slowdown / self.highest_per_s)
        low, high = (self._tail(each).relaxation_ns for each in (place, place + 1))
        return slowdown * ((1 - weight) * low + weight * high)

    def find_capacity(self, slowdown: float) -> float:
        """Return the highest rate at which the limit is kept; 0 if calls alone take longer."""
        from scipy.optimize import brentq

        highest_per_s = self.highest_per_s / slowdown
        lowest_per_s = UTILIZATIONS[0] * highest_per_s
        if self.expect(lowest_per_s, slowdown) > self.target:
            return 0.0
        return float(
            brentq(lambda rate: self.expect(rate, slowdown) - self.target, lowest_per_s, highest_per_s, rtol=1e-4)
        )

    def fit(self, seen: Sequence[Seen], confidence: float = DEFAULT_CONFIDENCE) -> Fit:
        """Return the capacity that measurements say, of those near it if there are several."""
        found = self._fit(seen, confidence)
        before: list[Seen] = []
        # What is near changes with the capacity. It settles after a few steps, or goes back and forth between two.
        for _ in range(4):
            near = choose_near(seen, found.rate_per_s)
            if len(near) < 2 or near == before:
                break
            found, before = self._fit(near, confidence), near
        return found

    def _fit(self, seen: Sequence[Seen], confidence: float) -> Fit:
        from scipy.optimize import minimize_scalar
        from scipy.special import stdtrit

        center, spread = self._expect_slowdown(seen)
        log = center
        for _ in range(2):
            factors = [self.find_factor(each.rate_per_s, math.exp(log)) for each in seen]

            def find_loss(at: float, factors: Sequence[float] = factors) -> float:
                misfits = [
                    self._find_misfit(each, factor, math.exp(at)) for each, factor in zip(seen, factors, strict=True)
                ]
                return sum(misfits) + ((at - center) / spread) ** 2 / 2

            bounds = (center - LARGEST_SLOWDOWN, center + LARGEST_SLOWDOWN)
            log = float(minimize_scalar(find_loss, bounds=bounds, method="bounded", options={"xatol": 1e-4}).x)
        information, excess = 1 / spread**2, 0.0
        for each, factor in zip(seen, factors, strict=True):
            expected = self.expect(each.rate_per_s, math.exp(log))
            ends = [self.expect(each.rate_per_s, math.exp(log + side * STEP)) for side in (-1, 1)]
            variance = factor / each.n_calls * (expected * (1 - expected) if self.point is not None else 1.0)
            information += ((ends[1] - ends[0]) / (2 * STEP)) ** 2 / variance
            excess += (each.value - expected) ** 2 / variance
        n = len(seen)
        half = math.inf
        if n > 1:
            # Launches and times that differ by more than the queue explains make the interval wider.
            error = math.sqrt(max(excess / (n - 1), 1.0) / information)
            half = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
        slowdown, reach = math.exp(log), math.exp(min(half, LARGEST_SLOWDOWN))
        return Fit(
            slowdown=slowdown,
            rate_per_s=self.find_capacity(slowdown),
            low_per_s=self.find_capacity(slowdown * reach) if math.isfinite(half) else 0.0,
            high_per_s=self.find_capacity(slowdown / reach) if math.isfinite(half) else math.inf,
        )

    def _find_misfit(self, seen: Seen, factor: float, slowdown: float) -> float:
        """Return by how much a measurement speaks against a slowdown: minus its quasi-likelihood as a logarithm."""
        expected = self.expect(seen.rate_per_s, slowdown)
        if self.point is None:
            return (seen.value - expected) ** 2 * seen.n_calls / factor / 2
        likelihood = seen.value * math.log(expected) + (1 - seen.value) * math.log1p(-expected)
        return -likelihood * seen.n_calls / factor

    def _expect_slowdown(self, seen: Sequence[Seen]) -> tuple[float, float]:
        """Return where the logarithm of the slowdown is expected from durations of calls, and how far off that may be.

        Where callers share CPUs, calls are shorter while others wait for requests: a queue with such calls does not
        behave as one whose calls are always as short.
        """
        known = [(each.service_ns, each.n_calls) for each in seen if each.service_ns]
        if not known or not self.service_ns:
            return 0.0, UNKNOWN_SLOWDOWN
        services, weights = zip(*known, strict=True)
        return math.log(float(np.average(services, weights=weights)) / self.service_ns), MEASURED_SLOWDOWN

    def _locate(self, utilization: float) -> tuple[int, float]:
        """Return the place of the simulated utilization below, and the weight of the one above."""
        place = int(np.clip(np.searchsorted(UTILIZATIONS, utilization) - 1, 0, len(UTILIZATIONS) - 2))
        below, above = UTILIZATIONS[place], UTILIZATIONS[place + 1]
        return place, min(max((utilization - below) / (above - below), 0.0), 1.0)

    def is_clear(self, seen: Seen, confidence: float) -> bool:
        """Return whether a measurement alone shows that the limit is kept, or that it is not."""
        factor = self.find_factor(seen.rate_per_s, 1.0)
        if self.point is not None:
            # Where no request exceeds the limit, one more would have.
            share = (seen.value * seen.n_calls + 1) / (seen.n_calls + 2)
            factor *= share * (1 - share)
        error = math.sqrt(factor / seen.n_calls)
        return abs(seen.value - self.target) > quantile_of_normal(confidence) * error


def choose_near(seen: Sequence[Seen], rate_per_s: float) -> list[Seen]:
    """Return the measurements near a rate."""
    return [each for each in seen if rate_per_s > 0 and abs(math.log(each.rate_per_s / rate_per_s)) <= NEAR]


def find_live_capacity(
    measure: Callable[[float, float], Seen],
    model: RateModel,
    *,
    lowest_per_s: float,
    highest_per_s: float,
    start_per_s: float,
    tolerance: float = 0.05,
    most_measurements: int = 20,
    may_measure: Callable[[float, float], bool] = lambda rate_per_s, slowdown: True,
    confidence: float = DEFAULT_CONFIDENCE,
) -> tuple[Capacity, list[Seen]]:
    """Find the highest rate at which a live system keeps a limit.

    If the limit was not kept at any rate that was measured, and the capacity is far from all of them, the estimate is
    0, and the interval ends at the lowest rate at which it clearly was not kept.

    Args:
        measure: Measures at a rate, where calls take longer than the model knows by a factor. Rates may repeat.
        model: What is expected.
        lowest_per_s: Lowest rate that is of interest.
        highest_per_s: Highest rate that is of interest.
        start_per_s: Where the capacity is expected.
        tolerance: Half the width of the interval, as a share of the capacity, at which the search ends.
        most_measurements: Measurements at most.
        may_measure: Returns whether there is time for a measurement; its arguments are those of `measure`. The first
            one is made in any case.
        confidence: Coverage of the interval. The search ends when it is narrow enough, which makes it a little lower.

    Returns:
        The capacity, and the measurements in their order.
    """
    seen: list[Seen] = []
    rate, slowdown = min(max(start_per_s, lowest_per_s), highest_per_s), 1.0
    while True:
        seen.append(measure(rate, slowdown))
        fit = model.fit(seen, confidence)
        is_enough = len(choose_near(seen, fit.rate_per_s)) >= FEWEST_MEASUREMENTS
        if is_enough and fit.high_per_s - fit.low_per_s <= 2 * tolerance * fit.rate_per_s:
            break
        if len(seen) >= most_measurements or _is_at_end(model, seen, fit, lowest_per_s, highest_per_s, confidence):
            break
        slowdown = fit.slowdown
        wanted = _correct(model, seen, fit.rate_per_s, confidence)
        rate = min(max(wanted, rate / LARGEST_FALL, lowest_per_s), rate * LARGEST_RISE, highest_per_s)
        if not may_measure(rate, slowdown):
            break
    return _conclude(model, seen, fit, lowest_per_s, highest_per_s, confidence), seen


def _is_at_end(
    model: RateModel, seen: Sequence[Seen], fit: Fit, lowest_per_s: float, highest_per_s: float, confidence: float
) -> bool:
    """Return whether the capacity is beyond the highest or the lowest rate."""
    last = seen[-1]
    is_beyond = (last.rate_per_s >= highest_per_s and fit.rate_per_s >= highest_per_s) or (
        last.rate_per_s <= lowest_per_s and fit.rate_per_s <= lowest_per_s
    )
    n_times = sum(each.rate_per_s == last.rate_per_s for each in seen)
    return is_beyond and (n_times >= MOST_REPEATS or model.is_clear(last, confidence))


def _conclude(
    model: RateModel, seen: Sequence[Seen], fit: Fit, lowest_per_s: float, highest_per_s: float, confidence: float
) -> Capacity:
    kept, broken = _decide(model, seen, confidence)
    estimate, low, high = _correct(model, seen, fit.rate_per_s, confidence), fit.low_per_s, fit.high_per_s
    bound: Bound = "latency"
    if estimate != fit.rate_per_s or not choose_near(seen, estimate) or len(seen) < 2:
        low, high = kept, broken
    if estimate >= highest_per_s:
        bound, estimate, high = "highest rate", highest_per_s, math.inf
    elif estimate <= lowest_per_s or (
        not choose_near(seen, estimate) and all(each.value > model.target for each in seen)
    ):
        bound, estimate, low, high = "lowest rate", 0.0, 0.0, broken
    low = 0.0 if low < lowest_per_s else min(low, estimate)
    high = math.inf if high > highest_per_s else max(high, estimate)
    rate = Interval(estimate=estimate, low=low, high=high, confidence=confidence)
    return Capacity(rate_per_s=rate, bound=bound, measurements=())


def _correct(model: RateModel, seen: Sequence[Seen], rate_per_s: float, confidence: float) -> float:
    """Return a fitted capacity, or another rate if all measurements nearby contradict it on the same side.

    A system may be so far from the model that no slowdown makes up for it.
    """
    kept, broken = _decide(model, seen, confidence)
    near = choose_near(seen, rate_per_s)
    if near and rate_per_s >= broken and all(each.value > model.target for each in near):
        return math.sqrt(kept * broken) if kept else broken / LARGEST_RISE
    if near and rate_per_s <= kept and all(each.value <= model.target for each in near):
        return math.sqrt(kept * broken) if math.isfinite(broken) else kept * SMALLEST_RISE
    return rate_per_s


def _decide(model: RateModel, seen: Sequence[Seen], confidence: float) -> tuple[float, float]:
    """Return the highest rate at which the limit is clearly kept, and the lowest one at which it clearly is not.

    Each of the measurements may be wrong. Together, they are with the probability of one interval (Bonferroni).
    """
    clear = [each for each in seen if model.is_clear(each, share_error(len(seen), confidence))]
    kept = max((each.rate_per_s for each in clear if each.value <= model.target), default=0.0)
    broken = min((each.rate_per_s for each in clear if each.value > model.target), default=math.inf)
    return min(kept, broken), max(kept, broken)  # in the wrong order, they contradict each other
