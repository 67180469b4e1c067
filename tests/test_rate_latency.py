"""Intervals of the latency of requests that wait for each other, on simulated queues whose percentiles are known."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from ortune import Load, Objective
from ortune.measure.clumps import Clumps, probability_of_at_most
from ortune.measure.interval import Interval, share_error
from ortune.planning.rate_latency import bound_utilization, find_moments, join_into_batches, summarize_rate
from ortune.queueing.theory import ConstantQueue, ExponentialQueue
from ortune.worker import Block, Memory
from ortune.workload.load import relaxation_services

MS = 1_000_000
N_STREAMS = 2
CONFIDENCE = share_error(2)
"""Launches of each sharing, and the confidence of a plan for two models."""

QUEUES: dict[str, type[ConstantQueue | ExponentialQueue]] = {"constant": ConstantQueue, "exponential": ExponentialQueue}


def simulate_waits(utilization: float, services: str, n: int, n_streams: int, seed: int = 0) -> NDArray[np.float64]:
    """Return the latencies of one server's requests in service times, by stream and order of arrival (Lindley)."""
    rng = np.random.default_rng(seed)
    n_skipped = math.ceil(4 * relaxation_services(utilization, 2.0 if services == "exponential" else 1.0)) + 20
    found = np.empty((n, n_streams))
    waits = np.zeros(n_streams)
    for number in range(-n_skipped, n):
        own = rng.exponential(1.0, n_streams) if services == "exponential" else 1.0
        if number >= 0:
            found[number] = waits + own
        waits = np.maximum(waits + own - rng.exponential(1 / utilization, n_streams), 0.0)
    return found.T


def make_load(utilization: float) -> Load:
    """Return requests for one process whose calls take a millisecond."""
    return Load(scenario="server", rate_per_s=1000 * utilization)


def make_stream(
    latencies: NDArray[np.float64], utilization: float, n_blocks: int, services: str = "constant"
) -> list[Block]:
    """Return the blocks of a stream of requests whose calls take a millisecond."""
    return [
        Block(
            samples_ns=(own * MS).astype(np.int64),
            n_calls=len(own),
            wall_ns=int(len(own) / utilization * MS),
            service_ns=MS,
            service_sd_ns=MS if services == "exponential" else 0.0,
            cpu_ns=len(own) * MS,
            memory=Memory(steady_bytes=1, peak_bytes=1),
            foreign_share=0.0,
            contended=False,
        )
        for own in np.array_split(latencies, n_blocks)
    ]


def measure(
    utilization: float, services: str, per_block: int, n_blocks: int, figure: Objective, n_runs: int
) -> list[Interval]:
    """Return the latency that each of some measurements finds, in service times."""
    waits = simulate_waits(utilization, services, per_block * n_blocks, n_runs * N_STREAMS)
    load = make_load(utilization)
    found = []
    for run in range(n_runs):
        own = waits[N_STREAMS * run : N_STREAMS * (run + 1)]
        streams = [make_stream(stream_waits, utilization, n_blocks, services) for stream_waits in own]
        latency = summarize_rate(streams, load, figure, CONFIDENCE)
        ends = (latency.estimate / MS, latency.low / MS, latency.high / MS)
        found.append(Interval(estimate=ends[0], low=ends[1], high=ends[2], confidence=CONFIDENCE))
    return found


def share_of(found: list[Interval], *, kept: float = math.inf, broken: float = math.inf) -> float:
    """Return the share of measurements that say a bound is kept, or broken."""
    return float(
        np.mean([interval.low > broken if math.isfinite(broken) else interval.high <= kept for interval in found])
    )


@pytest.mark.parametrize(
    ("utilization", "services", "per_block", "n_blocks", "figure"),
    [
        (0.1, "constant", 8, 40, "p99"),
        (0.3, "exponential", 8, 40, "p99"),
        pytest.param(0.6, "constant", 8, 20, "p95", marks=pytest.mark.long),
        pytest.param(0.6, "constant", 8, 40, "p99", marks=pytest.mark.long),
        pytest.param(0.6, "exponential", 40, 20, "p90", marks=pytest.mark.long),
        pytest.param(0.8, "constant", 40, 40, "p99", marks=pytest.mark.long),
        (0.8, "constant", 20, 40, "mean"),
        (0.9, "constant", 40, 40, "p99"),
    ],
)
def test_bounds_are_rarely_kept_by_luck_and_clear_cases_are_decided(
    utilization: float, services: str, per_block: int, n_blocks: int, figure: Objective
) -> None:
    """A queue that happens to stay short for the whole measurement is no proof that it always does."""
    queue = QUEUES[services](utilization)
    truth = queue.mean if figure == "mean" else queue.quantile(float(figure[1:]) / 100)
    found = measure(utilization, services, per_block, n_blocks, figure, 200)
    assert share_of(found, kept=truth) <= 1 - CONFIDENCE  # twice that of one side
    assert share_of(found, broken=truth) <= 1 - CONFIDENCE
    assert share_of(found, kept=2 * truth) >= 0.8
    assert share_of(found, broken=truth / 3) >= 0.8


