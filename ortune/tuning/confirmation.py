"""Confirmation: the best candidates and the baseline are launched again and compared in a paired run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ortune.measure.block_plan import MOST_LAUNCHES_BY_NOISE, RunPlan, block_wall_s, paired_run_s
from ortune.measure.block_runner import BASELINE_NAME
from ortune.measure.comparison import Comparison, Speedup, Stage
from ortune.measure.compute_figures import is_pooled
from ortune.measure.evaluate import compute_speedup, evaluate
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.judge import LAUNCHES_OF_A_PROOF, NEGLIGIBLE_GAIN, compare, is_negligible
from ortune.measure.limits import kept_all
from ortune.measure.paired_run import LAUNCHES_OF_AN_INTERVAL, Launch, PairedRun, Side, measure_launch
from ortune.measure.stats import student_error
from ortune.tuning.board import Board
from ortune.tuning.results import CandidateResult
from ortune.tuning.verdict import bounds_gain, judge_gain
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

ANYTIME_CONFIDENCE = 0.999
"""Confidence of a claim that is made because the user ended the confirmation, which shows its interval after each
launch. With 48 launches, the probability that any of these intervals misses the true value is at most 4.8 %.

Source: Haybittle (1971), as above, for the level; the bound is Bonferroni's."""

FUTILE = 0.1
"""A confirmation ends if it proves a gain with a lower probability, in the launches that are left."""

SECOND_CHANCE_CONFIDENCE = 0.98
MOST_LAUNCHES_WITH_SLOW_ONES = 48
"""Confidence of a speedup after further launches because of slow ones, and how many launches there are at most then,
or because the host is slow."""


def confirm(board: Board, confirmation: Confirmation) -> Comparison:
    """Measure the launches of a confirmation, and return what they show."""
    with board.time_stage("confirmation"), keep_earlier(confirmation.finalists):
        for launch in confirmation.list_launches():
            with launch as rounds:
                for goes_on in rounds:
                    if goes_on:
                        confirmation.report()
        return confirmation.judge()


