"""A search, from calibration to verdict: the list of its steps.

The steps are in files of their own: `fitting_pool`, `screening`, `racing`, `confirmation` and `conclude`. Searches that
several hosts share have a list of their own over the same steps; see `ortune.tuning.shared_job`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import optuna

from ortune.errors import MeasureError, OrtuneError, UsageError, explain_lacks
from ortune.knobs import Config, SearchSpace
from ortune.knobs.providers import find_provider
from ortune.measure.comparison import Row
from ortune.measure.compute_figures import is_pooled
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.judge import NEGLIGIBLE_GAIN, is_negligible
from ortune.measure.limits import is_overloaded, kept_all
from ortune.measure.open import OpenComparison
from ortune.measure.providers import allow_for_providers
from ortune.requests import StrategyName
from ortune.tuning.board import Board
from ortune.tuning.conclude import INTERRUPTED, Confirmed, conclude, find_compared
from ortune.tuning.confirmation import Confirmation, confirm
from ortune.tuning.fitting_pool import (
    compare_fitting,
    find_better_fitting,
    find_fitting,
    leaves_no_time,
    put_first,
    report_fitting,
)
from ortune.tuning.front import choose_for_front, confirm_front, prune_front
from ortune.tuning.outcome import Observe, Outcome
from ortune.tuning.plan import (
    LONGEST_RACING,
    RACING_SHARE,
    SearchPlan,
    Split,
    is_simple,
    required_budget_s,
    resize_confirmation,
    shortest_confirmation_s,
    split_budget,
    spread_rounds,
    usual_budget_s,
    warn_of_small_budget,
    with_confirmation,
)
from ortune.tuning.pruning import PruningResult, prune
from ortune.tuning.racing import (
    LAG_ERRORS,
    MIN_CANDIDATES,
    MIN_RACING_LAUNCHES,
    Race,
    count_affordable,
    race,
    rank_finalists,
)
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import make_sampler
from ortune.tuning.screening import NOTHING_STANDS_OUT, Screening, screen
from ortune.tuning.study import open_study
from ortune.tuning.verdict import SECOND_CONFIDENCE, bounds_gain
from ortune.workload import FIGURES, Goal
from ortune.workload.goal import AT_TWO_SPEEDS

QUICK_SHARE = 0.08
"""Share of the budget for a confirmation that probably shows no gain. It takes longer while it is undecided."""

SHORT_RACING_SHARE = 0.12
"""Share of the budget for racing if nothing stood out in screening."""

MIN_CONFIRMATION = 0.5
"""Share of the planned time that must be left for another confirmation."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a search.

    Attributes:
        budget_s: Wall time from start to verdict; None for what the model and the objective need.
        n_trials: Candidates to screen at most, or None.
        until: Share that may be left to gain when screening ends, or None.
        strategy: The order in which candidates are screened.
        hints: Configs to screen early: the best of earlier searches, and the suggestion.
        study_path: File for Optuna's study, or None to keep it in memory.
        study_id: Identifier of the search, which the study gets.
        replaced_study_id: Identifier of the search whose study may be replaced; empty if there is none.
    """

    budget_s: float | None = None
    n_trials: int | None = None
    until: float | None = None
    strategy: StrategyName = "adaptive"
    hints: tuple[Config, ...] = ()
    study_path: Path | None = None
    study_id: str = ""
    replaced_study_id: str = ""


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
    job = SearchJob(space, opened, settings, observe)
    board = job.board
    with job.catch_end():
        only = job.begin_with_fitting()
        if only is None:
            board.screened = screen(board, Screening(board, job.study))
            board.is_unpromising = board.screened.is_unpromising
            if job.may_race():
                board.is_unpromising |= race(board, Race(board, find_racing_s(board)))
            if job.must_race_again():
                board.is_unpromising |= race(board, job.begin_second_race())
        job.confirmed.pruned = job.prune([only] if only else job.rank_finalists())
        for confirmation in job.list_confirmations(job.confirmed.pruned.ranked):
            job.confirmed.comparison = confirm(board, confirmation)
        job.choose_fitting()
    return job.conclude()


class SearchJob:
    """A search whose steps are run.

    Args:
        space: What may be tried.
        opened: The comparison, whose baseline is that of the space.
        settings: Settings of the search.
        observe: Called with the progress, between blocks.
        seed: Random seed of proposals; None for that of the comparison.
        split: Splits the time that is left between the stages; see `split_budget`.

    Attributes:
        board: What is searched, and the results so far.
        study: Optuna's study.
        confirmed: Results of confirmation so far.

    Raises:
        UsageError: The study's file cannot be used.
    """

    def __init__(
        self,
        space: SearchSpace,
        opened: OpenComparison,
        settings: SearchSettings,
        observe: Observe,
        *,
        seed: int | None = None,
        split: Split = split_budget,
    ) -> None:
        self.confirmed = Confirmed()
        self._settings = settings
        self._split = split
        self._opened = opened = allow_for_providers(opened, space.base, space.providers)
        self._confirmation: Confirmation | None = None
        self._interrupted = ""
        self._fault: OrtuneError | None = None
        goal, calibration = opened.goal, opened.calibration
        self.study = open_study(
            settings.study_path,
            make_sampler(settings.strategy, space, opened.seed if seed is None else seed),
            len(goal.objectives),
            search_id=settings.study_id,
            replaced_id=settings.replaced_study_id,
        )
        self._budget_s = settings.budget_s or usual_budget_s(goal, calibration.pace, calibration.launch_s)
        end_s = opened.start_s + self._budget_s
        plan = self.plan_stages(space, end_s)
        if goal.sustained and not plan.can_prove:
            spent_s = opened.runner.now_s() - opened.start_s
            enough_s = math.ceil(spent_s + required_budget_s(goal, calibration.pace, calibration.launch_s))
            raise UsageError(
                f"{self._budget_s:g}s: too short to measure what the host sustains.",
                f"Give {{budget={enough_s}s}} or more, or omit it.",
                option="budget",
            )
        self.board = Board(
            opened,
            space=space,
            plan=plan,
            end_s=end_s,
            observe=observe,
            n_trials=settings.n_trials,
            until=settings.until,
            strategy=settings.strategy,
            hints=settings.hints,
        )
        if goal.why == AT_TWO_SPEEDS:
            self.board.add_note(f"goal: {FIGURES[goal.objective].title}: {goal.why}")
        if warning := warn_of_small_budget(goal, plan, calibration.pace):
            self.board.add_note(warning)

    def plan_stages(self, space: SearchSpace, end_s: float) -> SearchPlan:
        """Return how the time that is left until `end_s`, on the runner's clock, is split between the stages."""
        opened, runner = self._opened, self._opened.runner
        plan = self._split(
            opened.goal,
            opened.calibration,
            left_s=end_s - runner.now_s(),
            free_bytes=opened.free_bytes,
            one_at_a_time=runner.one_at_a_time,
        )
        if any(find_provider(name).memory_unknown for name in space.providers):
            plan = msgspec.structs.replace(plan, max_live=2)  # the baseline, and one that may need this memory
        if self._settings.strategy == "exhaustive":
            plan = spread_rounds(plan, len(space.candidates) - 1)
        return plan

    @contextlib.contextmanager
    def catch_end(self) -> Iterator[None]:
        """Run the steps. If they are interrupted, or cannot go on, what was measured so far counts."""
        try:
            with explain_lacks():
                yield
                check_failures(self.board)
        except KeyboardInterrupt:
            self._interrupted = INTERRUPTED
            self.take_proven()
        except optuna.exceptions.StorageInternalError as error:
            path = self._settings.study_path
            self._fault = UsageError(f"{path}: cannot be written: {error}.", option="study")
            self._interrupted = self._fault.message
        except OrtuneError as error:
            self._interrupted, self._fault = error.message, error

    def begin_with_fitting(self) -> CandidateResult | None:
        """Compare a thread pool that fits the host, if the default pool does not.

        Returns:
            The pool if there is no time for other candidates; else None.
        """
        board, confirmed = self.board, self.confirmed
        fitting = find_fitting(board)
        if fitting is None:
            return None
        if leaves_no_time(board):
            board.replan(with_confirmation(board.plan, board.goal, board.pace, board.plan.left_s))
            return fitting
        run = compare_fitting(board, fitting)
        if run is None:
            return None
        confirmed.fitting = run, fitting
        board.replan(self.plan_stages(board.space, board.end_s))
        # Launches may take longer than the first one did, above all under a quota.
        launch_s = board.stages[-1].wall_s / len(run.launches)
        goes_on = board.now_s() + launch_s <= board.end_s
        board.replan(report_fitting(board, run, fitting, others_follow=goes_on))
        return None if goes_on else fitting

    def may_race(self) -> bool:
        """Return whether there are candidates that are worth a race."""
        board = self.board
        return len(board.results.rank()) > 1 and not board.is_unpromising and not board.is_enough

    def must_race_again(self) -> bool:
        """Return whether the race was decided while the host was busy, although it was mostly quiet before."""
        results = self.board.results
        raced = [result for result in results.rank() if result.stage == "racing"]
        if not raced or self.board.is_unpromising or not raced[0].is_contended:
            return False
        if count_affordable(self.board, find_second_racing_s(self.board)) < MIN_CANDIDATES:
            return False
        before = [bool(measured.contended) for measured in results.rounds if measured.stage == "screening"]
        return sum(before) < len(before) / 2

    def begin_second_race(self) -> Race:
        """Return a race that repeats the first one. What that measured on a busy host does not count any more."""
        for result in self.board.results:
            if result.stage == "racing":
                result.go_back()
        return Race(self.board, find_second_racing_s(self.board))

    def rank_finalists(self) -> list[CandidateResult]:
        """Return the candidates in the order in which they are confirmed."""
        ranked, fitting = rank_finalists(self.board), self.confirmed.fitting
        return put_first(ranked, *fitting) if fitting else ranked

    def prune(self, ranked: list[CandidateResult]) -> PruningResult:
        """Drop settings that do not contribute. With several objectives, the front is chosen, and all of it pruned."""
        if len(self.board.goal.objectives) == 1:
            return prune(self.board, ranked)
        front = choose_for_front(self.board, ranked)
        return PruningResult(ranked=front if self.board.is_unpromising else prune_front(self.board, front))

    def choose_fitting(self) -> None:
        """Take the thread pool that fits the host for the answer if it is as good as the confirmed candidate."""
        board, confirmed = self.board, self.confirmed
        if confirmed.fitting and confirmed.fitting[1] not in confirmed.finalists:
            proven = find_better_fitting(board, *confirmed.fitting, confirmed.comparison)
            if proven:
                confirmed.comparison, confirmed.drift, confirmed.is_chosen_contended = proven, None, None
                confirmed.finalists.append(confirmed.fitting[1])

    def list_confirmations(self, ranked: list[CandidateResult]) -> Iterator[Confirmation]:
        """Yield the confirmation of the best candidate, and of the next one if it is rejected, or if racing was wrong.

        Who takes one measures it before the next one is asked for. With several objectives, all of them are confirmed
        together, here.

        Args:
            ranked: The candidates, in the order in which they are confirmed.
        """
        board, confirmed = self.board, self.confirmed
        if len(board.goal.objectives) > 1:
            # What another node confirmed was not checked here, and may not fit into memory.
            is_checked = ranked is confirmed.pruned.ranked
            right = (result for result in ranked if is_checked or board.check_finalist(result, len(ranked)))
            chosen = list(itertools.islice(right, board.plan.max_live - 1))
            if chosen:
                confirmed.run, confirmed.comparison = confirm_front(board, chosen)
                confirmed.finalists = chosen
            return
        confidence = DEFAULT_CONFIDENCE
        waiting = ranked
        while waiting:
            finalist, *waiting = waiting
            if not board.check_finalist(finalist):
                continue
            left_s = QUICK_SHARE * board.plan.left_s if board.is_unpromising else board.end_s - board.now_s()
            gain = 0.0 if board.is_unpromising or finalist.log_ratio is None else -finalist.log_ratio
            board.plan = resize_confirmation(
                board.plan,
                board.goal,
                board.pace,
                left_s,
                board.screened.sigmas,
                gain if gain >= math.log1p(NEGLIGIBLE_GAIN) else 0.0,
            )
            confirmed.is_chosen_contended = finalist.is_contended if finalist.scores else None
            racing_log_ratio = finalist.log_ratio if finalist.stage in {"racing", "pruning"} else None
            measured = confirmed.fitting[0] if confirmed.fitting and confirmed.fitting[1] is finalist else None
            self._confirmation = Confirmation(board, finalist, measured, speedup_confidence=confidence)
            yield self._confirmation
            self._confirmation = None
            confirmed.finalists.append(finalist)
            comparison = confirmed.comparison
            assert comparison
            row = comparison.rows[1]
            # Racing sees a lower percentile than confirmation, so the two cannot be compared.
            if row.speedup and racing_log_ratio is not None and not is_pooled(board.goal.objective):
                confirmed.drift = round(math.exp(-racing_log_ratio) / row.speedup.estimate, 4)
            is_rejected = row.failure is not None or (row.speedup is not None and kept_all(row.limits) == "no")
            sides = [side.summary for side in comparison.rows if side.summary]
            # Where the baseline cannot serve the rate either, it is the rate that is too high.
            is_rejected = is_rejected or [is_overloaded(summary) for summary in sides] == [False, True]
            if board.now_s() + MIN_CONFIRMATION * board.plan.confirmation_s > board.end_s:
                break
            if is_rejected:
                continue
            is_second = confidence != DEFAULT_CONFIDENCE
            if is_second or not is_worthless(board.goal, row) or not is_promising(board, waiting[:1]):
                break
            confidence = SECOND_CONFIDENCE
            confirmed.pruned = self.prune(waiting)
            waiting = confirmed.pruned.ranked

    def take_proven(self) -> None:
        """Let what is proven already be the answer, after an interrupt. Nothing is launched for that."""
        confirmed, confirmation = self.confirmed, self._confirmation
        if confirmation and (comparison := confirmation.judge_interrupted()):
            confirmed.comparison = comparison
            confirmed.finalists += confirmation.finalists
        elif confirmed.comparison is None and self._opened.check_finalist is None:
            self.choose_fitting()

    def conclude(self) -> Outcome:
        """Return the outcome."""
        compared = find_compared(self.board, self.confirmed, deterministic=self._opened.deterministic)
        outcome = conclude(self.board, self.confirmed, self._interrupted, budget_s=self._budget_s, compared=compared)
        return msgspec.structs.replace(outcome, fault=self._fault)


