"""Makes items of different lengths: samples of one item each, whose sequence axes have the length of the item."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from ortune.errors import UsageError
from ortune.model import ModelInfo
from ortune.workload.batching import check_batch_axis, name_batch_axes
from ortune.workload.dimensions import (
    BATCH_NAME,
    PLACEHOLDERS,
    SEQUENCE_LENGTH,
    Sizes,
    choose_sizes,
    guess_size,
    is_name,
    require_sizes,
)
from ortune.workload.feed import Feed, InputOptions
from ortune.workload.size import check_size
from ortune.workload.synthesis import SynthesisFacts, count_item_bytes, synthesize

COPIES = 4
"""Arrays of all items, padded to the longest one, that a worker has in memory at most, about."""

Axes = dict[str, tuple[int, ...]]
"""For each input, the axes that have the length of an item."""


def find_length_axes(model: ModelInfo, options: InputOptions) -> Axes:
    """Return the axes that have the length of an item: those that have the role of a sequence, and no given size.

    Raises:
        UsageError: There are none, or several with different names.
    """
    found: Axes = {}
    names: set[str] = set()
    for info in model.inputs:
        if info.shape is None or info.name in options.shapes:
            continue
        axes = tuple(
            axis
            for axis, dim in enumerate(info.shape)
            if axis > 0
            and not isinstance(dim, int)
            and (dim is None or dim not in options.dims)
            and guess_size(info, axis) == SEQUENCE_LENGTH
            and not BATCH_NAME.fullmatch(dim or "")
        )
        if axes:
            found[info.name] = axes
            names |= {str(info.shape[axis]) for axis in axes if info.shape[axis]} - PLACEHOLDERS
    if not found:
        raise UsageError(
            "needs a model with an input whose second axis or a later one is a sequence of any size.",
            "Leave {lengths} out. If such an axis has a size by {dim} or {shape}, leave that out instead.",
            option="lengths",
        )
    if len(names) > 1:
        first = sorted(names)[0]
        raise UsageError(
            f"the model has several axes of sequences: {', '.join(sorted(names))}. An item has one length.",
            f"Give all but one of them a size, such as {{dim={first}=128}}.",
            option="lengths",
        )
    return found


def make_length_feed(
    model: ModelInfo, options: InputOptions, lengths: Sequence[int], axes: Mapping[str, Collection[int]]
) -> Feed:
    """Return a sample of one item for each length. All are of one case, as requests of all lengths come mixed.

    Args:
        model: The model.
        options: The user's options for inputs.
        lengths: Length of each item.
        axes: The axes that have the length of the item.

    Raises:
        InputsError: An input cannot be synthesized, or the items do not fit into memory.
        UsageError: The model takes no batches, or data is given.
    """
    if options.data:
        raise UsageError(
            "cannot be combined with {inputs}: the items are made with these lengths.",
            "Leave {inputs} out.",
            option="lengths",
        )
    for name, values in options.dims.items():
        if len(values) > 1:
            raise UsageError(
                f"{name}={','.join(map(str, values))}: several sizes cannot be combined with {{lengths}}.",
                "Give one size.",
                option="dim",
            )
    check_batch_axis(model, name_batch_axes(model, options), option="lengths")
    sizes, symbols = choose_sizes(model, {name: values[0] for name, values in options.dims.items()}, options.shapes)
    padded_bytes = sum(
        math.prod(pad(require_sizes(info, sizes), axes.get(info.name, ()), max(lengths)).shape) * count_item_bytes(info)
        for info in model.inputs
        if info.dtype and info.shape is not None
    )
    check_size(
        COPIES * len(lengths) * padded_bytes, f"{len(lengths)} items padded to {max(lengths)} take", option="lengths"
    )
    names = {
        dim
        for info in model.inputs
        for axis, dim in enumerate(info.shape or ())
        if axis in axes.get(info.name, ()) and is_name(dim)
    }
    samples = []
    for number, length in enumerate(lengths):
        facts = SynthesisFacts.of(model, {**symbols, **dict.fromkeys(names, length)})
        samples.append(
            {
                info.name: synthesize(
                    info, pad(require_sizes(info, sizes), axes.get(info.name, ()), length), facts, options.seed, number
                )
                for info in model.inputs
            }
        )
    return Feed(samples=tuple(samples), cases=(0,) * len(samples))


def pad(sizes: Sizes, axes: Collection[int], length: int) -> Sizes:
    """Return the sizes of an input for one item of a length.

    Args:
        sizes: Its sizes.
        axes: The axes that have the length of the item.
        length: Length of the item.
    """
    shape = tuple(length if axis in axes else size for axis, size in enumerate(sizes.shape))
    return msgspec.structs.replace(sizes, shape=shape)
