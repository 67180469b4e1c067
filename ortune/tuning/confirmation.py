"""Confirmation: the best candidates and the baseline are launched again and compared in a paired run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortune.compare.block_plan import RunPlan
from ortune.compare.block_runner import BASELINE_NAME
from ortune.compare.comparison import Comparison
from ortune.compare.evaluate import compute_speedup, evaluate
from ortune.compare.paired_run import PairedRun, Side
from ortune.tuning.results import CandidateResult
from ortune.tuning.state import SearchState

FINALIST_POSITION = 1
"""Position of the candidate in the confirmation of a single candidate."""

LONGEST_CONFIRMATION = 1.2
"""Maximum time of the confirmation as a multiple of its planned time, because noise causes repeated blocks."""


def confirm(state: SearchState, finalist: CandidateResult) -> Comparison:
    """Compare one candidate with the baseline."""
    goal, plan = state.goal, state.plan.confirmation

    def report(run: PairedRun) -> None:
        speedup = compute_speedup(run.in_one_regime(), FINALIST_POSITION, goal.objective)
        state.report("confirmation", run.n_rounds, plan.n_rounds, finalist, speedup)

    run = measure_finalists(state, [finalist], plan, report)
    return evaluate(run.in_one_regime(), goal, state.runner)


def measure_finalists(
    state: SearchState, finalists: Sequence[CandidateResult], plan: RunPlan, report: Callable[[PairedRun], None]
) -> PairedRun:
    """Measure a paired run of the baseline and some candidates, and add its rounds to their results.

    Args:
        state: The search.
        finalists: The candidates.
        plan: Size of the run.
        report: Called after each launch.
    """
    start_s = state.now_s()
    for result in finalists:
        result.enter("confirmation")
    candidates = [result.candidate for result in finalists]
    run = PairedRun(
        [
            Side(name=BASELINE_NAME, config=state.space.base),
            *(Side(name=candidate.label, config=candidate.config) for candidate in candidates),
        ],
        state.goal.load,
        seed=state.seed,
    )

    def add_rounds() -> bool:
        for each in run.launches[-1]:
            state.results.add_round([state.baseline, *finalists], each, launch=len(run.launches) - 1)
        report(run)
        return False

    with state.time_stage("confirmation"):
        end_s = max(start_s + LONGEST_CONFIRMATION * state.plan.confirmation_s, state.end_s)
        run.measure(state.runner, plan, end_s=end_s, is_done=add_rounds)
    for position, failure in run.failures.items():
        state.reject(finalists[position - 1], failure)
    return run
