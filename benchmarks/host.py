"""Describes where results are from: commit, date, host and versions."""

from __future__ import annotations

import datetime
import functools
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ortune.host import read_host
from ortune.worker.installed import find_runtime_packages

NOT_RECORDED = "not recorded"


def describe_run(*runs: Mapping[str, Any]) -> dict[str, str]:
    """Return what a result says about its origin: commit, date, host and versions.

    Args:
        runs: Earlier runs, which have these keys. Several values of a key are joined. This run if there are none.
    """
    origins = runs or (read_run(),)
    return {key: "; ".join(dict.fromkeys(run.get(key, NOT_RECORDED) for run in origins)) for key in read_run()}


def write_header(*runs: Mapping[str, Any]) -> str:
    """Return the lines with which a result begins: one for each key of `describe_run`."""
    return "\n".join(f"{key}: {text}" for key, text in describe_run(*runs).items())


@functools.cache
def read_run() -> dict[str, str]:
    """Return the origin of this run. It is read once, because the commit may change while a benchmark runs."""
    host = read_host()
    cpus = f"{len(host.usable_cores)} of {len(host.topology.cores)} cores"
    packages = (f"{package.name} {package.version}" for package in find_runtime_packages())
    return {
        "commit": find_commit(),
        "date": datetime.date.today().isoformat(),
        "host": f"{host.cpu_model or host.machine}, {cpus}, {platform.system()} {platform.release().split('-')[0]}",
        "versions": ", ".join((f"Python {platform.python_version()}", *packages, f"ortune {version('ortune')}")),
    }


def find_commit() -> str:
    """Return the commit of this code, with a note if the package has changes since."""
    git = ("git", "-C", str(Path(__file__).parent))
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../ortune"], check=False).returncode
    return f"{commit.stdout.strip()}{' with changes' if changed else ''}" if commit.stdout else NOT_RECORDED


def note_noise(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line with the number of contended blocks, and of results that are based on them."""
    blocks = sum(row["blocks"] for row in rows)
    contended = sum(row["contended"] for row in rows)
    regimes = sum(row["regime"] == "contended" for row in rows)
    return (
        f"{contended} of {blocks} blocks contended; {regimes} of {len(rows)} comparisons are based on contended blocks"
    )
