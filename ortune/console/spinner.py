"""Shows on the terminal what a command does while it does not measure, and that it is alive.

It is shown before libraries are imported, so this module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from ortune.sanitize import printable
from ortune.steps import end_steps, enter_step, observe_steps

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_FRAMES = "|/-\\"
"""What turns, and the same for terminals that cannot show it."""

TURN_S = 0.125
LIVE_TURN_S = 0.25
"""Time between two frames, on a line of its own and in a display, which takes longer to draw."""

TICKER = "ortune-ticker"
"""Name of the threads that draw."""

SHOW_TIME_AFTER_S = 2.0
"""How long a step takes before its time is shown."""


STEPPED = frozenset(("search", "bench", "gate", "plan", "doctor", "space", "suggest", "profile", "apply", "inspect"))
"""Commands that show their steps."""

SILENT = frozenset(("-q", "--quiet", "-h", "--help"))
"""Options with which no step is shown."""


class Ticker:
    """Calls a function several times a second, in a thread, until it is stopped."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()  # several threads may enter steps

    def start(self, draw: Callable[[int], None], interval_s: float) -> None:
        """Call a function from now on, with the number of the call from 1 on."""
        with self._lock:
            self.stop()
            self._stop = threading.Event()
            arguments = (self._stop, draw, interval_s)
            self._thread = threading.Thread(target=self._run, args=arguments, name=TICKER, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Do not call it any more. A call that is under way ends before this returns."""
        with self._lock:
            if self._thread:
                self._stop.set()
                self._thread.join()
                self._thread = None

    def _run(self, stop: threading.Event, draw: Callable[[int], None], interval_s: float) -> None:
        number = 0
        while not stop.wait(interval_s):
            number += 1
            draw(number)


class Spinner:
    """Shows the current step, its time, and that the command is alive.

    A thread draws it. While a step is measured, the thread has ended and the line stands still.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._frames = choose_frames(stream.encoding)
        self._name = ""
        self._begin_s = 0.0
        self._width = 0
        self._ticker = Ticker()

    def show(self, name: str, is_measured: bool) -> None:
        """Show a step; nothing if its name is empty."""
        if not name and not self._name:
            return
        self._ticker.stop()
        self._name, self._begin_s = printable(name), time.monotonic()
        self._draw(" " if is_measured else self._frames[0])
        if name and not is_measured:
            self._ticker.start(lambda number: self._draw(self._frames[number % len(self._frames)]), TURN_S)

    def _draw(self, frame: str) -> None:
        text = format_step(frame, self._name, time.monotonic() - self._begin_s) if self._name else ""
        text = text[: max(shutil.get_terminal_size().columns - 1, 1)]
        line = f"\r{text.ljust(self._width)}" if text else f"\r{' ' * self._width}\r"
        self._width = len(text)
        with contextlib.suppress(OSError, ValueError):  # the terminal was closed
            self._stream.write(line)
            self._stream.flush()


def format_step(frame: str, name: str, passed_s: float) -> str:
    """Return a step with what turns, and its time if it takes long."""
    return f"{frame} {name}" + (f"  {passed_s:.0f} s" if passed_s >= SHOW_TIME_AFTER_S else "")


def choose_frames(encoding: str | None) -> str:
    """Return what turns on a terminal with this encoding."""
    return FRAMES if (encoding or "").lower().startswith("utf") else PLAIN_FRAMES


class LiveSteps:
    """Shows steps as part of a display that draws itself, instead of on a line of their own.

    A thread draws the display again and again during a step. It has ended while something is measured. Nothing is shown
    before `open` and after `close`.

    Args:
        draw: Draws the display, which contains `text`.
        encoding: Encoding of the terminal.
    """

    def __init__(self, draw: Callable[[], None], encoding: str | None) -> None:
        self._draw_display = draw
        self._frames = choose_frames(encoding)
        self._frame = self._frames[0]
        self._name = ""
        self._begin_s = 0.0
        self._ticker = Ticker()
        self._drawing: int | None = None
        self._taken = contextlib.ExitStack()
        self._is_open = False
        self._has_taken_over = False

    @property
    def text(self) -> str:
        """The current step; empty if something is measured."""
        return format_step(self._frame, self._name, time.monotonic() - self._begin_s) if self._name else ""

    def open(self) -> None:
        """Let the display take over, now that it is shown."""
        self._is_open = True

    def take_over(self) -> None:
        """Show all steps from now on. Further calls change nothing."""
        if self._is_open and not self._has_taken_over:
            self._has_taken_over = True
            self._taken.enter_context(observe_steps(self._show))

    def close(self) -> None:
        """Show no more steps."""
        self._taken.close()
        self._is_open = self._has_taken_over = False

    def _show(self, name: str, is_measured: bool) -> None:
        if threading.get_ident() == self._drawing:
            return  # printing ends steps that have a line of their own
        self._ticker.stop()
        name = "" if is_measured else printable(name)
        if not name and not self._name:
            return
        self._name, self._begin_s = name, time.monotonic()
        if name:
            self._ticker.start(self._turn, LIVE_TURN_S)
        else:
            self._draw(0)

    def _turn(self, number: int) -> None:
        self._drawing = threading.get_ident()
        self._draw(number)

    def _draw(self, number: int) -> None:
        self._frame = self._frames[number % len(self._frames)]
        with contextlib.suppress(OSError, ValueError):  # the terminal was closed
            self._draw_display()


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a spinner can be drawn on a stream."""
    with contextlib.suppress(ValueError):  # it is closed
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return False


@contextlib.contextmanager
def show_start(arguments: Sequence[str]) -> Iterator[None]:
    """Show that the command is starting, while its libraries are imported in this block.

    Args:
        arguments: Arguments of this process.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    is_shown = bool(own) and own[0] in STEPPED and not SILENT & {*own} and "_ORTUNE_COMPLETE" not in os.environ
    if not is_shown or not is_terminal(sys.stderr):
        yield
        return
    spinner = Spinner(sys.stderr)
    spinner.show("starting", False)
    try:
        yield
    finally:
        spinner.show("", False)


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
