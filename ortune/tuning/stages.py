"""Runs a search from calibration to verdict: screening, racing, confirmation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import optuna

from ortune.compare.comparison import Comparison, Row
from ortune.compare.figures import is_pooled
from ortune.compare.interval import DEFAULT_CONFIDENCE
from ortune.compare.limits import is_overloaded, kept_all, worst_excess
from ortune.compare.open import OpenComparison
from ortune.compare.paired_run import PairedRun
from ortune.compare.providers import allow_for_providers
from ortune.errors import MeasureError, OrtuneError, UsageError, explain_lacks
from ortune.knobs import Config, SearchSpace
from ortune.knobs.providers import find_provider
from ortune.record.schema import BestSoFar, Closest, Compared, Evidence, OutputCheck, Verdict
from ortune.record.trials import Trial, TrialSession
from ortune.requests import StrategyName
from ortune.storage import SharedRace, SharedResult
from ortune.tuning.confirmation import confirm
from ortune.tuning.exchange import Exchange
from ortune.tuning.fitness import check_fitness
from ortune.tuning.front import choose_for_front, confirm_front, judge_front
from ortune.tuning.outcome import Observe, Outcome
from ortune.tuning.plan import (
    LONGEST_RACING,
    RACING_SHARE,
    is_simple,
    make_plan,
    resize_confirmation,
    shortest_confirmation_s,
    spread_rounds,
    usual_budget_s,
    warn_of_small_budget,
)
from ortune.tuning.racing import MIN_LAUNCHES, STANDARD_ERRORS, USUAL_LUCK, bound_log_ratios, run_racing, take_part
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import make_sampler
from ortune.tuning.screening import ALL_PAIRS_TRIED, Screening
from ortune.tuning.state import SearchState
from ortune.tuning.study import open_study
from ortune.tuning.tried import bound_tried_gain
from ortune.tuning.verdict import NEGLIGIBLE_GAIN, TimeSpent, judge_confirmation, judge_untried
from ortune.workload import Goal

AS_GOOD = 0.005
"""Candidates within this log-ratio of the best of racing count as equally good."""

CLEARANCE = 0.03
"""Minimum distance below a limit, as a log-ratio, at which a candidate clearly stays within it."""

QUICK_SHARE = 0.08
"""Share of the budget for a confirmation that probably shows no gain. It takes longer while it is undecided."""

MIN_CONFIRMATION = 0.5
"""Share of the planned time that must be left for another confirmation."""

PROOF_PATIENCE = 3.0
"""Longest time in which another host repeats a confirmation, relative to the planned time. A busy host takes longer
for the same number of launches, and with fewer of them, it would prove nothing."""

SECOND_CONFIDENCE = 0.99
"""Confidence of the speedup of a second candidate, after the confirmation of a first one excluded a gain. It is higher
than usual, because a search that may claim two things is wrong more often than one that may claim one."""


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


class _Confirmed:
    """Results of confirmation so far.

    Attributes:
        comparison: The last comparison, or None.
        run: With several objectives: the run behind it.
        finalists: Candidates that were compared with the baseline.
        drift: The speedup of the last of them in racing divided by that in confirmation, or None.
    """

    def __init__(self) -> None:
        self.comparison: Comparison | None = None
        self.run: PairedRun | None = None
        self.finalists: list[CandidateResult] = []
        self.drift: float | None = None


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
    if warning := warn_of_small_budget(goal, plan, calibration.pace):
        state.add_note(warning)
    confirmed = _Confirmed()
    interrupted, fault = "", cast("OrtuneError | None", None)
    try:
        with explain_lacks():
            run_stages(state, study, opened, confirmed)
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


def run_stages(state: SearchState, study: optuna.Study, opened: OpenComparison, confirmed: _Confirmed) -> None:
    """Run screening, racing and confirmation.

    On several hosts, one of them runs the last two. The others take part in its race, and repeat the confirmation.
    """
    exchange = state.exchange
    if exchange.is_shared:
        join(state)
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
    confirm_ranked(state, opened, confirmed, rank_finalists(state))


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
    state: SearchState, opened: OpenComparison, confirmed: _Confirmed, ranked: list[CandidateResult]
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
        racing_log_ratio = finalist.log_ratio
        comparison = confirm(state, finalist, speedup_confidence=confidence)
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
        shortest_s = shortest_confirmation_s(plan, state.goal, state.pace)
        racing_s = max(racing_s, min(state.racing_s, RACING_SHARE * left_s, left_s - shortest_s))
    return max(racing_s, 0.0)


def rank_finalists(state: SearchState) -> list[CandidateResult]:
    """Return the candidates in the order in which they are confirmed: those that raced first.

    Among candidates that are as good as the best, the one with the fewest settings comes first: a setting without
    effect on this host may be harmful on another.
    """
    ranked = state.results.rank()
    raced = [result for result in ranked if result.stage != "screening"]
    rest = [result for result in ranked if result.stage == "screening"]
    if len(state.goal.objectives) > 1:
        return raced or rest
    if not raced:
        return rest
    # Candidates that clearly stay within the limits come first: a confirmation near a limit may prove nothing. Those
    # that racing dropped come last: what they showed cannot be compared with what others showed in more launches.
    n_launches = max(result.n_launches for result in raced)
    raced.sort(key=lambda result: (result.excess, is_near_limit(result), result.n_launches < n_launches))
    first = raced[0]
    contenders = [
        result
        for result in raced
        if result.excess <= first.excess
        and is_near_limit(result) <= is_near_limit(first)
        and result.n_launches >= first.n_launches
    ]
    bounds = bound_log_ratios(contenders, state.luck or USUAL_LUCK)
    order = {result.number: bound for result, bound in zip(contenders, bounds, strict=True)}
    raced.sort(key=lambda result: order.get(result.number, math.inf))
    alike = [result for result in contenders if order[result.number] <= min(bounds) + AS_GOOD]
    alike.sort(key=lambda result: (len(result.candidate.config.settings), order[result.number], result.number))
    return [*alike, *(result for result in raced if result not in alike), *rest]


def is_near_limit(result: CandidateResult) -> bool:
    """Return whether a candidate is so close to a limit that confirmation may not show whether it stays within it."""
    return max(result.excesses, default=-math.inf) > -CLEARANCE


def find_compared(state: SearchState, confirmed: _Confirmed, *, deterministic: bool) -> Compared:
    """Return what of the outputs was compared: of the candidates in confirmation, or of any if there was none.

    Args:
        state: The search.
        confirmed: Results of confirmation.
        deterministic: Whether the baseline's outputs are the same in each run.
    """
    rows = confirmed.comparison.rows if confirmed.comparison else ()
    sessions = [row.session for row in rows[1:] if row.session]
    if sessions:
        is_compared = all(session.outputs_compared for session in sessions)
    else:
        is_rejected = any(result.failure and result.failure.kind == "wrong_output" for result in state.results)
        is_compared = is_rejected or any(session.outputs_compared for session in state.runner.sessions)
    if not is_compared:
        return "nothing"
    return "values" if deterministic else "shapes"


def conclude(
    state: SearchState, confirmed: _Confirmed, interrupted: str, *, budget_s: float, compared: Compared
) -> Outcome:
    """Return the outcome. It recommends the baseline unless another config is proven to be better.

    Args:
        state: The search.
        confirmed: Results of confirmation.
        interrupted: Why the search was interrupted; empty if it was not.
        budget_s: Its budget.
        compared: What of the outputs was compared.
    """
    comparison = confirmed.comparison
    contended = comparison is not None and comparison.noise.regime == "contended"
    verdict, reason = explain_no_confirmation(state)
    trials = state.results.trials()
    evidence = Evidence(
        verdict="inconclusive" if interrupted else verdict,
        reason=interrupted or reason,
        objective=",".join(state.goal.objectives),
        best_so_far=find_best_so_far(state) if interrupted else None,
        output_check=OutputCheck(
            compared=compared,
            n_rejected=sum(1 for trial in trials if trial.failure and trial.failure.kind == "wrong_output"),
        ),
        noise=msgspec.structs.replace(
            state.runner.describe_noise(contended=contended, drift=confirmed.drift),
            two_speeds=comparison.noise.two_speeds if comparison else None,
        ),
    )
    outcome = Outcome(
        config=state.space.base,
        evidence=evidence,
        interrupted=bool(interrupted),
        budget_s=budget_s,
        trials=trials,
        rounds=tuple(state.results.rounds),
        sessions=list_sessions(comparison) if comparison else (),
        n_candidates=len(state.candidates),
        stages=tuple(state.stages),
        ended_early=state.ended_early,
        unseen_gain=state.unseen_gain,
    )
    if interrupted or comparison is None:
        return outcome
    tried_gain = bound_tried_gain(state.results, state.noise, state.luck, state.is_doubtful)
    outcome = msgspec.structs.replace(outcome, tried_gain=tried_gain)
    # Where the baseline may exceed a limit, a slower config that stays within all of them is an answer, too.
    must_gain = kept_all(comparison.baseline.limits) == "yes"
    others_left = any(
        result not in confirmed.finalists and not result.excess and ((result.log_ratio or 0.0) < 0 or not must_gain)
        for result in state.results.rank()
    )
    if confirmed.run:
        return conclude_front(outcome, state.goal, confirmed.run, comparison, others_left=others_left)
    if comparison.rows[1].failure:
        failed = "the best candidate failed in confirmation"
        return msgspec.structs.replace(
            outcome,
            evidence=msgspec.structs.replace(evidence, verdict="inconclusive", reason=failed),
            has_failed=comparison.rows[1].failure.stage != "skipped",
        )
    if comparison.rows[1].speedup is None:
        return outcome
    return conclude_winner(outcome, state.goal, comparison, others_left=others_left)


def conclude_winner(outcome: Outcome, goal: Goal, comparison: Comparison, *, others_left: bool) -> Outcome:
    """Return the outcome of a candidate that was compared with the baseline."""
    baseline, candidate = comparison.rows
    spent = TimeSpent(
        budget_s=outcome.budget_s,
        confirmation_s=sum(stage.wall_s for stage in outcome.stages if stage.stage == "confirmation"),
    )
    verdict, reason = judge_confirmation(goal, comparison, others_left=others_left, spent=spent)
    if verdict == "default_is_best":
        verdict, reason = weaken(outcome, reason)
    max_error = candidate.session.max_error if candidate.session else None
    evidence = msgspec.structs.replace(
        outcome.evidence,
        verdict=verdict,
        reason=reason,
        speedup=candidate.speedup,
        baseline=baseline.summary,
        winner=candidate.summary,
        limits=candidate.limits,
        baseline_limits=baseline.limits,
        closest=find_closest(goal, [candidate, baseline]) if verdict == "infeasible" else None,
        output_check=msgspec.structs.replace(outcome.evidence.output_check, max_error=max_error),
    )
    return msgspec.structs.replace(
        outcome,
        config=candidate.config if verdict in {"faster", "within_limits"} else baseline.config,
        evidence=evidence,
    )


def conclude_front(
    outcome: Outcome, goal: Goal, run: PairedRun, comparison: Comparison, *, others_left: bool
) -> Outcome:
    """Return the outcome of several candidates that were compared with the baseline in several objectives."""
    verdict, reason, front = judge_front(goal, run, comparison)
    if verdict == "infeasible" and others_left:
        verdict, reason = "inconclusive", f"{reason}, but others that seem to were not confirmed: use a larger budget"
    if verdict == "default_is_best":
        verdict, reason = weaken(outcome, reason)
    recommended = [point.summary.config for point in front if point.recommended]
    evidence = msgspec.structs.replace(
        outcome.evidence,
        verdict=verdict,
        reason=reason,
        front=front,
        closest=find_closest(goal, comparison.rows) if verdict == "infeasible" else None,
        baseline=comparison.baseline.summary if front else None,
    )
    return msgspec.structs.replace(
        outcome,
        evidence=evidence,
        config=recommended[0] if recommended else comparison.baseline.config,
    )


def weaken(outcome: Outcome, reason: str) -> tuple[Verdict, str]:
    """Return that the baseline is best, or a weaker verdict if too little is known of the untried candidates."""
    n_tried, n_lost = count_tried(outcome.trials)
    return judge_untried(
        n_tried,
        outcome.n_candidates - 1,
        outcome.unseen_gain,
        outcome.tried_gain,
        ruled_out=reason,
        all_pairs=outcome.ended_early == ALL_PAIRS_TRIED,
        n_lost=n_lost,
    )


def count_tried(trials: Sequence[Trial]) -> tuple[int, int]:
    """Return the number of candidates of which something is known, and of those that failed for other reasons.

    Args:
        trials: All trials, the baseline's first. Those without blocks were launched, but the time was over.
    """
    _, *tried = trials
    n_tried = sum(1 for trial in tried if (trial.failure.is_of_candidate if trial.failure else trial.n_blocks))
    return n_tried, sum(1 for trial in tried if trial.failure and not trial.failure.is_of_candidate)


def list_sessions(comparison: Comparison) -> tuple[TrialSession, ...]:
    """Return the effective settings of the sessions of a comparison."""
    return tuple(
        TrialSession(config=row.config, session=row.session, latencies=row.latencies, places=row.places)
        for row in comparison.rows
        if row.session
    )


def explain_no_confirmation(state: SearchState) -> tuple[Verdict, str]:
    """Return verdict and reason for a search without a confirmation that can be judged."""
    if len(state.candidates) == 1:
        # It was compared with nothing, so it is not called best.
        return "nothing_found", "there is nothing else to try on this host"
    tried = [result for result in state.results if result is not state.baseline]
    if tried and all(result.failure for result in tried):
        none = "none of them works on this host"
        n_tried = sum(1 for result in tried if result.failure and result.failure.stage != "skipped")
        _, reason = judge_untried(n_tried, len(state.candidates) - 1, None, ruled_out=none)
        return "nothing_found", reason
    return "inconclusive", "the budget is too small for a confirmation that could prove anything: use a larger one"


def find_closest(goal: Goal, rows: tuple[Row, ...] | list[Row]) -> Closest:
    """Return the side that comes closest to staying within all limits."""
    row = min((row for row in rows if not row.failure), key=lambda row: worst_excess(goal, row.limits))
    return Closest(config=row.config, limits=row.limits)


def find_best_so_far(state: SearchState) -> BestSoFar | None:
    """Return the best candidate of an interrupted search, or None if nothing was measured yet."""
    for result in rank_finalists(state):
        if result.log_ratio is not None:
            return BestSoFar(config=result.candidate.config, speedup=round(math.exp(-result.log_ratio), 4))
    return None
