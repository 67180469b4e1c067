"""Measuring: a worker process for each candidate, blocks of timed calls, and the statistics of their ratios."""

from __future__ import annotations

from ortune.worker.values import (
    Block,
    BlockPlan,
    Executor,
    Failure,
    FailureKind,
    Live,
    Loaded,
    Memory,
    PoolThread,
    Runtime,
)

__all__ = [
    "Block",
    "BlockPlan",
    "Executor",
    "Failure",
    "FailureKind",
    "Live",
    "Loaded",
    "Memory",
    "PoolThread",
    "Runtime",
]
