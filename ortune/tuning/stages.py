"""Runs a search from calibration to verdict: screening, racing, confirmation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import optuna

from ortune.errors import MeasureError, OrtuneError, UsageError, explain_lacks
from ortune.knobs import Config, SearchSpace
from ortune.knobs.providers import find_provider
from ortune.measure.comparison import Row
from ortune.measure.figures import is_pooled
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.limits import is_overloaded, kept_all
from ortune.measure.open import OpenComparison
from ortune.measure.providers import allow_for_providers
from ortune.requests import StrategyName
from ortune.storage import SharedRace, SharedResult
from ortune.tuning.conclude import Confirmed, conclude, find_compared
from ortune.tuning.confirmation import confirm
from ortune.tuning.exchange import Exchange
from ortune.tuning.fitness import check_fitness
from ortune.tuning.fitting import (
    compare_fitting,
    find_better_fitting,
    find_fitting,
    leaves_no_time,
    put_first,
    report_fitting,
)
from ortune.tuning.front import choose_for_front, confirm_front
from ortune.tuning.outcome import Observe, Outcome
from ortune.tuning.plan import (
    LONGEST_RACING,
    RACING_SHARE,
    Plan,
    is_simple,
    make_plan,
    resize_confirmation,
    shortest_confirmation_s,
    spread_rounds,
    usual_budget_s,
    warn_of_small_budget,
    with_confirmation,
)
from ortune.tuning.racing import MIN_LAUNCHES, STANDARD_ERRORS, USUAL_LUCK, rank_finalists, run_racing, take_part
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import make_sampler
from ortune.tuning.screening import Screening
from ortune.tuning.state import SearchState
from ortune.tuning.study import open_study
from ortune.tuning.verdict import NEGLIGIBLE_GAIN, SECOND_CONFIDENCE
from ortune.workload import FIGURES, Goal
from ortune.workload.goal import AT_TWO_SPEEDS

QUICK_SHARE = 0.08
"""Share of the budget for a confirmation that probably shows no gain. It takes longer while it is undecided."""

MIN_CONFIRMATION = 0.5
"""Share of the planned time that must be left for another confirmation."""

PROOF_PATIENCE = 3.0
"""Longest time in which another host repeats a confirmation, relative to the planned time. A busy host takes longer
for the same number of launches, and with fewer of them, it would prove nothing."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a search.

    Attributes:
        budget_s: Wall time from start to verdict; None for what the model and the objective need.
        n_trials: Candidates to screen at most, or None.
        strategy: The order in which candidates are screened.
        hints: Configs to screen early: the best of earlier searches, and the suggestion.
        study_path: File for Optuna's study, or None to keep it in memory.
        study_id: Identifier of the search, which the study gets.
        replaced_study_id: Identifier of the search whose study may be replaced; empty if there is none.
        exchange: Exchanges measurements with other nodes; None for a search on this host only.
    """

    budget_s: float | None = None
    n_trials: int | None = None
    strategy: StrategyName = "adaptive"
    hints: tuple[Config, ...] = ()
    study_path: Path | None = None
    study_id: str = ""
    replaced_study_id: str = ""
    exchange: Exchange | None = None


def run_search(
    space: SearchSpace,
    opened: OpenComparison,
    settings: SearchSettings,
    observe: Observe = lambda progress: None,
) -> Outcome:
    """Find the best candidate and prove that it is better than the baseline, or find that none is.

    If the user interrupts the search, or it cannot go on, return the results so far.

    Args:
        space: What may be tried.
        opened: The comparison, whose baseline is that of the space.
        settings: Settings of the search.
        observe: Called with the progress, between blocks.

    Raises:
        UsageError: The study's file cannot be used.
    """
    opened = allow_for_providers(opened, space.base, space.providers)
    goal, runner, calibration = opened.goal, opened.runner, opened.calibration
    seed = opened.seed
    if settings.exchange:
        # The same command runs on every node, and each proposes other candidates.
        seed = settings.exchange.draw_seed(seed)
        runner.rng = np.random.default_rng(seed)
    study = open_study(
        settings.study_path,
        make_sampler(settings.strategy, space, seed),
        len(goal.objectives),
        search_id=settings.study_id,
        replaced_id=settings.replaced_study_id,
    )
    budget_s = settings.budget_s or usual_budget_s(goal, calibration.pace, calibration.launch_s)
    end_s = opened.start_s + budget_s
    plan = plan_search(space, opened, settings, end_s)
    state = SearchState(
        opened,
        space=space,
        plan=plan,
        end_s=end_s,
        observe=observe,
        n_trials=settings.n_trials,
        strategy=settings.strategy,
        hints=settings.hints,
        exchange=settings.exchange,
    )
    if goal.why == AT_TWO_SPEEDS:
        state.add_note(f"goal: {FIGURES[goal.objective].title}: {goal.why}")
    if warning := warn_of_small_budget(goal, plan, calibration.pace):
        state.add_note(warning)
    confirmed = Confirmed()
    interrupted, fault = "", cast("OrtuneError | None", None)
    try:
        with explain_lacks():
            run_stages(state, study, opened, settings, confirmed)
            check_failures(state)
    except KeyboardInterrupt:
        interrupted = "the search was interrupted before anything was proven"
    except optuna.exceptions.StorageInternalError as error:
        fault = UsageError(f"{settings.study_path}: cannot be written: {error}.", option="study")
        interrupted = fault.message
    except OrtuneError as error:
        interrupted, fault = error.message, error
    compared = find_compared(state, confirmed, deterministic=opened.deterministic)
    outcome = conclude(state, confirmed, interrupted, budget_s=budget_s, compared=compared)
    return msgspec.structs.replace(outcome, fault=fault)


def plan_search(space: SearchSpace, opened: OpenComparison, settings: SearchSettings, end_s: float) -> Plan:
    """Return how the time that is left until `end_s`, on the runner's clock, is split between the stages."""
    goal, runner, calibration = opened.goal, opened.runner, opened.calibration
    left_s = end_s - runner.now_s()
    # On several hosts, all of a large budget but the usual one is for screening, which they share.
    usual_s = usual_budget_s(goal, calibration.pace, calibration.launch_s) if settings.exchange else left_s
    plan = make_plan(
        goal,
        calibration,
        left_s=min(left_s, usual_s),
        free_bytes=opened.free_bytes,
        one_at_a_time=runner.one_at_a_time,
    )
    plan = msgspec.structs.replace(plan, screening_s=plan.screening_s + max(left_s - usual_s, 0.0))
    if any(find_provider(name).memory_unknown for name in space.providers):
        plan = msgspec.structs.replace(plan, max_live=2)  # the baseline, and one that may need this memory
    if settings.strategy == "exhaustive":
        plan = spread_rounds(plan, len(space.candidates) - 1)
    return plan


