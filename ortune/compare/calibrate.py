"""Calibrates a comparison with the baseline's first blocks."""

from __future__ import annotations

import msgspec

from ortune.compare.block_plan import Pace, block_plan, pace_of
from ortune.compare.block_runner import BlockRunner, raise_default
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate
from ortune.workload import Goal

FIRST_BLOCK_NS = 100_000_000
LONGEST_FIRST_BLOCK_S = 5.0
FIRST_DEADLINE_S = 300.0
"""The block that calibrates: how long one call takes is not known yet."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What the default's first blocks tell: the pace of calls, the time of a launch, the memory of a worker."""

    pace: Pace
    launch_s: float
    peak_bytes: int


def calibrate(meter: BlockRunner, first: LiveCandidate, goal: Goal, *, n_cases: int, quota: bool) -> Calibration:
    """Find out how fast calls follow each other, and how long a launch takes."""
    load = goal.load
    plan = BlockPlan(
        load=load,
        duration_ns=max(FIRST_BLOCK_NS, int(min(8 / (load.rate_per_s or 1e9), LONGEST_FIRST_BLOCK_S) * 1e9)),
        lead_in_ns=FIRST_BLOCK_NS // 2,
        min_calls=2 * n_cases,
        deadline_s=FIRST_DEADLINE_S,
    )

    def measure(live: LiveCandidate, plan: BlockPlan) -> Block:
        meter.check()
        block = live.measure(plan)
        if isinstance(block, Failure):
            raise_default(block)
        return block

    def pace(block: Block, load_ns: int) -> Pace:
        return pace_of(block, goal, n_cases=n_cases, quota=quota, load_ns=load_ns)

    try:
        block = measure(first, plan)
    finally:
        first.close()
    start_s = meter.executor.now_s()
    (again,) = meter.launch([first.config])
    launch_s = meter.executor.now_s() - start_s
    if isinstance(again, Failure):
        raise_default(again)
    found = pace(block, again.session_info.load_ns)
    try:
        # A second interim: the first block of a fresh machine is often slower.
        second = pace(measure(again, block_plan(found)), again.session_info.load_ns)
        if second.call_ns < found.call_ns:
            found = second
    finally:
        again.close()
    # A candidate whose loading takes ten times as long as the default's is as good as one that hangs.
    meter.load_deadline_s = 5 + 10 * launch_s
    return Calibration(pace=found, launch_s=launch_s, peak_bytes=block.memory.peak_bytes)
