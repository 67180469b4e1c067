"""ORTUNE_CONFIG: tuned options for every Python program of an environment.

`python -m ortune.enable` writes a `sitecustomize.py` that calls `start` when Python starts and the variable is set.
"""

from __future__ import annotations

import os
from typing import Any

from ortune.apply.inside import finder

CONFIG_VARIABLE = "ORTUNE_CONFIG"
"""Environment variable that holds paths of records, separated as in PATH."""


CANARY_VARIABLE = "ORTUNE_CANARY"
"""Environment variable with the share of the processes that use these records; all if it is not set."""

METRICS_VARIABLE = "ORTUNE_METRICS"
"""Environment variable with the folder for their metrics."""


def start() -> None:
    """Activate the plan of `ortune apply`, or otherwise the records that ORTUNE_CONFIG names."""
    if os.environ.get(finder.PLAN_VARIABLE):
        finder.start()
    elif read_config_variable():
        finder.activate(_plan_this_process, environment=True)


def read_config_variable() -> list[str]:
    """Return the paths that ORTUNE_CONFIG holds; empty if it is not set."""
    return [path for path in os.environ.get(CONFIG_VARIABLE, "").split(os.pathsep) if path]


def check_config_variable() -> None:
    """Check that ORTUNE_CONFIG holds paths of files.

    Raises:
        UsageError: It holds `-`, which stands for stdin elsewhere, or the path of a pipe or a device. The program may
            need them, and reading them could block it.
    """
    from pathlib import Path

    from ortune.errors import UsageError

    for path in read_config_variable():
        if path == "-" or (Path(path).exists() and not Path(path).is_file()):
            raise UsageError(f"{CONFIG_VARIABLE}: {path} is not a file.")


def _plan_this_process() -> dict[str, Any]:
    from ortune.apply.inside.explain import write_stderr
    from ortune.apply.plan import plan_process
    from ortune.options import make_request
    from ortune.program_options import ProgramRequest

    check_config_variable()
    given = {"canary": os.environ.get(CANARY_VARIABLE) or None, "metrics": os.environ.get(METRICS_VARIABLE) or None}
    options = make_request(ProgramRequest, given)
    return plan_process(read_config_variable(), options, lambda text: write_stderr(f"ortune: {text}\n"))
