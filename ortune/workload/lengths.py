"""Lengths of inputs, such as texts in tokens: a named distribution, or a file.

A file has one length per line, or is a JSON list of them, or what `ortune inspect` wrote. It is untrusted.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.errors import UsageError
from ortune.limited import TooLargeError, read_limited

HIGHEST_LENGTH = 1_000_000
MOST_LENGTHS = 1_000_000
MOST_LENGTHS_BYTES = 8 * MOST_LENGTHS

CAPPED_SHARE = 0.01
"""Share of a lognormal distribution above its largest length, if its sigma is not given. These get that length."""

MOST_SEEN = 10_000
"""Lengths that are made from the calls that `ortune inspect` has counted, about."""

LENGTHS_HINT = "Write constant:128, uniform:8-256, lognormal:29,8-256 (median, range), or the path of a file."
LINE_HINT = f"Write one whole number from 1 to {HIGHEST_LENGTH} per line."


class LengthDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of lengths.

    Attributes:
        kind: "lognormal" is skewed, as lengths of texts are; "sample" draws from given lengths.
        low: Smallest length.
        high: Largest length.
        median: For "lognormal": the median.
        sigma: For "lognormal": standard deviation of the logarithm.
        sample: For "sample": the given lengths.
        text: What the user wrote.
    """

    kind: Literal["constant", "uniform", "lognormal", "sample"]
    low: int
    high: int
    median: float = 0.0
    sigma: float = 0.0
    sample: tuple[int, ...] = ()
    text: str = ""

    def draw(self, n: int, seed: int = 0) -> NDArray[np.int64]:
        """Return independent lengths."""
        rng = np.random.default_rng(seed)
        if self.kind == "sample":
            return np.asarray(rng.choice(np.array(self.sample), n))
        if self.kind == "lognormal":
            drawn = np.rint(self.median * np.exp(self.sigma * rng.standard_normal(n)))
            return np.clip(drawn, self.low, self.high).astype(np.int64)
        return rng.integers(self.low, self.high + 1, n)

    def take(self, n: int, seed: int = 0) -> tuple[int, ...]:
        """Return so many lengths in order of arrival: of given ones different entries, and all if there are fewer."""
        if self.kind != "sample":
            return tuple(map(int, self.draw(n, seed)))
        if len(self.sample) <= n:
            return self.sample
        chosen = np.sort(np.random.default_rng(seed).choice(len(self.sample), n, replace=False))
        return tuple(self.sample[position] for position in chosen)


def parse_lengths(value: Any) -> LengthDistribution:
    """Parse `constant:128`, `uniform:8-256`, `lognormal:29,8-256`, or the path of a file.

    A third value of `lognormal:29,8-256,0.8` is sigma. Without it, sigma is such that 1 % would be above the range.

    Raises:
        UsageError: It is none of these, or the file cannot be read.
    """
    if isinstance(value, LengthDistribution):
        return value
    text = str(value).strip()
    kind, colon, rest = text.partition(":")
    is_named = colon and kind in {"constant", "uniform", "lognormal"}
    found = _parse_distribution(text, kind, rest.replace(" ", "")) if is_named else read_lengths(text)
    return msgspec.structs.replace(found, text=_shorten(text))


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
        raise UsageError(f"{_shorten(text)}: is not a distribution of lengths.", LENGTHS_HINT)
    if kind == "constant":
        low = high = int(found[1])
    else:
        first = 1 if kind == "uniform" else 2
        low, high = int(found[first]), int(found[first + 1])
    if not 1 <= low <= high <= HIGHEST_LENGTH:
        raise UsageError(
            f"{_shorten(text)}: lengths must be from 1 to {HIGHEST_LENGTH}, the smaller one first.", LENGTHS_HINT
        )
    if kind != "lognormal":
        return LengthDistribution(kind="constant" if kind == "constant" else "uniform", low=low, high=high)
    median = float(found[1])
    if not low <= median <= high:
        raise UsageError(f"{_shorten(text)}: the median must be within the range.", LENGTHS_HINT)
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
    """Read lengths from a file; `-` is stdin.

    Raises:
        UsageError: The file cannot be read, has no lengths, or has something else.
    """
    try:
        data = read_limited(path, MOST_LENGTHS_BYTES)
    except TooLargeError as error:
        raise UsageError(f"{_shorten(path)}: {error}.", "Use a sample of the lengths.") from None
    except OSError as error:
        raise UsageError(f"{_shorten(path)}: cannot be read: {error.strerror or error}.", LENGTHS_HINT) from None
    is_json = data.lstrip()[:1] in {b"[", b"{"}
    lengths = _read_json(data, path) if is_json else _read_lines(data, path)
    if not lengths:
        raise UsageError(f"{_shorten(path)}: it has no lengths.", "Write one whole number per line.")
    return LengthDistribution(kind="sample", low=min(lengths), high=max(lengths), sample=tuple(lengths))


