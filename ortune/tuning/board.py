"""The board of a search: what is searched, the plan, and the results so far. All steps read it, and add results."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ortune.knobs import Candidate, Config, SearchSpace
from ortune.measure.block_plan import launch_sides_s
from ortune.measure.block_runner import BASELINE_NAME, FreshCandidate, Round, raise_failure
from ortune.measure.comparison import Stage, StageTime
from ortune.measure.interval import Interval
from ortune.measure.memory import count_on_gpu
from ortune.measure.open import OpenComparison
from ortune.measure.paired_run import BASELINE_POSITION
from ortune.measure.stats import t_interval
from ortune.requests import StrategyName
from ortune.tuning.noise import RoundNoise
from ortune.tuning.outcome import Observe, Progress
from ortune.tuning.plan import LIVE_MEMORY_SHARE, SearchPlan
from ortune.tuning.results import CandidateResult, Results
from ortune.worker import BlockPlan, Failure, LiveCandidate

MAX_NOTE_LENGTH = 160

USUAL_LUCK_OF_LAUNCHES = 0.01
"""Standard deviation between launches of one config, as a log-ratio, where no model estimates it."""

LAST_LAUNCHES = 5
"""Launches whose durations say how long the next one probably takes."""

CHECK_SHARE = 0.25
"""Share of the time that is left before a confirmation, for checking outputs of finalists that blocks do not show."""


class ScreeningResult(msgspec.Struct, frozen=True, kw_only=True):
    """What screening found, besides the results of candidates.

    Attributes:
        expected: Log-ratio to the baseline that each candidate is expected to have, by the key of its config; empty
            where the strategy has no model.
        unseen_gain: Bound of the gain of untried candidates, as a log-ratio; None where the strategy has no model.
        luck: Standard deviation between launches of one config, as a log-ratio; None likewise.
        sigmas: Standard deviations of a log-ratio due to its two launches, and in one round; None likewise.
        ended_early: Why screening ended before its time; empty if it did not.
        is_unpromising: Whether it ended early because nothing is expected to gain enough to matter.
        racing_s: Time that racing needs.
        confirmation_s: Time that the confirmation needs, at most the planned time.
    """

    expected: Mapping[str, float] = {}
    unseen_gain: float | None = None
    luck: float | None = None
    sigmas: tuple[float, float] | None = None
    ended_early: str = ""
    is_unpromising: bool = False
    racing_s: float = 0.0
    confirmation_s: float = 0.0

    @property
    def expected_luck(self) -> float:
        """Standard deviation between launches of one config, as a log-ratio, or what is usual where it is unknown."""
        return self.luck or USUAL_LUCK_OF_LAUNCHES


class Board:
    """A search in progress.

    Steps add results, notes and times. What they find for the next step, they return, and the job writes it here:
    `screened`, `is_unpromising`, `end_s`, and `plan`, of which only `max_live` changes while candidates are measured.
    Screening writes `gain_left` after each batch, as an interrupt may end it.

    Attributes:
        runner: Measures blocks.
        goal: Load, objectives and limits.
        seed: Random seed of resampling.
        space: What may be tried. Screening extends it.
        plan: How the budget is split.
        pace: How fast the baseline's calls follow each other.
        end_s: When the budget ends, on the runner's clock.
        n_trials: Candidates to screen at most, or None.
        until: Share that may be left to gain when screening ends, or None.
        strategy: The order in which candidates are screened.
        hints: Configs to screen early: the best of earlier searches, and the suggestion.
        results: Results of all candidates tried.
        baseline: Result of the baseline.
        longest_confirmation_s: The planned time of confirmation.
        screened: What screening found.
        is_unpromising: Whether nothing is expected to gain enough to matter.
        gain_left: By how much any candidate is better than the best one that was screened, at most, as a log-ratio. It
            is a bound that holds with a probability of 95 %; None if unknown.
        noise: Noise of the rounds.
        stages: Time of each stage that is complete.
        stage_start_s: When the current stage began, on the runner's clock.
        n_launches: Launches of the baseline so far.
        planned_s: Time that the whole search may take from its plan on.
        starved: Candidates that ran out of memory while others were live, and may work alone.
    """

    def __init__(
        self,
        opened: OpenComparison,
        *,
        space: SearchSpace,
        plan: SearchPlan,
        end_s: float,
        observe: Observe,
        n_trials: int | None = None,
        until: float | None = None,
        strategy: StrategyName = "adaptive",
        hints: Sequence[Config] = (),
    ) -> None:
        self.runner = opened.runner
        self.goal = opened.goal
        self.seed = opened.seed
        self.space = space
        self.pace = opened.calibration.pace
        self.replan(plan)
        self.end_s = end_s
        self.planned_s = end_s - opened.runner.now_s()
        self.n_trials = n_trials
        self.until = until
        self.strategy = strategy
        self.hints = hints
        self.results = Results(opened.goal, opened.start_s)
        self.baseline = self.results.get_or_add(Candidate(config=space.base))
        self.screened = ScreeningResult()
        self.is_unpromising = False
        self.gain_left: float | None = None
        self.noise = RoundNoise()
        self.stages: list[StageTime] = []
        self.starved: list[CandidateResult] = []
        self.n_launches = 0
        self.stage_start_s = opened.start_s
        self.observe = observe
        self._check_finalist = opened.check_finalist
        self._notes: list[str] = []
        self._launch_factors: list[float] = []

    @property
    def end_s(self) -> float:
        """When the budget ends, on the runner's clock. No block is repeated after it because of noise."""
        return self.runner.patient_until_s

    @end_s.setter
    def end_s(self, value: float) -> None:
        self.runner.patient_until_s = value

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates of the space, the baseline first."""
        return self.space.candidates

    @property
    def is_enough(self) -> bool:
        """Whether so little is left to gain that the user does not want more candidates to be tried."""
        if self.until is None or self.gain_left is None:
            return False
        return math.expm1(self.gain_left) <= self.until

    def replan(self, plan: SearchPlan) -> None:
        """Split the time that is left in another way."""
        self.plan = plan
        self.longest_confirmation_s = plan.confirmation_s

    def now_s(self) -> float:
        """Return the time on the runner's clock."""
        return self.runner.now_s()

    def is_doubtful(self, result: CandidateResult) -> bool:
        """Return whether a candidate was measured while the host was busy, on a host that is usually quiet."""
        return result.is_contended and not self.runner.is_mostly_contended

    @contextlib.contextmanager
    def time_stage(self, stage: Stage) -> Iterator[None]:
        """Record the time of a stage, unless it is interrupted or has no time for a launch."""
        start_s, inference_s, n_launches = self.now_s(), self.runner.inference_s, self.n_launches
        self.stage_start_s = start_s
        yield
        if self.n_launches > n_launches:
            wall_s = self.now_s() - start_s
            self.stages.append(StageTime(stage=stage, wall_s=wall_s, inference_s=self.runner.inference_s - inference_s))

    def add_note(self, text: str) -> None:
        """Add a note to the next report."""
        self._notes.append(text)

    def check_finalist(self, result: CandidateResult, n_finalists: int = 1) -> bool:
        """Check outputs of a finalist that blocks do not show. Return whether it may be confirmed.

        Args:
            result: The finalist.
            n_finalists: Number of those that share the time.
        """
        if self._check_finalist is None:
            return True
        left_s = CHECK_SHARE * max(self.end_s - self.now_s(), 0.0) / n_finalists
        failure = self._check_finalist(result.candidate.config, left_s)
        if failure:
            self.reject(result, failure)
        return failure is None

    def reject(self, result: CandidateResult, failure: Failure) -> None:
        """Reject a candidate that failed, and note why."""
        result.failure = failure
        self.add_note(f"rejected: {result.candidate.label}: {failure.title}: {shorten(failure.message)}")

    def report(
        self,
        stage: Stage,
        done: int,
        total: int | None,
        best: CandidateResult | None,
        speedup: Interval | None = None,
        *,
        end_s: float,
        then_s: float = 0.0,
        may_end_early: bool = True,
    ) -> None:
        """Report progress.

        Args:
            stage: The current stage.
            done: Steps done.
            total: Steps in all, or None.
            best: The best candidate so far, or None.
            speedup: Its speedup; None for an estimate from its rounds in this stage.
            end_s: When the stage will probably end, on the runner's clock.
            then_s: How long the stages after it will probably take.
            may_end_early: Whether the search may end long before that.
        """
        now_s = self.now_s()
        self.observe(
            Progress(
                stage=stage,
                done=done,
                total=total,
                share=min((now_s - self.stage_start_s) / max(end_s - self.stage_start_s, 1e-9), 1.0),
                left_s=max(end_s - now_s, 0.0) + then_s,
                may_end_early=may_end_early,
                best=best.candidate if best else None,
                speedup=speedup or (estimate_speedup(best.round_log_ratios) if best and best.scores else None),
                gain_left=math.expm1(self.gain_left) if stage == "screening" and self.gain_left is not None else None,
                notes=tuple(self._notes),
            )
        )
        self._notes.clear()

    @contextlib.contextmanager
    def launch(self, results: Sequence[CandidateResult]) -> Iterator[LiveRound]:
        """Launch the baseline and candidates, and close them at the end.

        Each launch of the baseline is new, because two launches differ. Candidates that fail are rejected, or starved
        if they run out of memory beside others.

        Raises:
            MeasureError: The baseline fails.
        """
        begin_s = self.now_s()
        answers = self.start([self.space.base, *(result.candidate.config for result in results)])
        if self.plan.launch_s > 0:
            planned_s = launch_sides_s(self.plan.launch_s, len(answers))
            self._launch_factors.append((self.now_s() - begin_s) / planned_s)
        self.n_launches += 1
        lives = {position: answer for position, answer in enumerate(answers) if not isinstance(answer, Failure)}
        live = LiveRound(self, [self.baseline, *results], lives)
        try:
            for position, answer in enumerate(answers[1:], 1):
                if isinstance(answer, Failure):
                    live.drop(position, answer, n_live=len(results))
            if isinstance(failure := answers[BASELINE_POSITION], Failure):
                raise_failure(BASELINE_NAME, failure)
            yield live
        finally:
            for candidate in lives.values():
                candidate.close()

    def expect_launch_s(self, n_sides: int) -> float:
        """Return how long it probably takes to launch so many sides together, in seconds, given the last launches."""
        factor = statistics.median(self._launch_factors[-LAST_LAUNCHES:] or [1.0])
        return factor * launch_sides_s(self.plan.launch_s, n_sides)

    def start(self, configs: Sequence[Config]) -> Sequence[LiveCandidate | Failure]:
        """Return launched candidates, or those that are launched for each block if two do not fit into memory."""
        if self.runner.one_at_a_time:
            return [FreshCandidate(self.runner, config) for config in configs]
        # Copies of a process share memory with it.
        return self.runner.launch(configs, independent="memory" in self.goal.figures)

    def limit_live(self, measured: Round) -> None:
        """Plan fewer live candidates if more of those on a GPU do not fit into its memory."""
        states = {position: block.gpu for position, block in measured.blocks.items() if block.gpu}
        n_fitting = count_on_gpu(list(states.values()), LIVE_MEMORY_SHARE)
        if n_fitting is not None and not self.runner.one_at_a_time:
            max_live = max(n_fitting if BASELINE_POSITION in states else n_fitting + 1, 2)
            self.plan = msgspec.structs.replace(self.plan, max_live=min(self.plan.max_live, max_live))


