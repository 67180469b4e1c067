"""Numbers as people read them."""

from __future__ import annotations


def duration(ns: float) -> str:
    """Return a duration with three digits and a fitting unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def size(n_bytes: float) -> str:
    """Return a number of bytes with three digits and a fitting unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{three_digits(n_bytes / factor)} {unit}"
    return f"{n_bytes:.0f} B"


def per_second(value: float) -> str:
    """Return a rate with three digits, such as `12.3/s`."""
    return f"{three_digits(value)}/s"


def three_digits(value: float) -> str:
    """Return a value with three digits."""
    if value < 1:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ratio(value: float) -> str:
    """Return a speed-up, such as `1.27x`; close to 1, where the third digit matters, `1.008x`."""
    return f"{_digits(value)}x"


def interval(low: float, high: float) -> str:
    """Return an interval of ratios, such as `[1.19, 1.36]`."""
    return f"[{_digits(low)}, {_digits(high)}]"


def _digits(value: float) -> str:
    if abs(value - 1) < 0.05:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def plural(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun, such as `1 core` or `2 cores`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
