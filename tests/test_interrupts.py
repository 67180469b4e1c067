"""Interrupts reach the program wherever Python handles them."""

from __future__ import annotations

import subprocess
import sys

import pytest

IN_DESTRUCTOR = """
import signal, sys, time
from ortune.interrupts import raise_interrupts

class Closed:
    def __del__(self):
        signal.raise_signal(getattr(signal, sys.argv[1]))
        for _ in range(100):
            pass

for name in ("SIGINT", "SIGHUP"):  # a shell or nohup may ignore them
    signal.signal(getattr(signal, name), signal.SIG_DFL)
raise_interrupts()
SLOW
try:
    closed = Closed()
    del closed
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""

SLOW = """
import threading
start = threading.Thread.start
def start_slowly(thread):
    start(thread)
    time.sleep(0.05)
threading.Thread.start = start_slowly
"""
"""Makes a race certain: the interrupt is repeated while the first one is still being handled."""

OTHER = """
from ortune.interrupts import raise_interrupts

class Closed:
    def __del__(self):
        raise ValueError("another error")

raise_interrupts()
closed = Closed()
del closed
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("slow", ["", SLOW], ids=["", "slow"])
def test_an_interrupt_in_a_destructor_is_not_lost(number: str, slow: str) -> None:
    command = [sys.executable, "-c", IN_DESTRUCTOR.replace("SLOW", slow), number]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


TWICE = """
import signal
from ortune.interrupts import raise_interrupts

signal.signal(signal.SIGHUP, signal.SIG_DFL)
raise_interrupts()
try:
    signal.raise_signal(signal.SIGHUP)
except KeyboardInterrupt:
    signal.raise_signal(signal.SIGHUP)
    print("written")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_closed_terminal_hangs_up_twice() -> None:
    """The shell sends SIGHUP, and the system does when the shell ends."""
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "written\n", "")


DELAYED = """
import signal, sys
from ortune.interrupts import raise_interrupts, uninterrupted

signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[2] == "ignored" else signal.SIG_DFL)
raise_interrupts()
handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
try:
    with uninterrupted():
        signal.raise_signal(getattr(signal, sys.argv[1]))
        print("started")
except KeyboardInterrupt:
    print("interrupted", handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("number", "sigint"),
    [("SIGINT", ""), ("SIGTERM", ""), ("SIGTERM", "ignored"), ("SIGHUP", ""), ("SIGHUP", "ignored")],
)
def test_a_step_is_not_interrupted(number: str, sigint: str) -> None:
    """Shells ignore SIGINT in background processes of a script. Then SIGTERM still interrupts."""
    command = [sys.executable, "-c", DELAYED, number, sigint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\ninterrupted True\n", "")


def test_other_errors_in_destructors_are_shown() -> None:
    done = subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0
    assert "another error" in done.stderr