class LiveRound:
    """The baseline and candidates that are live, and measured in rounds.

    Args:
        board: The search.
        results: The results of the baseline and of the candidates, by position.
        lives: Those that are live, by position.
    """

    def __init__(self, board: Board, results: list[CandidateResult], lives: dict[int, LiveCandidate]) -> None:
        self.lives = lives
        self._board = board
        self._results = results
        self._launch = board.n_launches

    def candidates(self) -> list[tuple[int, CandidateResult]]:
        """Return the position and the result of each candidate that is live."""
        return [(position, self._results[position]) for position in sorted(self.lives) if position != BASELINE_POSITION]

    def next_block(self) -> BlockPlan | None:
        """Return how the blocks of the next round are measured; None if no candidate is left."""
        return self._board.plan.block if len(self.lives) > 1 else None

    def rounds(self, most: int) -> Iterator[Round]:
        """Return an iterator that measures rounds, until no candidate is left."""
        return itertools.islice(self._board.runner.measure_rounds(self.lives, self.next_block), most)

    def add(self, measured: Round) -> None:
        """Add a round to the results.

        Raises:
            MeasureError: The baseline failed.
        """
        board, n_live = self._board, len(self.lives) - 1
        board.results.add_round(self._results, measured, self._results[-1].stage, self._launch)
        board.limit_live(measured)
        for position, failure in measured.failures.items():
            self.drop(position, failure, n_live=n_live)

    def drop(self, position: int, failure: Failure | None = None, *, n_live: int = 0) -> None:
        """End a candidate.

        Args:
            position: Its position.
            failure: Why it failed; None if it works.
            n_live: How many candidates shared the memory when it failed.
        """
        board, result = self._board, self._results[position]
        if live := self.lives.pop(position, None):
            live.close()
        if failure is None:
            return
        if failure.kind == "out_of_memory" and n_live > 1 and not board.runner.one_at_a_time:
            result.failure = None
            board.starved.append(result)
        else:
            board.reject(result, failure)


def shorten(text: str, length: int = MAX_NOTE_LENGTH) -> str:
    """Return the first line of a text, cut to a length."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= length else line[: length - 1] + "…"


def estimate_speedup(log_ratios: Sequence[float]) -> Interval:
    """Return the speedup with its interval from log-ratios to the baseline: a first estimate, not a claim."""
    return t_interval([-value for value in log_ratios]).exp()
