"""Makes calls arrive as the load wants it: back to back, from several callers, or at a rate.

Each of the three generators calls without a measured lead-in first, then through a window whose CPU time is read at
both ends, and returns what happened in the window. Their own work between calls is a reading of the clock and an
append; `run()` releases the interpreter lock, so callers do not wait for each other in Python.
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
from ortune.worker.prctl import PR_SET_TIMERSLACK, prctl
from ortune.workload import Load

S = TypeVar("S")
R = TypeVar("R")

EARLY_NS = 2_000_000
"""Time before the first arrival in which all callers get ready."""


class Clock(Protocol):
    """The time. Tests put a simulated one in its place."""

    def now_ns(self) -> int:
        """Return the time on a clock that only goes forward."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Return after that time."""

    def cpu_ns(self) -> int:
        """Return the CPU time of this process."""

    def start(self, target: Callable[[], None]) -> Callable[[], None]:
        """Run a function in a thread of its own, and return a function that waits for its end."""


class RealClock:
    """The monotonic clock of this host."""

    now_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)

    def sleep_ns(self, duration_ns: int) -> None:
        """Return after that time."""
        time.sleep(duration_ns / 1e9)

    def start(self, target: Callable[[], None]) -> Callable[[], None]:
        """Run a function in a thread of its own."""

        def run() -> None:
            wake_on_time()
            target()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread.join


def wake_on_time() -> None:
    """Ask the kernel not to delay this thread's wake-ups: it may by 50 µs otherwise."""
    prctl(PR_SET_TIMERSLACK, 1)


@dataclass(frozen=True, kw_only=True)
class Window(Generic[R]):
    """What happened in the window of a block.

    Attributes:
        latencies_ns: Of each call that counts: from its start, or from its arrival where calls arrive at a rate.
        positions: Which sample each of them was fed with.
        service_ns: Mean duration of these calls from start to end.
        n_calls: Calls' worth of work done in the window; those that overlap its ends count in part.
        wall_ns: Its length.
        lead_in_ns: Time before it.
        before: What `read` returned at its start.
        after: What `read` returned at its end.
        cpu_between_ns: CPU time spent while no call was under way; None where calls follow each other at once.
    """

    latencies_ns: NDArray[np.int64]
    positions: NDArray[np.int64]
    service_ns: float
    n_calls: float
    wall_ns: int
    lead_in_ns: int
    before: R
    after: R
    cpu_between_ns: float | None = None


def generate_load(
    call: Callable[[S], Any],
    samples: Sequence[S],
    plan: BlockPlan,
    read: Callable[[bool], R],
    clock: Clock | None = None,
) -> Window[R]:
    """Put the load of a plan on a session.

    Args:
        call: Makes one call with one sample.
        samples: What calls are fed with, in turn; where the turn begins is drawn from the plan's seed.
        plan: How long, and with which load.
        read: Reads whatever is to be known at the window's start (given True) and at its end (given False).
        clock: The time.

    Raises:
        Exception: Whatever a call raises.
    """
    clock = clock or RealClock()
    if plan.load.scenario == "single-stream":
        return back_to_back(call, samples, plan, read, clock)
    if plan.load.scenario == "multi-client":
        return closed_loop(call, samples, plan, read, clock)
    return open_loop(call, samples, plan, read, clock)


def turn(samples: Sequence[S], first: int) -> Iterator[S]:
    """Return an endless iterator over the samples that begins at one of them."""
    first %= len(samples)
    return itertools.cycle([*samples[first:], *samples[:first]])


def back_to_back(
    call: Callable[[S], Any], samples: Sequence[S], plan: BlockPlan, read: Callable[[bool], R], clock: Clock
) -> Window[R]:
    """Call one after the other. The window ends with the first call that ends after its planned length."""
    now = clock.now_ns
    sample = turn(samples, plan.seed).__next__
    lead_in = now()
    call(sample())
    n_before = 1
    while now() - lead_in < plan.lead_in_ns:
        call(sample())
        n_before += 1
    before = read(True)
    # One reading of the clock between calls serves as the end of one and the start of the next.
    start = now()
    stamps = [start]
    append = stamps.append
    end = start + plan.duration_ns
    for _ in range(plan.min_calls):
        call(sample())
        append(now())
    while stamps[-1] < end:
        call(sample())
        append(now())
    after = read(False)
    times = np.asarray(stamps, dtype=np.int64)
    latencies = times[1:] - times[:-1]
    return Window(
        latencies_ns=latencies,
        positions=(plan.seed + n_before + np.arange(len(latencies))) % len(samples),
        service_ns=float(latencies.mean()),
        n_calls=float(len(latencies)),
        wall_ns=stamps[-1] - start,
        lead_in_ns=start - lead_in,
        before=before,
        after=after,
    )


