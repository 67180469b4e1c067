"""Trade-offs between objectives: the Pareto front and its knee.

A candidate is a vector of log-ratios to the baseline, one for each objective, below 0 where it is better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Vector = Sequence[float]

TIE = 0.01
"""Log-ratio up to which two candidates count as equal in an objective."""


def dominates(one: Vector, other: Vector) -> bool:
    """Return whether one is at least equal in every objective and better in at least one."""
    pairs = list(zip(one, other, strict=True))
    return all(left <= right + TIE for left, right in pairs) and any(left < right - TIE for left, right in pairs)


def are_equal(one: Vector, other: Vector, tie: float = TIE) -> bool:
    """Return whether two candidates are equal in all objectives, up to a log-ratio."""
    return all(abs(left - right) <= tie for left, right in zip(one, other, strict=True))


def find_front(vectors: Sequence[Vector]) -> list[int]:
    """Return the positions of the non-dominated candidates, in order of the first objective.

    Among candidates that are equal in all objectives, the first in the list is kept.
    """
    distinct: list[int] = []
    for position, vector in enumerate(vectors):
        if not any(are_equal(vector, vectors[other]) for other in distinct):
            distinct.append(position)
    kept: list[int] = []
    # Start with the best, so that of two near-equal candidates the better one stays.
    for position in sorted(distinct, key=lambda position: sum(vectors[position])):
        if not any(dominates(vectors[other], vectors[position]) for other in kept):
            kept.append(position)
    return sorted(kept, key=lambda position: tuple(vectors[position]))


def find_knee(vectors: Sequence[Vector]) -> int:
    """Return the position of the knee: beyond it, 1 % more in one objective costs more than 1 % of another.

    The knee has the smallest sum of log-ratios, which is the largest product of speedups.
    """
    return min(range(len(vectors)), key=lambda position: sum(vectors[position]))


def rank_ties(values: Sequence[float], others: Sequence[float], tie: float) -> list[tuple[int, float]]:
    """Return sort keys that put the smallest value first, and among those that are equal to it the smallest other one.

    Args:
        values: A value of each candidate.
        others: Another value of each, which decides among equal ones.
        tie: Difference up to which a value counts as equal to the smallest one that is not in an earlier group.
    """
    groups: dict[int, int] = {}
    first = -np.inf
    for place in sorted(range(len(values)), key=values.__getitem__):
        is_new = values[place] > first + tie
        first = values[place] if is_new else first
        groups[place] = max(groups.values(), default=-1) + is_new
    return [(groups[place], other) for place, other in enumerate(others)]


def rank_vectors(vectors: Sequence[Vector]) -> list[tuple[int, float]]:
    """Return sort keys that put the front first, and within it the knee. With one objective, they are the values.

    The first part of a key is the number of vectors that dominate it.
    """
    if not vectors or len(vectors[0]) == 1:
        return [(0, vector[0]) for vector in vectors]
    values = np.array(vectors, dtype=float)
    counts = [
        int(np.sum(np.all(values <= vector + TIE, axis=1) & np.any(values < vector - TIE, axis=1))) for vector in values
    ]
    return [(count, sum(vector)) for count, vector in zip(counts, vectors, strict=True)]
