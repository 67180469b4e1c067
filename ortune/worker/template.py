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
from ortune.worker.cpu import thread_ids
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
        # The process that asked adopts the child of one that ends. If no copy can be made, its pipe is closed.
        if os.fork() == 0:
            first_parent = os.getpid()
            try:
                is_copy = os.fork() == 0
            except OSError:
                is_copy = False
            if is_copy:
                requests.close()
                pipe, log = handles
                connection = Connection(pipe)
                become_worker(connection, log, first_parent)
                return connection
            os._exit(0)
        os.wait()
        for handle in handles:
            os.close(handle)


def become_worker(connection: Connection, log: int, first_parent: int) -> None:
    """Make this copy a process like one that was started on its own, and send its id to the process that asked for it.

    Args:
        connection: Its end of the pipe.
        log: Handle of the file for its stdout and stderr.
        first_parent: Id of its parent, which ends.
    """
    os.setpgid(0, 0)
    while (parent := os.getppid()) == first_parent:
        time.sleep(ADOPTION_STEP_S)
    if str(parent) != os.environ[PARENT]:  # another process has adopted it
        os._exit(1)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    connection.send_bytes(str(os.getpid()).encode())


def main() -> None:
    """Serve the parent. The last command-line argument is the handle of the socket."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for name in IMPORTED:
        importlib.import_module(name)
    if len(thread_ids()) != 1:
        os._exit(1)  # a copy would lack the others, and might wait for a lock that one of them holds
    gc.freeze()  # or collections in copies would copy the memory of all modules
    requests = socket.socket(fileno=int(sys.argv[-1]))
    requests.send(b"ready")
    run(make_copies(requests))


if __name__ == "__main__":
    main()
