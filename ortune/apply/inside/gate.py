"""Let calls pass only while another process allows it.

The folder of a gate has two files, which are locked with `flock`:

- `turnstile.lock`: a call holds it shared for a moment, when it begins. Who holds it alone keeps calls from beginning.
- `calls.lock`: a process holds it shared while it has calls. Who holds both alone knows that no call is in progress.

To close the gate, lock the turnstile, then wait for the lock of the calls. To open it, release both.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows has no gate)
    fcntl = None  # type: ignore[assignment]

TURNSTILE = "turnstile.lock"
CALLS = "calls.lock"

RETRY_S = 0.002
"""Time after which a coroutine tries again to pass. Waiting for the lock would block all others."""


class CallGate:
    """The gate of one process.

    Locks belong to open files, not to threads. Each thread therefore opens the turnstile itself, and the lock of the
    calls is held once for all calls of the process.

    Args:
        folder: Folder with the two files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._descriptors: list[int] = []
        self._own = threading.local()
        self._lock = threading.RLock()
        self._calls: int | None = None
        self._n_active = 0

    def begin_again(self) -> None:
        """Open own files in a forked child: those that it inherits hold the locks of its parent."""
        inherited = [*self._descriptors, *([] if self._calls is None else [self._calls])]
        self._descriptors.clear()
        self._begin()
        for descriptor in inherited:
            os.close(descriptor)

    def enter(self) -> None:
        """Wait until calls may begin, and begin one."""
        turnstile = self._open_turnstile()
        fcntl.flock(turnstile, fcntl.LOCK_SH)
        try:
            self._add_call()
        finally:
            fcntl.flock(turnstile, fcntl.LOCK_UN)

    async def enter_async(self) -> None:
        """Wait until calls may begin, and begin one. Meanwhile, other coroutines run."""
        import asyncio

        while not self._try_enter():
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # another library runs the coroutine
                time.sleep(RETRY_S)
            else:
                await asyncio.sleep(RETRY_S)

    def _try_enter(self) -> bool:
        turnstile = self._open_turnstile()
        try:
            fcntl.flock(turnstile, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            self._add_call()
        finally:
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        return True

    def leave(self) -> None:
        """End a call."""
        with self._lock:
            # A call that began before a fork does not count in the child.
            self._n_active = max(self._n_active - 1, 0)
            if self._n_active == 0 and self._calls is not None:
                fcntl.flock(self._calls, fcntl.LOCK_UN)

    def _add_call(self) -> None:
        """Count a call. This does not wait: who holds the lock of the calls alone also holds the turnstile."""
        with self._lock:
            if self._calls is None:
                self._calls = self._open(CALLS)
            if self._n_active == 0:
                fcntl.flock(self._calls, fcntl.LOCK_SH)
            self._n_active += 1

    def _open_turnstile(self) -> int:
        descriptor: int | None = getattr(self._own, "turnstile", None)
        if descriptor is None:
            descriptor = self._own.turnstile = self._open(TURNSTILE)
            self._descriptors.append(descriptor)
            self._own.closer = _Closer(self._descriptors, descriptor)
        return descriptor

    def _open(self, name: str) -> int:
        return os.open(Path(self._folder, name), os.O_RDWR)


class _Closer:
    """Closes the turnstile of a thread when the thread ends and its local values are freed."""

    def __init__(self, descriptors: list[int], descriptor: int) -> None:
        self._descriptors = descriptors
        self._descriptor = descriptor

    def __del__(self) -> None:
        try:
            self._descriptors.remove(self._descriptor)
        except ValueError:
            return  # closed after a fork: the number may belong to another file by now
        os.close(self._descriptor)


def open_gate(folder: Any) -> CallGate | None:
    """Return the gate of a folder; None if there is no folder, or the system has no `flock`."""
    return CallGate(str(folder)) if folder and fcntl is not None else None
