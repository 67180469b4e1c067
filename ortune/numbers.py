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


FEW = msgspec.Meta(max_length=100)
MANY = msgspec.Meta(max_length=10_000)
"""Numbers of items that lists and dictionaries in a file may have, such as limits and names of inputs."""


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


def format_ratio(value: float) -> str:
    """Return a ratio, such as `1.27x`, or `1.008x` near 1, where the third digit matters."""
    return f"{_format_ratio_number(value)}x"


WIDE_INTERVAL = 1e4
"""How many times as large the upper end of an interval may be as the lower one, for both to say something."""

NO_UPPER_BOUND = "no upper bound"


def format_interval(low: float, high: float) -> str:
    """Return an interval of ratios, such as `[1.19, 1.36]`, or `[0, no upper bound]` if it is too wide to say more."""
    lower = "0" if high > WIDE_INTERVAL * low and low < 0.01 else _format_ratio_number(low)
    upper = NO_UPPER_BOUND if is_unbounded(low, high) else _format_ratio_number(high)
    return f"[{lower}, {upper}]"


def is_unbounded(low: float, high: float) -> bool:
    """Return whether an interval of ratios is so wide that its upper end says nothing."""
    return high > WIDE_INTERVAL * low and high > 100


def _format_ratio_number(value: float) -> str:
    if abs(value - 1) < 0.05:
        return f"{value:.3f}"
    if value >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
