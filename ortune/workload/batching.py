"""Checks that items can be put together into calls: the batch axis of a model, and the samples of its feed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from ortune.errors import InputsError, UsageError
from ortune.model import Dim, ModelInfo
from ortune.workload.dimensions import BATCH_NAME, CHANNEL_NAME, HEIGHT_NAME, PLACEHOLDERS, SEQUENCE_NAME
from ortune.workload.feed import Feed, InputOptions
from ortune.workload.goal import Goal, check_batches
from ortune.workload.size import check_size

MOST_DIFFERENT_ITEMS = 8
"""Number of different items that are synthesized. With equal ones, a model that mixes items would go unnoticed."""

GENERATED_NAME = re.compile(r"unk__\d+|s\d+|.*dim_?\d+|.*dynamic_axes_\d+|.*DynamicDimension\.\d+", re.IGNORECASE)
"""Names that exporters generate. Different ones may stand for the same size."""

NEEDS = "needs a model whose inputs and outputs have a first axis of any size, that of a batch."

EXPORT_HINT = (
    "Export the model with such an axis, for example with dynamic_axes of torch.onnx.export, or leave {batch} out."
)


def count_items(batches: Collection[int]) -> int:
    """Return how many different items to synthesize, given the numbers of items in a call."""
    return min(max(batches, default=1), MOST_DIFFERENT_ITEMS)


def list_batches(*batches: int) -> tuple[int, ...]:
    """Return different numbers of items in a call, the first one first; none if all are 1."""
    return tuple(dict.fromkeys(batches)) if max(batches) > 1 else ()


def with_batches(goal: Goal, *batches: int) -> Goal:
    """Return a goal with the numbers of items in a call that configs have, the baseline's first.

    Raises:
        UsageError: There are several in a call, and requests arrive at a rate.
    """
    listed = list_batches(*batches)
    check_batches(goal.load, listed)
    return msgspec.structs.replace(goal, batches=listed)


def list_first_axes(model: ModelInfo) -> set[str]:
    """Return the names of the first axes of all inputs, as far as they have one."""
    firsts = {info.shape[0] for info in model.inputs if info.shape}
    return {dim for dim in firsts if isinstance(dim, str) and dim not in PLACEHOLDERS}


def name_batch_axes(model: ModelInfo, options: InputOptions) -> set[str]:
    """Return the names of dimensions of which the user, or a record, says that an item has size 1."""
    given = {*options.shapes, *(name for case in options.cases for name in case)}
    firsts = {info.shape[0] for info in model.inputs if info.shape and info.name in given}
    return {*options.dims, *(dim for dim in firsts if isinstance(dim, str))}


def check_batch_axis(model: ModelInfo, named: Collection[str] = (), option: str = "batch") -> None:
    """Check that the first axis of all inputs and outputs of a model is a batch axis, as far as the model says.

    It must have any size. Its name must be that of a batch, be unknown or generated, or be the same for all inputs.

    Args:
        model: The model.
        named: Names of dimensions that the user says are batch axes.
        option: The option that needs such an axis.

    Raises:
        UsageError: It is not.
    """
    try:
        _check_batch_axis(model, named)
    except UsageError as error:
        hint = error.hint.replace("{batch}", f"{{{option}}}")
        raise UsageError(error.message, hint, option=option) from None


def _check_batch_axis(model: ModelInfo, named: Collection[str]) -> None:
    if not model.inputs:
        raise UsageError(f"{NEEDS} It has no inputs.", "Leave {batch} out.", option="batch")
    for info in model.inputs:
        if not info.dtype or info.shape is None:
            raise UsageError(f"{NEEDS} It declares no shape of input {info.name}.", EXPORT_HINT, option="batch")
        _check_first("input", info.name, info.shape)
    firsts = {info.name: info.shape[0] for info in model.inputs if info.shape}
    is_common = len(set(firsts.values())) == 1
    for name, dim in firsts.items():
        if not _may_be_batch(dim, named) and (not is_common or _has_other_role(dim)):
            raise UsageError(
                f"{NEEDS} That of input {name} is {dim}, which does not look like a batch axis.",
                f"If its entries are separate items, say so with {{dim={dim}=1}}. Otherwise leave {{batch}} out.",
                option="batch",
            )
    later = {dim for info in model.inputs for dim in (info.shape or ())[1:] if isinstance(dim, str)} - PLACEHOLDERS
    for output in model.outputs:
        if output.shape is None:
            continue  # the outputs of the first batch show it
        _check_first("output", output.name, output.shape)
        dim = output.shape[0]
        if dim not in firsts.values() and (dim in later or not _may_be_batch(dim, named)):
            raise UsageError(
                f"{NEEDS} That of output {output.name} is {dim}, which is not the batch axis of the inputs.",
                EXPORT_HINT,
                option="batch",
            )


def _check_first(kind: str, name: str, shape: Sequence[Dim]) -> None:
    if not shape or isinstance(shape[0], int):
        what = f"That of {kind} {name} is {shape[0]}." if shape else f"{kind.capitalize()} {name} has no axis."
        raise UsageError(f"{NEEDS} {what}", EXPORT_HINT, option="batch")


def _may_be_batch(dim: Dim, named: Collection[str]) -> bool:
    """Return whether an axis may be a batch axis, whatever the other inputs have."""
    if not isinstance(dim, str) or dim in PLACEHOLDERS or dim in named:
        return True
    return bool(BATCH_NAME.fullmatch(dim) or GENERATED_NAME.fullmatch(dim))


def _has_other_role(dim: Dim) -> bool:
    return isinstance(dim, str) and any(
        pattern.fullmatch(dim) for pattern in (SEQUENCE_NAME, HEIGHT_NAME, CHANNEL_NAME)
    )


def check_items(feed: Feed, largest: int) -> None:
    """Check that each sample is one item, and that batches of them fit into memory.

    Args:
        feed: The samples.
        largest: Largest number of items in a call.

    Raises:
        InputsError: They are not, or do not.
    """
    kinds = {}
    for sample in feed.samples:
        for name, tensor in sample.items():
            size = tensor.array.shape[0] if tensor.array.ndim else None
            if size != 1:
                given = tensor.origin.startswith("from ")
                what = "has no axis" if size is None else f"has {size} entries along its first axis"
                raise InputsError(
                    f"{name} {what}, and {{batch}} puts single items together.",
                    "Give samples of one item: an array of N items as one of shape Nx1x..., with a new second axis."
                    if given
                    else "The sizes in {dim} and {shape} are those of one item: make the first one 1.",
                    option="inputs" if given else "",
                )
        kinds[tuple(tensor.array.shape for tensor in sample.values())] = sample
    own_bytes = sum(tensor.array.nbytes for sample in feed.samples for tensor in sample.values())
    batch_bytes = sum(largest * tensor.array.nbytes for sample in kinds.values() for tensor in sample.values())
    check_size(own_bytes + batch_bytes, f"batches of {largest} items take", option="batch")
