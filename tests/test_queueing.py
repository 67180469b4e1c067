"""Queues, batches, capacity and cost, compared with theory and with schedules computed by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.measure.interval import Interval
from ortune.queueing.batching import (
    BatchedQueue,
    make_batch_times,
    schedule_batches,
    simulate_batches,
)
from ortune.queueing.capacity import find_capacity, simulate_capacity
from ortune.queueing.cost import count_replicas, price_of_million
from ortune.queueing.queue_model import Dispatch, Queue
from ortune.queueing.replications import SimulatedLatencies
from ortune.queueing.services import ServiceTimes, make_services, resample
from ortune.queueing.simulation import serve, simulate
from ortune.queueing.single_server import find_single_server_waits
from ortune.queueing.theory import ConstantQueue, ExponentialQueue, KnownQueue, erlang_c, find_known_capacity
from ortune.workload.load import Arrivals
from tests.conftest import long_params
from tests.simulated import sojourn_times

MS = 1_000_000
THEORY: dict[str, Callable[[float, int], KnownQueue]] = {"exponential": ExponentialQueue, "constant": ConstantQueue}


def make_queue(services: str = "constant", n_servers: int = 1) -> Queue:
    return Queue(services=make_services(MS, services), clients=n_servers)  # type: ignore[arg-type]


# Theory


def test_erlang_c() -> None:
    """Values of the formula by hand: 1/3 for two servers at half load, and the utilization for one server."""
    assert erlang_c(0.7, 1) == pytest.approx(0.7)
    assert erlang_c(0.5, 2) == pytest.approx(1 / 3)


@pytest.mark.parametrize("utilization", [0.3, 0.7, 0.95])
def test_one_server_in_theory(utilization: float) -> None:
    """Pollaczek and Khinchine's mean wait, and the exponential latency of an M/M/1 queue."""
    assert ConstantQueue(utilization).mean_wait == pytest.approx(utilization / 2 / (1 - utilization))
    exponential = ExponentialQueue(utilization)
    assert exponential.mean_wait == pytest.approx(utilization / (1 - utilization))
    assert exponential.quantile(0.99) == pytest.approx(math.log(100) / (1 - utilization))


def test_constant_services_in_theory() -> None:
    """P(no wait) for one server is 1 - u; Crommelin's alternating sum gives the rest."""
    utilization = 0.6
    queue = ConstantQueue(utilization)
    assert queue.distribute(0) == pytest.approx(1 - utilization)
    for wait in (0.3, 1.0, 1.7, 4.2):
        terms = [
            (-utilization * (wait - k)) ** k / math.factorial(k) * math.exp(utilization * (wait - k))
            for k in range(int(wait) + 1)
        ]
        assert queue.distribute(wait) == pytest.approx((1 - utilization) * sum(terms))
    waits = np.linspace(0, 40, 4001)
    mean = np.trapezoid([1 - queue.distribute(wait) for wait in waits], waits)
    assert mean == pytest.approx(queue.mean_wait, rel=1e-4)


@pytest.mark.parametrize("n_servers", [2, 5])
def test_several_constant_servers_in_theory(n_servers: int) -> None:
    """The distribution of waits and the mean number of requests (Little) are computed in different ways."""
    queue = ConstantQueue(0.8, n_servers)
    waits = np.linspace(0, 15, 6001)
    mean = np.trapezoid([1 - queue.distribute(wait) for wait in waits], waits)
    assert mean == pytest.approx(queue.mean_wait, rel=1e-3)
    assert queue.distribute(queue.quantile_wait(0.9)) == pytest.approx(0.9)


# The simulation


