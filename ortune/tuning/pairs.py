"""Pairs of the settings that gain on their own, which screening tries early."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ortune.knobs import Candidate, SearchSpace

N_CHOICES = 4
WORTH_PAIRING = 0.015
"""The best choices on their own that gain at least so much, as a log-ratio. All pairs of them are tried."""


def list_pairs(space: SearchSpace, gains: Iterable[tuple[Candidate, float]]) -> list[Candidate]:
    """Return the candidates with two of the best choices, the one with the largest sum of gains first.

    Args:
        space: The candidates.
        gains: Candidates that were measured, with their gains as log-ratios.
    """
    best: dict[str, tuple[float, dict[str, str]]] = {}
    for candidate, gain in gains:
        labels = candidate.chosen
        if len(labels) == 1:
            (name,) = labels
            if gain >= max(WORTH_PAIRING, best.get(name, (0.0, {}))[0]):
                best[name] = gain, labels
    top = sorted(best.values(), key=lambda choice: choice[0], reverse=True)[:N_CHOICES]
    pairs = sorted(itertools.combinations(top, 2), key=lambda pair: pair[0][0] + pair[1][0], reverse=True)
    found = [space.select({**one, **other}) for (_, one), (_, other) in pairs]
    # A choice may have no effect beside another.
    return [candidate for candidate in found if candidate.config.key in space.numbers]
