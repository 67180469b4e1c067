"""Calibrates a comparison with the baseline's first blocks."""

from __future__ import annotations

import msgspec
import numpy as np

from ortune.knobs.config import CUDA_BASED
from ortune.measure.block_plan import Pace, is_long, measure_pace, plan_block
from ortune.measure.block_runner import BASELINE_NAME, BlockRunner, SteadyCandidate, raise_failure
from ortune.measure.two_speeds import split_speeds
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.block import GpuState
from ortune.workload import Goal

FIRST_BLOCK_NS = 100_000_000
LONGEST_FIRST_BLOCK_S = 5.0
FIRST_DEADLINE_S = 300.0
"""The first block: the duration of a call is not known yet. It is below that of the first launch, which made two."""

FAR_ABOVE = 1.2
"""Least ratio of the mean of calls at two speeds to their median."""

LEAST_LOAD_DEADLINE_S = 5.0
LOAD_DEADLINE_FACTOR = 10
"""A candidate times out if it takes this time longer to load than so many loads of the baseline."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the baseline's first blocks.

    Attributes:
        pace: How fast calls follow each other.
        launch_s: Time of one launch.
        peak_bytes: Largest resident memory of a worker.
        gpu: State of the GPU at the end of the first block; None without a GPU, or if it is unknown.
        has_two_speeds: Whether calls ran at two speeds in both of the first blocks, so that their mean is far above
            the median.
    """

    pace: Pace
    launch_s: float
    peak_bytes: int
    gpu: GpuState | None = None
    has_two_speeds: bool = False


def calibrate(
    runner: BlockRunner,
    first: SteadyCandidate,
    goal: Goal,
    *,
    first_launch_s: float,
    n_cases: int,
    quota: bool,
    counts_calls: bool = False,
) -> Calibration:
    """Measure how fast calls follow each other and how long a launch takes, and set the runner's launch deadline.

    If calls are long, one launch must do.

    Args:
        runner: Launches the baseline again.
        first: The baseline's first launch, which is closed here.
        first_launch_s: Time that it took.
        goal: Its load.
        n_cases: Input cases.
        quota: Whether a CPU quota applies.
        counts_calls: Whether blocks of paired runs end after a number of calls; see `Pace`.

    Raises:
        MeasureError: The baseline fails.
    """
    # Its calls were made before, for the reference outputs: that it fails now has another cause.
    runner.attempts_of(first.config).add_block()
    load = goal.load
    first_block_s = min(8 * load.processes / (load.rate_per_s or 1e9), LONGEST_FIRST_BLOCK_S)
    plan = BlockPlan(
        load=load,
        duration_ns=max(FIRST_BLOCK_NS, int(first_block_s * 1e9)),
        lead_in_ns=FIRST_BLOCK_NS // 2,
        min_calls=n_cases,
        deadline_s=min(FIRST_DEADLINE_S, 15 + 20 * first_launch_s),
    )

    def measure(live: SteadyCandidate, plan: BlockPlan) -> Block:
        block = live.measure(plan, counts=False)
        if isinstance(block, Failure):
            raise_failure(BASELINE_NAME, block)
        return block

    def pace_of(block: Block, load_ns: int) -> Pace:
        pace = measure_pace(block, goal, n_cases=n_cases, quota=quota, load_ns=load_ns)
        on_gpu = first.config.provider in CUDA_BASED
        return msgspec.structs.replace(pace, on_gpu=on_gpu, counts_calls=counts_calls)

    def finish(pace: Pace, launch_s: float) -> Calibration:
        runner.load_deadline_s = LEAST_LOAD_DEADLINE_S + LOAD_DEADLINE_FACTOR * launch_s
        return Calibration(pace=pace, launch_s=launch_s, peak_bytes=block.memory.peak_bytes, gpu=block.gpu)

    try:
        block = measure(first, plan)
    finally:
        first.close()
    pace = pace_of(block, first.session_info.load_ns)
    if is_long(pace):
        # The first launch makes one call more than others, to see whether outputs are the same in each run.
        launch_s = max(first_launch_s - pace.call_ns / 1e9, first_launch_s / 2)
        return finish(pace, launch_s)
    start_s = runner.now_s()
    (again,) = runner.launch([first.config])
    launch_s = runner.now_s() - start_s
    if isinstance(again, Failure):
        raise_failure(BASELINE_NAME, again)
    try:
        # The first block on a cold machine is often slower, so take the faster of two.
        second_block = measure(again, plan_block(pace))
        second = pace_of(second_block, again.session_info.load_ns)
        if second.call_ns < pace.call_ns:
            pace = second
    finally:
        again.close()
    has_two_speeds = all(map(runs_at_two_speeds, (block, second_block)))
    return msgspec.structs.replace(finish(pace, launch_s), has_two_speeds=has_two_speeds)


def runs_at_two_speeds(block: Block) -> bool:
    """Return whether the calls of a block fall into two groups, and their mean is far above their median.

    Those of several input cases do because of their sizes, and are not looked at.
    """
    if block.cases is not None:
        return False
    samples = block.samples_ns
    if split_speeds(np.log(np.maximum(np.sort(samples), 1))) is None:
        return False
    return float(samples.mean()) > FAR_ABOVE * float(np.median(samples))
