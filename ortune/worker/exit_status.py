"""Explains why a child process ended, from its exit status and the end of its log."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol

from ortune.interrupts import name_signal
from ortune.worker.failure import Failure
from ortune.worker.session_log import read_log


class ChildProcess(Protocol):
    """A process that can be waited for."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status; negative for a signal.

        Raises:
            subprocess.TimeoutExpired: It does not end in this time, in seconds.
        """


EXIT_TIMEOUT_S = 10.0
"""Time to wait for the end of a process that has closed its pipe."""


def count_oom_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes the kernel has killed so far because memory ran out; None if unknown.

    These are the processes of this process's cgroup, whichever limit they hit. Where it does not count them, those of
    the nearest cgroup above it that does count, or of the whole host.

    Sources: the Linux kernel documentation, admin-guide/cgroup-v2 (`memory.events`) and admin-guide/cgroup-v1/memory
    (`memory.oom_control`); `oom_kill` in /proc/vmstat, since Linux 4.13.

    Args:
        root: Folder that contains `/proc` and `/sys`.
    """
    from ortune.host.linux import cgroup_directories, read_text

    paths = [directory / "memory.events" for directory in cgroup_directories(root, "")]
    paths += [directory / "memory.oom_control" for directory in cgroup_directories(root, "memory")]
    for path in (*paths, root / "proc/vmstat"):
        for line in read_text(path).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return None


def explain_closed_pipe(
    process: ChildProcess, name: str, log_path: Path, stage: str, *, n_oom_kills: int | None
) -> Failure:
    """Wait for the end of a child process that has closed its pipe, and return why it ended.

    Args:
        process: The process.
        name: What it is, for messages.
        log_path: Its log.
        stage: What it was doing.
        n_oom_kills: The result of `count_oom_kills` when it was started.
    """
    try:
        status = process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Failure(kind="exit", stage=stage, message=f"{name} closed its pipe but did not exit")
    return explain_exit(status, log_path, stage, n_oom_kills=n_oom_kills)


def explain_exit(status: int, log_path: Path, stage: str, *, n_oom_kills: int | None = None) -> Failure:
    """Return why a child process ended before it replied. A cause that is not known is not guessed.

    Args:
        status: Its exit status; negative for a signal.
        log_path: Its log.
        stage: What it was doing.
        n_oom_kills: The result of `count_oom_kills` when the process was started.
    """
    tail = " ".join(read_log(log_path)[-2:])
    suffix = f": {tail}" if tail else ""
    if status >= 0:
        return Failure(kind="exit", stage=stage, message=f"the process exited with status {status}{suffix}")
    name = name_signal(-status)
    message = f"ended by {name}{suffix}"
    if name == "SIGKILL" and n_oom_kills is not None and (count_oom_kills() or 0) > n_oom_kills:
        message = "ended by SIGKILL while the kernel was killing processes because memory ran out"
        return Failure(kind="out_of_memory", stage=stage, message=message)
    return Failure(kind="out_of_memory" if "bad_alloc" in tail else "crash", stage=stage, message=message)