def run_stages(
    state: SearchState,
    study: optuna.Study,
    opened: OpenComparison,
    settings: SearchSettings,
    confirmed: Confirmed,
) -> None:
    """Run screening, racing and confirmation. Before that, a thread pool that fits the host is compared, if any does.

    On several hosts, one of them runs the last two. The others take part in its race, and repeat the confirmation.
    """
    exchange = state.exchange
    if exchange.is_shared:
        join(state)
    fitting = find_fitting(state)
    if fitting is not None and leaves_no_time(state):
        state.replan(with_confirmation(state.plan, state.goal, state.pace, state.plan.left_s))
        confirm_ranked(state, opened, confirmed, [fitting])
        return
    if fitting is not None and (run := compare_fitting(state, fitting)) is not None:
        confirmed.fitting = run, fitting
        state.replan(plan_search(state.space, opened, settings, state.end_s))
        # Launches may take longer than the first one did, above all under a quota.
        launch_s = state.stages[-1].wall_s / len(run.launches)
        is_over = state.now_s() + launch_s > state.end_s
        report_fitting(state, run, fitting, others_follow=not is_over)
        if is_over:
            confirm_ranked(state, opened, confirmed, [fitting])
            return
    screening = Screening(state, study)
    screening.run()
    if exchange.is_shared:
        result = exchange.wait_for_result(
            lambda note: note_wait(state, note), lambda race: help_race(state, screening, race)
        )
        if result is not None:
            confirm_ranked(state, opened, confirmed, find_result(state, result))
            return
        screening.complete()
        end_s = state.now_s() + state.plan.racing_s + state.plan.confirmation_s
        state.end_s = max(min(state.end_s, end_s + (LONGEST_RACING - 1) * state.plan.racing_s), end_s)
    if len(state.results.rank()) > 1 and not state.is_unpromising:
        exchange.enter("racing")
        run_racing(state, find_racing_s(state))
    exchange.enter("confirmation")
    ranked = rank_finalists(state)
    confirm_ranked(state, opened, confirmed, put_first(ranked, *confirmed.fitting) if confirmed.fitting else ranked)
    if confirmed.fitting and confirmed.fitting[1] not in confirmed.finalists:
        proven = find_better_fitting(state, *confirmed.fitting, confirmed.comparison)
        if proven:
            confirmed.comparison, confirmed.drift = proven, None
            confirmed.finalists.append(confirmed.fitting[1])


