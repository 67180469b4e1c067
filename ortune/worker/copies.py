"""Workers as copies of a process that has imported what they import; see `ortune.worker.template`.

Most of the time of a launch is spent on starting Python and importing NumPy and onnxruntime. A copy, which `fork`
makes, has imported them already. Copies of one process have the same memory layout, which affects the speed of all of
them alike. What is claimed is therefore measured in workers that were started on their own, and each launch of copies
has a process of its own to copy.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ortune.interpreter import PYTHON
from ortune.prctl import adopting

CAN_COPY = sys.platform == "linux"
"""Whether there are copies. They need Linux, where a process can adopt them."""

FEWEST_COPIES = 3
"""Fewer workers, which start at the same time, are started as fast on their own."""

START_LIMIT_S = 120.0
"""Time for a copy to be made. The first one waits until the template has imported everything."""

EXIT_STEP_S = 0.0005
"""How often it is checked whether a copy has ended."""


class Copy:
    """A child process that was not started by `subprocess`, with the methods of its processes that are needed.

    Args:
        pid: Its id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None if it runs."""
        return self._look(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, as soon as it has ended.

        Raises:
            subprocess.TimeoutExpired: It does not end in this time, in seconds.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while (status := self._look(0 if end_s is None else os.WNOHANG)) is None:
            if end_s is not None and time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(EXIT_STEP_S)
        return status

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _look(self, options: int) -> int | None:
        if self._status is None:
            try:
                found, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # something else has waited for it, and knows its status
                self._status = 0
            else:
                self._status = os.waitstatus_to_exitcode(status) if found else None
        return self._status


class Template:
    """A process that starts workers as copies of itself. As a context manager, it ends at the end; its copies do not.

    Args:
        environment: The complete environment of the workers.
        log_path: File for its stdout and stderr.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, environment: Mapping[str, str], log_path: Path) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_LIMIT_S)
        try:
            with there, log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    [*PYTHON, "-m", "ortune.worker.template", str(there.fileno())],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[there.fileno()],
                    process_group=0,
                )
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def start_worker(self, log: IO[bytes]) -> tuple[Copy, Connection]:
        """Start a worker, and return its process and the parent's end of its pipe.

        Args:
            log: File for the worker's stdout and stderr.

        Raises:
            OSError: It cannot be started, nor any other one.
        """
        here, there = Pipe(duplex=True)
        try:
            with there, adopting():
                socket.send_fds(self._socket, [b"copy"], [there.fileno(), log.fileno()])
                answer = self._socket.recv(64)
            if not answer.isdigit():
                raise ChildProcessError(errno.ECHILD, answer.decode() or "the template has ended")
        except BaseException:
            here.close()
            self._socket.close()
            raise
        return Copy(int(answer)), here
