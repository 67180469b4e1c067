"""Confirmation with several objectives: one paired run of the best candidates, and its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from ortune.measure.block_plan import RunPlan, fewest_rounds, paired_run_s
from ortune.measure.comparison import Comparison, LimitCheck, Speedup, describe_lack
from ortune.measure.compute_figures import count_calls, is_pooled, required_calls
from ortune.measure.evaluate import compute_speedup, evaluate, has_enough_calls
from ortune.measure.interval import share_error
from ortune.measure.judge import LAUNCHES_OF_A_PROOF, Verdict, compare, describe_few_launches, is_negligible
from ortune.measure.limits import is_overloaded, keeps_and_serves_all, kept_all, name_limits
from ortune.measure.paired_run import BASELINE_POSITION, PairedRun
from ortune.record.schema import FrontPoint
from ortune.tuning.board import Board
from ortune.tuning.confirmation import RoundReports, measure_launches, start_run
from ortune.tuning.pareto import TIE, are_equal, find_front, find_knee
from ortune.tuning.plan import MAX_FRONT_CANDIDATES
from ortune.tuning.pruning import Pruning, keep_earlier_stages
from ortune.tuning.results import CandidateResult
from ortune.workload import Goal, Objective

RACING_TIE = 0.03
"""Log-ratio up to which candidates count as equal in an objective after racing."""


def confirm_front(board: Board, chosen: Sequence[CandidateResult]) -> tuple[PairedRun, Comparison]:
    """Compare candidates with the baseline."""
    plan = plan_front(board, len(chosen))
    run = start_run(board, chosen)
    reports = RoundReports(board, run, plan, None)

    def is_done(run: PairedRun) -> bool:
        reports.best = next((result for result in board.results.rank() if result in chosen), None)
        reports.finish_launch()
        return False

    with board.time_stage("confirmation"):
        reports.report()
        measure_launches(board, run, chosen, plan, is_done, reports.report)
    run = run.in_one_regime()
    return run, evaluate(run, board.goal, board.runner)


def plan_front(board: Board, n_candidates: int) -> RunPlan:
    """Return the size of a confirmation of several candidates that fits the time that is left.

    The plan of a search assumes the maximum number of candidates.
    """
    plan = board.plan.confirmation
    if plan.in_turn:
        return plan
    step = fewest_rounds(plan.block)
    rounds = max(step, plan.rounds * (1 + MAX_FRONT_CANDIDATES) // (1 + n_candidates) // step * step)
    plan = msgspec.structs.replace(plan, rounds=rounds)
    left_s = board.end_s - board.now_s()
    while plan.rounds > step and paired_run_s(plan, board.pace, board.plan.launch_s, 1 + n_candidates) > left_s:
        plan = msgspec.structs.replace(plan, rounds=plan.rounds - step)
    return plan


def choose_for_front(board: Board, ranked: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return the best candidates, without those whose outputs turn out to be wrong."""
    n_finalists = min(MAX_FRONT_CANDIDATES, board.plan.max_live - 1)
    left, checked = list(ranked), set[str]()
    while True:
        chosen = choose_finalists(left, n_finalists)
        new = [result for result in chosen if result.candidate.config.key not in checked]
        wrong = [result for result in new if not board.check_finalist(result, n_finalists)]
        if not wrong:
            return chosen
        checked |= {result.candidate.config.key for result in new}
        left = [result for result in left if result not in wrong]


