"""Synthesizes values on which a model behaves as in production. Their shapes come from `ortune.workload.dimensions`."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ortune.errors import InputsError
from ortune.model import InputInfo, ModelInfo
from ortune.workload.dimensions import STATE_NAME, Sizes
from ortune.workload.feed import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


FLOATS = frozenset({"float16", "float32", "float64"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})

ITEM_BYTES = {**dict.fromkeys(FLOATS | INTEGERS, 8), "bool": 1, "string": 64}
"""Memory for one value while it is synthesized: NumPy makes 64-bit random numbers first. Strings may need more."""

LONGEST_STRING = 10_000
"""Largest number of characters of a string of the graph that is used as a value."""

SAMPLE_RATE = 16000
RATES = range(1000, 200_000)
"""The usual sample rate of speech, and the sample rates that are believed."""


PIXEL_RANGE = "image.nominalpixelrange"
PIXEL_RANGES: Mapping[str, tuple[float, float]] = {
    "nominalrange_0_255": (0.0, 255.0),
    "nominalrange_16_235": (16.0, 235.0),
    "normalized_0_1": (0.0, 1.0),
    "normalized_1_1": (-1.0, 1.0),
}
"""The entry of a model's metadata that has the range of pixels, and its values, in lower case.

Source: MetadataProps.md of ONNX, which says that neither keys nor values depend on case."""

IMAGE_RANK = 4


class SynthesisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says of the values of its inputs.

    Attributes:
        dims: Sizes of symbolic dimensions.
        sample_rate: Sample rate of its audio, in Hz.
        pixel_range: Least and largest value of the pixels of its images; None if it does not say.
    """

    dims: Mapping[str, int] = {}
    sample_rate: int = SAMPLE_RATE
    pixel_range: tuple[float, float] | None = None

    @classmethod
    def of(cls, model: ModelInfo, dims: Mapping[str, int]) -> SynthesisFacts:
        """Return what a model says, given the sizes of its symbolic dimensions."""
        text = model.metadata.get("sample_rate", "")
        rate = int(text) if text.isdecimal() and len(text) < 7 else 0
        pixels = next((value for key, value in model.metadata.items() if key.lower() == PIXEL_RANGE), "")
        return cls(
            dims=dims,
            sample_rate=rate if rate in RATES else SAMPLE_RATE,
            pixel_range=PIXEL_RANGES.get(pixels.lower()),
        )


def synthesize(info: InputInfo, sizes: Sizes, facts: SynthesisFacts, seed: int, item: int = 0) -> Tensor:
    """Return data for an input.

    Args:
        info: The input.
        sizes: Its sizes.
        facts: What the model says of values.
        seed: Random seed.
        item: Number of the sample. Random values differ between samples.
    """
    check_type(info)
    seeds = [seed, zlib.crc32(info.name.encode()), *([item] if item else [])]
    array, origin = _values(info, sizes.shape, seeds, facts)
    return Tensor(array=array, origin=origin, guessed=sizes.guessed)


def check_type(info: InputInfo) -> None:
    """Check that data for an input can be synthesized.

    Raises:
        InputsError: It is of another type.
    """
    if not info.dtype or info.dtype not in FLOATS | INTEGERS | {"bool", "string"}:
        kind = info.dtype or "a sequence, map or optional value"
        raise InputsError(
            f"Input {info.name} is {kind}, which cannot be synthesized.",
            f"Pass real data with {{inputs=data.npz}}, with an array called {info.name}.",
        )


def count_item_bytes(info: InputInfo) -> int:
    """Return the memory for one value of an input while it is synthesized, in bytes."""
    if info.dtype != "string":
        return ITEM_BYTES[info.dtype]
    # NumPy stores each string with the length of the longest, four bytes per character.
    return max(ITEM_BYTES["string"], 8 * max(map(len, _words_of(info)), default=0))


def _words_of(info: InputInfo) -> tuple[str, ...]:
    """Return strings that are values of an input."""
    return tuple(text for text in info.strings if len(text) <= LONGEST_STRING) or ("a", "b", "c")


def _values(info: InputInfo, shape: tuple[int, ...], seed: list[int], facts: SynthesisFacts) -> tuple[Array, str]:
    """Return seeded values that the model accepts, and a description of them."""
    import numpy as np

    rng = np.random.default_rng(seed)
    name = info.name.lower()
    if info.dtype == "string":
        words = _words_of(info)
        origin = "one of the strings in the graph" if info.strings else "the letters a, b and c"
        return np.array(rng.choice(np.array(words, dtype=np.str_), shape)), origin
    dtype = np.dtype(info.dtype)
    if 0 in shape:
        return np.zeros(shape, dtype), "empty"
    if info.dtype == "bool" or "mask" in name:
        return np.ones(shape, dtype), "all 1"
    if info.dtype in FLOATS:
        if STATE_NAME.search(name):
            return np.zeros(shape, dtype), "all 0 (a state)"
        if facts.pixel_range and len(shape) == IMAGE_RANK:
            low, high = facts.pixel_range
            return rng.uniform(low, high, shape).astype(dtype), f"random, {low:g} to {high:g} (pixels)"
        return rng.standard_normal(shape).astype(dtype), "random, normal"
    if re.fullmatch(r"sr|.*sample_?rate.*", name) and np.iinfo(dtype).max >= facts.sample_rate:
        return np.full(shape, facts.sample_rate, dtype), f"all {facts.sample_rate} (a sample rate)"
    if "position" in name and len(shape) > 0:
        steps = np.broadcast_to(np.arange(shape[-1]) % max(info.index_size or shape[-1], 1), shape)
        return steps.astype(dtype), "0, 1, 2, ... (positions)"
    if "token_type" in name or "segment" in name:
        return np.zeros(shape, dtype), "all 0 (one segment)"
    n_rows = facts.dims.get(info.index_dim) if info.index_size is None else info.index_size
    if n_rows is not None:
        high = min(n_rows, int(np.iinfo(dtype).max))
        return rng.integers(0, max(high, 1), shape).astype(dtype), f"random, 0 to {high - 1} (rows of a table)"
    if info.dtype == "uint8":
        return rng.integers(0, 256, shape).astype(dtype), "random, 0 to 255"
    return rng.integers(0, 2, shape).astype(dtype), "random, 0 or 1"
