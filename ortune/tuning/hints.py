"""What earlier searches found on this host: a small local file, from which searches of similar models begin.

It decides what is tried early, and nothing else: what is claimed is measured afresh. `ORTUNE_HISTORY` names another
file, or is `off`.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ortune.host import HostClass
from ortune.knobs import Config
from ortune.model import Traits
from ortune.workload import Goal

VARIABLE = "ORTUNE_HISTORY"

MOST_KEPT = 300
"""Searches that are remembered, the newest."""

MOST_HINTS = 4
NEIGHBOURS = 3
"""Configs that a search begins with, and earlier searches that they are taken from."""

ALIKE = 0.6
"""Similarity of two graphs, from 0 to 1, from which on one says something of the other."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one search found.

    Attributes:
        host: Where.
        traits: Of the model's graph.
        load: How calls arrived: the scenario, with the number of callers.
        objectives: What it was for.
        configs: The best of it, the winner first.
    """

    host: HostClass
    traits: Traits
    load: str
    objectives: tuple[str, ...]
    configs: tuple[Config, ...]


def history_path() -> Path | None:
    """Return the file, or None when it is turned off."""
    setting = os.environ.get(VARIABLE, "")
    if setting == "off":
        return None
    if setting:
        return Path(setting)
    import platformdirs

    return Path(platformdirs.user_state_dir("ortune", appauthor=False)) / "history.jsonl"


def make_finding(host: HostClass, traits: Traits, goal: Goal, configs: Sequence[Config]) -> Finding:
    """Return what is remembered of a search."""
    return Finding(
        host=host, traits=traits, load=f"{goal.load}", objectives=tuple(goal.objectives), configs=tuple(configs)
    )


def remember(path: Path, finding: Finding) -> None:
    """Add a finding to the file; where that cannot be written, nothing is remembered."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A line that was torn off must not take this one with it.
        line = b"\n" + msgspec.json.encode(finding) + b"\n"
        with path.open("ab") as file:  # one write, so that two searches at a time do not mix theirs
            file.write(line)
        lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.strip()]
        if len(lines) > 2 * MOST_KEPT:
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(b"".join(lines[-MOST_KEPT:]))
            fresh.replace(path)


def read_findings(path: Path) -> list[Finding]:
    """Return all findings, the oldest first; lines that cannot be read, of another version perhaps, are left out."""
    findings = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # of bad UTF-8, too
                findings.append(msgspec.json.decode(line, type=Finding))
    return findings


def recall(path: Path, host: HostClass, traits: Traits, goal: Goal) -> tuple[Config, ...]:
    """Return the configs that were best for similar models, on a host of this class, under this load.

    Args:
        path: The history.
        host: This host.
        traits: Of this model's graph.
        goal: Load and objectives.
    """
    fitting = [
        finding
        for finding in read_findings(path)
        if finding.host.id == host.id
        and finding.load == f"{goal.load}"
        and finding.objectives == tuple(goal.objectives)
        and similarity(finding.traits, traits) >= ALIKE
    ]
    # The newest of those that are as similar comes first.
    fitting.reverse()
    fitting.sort(key=lambda finding: -round(similarity(finding.traits, traits), 2))
    hints: dict[str, Config] = {}
    for finding in fitting[:NEIGHBOURS]:
        for config in finding.configs:
            if not config.is_default:
                hints.setdefault(config.key, config)
    return tuple(hints.values())[:MOST_HINTS]


def similarity(one: Traits, other: Traits) -> float:
    """Return how similar two graphs are, from 0 to 1: by their operators, and whether they branch and are quantized.

    Of operator counts, square roots are compared: a thousand of one kind do not drown the rest.
    """
    mix = _cosine(one.ops, other.ops)
    unlike = (one.quantized != other.quantized) + ((one.width > 1) != (other.width > 1))
    return mix * 0.7**unlike


def _cosine(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    product = sum(math.sqrt(count * other.get(name, 0)) for name, count in one.items())
    norms = math.sqrt(sum(one.values()) * sum(other.values()))
    return product / norms if norms else 0.0
