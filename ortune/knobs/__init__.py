"""The knobs: every setting that ortune knows, configs made of them, and the space of what to try."""

from __future__ import annotations

from ortune.knobs.catalogue import KNOBS, find_knob
from ortune.knobs.config import CPU, DEFAULT, Config, ThreadPool
from ortune.knobs.dimension import Choice, Dimension, Rule, Skipped
from ortune.knobs.knob import Knob
from ortune.knobs.space import Candidate, SearchSpace, build_space, describe
from ortune.knobs.wish import Wish

__all__ = [
    "CPU",
    "DEFAULT",
    "KNOBS",
    "Candidate",
    "Choice",
    "Config",
    "Dimension",
    "Knob",
    "Rule",
    "SearchSpace",
    "Skipped",
    "ThreadPool",
    "Wish",
    "build_space",
    "describe",
    "find_knob",
]