class Confirmation:
    """Compares one candidate with the baseline, and decides when it is enough.

    While it is uncertain whether a candidate that seems better stays within the limits, the rest of the budget is used.
    Without limits, the confirmation ends early if it excludes a relevant gain, or bounds it and is not likely to prove
    one. It never ends early because it shows one, which would make false claims more likely.

    Args:
        board: The search.
        finalist: The candidate.
        run: Launches of the candidate and the baseline that count, too; None without any.
        speedup_confidence: Confidence of the interval of its speedup.

    Attributes:
        finalists: The candidate.
    """

    def __init__(
        self,
        board: Board,
        finalist: CandidateResult,
        run: PairedRun | None = None,
        *,
        speedup_confidence: float = DEFAULT_CONFIDENCE,
    ) -> None:
        self.finalists = (finalist,)
        if run is None:
            run = start_run(board, self.finalists)
        else:
            finalist.enter("confirmation")
        run.before = board.results.describe_earlier(finalist)
        self._board = board
        self._run = run
        self._speedup_confidence = speedup_confidence
        self._limit_confidence = DEFAULT_CONFIDENCE
        self._is_answered = False
        self._decided: Comparison | None = None
        self._reports = RoundReports(board, run, board.plan.confirmation, finalist, can_end_early=not board.goal.limits)

    def report(self) -> None:
        """Report progress, between rounds."""
        self._reports.report()

    def list_launches(self) -> Iterator[Launch]:
        """Yield the launches to measure: those that are planned, and more while it is uncertain what they show."""
        board, run, plan = self._board, self._run, self._board.plan.confirmation
        n_before, start_s = len(run.launches), board.now_s()
        self.report()
        yield from self._list(plan)
        if not plan.rounds:  # there is no time for any
            return
        launch_s = (board.now_s() - start_s) / max(len(run.launches) - n_before, 1)
        rest = msgspec.structs.replace(plan, launches=None)
        if not self._is_answered:
            yield from self._list_counted(rest, launch_s)
        if not board.goal.limits:
            yield from self._list_after_slow_ones(rest, launch_s)
            yield from self._list_beyond_slow_phase(rest, launch_s)
            end_s = min(start_s + board.longest_confirmation_s, board.end_s) - launch_s
            is_open = board.is_unpromising and not is_answered(run.in_one_regime(), board.goal, 0)
            if is_open and board.now_s() < end_s:
                self._reports.end_s = end_s + launch_s
                yield from self._list(rest, end_s)
            return
        end_s = board.end_s - launch_s
        if board.now_s() > end_s:
            return
        self._limit_confidence = INTERIM_CONFIDENCE
        self._decided = self.judge()
        if is_undecided(self._decided):
            self._reports.end_s = end_s + launch_s
            yield from self._list(rest, end_s)
            self._decided, self._limit_confidence = None, FINAL_CONFIDENCE

    def judge(self) -> Comparison:
        """Return what the launches so far show."""
        if self._decided:
            return self._decided
        # A confirmation that ends when it excludes a gain ends with what is low by chance: its interval is the one by
        # which it ended.
        least = INTERIM_CONFIDENCE if self._is_answered else 0.0
        return evaluate(
            self._run.in_one_regime(),
            self._board.goal,
            self._board.runner,
            confidence=max(self._speedup_confidence, least),
            limit_confidence=self._limit_confidence,
        )

    def judge_interrupted(self) -> Comparison | None:
        """Return what the launches so far show if the user ends the confirmation; None if a proof needs more."""
        if self._count_launches() < LAUNCHES_OF_A_PROOF:
            return None
        self._decided, self._speedup_confidence, self._limit_confidence = None, ANYTIME_CONFIDENCE, ANYTIME_CONFIDENCE
        return self.judge()

    def _list(self, plan: RunPlan, end_s: float | None = None) -> Iterator[Launch]:
        return list_launches(self._board, self._run, self.finalists, plan, self._finish_launch, end_s=end_s)

    def _list_counted(self, plan: RunPlan, launch_s: float) -> Iterator[Launch]:
        """Yield more launches while fewer count than a proof needs, as the host was busy in some, and there is time.

        Args:
            plan: Size of a launch.
            launch_s: Time of a launch with its rounds.
        """
        board, run = self._board, self._run
        (finalist,) = self.finalists
        while (n_missing := LAUNCHES_OF_A_PROOF - self._count_launches()) > 0 and not finalist.failure:
            n_fitting = int((find_latest_s(board, run) - board.now_s()) / launch_s)
            if n_fitting < 1 or len(run.launches) >= MOST_LAUNCHES_BY_NOISE:
                break
            yield from self._list(msgspec.structs.replace(plan, launches=min(n_missing, n_fitting)))

    def _list_after_slow_ones(self, plan: RunPlan, launch_s: float) -> Iterator[Launch]:
        """Yield more launches while there is time, if a few slow ones of the candidate keep a gain from being proven.

        Whether it has more of them than the baseline shows in more launches. The claim is then made with a higher
        confidence, because it had two chances.

        Args:
            plan: Size of a launch.
            launch_s: Time of a launch with its rounds.
        """
        board, run = self._board, self._run
        speedup = self._compute_speedup()
        is_doubtful = (
            speedup is not None
            and speedup.n_slow_launches > 0
            and speedup.high > 1 + NEGLIGIBLE_GAIN
            and compare(speedup, 1) == "unclear"
        )
        end_s, n_more = board.end_s - launch_s, MOST_LAUNCHES_WITH_SLOW_ONES - len(run.launches)
        if is_doubtful and n_more > 0 and board.now_s() < end_s:
            self._speedup_confidence = max(self._speedup_confidence, SECOND_CHANCE_CONFIDENCE)
            self._reports.end_s = end_s + launch_s
            yield from self._list(msgspec.structs.replace(plan, launches=n_more), end_s)

    def _list_beyond_slow_phase(self, plan: RunPlan, launch_s: float) -> Iterator[Launch]:
        """Yield more launches while there is time, and too few count, as the host is slow compared with earlier ones.

        Args:
            plan: Size of a launch.
            launch_s: Time of a launch with its rounds.
        """
        board, end_s = self._board, self._board.end_s - launch_s
        (finalist,) = self.finalists
        while (speedup := self._compute_speedup()) and not finalist.failure and not self._is_answered:
            is_enough = speedup.slowdown is None and speedup.n_launches >= LAUNCHES_OF_A_PROOF
            if is_enough or len(self._run.launches) >= MOST_LAUNCHES_WITH_SLOW_ONES or board.now_s() >= end_s:
                break
            self._reports.end_s = end_s + launch_s
            yield from self._list(msgspec.structs.replace(plan, launches=1), end_s)

    def _compute_speedup(self) -> Speedup | None:
        return compute_speedup(self._run.in_one_regime(), FINALIST_POSITION, self._board.goal.objective)

    def _count_launches(self) -> int:
        """Return how many launches count."""
        speedup = self._compute_speedup()
        return speedup.n_launches if speedup else len(self._run.in_one_regime().launches)

    def _finish_launch(self, run: PairedRun) -> bool:
        """Report what the launches so far show. Return whether more are not likely to prove a gain."""
        goal, selected = self._board.goal, run.in_one_regime()
        n_left = max((self._board.plan.confirmation.launches or 0) - len(run.launches), 0)
        self._reports.speedup = compute_speedup(selected, FINALIST_POSITION, goal.objective)
        self._reports.finish_launch()
        has_enough = not goal.limits and len(run.launches) >= self._board.plan.fewest_launches
        self._is_answered = has_enough and is_answered(selected, goal, n_left)
        return self._is_answered


