"""What a simulated queue expects of a live system at each rate, and the capacity that measurements imply.

What the model does not know is the slowdown: the ratio of the durations of calls where requests arrive to those that
the model has, which were measured at full load. It is fitted to measurements.

A host that others share is slow at times. Queues are then much longer, so that more requests are late than on a host
that is always as slow as this one is on average. What is expected is therefore averaged over parts of the measurements,
with the mean duration of the calls in each.

Source: P. McCullagh and J. A. Nelder, "Generalized Linear Models" (1989), chapter 9, for quasi-likelihoods: shares of
requests that are not independent, and more variation than the model expects.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.queueing.limited_figures import LimitedFigure
from ortune.queueing.replications import quantile_of_normal
from ortune.queueing.tails import SimulateTail, Tail

UTILIZATIONS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.84, 0.88, 0.91, 0.94)
"""Where the queue is simulated. Between them, shares are interpolated as logarithms. Above, a queue takes so long to
grow that a measurement shows only that the utilization is high."""

UNKNOWN_SLOWDOWN, MEASURED_SLOWDOWN = 0.3, 0.2
"""Standard deviation of the slowdown before any measurement, as a logarithm, and of how it differs from that of the
mean duration of calls. It matters where few requests exceed the limit, or none, and where measurements differ much."""

LARGEST_LOG_SLOWDOWN = 1.2
"""Largest logarithm of a slowdown, up or down from where it is expected."""

NEAR_LOG_RATE = 0.25
"""Measurements are near a rate if the logarithms of both rates differ by at most this."""

FEWEST_FACTORS, MOST_FACTORS = 5, 10
"""How many groups the parts of a measurement, and those of all measurements, are summarized in."""

STEADY = 1.05
"""If calls take longer by at most this factor in the slowest group than in the fastest, the speed counts as
constant."""

MOST_BUSY = 0.98
"""Utilization up to which a queue grows in a slow period, which ends."""

STEP = 1e-3
"""Difference of logarithms for derivatives."""


class RateMeasurement(NamedTuple):
    """A measurement at a rate.

    Attributes:
        rate_per_s: Requests per second.
        value: The limited figure, such as the share of the requests that take longer than the limit of a percentile.
        n_calls: Number of requests.
        service_ns: Mean duration of a call, without the wait; None if it depends on how many requests it serves.
        factors: By which factors calls took longer than on average, in parts of equal length.
    """

    rate_per_s: float
    value: float
    n_calls: int
    service_ns: float | None = None
    factors: tuple[float, ...] = (1.0,)


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
        figure: What is limited.
    """

    def __init__(
        self,
        simulate_tail: SimulateTail,
        *,
        highest_per_s: float,
        service_ns: float | None,
        figure: LimitedFigure,
    ) -> None:
        self.highest_per_s = highest_per_s
        self.service_ns = service_ns
        self.figure = figure
        self._tail = functools.cache(lambda place: simulate_tail(UTILIZATIONS[place]))

    def observe(
        self,
        rate_per_s: float,
        latencies_ns: NDArray[Any],
        service_ns: float | None,
        utilization: float = math.nan,
        factors: tuple[float, ...] = (1.0,),
    ) -> RateMeasurement:
        """Return what latencies, or the share of the servers' time that calls took, show; see `RateMeasurement`."""
        value = self.figure.compute(latencies_ns, utilization)
        return RateMeasurement(rate_per_s, value, len(latencies_ns), service_ns, factors)

    def expect(self, rate_per_s: float, slowdown: float) -> float:
        """Return the expected value at a rate; see `RateMeasurement`."""
        utilization = rate_per_s * slowdown / self.highest_per_s
        low, high, weight = self._locate(utilization)
        value = self._interpolate(low, high, weight, slowdown)
        last = UTILIZATIONS[-1]
        return self.figure.extrapolate(value, last, utilization) if utilization > last else value

    def expect_on_average(self, rate_per_s: float, slowdown: float, factors: Sequence[float]) -> float:
        """Return the expected value if calls take longer by each of these factors for an equal part of the time."""
        if len(factors) == 1:
            return self.expect(rate_per_s, slowdown * factors[0])
        most_per_s = MOST_BUSY * self.highest_per_s / slowdown
        total = 0.0
        for factor in factors:
            total += self.expect(min(rate_per_s, most_per_s / factor), slowdown * factor)
        return total / len(factors)

    def find_inflation(self, rate_per_s: float, slowdown: float) -> float:
        """Return the variance inflation of the figure; see `LimitedFigure`."""
        low, high, weight = self._locate(rate_per_s * slowdown / self.highest_per_s)
        return (1 - weight) * self.figure.find_inflation(low) + weight * self.figure.find_inflation(high)

    def find_relaxation_ns(self, rate_per_s: float, slowdown: float) -> float:
        """Return the relaxation time of the queue."""
        low, high, weight = self._locate(rate_per_s * slowdown / self.highest_per_s)
        return slowdown * ((1 - weight) * low.relaxation_ns + weight * high.relaxation_ns)

    def find_capacity(self, slowdown: float, factors: Sequence[float] = (1.0,)) -> float:
        """Return the highest rate at which the limit is kept; 0 if it is not at the lowest utilization of the table.

        Args:
            slowdown: By which factor calls take longer than the model has it.
            factors: By which they take longer than that, each for an equal part of the time.
        """
        from scipy.optimize import brentq

        highest_per_s = self.highest_per_s / slowdown

        def find_excess(utilization: float) -> float:
            return self.expect_on_average(utilization * highest_per_s, slowdown, factors) - self.figure.limit

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

    def fit(self, observed: Sequence[RateMeasurement], confidence: float = DEFAULT_CONFIDENCE) -> Fit:
        """Return the capacity that measurements imply: those near it, if there are several."""
        found = self._fit(observed, confidence)
        before: list[RateMeasurement] = []
        # What is near changes with the capacity. It settles after a few steps, or goes back and forth between two.
        for _ in range(4):
            near = choose_near(observed, found.rate_per_s)
            if len(near) < 2 or near == before:
                break
            found, before = self._fit(near, confidence), near
        return found

    def _fit(self, observed: Sequence[RateMeasurement], confidence: float) -> Fit:
        from scipy.optimize import minimize_scalar
        from scipy.special import stdtrit

        center, spread = self._expect_slowdown(observed)
        by_part = self._compare_speeds(observed, center)
        observed, factors = simplify_observations(by_part), join_factors(by_part)
        bounds = (center - LARGEST_LOG_SLOWDOWN, center + LARGEST_LOG_SLOWDOWN)
        log = center
        for _ in range(2):
            # These are those of the fit before. Otherwise, the slowdown that makes errors largest would fit best.
            inflations = self._find_inflations(observed, log)
            most = self._find_most(math.exp(log))

            def find_loss(at: float, inflations: Sequence[float] = inflations, most: float = most) -> float:
                return self._find_loss(observed, inflations, at, most) + ((at - center) / spread) ** 2 / 2

            log = float(minimize_scalar(find_loss, bounds=bounds, method="bounded", options={"xatol": 1e-4}).x)
        information, excess = self._find_information(observed, inflations, log, most)
        n, half = len(observed), math.inf
        if n > 1 and information > 0:
            # Launches and times that differ by more than the queue explains make the interval wider.
            error = math.sqrt(max(excess / (n - 1), 1.0) / information)
            half = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
            # What is expected of the slowdown may say more.
            half = min(half, quantile_of_normal(confidence) * spread)
        slowdown = math.exp(log)
        rate_per_s = self.find_capacity(slowdown, factors)
        if math.isinf(half):
            return Fit(slowdown=slowdown, rate_per_s=rate_per_s, low_per_s=0.0, high_per_s=math.inf)
        low_per_s, high_per_s = (self.find_capacity(slowdown * math.exp(change), factors) for change in (half, -half))
        error = self._find_error_of_factors(by_part, slowdown) if len(factors) > 1 and rate_per_s else 0.0
        if error:
            other = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
            low_per_s, high_per_s = (
                rate_per_s * math.exp(math.copysign(math.hypot(math.log(max(end, 1e-9) / rate_per_s), other), side))
                for end, side in ((low_per_s, -1), (high_per_s, 1))
            )
        return Fit(slowdown=slowdown, rate_per_s=rate_per_s, low_per_s=low_per_s, high_per_s=high_per_s)

    def _find_error_of_factors(self, observed: Sequence[RateMeasurement], slowdown: float) -> float:
        """Return the standard error of the logarithm of the capacity that comes from how often the host is slow.

        Source: the jackknife, B. Efron and C. Stein, "The jackknife estimate of variance", The Annals of Statistics 9
        (1981). Each measurement is left out once.
        """
        n = len(observed)
        rates = [
            self.find_capacity(slowdown, join_factors([*observed[:left_out], *observed[left_out + 1 :]]))
            for left_out in range(n)
        ]
        return float(np.std(np.log(np.maximum(rates, 1e-9)))) * math.sqrt(n - 1)

    def _compare_speeds(self, observed: Sequence[RateMeasurement], center: float) -> list[RateMeasurement]:
        """Return measurements with factors relative to the mean of all, whose logarithm is `center`.

        All have equally many, so that they count as much.
        """
        if all(measured.factors == (1.0,) for measured in observed):
            return list(observed)
        found = []
        for measured in observed:
            own = 1.0
            if measured.service_ns:
                own = measured.service_ns / self._find_call_ns(measured.rate_per_s) / math.exp(center)
            found.append(
                measured._replace(factors=group_factors([own * part for part in measured.factors], FEWEST_FACTORS))
            )
        return found

    def find_likely_low(self, observed: Sequence[RateMeasurement], slowdown: float, confidence: float) -> float:
        """Return a rate that likely is below the capacity, although it may be far above all measurements.

        It is the capacity with the largest slowdown that the measurements, together with what is expected of the
        slowdown, do not contradict: the end of the interval of the likelihood ratio.

        Args:
            observed: The measurements.
            slowdown: What was fitted to them.
            confidence: Coverage of the interval.
        """
        from scipy.optimize import brentq

        center, spread = self._expect_slowdown(observed)
        by_part = self._compare_speeds(observed, center)
        observed, factors = simplify_observations(by_part), join_factors(by_part)
        log, end = math.log(slowdown), center + LARGEST_LOG_SLOWDOWN
        most = self._find_most(slowdown)

        def find_excess(at: float) -> float:
            # If calls were that slow, queues would be long, and more of what is seen would be chance.
            inflations = self._find_inflations(observed, at)
            losses = [self._find_loss(observed, inflations, candidate, most) for candidate in (at, log)]
            expected = [((candidate - center) / spread) ** 2 / 2 for candidate in (at, log)]
            return losses[0] + expected[0] - losses[1] - expected[1] - quantile_of_normal(confidence) ** 2 / 2

        if log >= end or find_excess(end) <= 0:
            return self.find_capacity(math.exp(max(log, end)), factors)
        return self.find_capacity(math.exp(float(brentq(find_excess, log, end, xtol=1e-3))), factors)

    def _find_inflations(self, observed: Sequence[RateMeasurement], log: float) -> list[float]:
        return [self.find_inflation(measured.rate_per_s, math.exp(log)) for measured in observed]

    def _find_loss(
        self, observed: Sequence[RateMeasurement], inflations: Sequence[float], log: float, most: float
    ) -> float:
        return sum(
            self._find_misfit(measured, inflation, math.exp(log), most)
            for measured, inflation in zip(observed, inflations, strict=True)
        )

    def _find_information(
        self, observed: Sequence[RateMeasurement], inflations: Sequence[float], log: float, most: float
    ) -> tuple[float, float]:
        """Return the information about the logarithm of the slowdown, and the sum of squared normalized errors."""
        information, excess = 0.0, 0.0
        for measured, inflation in zip(observed, inflations, strict=True):
            value, expected = measured.value, min(self._expect_observed(measured, math.exp(log)), most)
            if expected == most:
                value = min(value, most)
            ends = [min(self._expect_observed(measured, math.exp(log + side * STEP)), most) for side in (-1, 1)]
            slope = (ends[1] - ends[0]) / (2 * STEP)
            variance = self.figure.find_variance(expected) * inflation / measured.n_calls
            information += slope**2 / variance
            excess += (value - expected) ** 2 / variance
        return information, excess

    def _expect_observed(self, observed: RateMeasurement, slowdown: float) -> float:
        return self.expect_on_average(observed.rate_per_s, slowdown, observed.factors)

    def _find_misfit(self, observed: RateMeasurement, inflation: float, slowdown: float, most: float) -> float:
        """Return by how much a measurement contradicts a slowdown: minus the logarithm of the quasi-likelihood.

        What is expected counts up to `most`: above, queues grow for longer than a measurement lasts. What was measured
        counts in full. Otherwise, the slow periods of a host, in which almost all requests are late, would count too
        little, and the capacity would be too high.
        """
        expected = min(self._expect_observed(observed, slowdown), most)
        return self.figure.find_misfit(observed.value, expected) * observed.n_calls / inflation

    def _find_most(self, slowdown: float) -> float:
        """Return the expected value at the highest utilization of the table, and more than at the capacity."""
        last = self._tail(len(UTILIZATIONS) - 1)
        most = max(self._interpolate(last, last, 1.0, slowdown), 2 * self.figure.limit)
        return min(most, self.figure.most)

    def _interpolate(self, low: Tail, high: Tail, weight: float, slowdown: float) -> float:
        stretch = slowdown if self.service_ns else 1.0
        if low is high:  # nothing is between them
            return self.figure.expect(low, stretch)
        log_low, log_high = math.log(self.figure.expect(low, stretch)), math.log(self.figure.expect(high, stretch))
        return math.exp((1 - weight) * log_low + weight * log_high)

    def _expect_slowdown(self, observed: Sequence[RateMeasurement]) -> tuple[float, float]:
        """Return where the logarithm of the slowdown is expected from durations of calls, and how far off that may be.

        Where callers share CPUs, calls are shorter while others wait for requests: a queue with such calls does not
        behave as one whose calls are always as short.
        """
        known = [
            (measured.service_ns / self._find_call_ns(measured.rate_per_s), measured.n_calls)
            for measured in observed
            if measured.service_ns
        ]
        if not known or not self.service_ns:
            return 0.0, UNKNOWN_SLOWDOWN
        ratios, weights = zip(*known, strict=True)
        return math.log(float(np.average(ratios, weights=weights))), MEASURED_SLOWDOWN

    def _find_call_ns(self, rate_per_s: float) -> float:
        """Return the mean duration of a call. Where others use the same cores, it grows with the rate."""
        low, high, weight = self._locate(rate_per_s / self.highest_per_s)
        return (1 - weight) * low.call_ns + weight * high.call_ns

    def _locate(self, utilization: float) -> tuple[Tail, Tail, float]:
        """Return the latencies at the utilizations of the table below and above, and the weight of the one above."""
        # Only what has a weight is simulated. A fit calls this hundreds of thousands of times.
        above = bisect.bisect_left(UTILIZATIONS, utilization)
        if above == 0:
            lowest = self._tail(0)
            return lowest, lowest, 0.0
        if above == len(UTILIZATIONS) or utilization == UTILIZATIONS[above]:
            highest = self._tail(min(above, len(UTILIZATIONS) - 1))
            return highest, highest, 1.0
        below = UTILIZATIONS[above - 1]
        weight = (utilization - below) / (UTILIZATIONS[above] - below)
        return self._tail(above - 1), self._tail(above), weight

    def bound_value(self, observed: RateMeasurement, slowdown: float, confidence: float) -> tuple[float, float]:
        """Return the interval of the value at the rate of a measurement."""
        n = observed.n_calls / self.find_inflation(observed.rate_per_s, slowdown)
        return self.figure.bound(observed.value, n, confidence)


