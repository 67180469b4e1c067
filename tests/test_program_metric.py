"""The regular expression of `--metric`, which may come from a record, and what it finds."""

from __future__ import annotations

import pytest

from ortune import UsageError
from ortune.program.metric import find_metric, mask_metric, parse_metric


@pytest.mark.parametrize(
    ("pattern", "output", "found"),
    [
        (r"fps: ([\d.]+)", "fps: 12.5\nfps: 30\ndone\n", 30),
        (r"fps: ([\d.]+)", "fps: 12.5\rfps: 30", 30),
        (r"([\d.]+) fps", "10 fps, 20 fps\n", 20),
        (r"\d+", "a 12 b 345 c", 345),
        (r"^(\d+)$", "7\r\nx 8\n", 7),
        (r"é: (\d+)", "é: 7", 7),
        (r"(\d+)?x", "x", None),
        (r"(.*) fps", "no fps", None),
        (r"(.*) fps", "-1 fps", None),
        (r"(.*) fps", "1e999 fps", None),
        (r"(.*) fps", "nan fps", None),
        (r"fps", "", None),
    ],
)
def test_the_last_match_counts(pattern: str, output: str, found: float | None) -> None:
    assert find_metric(parse_metric(pattern), output.encode()) == found


def test_output_that_is_not_utf_8() -> None:
    assert find_metric(r"fps: (\d+)", b"\xff\xfe fps: 3 \xff\n\xff") == 3
    assert mask_metric(r"fps: (\d+)", b"\xff fps: 3 \xff\r\nfps: 4") == b"\xff fps: metric \xff\r\nfps: metric"


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"(a+)+\d", "a" * 5000),
        (r"(?:a|a)*b(\d)", "a" * 5000),
        (r"(?:.*.*.*.*)*=(\d)", "x" * 5000),
        (r"(?:a{0,30}){0,30}(\d)", "a" * 5000),
        (r"(?s)x.*z|(\d)x", "x" * 20_000),
    ],
)
def test_no_expression_takes_long(pattern: str, line: str) -> None:
    """The `re` module of Python would take years for most of these."""
    output = f"{line}\n".encode() * 5
    assert find_metric(parse_metric(pattern), output) is None
    assert mask_metric(pattern, output) == output


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a regular expression"),
        ("(a)(b)", "has 2 groups"),
        (r"(?=a)(\d)", "is not a regular expression"),
        (r"(a)\1", "is not a regular expression"),
        (r"a{2000}", "is not a regular expression"),
        (r"((((a{100}){100}){100}){100})", "is not a regular expression"),
        (r"(?:\pL{0,9}){0,9}", "is too large a regular expression"),
        ("\udcff: ([0-9]+)", "not UTF-8"),
    ],
)
def test_what_is_no_expression(pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_metric(pattern)
