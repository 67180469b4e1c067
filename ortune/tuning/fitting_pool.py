"""The thread pool that fits the host: compared with the default before the search, where the default does not fit.

A CPU quota, a cpuset or taskset leave ONNX Runtime's own pool too large. What then fits is known before anything is
measured. Its comparison with the default is therefore not biased by a choice, and it is an answer in itself.
"""

from __future__ import annotations

import math

import msgspec
from scipy.special import ndtri

from ortune.measure.block_plan import plan_late_rounds, shortest_run_s
from ortune.measure.comparison import Comparison, Speedup
from ortune.measure.evaluate import compute_speedup, evaluate
from ortune.measure.interval import format_speedup
from ortune.measure.judge import LAUNCHES_OF_A_PROOF, NEGLIGIBLE_GAIN
from ortune.measure.paired_run import PairedRun
from ortune.measure.stats import SMALLEST_ERROR
from ortune.tuning.board import Board
from ortune.tuning.confirmation import (
    FINALIST_POSITION,
    LONGEST_CONFIRMATION,
    RoundReports,
    make_run,
    measure_launches,
)
from ortune.tuning.plan import RACING_SHARE, SearchPlan, is_simple, shortest_confirmation_s, with_confirmation
from ortune.tuning.results import CandidateResult
from ortune.tuning.verdict import SECOND_CONFIDENCE, judge_confirmation
from ortune.workload import Goal

FITTING_S = 10.0
FITTING_SHARE = 0.7
"""Time of the comparison of a thread pool that fits the host, in seconds, which is longer if launches or blocks are
long; and its largest share of the time that is left. If it needs more, nothing else is measured."""

PROOF_ERRORS = 3.0
LARGEST_PROOF_SHARE = 0.75
"""How many standard errors the gain of a pool should be away from 0 when it is confirmed, and the largest share of the
time that is left that may be for this. Two are a proof, if the estimate stays the same."""


def find_fitting(board: Board) -> CandidateResult | None:
    """Return the thread pool that fits this host and is compared first.

    Returns:
        The pool; None if the default pool fits, and in searches for a Pareto front or with another strategy, which
        begin as other tuners do. Where the speed counts that the host sustains, there is no time for two comparisons.
    """
    candidate = board.space.fitting
    if candidate is None or len(board.goal.objectives) > 1 or board.goal.sustained:
        return None
    return board.results.get_or_add(candidate) if board.strategy == "adaptive" else None


def find_fitting_s(board: Board) -> float:
    """Return how long the comparison of the pool takes, in seconds."""
    return max(FITTING_S, shortest_run_s(board.pace, board.plan.launch_s))


def leaves_no_time(board: Board) -> bool:
    """Return whether the comparison of the pool leaves no time to find a better candidate."""
    return find_fitting_s(board) > FITTING_SHARE * board.plan.left_s


def compare_fitting(board: Board, result: CandidateResult) -> PairedRun | None:
    """Compare the thread pool that fits this host with the baseline.

    This candidate is known before anything is measured, so that the comparison is not biased by a choice.

    Returns:
        The run; None if the pool failed, or nothing was measured.
    """
    goal, plan, time_s = board.goal, board.plan, find_fitting_s(board)
    run = make_run(board, [result])
    size = plan_late_rounds(time_s, goal, board.pace, plan.launch_s, 2, one_at_a_time=plan.one_at_a_time)
    reports = RoundReports(board, run, size, result, stage="fitting")

    def is_done(run: PairedRun) -> bool:
        reports.speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, goal.objective)
        reports.finish_launch()
        return False

    with board.time_stage("fitting"):
        reports.report()
        end_s = board.now_s() + LONGEST_CONFIRMATION * time_s
        measure_launches(board, run, [result], size, is_done, reports.report, end_s=end_s, stage="fitting")
    return run if run.launches and not result.failure else None


