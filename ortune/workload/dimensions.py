"""Chooses the sizes of dimensions that a model leaves open.

A detector runs on a 1x1 image, but the timing is meaningless. Each open dimension therefore gets a size by its role.
A symbolic name has one size in all inputs, and ortune reports every guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import msgspec

from ortune.errors import InputsError
from ortune.model import Dim, InputInfo, ModelInfo

BATCH_SIZE, SEQUENCE_LENGTH, N_CHANNELS, IMAGE_SIDE, DEPTH = 1, 128, 3, 224, 8
"""Sizes by role: one request, a sentence or two, a color image of the usual size (a multiple of 32)."""

PLACEHOLDERS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""Symbols that exporters write for unknown names: equal symbols do not mean equal sizes."""

BATCH_NAME = re.compile(r"^(n|b|bs|bsz|.*batch.*)$", re.IGNORECASE)
SEQUENCE_NAME = re.compile(r".*(seq|len|token|time|frame|sample|step|word).*|^[tls]$", re.IGNORECASE)
HEIGHT_NAME = re.compile(r".*(height|width).*|^[hw]$", re.IGNORECASE)
WIDTH_NAME = re.compile(r".*width.*|^w$", re.IGNORECASE)
CHANNEL_NAME = re.compile(r".*channel.*|^c$", re.IGNORECASE)
COUNT_NAME = re.compile(r"^(num|n|nb|total)_.+|.*(node|edge|atom|bond|face|point)s?$", re.IGNORECASE)
"""Names of numbers of things, such as the nodes and edges of a graph."""

PIXELS = frozenset({"float16", "float32", "float64", "uint8"})
"""Types of images."""

STATE_NAME = re.compile(r"state|hidden|cell|cache|past|^[hc]_?\d*$")

SUM = re.compile(r"\s*[A-Za-z0-9_.]+(?:\s*[-+*]\s*[A-Za-z0-9_.]+)+\s*")
"""A symbol that exporters compute from others, such as `past_sequence_length + 1`."""

SIDES_IN_METADATA = ("imgsz", "img_size", "image_size", "input_size", "resolution")
"""Keys under which exporters write the size of images."""

SIDES_IN_NAME = re.compile(r"(?:^|[-_. ])(\d{2,4})(?:x(\d{2,4}))?[a-z]?(?=[-_. ]|$)")
"""The size of images in the name of a file, such as `320n.onnx` and `det_480x640.onnx`."""

LEAST_SIDE, MOST_SIDE, SIDE_STEP = 64, 2048, 16
"""What a number in the name of a file must be to be a side of an image: other numbers are versions and widths."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of an input.

    Attributes:
        shape: Its sizes.
        guessed: A description of each that was guessed, such as `batch=1`.
    """

    shape: tuple[int, ...]
    guessed: tuple[str, ...] = ()


def choose_sizes(
    model: ModelInfo, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Sizes], dict[str, int]]:
    """Return the sizes of all inputs whose rank is known, and the size of each symbolic dimension.

    Args:
        model: The model.
        dims: Sizes by symbolic dimension name.
        shapes: Whole shapes by input name. Symbols that are not in `dims` have the size that they have there.
    """
    known = dict(dims)
    for info in model.inputs:
        for dim, size in zip(info.shape or (), shapes.get(info.name, ()), strict=False):
            if is_name(dim):
                known.setdefault(dim, size)
    sides = find_image_sides(model)
    guesses: dict[str, int] = {}
    for info in model.inputs:
        for axis, dim in enumerate(info.shape or ()):
            if is_name(dim) and dim not in known and not SUM.fullmatch(dim):
                # The first axis of one input may be a later axis of another: then it is not that of a batch.
                guesses[dim] = max(guess_size(info, axis, sides), guesses.get(dim, 0))
    known |= guesses
    found = {}
    for info in model.inputs:
        if info.name in shapes:
            found[info.name] = Sizes(shape=tuple(shapes[info.name]))
        elif info.shape is not None:
            found[info.name] = _resolve(info, known, guesses, dims, sides)
    return found, known


