"""Warnings that ONNX Runtime printed in workers: each once, however many sessions printed it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

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
