"""Reads journals of searches from bytes, and waits for those of running searches."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortune.record.journal import Content, Event, read_events, scan_journal


def scan(data: bytes) -> Content:
    return scan_journal(io.BytesIO(data))


def list_events(data: bytes) -> tuple[Event, ...]:
    return tuple(read_events(io.BytesIO(data), scan(data)))


def count_blocks(path: Path) -> int:
    """Return how many blocks a journal has; 0 if there is none."""
    try:
        return scan(path.read_bytes()).n_blocks
    except FileNotFoundError:
        return 0


def wait_for_blocks(journal: Path, n: int) -> None:
    """Wait until a search has written so many blocks, or has had a minute."""
    end_s = time.monotonic() + 60
    while count_blocks(journal) < n and time.monotonic() < end_s:
        time.sleep(0.05)


@contextlib.contextmanager
def suspended_search(command: Sequence[str], journal: Path, n: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a search, and suspend it after so many blocks, so that it does not end in this block. Then kill it."""
    process = subprocess.Popen(command, cwd=journal.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_blocks(journal, n)
        process.send_signal(signal.SIGSTOP)
        assert process.poll() is None and count_blocks(journal) >= n
        yield process
    finally:
        process.kill()
        process.wait()
