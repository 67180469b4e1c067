"""The load generators on a simulated clock, compared with the theory of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.worker import BlockPlan
from ortune.worker.load_generator import cpu_between, draw_arrivals, generate_load, work_within
from ortune.workload import Load, make_load
from tests.simulated_clock import SimulatedClock
from tests.simulation import sojourn_times

MS = 1_000_000


def plan(
    load: Load, duration_ms: float = 1000, lead_in_ms: float = 100, seed: int = 7, min_calls: int = 2
) -> BlockPlan:
    return BlockPlan(
        load=load,
        duration_ns=int(duration_ms * MS),
        lead_in_ns=int(lead_in_ms * MS),
        min_calls=min_calls,
        seed=seed,
        deadline_s=10,
    )


def make_sleep_call(clock: SimulatedClock) -> Callable[[int], None]:
    """Return a call whose sample is its duration in nanoseconds."""
    return clock.sleep_ns


def make_reader(clock: SimulatedClock) -> Callable[[], int]:
    return clock.now_ns


@pytest.mark.parametrize("arrivals", ["poisson", "periodic"])
@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("mean_ms", [5, 18, 30])
def test_sojourn_times_match_a_queue(arrivals: str, clients: int, mean_ms: float) -> None:
    """50 requests per second, with service times for which the queue stays short, gets long, or grows without bound."""
    load = make_load(clients=clients, rate_per_s=50, arrivals=arrivals)
    block = plan(load)
    services = [int(value) for value in np.random.default_rng(1).exponential(mean_ms * MS, 400)]
    clock = SimulatedClock()
    window = generate_load(make_sleep_call(clock), services, block, make_reader(clock), clock)
    due = draw_arrivals(load, block.lead_in_ns, block.lead_in_ns + block.duration_ns, block.seed)
    order = [services[(block.seed + number) % len(services)] for number in range(len(due))]
    expected = sojourn_times(due, np.array(order), clients)
    # Requests that still wait one window's duration after the end of the window are given up.
    patience = block.lead_in_ns + 2 * block.duration_ns - due
    waits = expected - order
    expected = np.where(waits <= patience, expected, patience)[due >= block.lead_in_ns]
    assert window.latencies_ns.tolist() == pytest.approx(expected.tolist(), abs=2)


def test_requests_that_are_given_up_count() -> None:
    load = make_load(rate_per_s=100, arrivals="periodic")
    clock = SimulatedClock()
    window = generate_load(
        make_sleep_call(clock), [40 * MS], plan(load, duration_ms=1000, lead_in_ms=0), make_reader(clock), clock
    )
    # 100 requests arrive. For two seconds, 25 per second are served.
    assert len(window.latencies_ns) == 100
    assert window.service_ns == 40 * MS
    assert window.latencies_ns.max() > 1000 * MS
    assert window.n_calls == pytest.approx(25, abs=0.1)
    assert clock.now_ns() < 2200 * MS


def test_free_callers_wait_for_the_next_arrival() -> None:
    load = make_load(rate_per_s=10, arrivals="periodic")
    clock = SimulatedClock()
    window = generate_load(make_sleep_call(clock), [3 * MS], plan(load), make_reader(clock), clock)
    assert set(window.latencies_ns.tolist()) == {3 * MS}
    assert window.wall_ns == 1000 * MS
    assert window.n_calls == pytest.approx(10)


@pytest.mark.parametrize("clients", [2, 5])
def test_closed_loop_keeps_all_callers_busy(clients: int) -> None:
    clock = SimulatedClock()
    window = generate_load(
        make_sleep_call(clock), [7 * MS], plan(make_load(clients=clients)), make_reader(clock), clock
    )
    assert window.wall_ns == 1000 * MS
    assert window.n_calls == pytest.approx(clients * 1000 / 7)
    assert set(window.latencies_ns.tolist()) == {7 * MS}
    assert window.cpu_ns == window.wall_ns


def test_closed_loop_waits_for_slow_callers() -> None:
    clock = SimulatedClock()
    window = generate_load(
        make_sleep_call(clock), [5000 * MS], plan(make_load(clients=2), min_calls=2), make_reader(clock), clock
    )
    assert len(window.latencies_ns) >= 4
    assert window.n_calls / window.wall_ns == pytest.approx(2 / (5000 * MS))


def test_back_to_back() -> None:
    clock = SimulatedClock()
    window = generate_load(make_sleep_call(clock), [30 * MS], plan(Load()), make_reader(clock), clock)
    assert window.lead_in_ns == 120 * MS
    assert window.wall_ns == 1020 * MS
    assert window.latencies_ns.tolist() == [30 * MS] * 34
    assert window.cpu_between_ns is None


@pytest.mark.parametrize(("load", "n_calls"), [(Load(), 1), (make_load(clients=2), 2)])
def test_a_block_ends_with_its_first_call_if_that_is_hopeless(load: Load, n_calls: int) -> None:
    block = msgspec.structs.replace(plan(load), give_up_ns=2000 * MS)
    clock = SimulatedClock()
    window = generate_load(make_sleep_call(clock), [6000 * MS], block, make_reader(clock), clock)
    assert set(window.latencies_ns.tolist()) == {6000 * MS}
    assert window.n_calls == pytest.approx(n_calls, rel=0.01)
    assert window.cpu_ns == window.wall_ns
    assert clock.now_ns() < 12_100 * MS  # callers finish the calls that they are in
    clock = SimulatedClock()
    window = generate_load(make_sleep_call(clock), [1900 * MS], block, make_reader(clock), clock)
    assert len(window.latencies_ns) >= 2 * n_calls


@pytest.mark.parametrize("load", [Load(), make_load(clients=3), make_load(clients=2, rate_per_s=40)])
def test_positions_are_those_of_the_samples(load: Load) -> None:
    clock = SimulatedClock()
    services = [2 * MS, 3 * MS, 5 * MS, 7 * MS]
    window = generate_load(make_sleep_call(clock), services, plan(load), make_reader(clock), clock)
    assert len(set(window.positions.tolist())) == 4
    if load.scenario != "server":
        assert [services[position] for position in window.positions] == window.latencies_ns.tolist()


@pytest.mark.parametrize("load", [Load(), make_load(clients=3), make_load(clients=2, rate_per_s=40)])
def test_reading_takes_no_time_of_the_lead_in_or_the_window(load: Load) -> None:
    """Caches would get cold in between, and CPU time of reading would count as that of calls."""
    clock = SimulatedClock()
    events: list[str] = []

    def call(duration_ns: int) -> None:
        events.append("call")
        clock.sleep_ns(duration_ns)

    def read() -> int:
        events.append("read")
        clock.sleep_ns(50 * MS)
        return clock.now_ns()

    block = plan(load, duration_ms=1000, lead_in_ms=100)
    window = generate_load(call, [10 * MS], block, read, clock)
    assert events[0] == "read"
    assert events.count("read") == 2
    assert events.index("read", 1) - 1 >= len(window.latencies_ns)
    assert window.lead_in_ns == 100 * MS
    assert window.wall_ns == window.cpu_ns == pytest.approx(1000 * MS, abs=25 * MS)


@pytest.mark.parametrize("load", [Load(), make_load(clients=3), make_load(clients=2, rate_per_s=40)])
def test_exception_of_a_call_is_raised(load: Load) -> None:
    clock = SimulatedClock()
    n_calls = 0

    def call(sample: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        clock.sleep_ns(MS)
        if n_calls > 20:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        generate_load(call, [0], plan(load), make_reader(clock), clock)


def test_the_real_clock() -> None:
    """With threads that really sleep. Times depend on the host, so that only the calls are counted."""
    import time

    calls: list[float] = []
    for load in (Load(), make_load(clients=2), make_load(rate_per_s=200)):
        calls.clear()
        window = generate_load(
            lambda sample: calls.append(sample) or time.sleep(sample),  # type: ignore[func-returns-value]
            [0.001],
            plan(load, duration_ms=60, lead_in_ms=10),
            time.process_time_ns,
        )
        assert 0 < len(window.latencies_ns) <= len(calls)
        assert window.latencies_ns.min() >= MS


@given(
    rate=st.floats(0.5, 2000), start=st.integers(0, 10**9), length=st.integers(1, 10**9), seed=st.integers(0, 2**31 - 1)
)
def test_arrivals_are_sorted_and_reproducible(rate: float, start: int, length: int, seed: int) -> None:
    for arrivals in ("poisson", "periodic"):
        load = make_load(rate_per_s=round(rate, 6), arrivals=arrivals)
        due = draw_arrivals(load, start, start + length, seed)
        assert (np.diff(due) >= 0).all()
        assert due[-1] >= start
        assert (due == draw_arrivals(load, start, start + length, seed)).all()


def test_poisson_arrivals_have_exponential_gaps_and_the_given_rate() -> None:
    due = draw_arrivals(make_load(rate_per_s=100), 0, 200 * 10**9, 3)
    gaps = np.diff(due)
    assert len(due) / 200 == pytest.approx(100, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.05)


def test_work_within_counts_parts_of_calls() -> None:
    starts, ends = np.array([0, 10, 20]), np.array([10, 20, 30])
    assert work_within(starts, ends, 5, 25) == pytest.approx(2.0)
    assert work_within(starts, ends, 100, 200) == 0


def test_cpu_between_calls() -> None:
    # Two overlapping calls, a gap with 30 ns of CPU time, and one more call.
    marks = [(0, 10, 0, 8), (5, 20, 4, 15), (100, 110, 45, 50)]
    assert cpu_between(marks) == pytest.approx(30 / 3)
    assert cpu_between(marks[:1]) == 0
    assert cpu_between([]) == 0
