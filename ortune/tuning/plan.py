"""Plans a search: how its budget is split between the stages."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from ortune.measure.block_plan import (
    FEWEST_LATE_ROUNDS,
    LATE_SHARE,
    LONGEST_BLOCK_NS,
    MOST_USUAL_LAUNCHES,
    SHORT_BLOCK_NS,
    SHORTEST_BLOCK_NS,
    SHORTEST_WARM_UP_NS,
    Pace,
    RunPlan,
    block_wall_s,
    expect_warm_up_ns,
    expected_calls,
    fewest_rounds,
    launch_sides_s,
    paired_run_s,
    plan_block,
    plan_late_rounds,
    plan_launches,
    plan_paired_run,
    required_run_s,
    shortest_run_s,
)
from ortune.measure.calibrate import Calibration
from ortune.measure.compute_figures import is_pooled, required_calls
from ortune.measure.judge import LAUNCHES_AT_TWO_SPEEDS, LAUNCHES_OF_A_PROOF
from ortune.measure.memory import count_fitting
from ortune.worker import BlockPlan
from ortune.workload import FIGURES, Goal

USUAL_SEARCH_BUDGET_S = 60.0
LONGEST_USUAL_BUDGET_S = 600.0
"""Default budget: a minute, or longer if the confirmation needs it."""

CONFIRMATION_SHARE = 0.33
SMALLEST_CONFIRMATION_SHARE = 0.15
LARGEST_CONFIRMATION_SHARE = 0.7
LARGEST_SHARE_FOR_LIMITS = 0.8
LARGEST_SHARE_SUSTAINED = 0.95
RACING_SHARE = 0.37
"""Share of the budget for confirmation, which is larger if a percentile needs it, most of all if it is that of a limit,
or if it takes minutes to see the speed that the host sustains; and racing's share of the rest, with pruning. Screening
gets the remaining time."""

PRUNING_SHARE = 0.08
"""Share of the budget for pruning, for each objective."""

PROOF_FACTOR = 6.0
"""How many standard errors a gain should be away from 0 in confirmation."""

SHORTEST_CONFIRMATION_SHARE = 0.6
"""Minimum share of its planned time that confirmation gets if earlier stages took longer than planned."""

SCREENING_BATCH = 8
"""Number of live candidates in screening in addition to the baseline. They start in parallel and share its blocks."""

MAX_SCREENING_ROUNDS = 12
ROUNDS_PER_LAUNCH_TIME = 0.5
"""Rounds of each candidate in screening, and the time they may take as a multiple of a launch's time: more if launching
it takes longer than measuring them."""

MAX_FRONT_CANDIDATES = 4
"""Candidates in the confirmation of a Pareto front: each makes it longer, or the intervals wider."""

GIVE_UP_FACTOR = 4
"""In screening and racing, the first call of a candidate is its whole block if it takes longer than a planned block and
than this many calls of the baseline."""

MAX_LIVE = 64
LIVE_MEMORY_SHARE = 0.6
"""Candidates that are live at the same time, and the share of the free memory that they may take."""


LONGEST_RACING = 2.0
"""How many times its planned time racing may take if screening ended early."""


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a search.

    Attributes:
        left_s: Time that was left of the budget when it was made.
        block: A block of screening and racing.
        batch: Candidates that are screened together: fewer where launches or blocks are long.
        screening_rounds: Rounds of each candidate in screening: fewer where blocks are long.
        screening_s: Planned time for screening. It ends earlier or later, depending on what it finds.
        racing_s: Time for racing and pruning.
        pruning_s: Time for pruning.
        racing_rounds: Rounds of each candidate in each launch of racing.
        confirmation_s: Time for confirmation.
        confirmation: Size of the confirmation.
        confirmation_calls: Calls of each side for which confirmation has time.
        max_live: Candidates that may be launched together, with the baseline: as many as fit into memory. If they are
            measured one at a time, they do not share it.
        launch_s: Time of one launch.
        one_at_a_time: Whether each block of screening and racing has a launch of its own.
        proof_s: Least time for confirmation, because a candidate that leads needs it to be proven; 0 without one.
        fewest_launches: Launches of the confirmation at least.
    """

    left_s: float
    block: BlockPlan
    batch: int
    screening_rounds: int
    screening_s: float
    racing_s: float
    pruning_s: float
    racing_rounds: int
    confirmation_s: float
    confirmation: RunPlan
    confirmation_calls: int
    max_live: int
    launch_s: float
    one_at_a_time: bool = False
    proof_s: float = 0.0
    fewest_launches: int = LAUNCHES_OF_A_PROOF

    @property
    def can_prove(self) -> bool:
        """Whether the budget allows the smallest confirmation that can prove anything."""
        return (self.confirmation.launches or 0) >= LAUNCHES_OF_A_PROOF