def is_worthless(goal: Goal, row: Row) -> bool:
    """Return whether the confirmation of a candidate showed that it is not likely to gain more than is negligible."""
    return not goal.limits and row.speedup is not None and (is_negligible(row.speedup) or bounds_gain(row.speedup))


def is_promising(board: Board, results: list[CandidateResult]) -> bool:
    """Return whether a candidate gained clearly more than is negligible in racing; false for none."""
    values = np.array([ratios[0] for result in results for _, ratios, _ in result.launch_log_ratios()])
    if len(values) < MIN_RACING_LAUNCHES or results[0].stage == "screening":
        return False
    error = max(board.screened.expected_luck, float(values.std(ddof=1))) / math.sqrt(len(values))
    return float(values.mean()) + LAG_ERRORS * error < -math.log1p(NEGLIGIBLE_GAIN)


def check_failures(board: Board) -> None:
    """Check that not all candidates failed in a way that has nothing to do with their settings.

    One candidate that crashes may be to blame itself.

    Raises:
        MeasureError: The process of each candidate ended suddenly, and there were several.
    """
    failures = [result.failure for result in board.results if result is not board.baseline]
    if len(failures) > 1 and all(failure and failure.is_sudden for failure in failures):
        last = failures[-1]
        assert last
        raise MeasureError(
            f"The worker of each of the {len(failures)} candidates ended suddenly, so nothing was compared. The last "
            f"one ({last.title}): {last.message}",
            "Check that nothing ends processes on this host, and that enough memory is free.",
        )


