"""Numbers in files, and as people read them."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec

LARGEST_WHOLE = 1 << 53
"""Largest whole number that is read from a file. A float holds each number up to it exactly."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_WHOLE)]
"""A number of things in a file, such as blocks or bytes. JSON may hold whole numbers that are too large for a float."""

Difference = Annotated[int, msgspec.Meta(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)]
"""A difference of two such numbers."""


def format_digits(value: float, digits: int = 3) -> str:
    """Return a number with some digits and without an exponent, such as `1570` for 1574.

    Args:
        value: The number.
        digits: How many digits are kept at most. Others become zeros, or are left out.
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def format_quota(cpus: float) -> str:
    """Return a CPU quota, such as `1 CPU` or `1.5 CPUs`."""
    return f"{cpus:g} CPU" if cpus == 1 else f"{cpus:g} CPUs"
