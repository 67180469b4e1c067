"""Candidates of several models on one host, which are measured at the same time, each under a load of its own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ortune.knobs.config import Config
from ortune.replaceable import replaceable
from ortune.worker.block import Block, BlockPlan
from ortune.worker.clocks import Clocks
from ortune.worker.failure import Failure
from ortune.worker.group import WorkerGroup, measure_together, merge_blocks
from ortune.worker.interfaces import LiveCandidate
from ortune.worker.process import WorkerProcess
from ortune.worker.session_info import SessionInfo
from ortune.workload import Load


class ColocatedBlock(Block, frozen=True, kw_only=True):
    """A block of several models over the same window: that of all their calls.

    Attributes:
        parts: The block of each model.
    """

    parts: tuple[Block, ...]


class ColocatedCandidates:
    """One candidate of each of several models. All are resumed, measured, suspended and closed together.

    Where requests arrive at a rate, the stream of each model goes on from block to block as long as its rate stays the
    same. If one process fails, all are closed.

    Args:
        lives: The candidates, each a worker process or a group of them.
        loads: How calls arrive at each.
    """

    def __init__(self, lives: Sequence[LiveCandidate], loads: Sequence[Load]) -> None:
        self.lives = tuple(lives)
        self.loads = tuple(loads)
        self._workers = [find_workers(live) for live in self.lives]
        self._failed: Failure | None = None

    @property
    def config(self) -> Config:
        """The config of the first candidate."""
        return self.lives[0].config

    @property
    def session_info(self) -> SessionInfo:
        """Facts about the session of the first candidate."""
        return self.lives[0].session_info

    def measure(self, plan: BlockPlan) -> ColocatedBlock | Failure:
        """Measure one block of each model at the same time, under the load of each instead of that of the plan."""
        if self._failed:
            return self._failed
        before = Clocks.read()
        plans = [
            (worker, plan.under(load)) for load, own in zip(self.loads, self._workers, strict=True) for worker in own
        ]
        blocks = measure_together(plans)
        if isinstance(blocks, Failure):
            self._failed = blocks
            self.close()
            return blocks
        parts, left = [], iter(blocks)
        for own in self._workers:
            mine = [next(left) for _ in own]
            parts.append(merge_blocks(mine) if len(mine) > 1 else mine[0])
        return join_blocks(parts, clock_jump_s=Clocks.read().find_jump_s(before))

    def close(self) -> None:
        """Kill all processes, and wait for their end. It may be called more than once."""
        for live in self.lives:
            live.close()


open_colocated = replaceable(ColocatedCandidates)
"""Returns `ColocatedCandidates`, or what a simulated host has instead."""


def find_workers(live: LiveCandidate) -> tuple[WorkerProcess, ...]:
    """Return the worker processes of a candidate.

    Raises:
        TypeError: It has none.
    """
    if isinstance(live, WorkerGroup):
        return live.workers
    if isinstance(live, WorkerProcess):
        return (live,)
    raise TypeError(f"{type(live).__name__} has no worker processes")


def join_blocks(parts: Sequence[Block], *, clock_jump_s: float = 0.0) -> ColocatedBlock:
    """Return the block of several models, given that of each over the same window.

    The first process has measured what processes outside of all groups used.
    """
    merged = merge_blocks([msgspec.structs.replace(part, cases=None) for part in parts])
    fields = {name: getattr(merged, name) for name in Block.__struct_fields__}
    return ColocatedBlock(**{**fields, "clock_jump_s": clock_jump_s, "parts": tuple(parts)})
