"""Lengths of inputs, such as texts in tokens: a named distribution, or a file with one length per line."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.errors import UsageError
from ortune.limited import TooLargeError, read_limited
from ortune.options import show

HIGHEST_LENGTH = 1_000_000
MOST_LENGTHS = 1_000_000
MOST_BYTES = 8 * MOST_LENGTHS

CAPPED_SHARE = 0.01
"""Share of a lognormal distribution above its largest length, if its sigma is not given. These get that length."""

HINT = "Write constant:128, uniform:8-256, lognormal:29,8-256 (median, range), or the path of a file."


class LengthDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of lengths.

    Attributes:
        kind: "lognormal" is skewed, as lengths of texts are; "sample" draws from given lengths.
        low: Smallest length.
        high: Largest length.
        median: For "lognormal": the median.
        sigma: For "lognormal": standard deviation of the logarithm.
        sample: For "sample": the given lengths.
    """

    kind: Literal["constant", "uniform", "lognormal", "sample"]
    low: int
    high: int
    median: float = 0.0
    sigma: float = 0.0
    sample: tuple[int, ...] = ()

    def draw(self, n: int, seed: int = 0) -> NDArray[np.int64]:
        """Return independent lengths."""
        rng = np.random.default_rng(seed)
        if self.kind == "sample":
            return np.asarray(rng.choice(np.array(self.sample), n))
        if self.kind == "lognormal":
            drawn = np.rint(self.median * np.exp(self.sigma * rng.standard_normal(n)))
            return np.clip(drawn, self.low, self.high).astype(np.int64)
        return rng.integers(self.low, self.high + 1, n)


def parse_lengths(value: Any) -> LengthDistribution:
    """Parse `constant:128`, `uniform:8-256`, `lognormal:29,8-256`, or the path of a file with one length per line.

    A third value of `lognormal:29,8-256,0.8` is sigma. Without it, sigma is such that 1 % would be above the range.

    Raises:
        UsageError: It is none of these, or the file cannot be read.
    """
    text = str(value).strip()
    kind, colon, rest = text.partition(":")
    if colon and kind in {"constant", "uniform", "lognormal"}:
        return _parse_distribution(text, kind, rest.replace(" ", ""))
    return read_lengths(text)


def _parse_distribution(text: str, kind: str, rest: str) -> LengthDistribution:
    """Return the named distribution."""
    number = r"(\d{1,9})"
    patterns = {
        "constant": rf"{number}",
        "uniform": rf"{number}-{number}",
        "lognormal": rf"(\d{{1,9}}(?:\.\d{{1,9}})?),{number}-{number}(?:,(\d{{1,3}}(?:\.\d{{1,9}})?))?",
    }
    found = re.fullmatch(patterns[kind], rest)
    if not found:
        raise UsageError(f"{show(text)}: is not a distribution of lengths.", HINT)
    if kind == "constant":
        low = high = int(found[1])
    else:
        first = 1 if kind == "uniform" else 2
        low, high = int(found[first]), int(found[first + 1])
    if not 1 <= low <= high <= HIGHEST_LENGTH:
        raise UsageError(f"{show(text)}: lengths must be from 1 to {HIGHEST_LENGTH}, the smaller one first.", HINT)
    if kind != "lognormal":
        return LengthDistribution(kind="constant" if kind == "constant" else "uniform", low=low, high=high)
    median = float(found[1])
    if not low <= median <= high:
        raise UsageError(f"{show(text)}: the median must be within the range.", HINT)
    return LengthDistribution(
        kind="lognormal",
        low=low,
        high=high,
        median=median,
        sigma=_sigma_of_range(median, high) if found[4] is None else float(found[4]),
    )


def _sigma_of_range(median: float, high: int) -> float:
    """Return the sigma with which a known share is above the range."""
    from scipy.special import ndtri

    return math.log(high / median) / float(ndtri(1 - CAPPED_SHARE))


def read_lengths(path: str) -> LengthDistribution:
    """Read lengths from a file: one whole number per line; empty lines are ignored. `-` is stdin.

    Raises:
        UsageError: The file cannot be read, has no lengths, or has a line that is not one.
    """
    try:
        data = read_limited(path, MOST_BYTES)
    except TooLargeError as error:
        raise UsageError(f"{show(path)}: {error}.", "Use a sample of the lengths.") from None
    except OSError as error:
        raise UsageError(f"{show(path)}: cannot be read: {error.strerror or error}.", HINT) from None
    lengths: list[int] = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= HIGHEST_LENGTH:
            raise UsageError(
                f"{show(path)}: line {number} is not a length: {show(text)}.",
                f"Write one whole number from 1 to {HIGHEST_LENGTH} per line.",
            )
        lengths.append(int(text))
        if len(lengths) > MOST_LENGTHS:
            raise UsageError(f"{show(path)}: it has more than {MOST_LENGTHS} lengths.", "Use a sample of them.")
    if not lengths:
        raise UsageError(f"{show(path)}: it has no lengths.", "Write one whole number per line.")
    return LengthDistribution(kind="sample", low=min(lengths), high=max(lengths), sample=tuple(lengths))
