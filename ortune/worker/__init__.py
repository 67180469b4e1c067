"""Measuring: one worker process per candidate, which runs blocks of timed calls."""

from __future__ import annotations

from ortune.worker.block import Block, BlockPlan, CpuPlace, Memory
from ortune.worker.failure import Failure, FailureKind
from ortune.worker.interfaces import Executor, LiveCandidate
from ortune.worker.session_info import PoolThread, Runtime, SessionInfo

__all__ = [
    "Block",
    "BlockPlan",
    "CpuPlace",
    "Executor",
    "Failure",
    "FailureKind",
    "LiveCandidate",
    "Memory",
    "PoolThread",
    "Runtime",
    "SessionInfo",
]