def join(state: SearchState) -> None:
    """Take part in a search on several hosts.

    Raises:
        MeasureError: This host is not fit to.
        StorageError: The storage does not answer.
    """
    fitness = check_fitness(state)
    launch_s = state.plan.confirmation_s / max(state.plan.confirmation.launches or 1, 1)
    state.exchange.join(
        state.space.base,
        fitness.rounds,
        sigma=fitness.sigma,
        bias=fitness.bias,
        unfit=fitness.unfit,
        silent_s=2 * launch_s,
    )
    state.planned_s = state.end_s - state.now_s()


def help_race(state: SearchState, screening: Screening, race: SharedRace) -> bool:
    """Take part in another node's race. Return False if this node cannot, or not again."""
    if not all(state.results.find(config.key) for config in race.configs):
        screening.complete()  # another node measured them
    return take_part(state, race)


def note_wait(state: SearchState, note: str) -> None:
    """Report what a search on several hosts waits for."""
    state.add_note(note)
    ranked = state.results.rank()
    then_s = state.plan.racing_s + state.plan.confirmation_s
    best = ranked[0] if ranked else None
    n = len(state.results) - 1
    state.report("screening", n, len(state.candidates) - 1, best, end_s=state.now_s(), then_s=then_s)


def find_result(state: SearchState, shared: SharedResult) -> list[CandidateResult]:
    """Return the candidates that another node confirmed, to confirm them here. There may be none.

    Raises:
        MeasureError: The search space of this node does not contain one.
    """
    state.exchange.enter("proof")
    state.end_s = state.now_s() + PROOF_PATIENCE * state.plan.confirmation_s
    state.is_unpromising = False
    found = []
    for config in shared.front or (shared.config,):
        if config == state.space.base:
            continue
        candidate = state.results.find(config.key) or state.space.find(config)
        if candidate is None:
            raise MeasureError(
                f"The result of {shared.node} is a config that is not in the search space of this node.",
                "Check that all nodes run the same version of ortune and ONNX Runtime.",
            )
        found.append(state.results.get_or_add(candidate))
    return found