@pytest.mark.parametrize(("utilization", "figure"), [(0.8, "p95"), (0.8, "p99"), (0.9, "p95")])
def test_too_few_requests_prove_nothing(utilization: float, figure: Objective) -> None:
    """The queue is long once or twice in so short a time, if at all."""
    truth = ConstantQueue(utilization).quantile(float(figure[1:]) / 100)
    found = measure(utilization, "constant", 8, 20, figure, 100)
    assert share_of(found, kept=truth) == share_of(found, broken=truth) == 0


def test_several_callers_and_processes() -> None:
    """A queue of each process, which two callers serve: the variation follows from the waits."""
    load = Load(scenario="server", rate_per_s=3200.0, clients=2, processes=2)
    blocks = make_stream(np.full(1000, 1 + ConstantQueue(0.8, 2).mean_wait), 0.8, 10)
    moments = find_moments([blocks], load)
    assert moments
    assert moments.utilization == pytest.approx(0.8)
    assert moments.service_ns == MS / 2
    assert moments.variation == 1.0
    assert moments.relaxation_ns == pytest.approx(MS / 2 * relaxation_services(0.8, 1.0))


def test_calls_that_vary_make_queues_longer() -> None:
    constant = find_moments([make_stream(np.ones(100), 0.5, 4)], make_load(0.5))
    varying = find_moments([make_stream(np.ones(100), 0.5, 4, "exponential")], make_load(0.5))
    assert constant
    assert varying
    assert varying.variation == pytest.approx(2 * constant.variation)
    assert varying.clumps.size > constant.clumps.size
    assert varying.clumps.decay_ns == pytest.approx(2 * MS)  # as in an M/M/1 queue: s / (1 - u)


def test_requests_that_arrive_too_fast() -> None:
    found = summarize_rate([make_stream(np.ones(100), 1.0, 4)], make_load(1.01), "p50", 0.95)
    assert math.isinf(found.estimate)


@pytest.mark.parametrize(("n_blocks", "duration_ms", "expected"), [(7, 25, [3, 4]), (7, 0, [1] * 7), (3, 99, [3])])
def test_blocks_are_joined_in_order(n_blocks: int, duration_ms: float, expected: list[int]) -> None:
    blocks = make_stream(np.arange(1.0, 10 * n_blocks + 1), 1.0, n_blocks)
    batches = join_into_batches(blocks, duration_ms * MS)
    assert [len(batch) for batch in batches] == expected
    assert [block for batch in batches for block in batch] == blocks
    assert join_into_batches([], 1.0) == []


def test_blocks_of_different_launches_are_not_joined() -> None:
    streams = [make_stream(np.ones(100), 0.5, 4), make_stream(np.full(100, 2.0), 0.5, 4)]
    found = summarize_rate(streams, make_load(0.5), "p50", 0.95, relaxation_ns=1e15)
    assert found.low == 0
    assert math.isinf(found.high)


def test_clumps_of_single_requests() -> None:
    """The probability that there is none is that of a Poisson distribution, and the total has its mean."""
    assert probability_of_at_most(0, 12.0, 4.0) == pytest.approx(math.exp(-3))
    rng = np.random.default_rng(0)
    totals = [rng.exponential(4.0, n).sum() for n in rng.poisson(3.0, 20_000)]
    assert probability_of_at_most(9, 12.0, 4.0) == pytest.approx(np.mean(np.array(totals) <= 9), abs=0.01)


def test_a_quantile_is_bounded_by_a_nearer_one_and_the_decay() -> None:
    """No request of 200 is above 1 ms. That bounds p90, and p99 is larger by the logarithm of 10 at most."""
    samples = np.full(200, MS)
    clumps = Clumps(size=4.0, decay_ns=3 * MS)
    assert clumps.bound_quantile(samples, 0.9, 0.025) == MS
    assert clumps.bound_quantile(samples, 0.99, 0.025) == pytest.approx((1 + 3 * math.log(10)) * MS)
    assert math.isinf(clumps.bound_quantile(samples[:100], 0.99, 0.025))


def test_many_callers_that_are_rarely_busy() -> None:
    """The probability that all of them are busy is too small for a floating-point number."""
    load = Load(scenario="server", rate_per_s=10.0, clients=256)
    moments = find_moments([make_stream(np.ones(100), 0.01, 4)], load)
    assert moments
    assert moments.variation == 1.0
    assert math.isfinite(summarize_rate([make_stream(np.ones(1000), 0.01, 40)], load, "p50", 0.95).estimate)


def test_a_limit_is_that_of_all_requests() -> None:
    """A third of the requests has an input that takes ten times as long."""
    streams = []
    for _ in range(4):
        blocks = make_stream(np.tile([1.0, 1.0, 10.0], 200), 0.3, 4)
        streams.append([msgspec.structs.replace(block, cases=np.arange(block.n_calls) % 3) for block in blocks])
    assert summarize_rate(streams, make_load(0.3), "p90", 0.95).estimate == pytest.approx(10 * MS)


def test_the_utilization_has_an_interval() -> None:
    streams = [make_stream(np.ones(100), 0.5, 4) for _ in range(2)]
    found = bound_utilization(streams, make_load(0.5), 0.95)
    assert found.low == pytest.approx(found.high)
    assert found.estimate == pytest.approx(0.5)
    assert bound_utilization([make_stream(np.ones(100), 0.5, 1)], make_load(0.5), 0.95).high == math.inf