@pytest.mark.parametrize("n_servers", [1, 2, 3, 8])
@pytest.mark.parametrize("constant", [False, True])
def test_the_recursion_serves_in_order_of_arrival(n_servers: int, constant: bool) -> None:
    rng = np.random.default_rng(n_servers)
    arrivals = np.cumsum(rng.exponential(1 / n_servers, (300, 4)), axis=0)
    services = np.full((300, 4), 0.9) if constant else rng.exponential(0.9, (300, 4))
    free = np.zeros((n_servers, 4))
    # In two parts, so that the second one continues the first.
    parts = [serve(arrivals[part], services[part], free, constant=constant) for part in (slice(0, 5), slice(5, None))]
    for column in range(4):
        expected = sojourn_times(arrivals[:, column], services[:, column], n_servers)
        assert np.concatenate(parts)[:, column] == pytest.approx(expected)


@pytest.mark.parametrize("services", ["exponential", "constant"])
@pytest.mark.parametrize("n_servers", [1, 4, *long_params(2, 8)])
@pytest.mark.parametrize("utilization", [0.3, 0.8, *long_params(0.6, 0.95)])
def test_the_simulation_matches_theory(services: str, n_servers: int, utilization: float) -> None:
    queue = make_queue(services, n_servers)
    found = simulate(queue, utilization * queue.highest_per_s, relative_error=0.016, seed=3)
    known = THEORY[services](utilization, n_servers)
    assert found.mean().estimate / MS == pytest.approx(known.mean, rel=0.01)
    for point in (50, 90, 99):
        interval = found.percentile(point)
        assert interval.estimate / MS == pytest.approx(known.quantile(point / 100), rel=0.02)
        error = (interval.high - interval.low) / 2 / 1.96
        assert error < 0.016 * interval.estimate


@pytest.mark.parametrize("services", ["exponential", "constant"])
@pytest.mark.parametrize("n_servers", [1, 4, *long_params(2, 8)])
@pytest.mark.parametrize("utilization", [0.8, *long_params(0.3, 0.6, 0.95)])
def test_the_waits_match_theory(services: str, n_servers: int, utilization: float) -> None:
    """At a low utilization waits are rare, so that more requests are needed."""
    queue = make_queue(services, n_servers)
    known = THEORY[services](utilization, n_servers)
    error = 0.016 if utilization > 0.7 else 0.0025
    found = simulate(queue, utilization * queue.highest_per_s, relative_error=error, seed=4, only_waits=True)
    assert found.mean().estimate / MS == pytest.approx(known.mean_wait, rel=0.02)
    for point in (50, 90, 99):
        expected = known.quantile_wait(point / 100)
        assert found.percentile(point).estimate / MS == pytest.approx(expected, rel=0.02, abs=1e-9)


def test_intervals_contain_the_truth() -> None:
    """Over 40 seeds, 95 % intervals of mean and p99; at least 34 of 40 with a probability of 99.8 %."""
    covered = {"mean": 0, "p99": 0}
    for services, n_servers, seed in itertools.product(THEORY, (1, 3), range(10)):
        queue = make_queue(services, n_servers)
        known = THEORY[services](0.7, n_servers)
        found = simulate(queue, 0.7 * queue.highest_per_s, relative_error=0.03, seed=seed)
        for name, interval, truth in (
            ("mean", found.mean(), known.mean),
            ("p99", found.percentile(99), known.quantile(0.99)),
        ):
            covered[name] += interval.low <= truth * MS <= interval.high
    assert min(covered.values()) >= 34


def test_controls_make_the_simulation_precise() -> None:
    queue = make_queue("exponential", 2)
    found = simulate(queue, 0.8 * queue.highest_per_s, relative_error=0.03, seed=1)
    plain = SimulatedLatencies(found.values_ns)

    def width(latencies: SimulatedLatencies) -> float:
        return latencies.percentile(99).high - latencies.percentile(99).low

    assert width(found) < width(plain) / 4


