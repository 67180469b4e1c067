"""Describe what a function returned, as text that can be compared with that of another run of the program.

Only values that mean the same in each process are described: numbers, strings, bytes, arrays, and lists, tuples,
dictionaries and data classes of these. Large ones are described by a sample of their elements. Numbers of an array are
divided by the largest one, so that rounding shows in the same digit whatever their size is.

This module does not import NumPy: arrays bring their own methods.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any

MOST_DESCRIBED_VALUES = 512
"""Number of elements of an array, or of a list, that are described."""

MOST_PARTS = 2000
"""Number of parts of one result that are described."""

DEEPEST = 8
"""Levels of lists in lists that are described."""

MOST_DESCRIBED_BYTES = 1 << 24
"""Number of bytes that are described."""

LONGEST_DESCRIBED_TEXT = 10_000
"""Characters of a string that are described."""

MOST_LABELS = 64
"""Number of elements up to which integers of 8 bits are labels, and compared exactly."""

ABSOLUTE_MARK = "~"
"""Stands before numbers whose difference is compared as it is, and not relative to them; see `ortune.program.text`."""

SMALL = 1e-3
"""Numbers below it are described with a fixed number of decimals: most of their digits may be due to rounding."""


class NotDescribedError(Exception):
    """A value that means nothing outside of its process."""


def describe_returned(value: Any) -> str | None:
    """Return what a function returned as one line of text; None if it cannot be compared."""
    if value is None:
        return None
    try:
        return _Description().describe(value)
    except Exception:  # noqa: BLE001  (programs return anything)
        return None


class _Description:
    """The description of one result."""

    def __init__(self) -> None:
        self._n_parts = 0

    def describe(self, value: Any, depth: int = 0) -> str:
        """Return a value as text.

        Raises:
            NotDescribedError: It means nothing outside of its process.
        """
        self._n_parts += 1
        if depth > DEEPEST:
            raise NotDescribedError
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, float):
            return _describe_float(float(value))
        if isinstance(value, complex):
            return f"{_describe_float(value.real)} {_describe_float(value.imag)}i"
        if isinstance(value, str):
            rest = f" {len(value)}" if len(value) > LONGEST_DESCRIBED_TEXT else ""
            text = value[:LONGEST_DESCRIBED_TEXT].encode(errors="backslashreplace").decode()
            return json.dumps(text, ensure_ascii=False) + rest
        if isinstance(value, (bytes, bytearray, memoryview)):
            data = memoryview(value).cast("B")
            return f"bytes {len(data)} x{hashlib.sha256(data[:MOST_DESCRIBED_BYTES]).hexdigest()}"
        if isinstance(getattr(getattr(value, "dtype", None), "kind", None), str):
            return self._describe_array(value, depth)
        if isinstance(value, dict):
            items = [
                f"{self.describe(key, depth + 1)}: {self.describe(item, depth + 1)}"
                for key, item in self._first(value.items())
            ]
            return f"{{{', '.join(items)}}} {len(value)}"
        if isinstance(value, (list, tuple)):
            return self._describe_list(value, depth)
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields is not None:
            own = {name: getattr(value, name) for name in fields if hasattr(value, name)}
            return f"{type(value).__name__} {self.describe(own, depth + 1)}"
        raise NotDescribedError

    def _first(self, items: Iterable[Any]) -> Iterable[Any]:
        """Yield items as long as there may be more parts."""
        for number, item in enumerate(items):
            if number >= MOST_DESCRIBED_VALUES or self._n_parts >= MOST_PARTS:
                return
            yield item

    def _describe_list(self, value: list[Any] | tuple[Any, ...], depth: int) -> str:
        sample = value[:: _find_step(len(value))]
        numbers = [
            item.item() if hasattr(item, "dtype") and getattr(item, "shape", None) == () else item for item in sample
        ]
        if len(numbers) > 1 and all(type(number) in {int, float} for number in numbers) and float in map(type, numbers):
            return f"[{_describe_numbers(numbers)}] {len(value)}"
        return f"[{', '.join(self.describe(item, depth + 1) for item in self._first(sample))}] {len(value)}"

    def _describe_array(self, value: Any, depth: int) -> str:
        kind, shape = value.dtype.kind, tuple(value.shape)
        if shape == () and kind in "biuf":
            return self.describe(value.item(), depth + 1)
        sample = value.reshape(-1)[:: _find_step(int(value.size))]
        head = f"{value.dtype}[{', '.join(map(str, shape))}]"
        if kind == "f":
            return f"{head} {_describe_numbers(sample.tolist())}"
        if kind in "iu" and value.dtype.itemsize == 1 and value.size > MOST_LABELS:
            # Pixels, or quantized values: they may differ by a step, as those of floats do.
            return f"{head} {_describe_numbers(sample.tolist(), is_coarse=True)}"
        if kind in "biu":
            return f"{head} {' '.join(str(int(item)) for item in sample.tolist())}"
        if kind in "OUS":
            return f"{head} {self.describe(sample.tolist(), depth + 1)}"
        raise NotDescribedError


def _find_step(n: int) -> int:
    """Return the distance of the elements of a sample. It is odd, so that channels of images alternate."""
    return -(-n // MOST_DESCRIBED_VALUES) | 1 if n > MOST_DESCRIBED_VALUES else 1


def _describe_float(value: float) -> str:
    return f"{value:.6f}" if abs(value) < SMALL else f"{value:.6e}"


def _describe_numbers(values: list[Any], *, is_coarse: bool = False) -> str:
    """Return numbers as shares of the largest one, after it.

    Shares of pixels may differ by one unit of the last digit, and others by as much as `compare_text` allows.
    """
    scale = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    shown = " ".join(
        f"{ABSOLUTE_MARK}{value / scale if scale else value:.{2 if is_coarse else 6}f}" for value in values
    )
    return f"{scale:.{1 if is_coarse else 6}e} {shown}"
