"""Describes the machine on which results were measured."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ortune.host import read_host
from ortune.worker.installed import find_runtime_packages


def describe_host() -> str:
    """Return a line with the machine and the versions of the software."""
    host = read_host()
    cores = len(host.usable_cores)
    return (
        f"{host.cpu_model or host.machine}, {cores} of {len(host.topology.cores)} cores, {platform.system()} "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"{', '.join(f'{each.name} {each.version}' for each in find_runtime_packages())}, ortune {version('ortune')}"
    )


def describe_commit() -> str:
    """Return the commit that is measured, and the date."""
    git = ("git", "-C", str(Path(__file__).parent))
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../ortune"], check=False).returncode
    name = commit.stdout.strip() or "unknown"
    return f"commit {name}{' with changes' if changed else ''}, {datetime.date.today().isoformat()}"


def note_noise(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line with the number of contended blocks, and of results that are based on them."""
    blocks = sum(row["blocks"] for row in rows)
    contended = sum(row["contended"] for row in rows)
    regimes = sum(row["regime"] == "contended" for row in rows)
    return (
        f"{contended} of {blocks} blocks contended; {regimes} of {len(rows)} comparisons are based on contended blocks"
    )
