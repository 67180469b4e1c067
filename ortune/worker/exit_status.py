"""What a child process that ended leaves behind: its status and its log, and what they say of the cause."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from ortune.worker.failure import Failure

LOG_TAIL_BYTES = 4096
LOG_TAIL_LINES = 8


def explain_exit(status: int, tail: str, stage: str) -> Failure:
    """Return why a child ended before it answered.

    Args:
        status: Its exit status, negative for a signal.
        tail: The end of its log, in a line.
        stage: What it was doing.
    """
    if status >= 0:
        message = f"the process ended by itself with status {status}"
        return Failure(kind="exit", stage=stage, message=f"{message}: {tail}" if tail else message)
    name = signal.Signals(-status).name
    if "bad_alloc" in tail or name == "SIGKILL":
        message = f"ended by {name}, most likely for lack of memory"
        return Failure(kind="out_of_memory", stage=stage, message=message)
    return Failure(kind="crash", stage=stage, message=f"ended by {name}" + (f": {tail}" if tail else ""))


def read_log(path: Path) -> tuple[str, ...]:
    """Return the last lines that a child printed, without repetitions and colour codes."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - LOG_TAIL_BYTES, 0))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ()
    lines = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line[:400] for line in lines if line))[-LOG_TAIL_LINES:]