class RoundReports:
    """Reports the progress of a confirmation between its rounds.

    Args:
        board: The search.
        run: The rounds, to which the confirmation adds.
        plan: How many are planned.
        best: The candidate, or the best of several; None if that is not known.
        can_end_early: Whether it ends as soon as it excludes a gain.
        stage: The stage that it belongs to.

    Attributes:
        best: The same.
        speedup: Its speedup so far.
        end_s: When the confirmation ends, on the runner's clock, if it goes on after the planned rounds; else None.
    """

    def __init__(
        self,
        board: Board,
        run: PairedRun,
        plan: RunPlan,
        best: CandidateResult | None,
        *,
        can_end_early: bool = False,
        stage: Stage = "confirmation",
    ) -> None:
        self.best = best
        self.speedup: Speedup | None = None
        self.end_s: float | None = None
        self._state = board
        self._run = run
        # The first launch alone has late rounds.
        self._plan = plan = msgspec.structs.replace(plan, late_rounds=0) if run.launches else plan
        self._can_end_early = can_end_early
        self._stage = stage
        self._n_before = run.n_rounds, len(run.launches)
        self._planned_s = paired_run_s(plan, board.pace, board.plan.launch_s, len(run.sides))
        self._late_s = plan.late_rounds * len(run.sides) * block_wall_s(plan.block, board.pace)
        self._n_done = 0
        self._done_s = 0.0
        self._launch_s = 0.0

    def finish_launch(self) -> None:
        """Report a launch whose rounds are all done."""
        spent_s = self._state.now_s() - self._state.stage_start_s - self._late_s
        self._launch_s = spent_s / max(len(self._run.launches) - self._n_before[1], 1)
        self.report()

    def report(self) -> None:
        """Report how many rounds are done, and the time left.

        At first, this is the planned time, and from half of the rounds on that of all rounds by those so far. As soon
        as a launch is done, it is that of all launches. On a slow host, the budget ends the confirmation before all
        planned launches.
        """
        board, now_s = self._state, self._state.now_s()
        n_done = self._run.n_rounds - self._n_before[0]
        n_planned = max(self._plan.n_rounds + self._plan.late_rounds, n_done)
        spent_s = now_s - board.stage_start_s
        if n_done != self._n_done:
            self._n_done, self._done_s = n_done, spent_s
        share = n_done / max(n_planned, 1)
        if self._launch_s > 0:
            n_launches = max(self._plan.launches or 0, len(self._run.launches) - self._n_before[1])
            total_s = self._late_s + n_launches * self._launch_s
        else:
            weight = min(2 * share, 1.0)
            total_s = (1 - weight) * self._planned_s + (weight * self._done_s / share if n_done else 0.0)
        if self._launch_s > 0:
            n_fitting = int((find_latest_s(board, self._run) - board.stage_start_s) / self._launch_s)
            total_s = min(total_s, max(n_fitting, LAUNCHES_OF_AN_INTERVAL) * self._launch_s)
        end_s = now_s + max(total_s - spent_s, 0.0) if self.end_s is None else self.end_s
        is_doubtful = self.speedup.estimate < 1 + NEGLIGIBLE_GAIN if self.speedup else board.is_unpromising
        board.report(
            self._stage,
            n_done,
            n_planned,
            self.best,
            self.speedup,
            end_s=end_s,
            then_s=max(board.end_s - end_s, 0.0) if self._stage == "fitting" else 0.0,
            may_end_early=self.end_s is not None or (self._can_end_early and is_doubtful),
        )


def is_answered(run: PairedRun, goal: Goal, n_left: int) -> bool:
    """Return whether the candidate is unlikely to be better, so that its confirmation ends.

    Either a relevant gain is excluded. Or only a small gain is possible, and the launches that are left would not prove
    it: the probability of that is predicted from those so far, which is known as predictive power.

    Source: D. J. Spiegelhalter, L. S. Freedman and P. R. Blackburn, "Monitoring clinical trials: conditional or
    predictive power?", Controlled Clinical Trials 7 (1986).

    Args:
        run: The rounds so far.
        goal: What the search is for.
        n_left: Launches that are left.
    """
    speedup = compute_speedup(run, FINALIST_POSITION, goal.objective, confidence=INTERIM_CONFIDENCE)
    if speedup is None:
        return False
    if is_negligible(speedup) or is_pooled(goal.objective):  # which needs all the calls that are planned
        return is_negligible(speedup)
    return bounds_gain(speedup) and predict_proof(speedup, n_left) < FUTILE


