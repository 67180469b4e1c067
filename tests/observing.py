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
    text = encode_plan({**make_observing_plan(folder, None, 1), "log": str(folder), **(plan or {})})
    return subprocess.Popen(
        [str(word) for word in command],
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


def make_process(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a process with one session, as a program writes it."""
    session = {
        "model": "m.onnx",
        "path": "/m/m.onnx",
        "package": "",
        "size_bytes": 1,
        "sha256": "0" * 64,
        "requested": [],
        "providers": [],
        "options": {},
        "other_methods": [],
        "record": "",
        "reason": "",
        "n_threads": 0,
        "inherited": False,
        "created_ns": 10,
        "create_ns": 20,
        "n_sessions": 1,
        "n_calls": {"run": 2},
        "n_failed": 0,
        "total_ns": 60,
        "first_ns": 40,
        "most_concurrent": 1,
        "shapes": [],
        "n_other_shapes": 0,
    }
    own = changes.pop("session", {})
    return {
        "format": 1,
        "pid": 7,
        "ppid": 1,
        "argv": ["python"],
        "onnxruntime": "1.0.0",
        "start_ns": 5,
        "wall_ns": 500,
        "cpu_ns": 100,
        "observing_ns": 0,
        "busy_ns": 60,
        "first_call_ns": 100,
        "last_call_ns": 200,
        "peak_threads": 1,
        "libraries": [],
        "function": None,
        "n_sessions_left_out": 0,
        "sessions": [{**session, **own}],
        **changes,
    }