def _read_lines(data: bytes, path: str) -> list[int]:
    """Return the lengths in a text with one of them per line; empty lines are ignored."""
    lengths: list[int] = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= HIGHEST_LENGTH:
            raise UsageError(f"{_shorten(path)}: line {number} is not a length: {_shorten(text)}.", LINE_HINT)
        lengths.append(int(text))
        _check_count(lengths, path)
    return lengths


class _SeenInput(msgspec.Struct):
    """An input of a call, as `ortune inspect` writes it, as far as lengths are in it."""

    shape: tuple[int, ...] | None = None


class _SeenShapes(msgspec.Struct):
    """Calls with the same shapes."""

    inputs: tuple[_SeenInput, ...]
    count: int


class _SeenModel(msgspec.Struct):
    """A model of a program."""

    name: str
    shapes: tuple[_SeenShapes, ...]


class _Seen(msgspec.Struct):
    """What `ortune inspect` writes."""

    models: tuple[_SeenModel, ...]


def _read_json(data: bytes, path: str) -> list[int]:
    """Return the lengths in a JSON list, or in what `ortune inspect` wrote.

    Raises:
        UsageError: It is neither.
    """
    is_list = data.lstrip().startswith(b"[")
    found: list[int] | _Seen
    try:
        found = msgspec.json.decode(data, type=list[int]) if is_list else msgspec.json.decode(data, type=_Seen)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        what = "a JSON list of lengths" if is_list else "a file of `ortune inspect`"
        raise UsageError(f"{_shorten(path)}: is not {what}: {_shorten(str(error))}.", LINE_HINT) from None
    if isinstance(found, _Seen):
        return _read_seen(found, path)
    for number, length in enumerate(found, 1):
        if not 1 <= length <= HIGHEST_LENGTH:
            raise UsageError(f"{_shorten(path)}: entry {number} is not a length: {_shorten(length)}.", LINE_HINT)
    _check_count(found, path)
    return found


def _read_seen(seen: _Seen, path: str) -> list[int]:
    """Return a length for each item of the calls of a program: the second size of the first input that has one.

    Raises:
        UsageError: The program has several models with such calls, or the sizes are no lengths.
    """
    models = {}
    for model in seen.models:
        counts: dict[int, int] = {}
        for model_shape in model.shapes:
            shape = next((one.shape for one in model_shape.inputs if one.shape and len(one.shape) > 1), None)
            if shape and 1 <= shape[1] <= HIGHEST_LENGTH and shape[0] >= 1 and model_shape.count >= 1:
                counts[shape[1]] = counts.get(shape[1], 0) + min(model_shape.count * shape[0], MOST_LENGTHS)
        if counts:
            models[model.name] = counts
    if len(models) > 1:
        names = ", ".join(_shorten(name) for name in list(models)[:3])
        raise UsageError(
            f"{_shorten(path)}: it has several models with lengths: {names}.",
            "Write the lengths of one of them to a file, one per line.",
        )
    counts = next(iter(models.values()), {})
    # The proportions are kept where calls are many.
    scale = max(sum(counts.values()) / MOST_SEEN, 1.0)
    return [length for length, count in counts.items() for _ in range(max(round(count / scale), 1))]


def _check_count(lengths: list[int], path: str) -> None:
    if len(lengths) > MOST_LENGTHS:
        raise UsageError(f"{_shorten(path)}: it has more than {MOST_LENGTHS} lengths.", "Use a sample of them.")


def _shorten(value: object) -> str:
    """Return a value as text for a message, cut to 200 characters."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
