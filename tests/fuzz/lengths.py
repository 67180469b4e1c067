"""Lengths of items: distributions, and files of one per line, of JSON lists, or of `ortune inspect`."""

from __future__ import annotations

from random import Random

from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.target import Target, attempt, write_input

LENGTH_SEEDS = (
    b"8\n29\n256\n\n31\n",
    b"[8, 29, 256, 31]",
    b'{"models": [{"name": "m", "shapes": [{"inputs": [{"name": "ids", "dtype": "int64", "shape": [1, 29]}], '
    b'"count": 7}, {"inputs": [{"shape": null}, {"shape": [4, 64]}], "count": 1}]}], "processes": []}',
    b"lognormal:29,8-256",
    b"lognormal:29.5, 8-256, 0.8",
    b"uniform:8-256",
    b"constant:128",
)
LENGTH_WORDS = tuple(
    text.encode()
    for text in (
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "-",
        "\n",
        "null",
        "true",
        "1e9",
        "1e999",
        "-1",
        "0",
        "1000000",
        "1000001",
        "9" * 400,
        "[" * 300,
        '{"models":',
        '"shapes"',
        '"count": 99999999999',
        '"shape": [1000000, 3]',
        "\u00b2",
        "constant:",
        "uniform:",
        "lognormal:",
        "nan",
        "inf",
        "\ufeff",
        "\x00",
        "0.0000001",
        "1" * 9,
    )
)


def run_lengths(data: bytes) -> None:
    """Read a file, and the same as a distribution, and take items of these lengths."""
    from ortune.workload.lengths import HIGHEST_LENGTH, parse_lengths

    path = str(write_input("lengths.txt", data))
    for text in (path, f"{data[:200].decode('utf-8', 'replace')}"):
        if text != path and not text.strip().startswith(("constant:", "uniform:", "lognormal:")):
            continue  # the name of another file
        if found := attempt(parse_lengths, text):
            taken = found.take(64, 1)
            assert 1 <= len(taken) <= 64
            assert all(type(length) is int and 1 <= length <= HIGHEST_LENGTH for length in taken)


def mutate_lengths(data: bytes, random: Random) -> bytes:
    """Change bytes of a file or of a distribution."""
    return mutate_bytes(data, random, LENGTH_WORDS, LENGTH_SEEDS)


LENGTHS = Target(run_lengths, lambda: LENGTH_SEEDS, mutate_lengths)
