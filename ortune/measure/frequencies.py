"""Finds sides during which the CPUs ran at different frequencies, as under a power limit."""

from __future__ import annotations

import math

import numpy as np

from ortune.measure.comparison import DifferentFrequencies
from ortune.measure.paired_run import BASELINE_POSITION, PairedRun

SMALLEST_DIFFERENCE = 0.02
"""By how much the frequencies of two sides differ at least to be found."""

DIFFERENCE_ERRORS = 3.0
"""How many standard errors they must differ by: the frequency of single blocks varies."""


def find_different_frequencies(run: PairedRun) -> DifferentFrequencies | None:
    """Return the baseline and the side whose frequency differs the most from its, in rounds of both.

    Returns:
        None if all frequencies are about the same, or unknown.
    """
    found: dict[float, DifferentFrequencies] = {}
    for position, side in enumerate(run.sides):
        if position == BASELINE_POSITION:
            continue
        blocks = [
            (measured.blocks[BASELINE_POSITION].frequency_hz, measured.blocks[position].frequency_hz)
            for rounds in run.rounds_of(position, BASELINE_POSITION)
            for measured in rounds
        ]
        pairs = np.array([(base_hz, own_hz) for base_hz, own_hz in blocks if base_hz and own_hz])
        if len(pairs) < 2:
            continue
        ratios = np.log(pairs[:, 1] / pairs[:, 0])
        ratio, error = abs(float(ratios.mean())), float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
        if ratio > max(math.log1p(SMALLEST_DIFFERENCE), DIFFERENCE_ERRORS * error):
            base_hz, own_hz = map(float, pairs.mean(axis=0))
            (slow_hz, slow), (fast_hz, fast) = sorted(
                [(base_hz, run.sides[BASELINE_POSITION].name), (own_hz, side.name)]
            )
            found[ratio] = DifferentFrequencies(slow=slow, slow_hz=slow_hz, fast=fast, fast_hz=fast_hz)
    return found[max(found)] if found else None