def _resolve(
    info: InputInfo,
    known: Mapping[str, int],
    guesses: Mapping[str, int],
    dims: Mapping[str, int],
    sides: tuple[int, int] | None,
) -> Sizes:
    sizes, guessed = [], []
    for axis, dim in enumerate(info.shape or ()):
        if isinstance(dim, int):
            sizes.append(dim)
            continue
        size = known.get(dim) if is_name(dim) or (dim is not None and dim in dims) else None
        if size is None and is_name(dim):
            size = evaluate_sum(dim, known)
        if size is not None and dim not in guesses:
            sizes.append(size)
            continue
        size = guess_size(info, axis, sides) if size is None else size
        sizes.append(size)
        guessed.append(f"{dim if is_name(dim) else f'axis {axis}'}={size}")
    return Sizes(shape=tuple(sizes), guessed=tuple(guessed))


def is_name(dim: Dim) -> TypeGuard[str]:
    """Return whether a dimension has a name of its own."""
    return isinstance(dim, str) and dim not in PLACEHOLDERS


def evaluate_sum(symbol: str, known: Mapping[str, int]) -> int | None:
    """Return the size of a symbol that is computed from others, such as `past + 1`; None if it cannot be computed."""
    if not SUM.fullmatch(symbol):
        return None
    total, product, sign = 0, 1, 1
    for operator, name in re.findall(r"([-+*]?)\s*([A-Za-z0-9_.]+)", symbol):
        value = int(name) if name.isdecimal() and len(name) < 10 else known.get(name)
        if value is None:
            return None
        if operator == "*":
            product *= value
            continue
        total += sign * product if operator else 0
        sign, product = (-1 if operator == "-" else 1), value
    total += sign * product
    return total if total >= 0 else None


def guess_size(info: InputInfo, axis: int, sides: tuple[int, int] | None = None) -> int:
    """Return a sensible size for an open dimension, based on its name or, failing that, on its position.

    Args:
        info: The input.
        axis: The dimension.
        sides: Height and width of images, if the model says so.
    """
    shape = info.shape or ()
    dim = shape[axis]
    name = dim if isinstance(dim, str) and dim not in PLACEHOLDERS else ""
    height, width = sides or (IMAGE_SIDE, IMAGE_SIDE)
    for pattern, size in (
        (BATCH_NAME, BATCH_SIZE),
        (WIDTH_NAME, width),
        (HEIGHT_NAME, height),
        (CHANNEL_NAME, N_CHANNELS),
        (SEQUENCE_NAME, SEQUENCE_LENGTH),
        (COUNT_NAME, SEQUENCE_LENGTH),
    ):
        if name and pattern.fullmatch(name):
            return size
    if axis == 0:
        return BATCH_SIZE
    rank = len(shape)
    if axis == 1 and rank == 3 and STATE_NAME.search(info.name.lower()):
        return BATCH_SIZE  # ONNX's recurrent operators keep their state as [directions, batch, size]
    if rank >= 4 and info.dtype in PIXELS:
        channels_last = shape[-1] in {1, 3, 4} and shape[1] not in {1, 3, 4}
        if axis == (rank - 1 if channels_last else 1):
            return N_CHANNELS
        if axis >= rank - 2 - channels_last:
            return width if axis == rank - 1 - channels_last else height
        return DEPTH
    # An axis of fixed size (a column) would be fixed in the graph; open ones are sequences.
    return SEQUENCE_LENGTH


def find_image_sides(model: ModelInfo) -> tuple[int, int] | None:
    """Return height and width of images as the model's metadata or its file name have them, or None."""
    for key in SIDES_IN_METADATA:
        numbers = [int(number) for number in re.findall(r"\d{2,4}", model.metadata.get(key, "")[:100])]
        if numbers and len(numbers) <= 2 and all(is_side(number) for number in numbers):
            return numbers[0], numbers[-1]
    for first, second in SIDES_IN_NAME.findall(Path(model.path).stem):
        height, width = int(first), int(second or first)
        if is_side(height) and is_side(width):
            return height, width
    return None


def is_side(number: int) -> bool:
    """Return whether a number may be a side of an image."""
    return LEAST_SIDE <= number <= MOST_SIDE and number % SIDE_STEP == 0


def require_sizes(info: InputInfo, sizes: Mapping[str, Sizes]) -> Sizes:
    """Return the sizes of an input.

    Raises:
        InputsError: The model does not give the number of its dimensions.
    """
    if info.name not in sizes:
        raise InputsError(
            f"The model does not give the number of dimensions of input {info.name}.",
            f"Pass {{shape={info.name}=...}}, or real data with {{inputs}}.",
        )
    return sizes[info.name]
