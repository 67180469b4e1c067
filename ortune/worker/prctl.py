"""Asks the Linux kernel for what a process or thread may have of it (prctl(2)); elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Set an option of this process or thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, even while it is suspended."""
    if sys.platform == "linux":  # there is no SIGKILL on Windows
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
