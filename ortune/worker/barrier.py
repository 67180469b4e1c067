"""Where the processes of a group wait for each other while a block is measured, and agree on times and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortune.worker.window import Clock

Exchange = Callable[[int], Sequence[int]]
"""Gives a number to all processes of a group, and returns those of all of them, in the same order everywhere. It waits
for the slowest."""

AHEAD_NS = 2_000_000
"""How far a moment that the processes agree on lies ahead: time for the last of them to learn of it. One that learns of
it later starts late, which no figure depends on: windows begin when all are busy, and end before any of them stops."""


class Barrier:
    """Where a process waits for the others of its group. A process that is alone does not wait.

    All processes must call the same methods in the same order.

    Args:
        clock: The clock, which all processes share.
        exchange: Exchanges numbers with the others; None for a process that is alone.
    """

    def __init__(self, clock: Clock, exchange: Exchange | None = None) -> None:
        self._clock = clock
        self._exchange = exchange

    def find_largest(self, value: int) -> int:
        """Wait for all processes, and return the largest of their values."""
        return max(self._exchange(value)) if self._exchange else value

    def wait(self) -> int:
        """Wait for a moment that all processes have agreed on, and return its time on the clock."""
        if not self._exchange:
            return self._clock.now_ns()
        moment_ns = self.find_largest(self._clock.now_ns()) + AHEAD_NS
        self._clock.sleep_ns(max(moment_ns - self._clock.now_ns(), 0))
        return moment_ns