@pytest.mark.parametrize("dispatch", ["common", "round-robin", "random"])
@pytest.mark.parametrize("arrivals", ["poisson", "periodic"])
def test_separate_queues_are_like_one_of_them(dispatch: Dispatch, arrivals: Arrivals) -> None:
    """Two processes of two clients each, simulated request by request over all processes."""
    services = resample([0.5 * MS, MS, 3 * MS])
    queue = Queue(services=services, processes=2, clients=2, arrivals=arrivals, dispatch=dispatch)
    rate = 0.75 * queue.highest_per_s
    rng = np.random.default_rng(5)
    n = 60_000
    due = np.cumsum(rng.exponential(1e9 / rate, n)) if arrivals == "poisson" else np.arange(n) * 1e9 / rate
    durations = services.draw(rng, (n,))
    process = {"common": np.zeros(n), "round-robin": np.arange(n) % 2, "random": rng.integers(0, 2, n)}[dispatch]
    sojourns = np.concatenate(
        [
            sojourn_times(due[process == number], durations[process == number], queue.servers_of_queue)
            for number in range(queue.n_queues)
        ]
    )
    found = simulate(queue, rate, relative_error=0.03, seed=2)
    assert found.mean().estimate == pytest.approx(sojourns.mean(), rel=0.03)
    assert found.percentile(90).estimate == pytest.approx(np.quantile(sojourns, 0.9), rel=0.04)


def test_periodic_arrivals_at_constant_services_never_wait() -> None:
    queue = Queue(services=make_services(MS), processes=3, arrivals="periodic")
    found = simulate(queue, 0.97 * queue.highest_per_s, relative_error=0.1)
    assert found.mean().estimate == pytest.approx(MS)
    assert found.percentile(99.9).estimate == pytest.approx(MS)


def test_the_same_seed_gives_the_same_latencies() -> None:
    queue = make_queue("exponential", 2)
    first, second, other = (simulate(queue, 500, relative_error=0.1, seed=seed).mean() for seed in (1, 1, 2))
    assert first == second != other


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, 990.0, 2000.0, math.nan])
def test_a_queue_without_a_steady_state_is_not_simulated(rate_per_s: float) -> None:
    with pytest.raises(ValueError, match="utilization"):
        simulate(make_queue(), rate_per_s)


@pytest.mark.parametrize("services", ["exponential", "constant", "lognormal", "sample"])
@pytest.mark.parametrize("dispatch", ["common", "round-robin", "random"])
def test_waits_for_one_server_are_those_of_a_long_simulation(services: str, dispatch: Dispatch) -> None:
    times = {
        "lognormal": make_services(MS, "lognormal", 0.5),
        "sample": resample([0.2 * MS, 0.8 * MS, 0.8 * MS, 3 * MS]),
        "exponential": make_services(MS, "exponential"),
        "constant": make_services(MS),
    }[services]
    queue = Queue(services=times, processes=3, dispatch=dispatch)
    rate = 0.7 * queue.highest_per_s
    known = find_single_server_waits(queue, rate)
    assert known
    assert known.masses.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    shape = (4000, 200)
    due = np.cumsum(queue.draw_gaps(rng, shape) * 1e9 / rate, axis=0)
    drawn = times.draw(rng, shape) / queue.servers_of_queue
    waits = (serve(due, drawn, np.zeros((1, 200))) - drawn)[500:]
    assert known.mean_ns == pytest.approx(waits.mean(), rel=0.05)
    for share in (0.2, 0.02):
        threshold_ns, exceeding = known.find_threshold(share)
        assert exceeding == pytest.approx((waits > threshold_ns).mean(), rel=0.15)


@pytest.mark.parametrize(
    "services", [make_services(MS, "exponential"), make_services(MS, "lognormal", 2.0), resample([1.0, 2.0, 9.0])]
)
def test_services_have_their_mean_and_variation(services: ServiceTimes) -> None:
    drawn = services.draw(np.random.default_rng(0), (400_000,))
    assert drawn.mean() == pytest.approx(services.mean_ns, rel=0.01)
    assert drawn.var() / drawn.mean() ** 2 == pytest.approx(services.variation, rel=0.1)


