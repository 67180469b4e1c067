"""Logs of child processes: their last lines, and the warnings that ONNX Runtime printed, each once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

LOG_TAIL_BYTES = 4096
LOG_TAIL_LINES = 8
LONGEST_LINE = 400
"""Characters of a line of the log that are kept."""

MOST_LOG_BYTES = 1 << 20
"""Size of the part of a log that is read, from its beginning."""

MOST_WARNINGS = 100
"""Different warnings of a worker that are kept."""

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[[WEF]:[^\]]*\] (.+)")
"""A warning or an error in a log of ONNX Runtime: time, severity, logger and place in its code, then the message."""

VARYING = re.compile(r"0x[0-9a-f]+|\d{4,}")
"""What differs between sessions: addresses, and ids of threads and processes."""


class SessionWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A warning of ONNX Runtime.

    Attributes:
        text: The message, as the first session printed it.
        n_sessions: Number of worker processes that printed it.
    """

    text: str
    n_sessions: int


def read_log(path: Path) -> tuple[str, ...]:
    """Return the last lines of a child's log, without repeated lines and color codes."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - LOG_TAIL_BYTES, 0))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ()
    lines = (line.strip() for line in remove_colors(text).splitlines())
    return tuple(dict.fromkeys(line[:LONGEST_LINE] for line in lines if line))[-LOG_TAIL_LINES:]


def remove_colors(text: str) -> str:
    """Return a text without the codes that set colors on a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def read_warnings(path: Path) -> tuple[str, ...]:
    """Return the lines with warnings and errors in the log of a worker, each once."""
    try:
        with path.open("rb") as log:
            text = log.read(MOST_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    found: dict[str, str] = {}
    for line in remove_colors(text).splitlines():
        if match := LINE.fullmatch(shortened := line.strip()[:LONGEST_LINE]):
            found.setdefault(VARYING.sub("#", match[1]), shortened)
    return tuple(found.values())[:MOST_WARNINGS]


def collect_warnings(logs: Iterable[Sequence[str]]) -> tuple[SessionWarning, ...]:
    """Return the warnings in the logs of workers, in the order in which they appeared.

    Args:
        logs: The lines of each log, as in `SessionInfo.log`.
    """
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for log in logs:
        texts = [found[1] for line in log if (found := LINE.fullmatch(line))]
        for key, text in {VARYING.sub("#", text): text for text in texts}.items():
            first.setdefault(key, text)
            counts[key] = counts.get(key, 0) + 1
    return tuple(SessionWarning(text=text, n_sessions=counts[key]) for key, text in first.items())
