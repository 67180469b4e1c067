"""Supervises a program: `python -P -m ortune.program.supervisor HANDLE`.

The supervisor starts the program, suspends and resumes the whole tree of its processes, and reports its end with the
time and the CPU time that it took. It adopts descendants whose own parent ends, so that daemons belong to the tree.
When the other end of its socket is closed, because the parent closed it, crashed or was killed, it kills the tree and
ends.

The supervisor is the child of a guard, which only waits. If the supervisor itself is killed, the guard adopts what is
left of the tree, and kills it. If the guard is killed, the kernel terminates the supervisor, which kills the tree.

Messages are lines of JSON. The supervisor answers each request with one line, and sends a line when the program ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ortune.prctl import adopt_orphans, request_death_signal
from ortune.program.tree import kill_tree, list_descendants, resume_tree, suspend_tree, terminate_tree

SUPERVISOR_POLL_S = 0.02
"""How often the supervisor looks whether processes that it terminated or killed have ended."""

KILLED_WAIT_S = 10.0
"""Time to wait for the end of processes that were killed."""

IGNORED = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all of its processes."""


class Supervisor:
    """The program of one supervisor, which is started any number of times, one after the other.

    Args:
        connection: Socket to the parent.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._terminated = False
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ns = 0
        self._cpu_s = 0.0
        self._peak_bytes = 0
        self._buffer = b""

    def terminate(self, *signal_and_frame: object) -> None:
        """Handle SIGTERM: stop to serve soon. An exception could be raised, and lost, in a destructor or a callback."""
        self._terminated = True

    def serve(self) -> None:
        """Answer requests until the parent closes the socket or the supervisor is terminated."""
        wakeup, write = socket.socketpair()
        for end in (wakeup, write):
            end.setblocking(False)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                selector.register(wakeup, selectors.EVENT_READ)
                while not self._terminated:
                    for key, _ in selector.select():
                        if key.fileobj is wakeup:
                            wakeup.recv(4096)
                            self._reap()
                        elif not self._receive():
                            return
        finally:
            signal.set_wakeup_fd(-1)  # children end after this

    def _receive(self) -> bool:
        """Answer the requests that have arrived, and return whether the socket is still open."""
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            return False
        if not data:
            return False
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            request = json.loads(line)
            self._send({"reply": getattr(self, f"do_{request.pop('do')}")(**request)})
        return True

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def do_start(
        self, command: list[str], environment: dict[str, str], stdin: str, stdout: str, stderr: str, folder: str
    ) -> dict[str, Any]:
        """Start the program. Its output goes to files, as the supervisor must not work while it is measured."""
        self._cpu_s, self._peak_bytes = 0.0, 0
        if not os.access(stdin, os.R_OK):
            return {"error": f"the file for its stdin, {stdin}, cannot be read"}
        try:
            with Path(stdin).open("rb") as source, Path(stdout).open("wb") as out, Path(stderr).open("wb") as err:
                self._started_ns = time.perf_counter_ns()
                self._process = subprocess.Popen(
                    command,
                    stdin=source,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                    preexec_fn=prepare_program,
                )
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": getattr(error, "strerror", None) or str(error)}
        return {"pid": self._process.pid, "supervisor_pid": os.getpid(), "started_ns": self._started_ns}

    def do_suspend(self) -> dict[str, Any]:
        """Suspend the tree."""
        return {"n_processes": suspend_tree(os.getpid())}

    def do_resume(self) -> dict[str, Any]:
        """Resume the tree."""
        resume_tree(os.getpid())
        return {}

    def do_end(self, patience_s: float) -> dict[str, Any]:
        """Terminate the tree, kill what has not ended after a time, and wait for the end of all processes."""
        if patience_s:
            terminate_tree(os.getpid())
            self._wait_for_end(patience_s)
        kill_tree(os.getpid())
        self._wait_for_end(KILLED_WAIT_S)
        return {"n_left": len(list_descendants(os.getpid()))}

    def _wait_for_end(self, left_s: float) -> None:
        end_s = time.monotonic() + left_s
        while self._reap() and time.monotonic() < end_s and not self._terminated:
            time.sleep(SUPERVISOR_POLL_S)

    def _reap(self) -> bool:
        """Collect processes that have ended, report the end of the program, and return whether others are left."""
        while True:
            try:
                number, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if number == 0:
                return True
            self._cpu_s += usage.ru_utime + usage.ru_stime
            self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
            if self._process and number == self._process.pid:
                ended_ns = time.perf_counter_ns()
                self._process.returncode = os.waitstatus_to_exitcode(status)
                status = self._process.returncode
                self._process = None
                # What it left running belongs to it: its CPU time counts, and the next run must not meet it.
                kill_tree(os.getpid())
                self._wait_for_end(KILLED_WAIT_S)
                self._send(
                    {
                        "ended": {
                            "status": status,
                            "wall_ns": ended_ns - self._started_ns,
                            "cpu_ns": round(self._cpu_s * 1e9),
                            "peak_bytes": self._peak_bytes,
                        }
                    }
                )


def prepare_program() -> None:
    """Set up the new process in which a program is about to start."""
    request_death_signal()
    # Programs must neither handle SIGTERM as the supervisor does until they are executed, nor inherit what it ignores.
    for number in (signal.SIGTERM, *IGNORED):
        signal.signal(number, signal.SIG_DFL)


def guard(supervisor: int) -> None:
    """Wait for the end of the supervisor, and kill what it leaves."""
    adopt_orphans()
    while os.wait()[0] != supervisor:
        pass
    end_s = time.monotonic() + KILLED_WAIT_S
    while time.monotonic() < end_s:
        kill_tree(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(SUPERVISOR_POLL_S)


def supervise(connection: socket.socket, parent: int) -> None:
    """Serve the requests of ortune, and kill the program in the end.

    Args:
        connection: Socket to ortune.
        parent: Id of the guard.
    """
    adopt_orphans()
    supervisor = Supervisor(connection)
    signal.signal(signal.SIGTERM, supervisor.terminate)
    request_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        return
    try:
        supervisor.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_tree(os.getpid())


def refuse(connection: socket.socket, reason: str) -> None:
    """Answer the first request with the reason why there is no supervisor."""
    request = b""
    with contextlib.suppress(OSError):  # the parent has ended
        while not request.endswith(b"\n"):
            data = connection.recv(1 << 16)
            if not data:
                return
            request += data
        connection.sendall(json.dumps({"reply": {"error": reason}}).encode() + b"\n")


def main() -> None:
    """Start the supervisor proper as a child, and guard it."""
    for number in IGNORED:  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[-1]))
    own = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        refuse(connection, error.strerror or str(error))
        return
    if child == 0:
        supervise(connection, own)
    else:
        connection.close()
        guard(child)


if __name__ == "__main__":
    main()