def choose_near(observed: Sequence[RateMeasurement], rate_per_s: float) -> list[RateMeasurement]:
    """Return the measurements near a rate."""
    return [
        measured
        for measured in observed
        if rate_per_s > 0 and abs(math.log(measured.rate_per_s / rate_per_s)) <= NEAR_LOG_RATE
    ]


def find_factors(means_ns: Sequence[float], sds_ns: Sequence[float], n_calls: Sequence[int]) -> tuple[float, ...]:
    """Return by which factors calls took longer than on average in parts of a measurement.

    The means of parts with few calls differ by chance. Their deviations are reduced so that their variance is what is
    left of it without that.

    Args:
        means_ns: Mean duration of the calls of each part.
        sds_ns: Standard deviation of the durations of each part.
        n_calls: Number of calls of each part.
    """
    means = np.asarray(means_ns, dtype=float)
    mean = float(np.average(means, weights=n_calls))
    variance = float(means.var(ddof=1)) if len(means) > 1 else 0.0
    if not variance:
        return (1.0,)
    by_chance = float(np.mean(np.square(sds_ns) / np.asarray(n_calls, dtype=float)))
    kept = math.sqrt(max(1 - by_chance / variance, 0.0))
    return tuple((1 + kept * (means / mean - 1)).tolist())


def group_factors(factors: Sequence[float], n_groups: int) -> tuple[float, ...]:
    """Return the means of so many groups of factors of equal size, from small to large.

    A factor may belong to several groups in part.
    """
    repeated = np.repeat(np.sort(factors), n_groups).reshape(n_groups, len(factors))
    return tuple(repeated.mean(axis=1).tolist())


def simplify_factors(factors: Sequence[float]) -> tuple[float, ...]:
    """Return the mean of factors, from small to large, if all are about equal, else the factors."""
    return tuple(factors) if factors[-1] > STEADY * factors[0] else (float(np.mean(factors)),)


def simplify_observations(observed: Sequence[RateMeasurement]) -> list[RateMeasurement]:
    """Return measurements with one factor where the speed was constant."""
    return [measured._replace(factors=simplify_factors(measured.factors)) for measured in observed]


def join_factors(observed: Sequence[RateMeasurement]) -> tuple[float, ...]:
    """Return the factors of some measurements together."""
    return simplify_factors(
        group_factors([factor for measured in observed for factor in measured.factors], MOST_FACTORS)
    )