def split_budget(
    goal: Goal, calibration: Calibration, *, left_s: float, free_bytes: int | None, one_at_a_time: bool = False
) -> SearchPlan:
    """Split the time that is left of the budget.

    Args:
        goal: What the search is for.
        calibration: Result of the baseline's first blocks.
        left_s: Time that is left.
        free_bytes: Memory that may be used, or None if unknown.
        one_at_a_time: Whether two sessions do not fit into memory at the same time.
    """
    pace, launch_s = calibration.pace, calibration.launch_s
    n_sides = count_sides(goal)
    needed_s = shortest_run_s(pace, launch_s) if is_simple(goal) else required_run_s(goal, pace, launch_s, n_sides)
    confirmation_s = max(CONFIRMATION_SHARE * left_s, min(needed_s, largest_share(goal) * left_s))
    shortest_ns = SHORTEST_BLOCK_NS
    if one_at_a_time:
        # One long block takes the place of several rounds.
        shortest_ns = int(min(max(ROUNDS_PER_LAUNCH_TIME * launch_s * 1e9, SHORTEST_BLOCK_NS), LONGEST_BLOCK_NS))
    block = plan_block(pace, shortest_ns, SHORTEST_WARM_UP_NS, SHORT_BLOCK_NS)
    if block.give_up_ns is None:
        give_up_ns = max(block.duration_ns, int(GIVE_UP_FACTOR * pace.call_ns))
        block = msgspec.structs.replace(block, give_up_ns=give_up_ns)
    confirmation = plan_late_rounds(confirmation_s, goal, pace, launch_s, n_sides, one_at_a_time=one_at_a_time)
    # If the first batch takes the time of racing, too, there is no racing.
    warm_up_s = expect_warm_up_ns(pace, SHORTEST_WARM_UP_NS) / 1e9
    least = 1 if one_at_a_time else fewest_rounds(block)
    batch, rounds = size_batch(
        left_s - confirmation_s,
        block_wall_s(block, pace),
        launch_s + warm_up_s,
        least=least,
        # Memory hardly differs between the blocks of a launch.
        most=least if goal.figures == ("memory",) else MAX_SCREENING_ROUNDS,
        one_at_a_time=one_at_a_time,
    )
    n_fitting = None if one_at_a_time else count_fitting(calibration, free_bytes, LIVE_MEMORY_SHARE)
    return SearchPlan(
        left_s=left_s,
        block=block,
        batch=batch,
        screening_rounds=rounds,
        screening_s=(left_s - confirmation_s) * (1 - RACING_SHARE),
        racing_rounds=least,
        racing_s=(left_s - confirmation_s) * RACING_SHARE,
        pruning_s=min(PRUNING_SHARE * len(goal.objectives) * left_s, (left_s - confirmation_s) * RACING_SHARE / 2),
        confirmation_s=confirmation_s,
        confirmation=confirmation,
        confirmation_calls=expected_calls(confirmation.n_rounds, confirmation.block, pace),
        max_live=MAX_LIVE if n_fitting is None else max(min(n_fitting, MAX_LIVE), 2),
        launch_s=launch_s,
        one_at_a_time=one_at_a_time,
    )


Split = Callable[..., SearchPlan]
"""Splits the time that is left of a budget; see `split_budget`."""


def reserve_confirmation(
    plan: SearchPlan, goal: Goal, pace: Pace, *, gain: float, launch_sigma: float, round_sigma: float
) -> float:
    """Return the time in seconds that a confirmation needs to prove a gain, at most the planned time.

    Args:
        plan: The plan.
        goal: What the search is for.
        pace: How fast calls follow each other.
        gain: The expected gain, as a log-ratio.
        launch_sigma: Standard deviation of a log-ratio due to its two launches.
        round_sigma: Standard deviation of a log-ratio in one round.
    """
    if not is_simple(goal):
        return plan.confirmation_s
    needed_s = find_proof_s(plan, pace, gain=gain, launch_sigma=launch_sigma, round_sigma=round_sigma)
    late_s = FEWEST_LATE_ROUNDS * count_sides(goal) * block_wall_s(plan.confirmation.block, pace)
    needed_s += late_s if late_s <= LATE_SHARE * (needed_s + late_s) else 0.0
    return min(max(needed_s, plan.proof_s, SMALLEST_CONFIRMATION_SHARE * plan.left_s), plan.confirmation_s)


