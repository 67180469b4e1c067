"""Workers as copies of a process that has imported what they import; see `ortune.worker.template`.

Most of the time of a launch is spent on starting Python and importing NumPy and onnxruntime. A copy, which `fork`
makes, has imported them already. Copies of one process share its layout of memory, which affects how fast they are.
All workers of a launch are therefore copies, or none is, and each launch copies a new process. The workers of
confirmations, of gates and of `ortune bench` are started on their own.
"""

from __future__ import annotations

import contextlib
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
from ortune.worker.protocol import receive

CAN_COPY = sys.platform == "linux"
"""Whether there are copies. They need Linux, where a process can adopt them."""

FEWEST_COPIES = 3
"""Workers of a launch from which on copies are ready earlier than workers that are started on their own."""

IMPORT_LIMIT_S = 120.0
COPY_LIMIT_S = 10.0
"""Time for the template to import everything, and for a copy to be made."""

EXIT_STEP_S = 0.0005
"""How often it is checked whether a copy has ended."""


class CopiedWorker:
    """A child process that was not started by `subprocess`, with the methods of its processes that are needed.

    Args:
        pid: Its id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None if it runs."""
        return self._poll(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, as soon as it has ended.

        Raises:
            subprocess.TimeoutExpired: It does not end in this time, in seconds.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while (status := self._poll(0 if end_s is None else os.WNOHANG)) is None:
            if end_s is not None and time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(EXIT_STEP_S)
        return status

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _poll(self, options: int) -> int | None:
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
        self._socket.settimeout(IMPORT_LIMIT_S)
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

    def wait(self) -> None:
        """Wait until it has imported everything.

        Raises:
            OSError: It cannot be copied.
        """
        if not self._socket.recv(64):
            raise ChildProcessError(errno.ECHILD, "the template has ended")

    def start_worker(self, log: IO[bytes]) -> tuple[CopiedWorker, Connection]:
        """Start a worker, and return its process and the parent's end of its pipe.

        Args:
            log: File for the worker's stdout and stderr.

        Raises:
            OSError: It cannot be started.
        """
        here, there = Pipe(duplex=True)
        try:
            with adopting():
                with there:
                    socket.send_fds(self._socket, [b"copy"], [there.fileno(), log.fileno()])
                answer = receive(here, COPY_LIMIT_S)
        except EOFError:
            here.close()
            raise ChildProcessError(errno.ECHILD, "the copy has ended") from None
        except BaseException:
            here.close()
            raise
        return CopiedWorker(int(answer)), here
