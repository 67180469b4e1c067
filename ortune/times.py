"""Reads the time of day and a monotonic clock. Files hold times in ISO 8601, with or without a time zone."""

from __future__ import annotations

import datetime
import time

from ortune.replaceable import replaceable

FIRST_YEAR, LAST_YEAR = 2, 9998
"""Times of these years can be converted to any time zone."""


@replaceable
def read_time() -> datetime.datetime:
    """Return the time of day in the time zone of this host."""
    return datetime.datetime.now().astimezone()


def stamp() -> str:
    """Return the time of day as files have it, to the second."""
    return read_time().isoformat(timespec="seconds")


@replaceable
def read_clock_s() -> float:
    """Return the time of a monotonic clock, in seconds, for what takes place before and after measurements."""
    return time.monotonic()


def check_time(text: str) -> None:
    """Check that a text is a time that can be converted to any time zone.

    Raises:
        ValueError: It is not.
    """
    year = datetime.datetime.fromisoformat(text).year
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise ValueError(f"the time is of the year {year}, not of {FIRST_YEAR} to {LAST_YEAR}")
