"""Temporary files of `ortune.record.files` that a process left when it was killed while it wrote a file."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from ortune.locks import try_to_lock

TEMPORARY_MARK = "ortune-"
"""Part of the names of temporary files, which distinguishes them from hidden files of the user."""

MIN_AGE_S = 3.0
"""Age below which a file may be that of a process that has not locked it yet."""


def find_prefix(path: Path) -> str:
    """Return how the names of temporary files begin that replace a file when they are complete."""
    return f".{path.name}.{TEMPORARY_MARK}"


def remove_leftovers(path: Path) -> list[Path]:
    """Remove what killed processes left when they wrote a file, and return it.

    Args:
        path: The file that they wrote. A link must be followed before.
    """
    pattern = re.compile(rf"{re.escape(find_prefix(path))}[a-z0-9_]{{8}}", re.ASCII)
    removed = []
    with contextlib.suppress(OSError):
        for leftover in sorted(path.parent.iterdir()):
            if pattern.fullmatch(leftover.name) and _is_abandoned(leftover):
                leftover.unlink()
                removed.append(leftover)
    return removed


def _is_abandoned(path: Path) -> bool:
    """Return whether a temporary file belongs to no process. `write_atomically` locks those that it writes."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return time.time() - os.fstat(descriptor).st_mtime > MIN_AGE_S and try_to_lock(descriptor) is True
    finally:
        os.close(descriptor)
