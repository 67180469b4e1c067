"""Running programs under observation, for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from ortune.apply.exec import make_environment
from ortune.apply.plan import encode_plan
from ortune.program.inspect import make_observing_plan


def start_observed(
    folder: Path, *command: object, plan: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command.

    Args:
        folder: Folder for what is seen.
        command: The command.
        plan: Further keys of the plan.
        environment: Further environment variables.
    """
    text = encode_plan({**make_observing_plan(folder, None, 1), **(plan or {})})
    return subprocess.Popen(
        [str(each) for each in command],
        env=make_environment(text, {}, {**os.environ, **(environment or {})}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_observed(
    folder: Path, *command: object, plan: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; see `start_observed`."""
    with start_observed(folder, *command, plan=plan, environment=environment) as process:
        stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
