"""The knobs: every setting that ortune knows, configs made of them, and the space of what to try."""

from __future__ import annotations

from ortune.knobs.catalogue import KNOBS, Knob
from ortune.knobs.config import DEFAULT, Config
from ortune.knobs.space import Candidate, Choice, Dimension, SearchSpace, Skipped, build_space, describe

__all__ = [
    "DEFAULT",
    "KNOBS",
    "Candidate",
    "Choice",
    "Config",
    "Dimension",
    "Knob",
    "SearchSpace",
    "Skipped",
    "build_space",
    "describe",
]
