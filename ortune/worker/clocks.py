"""Notices that the host slept, was paused, or had its time set while a block was measured."""

from __future__ import annotations

import time
from typing import NamedTuple

SMALLEST_JUMP_S = 0.05
LARGEST_DRIFT = 0.002
"""Differences between clocks that are normal: reading them one after the other on a busy host, and as a share of the
time. Time synchronization slews the wall clock by at most 0.05 %."""


class Clocks(NamedTuple):
    """What the clocks of the host show at one moment, in seconds.

    Attributes:
        monotonic_s: Time without steps, which stands still while the host sleeps on Linux and macOS.
        boot_s: Time that includes sleep; None if the system has no such clock.
        wall_s: Time of day, which sleep and whoever sets the time make jump.
    """

    monotonic_s: float
    boot_s: float | None
    wall_s: float

    @classmethod
    def read(cls) -> Clocks:
        """Return what they show now."""
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        return cls(time.monotonic(), time.clock_gettime(boot) if boot is not None else None, time.time())

    def find_jump_s(self, before: Clocks) -> float:
        """Return by how much the clocks disagree about the time since `before`; 0 if only as much as is normal."""
        spent_s = self.monotonic_s - before.monotonic_s
        others_s = [self.wall_s - before.wall_s]
        if self.boot_s is not None and before.boot_s is not None:
            others_s.append(self.boot_s - before.boot_s)
        jump_s = max((other_s - spent_s for other_s in others_s), key=abs)
        return jump_s if abs(jump_s) > SMALLEST_JUMP_S + LARGEST_DRIFT * spent_s else 0.0