def predict_proof(speedup: Speedup, n_left: int) -> float:
    """Return the probability that a speedup is proven after so many further launches, given those so far."""
    from scipy.special import ndtr, stdtrit

    n = speedup.n_launches
    n_all = n + n_left
    error = student_error(speedup.log(), n)
    least = float(stdtrit(n_all - 1, (1 + DEFAULT_CONFIDENCE) / 2)) * error * math.sqrt(n / n_all)
    missing = least - math.log(speedup.estimate)
    if not n_left:
        return float(missing < 0)
    return float(ndtr(-missing / (error * math.sqrt(n_left / n_all))))


def is_undecided(comparison: Comparison) -> bool:
    """Return whether the limits alone keep the candidate from being recommended, and more launches may decide them."""
    baseline, candidate = comparison.rows
    if candidate.speedup is None or kept_all(candidate.limits) != "unsure":
        return False
    verdict, _ = judge_gain(baseline, candidate)
    return verdict == "faster" or kept_all(baseline.limits) == "no"


def start_run(board: Board, finalists: Sequence[CandidateResult]) -> PairedRun:
    """Return a paired run of the baseline and some candidates, which are in confirmation from now on."""
    for result in finalists:
        result.enter("confirmation")
    return make_run(board, finalists)


def make_run(board: Board, finalists: Sequence[CandidateResult]) -> PairedRun:
    """Return a paired run of the baseline and some candidates."""
    candidates = [result.candidate for result in finalists]
    return PairedRun(
        [
            Side(name=BASELINE_NAME, config=board.space.base),
            *(Side(name=candidate.label, config=candidate.config) for candidate in candidates),
        ],
        board.goal.load,
        seed=board.seed,
    )


def find_latest_s(board: Board, run: PairedRun) -> float:
    """Return after which time no launch may end that is not necessary, on the runner's clock.

    A run that has enough launches for a proof does not exceed the budget.
    """
    has_proof = len(run.launches) >= LAUNCHES_OF_A_PROOF
    return board.end_s if has_proof else board.end_s + LONGEST_OVERRUN * board.plan.left_s


@contextlib.contextmanager
def keep_earlier(finalists: Sequence[CandidateResult]) -> Iterator[None]:
    """Keep what racing measured of finalists, if their first launch is interrupted."""
    try:
        yield
    except BaseException:
        for result in finalists:
            result.return_if_empty()
        raise


def measure_launches(
    board: Board,
    run: PairedRun,
    finalists: Sequence[CandidateResult],
    plan: RunPlan,
    is_done: Callable[[PairedRun], bool],
    on_round: Callable[[], None],
    *,
    end_s: float | None = None,
    stage: Stage = "confirmation",
) -> None:
    """Measure launches of a paired run. `on_round` is called between rounds; see `list_launches` for the others."""
    with keep_earlier(finalists):
        for launch in list_launches(board, run, finalists, plan, is_done, end_s=end_s, stage=stage):
            measure_launch(launch, on_round)


def list_launches(
    board: Board,
    run: PairedRun,
    finalists: Sequence[CandidateResult],
    plan: RunPlan,
    is_done: Callable[[PairedRun], bool],
    *,
    end_s: float | None = None,
    stage: Stage = "confirmation",
) -> Iterator[Launch]:
    """Yield launches of a paired run, and add their rounds to the results of its candidates.

    Args:
        board: The search.
        run: The run.
        finalists: Its candidates.
        plan: How many launches, and of what size.
        is_done: Called after each launch. It was the last one if it returns True.
        end_s: Time on the runner's clock after which no launch begins; None for the planned time with a reserve.
        stage: The stage that the rounds belong to.
    """
    if end_s is None:
        end_s = max(board.now_s() + LONGEST_CONFIRMATION * board.plan.confirmation_s, board.end_s)
    latest_s = find_latest_s(board, run)
    if not board.plan.can_prove:
        end_s = min(end_s, latest_s)
    n_added = len(run.launches)
    for launch in run.list_launches(board.runner, plan, end_s=end_s, latest_s=latest_s):
        yield launch
        board.n_launches += 1
        for rounds in run.launches[n_added:]:  # none if the launch has no round that counts
            for measured in rounds:
                board.results.add_round([board.baseline, *finalists], measured, stage, launch=board.n_launches)
        n_added = len(run.launches)
        if is_done(run):
            break
    for position, failure in run.failures.items():
        board.reject(finalists[position - 1], failure)
