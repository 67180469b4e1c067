"""A processor with a power limit, as in laptops: for a short time, it may take more power than it sustains."""

from __future__ import annotations

import math

AVERAGING_S = 28.0
"""The mean power over about this time is limited. That at a moment is not, up to `BURST` times as much."""

BURST = 2.0

HIGHEST_HZ = 3e9

LONGEST_STEP_S = 1.0


class PowerLimit:
    """The processor, which has been busy before. Its power grows with the third power of the frequency.

    Args:
        sustained_w: The power that it sustains.

    Source: Intel's software developer's manual, volume 3, on the running average power limit.
    """

    def __init__(self, sustained_w: float) -> None:
        self.sustained_w = self._mean_w = sustained_w

    def run(self, wanted_w: float, duration_s: float) -> float:
        """Run for a time. Return the mean frequency, as a share of the one at which the wanted power is taken."""
        n_steps = math.ceil(duration_s / LONGEST_STEP_S)
        kept = math.exp(-duration_s / max(n_steps, 1) / AVERAGING_S)
        total = 0.0
        for _ in range(n_steps):
            left_w = (self.sustained_w - kept * self._mean_w) / (1 - kept)
            taken_w = min(wanted_w, BURST * self.sustained_w, left_w)
            self._mean_w = kept * self._mean_w + (1 - kept) * taken_w
            total += (taken_w / wanted_w) ** (1 / 3)
        return total / n_steps if n_steps else 1.0
