"""The knobs: every setting that ortune knows, configs made of them, and the search space.

Names are imported on first use: a worker needs only configs, and every launch waits for its imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortune.knobs.build import build_space
    from ortune.knobs.catalogue import KNOBS, find_knob, knob_of
    from ortune.knobs.config import CPU, DEFAULT, Config, ThreadPool
    from ortune.knobs.dimension import Choice, Dimension, Rule, Skipped
    from ortune.knobs.knob import Knob
    from ortune.knobs.space import Candidate, SearchSpace
    from ortune.knobs.space_options import SpaceOptions
    from ortune.knobs.titles import describe

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
    "SpaceOptions",
    "ThreadPool",
    "build_space",
    "describe",
    "find_knob",
    "knob_of",
]

_MODULES = {
    "build": ("build_space",),
    "catalogue": ("KNOBS", "find_knob", "knob_of"),
    "config": ("CPU", "DEFAULT", "Config", "ThreadPool"),
    "dimension": ("Choice", "Dimension", "Rule", "Skipped"),
    "knob": ("Knob",),
    "space": ("Candidate", "SearchSpace"),
    "space_options": ("SpaceOptions",),
    "titles": ("describe",),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use (PEP 562)."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
