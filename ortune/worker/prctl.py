"""Per-process and per-thread options of the Linux kernel, prctl(2). On other systems these functions do nothing."""

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
    """Make the kernel kill this process when its parent ends, even while this process is suspended."""
    if sys.platform == "linux":  # Windows has no SIGKILL
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends, so that it can end daemons too."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def minimize_timer_slack() -> None:
    """Make sleeps of this thread end on time. By default, the kernel may extend each by 50 µs."""
    prctl(PR_SET_TIMERSLACK, 1)
