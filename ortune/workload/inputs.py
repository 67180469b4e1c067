"""Makes the input data: the user's data if given, otherwise synthesized data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from ortune.errors import InputsError
from ortune.model import InputInfo, ModelInfo
from ortune.sanitize import printable
from ortune.workload.batching import check_batch_axis, check_items, count_items, list_first_axes, name_batch_axes
from ortune.workload.data import fit_array, fits_shape, format_shape, load_data, name_inputs
from ortune.workload.dimensions import choose_sizes, require_sizes
from ortune.workload.feed import Feed, InputOptions, Sample, Tensor
from ortune.workload.npz import MOST_AXES
from ortune.workload.size import check_size, format_bytes
from ortune.workload.synthesis import ITEM_BYTES, SynthesisFacts, check_type, count_item_bytes, synthesize

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

MOST_CASES = 1000
"""Largest number of combinations of sizes. Each is measured in turn."""


def make_feed(model: ModelInfo, options: InputOptions, batches: Sequence[int] = ()) -> Feed:
    """Return the input data: the user's data if given, otherwise synthesized data.

    Args:
        model: The model.
        options: The user's options for inputs.
        batches: Numbers of items in a call; empty if calls are made with the samples as they are. Each sample is one
            item then, and several different ones are synthesized.

    Raises:
        InputsError: An option names no input or dimension, the data does not fit, or an input is of a type
            that cannot be synthesized.
        UsageError: The model takes no batches.
    """
    if not batches:
        return _make_samples(model, options)
    check_batch_axis(model, name_batch_axes(model, options))
    feed = _make_samples(model, options, n_items=count_items(batches))
    check_items(feed, max(batches))
    known = {f"{name}=1" for name in ("axis 0", *list_first_axes(model))}
    samples = ({name: _without_guesses(tensor, known) for name, tensor in sample.items()} for sample in feed.samples)
    return msgspec.structs.replace(feed, samples=tuple(samples))


def _without_guesses(tensor: Tensor, known: set[str]) -> Tensor:
    """Return a tensor without the guesses that are known to be right."""
    return msgspec.structs.replace(tensor, guessed=tuple(dim for dim in tensor.guessed if dim not in known))


def _make_samples(model: ModelInfo, options: InputOptions, n_items: int = 1) -> Feed:
    """Return the input data, with so many different samples of each case if they are synthesized."""
    by_name = {info.name: info for info in model.inputs}
    _check_options(by_name, options)
    names = list(options.dims)
    n_cases = math.prod(map(len, options.dims.values()))
    if n_cases > MOST_CASES:
        raise InputsError(
            f"there are {n_cases} combinations of sizes; at most {MOST_CASES} are measured.",
            "Give fewer sizes: {dim=batch=1,8}.",
            option="dim",
        )
    cases = [dict(zip(names, sizes, strict=True)) for sizes in itertools.product(*options.dims.values())]
    if options.data and len(cases) > 1:
        raise InputsError(
            "several sizes cannot be combined with {inputs}: the data has its own sizes.",
            "Put samples of all sizes into the data, or leave {inputs} out.",
            option="dim",
        )
    given = load_data(Path(options.data), model.inputs) if options.data else [{}] * n_items
    samples: list[Sample] = []
    if options.cases and not options.data:
        replaced = [msgspec.structs.replace(options, shapes=shapes) for shapes in options.cases]
        _check_sizes(model, [({}, own) for own in replaced], n_items)
        for item, own in itertools.product(range(n_items), replaced):
            samples.append(_make_sample(model, {}, own, {}, item))
        return Feed(samples=tuple(samples), cases=tuple(range(len(replaced))) * n_items, options=options)
    # Samples of the user may have different sizes; synthesized ones do not.
    different = given if options.data else given[:1]
    for arrays in different:
        _check_sizes(model, [(case, options) for case in cases], len(given), arrays)
    # All cases in turn, because each block must contain all of them.
    for item, arrays in enumerate(given):
        for case in cases:
            samples.append(_make_sample(model, case, options, arrays, 0 if options.data else item))
    return Feed(samples=tuple(samples), cases=tuple(range(len(cases))) * len(given), options=options)


def _make_sample(
    model: ModelInfo, dims: Mapping[str, int], options: InputOptions, given: Mapping[str, Array], item: int
) -> Sample:
    """Return the input of one call: the arrays that the user gave, and synthesized ones.

    Args:
        model: The model.
        dims: Sizes by symbolic dimension.
        options: The user's options for inputs.
        given: Arrays by input name.
        item: Number of the sample.
    """
    arrays = {info.name: fit_array(info, given[info.name]) for info in model.inputs if info.name in given}
    shapes = {**options.shapes, **{name: array.shape for name, array in arrays.items()}}
    sizes, symbols = choose_sizes(model, dims, shapes)
    facts = SynthesisFacts.of(model, symbols)
    sample = {}
    for info in model.inputs:
        if info.name in arrays:
            sample[info.name] = Tensor(
                array=arrays[info.name], origin=f"from {printable(Path(options.data or '').name)}"
            )
        else:
            check_type(info)
            sample[info.name] = synthesize(info, require_sizes(info, sizes), facts, options.seed, item)
    return sample


def _check_sizes(
    model: ModelInfo,
    cases: Sequence[tuple[Mapping[str, int], InputOptions]],
    n_samples: int = 1,
    given: Mapping[str, Array] = MappingProxyType({}),
) -> None:
    """Check that the synthesized data will fit into memory.

    Args:
        model: The model.
        cases: For each case, sizes by symbolic dimension, and options.
        n_samples: Number of samples in each case.
        given: Arrays that are not synthesized, by input name.

    Raises:
        InputsError: It will not.
    """
    total_bytes, largest, what = 0, -1, ""
    for dims, options in cases:
        sizes, _ = choose_sizes(model, dims, {**options.shapes, **{name: array.shape for name, array in given.items()}})
        for info in model.inputs:
            if info.name in given or info.dtype not in ITEM_BYTES or info.name not in sizes:
                continue  # the last ones are errors, which `_make_sample` explains
            shape = sizes[info.name].shape
            _check_axes(info, shape)
            n_bytes = math.prod(shape) * count_item_bytes(info)
            total_bytes += n_bytes * n_samples
            if n_bytes > largest:
                largest, what = n_bytes, f"{info.name}: {info.dtype}[{format_shape(shape)}]"
    check_size(total_bytes, "The inputs take", option="dim" if options.dims else "shape", detail=what)


def _check_axes(info: InputInfo, shape: Sequence[int]) -> None:
    """Check that NumPy can have an array of that shape, which may be empty.

    Raises:
        InputsError: It cannot.
    """
    if (
        len(shape) > MOST_AXES
        or any(size < 0 for size in shape)
        or math.prod(max(size, 1) for size in shape) * count_item_bytes(info) >= 1 << 63
    ):
        raise InputsError(
            f"{info.name}: no array can have the shape {format_shape(shape[:MOST_AXES])}.",
            f"An array has at most {MOST_AXES} dimensions and {format_bytes(1 << 63)}. Pass {{shape}}.",
        )


def _check_options(by_name: Mapping[str, InputInfo], options: InputOptions) -> None:
    symbols = {dim for info in by_name.values() for dim in info.shape or () if isinstance(dim, str)}
    for name in options.dims:
        if name not in symbols:
            known = f"Its symbolic dimensions are {', '.join(sorted(symbols))}." if symbols else "It has none."
            raise InputsError(
                f"{name}: the model has no dimension of that name. {known}",
                "Use {shape=INPUT=1x3x224x224} for dimensions without a name.",
                option="dim",
            )
    for name, shape in options.shapes.items():
        if name not in by_name:
            raise InputsError(f"{name}: the model has no input of that name.", name_inputs(by_name), option="shape")
        wanted = by_name[name].shape
        if not fits_shape(wanted, shape):
            raise InputsError(
                f"{name}={format_shape(shape)}: does not fit the model, which has {format_shape(wanted or ())}.",
                "Change only sizes that are symbolic in the model.",
                option="shape",
            )


def describe_feed(feed: Feed) -> list[str]:
    """Return a line for each input: its sizes, where its values come from, and what was guessed."""
    lines = []
    for name, tensor in feed.tensors.items():
        guessed = f"; guessed: {', '.join(tensor.guessed)}" if tensor.guessed else ""
        lines.append(f"{name}: {feed.describe_input(name)}, {tensor.origin}{guessed}")
    return lines
