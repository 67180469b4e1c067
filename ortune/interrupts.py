"""Handling of Ctrl-C, of `docker stop`, and of a terminal that is closed."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, *(() if sys.platform == "win32" else (signal.SIGHUP,)))
"""Signals that `raise_interrupts` makes raise KeyboardInterrupt."""

REPEAT_S = (0.001, 0.05, 0.25, 1.0)
"""When an interrupt is raised again that Python ignored, which it does in a destructor.

It is repeated unless it is handled: Python does not notice a signal that arrives just before a system call, and sleeps.
"""

_n_handled = 0
"""Number of interrupts that were handled."""


def count_handled() -> int:
    """Return how many interrupts came so far from other signals than SIGINT, which Ctrl-C does not send."""
    return _n_handled


def end_at_once() -> None:
    """Let Ctrl-C end this process silently, while there is nothing to clean up.

    A KeyboardInterrupt during an import may be caught by the imported module, or turned into another exception.
    """
    # Shells ignore SIGINT in background processes of a script. Leave it ignored there.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, and SIGTERM and SIGHUP as well.

    `docker stop` sends SIGTERM, and a terminal that is closed sends SIGHUP. After `nohup`, the latter stays ignored.

    Python prints and ignores exceptions in destructors and some callbacks. An interrupt there is raised again.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    previous = sys.unraisablehook

    def repeat_interrupt(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            previous(ignored)
            return
        # Raised before this function has ended, it would be ignored, too.
        has_ended = threading.Event()
        thread = threading.Thread(target=_repeat_interrupt, args=(has_ended,), daemon=True)
        try:
            thread.start()
        finally:
            has_ended.set()

    sys.unraisablehook = repeat_interrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _n_handled
    _n_handled += 1
    if sys.platform != "win32" and number == signal.SIGHUP:
        # A terminal that is closed sends it twice, from the shell and from the system. The second one would end what
        # the first one began: to write the best so far.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _repeat_interrupt(may_begin: threading.Event) -> None:
    may_begin.wait()
    n_handled = _n_handled
    for pause_s in REPEAT_S:
        time.sleep(pause_s)
        if _n_handled != n_handled:
            return
        _interrupt_main_thread()


def _interrupt_main_thread() -> None:
    if sys.platform == "win32":  # pragma: no cover
        _thread.interrupt_main(signal.SIGTERM)
    else:  # this also ends a system call, such as one that sleeps
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is, or was caused by, a KeyboardInterrupt.

    If `__set_name__` raises one, Python 3.11 raises a RuntimeError with it as the cause. So do callbacks from C in any
    version.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__
    return False


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay interrupts until the end of a step that must not be interrupted, such as starting a process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    # Without a handler in Python, there is nothing to delay.
    previous = {number: handler for number in INTERRUPTS if callable(handler := signal.getsignal(number))}
    pending: list[int] = []
    for number in previous:
        signal.signal(number, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        for number, handler in reversed(previous.items()):
            # SIGINT comes last: the handlers of the others raise it, which is still delayed.
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


def name_signal(number: int) -> str:
    """Return the name of a signal. Real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
