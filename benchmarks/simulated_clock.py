"""A simulated clock for real threads. Its time advances when all threads sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SimulatedClock:
    """A clock whose time passes only in `sleep_ns`, so that measured times are exact."""

    def __init__(self) -> None:
        self._time_ns = 0
        self._condition = threading.Condition()
        self._n_threads = 1  # the thread that creates the clock
        self._sleepers: list[int] = []

    def now_ns(self) -> int:
        """Return the simulated time."""
        return self._time_ns

    def cpu_ns(self) -> int:
        """Return the simulated time: all of it counts as CPU time."""
        return self._time_ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep until the simulated time has advanced by this much."""
        with self._condition:
            wake_ns = self._time_ns + max(duration_ns, 0)
            self._sleepers.append(wake_ns)
            self._advance(wake_ns)
            while self._time_ns < wake_ns:
                self._condition.wait()
            self._sleepers.remove(wake_ns)

    def start(self, target: Callable[[], None]) -> Callable[[], None]:
        """Start a thread that runs a function, and return a function that waits for its end."""
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

    def _advance(self, own_wake_ns: int | None = None) -> None:
        """Advance to the earliest end of a sleep if all threads sleep.

        Args:
            own_wake_ns: End of the sleep of the thread that calls this, or None if it does not sleep.
        """
        waiting = [wake_ns for wake_ns in self._sleepers if wake_ns > self._time_ns]
        if waiting and len(waiting) == self._n_threads:
            self._time_ns = min(waiting)
            # If only the thread that calls this is due, the others can go on sleeping.
            if own_wake_ns != self._time_ns or waiting.count(self._time_ns) > 1:
                self._condition.notify_all()
