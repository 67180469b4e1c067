"""Detects processes that run at two speeds, as on some virtual machines: their blocks form two separate groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortune.measure.comparison import TwoSpeeds
from ortune.measure.compute_figures import compute_percentile
from ortune.worker import Block

FEWEST_BLOCKS = 20
FEWEST_OF_A_SPEED = 0.1
"""Minimum number of blocks of a side for two speeds to be found, and minimum share of them at each speed."""

SMALLEST_GAP = 0.1
GAP_TO_SPREAD = 2.0
"""Minimum gap between the two groups, as a log-ratio, and as a multiple of the standard deviation within a group."""


def find_two_speeds(side: str, blocks: Sequence[Block], *, has_rate: bool) -> TwoSpeeds | None:
    """Return how the blocks of a side fall into two groups, or None if they do not.

    Args:
        side: Its name.
        blocks: Its blocks.
        has_rate: Whether requests arrive at a rate.
    """
    values = np.sort([measure_speed(block, has_rate=has_rate) for block in blocks])
    if (place := split_speeds(values)) is None:
        return None
    factor = math.exp(float(np.median(values[place:]) - np.median(values[:place])))
    return TwoSpeeds(side=side, slow_share=1 - place / len(values), factor=factor)


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