def report_fitting(board: Board, run: PairedRun, result: CandidateResult, *, others_follow: bool) -> SearchPlan:
    """Report how the pool compares.

    Returns:
        The plan, with the time that the proof of the pool still needs if it seems to be better.
    """
    speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, board.goal.objective)
    if speedup is None:
        return board.plan
    label, ratio = result.candidate.label, format_speedup(speedup)
    others = " Other candidates follow." if others_follow else ""
    board.add_note(f"{label} against the default: {ratio}.{others}")
    if speedup.estimate <= 1 + NEGLIGIBLE_GAIN:
        return board.plan
    time_s = plan_proof_s(board, speedup)
    plan = with_confirmation(board.plan, board.goal, board.pace, time_s)
    racing_s = min(plan.racing_s, RACING_SHARE * (plan.left_s - time_s))
    return msgspec.structs.replace(plan, proof_s=time_s, racing_s=racing_s)


def plan_proof_s(board: Board, speedup: Speedup) -> float:
    """Return the time in seconds that the pool still needs to be proven, within what is left.

    The width of an interval is inversely proportional to the square root of the time.

    Args:
        board: The search, after the comparison of the pool.
        speedup: What the comparison shows.
    """
    done_s, plan = board.stages[-1].wall_s, board.plan
    if not is_simple(board.goal):
        return plan.confirmation_s
    distance = math.log(speedup.estimate) / max(find_standard_error(speedup), SMALLEST_ERROR)
    if distance == 0:  # the interval has no end
        distance = SMALLEST_ERROR
    needed_s = done_s * ((PROOF_ERRORS / distance) ** 2 - 1)
    least_s, most_s = shortest_confirmation_s(plan, board.goal, board.pace), LARGEST_PROOF_SHARE * plan.left_s
    return max(min(needed_s, most_s), least_s)


def put_first(ranked: list[CandidateResult], run: PairedRun, result: CandidateResult) -> list[CandidateResult]:
    """Return the finalists with the pool first, unless the winner of a race seems to be better by a standard error.

    The winner is the luckiest of the race, and the pool was not chosen. Screening alone has too few launches.

    Args:
        ranked: The finalists in their order.
        run: The run in which the pool was compared with the baseline.
        result: The pool.
    """
    speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, result.goal.objective)
    if speedup is None or result not in ranked or speedup.estimate < 1 + NEGLIGIBLE_GAIN:
        return ranked
    gain, lead = math.log(speedup.estimate), -(ranked[0].log_ratio or 0.0)
    is_behind = ranked[0].stage == "racing" and lead > gain + find_standard_error(speedup)
    if is_behind or result.excess > ranked[0].excess:
        return ranked
    return [result, *(finalist for finalist in ranked if finalist is not result)]


def find_better_fitting(
    board: Board, run: PairedRun, result: CandidateResult, confirmed: Comparison | None
) -> Comparison | None:
    """Return the comparison of the pool if it is the answer; None if another candidate is, or if it is not proven.

    Args:
        board: The search.
        run: The run in which the pool was compared with the baseline.
        result: The pool.
        confirmed: The confirmation of another candidate, or None.
    """
    counted = run.in_one_regime()
    if result.failure or len(counted.launches) < LAUNCHES_OF_A_PROOF or not board.check_finalist(result):
        return None
    comparison = evaluate(counted, board.goal, board.runner, confidence=SECOND_CONFIDENCE)
    own, other = (find_proven_speedup(board.goal, evaluation) for evaluation in (comparison, confirmed))
    if own is None:
        return None
    return None if other is not None and is_clearly_larger(other, own) else comparison


def find_proven_speedup(goal: Goal, comparison: Comparison | None) -> Speedup | None:
    """Return the speedup of a candidate that is proven to be better than the baseline; None if it is not."""
    row = comparison.rows[1] if comparison else None
    if comparison is None or row is None or row.failure or row.speedup is None:
        return None
    verdict, _ = judge_confirmation(goal, comparison)
    return row.speedup if verdict in {"faster", "within_limits"} else None


def is_clearly_larger(speedup: Speedup, other: Speedup) -> bool:
    """Return whether a speedup is larger than another one by more than the standard error of their ratio."""
    return math.log(speedup.estimate / other.estimate) > math.hypot(*map(find_standard_error, (speedup, other)))


def find_standard_error(speedup: Speedup) -> float:
    """Return the standard error of the logarithm of a speedup, from its interval; infinite if that has no end."""
    if speedup.low <= 0:
        return math.inf
    return math.log(speedup.estimate / speedup.low) / float(ndtri((1 + speedup.confidence) / 2))
