"""The number that a program prints and a search optimizes, and the regular expression that finds it.

The expression may come from a record. The time that RE2 takes is in proportion to the length of the text, whatever the
expression is. `re` of the standard library may take years for a short one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import re2

from ortune.errors import UsageError
from ortune.program.task import can_encode
from ortune.sanitize import printable

MOST_MATCHES = 1000
"""Number of matches in a line that count. Each of them may look at the whole rest of the line."""

MOST_STEPS = 2000
"""Size of a compiled expression, as RE2 counts it. In the worst case, each character of a text takes so many steps."""


def parse_metric(text: str) -> str:
    """Check a regular expression that finds a number: in its first group, or as a whole if it has none.

    Source: https://github.com/google/re2/wiki/Syntax

    Raises:
        UsageError: It is not one.
    """
    if not can_encode(text, "utf-8"):
        raise UsageError(f"{printable(text)}: holds bytes that are not UTF-8.", "Write it in UTF-8.")
    try:
        expression = _compile(text)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise UsageError(
            f"{text}: is not a regular expression: {reason}.",
            "Its syntax is that of RE2, which has no lookahead, lookbehind and backreferences.",
        ) from None
    if expression.groups > 1:
        example = r"Write one group, as in {metric='fps: ([\d.]+)'}."
        raise UsageError(f"{text}: has {expression.groups} groups.", example)
    if expression.programsize > MOST_STEPS:
        raise UsageError(f"{text}: is too large a regular expression.", "Use smaller numbers of repetitions.")
    return text


def find_metric(pattern: str, output: bytes) -> float | None:
    """Return the last number that a pattern finds in a line of a program's output; None if it is not above 0."""
    for line in reversed(output.splitlines()):
        last = None
        for match in _find_all(pattern, line):
            last = match
        if last is not None:
            return _read_number(last[last.re.groups])
    return None


def mask_metric(pattern: str, output: bytes) -> bytes:
    """Return what a program printed without the numbers that a pattern finds: a better one is not a difference."""
    return b"".join(_mask_line(pattern, line) for line in output.splitlines(keepends=True))


def _mask_line(pattern: str, line: bytes) -> bytes:
    parts, place = [], 0
    for match in _find_all(pattern, line):
        start, end = match.span(match.re.groups)
        if start >= 0:  # the group may be optional
            parts += [line[place:start], b"metric"]
            place = end
    return b"".join((*parts, line[place:]))


def _read_number(text: bytes | None) -> float | None:
    try:
        value = float(text or b"")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _find_all(pattern: str, line: bytes) -> Iterator[Any]:
    """Yield the matches in a line, at most `MOST_MATCHES`. `^` and `$` are its begin and its end."""
    return itertools.islice(_compile(pattern).finditer(line.rstrip(b"\r\n")), MOST_MATCHES)


@functools.cache
def _compile(text: str) -> Any:
    """Return the compiled expression.

    Raises:
        re2.error: It is not a regular expression.
    """
    options = re2.Options()
    options.log_errors = False  # RE2 would write them to stderr
    return re2.compile(text, options)