class Callers:
    """Threads that call. What one of them raises is raised where they are waited for."""

    def __init__(self, clock: Clock, targets: Sequence[Callable[[], None]]) -> None:
        self.error: BaseException | None = None
        self._joins = [clock.start(self._guard(target)) for target in targets]

    def _guard(self, target: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001  (it is raised again by the main thread)
                self.error = self.error or error

        return run

    def join(self) -> None:
        """Wait for all of them.

        Raises:
            BaseException: What the first that failed has raised.
        """
        for join in self._joins:
            join()
        if self.error:
            raise self.error


def closed_loop(
    call: Callable[[S], Any], samples: Sequence[S], plan: BlockPlan, read: Callable[[bool], R], clock: Clock
) -> Window[R]:
    """Let several callers call back to back; the window is cut out of the middle, while all of them are busy."""
    n_clients = plan.load.clients
    now = clock.now_ns
    stopping = False
    stamps: list[list[int]] = [[] for _ in range(n_clients)]
    firsts = [plan.seed + number * len(samples) // n_clients for number in range(n_clients)]

    def caller(number: int) -> Callable[[], None]:
        sample = turn(samples, firsts[number]).__next__
        append = stamps[number].append

        def run() -> None:
            append(now())
            while not stopping:
                call(sample())
                append(now())

        return run

    lead_in = now()
    callers = Callers(clock, [caller(number) for number in range(n_clients)])

    def wait(duration_ns: int, n_calls: Callable[[int], int]) -> None:
        """Sleep, and on until each caller has made so many calls."""
        clock.sleep_ns(duration_ns)
        while not callers.error and any(len(each) < n_calls(number) for number, each in enumerate(stamps)):
            clock.sleep_ns(max(duration_ns // 10, 1_000_000))

    try:
        wait(plan.lead_in_ns, lambda number: 2)
        before, start = read(True), now()
        n_before = [len(each) for each in stamps]
        wait(plan.duration_ns, lambda number: n_before[number] + plan.min_calls)
        end, after = now(), read(False)
    finally:
        stopping = True
        callers.join()
    starts = np.concatenate([np.asarray(each[:-1], dtype=np.int64) for each in stamps])
    ends = np.concatenate([np.asarray(each[1:], dtype=np.int64) for each in stamps])
    positions = np.concatenate(
        [(first + np.arange(len(each) - 1)) % len(samples) for first, each in zip(firsts, stamps, strict=True)]
    )
    counts = (ends > start) & (ends <= end)
    latencies = (ends - starts)[counts]
    return Window(
        latencies_ns=latencies,
        positions=positions[counts],
        service_ns=float(latencies.mean()),
        n_calls=work_within(starts, ends, start, end),
        wall_ns=end - start,
        lead_in_ns=start - lead_in,
        before=before,
        after=after,
    )


def work_within(starts: NDArray[np.int64], ends: NDArray[np.int64], start: int, end: int) -> float:
    """Return how many calls' worth of work lies in a window; a call that is half inside counts as a half.

    A count of whole calls would jump by one with the phase of the window, which in a short block is several percent.
    """
    inside = np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0, None)
    return float((inside / np.maximum(ends - starts, 1)).sum())


def draw_arrivals(load: Load, window_start_ns: int, window_end_ns: int, seed: int) -> NDArray[np.int64]:
    """Return when requests arrive, in ns from 0 to the window's end, with at least one in the window.

    The gaps of a Poisson process are exponential. The same seed gives the same arrivals, so that two candidates can
    be measured under the very same traffic.
    """
    assert load.rate_per_s is not None
    gap_ns = 1e9 / load.rate_per_s
    # A window in which nothing arrives tells nothing; it is as rare as a block is well planned.
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
    call: Callable[[S], Any], samples: Sequence[S], plan: BlockPlan, read: Callable[[bool], R], clock: Clock
) -> Window[R]:
    """Let requests arrive on schedule, whether or not earlier ones are done; callers take them in that order.

    Latency counts from the intended arrival, so that a request that waits for a free caller, or whose caller wakes
    late, is charged for it. Requests that are still waiting a whole window after the window's end are given up, with
    the time that they have waited so far: that only happens when more arrives than can be served.
    """
    window_start, window_end = plan.lead_in_ns, plan.lead_in_ns + plan.duration_ns
    due = draw_arrivals(plan.load, window_start, window_end, plan.seed)
    window_end = max(window_end, int(due[-1]) + 1)
    n = len(due)
    now, cpu = clock.now_ns, clock.cpu_ns
    base = now() + EARLY_NS
    give_up = base + window_end + plan.duration_ns
    # Per request: start, end, and the process's CPU time at both.
    marks: list[tuple[int, int, int, int] | None] = [None] * n
    take = itertools.count().__next__
    arrivals: list[int] = (due + base).tolist()

    def caller() -> None:
        while (number := take()) < n:
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
    before, start = read(True), now()
    clock.sleep_ns(max(base + window_end - now(), 0))
    end, after = now(), read(False)
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
        # One request that is served at the window's very end would leave nothing to divide by.
        n_calls=max(work_within(starts, ends, start, end), 0.5),
        wall_ns=end - start,
        lead_in_ns=start - base,
        before=before,
        after=after,
        cpu_between_ns=cpu_between([mark for _, mark in done]),
    )


def cpu_between(marks: Sequence[tuple[int, int, int, int]]) -> float:
    """Return the CPU time spent while no call was under way, in all gaps together, for each call.

    Args:
        marks: Of each call: start and end, and the process's CPU time at both.
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
