"""Trade-offs: which of several candidates nobody betters in everything, and where the knee of that front lies.

A candidate is a vector of log-ratios to the default, one for each objective, below 0 where it is better.
"""

from __future__ import annotations

from collections.abc import Sequence

Vector = Sequence[float]

ALIKE = 0.01
"""Log-ratio up to which two candidates count as alike in an objective."""


def betters(one: Vector, other: Vector) -> bool:
    """Return whether one is as good or alike in every objective, and better by more than that in at least one."""
    pairs = list(zip(one, other, strict=True))
    return all(left <= right + ALIKE for left, right in pairs) and any(left < right - ALIKE for left, right in pairs)


def find_front(vectors: Sequence[Vector]) -> list[int]:
    """Return the positions of those that no other betters, in order of the first objective.

    Of several that are alike in everything, the first in the list stays.
    """
    distinct: list[int] = []
    for position, vector in enumerate(vectors):
        twins = (
            all(abs(left - right) <= ALIKE for left, right in zip(vector, vectors[other], strict=True))
            for other in distinct
        )
        if not any(twins):
            distinct.append(position)
    kept: list[int] = []
    # In the order of their worth: what is alike to something better goes, and not the other way round.
    for position in sorted(distinct, key=lambda position: sum(vectors[position])):
        if not any(betters(vectors[other], vectors[position]) for other in kept):
            kept.append(position)
    return sorted(kept, key=lambda position: tuple(vectors[position]))


def find_knee(vectors: Sequence[Vector]) -> int:
    """Return the position of the knee: where gaining 1 % in one objective begins to cost more than 1 % of another.

    That is the least sum of log-ratios, or the largest product of speed-ups.
    """
    return min(range(len(vectors)), key=lambda position: sum(vectors[position]))


def rank_of(vector: Vector, others: Sequence[Vector]) -> tuple[int, float]:
    """Return a key that sorts the front first, and within it the knee; for one objective, simply by its value."""
    if len(vector) == 1:
        return 0, vector[0]
    return sum(betters(other, vector) for other in others), sum(vector)
