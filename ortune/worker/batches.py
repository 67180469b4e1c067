"""Puts items together into calls, and takes the outputs of a call apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Item = dict[str, Any]
"""A sample with one entry along the first axis of each input."""


class SplitError(ValueError):
    """The outputs of a call cannot be taken apart."""


class ItemPlace(NamedTuple):
    """Where an item is: the number of its call, and its position in it."""

    call: int
    position: int


class Batches:
    """Calls of several items each.

    Items of one case and of equal shapes are put together in their order. If a last call is left with fewer, it is
    filled up with the first ones again, so that all calls have the same size.

    There is a sample for each item, which may be shared: kinds of items then are as frequent in calls as in the feed.

    Args:
        items: The items.
        cases: The case of each of them.
        size: Number of items in a call.

    Attributes:
        samples: For each item, the sample of a call with items of its kind.
    """

    def __init__(self, items: Sequence[Item], cases: Sequence[int], size: int) -> None:
        self.size = size
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for number, item in enumerate(items):
            shapes = tuple((name, array.shape) for name, array in item.items())
            kinds.setdefault((cases[number], *shapes), []).append(number)
        self.samples: list[Item] = [{} for _ in items]
        self._calls: list[Item] = []
        self._places: dict[int, ItemPlace] = {}
        for members in kinds.values():
            calls = [
                join_items([items[members[(first + offset) % len(members)]] for offset in range(size)])
                for first in range(0, len(members), size)
            ]
            for rank, number in enumerate(members):
                self.samples[number] = calls[rank % len(calls)]
                self._places[number] = ItemPlace(len(self._calls) + rank // size, rank % size)
            self._calls += calls

    def run_items(self, call: Callable[[Item], Sequence[Any]], numbers: Sequence[int]) -> list[list[Any]]:
        """Return the outputs of these items, each as if it was alone in its call.

        Raises:
            SplitError: An output does not have an entry for each item.
        """
        done: dict[int, Sequence[Any]] = {}
        found = []
        for number in numbers:
            place = self._places[number]
            if place.call not in done:
                done[place.call] = call(self._calls[place.call])
            found.append([take_item(output, place.position, self.size) for output in done[place.call]])
        return found

    def widen(self, outputs: Sequence[NDArray[np.generic]]) -> list[NDArray[np.generic]]:
        """Return outputs of an item in the shape of the outputs of a call."""
        return [np.repeat(output, self.size, axis=0) for output in outputs]


def join_items(items: Sequence[Item]) -> Item:
    """Return the sample of a call with these items, which must have equal shapes but for the first axis."""
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}


def split_outputs(outputs: Sequence[Any], size: int) -> list[list[Any]]:
    """Return the outputs of each item of a call.

    Raises:
        SplitError: An output does not have an entry for each item.
    """
    return [[take_item(output, position, size) for output in outputs] for position in range(size)]


def take_item(output: Any, position: int, size: int) -> Any:
    """Return one item's part of an output of a call with so many items, which is an array or a list.

    Raises:
        SplitError: The output does not have an entry for each item.
    """
    if hasattr(output, "numpy"):  # the output of a call with IO binding
        output = output.numpy()
    has_entries = isinstance(output, list) or (isinstance(output, np.ndarray) and output.ndim > 0)
    if not has_entries or len(output) != size:
        has = f"{len(output)} entries" if has_entries else "no axis"
        raise SplitError(f"an output has {has} for a batch of {size}: its first axis is not a batch axis")
    return output[position : position + 1]