def prune_front(board: Board, front: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return candidates without the settings that contribute to no objective, each once.

    Args:
        board: The search.
        front: Candidates of which each may be better than the others in some objective.
    """
    pruned = []
    with board.time_stage("pruning"), keep_earlier_stages(board):
        end_s = board.now_s() + board.plan.pruning_s
        # The plan assumes the maximum number of candidates.
        latest_s = board.end_s - board.plan.confirmation_s * (1 + len(front)) / (1 + MAX_FRONT_CANDIDATES)
        for n_left, result in zip(range(len(front), 0, -1), front, strict=True):
            now_s = board.now_s()
            pruning = Pruning(board, result, now_s + (end_s - now_s) / n_left, now_s + (latest_s - now_s) / n_left)
            if len(result.candidate.chosen) > 1:
                pruning.run()
            simpler = pruning.best
            is_right = simpler is result or board.check_finalist(simpler, len(front))
            pruned.append(simpler if is_right else result)
    return list(dict.fromkeys(pruned))


def choose_finalists(ranked: Sequence[CandidateResult], n: int) -> list[CandidateResult]:
    """Return up to `n` candidates that stay within the limits: the Pareto front with its ends, then the next front.

    Of candidates that racing cannot tell apart, there is one.
    """
    known = [result for result in ranked if result.log_ratios is not None]
    known = [result for result in known if not result.excess] or known[:1]
    chosen: list[CandidateResult] = []
    while known and len(chosen) < n:
        layer = [known[position] for position in find_front([result.log_ratios or () for result in known])]
        layer = leave_out_equal(layer)
        n_left = n - len(chosen)
        if len(layer) > n_left:
            # Spread evenly along the front, with both ends.
            layer = [layer[round(step * (len(layer) - 1) / max(n_left - 1, 1))] for step in range(n_left)]
        chosen = leave_out_equal([*chosen, *layer])
        known = [result for result in known if leave_out_equal([*chosen, result]) != chosen]
    return chosen


def leave_out_equal(results: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return candidates without those that are about as good in all objectives as one before them, or the same."""
    kept: list[CandidateResult] = []
    for result in results:
        own = result.log_ratios or ()
        if not any(are_equal(own, other.log_ratios or (), RACING_TIE) for other in kept):
            kept.append(result)
    return kept


def judge_front(
    goal: Goal, run: PairedRun, comparison: Comparison, called: str
) -> tuple[Verdict, str, tuple[FrontPoint, ...]]:
    """Return the verdict, the reason, and the points of the Pareto front in order of the first objective.

    Args:
        goal: What the search is for.
        run: The rounds of one regime.
        comparison: Their evaluation.
        called: What a candidate is called that was confirmed alone.
    """
    rows = comparison.rows
    if len(run.failures) == len(rows) - 1:
        return "inconclusive", "all candidates failed in confirmation", ()
    if len(run.launches) < LAUNCHES_OF_A_PROOF:
        return "inconclusive", f"{describe_few_launches(len(run.launches))}: use a larger budget or a quieter host", ()
    positions = [position for position in range(len(rows)) if position not in run.failures]
    summaries = {position: summary for position in positions if (summary := rows[position].summary)}
    kept = {position: keeps_and_serves_all(summaries[position], rows[position].limits) for position in positions}
    proven = [BASELINE_POSITION, *find_better(goal, run, positions)]
    if all(is_overloaded(summary) for summary in summaries.values()):
        reason = "requests arrive faster than the baseline or any candidate in confirmation can serve them"
        return "overload", reason, make_front(goal, run, comparison, proven, recommend=False)
    if all(answer == "no" for answer in kept.values()):
        serves = " and serves all requests" if goal.load.rate_per_s else ""
        reason = f"no candidate in confirmation stays within all limits{serves}"
        return "infeasible", reason, make_front(goal, run, comparison, proven, recommend=False)
    keeping = [position for position in positions if kept[position] == "yes"]
    n_calls = min(summary.n_calls for summary in summaries.values())
    lacking = [
        name
        for name in goal.objectives
        if not all(rests_on_enough_calls(run, position, name) for position in summaries if position)
    ]
    if lacking or not keeping:
        doubtful = (rows[position].limits for position in positions if kept[position] == "unsure")
        reason = (
            f"{lacking[0]} needs {required_calls(lacking[0])} calls of each side, the confirmation had {n_calls}"
            if lacking
            else f"it is uncertain whether any config {name_doubt(doubtful)}"
        )
        front = make_front(goal, run, comparison, proven, recommend=False)
        return "inconclusive", f"{reason}: use a larger budget", front
    if kept[BASELINE_POSITION] == "no":
        # Any config that stays within the limits is better than one that does not.
        exceeds = kept_all(rows[BASELINE_POSITION].limits) == "no"
        reason = (
            "the baseline exceeds a limit, and these configs stay within all limits"
            if exceeds
            else "the baseline cannot serve all requests, and these configs can"
        )
        return "trade_off", reason, make_front(goal, run, comparison, keeping, recommend=True)
    offered = [position for position in proven if kept[position] == "yes" or position == BASELINE_POSITION]
    if kept[BASELINE_POSITION] == "unsure":
        reason = f"it is uncertain whether the baseline {name_doubt([rows[BASELINE_POSITION].limits])}"
        if offered == [BASELINE_POSITION]:
            front = make_front(goal, run, comparison, keeping, recommend=False)
            return "inconclusive", f"{reason}: use a larger budget", front
        # Those that surely do are better in something.
        front = make_front(goal, run, comparison, offered[1:], recommend=True)
        return "trade_off", f"{reason}; {describe_front(front)}", front
    if offered == [BASELINE_POSITION]:
        if unsure := [position for position in proven if kept[position] == "unsure"]:
            doubted = name_limits(rows[unsure[0]].limits, "unsure")
            doubt = f"stays within {doubted}" if doubted else "can serve all requests"
            front = make_front(goal, run, comparison, [BASELINE_POSITION, *unsure], recommend=False)
            reason = f"it is uncertain whether a config that is better than the baseline {doubt}"
            return "inconclusive", f"{reason}: use a larger budget", front
        front = make_front(goal, run, comparison, offered, recommend=True)
        if possible := find_possible_gains(goal, run, [position for position in positions if kept[position] != "no"]):
            reason = f"a relevant gain in {' or '.join(possible)} is neither proven nor excluded"
            return "inconclusive", f"{reason}: use a larger budget or a quieter host", front
        confirmed = f"{called} is not" if len(rows) == 2 else "none of the confirmed ones is"
        return "default_is_best", f"{confirmed} significantly better in any objective", front
    front = make_front(goal, run, comparison, offered, recommend=True)
    return "trade_off", describe_front(front), front


def describe_front(front: Sequence[FrontPoint]) -> str:
    """Return how the configs of a front compare, as a clause. They are better than the baseline in some objective."""
    if len(front) > 1:
        return "none of these configs is better than another in all objectives"
    worse = [name for name, speedup in front[0].speedups.items() if -math.log(speedup.estimate) > TIE]
    compared = f"worse in {' and '.join(worse)}" if worse else "worse in none"
    return f"this config is better than the baseline in at least one objective, and {compared}"


def name_doubt(limits: Iterable[tuple[LimitCheck, ...]]) -> str:
    """Return what is uncertain of sides that may not do what is required, given their limits."""
    within = all(kept_all(checks) == "yes" for checks in limits)
    return "can serve all requests" if within else "stays within the limits"


def name_few_calls(goal: Goal, run: PairedRun) -> str:
    """Return the percentiles that rest on fewer calls than they need, with the number; empty if there are none."""
    n_calls = min(count_calls(run.blocks(position)) for position in run.loaded if position not in run.failures)
    lacking = [name for name in goal.objectives if is_pooled(name) and n_calls < required_calls(name)]
    return "; ".join(describe_lack(name, required_calls(name), n_calls) for name in lacking)


def find_better(goal: Goal, run: PairedRun, positions: Sequence[int]) -> list[int]:
    """Return the positions of candidates that are significantly better than the baseline in at least one objective.

    All comparisons together have the usual confidence. Figures without noise, such as memory, must differ by a minimum.
    """
    confidence = share_error((len(positions) - 1) * len(goal.objectives))
    better = []
    for position in positions:
        if position == BASELINE_POSITION:
            continue
        speedups = [compute_speedup(run, position, name, confidence=confidence) for name in goal.objectives]
        if any(speedup and compare(speedup, 1) == "above" and speedup.estimate > 1 + TIE for speedup in speedups):
            better.append(position)
    return better


def find_possible_gains(goal: Goal, run: PairedRun, positions: Sequence[int]) -> list[Objective]:
    """Return the objectives in which a candidate may gain more than is negligible.

    The usual confidence of each interval suffices here: that none gains is claimed only if all intervals say so.
    """
    return [
        name
        for name in goal.objectives
        if any(
            (speedup := compute_speedup(run, position, name)) is None or not is_negligible(speedup)
            for position in positions
            if position != BASELINE_POSITION
        )
    ]


def rests_on_enough_calls(run: PairedRun, position: int, name: Objective) -> bool:
    """Return whether there are enough calls for a percentile, or the sides differ so much that fewer suffice."""
    if has_enough_calls(run, position, name):
        return True
    speedup = compute_speedup(run, position, name)
    return speedup is not None and compare(speedup, 1) != "unclear"


def make_front(
    goal: Goal, run: PairedRun, comparison: Comparison, positions: Sequence[int], *, recommend: bool
) -> tuple[FrontPoint, ...]:
    """Return the Pareto front of some sides, in order of the first objective.

    Args:
        goal: What the search is for.
        run: The rounds of one regime.
        comparison: Their evaluation.
        positions: The sides.
        recommend: Whether the knee of the front is recommended.
    """
    # The reader chooses among all of them, also among those that are not on the front.
    n_compared = len(comparison.rows) - 1 - len(run.failures)
    confidence = share_error(n_compared * len(goal.objectives))
    speedups: dict[int, dict[str, Speedup]] = {BASELINE_POSITION: {}}
    for position in positions:
        if position != BASELINE_POSITION:
            found = {name: compute_speedup(run, position, name, confidence=confidence) for name in goal.objectives}
            speedups[position] = {name: speedup for name, speedup in found.items() if speedup}

    def vector(position: int) -> tuple[float, ...]:
        return tuple(-math.log(speedups[position][name].estimate) if position else 0.0 for name in goal.objectives)

    # Among equal candidates, keep the one with the fewest settings.
    simplest = sorted(positions, key=lambda position: len(comparison.rows[position].config.settings))
    front = [simplest[place] for place in find_front([vector(position) for position in simplest])]
    knee = front[find_knee([vector(position) for position in front])] if recommend else None
    return tuple(
        FrontPoint(
            summary=summary,
            speedups=speedups[position],
            limits=comparison.rows[position].limits,
            recommended=position == knee,
        )
        for position in front
        if (summary := comparison.rows[position].summary)
    )
