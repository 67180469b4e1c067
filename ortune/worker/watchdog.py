"""Ends workers whose parent was killed, on systems whose kernel does not: `python -m ortune.worker.watchdog`.

A worker is suspended most of the time, and then cannot notice anything. On Linux, the kernel kills it when its parent
ends (`ortune.prctl`). Elsewhere, the parent starts this process. Its stdin is a pipe from the parent: a line
`+PID` adds a worker, and a line `-PID` removes one. When the pipe is closed, it kills those that are left.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import IO

from ortune.interpreter import PYTHON
from ortune.prctl import HAS_DEATH_SIGNAL
from ortune.secret_variables import inherit_environment


class Watchdog:
    """The parent's side. It does nothing where the kernel kills workers.

    Args:
        is_needed: Whether the kernel does not.
    """

    def __init__(self, *, is_needed: bool = not HAS_DEATH_SIGNAL) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if is_needed:
            self._process = subprocess.Popen(
                [*PYTHON, "-m", "ortune.worker.watchdog"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=inherit_environment(),
                start_new_session=True,
            )

    def add(self, pid: int) -> None:
        """Watch a worker."""
        self._write(b"+%d\n" % pid)

    def remove(self, pid: int) -> None:
        """Stop watching a worker that has ended, as another process may get its id."""
        self._write(b"-%d\n" % pid)

    def close(self) -> None:
        """End it, with the workers that are left. It may be called more than once."""
        if self._process and self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _write(self, line: bytes) -> None:
        if self._process and self._process.stdin:
            with contextlib.suppress(OSError):  # it was killed; there is nothing else to do
                self._process.stdin.write(line)
                self._process.stdin.flush()


def watch(lines: IO[bytes]) -> None:
    """Kill the workers that are left when the lines end."""
    import psutil

    left: dict[int, psutil.Process] = {}
    for line in lines:
        pid = int(line[1:])
        if line.startswith(b"+"):
            with contextlib.suppress(psutil.Error):
                left[pid] = psutil.Process(pid)
        else:
            left.pop(pid, None)
    for process in left.values():
        with contextlib.suppress(psutil.Error):
            process.kill()  # also if it is suspended


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    watch(sys.stdin.buffer)
