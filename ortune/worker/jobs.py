"""Calls with items of different lengths: pads items, puts them together, and compares their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ortune.worker.batches import Item, SplitError, join_items, split_outputs
from ortune.worker.block import ItemsJob
from ortune.worker.outputs import Difference

Compare = Callable[[Sequence[Any], Sequence[Any]], Difference]
"""Compares outputs with the expected ones, which come first."""


class PreparedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose items are in memory as calls need them.

    Attributes:
        calls: The sample of each call.
        difference: How the outputs of items differ from those of the items alone; None if that is not checked.
    """

    calls: tuple[Item, ...]
    difference: Difference | None = None


class JobPreparation:
    """Prepares jobs, each of them once. Arrays are made before blocks, as a tokenizer makes them padded.

    Args:
        samples: The items, each as a sample of its own.
        call: Makes one call with one sample, and returns its outputs as arrays.
        compare: Compares outputs of an item.
    """

    def __init__(self, samples: Sequence[Item], call: Callable[[Item], Sequence[Any]], compare: Compare) -> None:
        self._samples = samples
        self._call = call
        self._compare = compare
        self._alone: dict[int, Sequence[Any]] = {}
        self._prepared: dict[bytes, PreparedJob] = {}

    def prepare(self, job: ItemsJob) -> PreparedJob:
        """Return the calls of a job, with the comparison of its outputs if the job is checked."""
        key = msgspec.msgpack.encode(job)
        if key not in self._prepared:
            calls = tuple(
                join_items([pad_item(self._samples[item], job.axes, group.length) for item in group.items])
                for group in job.groups
            )
            difference = self._find_difference(job, calls) if job.is_checked else None
            self._prepared[key] = PreparedJob(calls=calls, difference=difference)
        return self._prepared[key]

    def _find_difference(self, job: ItemsJob, calls: Sequence[Item]) -> Difference:
        """Return the largest difference of an item's outputs from those of the item alone."""
        worst = 0.0
        for group, sample in zip(job.groups, calls, strict=True):
            try:
                found = split_outputs(self._call(sample), len(group.items))
            except SplitError as error:
                return Difference(max_error=worst, fault=str(error))
            for item, outputs in zip(group.items, found, strict=True):
                if item not in self._alone:
                    self._alone[item] = self._call(self._samples[item])
                expected = self._alone[item]
                cut = [cut_padding(mine, whole) for mine, whole in zip(outputs, expected, strict=True)]
                difference = self._compare(expected, cut)
                worst = max(worst, difference.max_error)
                if difference.fault:
                    return Difference(max_error=worst, fault=difference.fault)
        return Difference(max_error=worst)


def pad_item(item: Item, axes: Mapping[str, Sequence[int]], length: int) -> Item:
    """Return an item with its axes extended to a length.

    Padding is 0, in masks as in all other inputs; strings are empty. Positions are counted on.
    """
    padded = {}
    for name, array in item.items():
        widths = [
            (0, max(length - size, 0) if axis in axes.get(name, ()) else 0) for axis, size in enumerate(array.shape)
        ]
        if not any(after for _, after in widths):
            padded[name] = array
        elif "position" in name.lower() and array.dtype.kind in "iu":
            padded[name] = np.broadcast_to(np.arange(length, dtype=array.dtype), (*array.shape[:-1], length)).copy()
        else:
            fill: Any = "" if array.dtype == object else 0
            padded[name] = np.pad(array, widths, constant_values=fill)
    return padded


def cut_padding(output: Any, alone: Any) -> Any:
    """Return an output of a padded item without what belongs to the padding: with the sizes of the item alone."""
    if not isinstance(output, np.ndarray) or not isinstance(alone, np.ndarray) or output.ndim != alone.ndim:
        return output
    return output[tuple(slice(size) for size in alone.shape)]
