"""Checks the size of input data before it is allocated."""

from __future__ import annotations

from ortune.errors import InputsError
from ortune.host.read import read_free_memory_bytes
from ortune.numbers import format_digits

LARGEST_INPUT_SHARE = 0.25
"""Largest share of the free memory that input data may take: each worker process holds a copy of it."""

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def check_size(n_bytes: int, what: str, *, option: str, detail: str = "") -> None:
    """Check that input data fits into memory.

    Args:
        n_bytes: Its size.
        what: The data with a verb, such as "the inputs take".
        option: Python name of the option that determines the size.
        detail: What makes it large, such as "image: float32[1x3x224x224]".

    Raises:
        InputsError: It takes more than a quarter of the free memory.
    """
    free_bytes = read_free_memory_bytes()
    if n_bytes > LARGEST_INPUT_SHARE * free_bytes:
        largest = format_bytes(int(LARGEST_INPUT_SHARE * free_bytes))
        raise InputsError(
            f"{what} {format_bytes(n_bytes)}{f' ({detail})' if detail else ''}, but only {format_bytes(free_bytes)} of "
            "memory is free.",
            f"Use smaller inputs: at most {largest}, as each worker holds a copy.",
            option=option,
        )


def format_bytes(n_bytes: int) -> str:
    """Return a size in readable units, such as `1.5 GB`."""
    value, unit = float(n_bytes), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{format_digits(value)} {UNITS[unit]}" if value < 1e6 else f"{value:.1e} {UNITS[unit]}"
