"""Synthesizes input data on which a model behaves as in production.

The difficulty is unknown dimensions: a detector runs on a 1x1 image, but the timing is meaningless. Each dimension that
the model leaves open therefore gets a size based on its role, and ortune reports every such guess.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ortune.errors import InputsError
from ortune.model import InputInfo
from ortune.workload.feed import InputOptions, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


BATCH, SEQUENCE, CHANNELS, IMAGE_SIDE, DEPTH = 1, 128, 3, 224, 8
"""Sizes by role: one request, a sentence or two, a color image of the usual size (a multiple of 32)."""

PLACEHOLDERS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""Symbols that exporters write for unknown names: equal symbols do not mean equal sizes."""

BATCH_NAME = re.compile(r"^(n|b|bs|bsz|.*batch.*)$", re.IGNORECASE)
SEQUENCE_NAME = re.compile(r".*(seq|len|token|time|frame|sample|step|word).*|^[tls]$", re.IGNORECASE)
HEIGHT_NAME = re.compile(r".*(height|width).*|^[hw]$", re.IGNORECASE)
CHANNEL_NAME = re.compile(r".*channel.*|^c$", re.IGNORECASE)

FLOATS = frozenset({"float16", "float32", "float64"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})

ITEM_BYTES = {**dict.fromkeys(FLOATS | INTEGERS, 8), "bool": 1, "string": 64}
"""Memory for one value while it is synthesized: NumPy makes 64-bit random numbers first. Strings may need more."""

LONGEST_STRING = 10_000
"""Largest number of characters of a string of the graph that is used as a value."""

STATE_NAME = re.compile(r"state|hidden|cell|cache|past|^[hc]_?\d*$")

SAMPLE_RATE = 16000


def synthesize(info: InputInfo, dims: Mapping[str, int], options: InputOptions, item: int = 0) -> Tensor:
    """Return data for an input.

    Args:
        info: The input.
        dims: Sizes by name of a symbolic dimension.
        options: The user's options for inputs.
        item: Number of the sample. Random values differ between samples.

    Raises:
        InputsError: The input is of a type that cannot be synthesized, or its rank is unknown.
    """
    if not info.dtype or info.dtype not in FLOATS | INTEGERS | {"bool", "string"}:
        kind = info.dtype or "a sequence, map or optional value"
        raise InputsError(
            f"Input {info.name} is {kind}, which cannot be synthesized.",
            f"Pass real data with {{inputs=data.npz}}, with an array called {info.name}.",
        )
    shape, guessed = resolve_shape(info, dims, options.shapes)
    seed = [options.seed, zlib.crc32(info.name.encode()), *([item] if item else [])]
    array, origin = _values(info, shape, seed)
    return Tensor(array=array, origin=origin, guessed=guessed)


def count_item_bytes(info: InputInfo) -> int:
    """Return the memory for one value of an input while it is synthesized, in bytes."""
    if info.dtype != "string":
        return ITEM_BYTES[info.dtype]
    # NumPy stores each string with the length of the longest, four bytes per character.
    return max(ITEM_BYTES["string"], 8 * max(map(len, _words_of(info)), default=0))


def _words_of(info: InputInfo) -> tuple[str, ...]:
    """Return strings that are values of an input."""
    return tuple(text for text in info.strings if len(text) <= LONGEST_STRING) or ("a", "b", "c")


def resolve_shape(
    info: InputInfo, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the sizes of an input, and a description of each that was guessed.

    Args:
        info: The input.
        dims: Sizes by symbolic dimension name.
        shapes: Whole shapes by input name.

    Raises:
        InputsError: The model does not give the number of dimensions.
    """
    if info.name in shapes:
        return shapes[info.name], ()
    if info.shape is None:
        raise InputsError(
            f"The model does not give the number of dimensions of input {info.name}.",
            f"Pass {{shape={info.name}=...}}, or real data with {{inputs}}.",
        )
    sizes, guessed = [], []
    for axis, dim in enumerate(info.shape):
        if isinstance(dim, int):
            sizes.append(dim)
        elif dim is not None and dim in dims:
            sizes.append(dims[dim])
        else:
            size = _guess(info, axis)
            sizes.append(size)
            name = f"axis {axis}" if dim is None or dim in PLACEHOLDERS else dim
            guessed.append(f"{name}={size}")
    return tuple(sizes), tuple(guessed)


def find_guessed_axes(info: InputInfo, dims: Collection[str]) -> dict[int, int]:
    """Return the size by role of each axis that the graph leaves open, and that is not one of the named dimensions."""
    return {
        axis: _guess(info, axis)
        for axis, dim in enumerate(info.shape or ())
        if not isinstance(dim, int) and (dim is None or dim not in dims)
    }


def _guess(info: InputInfo, axis: int) -> int:
    """Return a sensible size for an open dimension, based on its name or, failing that, on its position."""
    shape = info.shape or ()
    dim = shape[axis]
    name = dim if isinstance(dim, str) and dim not in PLACEHOLDERS else ""
    for pattern, size in (
        (BATCH_NAME, BATCH),
        (HEIGHT_NAME, IMAGE_SIDE),
        (CHANNEL_NAME, CHANNELS),
        (SEQUENCE_NAME, SEQUENCE),
    ):
        if name and pattern.fullmatch(name):
            return size
    if axis == 0:
        return BATCH
    rank = len(shape)
    if axis == 1 and rank == 3 and STATE_NAME.search(info.name.lower()):
        return BATCH  # ONNX's recurrent operators keep their state as [directions, batch, size]
    if rank >= 4 and info.dtype in FLOATS | {"uint8"}:
        channels_last = shape[-1] in {1, 3, 4} and shape[1] not in {1, 3, 4}
        if axis == (rank - 1 if channels_last else 1):
            return CHANNELS
        return IMAGE_SIDE if axis >= rank - 2 - channels_last else DEPTH
    # An axis of fixed size (a column) would be fixed in the graph; open ones are sequences.
    return SEQUENCE


def _values(info: InputInfo, shape: tuple[int, ...], seed: list[int]) -> tuple[Array, str]:
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
        return rng.standard_normal(shape).astype(dtype), "random, normal"
    if re.fullmatch(r"sr|.*sample_?rate.*", name) and np.iinfo(dtype).max >= SAMPLE_RATE:
        return np.full(shape, SAMPLE_RATE, dtype), f"all {SAMPLE_RATE} (a sample rate)"
    if "position" in name and len(shape) > 0:
        steps = np.broadcast_to(np.arange(shape[-1]) % max(info.index_size or shape[-1], 1), shape)
        return steps.astype(dtype), "0, 1, 2, ... (positions)"
    if "token_type" in name or "segment" in name:
        return np.zeros(shape, dtype), "all 0 (one segment)"
    if info.index_size is not None:
        high = min(info.index_size, int(np.iinfo(dtype).max))
        return rng.integers(0, max(high, 1), shape).astype(dtype), f"random, 0 to {high - 1} (rows of a table)"
    if info.dtype == "uint8":
        return rng.integers(0, 256, shape).astype(dtype), "random, 0 to 255"
    return rng.integers(0, 2, shape).astype(dtype), "random, 0 or 1"
