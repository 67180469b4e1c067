"""Comparing texts: rounding is no difference, and everything else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.program import text
from ortune.program.text import NOTHING, NUMBER_TOLERANCE, compare_text, find_unstable, has_stable_words

WORDS = st.sampled_from(["score", "cat", "ü", "v1.2.3", "sha-1f3e", "3", "-17", "0.5", "1e-3", "2.50ms", "x2"])
SEPARATORS = st.sampled_from([" ", "\n", ": ", ", ", "  ", "\t", '{"'])
TEXTS = st.lists(st.tuples(WORDS, SEPARATORS), max_size=12).map(
    lambda parts: "".join(word + separator for word, separator in parts).encode()
)
FLOATS = st.floats(min_value=1e-6, max_value=1e6)


@pytest.mark.parametrize(
    ("reference", "other"),
    [
        (b"", b""),
        (b"score 0.1234", b"score 0.1235"),
        (b"score 0.1234", b"score 0.12339"),
        (b"score 9.99", b"score 10.0"),
        (b"score  9.99", b"score 10.00"),
        (b"[0.5,0.25]", b"[0.5001,0.2501]"),
        (b"took 100.0ms", b"took 100.1ms"),
        (b"loss 1.234e-05", b"loss 1.235e-05"),
        (b"diff 0.001", b"diff -0.000"),
        (b"1000.0 px", b"1001 px"),
        (b"\xff\x00", b"\xff\x00"),
        (b"007", b"7"),
    ],
)
def test_rounding_is_no_difference(reference: bytes, other: bytes) -> None:
    assert compare_text(reference, other) is None
    assert find_unstable(reference, other, tolerance=NUMBER_TOLERANCE) == NOTHING


def test_times_that_are_nearly_equal_vary() -> None:
    """Candidates may differ by more than runs of the same program."""
    first, second = b"took 0.56612 s", b"took 0.56655 s"
    assert compare_text(first, second) is None
    assert compare_text(first, b"took 0.31200 s", find_unstable(first, second)) is None


def test_shares_of_another_number() -> None:
    assert compare_text(b"~0.000100", b"~0.000900") is None
    assert compare_text(b"~0.500000", b"~0.502000") is not None
    assert compare_text(b"0.000100", b"0.000900") is not None


@pytest.mark.parametrize(
    ("reference", "other", "message"),
    [
        (b"score 0.1234", b"score 0.1244", 'line 1: "0.1244" instead of "0.1234"'),
        (b"a\nb\nclass 3", b"a\nb\nclass 4", 'line 3: "4" instead of "3"'),
        (b"id 1000001", b"id 1000002", 'line 1: "1000002" instead of "1000001"'),
        (b"version 1.2.3", b"version 1.2.4", 'line 1: "1.2.4" instead of "1.2.3"'),
        (b"x1.25", b"x1.26", 'line 1: "x1.26" instead of "x1.25"'),
        (b"2024-01-02", b"2024-01-03", 'line 1: "2024-01-03" instead of "2024-01-02"'),
        (b"1.5ms", b"1.5s", 'line 1: "1.5s" instead of "1.5ms"'),
        (b"1.0", b"nan", 'line 1: "nan" instead of "1.0"'),
        (b"1.0e999", b"1.0e998", 'line 1: "1.0e998" instead of "1.0e999"'),
        (b"5.0", b"-5.0", 'line 1: "-5.0" instead of "5.0"'),
        (b"[1. 0. 0.]", b"[0. 1. 0.]", 'line 1: "0." instead of "1."'),
        (b"label 3.", b"label 4.", 'line 1: "4." instead of "3."'),
        (b"1.", b"2", 'line 1: "2" instead of "1."'),
        (b"1e-3", b"2e-3", 'line 1: "2e-3" instead of "1e-3"'),
        (b"cat", b"dog", 'line 1: "dog" instead of "cat"'),
        (b"a\nb", b"a", 'line 1: "\\n" is missing'.replace("\\n", " ")),
        (b"a", b"a b", 'line 1: " " is additional'),
        (b"a b", b"a,b", 'line 1: "," instead of " "'),
        (b"a\x1b[2J", b"b\x1b[2J", 'line 1: "b␛" instead of "a␛"'),
        (b"\xff\x00", b"\xff\x01", "2 bytes with SHA-256 "),
        (b"\xff\x00", b"text", "4 bytes instead of 2"),
        (b"0.5", b"\xff", "1 bytes instead of 3"),
    ],
)
def test_differences(reference: bytes, other: bytes, message: str) -> None:
    found = compare_text(reference, other)
    assert found is not None
    assert found.startswith(message)


def test_large_numbers_of_digits_are_text() -> None:
    assert compare_text(b"1" * 30, b"1" * 29 + b"2") is not None
    assert compare_text(b"0." + b"1" * 30, b"0." + b"1" * 29 + b"2") is not None


def test_large_texts_are_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST_COMPARED_BYTES", 10)
    assert compare_text(b"0.1234 ms", b"0.1235 ms") is None
    found = compare_text(b"score 0.1234", b"score 0.1235")
    assert found is not None
    assert "SHA-256" in found
    assert compare_text(b"score 0.1234", b"score 0.1234") is None
    assert find_unstable(b"score 0.1234", b"score 0.1235") == "everything"


def test_what_differs_between_two_runs_is_ignored() -> None:
    first = b"loaded in 0.31 s at 12:03:04\nid 3f2504e0-4f89\nscore 0.912\n"
    second = b"loaded in 0.45 s at 12:03:09\nid a1b2c3d4-00ff\nscore 0.912\n"
    ignored = find_unstable(first, second)
    assert isinstance(ignored, frozenset)
    assert len(ignored) == 3
    assert compare_text(first, b"loaded in 9.9 s at 12:03:59\nid zz\nscore 0.9121\n", ignored) is None
    found = compare_text(first, b"loaded in 9.9 s at 12:03:59\nid zz\nscore 0.7\n", ignored)
    assert found == 'line 3: "0.7" instead of "0.912"'
    assert compare_text(first, second) is not None


@pytest.mark.parametrize(
    ("first", "second", "has_words"),
    [
        (b"0.123", b"0.456", False),
        (b"0.123 (", b"0.456 (", False),
        (b"took 0.123 s", b"took 0.456 s", True),
        (b"  ", b"  ", False),
        (b"", b"", False),
        (b"\xff", b"\xff", True),
        (b"a", b"a b", False),
    ],
)
def test_whether_words_are_stable(first: bytes, second: bytes, has_words: bool) -> None:
    assert has_stable_words(first, find_unstable(first, second)) == has_words


@pytest.mark.parametrize(
    ("first", "second"), [(b"a b", b"a"), (b"a b", b"a,b"), (b"\xff", b"\xfe"), (b"warning\nok", b"ok")]
)
def test_where_the_structure_differs_nothing_is_compared(first: bytes, second: bytes) -> None:
    assert find_unstable(first, second) == "everything"
    assert compare_text(first, b"something else", "everything") is None


@given(TEXTS)
def test_a_text_equals_itself(data: bytes) -> None:
    assert compare_text(data, bytes(data)) is None
    assert compare_text(data + b"\n", data) is not None or not data or data.endswith(b"\n")
    assert find_unstable(data, data) == NOTHING


@given(TEXTS, TEXTS)
def test_what_is_ignored_makes_two_runs_equal(first: bytes, second: bytes) -> None:
    assert compare_text(first, second, find_unstable(first, second)) is None
    assert (compare_text(first, second) is None) == (
        find_unstable(first, second, tolerance=NUMBER_TOLERANCE) == NOTHING
    )
    assert (compare_text(first, second) is None) == (compare_text(second, first) is None)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_data_can_be_compared(first: bytes, second: bytes) -> None:
    message = compare_text(first, second)
    assert message is None or (first != second and message.isprintable() and len(message) < 200)
    assert compare_text(first, second, find_unstable(first, second)) is None


@given(st.text(max_size=400), st.text(max_size=400))
def test_messages_are_one_short_line(first: str, second: str) -> None:
    message = compare_text(first.encode("utf-8", "replace"), second.encode("utf-8", "replace"))
    assert message is None or (message.isprintable() and len(message) < 200)


@given(st.lists(FLOATS, min_size=1, max_size=8), st.integers(2, 9), st.floats(-9e-4, 9e-4))
def test_numbers_within_the_tolerance_are_equal(numbers: list[float], n_digits: int, relative: float) -> None:
    first = " ".join(f"{number:.{n_digits}e}" for number in numbers).encode()
    # Not further away than the tolerance, with what printing adds.
    second = " ".join(f"{number * (1 + relative):.{n_digits + 8}e}" for number in numbers).encode()
    if n_digits >= 5:
        assert compare_text(first, second) is None
    assert compare_text(first, second, tolerance=2e-2) is None


@given(FLOATS, st.floats(1.1e-3, 10) | st.floats(-0.9, -1.1e-3), st.integers(5, 12))
def test_numbers_beyond_the_tolerance_differ(number: float, relative: float, n_digits: int) -> None:
    first, second = (f"{value:.{n_digits}e}".encode() for value in (number, number * (1 + relative)))
    found = compare_text(first, second)
    assert found == f'line 1: "{second.decode()}" instead of "{first.decode()}"'


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_whole_numbers_must_be_equal(first: int, second: int) -> None:
    assert (compare_text(b"%d" % first, b"%d" % second) is None) == (first == second)
