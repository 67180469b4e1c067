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


def time_search(model: str | Path, output: Path, *options: str, budget_s: float, seed: int) -> float:
    """Search the settings of a model without a history, and return the wall time in seconds.

    Args:
        model: The path of a model, or the name of one of models/build.py.
        output: Where the record is written.
        options: Further options of the search.
        budget_s: Its budget in seconds.
        seed: Its seed.
    """
    usual = ("--budget", f"{budget_s:g}s", "--seed", str(seed), "--no-history", "-q", "-o", str(output))
    start_s = time.monotonic()
    run_ortune("search", str(model if isinstance(model, Path) else build(model)), *options, *usual)
    return time.monotonic() - start_s
