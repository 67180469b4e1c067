"""What changes for launches if candidates use other execution providers than the baseline."""

from __future__ import annotations

from collections.abc import Iterable

from ortune.compare.block_runner import BlockRunner
from ortune.knobs.config import CPU, Config

OTHER_LOAD_DEADLINE_S = 60.0
"""Least deadline for loading. The libraries of a provider may take gigabytes."""


def extend_load_deadline(runner: BlockRunner, base: Config, providers: Iterable[str]) -> None:
    """Give launches more time to load if their libraries are not those of the baseline.

    Args:
        runner: The runner, whose deadline follows from a launch of the baseline.
        base: The config of the baseline.
        providers: The names of the execution providers of all candidates.
    """
    if {*providers} - {base.provider, CPU}:
        runner.load_deadline_s = max(runner.load_deadline_s, OTHER_LOAD_DEADLINE_S)
