"""Compares what a program prints, or a server answers, with what the baseline does.

A text consists of words and of what separates them. Words are equal if they differ only in numbers, and these only by
rounding. Whole numbers must be equal: they are labels, counts and identifiers. In words that begin with a tilde,
numbers are shares of another one: their difference is compared as it is, and not relative to them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ortune.sanitize import printable

MOST_COMPARED_BYTES = 10_000_000
"""Size above which texts are only compared as a whole."""

NUMBER_TOLERANCE = 1e-3
"""Largest relative difference of two numbers by default."""

STABLE_TOLERANCE = 1e-4
"""Largest relative difference of two numbers that do not vary between runs of the same program. It is smaller: times
that are nearly equal by chance are still times, which another candidate changes."""

LONGEST_WORD_EXCERPT = 60
"""Characters of a word in a message."""

Ignored = frozenset[int] | Literal["everything"]
"""What is not compared: the positions of words that differ between two runs of the same program, or everything."""

NOTHING: Ignored = frozenset()

_TOKEN = re.compile(r"""(?P<separator>[\s,:;=<>|/(){}\[\]"']++)|[^\s,:;=<>|/(){}\[\]"']++""")

_BLANKS = re.compile(r"[ \t]+")

_NUMBER = re.compile(
    # Not in the middle of a name, version or identifier.
    r"(?<![\w.])"
    r"([-+]?+(?:\d{1,20}+\.\d{0,20}+|\.\d{1,20}+|\d{1,20}+)(?:[eE][-+]?+\d{1,3}+)?+)"
    # A unit may follow.
    r"(?=[^\W\d_]{0,4}+(?!\w))(?!\.?\d)"
)


class Token(NamedTuple):
    """A word, or what separates two words.

    Attributes:
        text: The text. Several blanks are one, because columns are aligned by the width of numbers.
        is_word: Whether it is a word.
        n_lines: Number of line breaks before it.
    """

    text: str
    is_word: bool
    n_lines: int


def compare_text(
    reference: bytes, other: bytes, ignored: Ignored = NOTHING, *, tolerance: float = NUMBER_TOLERANCE
) -> str | None:
    """Return what differs between two outputs, in one line, or None if they are equal enough.

    Args:
        reference: Output of the baseline.
        other: Output to compare with it. What is not UTF-8 must be equal.
        ignored: Result of `find_unstable` for the baseline.
        tolerance: Largest relative difference of two numbers that are not whole. They may also differ by one unit of
            their last decimal.
    """
    if ignored == "everything" or reference == other:
        return None
    texts = _decode(reference), _decode(other)
    if texts[0] is None or texts[1] is None:
        return _compare_whole(reference, other)
    for position, (first, second) in enumerate(itertools.zip_longest(_tokenize(texts[0]), _tokenize(texts[1]))):
        if first is None:
            assert second
            return f"line {second.n_lines + 1}: {_quote(second)} is additional"
        if second is None:
            return f"line {first.n_lines + 1}: {_quote(first)} is missing"
        if position in ignored and first.is_word and second.is_word:
            continue
        if not _is_equal(first, second, tolerance):
            return f"line {second.n_lines + 1}: {_quote(second)} instead of {_quote(first)}"
    return None


def find_unstable(first: bytes, second: bytes, *, tolerance: float = STABLE_TOLERANCE) -> Ignored:
    """Return what not to compare, given two outputs of the same program, such as times and random names.

    Args:
        first: One output.
        second: The other.
        tolerance: As in `compare_text`.

    Returns:
        Positions of the words that differ, or "everything" if something else does.
    """
    if first == second:
        return NOTHING
    texts = _decode(first), _decode(second)
    if texts[0] is None or texts[1] is None:
        return "everything"
    unstable = set()
    for position, (one, other) in enumerate(itertools.zip_longest(_tokenize(texts[0]), _tokenize(texts[1]))):
        if one is None or other is None or one.is_word != other.is_word:
            return "everything"
        if not _is_equal(one, other, tolerance):
            if not one.is_word:
                return "everything"
            unstable.add(position)
    return frozenset(unstable)


def has_stable_words(text: bytes, ignored: Ignored) -> bool:
    """Return whether a text has words that are compared. What is not UTF-8 is compared as a whole.

    Args:
        text: Output of the baseline.
        ignored: Result of `find_unstable` for it.
    """
    if ignored == "everything" or not text.strip():
        return False
    decoded = _decode(text)
    if decoded is None:
        return True
    return any(
        token.is_word and position not in ignored and any(map(str.isalnum, token.text))
        for position, token in enumerate(_tokenize(decoded))
    )


def _decode(data: bytes) -> str | None:
    """Return data as text, or None if it is not text or too large to be compared in parts."""
    if len(data) > MOST_COMPARED_BYTES:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _compare_whole(reference: bytes, other: bytes) -> str | None:
    if len(reference) != len(other):
        return f"{len(other)} bytes instead of {len(reference)}"
    digests = [hashlib.sha256(data).hexdigest() for data in (reference, other)]
    if digests[0] == digests[1]:
        return None
    return f"{len(other)} bytes with SHA-256 {digests[1][:16]}… instead of {digests[0][:16]}…"


def _tokenize(text: str) -> Iterator[Token]:
    n_lines = 0
    for found in _TOKEN.finditer(text):
        part = found[0]
        if found["separator"] is None:
            yield Token(part, True, n_lines)
        else:
            yield Token(_BLANKS.sub(" ", part), False, n_lines)
            n_lines += part.count("\n")


def _is_equal(first: Token, second: Token, tolerance: float) -> bool:
    if first.text == second.text:
        return first.is_word == second.is_word
    if not first.is_word or not second.is_word:
        return False
    # Text and numbers in turn.
    ones, others = _NUMBER.split(first.text), _NUMBER.split(second.text)
    return (
        len(ones) == len(others)
        and ones[::2] == others[::2]
        and all(
            _is_close(*pair, tolerance, is_share=first.text.startswith("~"))
            for pair in zip(ones[1::2], others[1::2], strict=True)
        )
    )


def _is_close(first: str, second: str, tolerance: float, *, is_share: bool) -> bool:
    """Return whether two numbers differ only by rounding."""
    if first == second:
        return True
    steps = [step for step in (_find_step(first), _find_step(second)) if step is not None]
    if not steps:
        return int(first) == int(second)
    one, other = float(first), float(second)
    # The factor covers rounding in this calculation.
    size = 1.0 if is_share else max(abs(one), abs(other))
    return abs(one - other) <= max(tolerance * size, *steps) * (1 + 1e-9)


def _find_step(number: str) -> float | None:
    """Return the value of a unit of the last digit of a number, or None if it is written as a whole number.

    Without decimals, as in `1.` and `1e-3`, nothing shows that it was rounded: it is 0.
    """
    mantissa, _, exponent = number.lower().partition("e")
    n_decimals = len(mantissa.partition(".")[2])
    if "." not in mantissa and not exponent:
        return None
    if not n_decimals:
        return 0.0
    power = int(exponent or 0) - n_decimals
    return float(f"1e{power}") if power < 308 else 0.0


def _quote(token: Token) -> str:
    text = token.text if len(token.text) <= LONGEST_WORD_EXCERPT else f"{token.text[:LONGEST_WORD_EXCERPT]}…"
    return f'"{printable(text)}"'
