"""Plans blocks and launches: how long a block is, and how many pairs fit into a time."""

from __future__ import annotations

import math

import msgspec

from ortune.compare.figures import calls_needed
from ortune.worker import Block, BlockPlan
from ortune.workload import Goal, Load

SHORTEST_BLOCK_NS = 50_000_000
LONGEST_BLOCK_NS = 1_000_000_000
CALLS_PER_BLOCK = 8
CALLS_PER_CALLER = 16
"""Calls in a block: of one caller, and of each where there are several, whose calls go in and out of step."""


FEWEST_CALLS = 2
LEAD_IN_SHARE = 0.08
"""Part of a block that is called before it, unmeasured: after resuming, caches are cold and workers asleep."""


ARRIVALS_PER_BLOCK = 16
LONGEST_SERVER_BLOCK_NS = 2_000_000_000
SERVER_LEAD_IN_SHARE = 0.2
"""For requests that arrive at a rate: a queue needs longer to find its level than a loop does."""


QUOTA_PERIOD_NS = 100_000_000
QUOTA_PERIODS = 5
QUOTA_LEAD_IN_PERIODS = 1.5
"""Under a CPU quota, the kernel lets a process run at full speed until its share of the period is used up. A block
shorter than some periods would see the burst alone, and not the throttling that follows it."""


RESTARTS = 8
FEWEST_RESTARTS = 5
PAIRS_PER_RESTART = 8
FEWEST_PAIRS_PER_RESTART = 2
"""The duel's size: at least 60 pairs over at least 5 launches a side where the budget allows it. More launches
narrow the interval more than more pairs do, as each launch has its own luck with memory layout."""


USUAL_BUDGET_S = 60.0
LONGEST_USUAL_BUDGET_S = 600.0
FEWEST_PAIRS = 20
RESERVE = 1.1
"""Where the user gives no budget: a minute, or longer where the duel needs it for so many pairs or for the calls that
a percentile must rest on, with a reserve for rounds that are contended."""


ROUNDING = 0.01
"""Part of a pair by which the time may fall short of it: sums of seconds are never exact."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast calls follow each other under a load, by the default's first blocks.

    Attributes:
        load: The load.
        gap_ns: Time in which one call is completed, all callers together.
        call_ns: Duration of one call.
        n_cases: Cases of input data, each of which a block must hold.
        quota: Whether a CPU quota holds here.
        creations_ns: Time that each block spends on creating sessions.
    """

    load: Load = Load()
    gap_ns: float
    call_ns: float
    n_cases: int = 1
    quota: bool = False
    creations_ns: int = 0


def pace_of(block: Block, goal: Goal, *, n_cases: int, quota: bool, load_ns: int) -> Pace:
    """Return the pace that a first block shows; `load_ns` is the time that it took to create the session."""
    rate = goal.load.rate_per_s
    wants_creations = "load-time" in goal.objectives
    return Pace(
        load=goal.load,
        gap_ns=1e9 / rate if rate else block.wall_ns / max(block.n_calls, 1e-9),
        call_ns=block.service_ns,
        n_cases=n_cases,
        quota=quota,
        creations_ns=max(SHORTEST_BLOCK_NS, 3 * load_ns) if wants_creations else 0,
    )


