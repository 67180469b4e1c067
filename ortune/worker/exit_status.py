"""Explains why a child process ended, from its exit status and the end of its log."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from ortune.worker.failure import Failure

LOG_TAIL_BYTES = 4096
LOG_TAIL_LINES = 8
LONGEST_LINE = 400
"""Characters of a line of the log that are kept."""


def explain_exit(status: int, log_path: Path, stage: str) -> Failure:
    """Return why a child process ended before it replied.

    Args:
        status: Its exit status; negative for a signal.
        log_path: Its log.
        stage: What it was doing.
    """
    tail = " ".join(read_log(log_path)[-2:])
    suffix = f": {tail}" if tail else ""
    if status >= 0:
        return Failure(kind="exit", stage=stage, message=f"the process exited with status {status}{suffix}")
    name = signal.Signals(-status).name
    if "bad_alloc" in tail or name == "SIGKILL":
        return Failure(kind="out_of_memory", stage=stage, message=f"killed by {name}, probably out of memory")
    return Failure(kind="crash", stage=stage, message=f"killed by {name}{suffix}")


def read_log(path: Path) -> tuple[str, ...]:
    """Return the last lines of a child's log, without repeated lines and color codes."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - LOG_TAIL_BYTES, 0))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ()
    lines = (line.strip() for line in remove_colors(text).splitlines())
    return tuple(dict.fromkeys(line[:LONGEST_LINE] for line in lines if line))[-LOG_TAIL_LINES:]


def remove_colors(text: str) -> str:
    """Return a text without the codes that set colors on a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
