"""Ctrl-C and `docker stop`: when they may strike, and when they must wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


def end_at_once() -> None:
    """Let Ctrl-C end this process without a word, as long as there is nothing to clean up.

    Raised as an exception in the middle of an import, it comes out as whatever the imported module makes of it.
    """
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # not where it is ignored, as in a script's background
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, and SIGTERM, as `docker stop` sends it, do the same."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def is_interrupt(error: BaseException) -> bool:
    """Tell whether an exception is an interrupt, or one in disguise.

    Python 3.11 turns what is raised in `__set_name__`, and any version what is raised in a callback, into a
    RuntimeError with the cause attached.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__
    return False


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold interrupts back until the end of a step that must be done whole, such as starting a process."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield  # signals strike the main thread alone; with no handler in Python there is nothing to hold back
        return
    pending: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if pending:
            signal.raise_signal(signal.SIGINT)
