"""Calls back to back: from one caller, or from several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ortune.worker.barrier import Barrier
from ortune.worker.block import BlockPlan
from ortune.worker.window import Callers, Clock, CpuReading, Window, cycle_from, work_within

S = TypeVar("S")
R = TypeVar("R")


def back_to_back(
    call: Callable[[S], Any],
    samples: Sequence[S],
    plan: BlockPlan,
    read: Callable[[], R],
    clock: Clock,
    own_ns: Callable[[], int] | None = None,
) -> Window[R]:
    """Make calls one after the other. The window ends with the first call that ends after its planned duration."""
    now = clock.now_ns
    sample = cycle_from(samples, plan.seed).__next__
    before = read()
    cpu_start, lead_in = clock.cpu_ns(), now()
    call(sample())
    # One reading of the clock is both the end of a call and the start of the next.
    stamps = [lead_in, now()]
    own = [own_ns()] if own_ns else []
    start, n_before = lead_in, 0
    if not is_hopeless(plan, stamps):
        if plan.lead_in_ns:
            n_before = 1
            while now() - lead_in < plan.lead_in_ns:
                call(sample())
                n_before += 1
            cpu_start, start = clock.cpu_ns(), now()
            stamps, own = [start], []
        append = stamps.append
        end = start + plan.duration_ns
        while len(stamps) <= plan.min_calls or stamps[-1] < end:
            call(sample())
            append(now())
            if own_ns:
                own.append(own_ns())
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
        own_ns=np.asarray(own, dtype=np.int64) if own_ns else None,
    )


def closed_loop(
    call: Callable[[S], Any],
    samples: Sequence[S],
    plan: BlockPlan,
    read: Callable[[], R],
    clock: Clock,
    barrier: Barrier | None = None,
    own_ns: Callable[[], int] | None = None,
) -> Window[R]:
    """Let several callers make calls back to back. The window lies in the middle, while all of them are busy.

    In a group of processes, it lies in the middle of all of them: it is the same time in each, and no caller of any of
    them stops before its end.
    """
    barrier = barrier or Barrier(clock)
    n_clients = plan.load.clients
    now = clock.now_ns
    stopping = False
    stamps: list[list[int]] = [[] for _ in range(n_clients)]
    own: list[list[int]] = [[] for _ in range(n_clients)]
    firsts = [plan.seed + number * len(samples) // n_clients for number in range(n_clients)]

    def caller(number: int) -> Callable[[], None]:
        sample = cycle_from(samples, firsts[number]).__next__
        append = stamps[number].append

        def run() -> None:
            append(now())
            while not stopping:
                call(sample())
                append(now())
                if own_ns:
                    own[number].append(own_ns())

        return run

    before = read()
    lead_in = barrier.wait()
    callers = Callers(clock, [caller(number) for number in range(n_clients)])

    def wait(duration_ns: int, n_calls: Callable[[int], int]) -> None:
        """Sleep for this time, and then until each caller has made `n_calls(number)` calls."""
        clock.sleep_ns(duration_ns)
        while not callers.error and any(
            len(caller_stamps) < n_calls(number) for number, caller_stamps in enumerate(stamps)
        ):
            clock.sleep_ns(max(duration_ns // 10, 1_000_000))

    try:
        start, first_reading = lead_in, CpuReading.of(clock)
        wait(plan.lead_in_ns, lambda number: 2)
        if not barrier.find_largest(int(any(is_hopeless(plan, caller_stamps) for caller_stamps in stamps))):
            start, first_reading = barrier.wait(), CpuReading.of(clock)
            n_before = [len(caller_stamps) for caller_stamps in stamps]
            wait(plan.duration_ns, lambda number: n_before[number] + plan.min_calls)
        end, last_reading = barrier.wait(), CpuReading.of(clock)
        after = read()
    finally:
        stopping = True
        callers.join()
    starts = np.concatenate([np.asarray(caller_stamps[:-1], dtype=np.int64) for caller_stamps in stamps])
    ends = np.concatenate([np.asarray(caller_stamps[1:], dtype=np.int64) for caller_stamps in stamps])
    positions = np.concatenate(
        [
            (first + np.arange(len(caller_stamps) - 1)) % len(samples)
            for first, caller_stamps in zip(firsts, stamps, strict=True)
        ]
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
        cpu_ns=last_reading.find_use_ns(first_reading, end - start),
        before=before,
        after=after,
        own_ns=np.concatenate([np.asarray(times, dtype=np.int64) for times in own])[is_inside] if own_ns else None,
    )


def is_hopeless(plan: BlockPlan, stamps: Sequence[int]) -> bool:
    """Return whether the first call took so long that the block ends with it.

    Args:
        plan: How the block is measured.
        stamps: The start of the first call, and its end if it has ended.
    """
    return plan.give_up_ns is not None and len(stamps) > 1 and stamps[1] - stamps[0] > plan.give_up_ns
