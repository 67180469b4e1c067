"""Confirmation: the best candidates and the baseline are launched again and compared in a paired run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ortune.compare.block_plan import MIN_LAUNCHES, RunPlan
from ortune.compare.block_runner import BASELINE_NAME
from ortune.compare.comparison import Comparison, Speedup
from ortune.compare.evaluate import compute_speedup, evaluate
from ortune.compare.interval import DEFAULT_CONFIDENCE
from ortune.compare.limits import kept_all
from ortune.compare.paired_run import PairedRun, Side
from ortune.tuning.results import CandidateResult
from ortune.tuning.state import SearchState
from ortune.tuning.verdict import NEGLIGIBLE_GAIN
from ortune.workload import Goal

FINALIST_POSITION = 1
"""Position of the candidate in the confirmation of a single candidate."""

LONGEST_CONFIRMATION = 1.2
LONGEST_OVERRUN = 0.08
"""Maximum time of the confirmation as a multiple of its planned time, because noise causes repeated blocks, and by how
much of the budget it may exceed the budget."""

INTERIM_CONFIDENCE = 0.99
FINAL_CONFIDENCE = 0.96
"""Confidence with which limits are judged where the confirmation can be extended: at its planned end, and after the
extension. The error probabilities add up to the usual 5 %.

Source: J. L. Haybittle, "Repeated assessment of results in clinical trials of cancer treatment", British Journal of
Radiology 44 (1971): strict interim analyses hardly weaken the final one."""


def confirm(state: SearchState, finalist: CandidateResult) -> Comparison:
    """Compare one candidate with the baseline.

    While it is uncertain whether a candidate that seems better stays within the limits, the rest of the budget is used.
    Without limits, the confirmation ends early if it excludes a relevant gain. It never ends early because it shows
    one, which would make false claims more likely.
    """
    goal, plan = state.goal, state.plan.confirmation

    def report(run: PairedRun) -> bool:
        selected = run.in_one_regime()
        speedup = compute_speedup(selected, FINALIST_POSITION, goal.objective)
        report_rounds(state, run, plan, finalist, speedup)
        return not goal.limits and len(run.launches) >= MIN_LAUNCHES and excludes_gain(selected, goal)

    def judge(confidence: float) -> Comparison:
        return evaluate(run.in_one_regime(), goal, state.runner, limit_confidence=confidence)

    run = start_run(state, [finalist])
    start_s = state.now_s()
    rest = msgspec.structs.replace(plan, launches=None)
    with state.time_stage("confirmation"):
        report_rounds(state, run, plan, finalist)
        measure_launches(state, run, [finalist], plan, report)
        launch_s = (state.now_s() - start_s) / max(len(run.launches), 1)
        if not goal.limits:
            end_s = min(start_s + state.longest_confirmation_s, state.end_s) - launch_s
            is_open = state.is_unpromising and not excludes_gain(run.in_one_regime(), goal)
            if is_open and state.now_s() < end_s:
                measure_launches(state, run, [finalist], rest, report, end_s=end_s)
            return judge(DEFAULT_CONFIDENCE)
        end_s = state.end_s - launch_s
        if state.now_s() > end_s:
            return judge(DEFAULT_CONFIDENCE)
        comparison = judge(INTERIM_CONFIDENCE)
        if not is_undecided(comparison):
            return comparison
        measure_launches(state, run, [finalist], rest, report, end_s=end_s)
        return judge(FINAL_CONFIDENCE)


def report_rounds(
    state: SearchState,
    run: PairedRun,
    plan: RunPlan,
    best: CandidateResult | None,
    speedup: Speedup | None = None,
) -> None:
    """Report the progress of a confirmation."""
    now_s = state.now_s()
    n_done, n_planned = run.n_rounds, max(plan.n_rounds, run.n_rounds)
    left_s = state.plan.confirmation_s
    if n_done:
        left_s = (now_s - state.stage_start_s) * (n_planned - n_done) / n_done
    state.report("confirmation", n_done, n_planned, best, speedup, end_s=now_s + left_s)


def excludes_gain(run: PairedRun, goal: Goal) -> bool:
    """Return whether the candidate is unlikely to be better by more than is negligible."""
    speedup = compute_speedup(run, FINALIST_POSITION, goal.objective, confidence=INTERIM_CONFIDENCE)
    return speedup is not None and speedup.high < 1 + NEGLIGIBLE_GAIN


def is_undecided(comparison: Comparison) -> bool:
    """Return whether the limits alone keep the candidate from being recommended, and more launches may decide them."""
    baseline, candidate = comparison.rows
    if candidate.speedup is None or kept_all(candidate.limits) != "unsure":
        return False
    return candidate.speedup.low > 1 or kept_all(baseline.limits) == "no"


def start_run(state: SearchState, finalists: Sequence[CandidateResult]) -> PairedRun:
    """Return a paired run of the baseline and some candidates, which are in confirmation from now on."""
    for result in finalists:
        result.enter("confirmation")
    candidates = [result.candidate for result in finalists]
    return PairedRun(
        [
            Side(name=BASELINE_NAME, config=state.space.base),
            *(Side(name=candidate.label, config=candidate.config) for candidate in candidates),
        ],
        state.goal.load,
        seed=state.seed,
    )


def measure_launches(
    state: SearchState,
    run: PairedRun,
    finalists: Sequence[CandidateResult],
    plan: RunPlan,
    report: Callable[[PairedRun], bool],
    *,
    end_s: float | None = None,
) -> None:
    """Measure launches of a paired run, and add their rounds to the results of its candidates.

    Args:
        state: The search.
        run: The run.
        finalists: Its candidates.
        plan: How many launches, and of what size.
        report: Called after each launch. The run ends when it returns True.
        end_s: Time on the runner's clock after which no launch begins; None for the planned time with a reserve.
    """
    if end_s is None:
        end_s = max(state.now_s() + LONGEST_CONFIRMATION * state.plan.confirmation_s, state.end_s)

    def add_rounds() -> bool:
        for each in run.launches[-1]:
            state.results.add_round([state.baseline, *finalists], each, launch=len(run.launches) - 1)
        return report(run)

    latest_s = state.end_s + LONGEST_OVERRUN * state.plan.left_s
    if not state.plan.can_prove:
        end_s = min(end_s, latest_s)
    try:
        run.measure(state.runner, plan, end_s=end_s, latest_s=latest_s, is_done=add_rounds)
    except BaseException:
        # What racing measured stays where the first launch was interrupted.
        for result in finalists:
            result.return_if_empty()
        raise
    for position, failure in run.failures.items():
        state.reject(finalists[position - 1], failure)
