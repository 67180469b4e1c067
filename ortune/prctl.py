"""Per-process and per-thread options of the Linux kernel, prctl(2). On other systems these functions do nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37


def prctl(option: int, value: int) -> None:
    """Set an option of this process or thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


HAS_DEATH_SIGNAL = sys.platform == "linux"
"""Whether `die_with_parent` has an effect."""

PARENT = "ORTUNE_PARENT"
"""Environment variable of child processes: the process id of their parent."""


def name_parent() -> dict[str, str]:
    """Return what the environment of a child process must contain for `die_with_parent`."""
    return {PARENT: str(os.getpid())}


def request_death_signal(number: int | None = None) -> None:
    """Make the kernel send this process a signal when its parent ends: SIGKILL by default."""
    if sys.platform == "linux":  # Windows has no SIGKILL
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL if number is None else number)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends, even while this process is suspended.

    If the parent has ended already, this process ends here.
    """
    request_death_signal()
    if HAS_DEATH_SIGNAL and os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends, so that it can end daemons too."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Make this process the parent of descendants whose own parent ends in this block. Threads may overlap in it."""
    with _adoption.lock:
        if not _adoption.n_blocks:
            _adoption.before = _is_adopting()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        _adoption.n_blocks += 1
    try:
        yield
    finally:
        with _adoption.lock:
            _adoption.n_blocks -= 1
            if not _adoption.n_blocks:
                prctl(PR_SET_CHILD_SUBREAPER, _adoption.before)


class _Adoption:
    """How many blocks of `adopting` there are, and whether this process adopted orphans before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_blocks = 0
        self.before = 0


_adoption = _Adoption()


def _is_adopting() -> int:
    found = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return found.value


def minimize_timer_slack() -> None:
    """Make sleeps of this thread end on time. By default, the kernel may extend each by 50 µs."""
    prctl(PR_SET_TIMERSLACK, 1)
