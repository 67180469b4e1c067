"""Plans a search: how long a block is, how long the search is, and how its time is split between the stages."""

from __future__ import annotations

import math

import msgspec

from ortune.measure import Block, BlockPlan
from ortune.measure.figures import calls_needed
from ortune.workload import FIGURES, Goal, Load

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

DUEL_SHARE = 0.42
LARGEST_DUEL_SHARE = 0.7
RACE_SHARE = 0.31
"""Part of the budget for the duel, larger where a percentile needs it; and of what is left, the part for the race. The
rest goes to the screen."""

SHORTEST_DUEL_SHARE = 0.6
"""Part of its planned time that a duel gets at least, when the stages before it took longer than theirs."""

RESTARTS = 8
FEWEST_RESTARTS = 5
PAIRS_PER_RESTART = 8
FEWEST_PAIRS_PER_RESTART = 2
"""The duel's size: at least 60 pairs over at least 5 launches a side where the budget allows it. More launches
narrow the interval more than more pairs do, as each launch has its own luck with memory layout."""

FEWEST_SCREEN_ROUNDS = 3
MOST_SCREEN_ROUNDS = 12
LAUNCH_WORTH = 1.0
"""Rounds of each candidate in the screen, and the time that they may take as a multiple of a launch's."""

MOST_CHALLENGERS = 4
"""Challengers in the match for a front: each of them makes it longer, or the intervals wider."""

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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a search.

    Attributes:
        block: A block of the screen and the race.
        duel_block: A block of the duel; longer, so that foreign CPU use is seen more sharply.
        screen_rounds: Rounds of the screen: fewer where blocks are long.
        screen_s: Time for the screen.
        race_s: Time for the race.
        duel_s: Time for the duel.
        restarts: Launches of each side in the duel.
        pairs_per_restart: Pairs of blocks in each launch; even, so that each order comes up as often.
        duel_calls: Calls of each side that the duel has room for.
        max_live: Candidates that memory allows to be live at the same time.
        launch_s: Time that one launch takes.
    """

    block: BlockPlan
    duel_block: BlockPlan
    screen_rounds: int
    screen_s: float
    race_s: float
    duel_s: float
    restarts: int
    pairs_per_restart: int
    duel_calls: int
    max_live: int
    launch_s: float

    @property
    def fits(self) -> bool:
        """Whether the budget allows the smallest duel that can prove anything."""
        return self.restarts >= FEWEST_RESTARTS


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


def make_plan(
    *, goal: Goal, pace: Pace, left_s: float, launch_s: float, peak_bytes: int | None, free_bytes: int | None
) -> Plan:
    """Split the time that is left.

    Args:
        goal: What the search is for.
        pace: How fast calls follow each other.
        left_s: Time that is left of the budget.
        launch_s: Time that it took to make the default live.
        peak_bytes: Largest resident memory of the default's worker.
        free_bytes: Memory that can be used.
    """
    n_sides = sides_of(goal)
    needed_s = match_needed_s(goal, pace, launch_s, n_sides)
    duel_s = max(DUEL_SHARE * left_s, min(needed_s, LARGEST_DUEL_SHARE * left_s))
    block = block_plan(pace)
    restarts, pairs, duel_block = size_match(duel_s, goal, pace, launch_s, n_sides)
    max_live = 64
    if peak_bytes and free_bytes:
        max_live = max(2, int(0.6 * free_bytes / peak_bytes))
    return Plan(
        block=block,
        duel_block=duel_block,
        screen_rounds=screen_rounds(_block_s(block, pace), launch_s),
        screen_s=(left_s - duel_s) * (1 - RACE_SHARE),
        race_s=(left_s - duel_s) * RACE_SHARE,
        duel_s=duel_s,
        restarts=restarts,
        pairs_per_restart=pairs,
        duel_calls=calls_in(restarts * pairs, duel_block, pace),
        max_live=max_live,
        launch_s=launch_s,
    )


def shorten_duel(plan: Plan, goal: Goal, pace: Pace, left_s: float) -> Plan:
    """Return the plan with a duel that fits the time that is left, as far as it can prove anything in it."""
    duel_s = max(left_s, SHORTEST_DUEL_SHARE * plan.duel_s)
    if duel_s >= plan.duel_s:
        return plan
    restarts, pairs, block = size_match(duel_s, goal, pace, plan.launch_s, sides_of(goal))
    n_calls = calls_in(restarts * pairs, block, pace)
    if restarts < FEWEST_RESTARTS or n_calls < min(plan.duel_calls, max(map(calls_needed, goal.figures))):
        return plan
    return msgspec.structs.replace(
        plan, duel_s=duel_s, restarts=restarts, pairs_per_restart=pairs, duel_block=block, duel_calls=n_calls
    )


def calls_in(n_blocks: int, block: BlockPlan, pace: Pace) -> int:
    """Return how many calls of each case so many blocks hold."""
    return int(n_blocks * block.duration_ns / pace.gap_ns / pace.n_cases)


def screen_rounds(block_s: float, launch_s: float) -> int:
    """Return how many rounds a candidate gets in the screen: more where launching it costs more than they do."""
    return min(max(FEWEST_SCREEN_ROUNDS, round(LAUNCH_WORTH * launch_s / block_s)), MOST_SCREEN_ROUNDS)


def spread_rounds(plan: Plan, n_candidates: int, launch_s: float) -> Plan:
    """Return the plan with as many rounds of the screen as there is time for, if all candidates are to be screened."""
    left_s = plan.screen_s / max(n_candidates, 1) - launch_s
    fitting = int(left_s / (1.25 * (plan.block.duration_ns + plan.block.lead_in_ns) / 1e9))
    return msgspec.structs.replace(plan, screen_rounds=min(max(fitting, 1), plan.screen_rounds))


def sides_of(goal: Goal) -> int:
    """Return how many sides the last stage has: two, or more where a front is asked for."""
    return 2 if len(goal.objectives) == 1 else 1 + MOST_CHALLENGERS


def size_match(duel_s: float, goal: Goal, pace: Pace, launch_s: float, n_sides: int) -> tuple[int, int, BlockPlan]:
    """Return launches, rounds in each, and the block: as many launches as fit, then rounds, then longer blocks."""
    for shortest_ns in (150_000_000, 100_000_000, SHORTEST_BLOCK_NS):
        block = block_plan(pace, shortest_ns)
        pair_s = n_sides * _block_s(block, pace)
        for restarts in range(RESTARTS, FEWEST_RESTARTS - 1, -1):
            pairs = int((duel_s / restarts - n_sides * launch_s) / pair_s + ROUNDING) // 2 * 2
            if pairs * restarts >= 60:
                # More is of no use, unless a percentile needs it.
                most = max(4 * PAIRS_PER_RESTART, 2 * math.ceil(rounds_needed(goal, pace, block) / restarts / 2))
                return restarts, min(pairs, most), block
    block = block_plan(pace)
    pair_s = n_sides * _block_s(block, pace)
    for restarts in range(RESTARTS, 0, -1):
        pairs = int((duel_s / restarts - n_sides * launch_s) / pair_s + ROUNDING) // 2 * 2
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


def usual_budget_s(goal: Goal, pace: Pace, launch_s: float) -> float:
    """Return how long a search takes where the user does not say: a minute, or what it needs up to ten."""
    return min(max(USUAL_BUDGET_S, budget_needed_s(goal, pace, launch_s)), LONGEST_USUAL_BUDGET_S)


def budget_needed_s(goal: Goal, pace: Pace, launch_s: float) -> float:
    """Return the shortest budget, in steps of ten seconds, whose duel has the pairs and the calls that it must have."""
    # A tenth more, for calibrating and for rounding down to whole rounds.
    return 10.0 * math.ceil(1.1 * match_needed_s(goal, pace, launch_s, sides_of(goal)) / LARGEST_DUEL_SHARE / 10)


def rounds_needed(goal: Goal, pace: Pace, block: BlockPlan) -> float:
    """Return how many blocks of each side hold the calls that the figures must rest on, with a reserve."""
    n_calls = pace.n_cases * max(calls_needed(name) for name in goal.figures)
    return RESERVE * n_calls * pace.gap_ns / block.duration_ns


def match_needed_s(goal: Goal, pace: Pace, launch_s: float, n_sides: int) -> float:
    """Return the time that a match takes that has the rounds and the calls that it must have."""
    block = block_plan(pace)
    n_rounds = max(FEWEST_PAIRS, math.ceil(rounds_needed(goal, pace, block)))
    # Each launch holds an even number of them.
    n_launches = FEWEST_RESTARTS if n_rounds < 2 * RESTARTS else RESTARTS
    n_rounds = math.ceil(n_rounds / (2 * n_launches)) * 2 * n_launches
    return n_sides * (n_rounds * _block_s(block, pace) + n_launches * launch_s)


def too_few_calls(goal: Goal, plan: Plan, pace: Pace) -> str:
    """Return what to tell a user whose budget has no room for the calls that a percentile needs; empty if it has."""
    lacking = [name for name in goal.figures if calls_needed(name) > plan.duel_calls]
    if not lacking or not plan.fits:
        return ""
    name = max(lacking, key=calls_needed)
    other = [
        figure.name for figure in FIGURES.values() if figure.percentile and calls_needed(figure.name) <= plan.duel_calls
    ]
    cure = f"--budget {budget_needed_s(goal, pace, plan.launch_s):.0f}s"
    cure += f", or --objective {other[-1]}" if other and goal.figures == (name,) else ""
    return (
        f"{name} should rest on {calls_needed(name)} calls of each side, and this budget has room for "
        f"{plan.duel_calls}: only a large difference can be proven. For a smaller one, {cure}."
    )
