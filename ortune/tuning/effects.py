"""What recorded landscapes say of the documentation's rules: the gain of each rule in each kind of situation.

The data file is written by `python -m benchmarks.fit_suggest`.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from ortune.tuning.situation import Situation

FILE = Path(__file__).with_name("data") / "effects.json"

CONFIDENCE = 0.8
"""Probability with which the gain of another model in such a situation lies in the range of an effect."""


class Effect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the recordings of one kind of situation say of one rule. Gains are logarithms of speedups.

    Attributes:
        rule: The choices; see `Situation.name_rule`.
        kind: The kind of situation; see `Situation.kind`.
        mean: Expected gain of another model.
        low: Lower end of its range.
        high: Upper end of its range.
        least: Smallest gain that was recorded.
        most: Largest gain that was recorded.
        recordings: Names of the recorded landscapes.
        models: Names of their models.
        n_cores: Smallest and largest number of usable cores of their hosts.
    """

    rule: str
    kind: str
    mean: float
    low: float
    high: float
    least: float
    most: float
    recordings: tuple[str, ...]
    models: tuple[str, ...]
    n_cores: tuple[int, int]

    def covers(self, situation: Situation) -> bool:
        """Return whether hosts of this size were recorded."""
        return self.n_cores[0] <= situation.n_cores <= self.n_cores[1]


@functools.cache
def read_effects() -> tuple[Effect, ...]:
    """Return the effects that ortune comes with."""
    return msgspec.json.decode(FILE.read_bytes(), type=tuple[Effect, ...])