@pytest.mark.parametrize("sample", [[], [0.0], [1.0, -1.0], [math.nan]])
def test_measured_services_must_be_positive(sample: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        resample(sample)


def test_estimates_of_replications_without_controls() -> None:
    values = np.arange(1.0, 1001.0).reshape(100, 10)
    latencies = SimulatedLatencies(values)
    assert latencies.mean().estimate == pytest.approx(500.5)
    assert [latencies.percentile(point).estimate for point in (1, 50, 90)] == pytest.approx([10, 500, 900], abs=1)


# Capacity

RANGE = {"lowest_per_s": 0.02, "highest_per_s": 1.2}


def mm1_p99(rate_per_s: float) -> float:
    return math.log(100) / (1 - rate_per_s) if rate_per_s < 1 else math.inf


def simulate_with_error(
    known: Callable[[float], float], error: float = 0.0, off: float = 0.0
) -> Callable[[float], Interval]:
    """Return a simulation that is off by the same number of standard errors at all rates."""

    def simulate_at(rate_per_s: float) -> Interval:
        latency = known(rate_per_s) * math.exp(off * error)
        low, high = (latency * math.exp(side * 1.96 * error) for side in (-1, 1))
        return Interval(estimate=latency, low=low, high=high, confidence=0.95)

    return simulate_at


@pytest.mark.parametrize("limit", [8.0, 20.0, 60.0])
@pytest.mark.parametrize("start", [0.02, 0.5, 1.2])
def test_the_rate_is_found_at_which_the_limit_is_reached(limit: float, start: float) -> None:
    mm1 = simulate_with_error(mm1_p99, 0.02)
    found = find_capacity(mm1, limit, **RANGE, start_per_s=start)
    truth = 1 - math.log(100) / limit
    assert found.bound == "latency"
    assert found.rate_per_s.estimate == pytest.approx(truth, rel=2e-3)
    assert mm1(found.rate_per_s.low).high == pytest.approx(limit, rel=0.02)
    assert mm1(found.rate_per_s.high).low == pytest.approx(limit, rel=0.02)
    assert found.n_measurements < 40


@pytest.mark.parametrize(("off", "is_contained"), [(-1.9, True), (1.9, True), (-2.3, False), (2.3, False)])
def test_the_interval_contains_the_truth_if_that_of_the_latency_does(off: float, *, is_contained: bool) -> None:
    found = find_capacity(simulate_with_error(mm1_p99, 0.02, off), 20.0, **RANGE, start_per_s=0.7).rate_per_s
    assert (found.low < 1 - math.log(100) / 20 < found.high) == is_contained


@pytest.mark.parametrize("services", ["exponential", "constant"])
@pytest.mark.parametrize(
    ("n_servers", "limit"),
    [(1, 12), pytest.param(8, 7, marks=pytest.mark.long), pytest.param(2, 8, marks=pytest.mark.long)],
)
def test_the_capacity_of_a_simulated_queue_matches_theory(services: str, n_servers: int, limit: float) -> None:
    queue = make_queue(services, n_servers)
    truth = find_known_capacity(THEORY[services], n_servers, 0.99, limit) * queue.highest_per_s
    found = simulate_capacity(queue, 99, limit * MS, relative_error=0.02, seed=1)
    assert found.bound == "latency"
    assert found.rate_per_s.estimate == pytest.approx(truth, rel=0.01)
    # Wider than the interval by a half, which is exceeded in 0.3 % of the cases.
    reach = 0.75 * (found.rate_per_s.high - found.rate_per_s.low)
    assert abs(found.rate_per_s.estimate - truth) < reach + 1e-4 * truth


def test_no_rate_keeps_a_limit_below_the_service_time() -> None:
    found = simulate_capacity(make_queue(), 99, 0.9 * MS, relative_error=0.1)
    assert found.bound == "lowest rate"
    assert (found.rate_per_s.estimate, found.rate_per_s.low) == (0, 0)
    assert found.rate_per_s.high == pytest.approx(0.02 * 1000)


@pytest.mark.parametrize("limit", [2.24, 2.36, 2.46])
def test_calls_alone_take_a_little_too_long(limit: float) -> None:
    """The latencies are those of a simulated queue with durations that vary as those of a model do."""
    rates = [8.0, 18.56, 36.33, 74.25, 106.7, 148.5, 176.3, 297.0, 594.0]
    latencies = [2.40, 2.476, 2.604, 2.869, 3.092, 3.416, 3.653, 4.729, 10.29]
    found = find_capacity(
        simulate_with_error(lambda rate: float(np.interp(rate, rates, latencies)), 0.02),
        limit,
        lowest_per_s=17.0,
        highest_per_s=831.0,
        start_per_s=594.0,
    )
    assert found.bound == "lowest rate"
    assert (found.rate_per_s.estimate, found.rate_per_s.low) == (0, 0)


def test_a_limit_may_be_kept_at_the_highest_rate() -> None:
    """With periodic arrivals and constant service times, no request waits below the rate at which the queue grows."""
    queue = Queue(services=make_services(MS), arrivals="periodic")
    found = simulate_capacity(queue, 99, 1.1 * MS, relative_error=0.1)
    assert found.bound == "highest rate"
    assert found.rate_per_s.low == found.rate_per_s.estimate == pytest.approx(980)
    assert math.isinf(found.rate_per_s.high)


@pytest.mark.parametrize(("latency", "bound"), [(1.0, "highest rate"), (100.0, "lowest rate")])
def test_bounds_of_the_range(latency: float, bound: str) -> None:
    found = find_capacity(
        simulate_with_error(lambda rate: latency, 0.1), 10, lowest_per_s=1, highest_per_s=100, start_per_s=70
    )
    assert found.bound == bound
    assert found.rate_per_s.low == found.rate_per_s.estimate


def test_bounds_of_the_range_that_are_not_clear() -> None:
    """The limit is within the interval of the latency there."""
    simulated = simulate_with_error(lambda rate: 1 + rate / 1000, 0.1)
    kept = find_capacity(simulated, 1.11, lowest_per_s=1, highest_per_s=100, start_per_s=70)
    assert kept.bound == "highest rate"
    assert kept.rate_per_s.low < kept.rate_per_s.estimate == 100
    broken = find_capacity(simulated, 0.99, lowest_per_s=1, highest_per_s=100, start_per_s=70)
    assert broken.bound == "lowest rate"
    assert broken.rate_per_s.estimate == 0
    assert broken.rate_per_s.high > 1


@settings(max_examples=60, deadline=None)
@given(
    levels=st.dictionaries(st.floats(1, 100), st.floats(0.01, 100) | st.just(math.inf), min_size=1, max_size=30),
    error=st.floats(0, 2),
    start=st.floats(1, 100),
)
def test_any_latencies_give_a_result(levels: dict[float, float], error: float, start: float) -> None:
    def look_up(rate: float) -> float:
        return levels[min(levels, key=lambda level: abs(level - rate))]

    found = find_capacity(
        simulate_with_error(look_up, error), 1, lowest_per_s=1, highest_per_s=100, start_per_s=start
    ).rate_per_s
    assert 0 <= found.low <= found.estimate <= found.high


@pytest.mark.parametrize(("lowest", "highest", "limit"), [(0, 1, 1), (2, 1, 1), (1, 2, 0), (1, math.inf, 1), (5, 9, 1)])
def test_a_search_without_a_range_is_refused(lowest: float, highest: float, limit: float) -> None:
    with pytest.raises(ValueError, match="rates from"):
        find_capacity(simulate_with_error(mm1_p99), limit, lowest_per_s=lowest, highest_per_s=highest, start_per_s=1)


# Batches


def latencies_of(queue: BatchedQueue, arrivals: list[int]) -> list[int]:
    due = np.array(arrivals)[:, None]
    return [int(latency) for latency in (schedule_batches(queue, due).end_of_requests() - due)[:, 0]]


TIMES = make_batch_times({1: 10, 2: 14, 4: 20})


def test_durations_between_measured_sizes() -> None:
    assert TIMES.table(4).tolist() == [0, 10, 14, 17, 20]
    noisy = make_batch_times({1: 10, 2: 9, 4: 20})
    assert noisy.table(4).tolist() == [0, 9.5, 9.5, 14.75, 20]
    with pytest.raises(ValueError, match="batches of 5 were not measured"):
        TIMES.table(5)
    for measured in ({}, {2: 1.0}, {1: 0.0}, {1: math.nan}):
        with pytest.raises(ValueError, match=r"size 1|positive"):
            make_batch_times(measured)


def test_schedules_by_hand() -> None:
    # Without a delay, the first request is served alone. Those that arrive meanwhile are the next batch.
    queue = BatchedQueue(times=TIMES, max_batch=4)
    assert latencies_of(queue, [0, 1, 2, 3, 30]) == [10, 10 + 17 - 1, 10 + 17 - 2, 10 + 17 - 3, 10]
    # With a delay of 5, the first batch waits for it, and is cut short if it is full before.
    queue = BatchedQueue(times=TIMES, max_batch=4, max_delay_ns=5)
    assert latencies_of(queue, [0, 4, 5, 6]) == [5 + 17, 1 + 17, 17, 22 - 6 + 10]
    assert latencies_of(queue, [0, 1, 2, 3, 40]) == [23, 22, 21, 20, 15]
    # A batch that waits for a server goes on growing.
    queue = BatchedQueue(times=TIMES, max_batch=2, max_delay_ns=1)
    assert latencies_of(queue, [0, 2, 9, 10]) == [11, 11 + 14 - 2, 11 + 14 - 9, 25 + 10 - 10]
    # Two servers, of which the second takes what comes while the first is busy.
    queue = BatchedQueue(times=TIMES, max_batch=2, n_servers=2)
    assert latencies_of(queue, [0, 1, 2, 3, 4]) == [10, 10, 10 + 14 - 2, 10 + 14 - 3, 11 + 10 - 4]


def test_sequences_are_independent() -> None:
    queue = BatchedQueue(times=TIMES, max_batch=3, max_delay_ns=4, n_servers=2)
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.integers(0, 9, (50, 5)), axis=0)
    together = schedule_batches(queue, arrivals).end_of_requests() - arrivals
    for column in range(5):
        assert together[:, column].tolist() == latencies_of(queue, arrivals[:, column].tolist())


