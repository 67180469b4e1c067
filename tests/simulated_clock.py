"""A clock for real threads whose time is simulated: it jumps ahead as soon as all threads sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SimulatedClock:
    """Time passes only where somebody sleeps, so that what is measured on it is exact."""

    def __init__(self) -> None:
        self._time_ns = 0
        self._condition = threading.Condition()
        self._n_threads = 1  # the one that makes the clock
        self._sleepers: list[int] = []

    def now_ns(self) -> int:
        return self._time_ns

    def cpu_ns(self) -> int:
        return self._time_ns

    def sleep_ns(self, duration_ns: int) -> None:
        with self._condition:
            wake_ns = self._time_ns + max(duration_ns, 0)
            self._sleepers.append(wake_ns)
            self._advance()
            while self._time_ns < wake_ns:
                self._condition.wait()
            self._sleepers.remove(wake_ns)

    def start(self, target: Callable[[], None]) -> Callable[[], None]:
        with self._condition:
            self._n_threads += 1

        def run() -> None:
            try:
                target()
            finally:
                self._leave()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def join() -> None:
            self._leave()
            thread.join()
            with self._condition:
                self._n_threads += 1

        return join

    def _leave(self) -> None:
        with self._condition:
            self._n_threads -= 1
            self._advance()

    def _advance(self) -> None:
        """Jump to the next waking if nobody is awake."""
        waiting = [wake_ns for wake_ns in self._sleepers if wake_ns > self._time_ns]
        if waiting and len(waiting) == self._n_threads:
            self._time_ns = min(waiting)
            self._condition.notify_all()
