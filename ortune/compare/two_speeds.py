"""Detects processes that run at two speeds, as on some virtual machines: their blocks form two separate groups."""

from __future__ import annotations

import math

import numpy as np

from ortune.compare.comparison import TwoSpeeds
from ortune.compare.figures import compute_percentile
from ortune.compare.paired_run import PairedRun
from ortune.worker import Block

FEWEST_BLOCKS = 20
FEWEST_OF_A_SPEED = 0.1
"""Minimum number of blocks of a side for two speeds to be found, and minimum share of them at each speed."""

SMALLEST_GAP = 0.1
GAP_TO_SPREAD = 2.0
"""Minimum gap between the two groups, as a log-ratio, and as a multiple of the standard deviation within a group."""


def find_two_speeds(run: PairedRun) -> TwoSpeeds | None:
    """Return how the blocks of a side fall into two groups, or None if those of no side do.

    If several sides do, it is the one with the largest difference.
    """
    found = []
    for position, side in enumerate(run.sides):
        has_rate = bool(run.load_of(position).rate_per_s)
        values = np.sort([measure_speed(block, has_rate=has_rate) for block in run.blocks(position)])
        if (place := split_speeds(values)) is not None:
            factor = math.exp(float(np.median(values[place:]) - np.median(values[:place])))
            found.append(TwoSpeeds(side=side.name, slow_share=1 - place / len(values), factor=factor))
    return max(found, key=lambda each: each.factor, default=None)


def measure_speed(block: Block, *, has_rate: bool) -> float:
    """Return the logarithm of the typical duration of a call in a block, without the wait for a free caller."""
    return math.log(block.service_ns if has_rate else compute_percentile([block], 50))


def split_speeds(values: np.ndarray) -> int | None:
    """Return the number of the first value of the slower group of ascending values, or None for a single group."""
    n = len(values)
    if n < FEWEST_BLOCKS:
        return None
    edge = math.ceil(FEWEST_OF_A_SPEED * n)
    gaps = np.diff(values)[edge - 1 : n - edge]
    place = edge + int(gaps.argmax())
    gap = float(values[place] - values[place - 1])
    spread = max(float(values[:place].std()), float(values[place:].std()))
    return place if gap > max(SMALLEST_GAP, GAP_TO_SPREAD * spread) else None
