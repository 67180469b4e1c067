"""Limits rounds of a race that stalled, so that one of them does not decide it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortune.measure.stats import MAD_OF_NORMAL

FARTHEST = 3.0
"""Maximum distance of a round from the candidate's median, in standard deviations."""

FEWEST_LIMITED_ROUNDS = 3
"""Rounds of a candidate from which one of them can be recognized as an outlier."""

Array = NDArray[np.float64]


def limit_rounds(rounds: Sequence[Sequence[Array]], luck: float) -> tuple[Array, Array]:
    """Return the mean of each launch's rounds, after limiting those that are far from the candidate's other ones.

    The limits of the first result depend on the scatter of all candidates. Those of the second one are wider for a
    candidate that differs much as a rule: what its own errors are estimated from.

    What all candidates of a launch share, such as a stalled block of the baseline, is no outlier: it cancels in their
    differences. This is winsorizing.

    Source: P. J. Huber and E. M. Ronchetti, "Robust Statistics" (2nd edition, 2009), section 1.7.

    Args:
        rounds: For each candidate and launch, an array of log-ratios, of shape (rounds, objectives).
        luck: Expected standard deviation between launches of one config, the least that counts as scatter.

    Returns:
        Two arrays of shape (candidates, launches, objectives).
    """
    means = np.array([[launch.mean(axis=0) for launch in launches] for launches in rounds])
    if min(sum(map(len, launches)) for launches in rounds) < FEWEST_LIMITED_ROUNDS:
        return means, means
    medians = np.array([[np.median(launch, axis=0) for launch in launches] for launches in rounds])
    centers = np.median(medians, axis=1, keepdims=True)
    shared = np.median(medians - centers, axis=0) if len(rounds) > 2 else np.zeros(medians.shape[1:])
    levels = centers + shared
    deviations = [
        [launch - level for launch, level in zip(launches, of_candidate, strict=True)]
        for launches, of_candidate in zip(rounds, levels, strict=True)
    ]
    usual = np.median(np.abs(np.concatenate([launch for launches in deviations for launch in launches])), axis=0)
    found: tuple[list[Array], list[Array]] = [], []
    for launches in deviations:
        own = np.median(np.abs(np.concatenate(launches)), axis=0)
        for limited, scatter in zip(found, (usual, np.maximum(usual, own)), strict=True):
            farthest = FARTHEST * np.maximum(scatter / MAD_OF_NORMAL, luck)
            limited.append(np.array([np.clip(launch, -farthest, farthest).mean(axis=0) for launch in launches]))
    return levels + np.array(found[0]), levels + np.array(found[1])
