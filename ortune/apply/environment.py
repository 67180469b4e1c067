"""ORTUNE_CONFIG: tuned options for every Python program of an environment in which ortune is installed.

The installed file `ortune.pth` calls `start` when Python starts and the variable is set.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ortune.apply.inside import finder

CONFIG_VARIABLE = "ORTUNE_CONFIG"
"""Environment variable that holds paths of records, separated as in PATH."""


def read_config_variable() -> list[str]:
    """Return the paths that ORTUNE_CONFIG holds; empty if it is not set."""
    return [path for path in os.environ.get(CONFIG_VARIABLE, "").split(os.pathsep) if path]


def start() -> None:
    """Activate the plan of `ortune apply`, or otherwise the records that ORTUNE_CONFIG names."""
    if os.environ.get(finder.PLAN_VARIABLE):
        finder.start()
    elif read_config_variable():
        finder.activate(_make_plan, environment=True)


def _make_plan() -> dict[str, Any]:
    from ortune.apply.plan import plan_process
    from ortune.requests import ProgramRequest

    def warn(text: str) -> None:
        print(f"ortune: {text}", file=sys.stderr)  # noqa: T201

    return plan_process(read_config_variable(), ProgramRequest(), warn)
