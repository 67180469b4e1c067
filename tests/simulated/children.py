"""Workers that are forks of a process that has imported everything; see `tests/simulated/child_server.py`.

They are real processes, with the process of the test as their parent: they can be suspended, killed and waited for.
Only what happens before the first line of their program is not tested: the start of Python, and the imports.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ortune.interpreter import PYTHON, SAFE_PATH
from ortune.prctl import adopting
from ortune.worker.child_process import BLAS_THREADS, TELEMETRY_OFF

SERVER = Path(__file__).parent / "child_server.py"

NewProcess = subprocess.Popen
"""How Python starts processes."""

MODULES = (
    "benchmarks.replay_server",
    "ortune.doctor.optimized_graph",
    "ortune.export.save",
    "ortune.profile.record_trace",
    "ortune.program.http_worker",
    "ortune.worker.main",
    "ortune.worker.working_inputs",
)
"""Modules that are run in forks."""

SCRIPTS = "worker.py"
"""How the names of scripts end that are run in forks."""

AT_START = ("GLIBC_", "KMP_", "LD_", "MALLOC_", "OMP_", "PYTHON")
"""How the names of environment variables begin that act when a process starts."""


@functools.cache
def start_server(parent: int) -> socket.socket:
    """Start the server, once for each process of pytest, and return the connection to it.

    Args:
        parent: Id of this process.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [*PYTHON, str(SERVER), str(there.fileno())]
        environment = {**os.environ, **TELEMETRY_OFF, BLAS_THREADS: "1"}
        server = NewProcess(command, pass_fds=[there.fileno()], env=environment)
    atexit.register(end_server, server, here)
    return here


def end_server(server: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """End the server."""
    connection.close()
    server.wait()


def find_program(command: Sequence[object]) -> list[str] | None:
    """Return the arguments of a command after those of Python, if it starts one of the programs that are forks."""
    interpreter, *program = [str(argument) for argument in command]
    if interpreter != sys.executable:
        return None
    if program[:1] == [SAFE_PATH]:
        del program[0]
    if len(program) < 2:
        return None
    is_known = program[0] == "-m" and program[1] in MODULES
    return program if is_known or program[0].endswith(SCRIPTS) else None


def select_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that act when a process starts, for which a fork would be too late."""
    return {name: text for name, text in environment.items() if name.startswith(AT_START)}


class ForkedProcess(NewProcess):  # type: ignore[type-arg]
    """A process, which is a fork if it is a worker."""

    def _execute_child(self, *arguments: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]
        wanted = inspect.signature(start).bind(*arguments).arguments
        environment = dict(os.environ if wanted["env"] is None else wanted["env"])
        program = None if isinstance(wanted["args"], str) else find_program(wanted["args"])
        if program is None or select_at_start(environment) != select_at_start(os.environ):
            start(*arguments)
            return
        given = {0: wanted["p2cread"], 1: wanted["c2pwrite"], 2: wanted["errwrite"]}
        files = {target: number if number >= 0 else target for target, number in given.items()}
        files.update({number: number for number in wanted["pass_fds"]})
        request = {
            "arguments": program,
            "environment": environment,
            "cpus": sorted(os.sched_getaffinity(0)),
            "cwd": str(wanted["cwd"] or Path.cwd()),
            "process_group": wanted["process_group"] if wanted["process_group"] >= 0 else None,
            "targets": [*files],
        }
        try:
            self.pid = ask_for_fork(request, [*files.values()])
            self._child_created = True
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(wanted[end] for end in ends))  # type: ignore[attr-defined]


def ask_for_fork(request: dict[str, Any], files: Sequence[int]) -> int:
    """Return the id of a new child of this process."""
    connection = start_server(os.getpid())
    with adopting():
        socket.send_fds(connection, [json.dumps(request).encode()], files)
        child = int(connection.recv(64))
        assert connection.recv(64) == b"adopted"
    return child


@contextlib.contextmanager
def fork_children() -> Iterator[None]:
    """Let workers be forks in this block. Elsewhere than on Linux, they are not."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(subprocess, "Popen", ForkedProcess)
        yield
