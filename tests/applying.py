"""Running programs with tuned options, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ortune import Config
from tests.conftest import TINY_CNN, TINY_ENCODER, run_in_fork
from tests.records import make_record, write

PROGRAM = Path(__file__).parent / "programs" / "sessions.py"
TUNED = Config(
    session_options={"intra_op_num_threads": 1, "graph_optimization_level": "ORT_ENABLE_EXTENDED"},
    session_config={"session.intra_op.allow_spinning": "0"},
)


def write_tuned(folder: Path) -> Path:
    """Write a record of `TUNED` for the tiny CNN."""
    return write(make_record(TINY_CNN, TUNED), folder / "tuned.json")


def run(
    *command: object,
    record: Path | None = None,
    options: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, with a record in force if there is one.

    What puts a record in force is a fork, which takes little time, and becomes the program.
    """
    changed = {"OTHER_MODEL": str(TINY_ENCODER), **(environment or {})}
    words = [str(word) for word in command]
    if record:
        arguments = ["apply", str(record), *options, "--", *words]
        whole = [sys.executable, "-P", "-m", "ortune", *arguments]
        return run_in_fork(whole, arguments, cwd=Path.cwd(), timeout=120, environment=changed, simulate=False)
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **changed}
    )


def outputs(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def sessions(*ways: str, **how: Any) -> list[dict[str, Any]]:
    return outputs(run(sys.executable, PROGRAM, TINY_CNN, *ways, **how))
