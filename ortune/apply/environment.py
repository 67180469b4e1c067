"""ORTUNE_CONFIG: tuned options in every Python program of an environment that has ortune, with no change to any.

The installed file `ortune.pth` calls `start_with_variable` when Python starts and the variable is there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ortune.apply.inside.finder import PLAN_VARIABLE, activate, start

CONFIG_VARIABLE = "ORTUNE_CONFIG"
"""Paths of records, separated as those of PATH are."""


def paths_in_variable() -> list[str]:
    """Return the paths that the variable holds."""
    return [path for path in os.environ.get(CONFIG_VARIABLE, "").split(os.pathsep) if path]


def start_with_variable() -> None:
    """Follow the plan of `ortune apply`, or else what ORTUNE_CONFIG names, as soon as onnxruntime is imported."""
    if os.environ.get(PLAN_VARIABLE):
        start()
    elif paths_in_variable():
        activate(_get_plan, environment=True)


def _get_plan() -> dict[str, Any]:
    from ortune.apply.install import plan_of
    from ortune.apply.plan import Wish

    return plan_of(paths_in_variable(), Wish(), lambda text: print(f"ortune: {text}", file=sys.stderr))  # noqa: T201