@given(
    gaps=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    max_batch=st.integers(1, 4),
    delay=st.integers(0, 30),
    n_servers=st.integers(1, 3),
)
def test_every_request_is_in_one_batch(gaps: list[int], max_batch: int, delay: int, n_servers: int) -> None:
    queue = BatchedQueue(times=TIMES, max_batch=max_batch, max_delay_ns=delay, n_servers=n_servers)
    arrivals = np.cumsum(gaps)
    found = schedule_batches(queue, arrivals[:, None])
    sizes, starts, ends = found.sizes[:, 0], found.starts_ns[:, 0], found.ends_ns[:, 0]
    assert sizes.sum() == len(gaps)
    assert sizes.max() <= max_batch
    for first, size, start, end in zip(found.firsts[:, 0], sizes, starts, ends, strict=True):
        assert start >= arrivals[first + size - 1]
        assert end - start == round(TIMES.table(4)[size])
        # Nobody who was there when it started was left out of a batch with space.
        if size < max_batch and first + size < len(gaps):
            assert arrivals[first + size] > start
        # A batch that is not full waits for its delay or for a server.
        n_busy = int(((starts <= start) & (ends >= start) & (starts < end)).sum())
        assert size == max_batch or start >= arrivals[first] + delay
        assert n_busy >= 1
    for start in starts:
        assert ((starts <= start) & (ends > start)).sum() <= n_servers


