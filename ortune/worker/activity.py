"""Whether a process does anything: it computes, reads, writes, or waits for a CPU or a disk."""

from __future__ import annotations

import contextlib
import time

import psutil

LOOK_S = 5.0
"""Time between two looks at a process."""


class Activity:
    """What a process and its children do, from looks at it.

    Args:
        process: The process.

    Attributes:
        idle_s: Time in which they did nothing, up to the last look. Time in which nobody looked counts as `LOOK_S` at
            most, as this process may have been stopped, too.
    """

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._seen: object = None
        self._seen_s = time.monotonic()
        self.idle_s = 0.0

    def look(self) -> None:
        """Look at what they have done since the last look."""
        seen, now_s = self._read(), time.monotonic()
        is_idle = seen is not None and seen == self._seen
        self.idle_s = self.idle_s + min(now_s - self._seen_s, LOOK_S) if is_idle else 0.0
        self._seen, self._seen_s = seen, now_s

    def _read(self) -> object:
        """Return what changes with everything that they do; None if it is unknown, or one waits for a CPU or a disk."""
        counts: list[object] = []
        try:
            for process in (self._process, *self._process.children(recursive=True)):
                if process.status() in {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP}:
                    return None
                counts.append((process.pid, process.cpu_times()[:2]))
                with contextlib.suppress(AttributeError):  # macOS does not count bytes
                    counts.append(process.io_counters())
        except psutil.Error:
            return None
        return counts
