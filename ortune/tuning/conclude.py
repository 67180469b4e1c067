"""Concludes a search: makes its outcome from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from ortune.measure.comparison import PROOF, Comparison, Row, Speedup
from ortune.measure.judge import Verdict
from ortune.measure.limits import kept_all, worst_excess
from ortune.measure.paired_run import PairedRun
from ortune.record.schema import BestSoFar, Closest, Compared, Evidence, OutputCheck
from ortune.record.trials import Trial, TrialSession
from ortune.tuning.board import Board
from ortune.tuning.front import judge_front, name_few_calls
from ortune.tuning.outcome import Outcome
from ortune.tuning.pruning import PruningResult
from ortune.tuning.racing import rank_finalists
from ortune.tuning.results import CandidateResult
from ortune.tuning.screening import ALL_PAIRS_TRIED
from ortune.tuning.tried import bound_tried_gain
from ortune.tuning.verdict import (
    CONFIRMED_ONE,
    LARGE_GAIN,
    LARGEST_BOUND,
    LAST_CONFIRMED_ONE,
    LEAST_BOUND,
    NOT_BETTER,
    ONLY_ONE,
    TOO_FEW_LAUNCHES,
    TimeSpent,
    format_bound,
    judge_confirmation,
    judge_untried,
)
from ortune.workload import Goal

INTERRUPTED = "the search was interrupted before anything was proven"
"""Why a search that the user ended decides nothing."""

CONFIRMED_NOISE = ("two_speeds", "frequencies", "one_at_a_time", "n_left_out")
"""What of the noise is that of the confirmation, and not of the whole search."""


class Confirmed:
    """Results of confirmation so far.

    Attributes:
        comparison: The last comparison, or None.
        run: With several objectives: the run behind it.
        finalists: Candidates that were compared with the baseline.
        drift: The speedup of the last of them in racing divided by that in confirmation, or None.
        is_chosen_contended: Whether other processes used the CPUs in the rounds that chose the last of them; None
            without one that was chosen.
        pruned: What the settings of the first finalist contribute, and which were dropped.
        fitting: The thread pool that fits the host, and the run in which it was compared with the baseline first; None
            where ONNX Runtime's own pool fits.
    """

    def __init__(self) -> None:
        self.comparison: Comparison | None = None
        self.run: PairedRun | None = None
        self.finalists: list[CandidateResult] = []
        self.drift: float | None = None
        self.is_chosen_contended: bool | None = None
        self.pruned = PruningResult(ranked=[])
        self.fitting: tuple[PairedRun, CandidateResult] | None = None


def find_compared(board: Board, confirmed: Confirmed, *, deterministic: bool) -> Compared:
    """Return what of the outputs was compared: of the candidates in confirmation, or of any if there was none.

    Args:
        board: The search.
        confirmed: Results of confirmation.
        deterministic: Whether the baseline's outputs are the same in each run.
    """
    rows = confirmed.comparison.rows if confirmed.comparison else ()
    sessions = [row.session for row in rows[1:] if row.session]
    if sessions:
        is_compared = all(session.outputs_compared for session in sessions)
    else:
        is_rejected = any(result.failure and result.failure.kind == "wrong_output" for result in board.results)
        is_compared = is_rejected or any(session.outputs_compared for session in board.runner.sessions)
    if not is_compared:
        return "nothing"
    return "values" if deterministic else "shapes"


def conclude(board: Board, confirmed: Confirmed, interrupted: str, *, budget_s: float, compared: Compared) -> Outcome:
    """Return the outcome. It recommends the baseline unless another config is proven to be better.

    Args:
        board: The search.
        confirmed: Results of confirmation.
        interrupted: Why the search was interrupted; empty if it was not.
        budget_s: Its budget.
        compared: What of the outputs was compared.
    """
    comparison = confirmed.comparison
    contended = comparison is not None and comparison.noise.regime == "contended"
    verdict, reason = explain_no_confirmation(board)
    trials = board.results.trials()
    evidence = Evidence(
        verdict="inconclusive" if interrupted else verdict,
        reason=interrupted or reason,
        objective=",".join(board.goal.objectives),
        best_so_far=find_best_so_far(board) if interrupted else None,
        output_check=OutputCheck(
            compared=compared,
            n_rejected=sum(1 for trial in trials if trial.failure and trial.failure.kind == "wrong_output"),
        ),
        noise=msgspec.structs.replace(
            board.runner.describe_noise(contended=contended, drift=confirmed.drift),
            **{name: getattr(comparison.noise, name) for name in CONFIRMED_NOISE if comparison},
            chosen_in=find_other_regime(confirmed.is_chosen_contended, contended=contended) if comparison else None,
        ),
    )
    outcome = Outcome(
        config=board.space.base,
        evidence=evidence,
        interrupted=bool(interrupted),
        budget_s=budget_s,
        trials=trials,
        rounds=tuple(board.results.rounds),
        sessions=list_sessions(comparison) if comparison else (),
        n_candidates=len(board.candidates),
        stages=tuple(board.stages),
        ended_early=board.screened.ended_early,
        unseen_gain=board.screened.unseen_gain,
    )
    if (interrupted and interrupted != INTERRUPTED) or (comparison is None and not interrupted):
        return outcome
    tried_gain = bound_tried_gain(board.results, board.noise, board.screened.luck, board.is_doubtful)
    outcome = msgspec.structs.replace(outcome, tried_gain=tried_gain)
    if comparison is None:
        return conclude_interrupted(outcome, board.goal)
    # Where the baseline may exceed a limit, a slower config that stays within all of them is an answer, too.
    must_gain = kept_all(comparison.baseline.limits) == "yes"
    others_left = any(
        result not in confirmed.finalists and not result.excess and ((result.log_ratio or 0.0) < 0 or not must_gain)
        for result in board.results.rank()
    )
    if confirmed.run:
        return conclude_front(outcome, board.goal, confirmed.run, comparison, others_left=others_left)
    if comparison.rows[1].failure:
        failed = "the best candidate failed in confirmation"
        return msgspec.structs.replace(
            outcome,
            evidence=msgspec.structs.replace(evidence, verdict="inconclusive", reason=failed),
            has_failed=comparison.rows[1].failure.stage != "skipped",
        )
    if comparison.rows[1].speedup is None:
        return msgspec.structs.replace(
            outcome, evidence=msgspec.structs.replace(evidence, verdict="inconclusive", reason=TOO_FEW_LAUNCHES)
        )
    concluded = conclude_winner(outcome, board.goal, comparison, others_left=others_left)
    if interrupted and concluded.evidence.verdict == "inconclusive":
        return outcome
    concluded = msgspec.structs.replace(
        concluded, evidence=msgspec.structs.replace(concluded.evidence, best_so_far=None)
    )
    return add_contributions(concluded, confirmed.pruned)


def conclude_interrupted(outcome: Outcome, goal: Goal) -> Outcome:
    """Return the outcome of a search that the user ended before a confirmation: a bound of all gains if it is small.

    Both those that were tried and the others are bounded, each with a nominal probability of 95 %.
    """
    n_tried, _ = count_tried(outcome.trials)
    if not n_tried or goal.limits or len(goal.objectives) > 1 or outcome.unseen_gain is None:
        return outcome
    gain = find_largest([outcome.tried_gain, outcome.unseen_gain])
    if gain > LARGEST_BOUND:
        return outcome
    tried = f"{n_tried} of {outcome.n_candidates - 1} candidates were tried"
    evidence = msgspec.structs.replace(
        outcome.evidence,
        verdict="nothing_found",
        reason=f"the search was interrupted: {tried}, and none is likely to gain more than {format_bound(gain)}",
        best_so_far=None,
        most_gain=gain,
    )
    return msgspec.structs.replace(outcome, evidence=evidence)


def find_other_regime(is_chosen_contended: bool | None, *, contended: bool) -> Literal["quiet", "contended"] | None:
    """Return the regime in which the winner was chosen, if it is another one than that of its confirmation."""
    if is_chosen_contended in {None, contended}:
        return None
    return "contended" if is_chosen_contended else "quiet"


def conclude_winner(outcome: Outcome, goal: Goal, comparison: Comparison, *, others_left: bool) -> Outcome:
    """Return the outcome of a candidate that was compared with the baseline."""
    baseline, candidate = comparison.rows
    spent = TimeSpent(
        budget_s=outcome.budget_s,
        confirmation_s=sum(stage.wall_s for stage in outcome.stages if stage.stage in PROOF),
    )
    verdict, reason = judge_confirmation(
        goal, comparison, called=call_confirmed(outcome), others_left=others_left, spent=spent
    )
    if verdict in NOT_BETTER:
        weaker, reason = weaken(outcome, reason)
        verdict = weaker if verdict == "default_is_best" else verdict
    max_error = candidate.session.max_error if candidate.session else None
    evidence = msgspec.structs.replace(
        outcome.evidence,
        verdict=verdict,
        reason=reason,
        speedup=candidate.speedup,
        most_gain=None if goal.limits else find_most_gain(outcome, verdict, candidate.speedup),
        late_calls=candidate.late_calls,
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


def find_most_gain(outcome: Outcome, verdict: Verdict, speedup: Speedup | None) -> float | None:
    """Return what no candidate gains more than, as a share, if a verdict says that none is better; None if unknown."""
    if verdict not in NOT_BETTER or speedup is None:
        return None
    bounds = [math.log(max(speedup.high, 1.0)), outcome.tried_gain]
    if verdict == "default_is_best":
        bounds.append(outcome.unseen_gain or 0.0)
    gain = find_largest(bounds)
    return gain if gain <= LARGE_GAIN else None


def find_largest(bounds: Sequence[float]) -> float:
    """Return the largest of some bounds of gains, which are log-ratios, as a share that is not below it."""
    return math.ceil(1e4 * max(math.expm1(max(bounds)), LEAST_BOUND)) / 1e4


def add_contributions(outcome: Outcome, pruned: PruningResult) -> Outcome:
    """Return the outcome with what each setting of the winner contributes, if that is known."""
    winner = outcome.evidence.winner
    if not (winner and pruned.ranked and pruned.ranked[0].candidate.config == winner.config):
        return outcome
    contributions = {
        name: pruned.contributions[name].to_evidence()
        for name in winner.config.settings
        if name in pruned.contributions
    }
    dropped = {name: contribution.to_evidence() for name, contribution in pruned.dropped.items()}
    evidence = msgspec.structs.replace(outcome.evidence, contributions=contributions, dropped=dropped)
    return msgspec.structs.replace(outcome, evidence=evidence)


def conclude_front(
    outcome: Outcome, goal: Goal, run: PairedRun, comparison: Comparison, *, others_left: bool
) -> Outcome:
    """Return the outcome of several candidates that were compared with the baseline in several objectives."""
    verdict, reason, front = judge_front(goal, run, comparison, call_confirmed(outcome))
    if verdict in {"trade_off", "default_is_best"} and (few := name_few_calls(goal, run)):
        reason = f"{reason}; {few}"
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


def call_confirmed(outcome: Outcome) -> str:
    """Return what the candidate whose comparison decides is called, in a clause after how many were tried."""
    if outcome.n_candidates == 2:
        return ONLY_ONE
    n_confirmed = sum(trial.stage == "confirmation" for trial in outcome.trials[1:])
    return CONFIRMED_ONE if n_confirmed < 2 else LAST_CONFIRMED_ONE


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


def explain_no_confirmation(board: Board) -> tuple[Verdict, str]:
    """Return verdict and reason for a search without a confirmation that can be judged."""
    if len(board.candidates) == 1:
        # It was compared with nothing, so it is not called best.
        return "nothing_found", "there is nothing else to try on this host"
    others = [result for result in board.results if result is not board.baseline]
    tried = [result for result in others if not (result.failure and result.failure.stage == "skipped")]
    if tried and all(result.failure for result in tried):
        failed = "it failed" if len(tried) == 1 else "all of them failed"
        _, reason = judge_untried(len(tried), len(board.candidates) - 1, None, ruled_out=failed)
        return "nothing_found", reason
    return "inconclusive", "the budget is too small for a confirmation that could prove anything: use a larger one"


def find_closest(goal: Goal, rows: tuple[Row, ...] | list[Row]) -> Closest:
    """Return the side that comes closest to staying within all limits."""
    row = min((row for row in rows if not row.failure), key=lambda row: worst_excess(goal, row.limits))
    return Closest(config=row.config, limits=row.limits)


def find_best_so_far(board: Board) -> BestSoFar | None:
    """Return the best candidate of an interrupted search, or None if nothing was measured yet."""
    for result in rank_finalists(board):
        if result.log_ratio is not None:
            return BestSoFar(config=result.candidate.config, speedup=round(math.exp(-result.log_ratio), 4))
    return None
