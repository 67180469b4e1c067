"""Plans a search: how long a block is, how long the search is, and how its time is split between the stages."""

from __future__ import annotations

import math

import msgspec

from ortune.compare.block_plan import (
    FEWEST_RESTARTS,
    LONGEST_USUAL_BUDGET_S,
    USUAL_BUDGET_S,
    Pace,
    _block_s,
    block_plan,
    calls_in,
    paired_run_needed_s,
    size_paired_run,
)
from ortune.compare.figures import calls_needed
from ortune.worker import BlockPlan
from ortune.workload import FIGURES, Goal

CONFIRMATION_SHARE = 0.42
LARGEST_CONFIRMATION_SHARE = 0.7
RACING_SHARE = 0.31
"""Part of the budget for the duel, larger where a percentile needs it; and of what is left, the part for the race. The
rest goes to the screen."""

SHORTEST_CONFIRMATION_SHARE = 0.6
"""Part of its planned time that a duel gets at least, when the stages before it took longer than theirs."""


FEWEST_SCREENING_ROUNDS = 3
MOST_SCREENING_ROUNDS = 12
LAUNCH_WORTH = 1.0
"""Rounds of each candidate in the screen, and the time that they may take as a multiple of a launch's."""

MOST_CHALLENGERS = 4
"""Challengers in the match for a front: each of them makes it longer, or the intervals wider."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a search.

    Attributes:
        block: A block of the screen and the race.
        confirmation_block: A block of the duel; longer, so that foreign CPU use is seen more sharply.
        screening_rounds: Rounds of the screen: fewer where blocks are long.
        screening_s: Time for the screen.
        racing_s: Time for the race.
        confirmation_s: Time for the duel.
        restarts: Launches of each side in the duel.
        pairs_per_restart: Pairs of blocks in each launch; even, so that each order comes up as often.
        confirmation_calls: Calls of each side that the duel has room for.
        max_live: Candidates that memory allows to be live at the same time.
        launch_s: Time that one launch takes.
    """

    block: BlockPlan
    confirmation_block: BlockPlan
    screening_rounds: int
    screening_s: float
    racing_s: float
    confirmation_s: float
    restarts: int
    pairs_per_restart: int
    confirmation_calls: int
    max_live: int
    launch_s: float

    @property
    def fits(self) -> bool:
        """Whether the budget allows the smallest duel that can prove anything."""
        return self.restarts >= FEWEST_RESTARTS


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
    needed_s = paired_run_needed_s(goal, pace, launch_s, n_sides)
    confirmation_s = max(CONFIRMATION_SHARE * left_s, min(needed_s, LARGEST_CONFIRMATION_SHARE * left_s))
    block = block_plan(pace)
    restarts, pairs, confirmation_block = size_paired_run(confirmation_s, goal, pace, launch_s, n_sides)
    max_live = 64
    if peak_bytes and free_bytes:
        max_live = max(2, int(0.6 * free_bytes / peak_bytes))
    return Plan(
        block=block,
        confirmation_block=confirmation_block,
        screening_rounds=screening_rounds(_block_s(block, pace), launch_s),
        screening_s=(left_s - confirmation_s) * (1 - RACING_SHARE),
        racing_s=(left_s - confirmation_s) * RACING_SHARE,
        confirmation_s=confirmation_s,
        restarts=restarts,
        pairs_per_restart=pairs,
        confirmation_calls=calls_in(restarts * pairs, confirmation_block, pace),
        max_live=max_live,
        launch_s=launch_s,
    )


def shorten_confirmation(plan: Plan, goal: Goal, pace: Pace, left_s: float) -> Plan:
    """Return the plan with a duel that fits the time that is left, as far as it can prove anything in it."""
    confirmation_s = max(left_s, SHORTEST_CONFIRMATION_SHARE * plan.confirmation_s)
    if confirmation_s >= plan.confirmation_s:
        return plan
    restarts, pairs, block = size_paired_run(confirmation_s, goal, pace, plan.launch_s, sides_of(goal))
    n_calls = calls_in(restarts * pairs, block, pace)
    if restarts < FEWEST_RESTARTS or n_calls < min(plan.confirmation_calls, max(map(calls_needed, goal.figures))):
        return plan
    return msgspec.structs.replace(
        plan,
        confirmation_s=confirmation_s,
        restarts=restarts,
        pairs_per_restart=pairs,
        confirmation_block=block,
        confirmation_calls=n_calls,
    )


def screening_rounds(block_s: float, launch_s: float) -> int:
    """Return how many rounds a candidate gets in the screen: more where launching it costs more than they do."""
    return min(max(FEWEST_SCREENING_ROUNDS, round(LAUNCH_WORTH * launch_s / block_s)), MOST_SCREENING_ROUNDS)


def spread_rounds(plan: Plan, n_candidates: int, launch_s: float) -> Plan:
    """Return the plan with as many rounds of the screen as there is time for, if all candidates are to be screened."""
    left_s = plan.screening_s / max(n_candidates, 1) - launch_s
    fitting = int(left_s / (1.25 * (plan.block.duration_ns + plan.block.lead_in_ns) / 1e9))
    return msgspec.structs.replace(plan, screening_rounds=min(max(fitting, 1), plan.screening_rounds))


def sides_of(goal: Goal) -> int:
    """Return how many sides the last stage has: two, or more where a front is asked for."""
    return 2 if len(goal.objectives) == 1 else 1 + MOST_CHALLENGERS


def usual_budget_s(goal: Goal, pace: Pace, launch_s: float) -> float:
    """Return how long a search takes where the user does not say: a minute, or what it needs up to ten."""
    return min(max(USUAL_BUDGET_S, budget_needed_s(goal, pace, launch_s)), LONGEST_USUAL_BUDGET_S)


def budget_needed_s(goal: Goal, pace: Pace, launch_s: float) -> float:
    """Return the shortest budget, in steps of ten seconds, whose duel has the pairs and the calls that it must have."""
    # A tenth more, for calibrating and for rounding down to whole rounds.
    return 10.0 * math.ceil(
        1.1 * paired_run_needed_s(goal, pace, launch_s, sides_of(goal)) / LARGEST_CONFIRMATION_SHARE / 10
    )


def too_few_calls(goal: Goal, plan: Plan, pace: Pace) -> str:
    """Return what to tell a user whose budget has no room for the calls that a percentile needs; empty if it has."""
    lacking = [name for name in goal.figures if calls_needed(name) > plan.confirmation_calls]
    if not lacking or not plan.fits:
        return ""
    name = max(lacking, key=calls_needed)
    other = [
        figure.name
        for figure in FIGURES.values()
        if figure.percentile and calls_needed(figure.name) <= plan.confirmation_calls
    ]
    hint = f"--budget {budget_needed_s(goal, pace, plan.launch_s):.0f}s"
    hint += f", or --objective {other[-1]}" if other and goal.figures == (name,) else ""
    return (
        f"{name} should rest on {calls_needed(name)} calls of each side, and this budget has room for "
        f"{plan.confirmation_calls}: only a large difference can be proven. For a smaller one, {hint}."
    )