def confirm_ranked(
    state: SearchState, opened: OpenComparison, confirmed: Confirmed, ranked: list[CandidateResult]
) -> None:
    """Confirm the best candidate, and the next one if it is rejected, or if racing was wrong about it.

    Args:
        state: The search.
        opened: Its comparison.
        confirmed: Gets the results.
        ranked: The candidates, in the order in which they are confirmed.
    """
    if len(state.goal.objectives) > 1:
        if chosen := choose_for_front(state, ranked):
            confirmed.run, confirmed.comparison = confirm_front(state, chosen)
            confirmed.finalists = chosen
        return
    confidence = DEFAULT_CONFIDENCE
    for place, finalist in enumerate(ranked):
        if not state.check_finalist(finalist):
            continue
        left_s = QUICK_SHARE * state.plan.left_s if state.is_unpromising else state.end_s - state.now_s()
        gain = 0.0 if state.is_unpromising or finalist.log_ratio is None else -finalist.log_ratio
        state.plan = resize_confirmation(
            state.plan,
            state.goal,
            opened.calibration.pace,
            left_s,
            state.sigmas,
            gain if gain >= math.log1p(NEGLIGIBLE_GAIN) else 0.0,
        )
        racing_log_ratio = finalist.log_ratio if finalist.stage == "racing" else None
        measured = confirmed.fitting[0] if confirmed.fitting and confirmed.fitting[1] is finalist else None
        comparison = confirm(state, finalist, measured, speedup_confidence=confidence)
        confirmed.comparison = comparison
        confirmed.finalists.append(finalist)
        row = comparison.rows[1]
        # Racing sees a lower percentile than confirmation, so the two cannot be compared.
        if row.speedup and racing_log_ratio is not None and not is_pooled(state.goal.objective):
            confirmed.drift = round(math.exp(-racing_log_ratio) / row.speedup.estimate, 4)
        is_rejected = row.failure is not None or (row.speedup is not None and kept_all(row.limits) == "no")
        sides = [each.summary for each in comparison.rows if each.summary]
        # Where the baseline cannot serve the rate either, it is the rate that is too high.
        is_rejected = is_rejected or [is_overloaded(each) for each in sides] == [False, True]
        if state.now_s() + MIN_CONFIRMATION * state.plan.confirmation_s > state.end_s:
            break
        if is_rejected:
            continue
        is_second = confidence != DEFAULT_CONFIDENCE
        if is_second or not is_worthless(state.goal, row) or not is_promising(state, ranked[place + 1 : place + 2]):
            break
        confidence = SECOND_CONFIDENCE


def is_worthless(goal: Goal, row: Row) -> bool:
    """Return whether the confirmation of a candidate excluded that it gains more than is negligible."""
    return not goal.limits and row.speedup is not None and row.speedup.high < 1 + NEGLIGIBLE_GAIN


def is_promising(state: SearchState, results: list[CandidateResult]) -> bool:
    """Return whether a candidate gained clearly more than is negligible in racing; false for none."""
    values = np.array([ratios[0] for result in results for _, ratios, _ in result.launch_log_ratios()])
    if len(values) < MIN_LAUNCHES or results[0].stage != "racing":
        return False
    error = max(state.luck or USUAL_LUCK, float(values.std(ddof=1))) / math.sqrt(len(values))
    return float(values.mean()) + STANDARD_ERRORS * error < -math.log1p(NEGLIGIBLE_GAIN)


def check_failures(state: SearchState) -> None:
    """Check that not all candidates failed in a way that has nothing to do with their settings.

    One candidate that crashes may be to blame itself.

    Raises:
        MeasureError: The process of each candidate ended suddenly, and there were several.
    """
    failures = [result.failure for result in state.results if result is not state.baseline]
    if len(failures) > 1 and all(failure and failure.is_sudden for failure in failures):
        last = failures[-1]
        assert last
        raise MeasureError(
            f"The worker of each of the {len(failures)} candidates ended suddenly, so nothing was compared. The last "
            f"one ({last.title}): {last.message}",
            "Check that nothing ends processes on this host, and that enough memory is free.",
        )


def find_racing_s(state: SearchState) -> float:
    """Return how long racing may take, in seconds.

    If screening ended early, confirmation gets its planned time again. If it borrowed time, and then found something
    promising, racing gets a share of what is left, as a simple confirmation can be shortened.
    """
    plan, left_s = state.plan, state.end_s - state.now_s()
    longest_s = LONGEST_RACING * plan.racing_s
    confirmation_s = min(max(state.confirmation_s, left_s - longest_s), plan.confirmation_s)
    racing_s = min(left_s - confirmation_s, longest_s)
    if is_simple(state.goal):
        shortest_s = max(shortest_confirmation_s(plan, state.goal, state.pace), plan.proof_s)
        racing_s = max(racing_s, min(state.racing_s, RACING_SHARE * left_s, left_s - shortest_s))
    return max(racing_s, 0.0)