def find_proof_s(plan: SearchPlan, pace: Pace, *, gain: float, launch_sigma: float, round_sigma: float) -> float:
    """Return the time in seconds that a confirmation needs to prove a gain; see `reserve_confirmation`.

    Returns:
        The time with the fewest launches; infinite if no number of launches is enough.
    """
    block = plan_block(pace, longest_ns=SHORT_BLOCK_NS)
    for launches in range(plan.fewest_launches, MOST_USUAL_LAUNCHES + 1):
        left = launches * (gain / PROOF_FACTOR) ** 2 - launch_sigma**2
        if left > 0:
            rounds = max(fewest_rounds(block), math.ceil(round_sigma**2 / left))
            return paired_run_s(RunPlan(block=block, launches=launches, rounds=rounds), pace, plan.launch_s, 2)
    return math.inf


def shortest_confirmation_s(plan: SearchPlan, goal: Goal, pace: Pace) -> float:
    """Return the time in seconds of the shortest confirmation that can prove a gain, at most the planned time."""
    if not is_simple(goal):
        return plan.confirmation_s
    return min(shortest_run_s(pace, plan.launch_s, plan.fewest_launches), plan.confirmation_s)


def unpromising_confirmation_s(plan: SearchPlan, goal: Goal, pace: Pace) -> float:
    """Return the time in seconds of a confirmation that is likely to show only that there is no gain."""
    return max(shortest_confirmation_s(plan, goal, pace), plan.proof_s, SMALLEST_CONFIRMATION_SHARE * plan.left_s)


def is_simple(goal: Goal) -> bool:
    """Return whether a confirmation has two sides and no limits, and a figure that needs neither calls nor minutes."""
    is_pair = len(goal.objectives) == 1 and not goal.limits and not goal.sustained
    return is_pair and not is_pooled(goal.objective) and goal.load.rate_per_s is None


def resize_confirmation(
    plan: SearchPlan,
    goal: Goal,
    pace: Pace,
    left_s: float,
    sigmas: tuple[float, float] | None = None,
    gain: float = 0.0,
) -> SearchPlan:
    """Return the plan with a confirmation that fits the time that is left, if it can prove something.

    It is shorter than planned if less time is left, and longer if more is left and the gain needs it to be proven.

    Args:
        plan: The plan.
        goal: What the search is for.
        pace: How fast calls follow each other.
        left_s: The time that is left, in seconds.
        sigmas: Standard deviations of a log-ratio due to its two launches, and in one round; None if unknown.
        gain: The expected gain, as a log-ratio; 0 for none that is relevant.
    """
    if is_simple(goal):
        time_s = max(left_s, shortest_confirmation_s(plan, goal, pace))
        longest_s = plan.confirmation_s
        if sigmas and gain > 0:
            launch_sigma, round_sigma = sigmas
            proof_s = find_proof_s(plan, pace, gain=gain, launch_sigma=launch_sigma, round_sigma=round_sigma)
            # Where the most launches do not make the gain as certain as is wanted, they may still prove it, unless it
            # is smaller than what single launches differ by.
            if proof_s < math.inf or gain > launch_sigma:
                longest_s = max(longest_s, proof_s)
        return with_confirmation(plan, goal, pace, min(time_s, longest_s), sigmas)
    time_s = max(left_s, SHORTEST_CONFIRMATION_SHARE * plan.confirmation_s)
    if time_s >= plan.confirmation_s:
        return plan
    shorter = with_confirmation(plan, goal, pace, time_s)
    enough_calls = min(plan.confirmation_calls, max(map(required_calls, goal.figures)))
    return shorter if shorter.can_prove and shorter.confirmation_calls >= enough_calls else plan


def with_confirmation(
    plan: SearchPlan, goal: Goal, pace: Pace, time_s: float, sigmas: tuple[float, float] | None = None
) -> SearchPlan:
    """Return the plan with a confirmation of another duration; see `resize_confirmation` for the arguments."""
    size = (goal, pace, plan.launch_s, count_sides(goal))

    def plan_run(run_s: float) -> RunPlan:
        if sigmas:
            launch_sigma, round_sigma = sigmas
            narrowest = plan_launches(
                run_s,
                pace,
                plan.launch_s,
                launch_sigma=launch_sigma,
                round_sigma=round_sigma,
                fewest=plan.fewest_launches,
            )
            if narrowest.launches:
                return narrowest
        return plan_paired_run(run_s, *size)

    confirmation = plan_late_rounds(time_s, *size, one_at_a_time=plan.one_at_a_time, plan_run=plan_run)
    n_calls = expected_calls(confirmation.n_rounds, confirmation.block, pace)
    return msgspec.structs.replace(plan, confirmation_s=time_s, confirmation=confirmation, confirmation_calls=n_calls)


