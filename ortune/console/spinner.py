"""A line on the terminal that shows what a command does before it measures.

It is shown before libraries are imported, so this module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from ortune.sanitize import printable
from ortune.steps import end_steps, enter_step, observe_steps

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_FRAMES = "|/-\\"
"""What turns, and the same for terminals that cannot show it."""

TURN_S = 0.125

SHOW_TIME_AFTER_S = 2.0
"""How long a step takes before its time is shown."""


class Spinner:
    """Shows the current step, its time, and that the command is alive.

    A thread draws it. While a step is measured, the thread has ended and the line stands still.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._frames = FRAMES if (stream.encoding or "").lower().startswith("utf") else PLAIN_FRAMES
        self._name = ""
        self._begin_s = 0.0
        self._width = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def show(self, name: str, is_measured: bool) -> None:
        """Show a step; nothing if its name is empty."""
        if not name and not self._name:
            return
        self._end_thread()
        self._name, self._begin_s = printable(name), time.monotonic()
        self._draw(" " if is_measured else self._frames[0])
        if name and not is_measured:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._turn, args=(self._stop,), daemon=True)
            self._thread.start()

    def _end_thread(self) -> None:
        if self._thread:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _turn(self, stop: threading.Event) -> None:
        number = 0
        while not stop.wait(TURN_S):
            number += 1
            self._draw(self._frames[number % len(self._frames)])

    def _draw(self, frame: str) -> None:
        passed_s = time.monotonic() - self._begin_s
        text = f"{frame} {self._name}" if self._name else ""
        if self._name and passed_s >= SHOW_TIME_AFTER_S:
            text += f"  {passed_s:.0f} s"
        text = text[: max(shutil.get_terminal_size().columns - 1, 1)]
        line = f"\r{text.ljust(self._width)}" if text else f"\r{' ' * self._width}\r"
        self._width = len(text)
        with contextlib.suppress(OSError, ValueError):  # the terminal was closed
            self._stream.write(line)
            self._stream.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a spinner can be drawn on a stream."""
    with contextlib.suppress(ValueError):  # it is closed
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return False


@contextlib.contextmanager
def show_steps(*, quiet: bool = False) -> Iterator[None]:
    """Show the steps that begin in this block on stderr, if it is a terminal.

    Args:
        quiet: Whether to show nothing.
    """
    if quiet or not is_terminal(sys.stderr):
        yield
        return
    with observe_steps(Spinner(sys.stderr).show):
        enter_step("starting")
        try:
            yield
        finally:
            end_steps()
