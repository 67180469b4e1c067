"""The parent's side of a supervised program: start it, wait for its end, suspend, resume and end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import HostError
from ortune.interpreter import PYTHON
from ortune.interrupts import uninterrupted
from ortune.prctl import name_parent
from ortune.secret_variables import inherit_environment

SUPERVISOR_COMMAND = (*PYTHON, "-m", "ortune.program.supervisor")

REPLY_TIMEOUT_S = 60.0
"""The supervisor answers at once. If it does not, it was suspended or the host does not work."""

ENDING_PATIENCE_S = 5.0
"""Time that a program has to end after it was asked to."""

SUPERVISOR_ENDED = "the process that supervises it was ended"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program.

    Attributes:
        status: Its exit status; the negative number of the signal that ended it.
        wall_ns: Time from its start to its end.
        cpu_ns: CPU time of all of its processes.
        peak_bytes: Peak resident memory of its largest process.
        is_lost: Whether its supervisor was ended, and the program with it. CPU time and memory are then unknown.
    """

    status: int
    wall_ns: int
    cpu_ns: int
    peak_bytes: int
    is_lost: bool = False


class _Answer(msgspec.Struct, frozen=True):
    reply: dict[str, Any] | None = None
    ended: Ended | None = None


class ProgramProcess:
    """A program under a supervisor of its own. It can be launched again after it has ended.

    All processes of the program end with this object, and also if this process is killed. If the supervisor is killed,
    the program ends with it, and its next start has a new supervisor.

    Attributes:
        supervisor_pid: Id of the supervisor, the ancestor of all processes of the program; 0 before it was started.
        pid: Id of the program's first process; 0 before it was started.
        ended: The end of the program; None while it runs.

    Raises:
        HostError: The supervisor cannot be started.
    """

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self._started_s = 0.0
        self._start_supervisor()

    def _start_supervisor(self) -> None:
        here, there = socket.socketpair()
        try:
            with there:
                self._process = subprocess.Popen(
                    [*SUPERVISOR_COMMAND, str(there.fileno())],
                    pass_fds=[there.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env={**inherit_environment(), **name_parent()},
                )
        except OSError as error:
            here.close()
            raise HostError(f"Cannot start a process: {error.strerror}.", "Check the limit of processes.") from None
        self._connection = here
        self._buffer = b""
        self._is_lost = False
        self.supervisor_pid = self.pid = 0

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: Path,
        stderr: Path,
        stdin: Path = Path(os.devnull),
        folder: Path | None = None,
    ) -> None:
        """Start the program.

        Args:
            command: Program and arguments.
            environment: Its complete environment.
            stdout: File for its stdout.
            stderr: File for its stderr.
            stdin: File for its stdin.
            folder: Its working directory; None for that of this process.

        Raises:
            OSError: It cannot be started.
        """
        if self._is_lost:
            with uninterrupted():
                self._start_supervisor()
        self.ended, self._started_s = None, time.monotonic()
        reply = self._request(
            "start",
            command=list(command),
            environment=dict(environment),
            stdin=str(stdin),
            stdout=str(stdout),
            stderr=str(stderr),
            folder=str(folder or Path.cwd()),
        )
        if "error" in reply:
            raise OSError(0, reply["error"])
        if reply:  # else the supervisor was ended in the meantime, which `ended` says
            self.pid, self.supervisor_pid = reply["pid"], reply["supervisor_pid"]

    def wait(self, timeout_s: float) -> Ended | None:
        """Sleep until the program ends, for at most this time. Return its end, or None if it still runs."""
        end_s = time.monotonic() + timeout_s
        while self.ended is None:
            answer = self._receive(end_s - time.monotonic())
            if answer is None:
                return None
            self._take(answer)
        return self.ended

    def suspend(self) -> None:
        """Suspend all processes of the program."""
        self._request("suspend")

    def resume(self) -> None:
        """Resume all processes of the program."""
        self._request("resume")

    def end(self, patience_s: float = ENDING_PATIENCE_S) -> Ended | None:
        """End the program and all of its processes: ask them first, and kill what is left after a time.

        Args:
            patience_s: The time; 0 to kill at once.
        """
        self._request("end", patience_s=patience_s, timeout_s=patience_s + REPLY_TIMEOUT_S)
        return self.ended

    def close(self) -> None:
        """Kill all processes of the program, and end the supervisor. It may be called more than once."""
        self._connection.close()
        self._wait_for_supervisor()

    def _wait_for_supervisor(self) -> None:
        """Wait until the supervisor and its guard have killed the program and have ended."""
        try:
            self._process.wait(REPLY_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # pragma: no cover  (the supervisor hangs)
            self._process.kill()
            self._process.wait()

    def _request(self, do: str, *, timeout_s: float = REPLY_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        """Make a request and return the reply, which is empty if the supervisor has ended."""
        with contextlib.suppress(OSError):  # it has ended, which reading the reply notices
            self._connection.settimeout(timeout_s)
            self._connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        end_s = time.monotonic() + timeout_s
        while not self._is_lost:
            answer = self._receive(end_s - time.monotonic())
            if answer is None:
                raise HostError("The process that supervises the program does not answer.")
            if answer.reply is not None:
                return answer.reply
            self._take(answer)
        return {}

    def _take(self, answer: _Answer) -> None:
        if answer.ended:
            self.ended = answer.ended

    def _receive(self, timeout_s: float) -> _Answer | None:
        """Return the next message, or None if there is none in time. The supervisor's end is that of the program."""
        end_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            try:
                self._connection.settimeout(max(end_s - time.monotonic(), 0.0))
                data = self._connection.recv(1 << 16)
            except (TimeoutError, BlockingIOError):  # the second one if there was no time to wait
                return None
            except OSError:
                data = b""
            if not data:
                self._lose()
                return _Answer()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return msgspec.json.decode(line, type=_Answer)

    def _lose(self) -> None:
        """Note the end of the supervisor, and with it that of the program, of which it kills what is left."""
        wall_ns = round((time.monotonic() - self._started_s) * 1e9)
        lost = Ended(status=-signal.SIGKILL, wall_ns=wall_ns, cpu_ns=0, peak_bytes=0, is_lost=True)
        self.ended, self._is_lost = self.ended or lost, True
        self._connection.close()
        self._wait_for_supervisor()
