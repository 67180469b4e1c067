"""Times in files: ISO 8601, with or without a time zone."""

from __future__ import annotations

import datetime

FIRST_YEAR, LAST_YEAR = 2, 9998
"""Times of these years can be converted to any time zone."""


def check_time(text: str) -> None:
    """Check that a text is a time that can be converted to any time zone.

    Raises:
        ValueError: It is not.
    """
    year = datetime.datetime.fromisoformat(text).year
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise ValueError(f"the time is of the year {year}, not of {FIRST_YEAR} to {LAST_YEAR}")
