"""The window of a block: what happened in it, on which clock, and the threads that make the calls."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortune.prctl import minimize_timer_slack
from ortune.worker.places import ThreadPlace, find_place

S = TypeVar("S")
R = TypeVar("R")


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
    """The monotonic clock of this host.

    Attributes:
        places: Where each of its threads that has ended ran last.
    """

    def __init__(self) -> None:
        self.places: list[ThreadPlace] = []

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
            if place := find_place():
                self.places.append(place)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread.join


class CpuReading(NamedTuple):
    """CPU time of this process so far, and when it was read."""

    at_ns: int
    cpu_ns: int

    @classmethod
    def of(cls, clock: Clock) -> CpuReading:
        """Read the CPU time."""
        return cls(clock.now_ns(), clock.cpu_ns())

    def find_use_ns(self, before: CpuReading, wall_ns: int) -> int:
        """Return the CPU time in a window of this length.

        A process that wakes up late at the ends of the window reads its CPU time late. What it uses per time stays.
        """
        between_ns = self.at_ns - before.at_ns
        return round((self.cpu_ns - before.cpu_ns) * wall_ns / between_ns) if between_ns > 0 else 0


@dataclass(frozen=True, kw_only=True)
class Window(Generic[R]):
    """What happened in the window of a block.

    Attributes:
        latencies_ns: Latency of each call, from its start, or from its arrival where requests arrive at a rate.
        positions: Position of the sample of each call.
        service_ns: Mean duration of the calls from start to end.
        service_sd_ns: Standard deviation of these durations; 0 unless requests arrive at a rate.
        n_calls: Amount of work done in the window, in calls. Calls that overlap its ends count in part.
        wall_ns: Duration of the window.
        lead_in_ns: Duration of the lead-in.
        cpu_ns: CPU time of this process in the window.
        before: Result of `read` before the lead-in.
        after: Result of `read` after the window.
        cpu_between_ns: CPU time spent while no call was running, per call; None unless requests arrive at a rate.
        late_ns: Part of each latency for which a free caller woke up late, or requests waited for others that are put
            together with them; None unless requests arrive at a rate.
        own_ns: Part of each latency that the caller itself used; None if it was not asked.
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
    service_sd_ns: float = 0.0
    late_ns: NDArray[np.int64] | None = None
    own_ns: NDArray[np.int64] | None = None


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


def cycle_from(samples: Sequence[S], first: int) -> Iterator[S]:
    """Return an endless iterator over the samples that starts at this position."""
    first %= len(samples)
    return itertools.cycle([*samples[first:], *samples[:first]])


def work_within(starts: NDArray[np.int64], ends: NDArray[np.int64], start: int, end: int) -> float:
    """Return the amount of work inside a window, in calls. A call that is half inside counts as one half.

    A count of whole calls would depend on the phase of the window by one call, which is several percent of a short
    block.
    """
    inside = np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0, None)
    return float((inside / np.maximum(ends - starts, 1)).sum())
