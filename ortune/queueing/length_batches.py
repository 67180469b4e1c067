"""How to group items of different lengths into batches.

A batch is padded to its longest item, or further. Padding takes time, and so does every call. Which way of grouping is
fastest depends on the lengths, and on how long calls take for a size of the batch and a padded length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from ortune.queueing.interpolation import CallTimes
from ortune.queueing.policies import Policy, name_policy


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are one batch.

    Attributes:
        items: Their positions, in order of arrival of all items.
        length: Length that they are padded to.
    """

    items: tuple[int, ...]
    length: int

    @property
    def n_tokens(self) -> int:
        """Size of the batch times padded length."""
        return len(self.items) * self.length


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of a policy, with their predicted times.

    Attributes:
        policy: The policy.
        parameter: Size of batches, or tokens for "sorted by tokens"; None for policies without.
        groups: The batches, in the order in which they are run.
        ends_ns: Predicted end of each batch, if one call runs at a time and all items are there at 0.
    """

    policy: Policy
    parameter: int | None
    groups: tuple[Group, ...]
    ends_ns: tuple[float, ...]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return sum(len(group.items) for group in self.groups)

    @property
    def items_per_s(self) -> float:
        """Items per second."""
        return 1e9 * self.n_items / self.ends_ns[-1]

    def padding(self, lengths: Sequence[int]) -> float:
        """Return the share of the tokens that are padding."""
        return 1 - sum(lengths) / sum(group.n_tokens for group in self.groups)

    def __str__(self) -> str:
        return name_policy(self.policy, self.parameter)


def evaluate_policies(
    lengths: Sequence[int],
    times: CallTimes,
    *,
    max_batch: int | None = None,
    edges: Sequence[int] = (),
    maximum: int | None = None,
) -> tuple[Grouping, ...]:
    """Return the batches of all policies, the fastest one first.

    Sizes and numbers of tokens are powers of two.

    Args:
        lengths: Lengths of the items in order of arrival; at least one.
        times: Durations of calls.
        max_batch: Largest batch; None for the largest one that was measured.
        edges: Lengths of the buckets; empty for powers of two.
        maximum: Length that "maximum" pads to; None for the longest item.

    Raises:
        ValueError: There are no lengths, or durations are not known for one of them.
    """
    if not len(lengths) or min(lengths) < 1:
        raise ValueError("there must be at least one length, and lengths must be at least 1")
    max_batch = min(max_batch or times.sizes[-1], times.sizes[-1])
    longest = max(lengths)
    maximum = max(maximum or longest, longest)
    sizes = [*powers_of_two(2, max_batch - 1), max_batch] if max_batch > 1 else []
    edges = sorted({*edges, longest} if edges else {*powers_of_two(1, longest), longest})
    ways: list[tuple[Policy, int | None, list[Group]]] = [("one at a time", None, group_by_arrival(lengths, 1))]
    for size in sizes:
        ways += [
            ("arrival", size, group_by_arrival(lengths, size)),
            ("sorted", size, group_sorted(lengths, size)),
            ("buckets", size, group_in_buckets(lengths, size, edges)),
            ("maximum", size, group_by_arrival(lengths, size, padded=maximum)),
        ]
    if sizes:
        for n_tokens in powers_of_two(2 * min(lengths), max_batch * longest):
            ways.append(("sorted by tokens", n_tokens, group_by_tokens(lengths, n_tokens, max_batch)))
        ways.append(("sorted, best cuts", None, group_best(lengths, times, max_batch)))
    found = [
        Grouping(policy=policy, parameter=parameter, groups=tuple(groups), ends_ns=tuple(predict_ends(groups, times)))
        for policy, parameter, groups in ways
    ]
    # Of equally fast ones, the simplest comes first.
    return tuple(sorted(found, key=lambda grouping: round(-grouping.items_per_s, 9)))


def predict_ends(groups: Sequence[Group], times: CallTimes) -> list[float]:
    """Return when each batch ends in ns, if they are run one after another."""
    sizes = [len(group.items) for group in groups]
    durations = times.time_ns(sizes, [group.length for group in groups])
    return [float(end) for end in np.cumsum(durations)]


def group_by_arrival(lengths: Sequence[int], size: int, padded: int | None = None) -> list[Group]:
    """Return batches in order of arrival, padded to their longest item or to a fixed length."""
    return [_make_group(items, lengths, padded) for items in _cut(range(len(lengths)), size)]


def group_sorted(lengths: Sequence[int], size: int) -> list[Group]:
    """Return batches of one size in order of length, the shortest first."""
    return [_make_group(items, lengths) for items in _cut(_sort(lengths), size)]


def group_by_tokens(lengths: Sequence[int], n_tokens: int, max_batch: int) -> list[Group]:
    """Return batches in order of length, each with as many items as fit into a number of tokens.

    An item that is longer than that is a batch of its own.
    """
    groups: list[list[int]] = [[]]
    for item in _sort(lengths):
        # Items get longer, so this one is the longest of the batch.
        size = len(groups[-1]) + 1
        if groups[-1] and (size * lengths[item] > n_tokens or size > max_batch):
            groups.append([])
        groups[-1].append(item)
    return [_make_group(items, lengths) for items in groups]


def group_in_buckets(lengths: Sequence[int], size: int, edges: Sequence[int]) -> list[Group]:
    """Return batches of items that are padded to the same of some lengths, the shortest first.

    Raises:
        ValueError: An item is longer than all of them.
    """
    edges = sorted(edges)
    if edges[-1] < max(lengths):
        raise ValueError(f"an item of length {max(lengths)} is longer than the largest bucket, {edges[-1]}")
    places = np.searchsorted(edges, np.asarray(lengths), side="left")
    groups = []
    for place, edge in enumerate(edges):
        items = [int(item) for item in np.flatnonzero(places == place)]
        groups += [_make_group(part, lengths, edge) for part in _cut(items, size)]
    return groups


def group_best(lengths: Sequence[int], times: CallTimes, max_batch: int) -> list[Group]:
    """Return batches in order of length that take the shortest predicted time together.

    The best cuts before an item follow from those before earlier items (dynamic programming).
    """
    order = _sort(lengths)
    kinds, places = np.unique(np.asarray(lengths)[order], return_inverse=True)
    durations = times.time_ns(np.arange(1, max_batch + 1)[None], kinds[:, None])
    best = np.zeros(len(order) + 1)
    sizes = np.zeros(len(order) + 1, dtype=int)
    for end in range(1, len(order) + 1):
        n = min(end, max_batch)
        totals = best[end - n : end][::-1] + durations[places[end - 1], :n]
        sizes[end] = int(totals.argmin()) + 1
        best[end] = totals[sizes[end] - 1]
    groups = []
    end = len(order)
    while end:
        groups.append(_make_group(order[end - sizes[end] : end], lengths))
        end -= int(sizes[end])
    return groups[::-1]


def powers_of_two(low: int, high: int) -> Iterator[int]:
    """Yield the powers of two from `low` to `high`."""
    below: Callable[[int], bool] = high.__ge__
    return itertools.takewhile(below, (1 << n for n in itertools.count(max(low - 1, 0).bit_length())))


def _make_group(items: Sequence[int], lengths: Sequence[int], padded: int | None = None) -> Group:
    """Return a batch that is padded to its longest item, or further."""
    return Group(items=tuple(items), length=int(padded or max(lengths[item] for item in items)))


def _sort(lengths: Sequence[int]) -> list[int]:
    """Return positions in order of length; of equal lengths, the first one first."""
    return [int(item) for item in np.argsort(np.asarray(lengths), kind="stable")]


def _cut(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield as many items at a time as a batch has."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