def allow_slow_launches(plan: SearchPlan) -> SearchPlan:
    """Return the plan for a host on which some launches are slow: of more launches in each stage, as many count.

    Where slow launches are a part of the objective, as in a mean, launches differ more, and more of them help as well.
    """
    factor = LAUNCHES_AT_TWO_SPEEDS / plan.fewest_launches
    return msgspec.structs.replace(
        plan,
        fewest_launches=LAUNCHES_AT_TWO_SPEEDS,
        racing_s=plan.racing_s + (factor - 1) * plan.pruning_s,
        pruning_s=factor * plan.pruning_s,
    )


def size_batch(
    time_s: float,
    block_s: float,
    launch_s: float,
    *,
    least: int,
    most: int = MAX_SCREENING_ROUNDS,
    one_at_a_time: bool = False,
) -> tuple[int, int]:
    """Return how many candidates are screened together, and in how many rounds, so that one batch fits into a time."""
    wanted = 1 if one_at_a_time else round(ROUNDS_PER_LAUNCH_TIME * launch_s / block_s)
    batch, rounds = SCREENING_BATCH, min(max(least, wanted), most)

    def takes_s() -> float:
        launches_s = rounds * (batch + 1) * launch_s if one_at_a_time else launch_sides_s(launch_s, batch + 1)
        return launches_s + rounds * (batch + 1) * block_s

    while batch > 1 and takes_s() > time_s:
        batch -= 1
    while rounds > 1 and takes_s() > time_s:
        rounds -= 1
    return batch, rounds


def spread_rounds(plan: SearchPlan, n_candidates: int) -> SearchPlan:
    """Return the plan with as many screening rounds as there is time for, if all candidates are to be screened."""
    left_s = plan.screening_s / max(n_candidates, 1) - plan.launch_s
    fitting = int(left_s / (1.25 * (plan.block.duration_ns + plan.block.lead_in_ns) / 1e9))
    return msgspec.structs.replace(plan, screening_rounds=min(max(fitting, 1), plan.screening_rounds))


def largest_share(goal: Goal) -> float:
    """Return the largest share of the budget that confirmation may take."""
    if goal.sustained:
        return LARGEST_SHARE_SUSTAINED
    has_percentile = any(is_pooled(limit.figure) for limit in goal.limits)
    return LARGEST_SHARE_FOR_LIMITS if has_percentile else LARGEST_CONFIRMATION_SHARE


def count_sides(goal: Goal) -> int:
    """Return how many sides the confirmation has: two, or more with several objectives."""
    return 2 if len(goal.objectives) == 1 else 1 + MAX_FRONT_CANDIDATES


def usual_budget_s(goal: Goal, pace: Pace, launch_s: float) -> float:
    """Return the default budget: a minute, or the time that the search needs, up to ten minutes.

    The speed that the host sustains takes longer, which the user has asked for.
    """
    needed_s = max(USUAL_SEARCH_BUDGET_S, required_budget_s(goal, pace, launch_s))
    return needed_s if goal.sustained else min(needed_s, LONGEST_USUAL_BUDGET_S)


def required_budget_s(goal: Goal, pace: Pace, launch_s: float) -> float:
    """Return the smallest budget, in steps of ten seconds, whose confirmation has the rounds and the calls it needs."""
    # Add a tenth for calibration and for rounding down to whole rounds.
    needed_s = 1.1 * required_run_s(goal, pace, launch_s, count_sides(goal)) / largest_share(goal)
    return 10.0 * math.ceil(needed_s / 10)


def warn_of_small_budget(goal: Goal, plan: SearchPlan, pace: Pace) -> str:
    """Return a warning if the budget has no time for a proof, or for the calls that a percentile needs; else ""."""
    if not plan.can_prove:
        needed_s = required_budget_s(goal, pace, plan.launch_s)
        return f"this budget is too small to prove anything. A search of this model needs {needed_s:.0f} s."
    lacking = [name for name in goal.figures if required_calls(name) > plan.confirmation_calls]
    if not lacking:
        return ""
    name = max(lacking, key=required_calls)
    lower = [
        figure.name
        for figure in FIGURES.values()
        if figure.percentile and required_calls(figure.name) <= plan.confirmation_calls
    ]
    # A simple confirmation has a fixed share of the budget.
    factor = required_calls(name) / max(plan.confirmation_calls, 1)
    needed_s = max(required_budget_s(goal, pace, plan.launch_s), 10 * math.ceil(factor * plan.left_s / 10))
    advice = f"a budget of {needed_s:.0f} s"
    advice += f", or {lower[-1]} as the objective" if lower and goal.figures == (name,) else ""
    return (
        f"{name} needs {required_calls(name)} calls of each side, and this budget has time for "
        f"{plan.confirmation_calls}: rarer slow calls cannot be excluded. For enough calls, choose {advice}."
    )
