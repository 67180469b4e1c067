"""The gate through which the calls of a timed function pass, and the log of these calls.

The other side is `ortune.apply.inside.gate`. The gate consists of two files with advisory locks, which the system
releases when a process ends. A call takes a shared lock on the turnstile, then its process takes one on the file of
calls until its last call has ended, and the turnstile is released. To close the gate, the parent takes an exclusive
lock on the turnstile, so that no call can begin, and then one on the file of calls, which it gets when no call is in
progress.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ortune.apply.inside.call_timer import CALL
from ortune.apply.inside.gate import CALLS, TURNSTILE
from ortune.errors import ProgramError
from ortune.locks import try_to_lock

GATE_POLL_S = 0.001

RECORD_BYTES = CALL.size
"""A call in the log: start and end, in nanoseconds of the monotonic clock."""

MAX_LOG_BYTES = 1 << 30

LATEST_NS = 1 << 59
"""Time that no monotonic clock reaches: 18 years."""


class GateControl:
    """The parent's side of a gate. It is open at first.

    Args:
        folder: Folder of its files, which are made here.

    Raises:
        ProgramError: The file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptors = [os.open(folder / name, flags, 0o600) for name in (TURNSTILE, CALLS)]
        if try_to_lock(self._descriptors[0]) is None:
            self.remove()
            raise ProgramError(
                f"The file system of {folder.parent.parent} (temporary files) has no file locks. ortune needs "
                "them to measure calls inside a program.",
                "Set the variable TMPDIR to a folder on a local file system.",
            )
        fcntl.flock(self._descriptors[0], fcntl.LOCK_UN)

    def close(self, timeout_s: float, is_needed: Callable[[], bool] = lambda: True) -> bool:
        """Let no call begin, and wait until all calls have ended.

        Args:
            timeout_s: Maximum time to wait.
            is_needed: Whether the program still runs.

        Returns:
            Whether all calls have ended.
        """
        end_s = time.monotonic() + timeout_s
        return all(self._lock(descriptor, end_s, is_needed) for descriptor in self._descriptors)

    def open(self) -> None:
        """Let calls begin."""
        for descriptor in reversed(self._descriptors):
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Release the locks. It may be called more than once."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    @staticmethod
    def _lock(descriptor: int, end_s: float, is_needed: Callable[[], bool]) -> bool:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > end_s or not is_needed():
                    return False
                time.sleep(GATE_POLL_S)


class CallLog:
    """The calls that the processes of a program have logged.

    Args:
        folder: Folder of the files, one for each process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self) -> NDArray[np.int64]:
        """Return the calls since the last reading: start and end in ns, of shape (calls, 2).

        Calls that no process makes are left out: the program can write anything.
        """
        parts = []
        for path, _ in self._find_files():
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(MAX_LOG_BYTES)
            data = data[: len(data) - len(data) % RECORD_BYTES]  # a record may be incomplete
            self._offsets[path] = offset + len(data)
            parts.append(np.frombuffer(data, dtype="<i8").reshape(-1, 2))
        calls = np.concatenate(parts) if parts else np.empty((0, 2), dtype="<i8")
        starts, ends = calls[:, 0], calls[:, 1]
        sound = calls[(starts >= 0) & (starts <= ends) & (ends < LATEST_NS)]
        sound[:, 1] = np.maximum(sound[:, 1], sound[:, 0] + 1)  # a clock may stand still for as long as a short call
        return sound

    def count_new(self) -> int:
        """Return how many calls there are since the last reading, those included that no process makes."""
        size = sum(max(n_bytes - self._offsets.get(path, 0), 0) for path, n_bytes in self._find_files())
        return size // RECORD_BYTES

    def _find_files(self) -> list[tuple[Path, int]]:
        """Return the files and their sizes. What is not a file is left out: reading a pipe could block forever."""
        found = []
        for path in sorted(self._folder.glob("calls-*.bin")):
            with contextlib.suppress(OSError):
                state = path.lstat()
                if stat.S_ISREG(state.st_mode):
                    found.append((path, state.st_size))
        return found
