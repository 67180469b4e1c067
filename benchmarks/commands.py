"""Runs commands of ortune as a user would, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from models.build import build

RESULTS = (0, 1, 3)
"""Exit codes with a result; see docs/environments.md."""


def run_ortune(*arguments: str) -> str:
    """Run a command, and return what it prints to stdout. Exit with its message if it has no result."""
    command = [sys.executable, "-P", "-m", "ortune", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in RESULTS:
        raise SystemExit(done.stderr)
    return done.stdout


def time_search(model: str, output: Path, *options: str, budget_s: float, seed: int) -> float:
    """Search the settings of a model of models/build.py without a history, and return the wall time in seconds."""
    usual = ("--budget", f"{budget_s:g}s", "--seed", str(seed), "--no-history", "-q", "-o", str(output))
    start_s = time.monotonic()
    run_ortune("search", str(build(model)), *options, *usual)
    return time.monotonic() - start_s
