"""Generates the load of a block: calls back to back, from several callers, or at a rate.

Each of the three generators first makes unmeasured calls, the lead-in. Then comes the window, without a pause. The
generators return what happened in the window. Between two calls they only read the clock and append to a list. What
takes longer is read before the lead-in and after the window. `run()` releases the interpreter lock, so that callers do
not wait for each other in Python.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortune.worker.block import BlockPlan
from ortune.worker.prctl import minimize_timer_slack
from ortune.workload import Load

S = TypeVar("S")
R = TypeVar("R")

EARLY_NS = 2_000_000
"""Time between the start of the callers and the first arrival."""


class Clock(Protocol):
    """A clock and its threads. Tests use a simulated one."""

    def now_ns(self) -> int:
        """Return the time of a monotonic clock."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep for this time."""

    def cpu_ns(self) -> int:
        """Return the CPU time of this process so far."""

    def start(self, target: Callable[[], None]) -> Callable[[], None]:
        """Start a thread that runs a function, and return a function that waits for its end."""


class RealClock:
    """The monotonic clock of this host."""

    now_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep for this time."""
        time.sleep(duration_ns / 1e9)

    def start(self, target: Callable[[], None]) -> Callable[[], None]:
        """Start a thread that runs a function, and return a function that waits for its end."""

        def run() -> None:
            minimize_timer_slack()
            target()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread.join


@dataclass(frozen=True, kw_only=True)
class Window(Generic[R]):
    """What happened in the window of a block.

    Attributes:
        latencies_ns: Latency of each call, from its start, or from its arrival where requests arrive at a rate.
        positions: Position of the sample of each call.
        service_ns: Mean duration of the calls from start to end.
        n_calls: Amount of work done in the window, in calls. Calls that overlap its ends count in part.
        wall_ns: Duration of the window.
        lead_in_ns: Duration of the lead-in.
        cpu_ns: CPU time of this process in the window.
        before: Result of `read` before the lead-in.
        after: Result of `read` after the window.
        cpu_between_ns: CPU time spent while no call was running, per call; None unless requests arrive at a rate.
    """

    latencies_ns: NDArray[np.int64]
    positions: NDArray[np.int64]
    service_ns: float
    n_calls: float
    wall_ns: int
    lead_in_ns: int
    cpu_ns: int
    before: R
    after: R
    cpu_between_ns: float | None = None


def generate_load(
    call: Callable[[S], Any],
    samples: Sequence[S],
    plan: BlockPlan,
    read: Callable[[], R],
    clock: Clock | None = None,
) -> Window[R]:
    """Generate the load of a plan, and return what happened in the window.

    Args:
        call: Makes one call with one sample.
        samples: Samples of the calls, used in turn. The plan's seed determines the first one.
        plan: The load, and for how long.
        read: Called before the lead-in and after the window.
        clock: The clock; None for the real one.

    Raises:
        Exception: Any exception that a call raises.
    """
    clock = clock or RealClock()
    if plan.load.scenario == "single-stream":
        return back_to_back(call, samples, plan, read, clock)
    if plan.load.scenario == "multi-client":
        return closed_loop(call, samples, plan, read, clock)
    return open_loop(call, samples, plan, read, clock)


def cycle_from(samples: Sequence[S], first: int) -> Iterator[S]:
    """Return an endless iterator over the samples that starts at this position."""
    first %= len(samples)
    return itertools.cycle([*samples[first:], *samples[:first]])


def back_to_back(
    call: Callable[[S], Any], samples: Sequence[S], plan: BlockPlan, read: Callable[[], R], clock: Clock
) -> Window[R]:
    """Make calls one after the other. The window ends with the first call that ends after its planned duration."""
    now = clock.now_ns
    sample = cycle_from(samples, plan.seed).__next__
    before = read()
    cpu_start, lead_in = clock.cpu_ns(), now()
    call(sample())
    # One reading of the clock is both the end of a call and the start of the next.
    stamps = [lead_in, now()]
    start, n_before = lead_in, 0
    if not is_hopeless(plan, stamps):
        n_before = 1
        while now() - lead_in < plan.lead_in_ns:
            call(sample())
            n_before += 1
        cpu_start, start = clock.cpu_ns(), now()
        stamps = [start]
        append = stamps.append
        end = start + plan.duration_ns
        for _ in range(plan.min_calls):
            call(sample())
            append(now())
        while stamps[-1] < end:
            call(sample())
            append(now())
    cpu_ns = clock.cpu_ns() - cpu_start
    after = read()
    times = np.asarray(stamps, dtype=np.int64)
    latencies = times[1:] - times[:-1]
    return Window(
        latencies_ns=latencies,
        positions=(plan.seed + n_before + np.arange(len(latencies))) % len(samples),
        service_ns=float(latencies.mean()),
        n_calls=float(len(latencies)),
        wall_ns=stamps[-1] - start,
        lead_in_ns=start - lead_in,
        cpu_ns=cpu_ns,
        before=before,
        after=after,
    )


def is_hopeless(plan: BlockPlan, stamps: Sequence[int]) -> bool:
    """Return whether the first call took so long that the block ends with it.

    Args:
        plan: How the block is measured.
        stamps: The start of the first call, and its end if it has ended.
    """
    return plan.give_up_ns is not None and len(stamps) > 1 and stamps[1] - stamps[0] > plan.give_up_ns


class Callers:
    """Threads that make calls. `join` raises the first exception of any of them."""

    def __init__(self, clock: Clock, targets: Sequence[Callable[[], None]]) -> None:
        self.error: BaseException | None = None
        self._joins = [clock.start(self._guard(target)) for target in targets]

    def _guard(self, target: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001  (`join` raises it again)
                self.error = self.error or error

        return run

    def join(self) -> None:
        """Wait for all threads to end.

        Raises:
            BaseException: The first exception that a thread raised.
        """
        for join in self._joins:
            join()
        if self.error:
            raise self.error


def closed_loop(
    call: Callable[[S], Any], samples: Sequence[S], plan: BlockPlan, read: Callable[[], R], clock: Clock
) -> Window[R]:
    """Let several callers make calls back to back. The window lies in the middle, while all of them are busy."""
    n_clients = plan.load.clients
    now = clock.now_ns
    stopping = False
    stamps: list[list[int]] = [[] for _ in range(n_clients)]
    firsts = [plan.seed + number * len(samples) // n_clients for number in range(n_clients)]

    def caller(number: int) -> Callable[[], None]:
        sample = cycle_from(samples, firsts[number]).__next__
        append = stamps[number].append

        def run() -> None:
            append(now())
            while not stopping:
                call(sample())
                append(now())

        return run

    before = read()
    lead_in = now()
    callers = Callers(clock, [caller(number) for number in range(n_clients)])

    def wait(duration_ns: int, n_calls: Callable[[int], int]) -> None:
        """Sleep for this time, and then until each caller has made `n_calls(number)` calls."""
        clock.sleep_ns(duration_ns)
        while not callers.error and any(len(each) < n_calls(number) for number, each in enumerate(stamps)):
            clock.sleep_ns(max(duration_ns // 10, 1_000_000))

    try:
        cpu_start, start = clock.cpu_ns(), lead_in
        wait(plan.lead_in_ns, lambda number: 2)
        if not any(is_hopeless(plan, each) for each in stamps):
            cpu_start, start = clock.cpu_ns(), now()
            n_before = [len(each) for each in stamps]
            wait(plan.duration_ns, lambda number: n_before[number] + plan.min_calls)
        end, cpu_end = now(), clock.cpu_ns()
        after = read()
    finally:
        stopping = True
        callers.join()
    starts = np.concatenate([np.asarray(each[:-1], dtype=np.int64) for each in stamps])
    ends = np.concatenate([np.asarray(each[1:], dtype=np.int64) for each in stamps])
    positions = np.concatenate(
        [(first + np.arange(len(each) - 1)) % len(samples) for first, each in zip(firsts, stamps, strict=True)]
    )
    is_inside = (ends > start) & (ends <= end)
    latencies = (ends - starts)[is_inside]
    return Window(
        latencies_ns=latencies,
        positions=positions[is_inside],
        service_ns=float(latencies.mean()),
        n_calls=work_within(starts, ends, start, end),
        wall_ns=end - start,
        lead_in_ns=start - lead_in,
        cpu_ns=cpu_end - cpu_start,
        before=before,
        after=after,
    )


def work_within(starts: NDArray[np.int64], ends: NDArray[np.int64], start: int, end: int) -> float:
    """Return the amount of work inside a window, in calls. A call that is half inside counts as one half.

    A count of whole calls would depend on the phase of the window by one call, which is several percent of a short
    block.
    """
    inside = np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0, None)
    return float((inside / np.maximum(ends - starts, 1)).sum())


def draw_arrivals(load: Load, window_start_ns: int, window_end_ns: int, seed: int) -> NDArray[np.int64]:
    """Return the arrival times of requests, from 0 to the end of the window, with at least one inside the window.

    The times between arrivals of a Poisson process are exponentially distributed. The same seed gives the same
    arrivals, so that two candidates can be measured under the same traffic.
    """
    assert load.rate_per_s is not None
    gap_ns = 1e9 / load.rate_per_s
    # Without an arrival in the window there would be nothing to measure. Blocks are planned long enough to avoid that.
    window_end_ns = max(window_end_ns, window_start_ns + int(gap_ns) + 1)
    if load.arrivals == "periodic":
        return np.arange(0.0, window_end_ns, gap_ns).astype(np.int64)
    for attempt in itertools.count():
        rng = np.random.default_rng([seed, attempt])
        n = int(window_end_ns / gap_ns)
        gaps = rng.exponential(gap_ns, n + 10 * int(n**0.5) + 20)
        arrivals = np.cumsum(gaps).astype(np.int64)
        arrivals = arrivals[arrivals < window_end_ns]
        if len(arrivals) and arrivals[-1] >= window_start_ns:
            return arrivals
    raise AssertionError("unreachable")


def open_loop(
    call: Callable[[S], Any], samples: Sequence[S], plan: BlockPlan, read: Callable[[], R], clock: Clock
) -> Window[R]:
    """Let requests arrive on schedule, whether or not earlier ones are done. Callers serve them in order of arrival.

    Latency counts from the scheduled arrival. It therefore includes the wait for a free caller, and the delay of a
    caller that wakes up late. Requests that still wait one window's duration after the end of the window are given up;
    their latency is the time that they have waited so far. That happens only if more requests arrive than can be
    served.
    """
    window_start, window_end = plan.lead_in_ns, plan.lead_in_ns + plan.duration_ns
    due = draw_arrivals(plan.load, window_start, window_end, plan.seed)
    window_end = max(window_end, int(due[-1]) + 1)
    n = len(due)
    now, cpu = clock.now_ns, clock.cpu_ns
    before = read()
    base = now() + EARLY_NS
    give_up = base + window_end + plan.duration_ns
    # For each request: its start and end, and the process's CPU time at both.
    marks: list[tuple[int, int, int, int] | None] = [None] * n
    take_number = itertools.count().__next__
    arrivals: list[int] = (due + base).tolist()

    def caller() -> None:
        while (number := take_number()) < n:
            arrival = arrivals[number]
            while (early := arrival - now()) > 0:
                clock.sleep_ns(early)
            cpu_start, start = cpu(), now()
            if start > give_up:
                return
            call(samples[(plan.seed + number) % len(samples)])
            marks[number] = (start, now(), cpu_start, cpu())

    callers = Callers(clock, [caller] * plan.load.clients)
    clock.sleep_ns(max(base + window_start - now(), 0))
    cpu_start, start = cpu(), now()
    clock.sleep_ns(max(base + window_end - now(), 0))
    end, cpu_end = now(), cpu()
    after = read()
    callers.join()
    numbers = np.flatnonzero(due >= window_start)
    done = [(number, mark) for number, mark in enumerate(marks) if mark is not None]
    starts = np.array([mark[0] for _, mark in done], dtype=np.int64)
    ends = np.array([mark[1] for _, mark in done], dtype=np.int64)
    finish = {number: mark[1] for number, mark in done}
    latencies = np.array([finish.get(int(number), give_up) - arrivals[number] for number in numbers], dtype=np.int64)
    return Window(
        latencies_ns=latencies,
        positions=(plan.seed + numbers) % len(samples),
        service_ns=float((ends - starts).mean()),
        # Avoids a division by zero if the only request is served at the very end of the window.
        n_calls=max(work_within(starts, ends, start, end), 0.5),
        wall_ns=end - start,
        lead_in_ns=start - base,
        cpu_ns=cpu_end - cpu_start,
        before=before,
        after=after,
        cpu_between_ns=cpu_between([mark for _, mark in done]),
    )


def cpu_between(marks: Sequence[tuple[int, int, int, int]]) -> float:
    """Return the CPU time spent while no call was running, divided by the number of calls.

    Args:
        marks: For each call: its start and end, and the process's CPU time at both.
    """
    spent = 0
    ordered = sorted(marks)
    if not ordered:
        return 0.0
    _, last_end, _, last_cpu = ordered[0]
    for start, end, cpu_start, cpu_end in ordered[1:]:
        if start >= last_end:
            spent += max(cpu_start - last_cpu, 0)
        if end > last_end:
            last_end, last_cpu = end, cpu_end
    return spent / len(ordered)
