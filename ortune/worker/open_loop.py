"""Requests that arrive at a rate, whether or not earlier ones are done: one continuous stream for each launch.

A worker is suspended between its blocks. The time of the stream stops while it is: requests that wait at the end of a
block still wait at the start of the next one, and a caller that was busy is busy for the same time. So the queue does
not start from empty in each block, which would make latencies too short.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.worker.barrier import Barrier
from ortune.worker.batching_server import RequestQueue
from ortune.worker.block import BlockPlan
from ortune.worker.closed_loop import back_to_back, closed_loop
from ortune.worker.window import Callers, Clock, CpuReading, Window, work_within
from ortune.workload import Load
from ortune.workload.load import relaxation_services

S = TypeVar("S")
R = TypeVar("R")

EARLY_NS = 2_000_000
"""Time between the start of the callers and the first arrival."""

POLL_NS = 1_000_000
"""Time between two looks at whether a request was served, where all calls take longer than the window."""

TRIAL_NS = 200_000_000
TRIAL_CALLS = 32
"""Size of the trial that the warm-up is planned from: this many calls of each caller, but no more than this time."""

MOST_TRIAL_SAMPLES = 1024
"""The trial uses so many samples at most."""

WARM_UP_RELAXATIONS = 3.0
"""Duration of the warm-up as a multiple of the queue's relaxation time. In simulations of M/D/1 and M/M/1 queues
(`benchmarks/open_loop.py`), p99 then is within 5 % of its value in theory for a utilization of up to 0.9."""

WARM_UP_BATCHES = 10
"""Full batches that the warm-up lasts at least, where requests are put together."""

OF_POSITIONS = 2**31
"""Second part of the seed of samples. That of arrivals is the number of an attempt."""

FEW_ARRIVALS = 12.0
"""Mean number of requests in a window below which windows without any must be taken into account."""

ITERATIONS = 200
"""Steps after which the rate of such a window has converged: to 0.01 where the mean is 1, and better otherwise."""

HIGHEST_PLANNED_UTILIZATION = 0.95
"""Utilization for which the longest warm-up is planned. The relaxation time has no bound as it approaches 1."""


class Mark(NamedTuple):
    """One request: start and end of its call, the process's CPU time at both, and how many requests the call had.

    `late` is the time between the moment when it had arrived and its caller was free, and the start of its call, and
    `own` the caller's own time in the call.
    """

    number: int
    start: int
    end: int
    cpu_start: int
    cpu_end: int
    size: int = 1
    late: int = 0
    own: int = 0


class Segment(NamedTuple):
    """What happened in a part of the stream that is measured without a pause. Times are those of the clock.

    Attributes:
        arrivals: Arrival time of each request, those first that waited at the start.
        positions: Position of the sample of each request.
        marks: The calls that were made.
        inside: Of these, the calls that began in the window, in order of their start.
        start: The start of the window.
        end: The end of the window.
        cpu_ns: CPU time of the process in the window.
    """

    arrivals: list[int]
    positions: NDArray[np.int64]
    marks: list[Mark]
    inside: list[Mark]
    start: int
    end: int
    cpu_ns: int


class RequestStream:
    """The requests of one launch, and the queue that they wait in.

    Callers serve requests in order of arrival. Latency counts from the scheduled arrival. It therefore includes the
    wait for a free caller, and the delay of a caller that wakes up late.

    Args:
        load: How requests arrive at this process.
        first_ns: When the first of requests at equal intervals arrives.
    """

    def __init__(self, load: Load, first_ns: float = 0.0) -> None:
        self.load = load
        self._is_warm = False
        # The state of the queue at the end of the last segment, in ns from that end.
        self._waiting: list[int] = []
        self._positions = np.zeros(0, dtype=np.int64)
        self._free_ns = [0] * load.clients
        self._next_ns = first_ns

    def measure(
        self,
        call: Callable[[Any], Any],
        samples: Sequence[S],
        plan: BlockPlan,
        read: Callable[[], R],
        clock: Clock,
        barrier: Barrier | None = None,
        own_ns: Callable[[], int] | None = None,
    ) -> Window[R]:
        """Continue the stream for one block, and return what happened to the requests that were served in its window.

        A request belongs to the window if its call starts there. If calls take longer than the window, the window ends
        with the start of a call.

        Args:
            call: Makes one call with one sample; with several samples in a list, if the plan puts requests together.
            samples: Samples of the requests, drawn at random. Used in turn, they would come more regularly than the
                requests of users, and queues would be shorter.
            plan: For how long, and how requests are put together.
            read: Called before the lead-in and after the window.
            clock: The clock.
            barrier: Where the processes of a group wait for each other; None for a process that is alone.
            own_ns: Returns how much of the last call of this thread was the caller's own time.
        """
        barrier = barrier or Barrier(clock)
        before = read()
        begin = barrier.wait()

        def serve(positions: Iterable[int]) -> None:
            chosen = [samples[position % len(samples)] for position in positions]
            call(chosen[0] if plan.max_batch == 1 else chosen)

        # Caches and threads are cold after a pause. In the stream, this would make the queue longer.
        serve([plan.seed])
        if not self._is_warm and plan.longest_warm_up_ns:
            self._is_warm = True
            durations = try_calls(lambda number: serve(range(number, number + plan.max_batch)), plan, clock)
            warm_up_ns = plan_warm_up(durations, self.load, plan.longest_warm_up_ns, plan.max_batch)
            warm_up_ns = barrier.find_largest(warm_up_ns)
            if warm_up_ns:
                # The warm-up has traffic of its own, so that all candidates have the same in the window.
                self._run_segment(serve, len(samples), plan, plan.seed + 1, 0, warm_up_ns, clock, barrier)
        # While a caller is busy with a call that began in the last block, nothing is measured.
        lead_in_ns = barrier.find_largest(max(plan.lead_in_ns, *self._free_ns))
        end_ns = lead_in_ns + plan.duration_ns
        segment = self._run_segment(serve, len(samples), plan, plan.seed, lead_in_ns, end_ns, clock, barrier, own_ns)
        after = read()
        marks, inside = segment.marks, segment.inside
        starts = np.array([mark.start for mark in marks], dtype=np.int64)
        ends = np.array([mark.end for mark in marks], dtype=np.int64)
        sizes = np.array([mark.size for mark in marks], dtype=np.int64)
        services_ns = (ends - starts) / sizes
        return Window(
            latencies_ns=np.array([mark.end - segment.arrivals[mark.number] for mark in inside], dtype=np.int64),
            positions=segment.positions[[mark.number for mark in inside]],
            service_ns=float(services_ns.mean()),
            service_sd_ns=float(services_ns.std()),
            # Avoids a division by zero if the only request is served at the very end of the window.
            n_calls=max(work_within(starts, ends, segment.start, segment.end), 0.5),
            wall_ns=segment.end - segment.start,
            lead_in_ns=segment.start - begin,
            cpu_ns=segment.cpu_ns,
            before=before,
            after=after,
            cpu_between_ns=cpu_between(marks),
            late_ns=np.array([mark.late for mark in inside], dtype=np.int64),
            own_ns=np.array([mark.own for mark in inside], dtype=np.int64) if own_ns else None,
        )

    def _run_segment(
        self,
        serve: Callable[[Iterable[int]], None],
        n_samples: int,
        plan: BlockPlan,
        seed: int,
        window_start_ns: int,
        window_end_ns: int,
        clock: Clock,
        barrier: Barrier,
        own_ns: Callable[[], int] | None = None,
    ) -> Segment:
        """Continue the stream until the end of the window, and wait for the calls that are in progress then."""
        now, cpu = clock.now_ns, clock.cpu_ns
        due = draw_arrivals(self.load, window_start_ns, window_end_ns, seed, self._next_ns)
        window_end_ns = max(window_end_ns, int(due[-1]) + 1)
        base = barrier.wait() + EARLY_NS
        window_start, window_end = base + window_start_ns, base + window_end_ns
        arrivals = [base + waiting for waiting in self._waiting] + (due + base).tolist()
        free = [base + duration for duration in self._free_ns]
        n = len(arrivals)
        # A request that waits keeps its sample, so that the new ones get the same for all candidates.
        positions = np.concatenate([self._positions, draw_positions(len(due), n_samples, seed)])
        marks: list[Mark] = []
        unserved: list[int] = []
        # The position of the first request that is served in the window.
        served: list[int] = []
        if plan.max_batch == 1:
            take: Callable[[int], range] = functools.partial(take_in_turn, arrivals, clock, itertools.count().__next__)
        else:
            take = RequestQueue(arrivals, clock, plan.max_batch, plan.max_delay_ns).take

        def run_caller(position: int) -> None:
            while numbers := take(free[position]):
                cpu_start, start = cpu(), now()
                if start >= window_end and served:
                    unserved.extend(numbers)
                    return
                if start >= window_start:
                    served.append(numbers[0])
                serve(positions[numbers])
                end, cpu_end = now(), cpu()
                own = own_ns() if own_ns else 0
                for number in numbers:
                    late = start - max(arrivals[number], free[position])
                    marks.append(Mark(number, start, end, cpu_start, cpu_end, len(numbers), late, own))
                free[position] = end

        callers = Callers(clock, [functools.partial(run_caller, position) for position in range(len(free))])
        # On a busy host, this thread wakes up late. The window does not move with it: callers keep to their own times.
        clock.sleep_ns(max(window_start - now(), 0))
        first_reading = CpuReading.of(clock)
        clock.sleep_ns(max(window_end - now(), 0))
        end = window_end
        while not served and not callers.error:
            clock.sleep_ns(POLL_NS)
            end = now()
        last_reading = CpuReading.of(clock)
        callers.join()
        unserved += range(len(marks) + len(unserved), n)
        unserved.sort()
        self._waiting = [arrivals[number] - end for number in unserved]
        self._positions = positions[unserved]
        self._free_ns = [max(free_ns - end, 0) for free_ns in free]
        if self.load.arrivals == "periodic":
            assert self.load.rate_per_s
            self._next_ns = due[-1] + base + 1e9 / self.load.rate_per_s - end
        inside = sorted((mark for mark in marks if mark.start >= window_start), key=lambda mark: mark.start)
        cpu_ns = last_reading.find_use_ns(first_reading, end - window_start)
        return Segment(arrivals, positions, marks, inside, window_start, end, cpu_ns)


def draw_arrivals(
    load: Load, window_start_ns: int, window_end_ns: int, seed: int, first_ns: float = 0.0
) -> NDArray[np.int64]:
    """Return the arrival times of requests, from 0 to the end of the window, with at least one inside the window.

    The times between arrivals of a Poisson process are exponentially distributed. The same seed gives the same
    arrivals, so that two candidates can be measured under the same traffic. Requests at equal intervals begin at
    `first_ns`. In a window in which few arrive on average, their number is drawn first, so that windows without any,
    which are left out, do not make the others too full.
    """
    assert load.rate_per_s is not None
    gap_ns = 1e9 / load.rate_per_s
    # Without an arrival in the window there would be nothing to measure. Blocks are planned long enough to avoid that.
    window_end_ns = max(window_end_ns, window_start_ns + int(gap_ns) + 1)
    if load.arrivals == "periodic":
        return np.arange(first_ns, window_end_ns, gap_ns).astype(np.int64)
    mean = (window_end_ns - window_start_ns) / gap_ns
    if mean < FEW_ARRIVALS:
        rng = np.random.default_rng(seed)
        n_before = int(window_start_ns / gap_ns)
        before = np.cumsum(rng.exponential(gap_ns, n_before + 10 * int(n_before**0.5) + 20))
        inside = rng.uniform(window_start_ns, window_end_ns, draw_at_least_one(mean, rng))
        return np.concatenate([before[before < window_start_ns], np.sort(inside)]).astype(np.int64)
    for attempt in itertools.count():
        rng = np.random.default_rng([seed, attempt])
        n = int(window_end_ns / gap_ns)
        gaps = rng.exponential(gap_ns, n + 10 * int(n**0.5) + 20)
        arrivals = np.cumsum(gaps).astype(np.int64)
        arrivals = arrivals[arrivals < window_end_ns]
        if len(arrivals) and arrivals[-1] >= window_start_ns:
            return arrivals
    raise AssertionError("unreachable")


def draw_at_least_one(mean: float, rng: np.random.Generator) -> int:
    """Return a number from Poisson's distribution without 0 that has this mean, which is at least 1.

    The mean of Poisson's distribution of rate r without 0 is r / (1 - exp(-r)).
    """
    rate = mean
    for _ in range(ITERATIONS):
        rate = -mean * math.expm1(-rate)
    while not (n := int(rng.poisson(rate))):
        pass
    return n


def draw_positions(n: int, n_samples: int, seed: int) -> NDArray[np.int64]:
    """Return the position of the sample of each of `n` requests. The same seed gives the same ones."""
    return np.random.default_rng([seed, OF_POSITIONS]).integers(n_samples, size=n)


def take_in_turn(arrivals: Sequence[int], clock: Clock, take_number: Callable[[], int], free_ns: int) -> range:
    """Wait until the next request has arrived and its caller is free, and return its number; nothing after the last.

    Callers do not wait for each other, as they would in `RequestQueue`.
    """
    number = take_number()
    if number >= len(arrivals):
        return range(0)
    due_at = max(arrivals[number], free_ns)
    while (early := due_at - clock.now_ns()) > 0:
        clock.sleep_ns(early)
    return range(number, number + 1)


def try_calls(serve: Callable[[int], Any], plan: BlockPlan, clock: Clock) -> NDArray[np.int64]:
    """Return the durations of some calls back to back, by as many callers as the load has.

    Args:
        serve: Makes one call for the request of this number, and those that are put together with it.
        plan: The plan of the block.
        clock: The clock.
    """
    numbers = range(MOST_TRIAL_SAMPLES)
    load = Load() if plan.load.clients == 1 else Load(scenario="multi-client", clients=plan.load.clients)
    trial = msgspec.structs.replace(plan, load=load, duration_ns=0, lead_in_ns=0, min_calls=1)
    generate = back_to_back if plan.load.clients == 1 else closed_loop
    begin = clock.now_ns()
    durations = generate(serve, numbers, trial, lambda: None, clock).latencies_ns
    # The trial has one call more than is measured.
    fitting = TRIAL_NS // max((clock.now_ns() - begin) // 2, 1)
    trial = msgspec.structs.replace(trial, min_calls=min(TRIAL_CALLS, int(fitting)))
    return generate(serve, numbers, trial, lambda: None, clock).latencies_ns if trial.min_calls > 1 else durations


def plan_warm_up(durations: NDArray[np.int64], load: Load, longest_ns: int, max_batch: int = 1) -> int:
    """Return how long a stream that starts with an empty queue runs before its latencies are those of a steady state.

    Args:
        durations: Durations of some calls in ns.
        load: How requests arrive.
        longest_ns: Result at most.
        max_batch: Requests in each of these calls. A full queue is served by full batches.
    """
    mean_ns = float(durations.mean()) / max_batch
    error_ns = float(durations.std()) / max_batch / math.sqrt(len(durations))
    if load.utilization(mean_ns - 2 * error_ns) >= 1:
        # The queue grows without bound, so there is no steady state.
        return 0
    # Too long a warm-up takes time, but too short a one makes latencies too short.
    utilization = load.utilization(mean_ns + error_ns)
    variation = float(durations.var()) / (mean_ns * max_batch) ** 2
    services = relaxation_services(min(utilization, HIGHEST_PLANNED_UTILIZATION), 1 + variation)
    # A queue of batches is in its steady state after some full ones, however low the utilization is.
    least_ns = WARM_UP_BATCHES * max_batch * mean_ns if max_batch > 1 else 0.0
    return min(int(max(WARM_UP_RELAXATIONS * mean_ns / load.clients * services, least_ns)), longest_ns)


def cpu_between(marks: Sequence[Mark]) -> float:
    """Return the CPU time spent while no call was running, divided by the number of calls."""
    spent = 0
    ordered = sorted(marks, key=lambda mark: mark.start)
    if not ordered:
        return 0.0
    last_end, last_cpu = ordered[0].end, ordered[0].cpu_end
    for mark in ordered[1:]:
        if mark.start >= last_end:
            spent += max(mark.cpu_start - last_cpu, 0)
        if mark.end > last_end:
            last_end, last_cpu = mark.end, mark.cpu_end
    return spent / len(ordered)
