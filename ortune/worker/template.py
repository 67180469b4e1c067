"""A process that has imported what workers import, and starts workers as copies of itself.

It runs as `python -m ortune.worker.template HANDLE`, where HANDLE is its end of a socket, and ends when the socket is
closed. Its copies become children of the process that asks for them; see `ortune.worker.copies`.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection

from ortune.prctl import PARENT, die_with_parent
from ortune.worker.main import run

IMPORTED = (
    "numpy",
    "onnxruntime",
    "ortune.worker.batches",
    "ortune.worker.calls",
    "ortune.worker.outputs",
    "ortune.worker.session",
    "ortune.workload.feed",
)
"""What a worker imports when it loads a candidate."""

ADOPTION_STEP_S = 0.0005
"""How often a copy looks whether it has been adopted."""


def make_copies(requests: socket.socket) -> Connection:
    """Make a copy for each request, and return the end of its pipe in each copy. The template itself ends here."""
    while True:
        message, handles, _, _ = socket.recv_fds(requests, 64, 2)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            # The process that asked adopts the child of one that ends.
            between = os.getpid()
            if os.fork() == 0:
                pipe, log = handles
                become_worker(requests, log, between)
                return Connection(pipe)
            os._exit(0)
        os.wait()
        for handle in handles:
            os.close(handle)


def become_worker(requests: socket.socket, log: int, between: int) -> None:
    """Make this copy a process like one that was started on its own, and tell the process that asked for it the id.

    Args:
        requests: The socket of the template.
        log: Handle of the file for its stdout and stderr.
        between: Id of its first parent, which ends.
    """
    os.setpgid(0, 0)
    while (parent := os.getppid()) == between:
        time.sleep(ADOPTION_STEP_S)
    if str(parent) != os.environ[PARENT]:
        requests.send(b"another process adopted the worker")
        os._exit(1)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    requests.send(str(os.getpid()).encode())
    requests.close()


def main() -> None:
    """Serve the parent. The last command-line argument is the handle of the socket."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # or collections in copies would copy the memory of all modules
    run(make_copies(socket.socket(fileno=int(sys.argv[-1]))))


if __name__ == "__main__":
    main()
