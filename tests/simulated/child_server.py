"""Starts Python programs in forks of one process, which has imported NumPy, onnxruntime and the package already.

A fork takes a hundredth of the CPU time that the imports take. It becomes a child of the process that asks for it, with
the arguments, the environment, the open files, the CPUs, the working folder and the process group of a new one.
`tests/simulated/children.py` asks: it sends one JSON object per message, with the open files, and gets the process id.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

NAME = "forked child"
"""Name of the forks, which differs from that of this process."""

MOST_BYTES = 1 << 20
"""Largest size of a request."""

MOST_FILES = 8
"""Largest number of files that a request passes."""

STARTS = (
    "ortune.doctor.optimized_graph",
    "ortune.model.",
    "ortune.profile.record",
    "ortune.program.http",
    "ortune.worker.",
)
"""How the names of modules begin that run in child processes."""

FIRST_FREE = 500
"""Files that arrive are moved to numbers from here on, so that none of them replaces another."""


def import_modules() -> None:
    """Import what workers import."""
    import http.server  # noqa: F401

    import onnxruntime  # noqa: F401

    import ortune

    for module in pkgutil.walk_packages(ortune.__path__, "ortune."):
        if module.name.startswith(STARTS):
            importlib.import_module(module.name)


def serve(connection: socket.socket) -> None:
    """Answer requests until the connection is closed. In a fork, return when the program has ended."""
    while True:
        content, files, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_FILES)
        if not content:
            os._exit(0)
        request = json.loads(content)
        gate, opener = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                connection.detach()  # its number may become that of a file of the program
                os.close(opener)
                os.read(gate, 1)  # until its parent has ended, and the process that asks has adopted it
                enter(request, files)
                return
            connection.send(str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for number in (gate, opener, *files):
            os.close(number)
        connection.send(b"adopted")


def enter(request: dict[str, Any], files: list[int]) -> None:
    """Make this process what the request asks for."""
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for number in files]
    os.closerange(3, FIRST_FREE)
    for number, target in zip(moved, request["targets"], strict=True):
        os.dup2(number, target)
    for number in moved:
        os.close(number)
    Path("/proc/self/comm").write_text(NAME)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cpus"])
    if request["process_group"] is not None:
        os.setpgid(0, request["process_group"])
    sys.argv = request["arguments"]


def run() -> None:
    """Run the program that the arguments name."""
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.modules.pop(sys.argv[0], None)  # as if it had not been imported
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fork_server import run_to_end

    import_modules()
    gc.freeze()  # or collections in forks would copy the memory of all modules
    serve(socket.socket(fileno=int(sys.argv[1])))
    code = run_to_end(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
