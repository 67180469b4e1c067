"""The knobs: every setting that ortune knows, configs made of them, and the space of what to try.

Names are imported when they are first asked for: a worker needs configs alone, and each launch waits for its imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "catalogue": ("KNOBS", "find_knob"),
    "config": ("CPU", "DEFAULT", "Config", "ThreadPool"),
    "dimension": ("Choice", "Dimension", "Rule", "Skipped"),
    "knob": ("Knob",),
    "space": ("Candidate", "SearchSpace", "build_space", "describe"),
    "wish": ("Wish",),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for (PEP 562)."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"ortune.knobs.{module}"), name)
    raise AttributeError(f"module 'ortune.knobs' has no attribute {name!r}")
