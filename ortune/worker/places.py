"""On which CPUs the threads of a worker ran, for how long. Nothing is read while a block is timed.

The kernel reports where a thread ran last, and its CPU time so far. After each block, the time of a thread since the
block before counts on the CPU where it ran last. Over many blocks, this shows how its time is spread over the CPUs.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ortune.host.frequency import read_frequencies_hz
from ortune.worker.block import CpuPlace
from ortune.worker.cpu import read_stat, tick_ns

PROCESS = Path("/proc/self")

MOST_CPUS_READ = 8
"""Number of CPUs whose frequency is read after a block: those with the most CPU time. Some systems interrupt a CPU to
read its frequency."""


class ThreadPlace(NamedTuple):
    """Where a thread ran last, and its CPU time so far."""

    cpu: int
    cpu_ns: int


def read_places(threads: Iterable[int], process: Path = PROCESS) -> dict[int, ThreadPlace]:
    """Return the places of threads by their id. Threads that have ended are left out, and all where there is no procfs.

    Args:
        threads: Ids of the threads.
        process: Folder of the process in procfs.

    Source: proc(5), /proc/PID/stat. Fields 14 and 15 are user and system time in ticks, field 39 is the CPU.
    """
    places: dict[int, ThreadPlace] = {}
    for number in threads:
        try:
            fields = read_stat(process / "task" / str(number))
            places[number] = ThreadPlace(int(fields[36]), (int(fields[11]) + int(fields[12])) * tick_ns())
        except (OSError, ValueError, IndexError):
            continue
    return places


@functools.cache
def find_getcpu() -> Callable[[], int] | None:
    """Return the function of the C library that returns the CPU of the calling thread; None if it has none."""
    if sys.platform != "linux":
        return None
    function: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return function


def find_place() -> ThreadPlace | None:
    """Return the place of the calling thread, in a microsecond; None if the system does not report it."""
    getcpu = find_getcpu()
    number = getcpu() if getcpu else -1
    return ThreadPlace(number, time.thread_time_ns()) if number >= 0 else None


class PlaceReader:
    """Reads where the threads of a worker ran since they were last read.

    Threads of pools live as long as the session. A single caller is the thread that reads. Several callers live only as
    long as a block, and find out their places themselves.

    Args:
        pool: Ids of the threads of the session's pools.
        process: Folder of the process in procfs.
    """

    def __init__(self, pool: frozenset[int], process: Path = PROCESS) -> None:
        self._pool = pool
        self._own = threading.get_native_id()
        self._process = process
        self._before = self._read()

    def _read(self) -> dict[int, ThreadPlace]:
        return read_places((*self._pool, self._own), self._process)

    def read(self, callers: Sequence[ThreadPlace] = ()) -> tuple[CpuPlace, ...]:
        """Return the CPU time on each CPU since the last reading, by number of the CPU.

        Args:
            callers: Places of callers that have ended; empty if the thread that reads makes the calls.
        """
        before, self._before = self._before, self._read()
        pool: Counter[int] = Counter()
        calls: Counter[int] = Counter()
        for number, place in self._before.items():
            spent_ns = place.cpu_ns - before[number].cpu_ns if number in before else place.cpu_ns
            if number != self._own:
                pool[place.cpu] += spent_ns
            elif not callers:
                calls[place.cpu] += spent_ns
        for place in callers:
            calls[place.cpu] += place.cpu_ns
        return make_places(pool, calls)


def make_places(pool: Counter[int], calls: Counter[int]) -> tuple[CpuPlace, ...]:
    """Return the CPUs on which threads of pools or callers spent time, by their number."""
    return tuple(
        CpuPlace(cpu=cpu, pool_ns=pool[cpu], calls_ns=calls[cpu])
        for cpu in sorted({*pool, *calls})
        if pool[cpu] or calls[cpu]
    )


def find_frequency_hz(places: Sequence[CpuPlace], root: Path = Path("/")) -> float | None:
    """Return the mean frequency of the CPUs that threads ran on, weighted by their CPU time; None if unknown.

    CPUs that are idle may report any frequency.

    Args:
        places: The CPU time on each CPU.
        root: Folder that contains `/proc` and `/sys`.
    """
    spent_ns = {place.cpu: place.pool_ns + place.calls_ns for place in places}
    used = sorted((cpu for cpu in spent_ns if spent_ns[cpu] > 0), key=lambda cpu: -spent_ns[cpu])
    known = read_frequencies_hz(used[:MOST_CPUS_READ], root)
    total_ns = sum(spent_ns[cpu] for cpu in known)
    return sum(hz * spent_ns[cpu] for cpu, hz in known.items()) / total_ns if known else None


def sum_places(places: Iterable[Sequence[CpuPlace]]) -> tuple[CpuPlace, ...]:
    """Return the sums over several blocks or processes."""
    pool: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    for own in places:
        for place in own:
            pool[place.cpu] += place.pool_ns
            calls[place.cpu] += place.calls_ns
    return make_places(pool, calls)
