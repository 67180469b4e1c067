"""The capacity of a live system, on simulated queues with known capacities."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest

from ortune import Deployment
from ortune.planning.capacity import make_rate_model
from ortune.planning.measured_capacity import CapacityMeasurement
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.result import Estimate
from ortune.queueing.batching import BatchedQueue, make_batch_times
from ortune.queueing.capacity import Capacity
from ortune.queueing.limited_figures import Utilization, limit_figure
from ortune.queueing.live_capacity import (
    ENOUGH_NEAR,
    MEASUREMENT_RELAXATIONS,
    MOST_RATE_REPEATS,
    find_joint_capacity,
    find_live_capacity,
)
from ortune.queueing.queue_model import Queue
from ortune.queueing.rate_model import RateMeasurement, RateModel, find_factors, group_factors, join_factors
from ortune.queueing.services import make_services
from ortune.queueing.tails import simulate_batched_tail, simulate_tail
from ortune.queueing.theory import ConstantQueue, ExponentialQueue, KnownQueue, find_known_capacity
from ortune.worker import Block
from ortune.worker.block import Memory
from ortune.workload import parse_limit
from tests.plans import make_estimate, make_row
from tests.simulated import sojourn_times

MS = 1_000_000
SERVICE_NS = 10 * MS
N_SERVERS = 2
HIGHEST_PER_S = N_SERVERS * 1e9 / SERVICE_NS


def draw_constant(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.full(n, float(SERVICE_NS))


def draw_exponential(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.exponential(SERVICE_NS, n)


@functools.cache
def make_model(draw: Callable[[np.random.Generator, int], np.ndarray], target: str) -> RateModel:
    samples = draw(np.random.default_rng(0), 2000).astype(np.int64)
    return make_rate_model(Deployment(clients=N_SERVERS), samples, parse_limit(target), seed=0)


class Live:
    """A live system: two servers, whose calls take longer than was measured by a factor.

    Args:
        draw: Draws durations of calls.
        target: The target, such as "p90<40ms".
        slowdown: The factor.
        seed: Seed of the arrivals and of the durations.
    """

    def __init__(
        self,
        draw: Callable[[np.random.Generator, int], np.ndarray],
        target: str,
        *,
        slowdown: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.draw = draw
        self.limit = parse_limit(target)
        self.slowdown = slowdown
        self.rng = np.random.default_rng([seed, 1])
        self.model = make_model(draw, target)
        self.rates: list[float] = []

    def measure(self, rate_per_s: float, slowdown: float) -> RateMeasurement:
        self.rates.append(rate_per_s)
        least_s = MEASUREMENT_RELAXATIONS * self.model.find_relaxation_ns(rate_per_s, slowdown) / 1e9
        n = max(1000, round(least_s * rate_per_s))
        n_warm_up = n // 2
        arrivals = np.cumsum(self.rng.exponential(1e9 / rate_per_s, n + n_warm_up))
        services = self.slowdown * self.draw(self.rng, n + n_warm_up)
        latencies = sojourn_times(arrivals, services, N_SERVERS)[n_warm_up:]
        return self.model.observe(rate_per_s, latencies, float(services.mean()))

    def find(self, start_per_s: float = 140.0, highest_per_s: float = 0.97 * HIGHEST_PER_S, most: int = 10) -> Capacity:
        return find_live_capacity(
            self.measure,
            self.model,
            lowest_per_s=2.0,
            highest_per_s=highest_per_s,
            start_per_s=start_per_s,
            most_measurements=most,
        )


CASES = [
    pytest.param(draw_constant, ConstantQueue, 0.9, "p90<30ms", 1.0, id="constant, p90"),
    pytest.param(
        draw_constant, ConstantQueue, 0.9, "p90<30ms", 1.3, id="slower than was measured", marks=pytest.mark.long
    ),
    pytest.param(draw_constant, ConstantQueue, 0.9, "p90<30ms", 0.8, id="faster than was measured"),
    pytest.param(
        draw_exponential, ExponentialQueue, 0.99, "p99<100ms", 1.0, id="exponential, p99", marks=pytest.mark.long
    ),
    pytest.param(
        draw_exponential, ExponentialQueue, None, "mean<25ms", 1.0, id="exponential, mean", marks=pytest.mark.long
    ),
    pytest.param(draw_exponential, ExponentialQueue, None, "mean<30ms", 1.15, id="slower, mean"),
]


@pytest.mark.parametrize(("draw", "known", "share", "target", "slowdown"), CASES)
def test_the_capacity_is_found_without_bias(
    draw: Callable[[np.random.Generator, int], np.ndarray],
    known: Callable[[float, int], KnownQueue],
    share: float | None,
    target: str,
    slowdown: float,
) -> None:
    highest_per_s = 0.97 * HIGHEST_PER_S / slowdown
    found = [
        Live(draw, target, slowdown=slowdown, seed=seed).find(highest_per_s=highest_per_s).rate_per_s
        for seed in range(8)
    ]
    services = parse_limit(target).bound / SERVICE_NS / slowdown
    if share is None:
        # A mean latency of 2.5 calls, 1 / (1 - u^2) for two servers.
        truth = math.sqrt(1 - 1 / services) * HIGHEST_PER_S / slowdown
    else:
        truth = find_known_capacity(known, N_SERVERS, share, services) * HIGHEST_PER_S / slowdown
    errors = np.array([rate.estimate / truth - 1 for rate in found])
    assert abs(errors.mean()) < 0.025
    assert np.abs(errors).max() < 0.12
    # The share of such intervals is that of `python -m benchmarks.live_capacity`.
    assert sum(rate.low <= truth <= rate.high for rate in found) >= 5


def test_late_requests_of_slow_periods_count_in_full() -> None:
    """In a slow period, almost all requests are late. Their share over all time is that of all measurements."""
    model = make_model(draw_constant, "p90<30ms")
    rate = model.find_capacity(1.0)
    values = (0.02,) * 7 + (0.95,)
    fit = model.fit([RateMeasurement(rate, value, 50_000, float(SERVICE_NS)) for value in values])
    assert model.expect(rate, fit.slowdown) == pytest.approx(float(np.mean(values)), rel=0.05)


def test_a_host_that_is_slow_at_times_has_a_lower_capacity_than_its_mean_speed() -> None:
    model = make_model(draw_constant, "p90<30ms")
    factors = (0.9, 0.9, 0.9, 1.3)
    capacity = model.find_capacity(1.0, factors)
    assert capacity < 0.95 * model.find_capacity(1.0)
    assert model.expect_on_average(capacity, 1.0, factors) == pytest.approx(0.1, rel=0.01)
    seen = RateMeasurement(capacity, 0.1, 5000, float(SERVICE_NS), factors)
    assert model.fit([seen] * 4).rate_per_s == pytest.approx(capacity, rel=0.03)
    # It is not known how often the host is slow if only one of the measurements shows it. All count as much.
    steady = RateMeasurement(capacity, 0.02, 5000, 0.9 * SERVICE_NS)
    joined = join_factors(
        [seen._replace(factors=group_factors(factors, 5)), *[steady._replace(factors=(0.9,) * 5)] * 3]
    )
    assert np.mean(joined) == pytest.approx((1.0 + 3 * 0.9) / 4)
    wide, narrow = model.fit([seen, steady, steady, steady]), model.fit([seen] * 4)
    assert wide.high_per_s / wide.low_per_s > 1.2 * narrow.high_per_s / narrow.low_per_s


def test_factors_of_parts() -> None:
    """Means of a few calls differ by chance, which says nothing about the speed of the host."""
    rng = np.random.default_rng(0)
    calls = rng.normal(10.0, 2.0, (10, 20))
    by_chance = find_factors(calls.mean(axis=1).tolist(), calls.std(axis=1).tolist(), [20] * 10)
    assert max(by_chance) / min(by_chance) < 1.05
    slow = find_factors([10.0] * 8 + [14.0] * 2, [0.1] * 10, [20] * 10)
    assert max(slow) / min(slow) == pytest.approx(1.4, rel=0.01)
    assert find_factors([10.0], [1.0], [20]) == (1.0,)


def test_it_ends_when_the_interval_is_narrow() -> None:
    found = Live(draw_constant, "p90<30ms").find(most=100)
    interval = found.rate_per_s
    assert ENOUGH_NEAR <= found.n_measurements < 100
    assert interval.high - interval.low <= 0.1 * interval.estimate


def test_a_limit_that_is_kept_at_the_highest_rate() -> None:
    live = Live(draw_constant, "p90<30ms")
    found = live.find(start_per_s=90.0, highest_per_s=100.0)
    assert found.bound == "highest rate"
    assert found.rate_per_s.estimate == 100.0
    assert found.rate_per_s.high == math.inf
    assert found.n_measurements <= 1 + MOST_RATE_REPEATS


def test_calls_alone_that_take_longer_than_the_limit() -> None:
    live = Live(draw_constant, "p90<9ms")
    assert live.model.find_capacity(1.0) == 0
    found = live.find()
    assert found.bound == "lowest rate"
    assert found.rate_per_s.estimate == found.rate_per_s.low == 0
    assert found.rate_per_s.high == min(live.rates) == 2.0


def test_without_time_the_capacity_is_below_the_lowest_rate_at_which_the_limit_is_broken() -> None:
    live = Live(draw_constant, "p90<9ms")
    times = iter((True, True))

    def measure(rate_per_s: float, slowdown: float) -> RateMeasurement | None:
        return live.measure(rate_per_s, slowdown) if next(times, False) else None

    found = find_live_capacity(measure, live.model, lowest_per_s=2.0, highest_per_s=190.0, start_per_s=90.0)
    assert live.rates == pytest.approx([90.0, 30.0])
    assert found.rate_per_s.estimate == 0
    assert found.rate_per_s.high == pytest.approx(30.0)


def test_a_single_measurement_has_no_interval_but_what_it_shows_clearly() -> None:
    found = Live(draw_constant, "p90<30ms").find(start_per_s=60.0, most=1)
    interval = found.rate_per_s
    assert interval.low == pytest.approx(60.0)
    assert interval.low < interval.estimate
    assert interval.high == math.inf


def test_measurements_above_what_is_served_show_only_that_it_is_too_much() -> None:
    """How long the queue became within a short time says nothing about the capacity."""
    model = make_model(draw_exponential, "mean<30ms")
    truth = math.sqrt(1 - 1 / 2.6) * HIGHEST_PER_S / 1.15
    near = [
        RateMeasurement(truth * scale, model.expect(truth * scale, 1.15), 2000, 1.15e7) for scale in (0.97, 1.0, 1.03)
    ]
    for value in (1e8, 1.5e9):
        fit = model.fit([*near, RateMeasurement(185.0, value, 2000, 1.15e7)])
        assert fit.rate_per_s == pytest.approx(model.find_capacity(1.15), rel=0.01)
        assert fit.low_per_s < truth < fit.high_per_s


@functools.cache
def make_model_of_a_busy_host() -> RateModel:
    """Return what is expected after a few calls at full load took so long that the target seems to be out of reach."""
    samples = np.where(np.arange(2000) % 60, 10 * MS, 200 * MS)
    return make_rate_model(Deployment(clients=N_SERVERS), samples, parse_limit("p99<50ms"), seed=0)


def test_a_limit_that_is_kept_although_the_model_expects_that_it_is_not() -> None:
    """A few calls at full load took long, as the host was busy. Where requests arrive, none does."""
    model = make_model_of_a_busy_host()
    assert model.find_capacity(1.0) == 0
    rates = []

    def measure(rate_per_s: float, slowdown: float) -> RateMeasurement:
        rates.append(rate_per_s)
        return RateMeasurement(rate_per_s, 0.0, 20_000, 10.5e6)

    found = find_live_capacity(
        measure,
        model,
        lowest_per_s=2.0,
        highest_per_s=100.0,
        start_per_s=75.0,
    )
    assert found.bound == "highest rate"
    assert found.rate_per_s.estimate == 100.0
    assert min(rates) >= 75.0
    assert rates.count(100.0) == 1


def test_a_limit_that_is_kept_up_to_a_rate_that_the_model_cannot_expect() -> None:
    model = make_model_of_a_busy_host()
    found = find_live_capacity(
        lambda rate_per_s, slowdown: RateMeasurement(rate_per_s, 0.6 if rate_per_s >= 60 else 0.0, 20_000, 10.5e6),
        model,
        lowest_per_s=2.0,
        highest_per_s=100.0,
        start_per_s=75.0,
    )
    assert found.bound == "latency"
    assert 25 <= found.rate_per_s.low <= found.rate_per_s.estimate <= found.rate_per_s.high <= 75
    assert found.rate_per_s.low < 60 <= found.rate_per_s.high


def test_the_highest_rate_is_not_claimed_without_a_measurement_near_it() -> None:
    live = Live(draw_constant, "p90<30ms", slowdown=0.5)
    found = live.find(start_per_s=60.0, highest_per_s=190.0, most=1)
    assert found.bound == "latency"
    assert found.rate_per_s.low == pytest.approx(60.0)


@pytest.mark.parametrize(("n_calls", "is_clear"), [(2000, False), (2_000_000, True)])
def test_requests_that_are_not_independent_show_less(n_calls: int, is_clear: bool) -> None:
    """Ten relaxation times without a request above the limit happen by chance."""
    model = make_model(draw_exponential, "p99<100ms")
    assert model.find_inflation(185.0, 1.0) > 100
    _, high = model.bound_value(RateMeasurement(185.0, 0.0, n_calls), 1.0, 0.95)
    assert (high < 0.01) == is_clear


def test_a_capacity_far_below_the_expected_one() -> None:
    """A system that keeps the limit only at a tenth of the rate that the model expects."""
    live = Live(draw_constant, "p90<30ms")

    def measure(rate_per_s: float, slowdown: float) -> RateMeasurement:
        live.rates.append(rate_per_s)
        return RateMeasurement(rate_per_s, 0.02 if rate_per_s <= 15 else 0.6, 1000)

    found = find_live_capacity(
        measure, live.model, lowest_per_s=2.0, highest_per_s=190.0, start_per_s=150.0, most_measurements=20
    )
    assert found.rate_per_s.low <= 15 < found.rate_per_s.high
    assert found.rate_per_s.estimate == pytest.approx(15, rel=0.25)


@pytest.mark.parametrize("values", [(0.02, 0.2), (0.08, 0.12), (0.0, 0.3), (0.1, 0.1)])
@pytest.mark.parametrize("n", [2, 3, 6])
def test_more_requests_do_not_make_the_interval_wider(values: tuple[float, float], n: int) -> None:
    """Neither do measurements that differ make it narrower than those that agree."""
    model = make_model(draw_exponential, "p90<60ms")
    rate = model.find_capacity(1.0)
    widths = []
    for n_calls in (20, 200, 2000, 20_000, 200_000):
        observed = [RateMeasurement(rate, values[number % 2], n_calls, float(SERVICE_NS)) for number in range(n)]
        fit = model.fit(observed)
        widths.append(math.log(fit.high_per_s / fit.low_per_s))
    # The capacity itself differs a little, and the logarithm of its interval with it.
    assert all(wide >= 0.9 * narrow for wide, narrow in itertools.pairwise(widths))
    assert max(widths) < 1.2


def test_overload_alone_shows_no_capacity() -> None:
    model = make_model(draw_constant, "p90<30ms")
    fit = model.fit([RateMeasurement(rate, 1.0, 2000, float(SERVICE_NS)) for rate in (230.0, 240.0)])
    assert (fit.low_per_s, fit.high_per_s) == (0, math.inf)


def make_quick_model(point: float, limit_ns: float) -> RateModel:
    """Return what is expected of a system with twice as many servers."""
    queue = Queue(services=make_services(SERVICE_NS), clients=2 * N_SERVERS)
    return RateModel(
        functools.partial(simulate_tail, queue, point=point, seed=0),
        highest_per_s=queue.highest_per_s,
        service_ns=float(SERVICE_NS),
        figure=limit_figure(point, limit_ns),
    )


class TestSeveralParts:
    """Parts of a system that get more requests together, and are measured together."""

    @staticmethod
    def find(lives: Sequence[Live], highest_per_s: float = 0.97 * HIGHEST_PER_S, most: int = 12) -> Capacity:
        return find_joint_capacity(
            lambda rate_per_s, slowdowns: [
                live.measure(rate_per_s, slowdown) for live, slowdown in zip(lives, slowdowns, strict=True)
            ],
            [live.model for live in lives],
            lowest_per_s=2.0,
            highest_per_s=highest_per_s,
            start_per_s=120.0,
            most_measurements=most,
        )

    def test_the_first_that_misses_its_limit_decides(self) -> None:
        """The slower of two, which also has other calls."""
        truth = find_known_capacity(ConstantQueue, N_SERVERS, 0.9, 3.0 / 1.3) * HIGHEST_PER_S / 1.3
        found = [
            self.find(
                [
                    Live(draw_exponential, "p90<100ms", seed=seed),
                    Live(draw_constant, "p90<30ms", slowdown=1.3, seed=seed + 100),
                ]
            ).rate_per_s
            for seed in range(4)
        ]
        errors = np.array([rate.estimate / truth - 1 for rate in found])
        assert abs(errors.mean()) < 0.04
        assert np.abs(errors).max() < 0.12
        assert sum(rate.low <= truth <= rate.high for rate in found) >= 2
        assert all(rate.low > 0.7 * truth for rate in found)

    def test_what_is_little_known_of_another_makes_the_interval_wider(self) -> None:
        """It has few requests, and its limit is expected to be missed at a rate that is hardly higher."""
        live = Live(draw_constant, "p90<30ms")
        capacity = live.model.find_capacity(1.0)
        intervals = []
        for other in (make_model(draw_constant, "p90<300ms"), make_model(draw_constant, "p90<31ms")):
            seen = Live(draw_constant, "p90<30ms", seed=1)

            def measure(rate: float, slowdowns: Sequence[float], seen: Live = seen) -> list[RateMeasurement]:
                return [seen.measure(rate, slowdowns[0]), RateMeasurement(rate, 0.0, 4)]

            found = find_joint_capacity(
                measure,
                [live.model, other],
                lowest_per_s=2.0,
                highest_per_s=0.97 * HIGHEST_PER_S,
                start_per_s=capacity,
                most_measurements=6,
            )
            intervals.append(found.rate_per_s)
        far, near = intervals
        assert far.estimate == pytest.approx(capacity, rel=0.05)
        assert near.low < 0.9 * far.low

    def test_a_part_with_few_requests_that_never_exceeds_its_limit_does_not_keep_the_search_from_ending(self) -> None:
        """It is expected to keep it at rates twice as high, and its calls are as long as expected."""
        live = Live(draw_constant, "p90<30ms")
        other = make_quick_model(99, 400 * MS)

        def measure(rate: float, slowdowns: Sequence[float]) -> list[RateMeasurement]:
            return [live.measure(rate, slowdowns[0]), RateMeasurement(rate, 0.0, 100, float(SERVICE_NS))]

        found = find_joint_capacity(
            measure,
            [live.model, other],
            lowest_per_s=2.0,
            highest_per_s=0.97 * HIGHEST_PER_S,
            start_per_s=live.model.find_capacity(1.0),
            most_measurements=20,
        )
        assert found.n_measurements < 20
        assert found.rate_per_s.low > 0.85 * found.rate_per_s.estimate

    def test_a_part_that_is_busy_only_at_much_higher_rates_does_not_decide(self) -> None:
        """Also where calls of the other part are shorter than was measured, so that the capacity is higher."""
        slow = Live(draw_constant, "p90<30ms", slowdown=0.8)
        quick = make_quick_model(90, 90 * MS)
        truth = find_known_capacity(ConstantQueue, N_SERVERS, 0.9, 3.0 / 0.8) * HIGHEST_PER_S / 0.8
        found = find_joint_capacity(
            lambda rate, slowdowns: [slow.measure(rate, slowdowns[0]), RateMeasurement(rate, 0.0, 2000)],
            [slow.model, quick],
            lowest_per_s=2.0,
            highest_per_s=1.3 * HIGHEST_PER_S,
            start_per_s=slow.model.find_capacity(1.0),
            most_measurements=12,
        ).rate_per_s
        assert found.estimate == pytest.approx(truth, rel=0.06)
        assert found.low <= truth <= found.high

    def test_the_highest_rate_is_kept_only_if_all_parts_keep_it(self) -> None:
        quick, slow = Live(draw_constant, "p90<300ms"), Live(draw_constant, "p90<30ms")
        assert self.find([quick, quick], highest_per_s=150.0).bound == "highest rate"
        found = self.find([quick, slow], highest_per_s=185.0)
        assert found.bound == "latency"
        assert found.rate_per_s.estimate < 170

    def test_a_part_that_misses_its_limit_at_all_rates(self) -> None:
        found = self.find([Live(draw_constant, "p90<300ms"), Live(draw_constant, "p90<9ms")])
        assert found.bound == "lowest rate"
        assert found.rate_per_s.estimate == 0


@pytest.mark.parametrize("slowdown", [1.0, 1.25])
def test_without_a_limit_for_latencies_callers_are_almost_always_busy(slowdown: float) -> None:
    queue = Queue(services=make_services(SERVICE_NS), clients=N_SERVERS)
    model = RateModel(
        functools.partial(simulate_tail, queue, point=None, seed=0),
        highest_per_s=HIGHEST_PER_S,
        service_ns=float(SERVICE_NS),
        figure=Utilization(0.98),
    )

    def measure(rate_per_s: float, expected: float) -> RateMeasurement:
        return RateMeasurement(rate_per_s, rate_per_s * slowdown / HIGHEST_PER_S, 1000)

    found = find_live_capacity(
        measure, model, lowest_per_s=2.0, highest_per_s=1.1 * HIGHEST_PER_S, start_per_s=120.0, most_measurements=8
    )
    assert found.bound == "latency"
    assert found.rate_per_s.estimate == pytest.approx(0.98 * HIGHEST_PER_S / slowdown, rel=0.01)


def test_servers_that_are_slowed_down_may_be_busier_than_there_is_time_for() -> None:
    """Where others use the same cores, calls take longer, and the figure still grows with the rate."""
    figure = Utilization(0.98)
    values = [figure.extrapolate(1.3, 0.94, utilization) for utilization in (0.95, 1.0, 1.4, 3.0)]
    assert values == sorted(values)
    assert values[0] > 1.3


def make_batched_model(queue: BatchedQueue, limit_ns: float) -> RateModel:
    return RateModel(
        functools.partial(simulate_batched_tail, queue, point=90, seed=0),
        highest_per_s=queue.highest_per_s,
        service_ns=None,
        figure=limit_figure(90, limit_ns),
    )


def test_latencies_of_batches() -> None:
    """With more requests in each call, the capacity is higher, and requests exceed a limit together."""
    queue = BatchedQueue(times=make_batch_times({1: 10 * MS, 8: 30 * MS}), max_batch=8)
    model = make_batched_model(queue, 60 * MS)
    capacity = model.find_capacity(1.0)
    assert 100 < capacity < queue.highest_per_s
    assert model.expect(capacity, 1.0) == pytest.approx(0.1, rel=0.01)
    assert model.find_inflation(capacity, 1.0) > 2


def test_delays_of_batches_do_not_become_longer_when_calls_do() -> None:
    queue = BatchedQueue(times=make_batch_times({1: 10 * MS, 8: 20 * MS}), max_batch=8, max_delay_ns=30 * MS)
    model = make_batched_model(queue, 50 * MS)
    capacities = [model.find_capacity(slowdown) for slowdown in (1.0, 1.1, 1.3)]
    assert capacities[0] / capacities[1] == pytest.approx(1.1, rel=0.02)
    assert capacities[0] / capacities[2] == pytest.approx(1.3, rel=0.02)


def test_a_limit_that_no_queue_reaches() -> None:
    model = make_rate_model(Deployment(), np.full(100, 5000), parse_limit("mean<20s"), seed=0)
    assert model.find_capacity(1.0) == pytest.approx(200_000, rel=1e-3)


def test_shares_rise_with_the_rate_and_with_the_slowdown() -> None:
    model = Live(draw_exponential, "p90<40ms").model
    rates = np.linspace(1, 230, 30)
    for slowdown in (0.8, 1.0, 1.5):
        shares = [model.expect(rate, slowdown) for rate in rates]
        assert (np.diff(shares) >= -1e-3).all()
    assert model.expect(120, 1.2) > model.expect(120, 1.0) > model.expect(120, 0.9)


def test_the_tail_of_a_queue_is_that_of_theory() -> None:
    known = ExponentialQueue(0.8, N_SERVERS)
    queue = Queue(services=make_services(SERVICE_NS, "exponential"), clients=N_SERVERS)
    tail = simulate_tail(queue, 0.8, point=99, seed=0)
    for share in (0.5, 0.9, 0.99):
        assert tail.share_above(known.quantile(share) * SERVICE_NS) == pytest.approx(1 - share, rel=0.15)
    assert tail.mean_ns == pytest.approx(known.mean * SERVICE_NS, rel=0.05)


class FakeRunner:
    """Measures a live system as workers do, and counts the time that it takes.

    Args:
        live: The system.
        time_s: How long each measurement takes.
    """

    def __init__(self, live: Live, time_s: float) -> None:
        self.live = live
        self.time_s = time_s
        self.at_s = 0.0
        self.rates: list[float] = []

    def now_s(self) -> float:
        return self.at_s

    def find_rate_time_s(
        self, deployment: Deployment, rate_per_s: float, figure: str, *, least_s: float, warm_up_s: float
    ) -> float:
        return self.time_s

    def run_at_rate(
        self, deployment: Deployment, rate_per_s: float, figure: str, least_s: float
    ) -> tuple[list[Block], None]:
        self.at_s += self.time_s
        self.rates.append(rate_per_s)
        n = round(max(1000, least_s * rate_per_s))
        arrivals = np.cumsum(self.live.rng.exponential(1e9 / rate_per_s, n))
        services = self.live.slowdown * self.live.draw(self.live.rng, n)
        block = Block(
            samples_ns=sojourn_times(arrivals, services, N_SERVERS).astype(np.int64),
            n_calls=n,
            wall_ns=int(arrivals[-1]),
            service_ns=float(services.mean()),
            cpu_ns=n,
            memory=Memory(steady_bytes=1, peak_bytes=1),
            foreign_share=0.0,
            contended=False,
        )
        return [block], None


class TestCapacityMeasurement:
    """Within the time that a plan has for it."""

    @staticmethod
    def measure(
        runner: FakeRunner, *, predicted: float, throughput: float = HIGHEST_PER_S, end_s: float = 1000.0
    ) -> Estimate | None:
        capacity = make_estimate(predicted, source="predicted")
        row = make_row(Deployment(clients=N_SERVERS), throughput, capacity=capacity)
        measurement = CapacityMeasurement(cast("DeploymentRunner", runner), row, runner.live.model, runner.live.limit)
        return measurement.run(end_s, lambda n_done: None)

    def test_it_is_measured(self) -> None:
        runner = FakeRunner(Live(draw_constant, "p90<30ms"), 1.0)
        found = self.measure(runner, predicted=150.0)
        truth = find_known_capacity(ConstantQueue, N_SERVERS, 0.9, 3.0) * HIGHEST_PER_S
        assert found
        assert found.source == "measured"
        assert found.estimate == pytest.approx(truth, rel=0.1)
        assert found.n_measurements == len(runner.rates)

    def test_a_capacity_that_is_predicted_to_be_0_is_measured_from_half_of_the_throughput(self) -> None:
        runner = FakeRunner(Live(draw_constant, "p90<30ms"), 1.0)
        self.measure(runner, predicted=0.0, throughput=160.0)
        assert runner.rates[0] == 80.0

    def test_it_ends_in_time(self) -> None:
        runner = FakeRunner(Live(draw_exponential, "p99<100ms"), 10.0)
        self.measure(runner, predicted=150.0, end_s=65.0)
        assert runner.at_s == 60.0

    def test_few_measurements_do_not_replace_a_prediction_that_they_agree_with(self) -> None:
        runner = FakeRunner(Live(draw_constant, "p90<30ms"), 10.0)
        assert self.measure(runner, predicted=150.0, end_s=25.0) is None
        assert len(runner.rates) == 2

    def test_few_measurements_replace_a_prediction_that_they_contradict(self) -> None:
        runner = FakeRunner(Live(draw_constant, "p90<30ms", slowdown=2.0), 10.0)
        found = self.measure(runner, predicted=150.0, end_s=25.0)
        assert found
        assert found.estimate < 120
        assert found.high is None or found.high < 150