@pytest.mark.parametrize("n_servers", [1, 3])
def test_batches_of_one_are_a_queue_without_batches(n_servers: int) -> None:
    queue = BatchedQueue(times=make_batch_times({1: MS}), max_batch=1, n_servers=n_servers)
    found = simulate_batches(queue, 0.7 * queue.highest_per_s, n_kept=6000)
    known = ConstantQueue(0.7, n_servers)
    assert found.latencies.mean().estimate / MS == pytest.approx(known.mean, rel=0.01)
    assert found.latencies.percentile(99).estimate / MS == pytest.approx(known.quantile(0.99), rel=0.02)
    assert found.utilization == pytest.approx(0.7, rel=0.01)
    assert found.mean_batch == 1


def test_durations_that_vary_are_a_queue_without_batches() -> None:
    times = make_batch_times({1: MS}, factors=(0.5, 1.5))
    found = simulate_batches(BatchedQueue(times=times, max_batch=1), 600, n_kept=4000)
    # Pollaczek and Khinchine, with a squared coefficient of variation of 0.25.
    assert found.latencies.mean().estimate / MS == pytest.approx(1 + 0.6 * 1.25 / 2 / 0.4, rel=0.02)


def test_periodic_arrivals_fill_batches() -> None:
    """Every ms a request, and batches of four that take 3 ms: the first one waits for 3 ms, the last one not at all."""
    times = make_batch_times({1: MS, 4: 3 * MS})
    queue = BatchedQueue(times=times, max_batch=4, max_delay_ns=10 * MS, arrivals="periodic")
    found = simulate_batches(queue, 1000)
    assert found.mean_batch == 4
    assert found.utilization == pytest.approx(0.75, rel=0.01)
    assert found.throughput_per_s == pytest.approx(1000, rel=0.01)
    values = [found.latencies.percentile(point).estimate / MS for point in (20, 40, 60, 90)]
    assert values == pytest.approx([3, 4, 5, 6], abs=1e-5)
    assert found.latencies.mean().estimate / MS == pytest.approx(4.5)


