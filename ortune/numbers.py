"""Numbers as people read them."""

from __future__ import annotations

from decimal import Decimal


def format_digits(value: float, digits: int = 3) -> str:
    """Return a number with some digits and without an exponent, such as `1570` for 1574.

    Args:
        value: The number.
        digits: How many digits are kept at most. Others become zeros, or are left out.
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"
