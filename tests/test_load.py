"""The load generators on a simulated clock, compared with the theory of queues."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_clock import SimulatedClock
from ortune import Load
from ortune.worker import BlockPlan
from ortune.worker.load_generator import generate_load
from ortune.worker.open_loop import Mark, RequestStream, cpu_between, draw_arrivals, draw_positions, plan_warm_up
from ortune.worker.window import work_within
from ortune.workload import make_load
from tests.simulated import sojourn_times

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
    order = np.array(services)[draw_positions(len(due), len(services), block.seed)]
    sojourns = sojourn_times(due, order, clients)
    starts = due + sojourns - order
    expected = sojourns[(starts >= block.lead_in_ns) & (starts < block.lead_in_ns + block.duration_ns)]
    assert window.latencies_ns.tolist() == pytest.approx(expected.tolist(), abs=2)


def test_new_requests_get_the_same_samples_whatever_waits() -> None:
    """Two candidates are compared under the same traffic, also if one has a longer queue."""
    load = make_load(rate_per_s=50)

    def find_positions(service_ms: int) -> list[int]:
        """Return the positions of the samples of all calls of the second of two blocks."""
        stream, clock = RequestStream(load), SimulatedClock()
        for number in range(2):
            called: list[int] = []

            def call(position: int, called: list[int] = called) -> None:
                called.append(position)
                clock.sleep_ns(service_ms * MS)

            generate_load(call, range(100), plan(load, seed=number), make_reader(clock), clock, stream=stream)
        return called

    quick, slow = find_positions(1), find_positions(30)
    n_due = len(draw_arrivals(load, 100 * MS, 1100 * MS, 1))
    drawn = draw_positions(n_due, 100, 1).tolist()
    assert quick[1:] == drawn  # the first call comes before the stream
    n_waiting = next(n for n in range(1, len(slow)) if slow[n + 1 : n + 6] == drawn[:5])
    assert n_waiting > 3


@pytest.mark.parametrize("mean", [1.0, 1.5, 2.0, 6.0, 11.0, 13.0])
def test_as_many_requests_arrive_as_the_rate_says(mean: float) -> None:
    """Each window has at least one. Where few arrive, leaving out those without any would raise the rate."""
    load = make_load(rate_per_s=mean / 0.8)
    drawn = [draw_arrivals(load, 200 * MS, 1000 * MS, seed) for seed in range(4000)]
    inside = [arrivals[arrivals >= 200 * MS] for arrivals in drawn]
    assert min(map(len, inside)) >= 1
    error = 4 * math.sqrt(mean / 4000)
    assert np.mean([len(arrivals) for arrivals in inside]) == pytest.approx(mean, abs=max(error, 0.02))
    assert np.mean([len(arrivals) for arrivals in drawn]) == pytest.approx(1.25 * mean, abs=1.25 * max(error, 0.02))
    assert all((np.diff(arrivals) >= 0).all() for arrivals in drawn)
    assert np.mean(np.concatenate(inside)) == pytest.approx(600 * MS, rel=0.02)


def test_samples_of_requests_are_drawn_at_random() -> None:
    """If short and long calls alternated, as they do in turn, queues would be shorter than those of users."""
    clock = SimulatedClock()
    load = make_load(rate_per_s=50)
    window = generate_load(
        make_sleep_call(clock), [MS, 9 * MS], plan(load, duration_ms=20_000), make_reader(clock), clock
    )
    changes = np.mean(window.positions[1:] != window.positions[:-1])
    assert 0.4 < changes < 0.6
    assert 0.4 < window.positions.mean() < 0.6


@pytest.mark.parametrize("arrivals", ["poisson", "periodic"])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("service_ms", [5, 18, 30])
def test_the_stream_continues_from_block_to_block(arrivals: str, clients: int, service_ms: int) -> None:
    load = make_load(clients=clients, rate_per_s=50, arrivals=arrivals)
    stream, clock = RequestStream(load), SimulatedClock()
    due: list[int] = []
    measured: list[int] = []
    windows = []
    for number in range(6):
        block = plan(load, lead_in_ms=100, seed=number)
        window = generate_load(
            make_sleep_call(clock), [service_ms * MS], block, make_reader(clock), clock, stream=stream
        )
        begin, end = number * 1100 * MS, (number + 1) * 1100 * MS
        drawn = draw_arrivals(load, 100 * MS, 1100 * MS, number)
        due += [int(arrival) + begin for arrival in drawn] if arrivals == "poisson" else []
        windows.append((begin + 100 * MS, end))
        measured += window.latencies_ns.tolist()
        clock.sleep_ns(7919 * MS)  # the worker is suspended
    if arrivals == "periodic":
        due = list(range(0, 6 * 1100 * MS, 20 * MS))
    sojourns = sojourn_times(np.array(due), np.full(len(due), service_ms * MS), clients)
    starts = np.array(due) + sojourns - service_ms * MS
    inside = np.zeros(len(due), dtype=bool)
    for begin, end in windows:
        inside |= (starts >= begin) & (starts < end)
    assert measured == pytest.approx(sojourns[inside].tolist(), abs=10)


@pytest.mark.parametrize("load", [Load(), make_load(clients=3), make_load(clients=3, rate_per_s=50)], ids=str)
def test_the_own_time_of_each_call_is_that_of_its_latency(load: Load) -> None:
    """Each call lasts as long as its sample says. Half of it is the caller's."""
    clock, last = SimulatedClock(), threading.local()
    services = [number * MS for number in range(1, 30)]

    def call(duration_ns: int) -> None:
        clock.sleep_ns(duration_ns)
        last.own_ns = duration_ns // 2

    window = generate_load(call, services, plan(load), make_reader(clock), clock, own_ns=lambda: last.own_ns)
    assert window.own_ns is not None
    assert len(window.own_ns) == len(window.latencies_ns) > 20
    durations = [services[position] for position in window.positions]
    assert window.own_ns.tolist() == [duration // 2 for duration in durations]
    if load.rate_per_s is None:
        assert window.latencies_ns.tolist() == durations


def test_requests_that_were_not_served_wait_for_the_next_block() -> None:
    load = make_load(rate_per_s=100, arrivals="periodic")
    stream, clock = RequestStream(load), SimulatedClock()
    worst = 0
    for number in range(3):
        window = generate_load(
            make_sleep_call(clock),
            [40 * MS],
            plan(load, lead_in_ms=0, seed=number),
            make_reader(clock),
            clock,
            stream=stream,
        )
        # 100 requests arrive, and 25 are served.
        assert len(window.latencies_ns) == 25
        assert window.n_calls == pytest.approx(25, abs=0.1)
        assert window.latencies_ns.min() > worst
        worst = int(window.latencies_ns.max())
    assert worst > 2000 * MS
    assert clock.now_ns() < 3300 * MS


def test_the_first_block_warms_the_queue_up() -> None:
    load = make_load(rate_per_s=100)
    block = msgspec.structs.replace(plan(load), longest_warm_up_ns=10**10)
    stream, clock = RequestStream(load), SimulatedClock()
    lead_ins = [
        generate_load(make_sleep_call(clock), [9 * MS], block, make_reader(clock), clock, stream=stream).lead_in_ns
        for _ in range(2)
    ]
    # The relaxation time is 9 ms / 2 / (1 - sqrt(0.9))^2 = 1.7 s.
    assert 5000 * MS < lead_ins[0] < 6000 * MS
    assert 100 * MS <= lead_ins[1] < 130 * MS


@pytest.mark.parametrize(
    ("service_ms", "clients", "expected_ms"), [(1, 1, 3.2), (5, 1, 87.4), (10, 2, 87.4), (12, 1, 0), (9.99, 1, 5000)]
)
def test_the_warm_up_depends_on_service_time_and_utilization(
    service_ms: float, clients: int, expected_ms: float
) -> None:
    durations = np.full(8, int(service_ms * MS))
    load = make_load(rate_per_s=100, clients=clients)
    assert plan_warm_up(durations, load, 5000 * MS) / MS == pytest.approx(expected_ms, rel=0.03)


def test_free_callers_wait_for_the_next_arrival() -> None:
    load = make_load(rate_per_s=10, arrivals="periodic")
    clock = SimulatedClock()
    window = generate_load(make_sleep_call(clock), [3 * MS], plan(load), make_reader(clock), clock)
    assert set(window.latencies_ns.tolist()) == {3 * MS}
    assert window.wall_ns == 1000 * MS
    assert window.n_calls == pytest.approx(10)


class LateClock(SimulatedClock):
    """A simulated clock on a busy host, where the thread that created the clock wakes up late."""

    def __init__(self, late_ns: int) -> None:
        super().__init__()
        self._late_ns = late_ns
        self._thread = threading.current_thread()

    def sleep_ns(self, duration_ns: int) -> None:
        is_late = threading.current_thread() is self._thread and duration_ns > 0
        super().sleep_ns(duration_ns + (self._late_ns if is_late else 0))


@pytest.mark.parametrize("late_ms", [30, 700, 3000])
def test_the_window_does_not_move_where_its_thread_wakes_up_late(late_ms: int) -> None:
    load = make_load(rate_per_s=10, arrivals="periodic")
    stream, clock = RequestStream(load), LateClock(late_ms * MS)
    for number in range(2):
        window = generate_load(
            clock.sleep_ns, [3 * MS], plan(load, seed=number), make_reader(clock), clock, stream=stream
        )
        assert set(window.latencies_ns.tolist()) == {3 * MS}
        assert window.wall_ns == 1000 * MS
        assert window.n_calls == pytest.approx(10)
        assert window.cpu_ns == (window.wall_ns if late_ms < 1000 else 0)


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


def test_a_block_without_a_lead_in_measures_its_first_call() -> None:
    clock = SimulatedClock()
    block = plan(Load(), duration_ms=200, lead_in_ms=0, min_calls=1)
    window = generate_load(make_sleep_call(clock), [500 * MS], block, make_reader(clock), clock)
    assert window.latencies_ns.tolist() == [500 * MS]
    assert (window.lead_in_ns, window.wall_ns, clock.now_ns()) == (0, 500 * MS, 500 * MS)
    assert window.cpu_ns == window.wall_ns
    window = generate_load(make_sleep_call(clock), [150 * MS], block, make_reader(clock), clock)
    assert window.latencies_ns.tolist() == [150 * MS] * 2


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
    # At a rate, a call and 2 ms come before the stream goes on.
    assert window.lead_in_ns == (112 if load.rate_per_s else 100) * MS
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


def test_callers_that_wake_up_late() -> None:
    """Each free caller wakes up 1 ms late. A caller that has just been busy does not sleep."""

    class LateClock(SimulatedClock):
        def wait_ns(self, duration_ns: int) -> None:
            super().sleep_ns(duration_ns)

        def sleep_ns(self, duration_ns: int) -> None:
            super().sleep_ns(duration_ns + MS)

    clock = LateClock()
    load = Load(scenario="server", rate_per_s=120, arrivals="periodic")
    block_plan = BlockPlan(load=load, duration_ns=1000 * MS, lead_in_ns=0, min_calls=1, seed=0, deadline_s=60)
    window = RequestStream(load).measure(lambda _: clock.wait_ns(5 * MS), [0], block_plan, clock.now_ns, clock)
    assert window.late_ns is not None
    assert set(window.late_ns) == {MS}
    assert (window.latencies_ns - window.late_ns == 5 * MS).all()

    load = Load(scenario="server", rate_per_s=400, arrivals="periodic")
    block_plan = msgspec.structs.replace(block_plan, load=load)
    window = RequestStream(load).measure(lambda _: clock.wait_ns(5 * MS), [0], block_plan, clock.now_ns, clock)
    assert window.late_ns is not None
    assert set(window.late_ns[1:]) == {0}
    assert window.latencies_ns[-1] > 100 * MS


def test_cpu_between_calls() -> None:
    # Two overlapping calls, a gap with 30 ns of CPU time, and one more call.
    marks = [Mark(0, 0, 10, 0, 8), Mark(1, 5, 20, 4, 15), Mark(2, 100, 110, 45, 50)]
    assert cpu_between(marks) == pytest.approx(30 / 3)
    assert cpu_between(marks[:1]) == 0
    assert cpu_between([]) == 0