def find_racing_s(board: Board) -> float:
    """Return how long racing may take, in seconds.

    If screening ended early, confirmation gets its planned time again. If it borrowed time, and then found something
    promising, racing gets a share of what is left, as a simple confirmation can be shortened. If nothing stood out in
    screening, racing is short.
    """
    plan, left_s = board.plan, board.end_s - board.now_s()
    longest_s = LONGEST_RACING * plan.racing_s
    if board.screened.ended_early == NOTHING_STANDS_OUT:
        longest_s = min(longest_s, SHORT_RACING_SHARE * plan.left_s)
    confirmation_s = min(max(board.screened.confirmation_s, left_s - longest_s), plan.confirmation_s)
    racing_s = min(left_s - confirmation_s, longest_s)
    if is_simple(board.goal):
        shortest_s = max(shortest_confirmation_s(plan, board.goal, board.pace), plan.proof_s)
        racing_s = max(racing_s, min(board.screened.racing_s, RACING_SHARE * left_s, left_s - shortest_s, longest_s))
    return max(racing_s - plan.pruning_s, 0.0)


def find_second_racing_s(board: Board) -> float:
    """Return how long a race may take that repeats one on a busy host, in seconds.

    It takes up to half of the planned time, if the rest is enough for the shortest confirmation.
    """
    plan, left_s = board.plan, board.end_s - board.now_s()
    others_s = shortest_confirmation_s(plan, board.goal, board.pace) + plan.pruning_s
    return max(min(plan.racing_s / 2, left_s - others_s), 0.0)
