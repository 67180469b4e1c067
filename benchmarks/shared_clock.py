"""Clocks of replays: a real one, and a simulated one of several processes, which need no hosts of their own."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

POLL_S = 0.0005

T = TypeVar("T")


class RealClock:
    """A clock that is faster than real time. What else takes time counts as it is.

    Args:
        factor: How many times faster it is.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._start_s = time.monotonic()

    def now_s(self) -> float:
        """Return the time in seconds."""
        return (time.monotonic() - self._start_s) * self._factor

    def spend(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s / self._factor)


def read_delay_s() -> float:
    """Return how long the threads of this process have waited for a CPU, in seconds; 0 where this is not counted."""
    delay_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            delay_ns += int(path.read_text().split()[1])
    return delay_ns / 1e9


class SharedClock:
    """The clock of one worker, in a file with those of all.

    It counts what a replay would have waited for, the CPU time of this process, and the time of calls of the storage,
    without the time in which this process waited for a CPU: a worker on a host of its own would have one.
    Before such a call, a worker waits for those whose clocks are behind, so that it sees what they wrote before.

    Args:
        path: The file, which `create` makes.
        slot: Number of this worker.

    Attributes:
        storage_s: Time that calls of the storage took, in seconds.
    """

    def __init__(self, path: Path, slot: int) -> None:
        self._times = np.memmap(path, dtype=np.float64, mode="r+")
        self._slot = slot
        self.storage_s = 0.0
        self._added_s = 0.0
        self._first_cpu_s = time.process_time()

    @staticmethod
    def create(path: Path, n: int) -> None:
        """Create the file of the clocks of `n` workers, which are all at 0."""
        np.zeros(n).tofile(path)

    def now_s(self) -> float:
        """Return the time in seconds."""
        return self._added_s + time.process_time() - self._first_cpu_s

    def spend(self, duration_s: float) -> None:
        """Advance the clock."""
        self._added_s += duration_s
        self._times[self._slot] = self.now_s()

    def call(self, work: Callable[[], T]) -> T:
        """Return what a call of the storage returns. Its real time counts."""
        begin_s = time.process_time()
        now_s = self._times[self._slot] = self.now_s()
        while self._times.min() < now_s:
            time.sleep(POLL_S)
        waited_s = time.process_time() - begin_s
        self._added_s -= waited_s
        wall_s, cpu_s, delay_s = time.monotonic(), time.process_time(), read_delay_s()
        try:
            return work()
        finally:
            took_s = max(time.monotonic() - wall_s - (read_delay_s() - delay_s), 0.0)
            self.storage_s += took_s
            self.spend(max(took_s - (time.process_time() - cpu_s), 0.0))

    def end(self) -> None:
        """Let the others go on without this worker."""
        self._times[self._slot] = math.inf
