"""Runs a server for the process that starts this one, and ends it with that process, however that ends.

    python tests/supervise.py '{"first": [...], "command": [...], "user": "postgres", "stop": "SIGINT", ...}'

The first command writes the data of the server; it is empty if there are data already. The server is stopped when stdin
ends, which it also does if the parent was killed. Then the folder is removed, unless the parent has written `keep`
before. Interrupts from the terminal are ignored: they are for the parent. If this process itself is killed, the kernel
kills the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1

PATIENCE_S = 20
"""How long a server may take to stop before it is killed."""

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def prepare(parent: int, user: str) -> None:
    """Run in a child, before its program."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_DFL)
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    # The change of the user resets it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def start(command: list[str], job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a program as the user of the server."""
    parent = os.getpid()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        cwd=job["folder"],
        env={**os.environ, **job["environment"]},
        preexec_fn=lambda: prepare(parent, job["user"]),
        start_new_session=True,
    )


def serve(job: dict[str, Any]) -> str:
    """Run the server until the end of stdin, and return what the parent has written."""
    if job["first"] and start(job["first"], job).wait():
        os.close(1)  # the parent waits for the number of the server
        return sys.stdin.read()
    server = start(job["command"], job)
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        os.write(1, f"{server.pid}\n".encode())
    words = sys.stdin.read()  # until the parent closes it, or ends
    if server.poll() is None:
        server.send_signal(getattr(signal, job["stop"]))
    try:
        server.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    return words


def main() -> None:
    job = json.loads(sys.argv[1])
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    if "keep" not in serve(job):
        shutil.rmtree(job["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
