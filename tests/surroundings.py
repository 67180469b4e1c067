"""What surrounds a command that runs in a fork of `tests/fork_server.py`: mounts, limits, streams, and changes."""

from __future__ import annotations

import ctypes
import io
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

CLONE_NEWNS = 0x00020000


def run_command(
    *,
    mounts: str = "",
    cwd: str = ".",
    limit: tuple[int, int] | None = None,
    streams: Mapping[int, str] | None = None,
    encoding: str = "utf-8",
    before_block: tuple[int, str] | None = None,
) -> None:
    """Run the command line.

    Args:
        mounts: A script of a shell that runs first. Only this process and its children see what it mounts.
        cwd: Its working directory.
        limit: A limit of `resource`, and its value.
        streams: Files or terminals that stdout (1) and stderr (2) lead to.
        encoding: Encoding of the streams, as `PYTHONIOENCODING` sets it.
        before_block: Number of a block of a simulated search, and a script of a shell that runs before it.
    """
    tempfile.tempdir = None  # that of the environment, as in a new process
    if mounts:
        mount(mounts)
    os.chdir(cwd)
    for number, path in (streams or {}).items():
        write_to(path, number)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding=encoding)
    if before_block:
        tempfile.gettempdir()  # where a search that is not simulated has its files from the start
        change_before(*before_block)
    if limit:
        resource.setrlimit(limit[0], (limit[1], limit[1]))
    from ortune.__main__ import main

    main()


def mount(script: str) -> None:
    """Run a script of a shell that mounts file systems, as `unshare -m` does."""
    assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    run_script(script)


def write_to(path: str, number: int) -> None:
    """Let stdout (1) or stderr (2) lead to a file or a terminal."""
    opened = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    os.dup2(opened, number)
    os.close(opened)
    stream = os.fdopen(number, "w", buffering=1, closefd=False)
    setattr(sys, "stdout" if number == 1 else "stderr", stream)


def change_before(number: int, script: str) -> None:
    """Run a script of a shell before a simulated search measures the block of this number."""
    from tests.simulated import SimulatedLive

    measure = SimulatedLive.measure
    numbers = itertools.count(1)

    def change_and_measure(*arguments: Any) -> Any:
        if next(numbers) == number:
            run_script(script)
        return measure(*arguments)

    SimulatedLive.measure = change_and_measure  # type: ignore[assignment,method-assign]


def run_script(script: str) -> None:
    subprocess.run(["sh", "-ec", script], check=True)