def block_plan(pace: Pace, shortest_ns: int = SHORTEST_BLOCK_NS) -> BlockPlan:
    """Return how long a block is.

    At least 50 ms, and about eight calls (sixteen of each of several callers, sixteen arrivals at a rate) unless that
    takes more than a second (two at a rate); under a CPU quota, half a second.
    """
    server = pace.load.scenario == "server"
    per_caller = CALLS_PER_BLOCK if pace.load.clients == 1 else CALLS_PER_CALLER * pace.load.clients
    n_calls = pace.n_cases * (ARRIVALS_PER_BLOCK if server else per_caller)
    longest_ns = LONGEST_SERVER_BLOCK_NS if server else LONGEST_BLOCK_NS
    share = SERVER_LEAD_IN_SHARE if server else LEAD_IN_SHARE
    fewest_gap_ns = pace.gap_ns if server else pace.call_ns
    if pace.quota:
        shortest_ns = max(shortest_ns, QUOTA_PERIODS * QUOTA_PERIOD_NS)
    duration_ns = min(
        max(shortest_ns, n_calls * pace.gap_ns), max(longest_ns, FEWEST_CALLS * pace.n_cases * fewest_gap_ns)
    )
    lead_in_ns = max(duration_ns * share, QUOTA_LEAD_IN_PERIODS * QUOTA_PERIOD_NS if pace.quota else 0)
    return BlockPlan(
        load=pace.load,
        duration_ns=int(duration_ns),
        lead_in_ns=int(lead_in_ns),
        min_calls=FEWEST_CALLS * pace.n_cases,
        creations_ns=pace.creations_ns,
        # A candidate that is twenty times slower than the default is as good as one that hangs.
        deadline_s=5 + 20 * (duration_ns + lead_in_ns + 3 * pace.call_ns + pace.creations_ns) / 1e9,
    )


def calls_in(n_blocks: int, block: BlockPlan, pace: Pace) -> int:
    """Return how many calls of each case so many blocks hold."""
    return int(n_blocks * block.duration_ns / pace.gap_ns / pace.n_cases)


def size_paired_run(
    confirmation_s: float, goal: Goal, pace: Pace, launch_s: float, n_sides: int
) -> tuple[int, int, BlockPlan]:
    """Return launches, rounds in each, and the block: as many launches as fit, then rounds, then longer blocks."""
    for shortest_ns in (150_000_000, 100_000_000, SHORTEST_BLOCK_NS):
        block = block_plan(pace, shortest_ns)
        pair_s = n_sides * _block_s(block, pace)
        for restarts in range(RESTARTS, FEWEST_RESTARTS - 1, -1):
            pairs = int((confirmation_s / restarts - n_sides * launch_s) / pair_s + ROUNDING) // 2 * 2
            if pairs * restarts >= 60:
                # More is of no use, unless a percentile needs it.
                most = max(4 * PAIRS_PER_RESTART, 2 * math.ceil(rounds_needed(goal, pace, block) / restarts / 2))
                return restarts, min(pairs, most), block
    block = block_plan(pace)
    pair_s = n_sides * _block_s(block, pace)
    for restarts in range(RESTARTS, 0, -1):
        pairs = int((confirmation_s / restarts - n_sides * launch_s) / pair_s + ROUNDING) // 2 * 2
        if pairs >= FEWEST_PAIRS_PER_RESTART:
            return restarts, pairs, block
    return 0, 0, block


def _block_s(block: BlockPlan, pace: Pace) -> float:
    """Return the wall time of a block with its lead-in, which is at least one call, and the last call's overrun."""
    lead_in_ns = max(block.lead_in_ns, pace.call_ns)
    # The fewest calls are those of each caller, who make them side by side.
    fewest_ns = 0 if pace.load.rate_per_s else block.min_calls * pace.call_ns
    calls_ns = max(block.duration_ns, fewest_ns) + lead_in_ns + pace.call_ns / 2
    return (calls_ns + block.creations_ns) / 1e9 + 0.002


def rounds_needed(goal: Goal, pace: Pace, block: BlockPlan) -> float:
    """Return how many blocks of each side hold the calls that the figures must rest on, with a reserve."""
    n_calls = pace.n_cases * max(calls_needed(name) for name in goal.figures)
    return RESERVE * n_calls * pace.gap_ns / block.duration_ns


def paired_run_needed_s(goal: Goal, pace: Pace, launch_s: float, n_sides: int) -> float:
    """Return the time that a match takes that has the rounds and the calls that it must have."""
    block = block_plan(pace)
    n_rounds = max(FEWEST_PAIRS, math.ceil(rounds_needed(goal, pace, block)))
    # Each launch holds an even number of them.
    n_launches = FEWEST_RESTARTS if n_rounds < 2 * RESTARTS else RESTARTS
    n_rounds = math.ceil(n_rounds / (2 * n_launches)) * 2 * n_launches
    return n_sides * (n_rounds * _block_s(block, pace) + n_launches * launch_s)