def test_a_delay_makes_batches_larger_and_light_loads_slower() -> None:
    times = make_batch_times({1: 1.0 * MS, 8: 2.0 * MS})
    queue = BatchedQueue(times=times, max_batch=8)
    without, with_delay = (
        simulate_batches(msgspec.structs.replace(queue, max_delay_ns=delay), 500) for delay in (0, 4 * MS)
    )
    assert with_delay.mean_batch > without.mean_batch
    assert with_delay.utilization < without.utilization
    assert with_delay.latencies.mean().estimate > without.latencies.mean().estimate


def test_batches_raise_the_highest_rate() -> None:
    queue = BatchedQueue(times=TIMES, max_batch=4, n_servers=2)
    assert queue.highest_per_s == pytest.approx(2 * 4 / 20e-9)
    with pytest.raises(ValueError, match="grows without bound"):
        simulate_batches(queue, queue.highest_per_s)


# Cost


@pytest.mark.parametrize(
    ("rate", "capacity", "headroom", "expected"),
    [(100, 50, 0, 2), (101, 50, 0, 3), (100, 50, 0.2, 3), (0, 50, 0, 1), (0.3, 0.1, 0, 3), (80, 100, 0.2, 1)],
)
def test_replicas(rate: float, capacity: float, headroom: float, expected: int) -> None:
    assert count_replicas(rate, capacity, headroom) == expected


def test_price() -> None:
    # 3,600,000 items per hour at 1,000 per second.
    assert price_of_million(0.36, 1000) == pytest.approx(0.1)
    assert price_of_million(0.36, 1000, n_replicas=3) == pytest.approx(0.3)


@pytest.mark.parametrize(("rate", "capacity", "headroom"), [(-1, 1, 0), (1, 0, 0), (1, 1, 1), (math.inf, 1, 0)])
def test_replicas_of_impossible_values(rate: float, capacity: float, headroom: float) -> None:
    with pytest.raises(ValueError, match="a rate of"):
        count_replicas(rate, capacity, headroom)
    with pytest.raises(ValueError, match="replicas at"):
        price_of_million(1, 0)
