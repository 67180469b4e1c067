"""The thread pool that fits the host: compared with the default before the search, where the default does not fit.

A CPU quota, a cpuset or taskset leave ONNX Runtime's own pool too large. What then fits is known before anything is
measured. Its comparison with the default is therefore not biased by a choice, and it is an answer in itself.
"""

from __future__ import annotations

import math

from scipy.special import ndtri

from ortune.compare.block_plan import plan_paired_run, shortest_run_s
from ortune.compare.comparison import Comparison, Speedup, describe_ratio
from ortune.compare.evaluate import compute_speedup, evaluate
from ortune.compare.paired_run import PairedRun
from ortune.tuning.confirmation import (
    FINALIST_POSITION,
    LONGEST_CONFIRMATION,
    RoundReports,
    make_run,
    measure_launches,
)
from ortune.tuning.plan import shortest_confirmation_s, with_confirmation
from ortune.tuning.results import CandidateResult
from ortune.tuning.state import SearchState
from ortune.tuning.verdict import NEGLIGIBLE_GAIN, SECOND_CONFIDENCE, judge_confirmation
from ortune.workload import Goal

FITTING_S = 10.0
FITTING_SHARE = 0.7
"""Time of the comparison of a thread pool that fits the host, in seconds, which is longer if launches or blocks are
long; and its largest share of the time that is left. With less, the pool is only the first candidate of screening."""


def compare_fitting(state: SearchState) -> tuple[PairedRun, CandidateResult] | None:
    """Compare the thread pool that fits this host with the baseline, where ONNX Runtime's own pool does not fit.

    This candidate is known before anything is measured, so that the comparison is not biased by a choice.

    Returns:
        The run and the candidate; None if the default pool fits, or there is not enough time.
    """
    goal, plan, candidate = state.goal, state.plan, state.space.fitting
    if candidate is None or len(goal.objectives) > 1 or state.exchange.is_shared:
        return None
    time_s = max(FITTING_S, shortest_run_s(state.pace, plan.launch_s))
    if time_s > FITTING_SHARE * plan.left_s:
        return None
    result = state.results.get_or_add(candidate)
    run = make_run(state, [result])
    size = plan_paired_run(time_s, goal, state.pace, plan.launch_s, 2)
    reports = RoundReports(state, run, size, result, stage="fitting")

    def is_done(run: PairedRun) -> bool:
        reports.speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, goal.objective)
        reports.finish_launch()
        return False

    with state.time_stage("fitting"):
        reports.report()
        end_s = state.now_s() + LONGEST_CONFIRMATION * time_s
        measure_launches(state, run, [result], size, is_done, reports.report, end_s=end_s)
    return (run, result) if run.launches and not result.failure else None


def report_fitting(state: SearchState, run: PairedRun, result: CandidateResult) -> None:
    """Report how the pool compares. If it is better, leave only what is missing of its confirmation."""
    speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, state.goal.objective)
    if speedup is None:
        return
    label, ratio = result.candidate.label, describe_ratio(speedup)
    state.add_note(f"{label} against the default: {ratio}. The search goes on from there.")
    if speedup.low > 1:
        shortest_s = shortest_confirmation_s(state.plan, state.goal, state.pace)
        time_s = max(state.plan.confirmation_s - state.stages[-1].wall_s, shortest_s)
        state.replan(with_confirmation(state.plan, state.goal, state.pace, time_s))


def put_first(ranked: list[CandidateResult], run: PairedRun, result: CandidateResult) -> list[CandidateResult]:
    """Return the finalists with the pool first, unless the first one seems to be better by more than a standard error.

    The first one is the luckiest of a race, and the pool was not chosen.

    Args:
        ranked: The finalists in their order.
        run: The run in which the pool was compared with the baseline.
        result: The pool.
    """
    speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, result.goal.objective)
    if speedup is None or result not in ranked or speedup.estimate < 1 + NEGLIGIBLE_GAIN:
        return ranked
    gain, lead = math.log(speedup.estimate), -(ranked[0].log_ratio or 0.0)
    if lead > gain + find_standard_error(speedup) or result.excess > ranked[0].excess:
        return ranked
    return [result, *(each for each in ranked if each is not result)]


def find_better_fitting(
    state: SearchState, run: PairedRun, result: CandidateResult, confirmed: Comparison | None
) -> Comparison | None:
    """Return the comparison of the pool if it is the answer; None if another candidate is, or if it is not proven.

    Args:
        state: The search.
        run: The run in which the pool was compared with the baseline.
        result: The pool.
        confirmed: The confirmation of another candidate, or None.
    """
    if result.failure or not state.check_finalist(result):
        return None
    comparison = evaluate(run.in_one_regime(), state.goal, state.runner, confidence=SECOND_CONFIDENCE)
    own, other = (find_proven_speedup(state.goal, each) for each in (comparison, confirmed))
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
