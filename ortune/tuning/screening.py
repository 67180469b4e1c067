"""Screening: proposes candidates, and measures a few blocks of each to find the promising ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import optuna
from numpy.typing import NDArray

from ortune.knobs import Candidate, SearchSpace
from ortune.measure.block_plan import block_wall_s
from ortune.measure.judge import NEGLIGIBLE_GAIN
from ortune.tuning.board import Board, LiveRound, ScreeningResult
from ortune.tuning.first_candidates import FirstCandidates
from ortune.tuning.noise import MEDIAN_VARIANCE
from ortune.tuning.pairs import list_pairs
from ortune.tuning.plan import (
    LONGEST_RACING,
    SCREENING_BATCH,
    allow_slow_launches,
    reserve_confirmation,
    unpromising_confirmation_s,
)
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import CONFIG, Observed, ThompsonSampler
from ortune.tuning.verdict import format_bound

ROUNDS_BEFORE_DROPPING = 2
HOPELESS = 0.2
HOPELESS_AT_ONCE = 0.7
"""A candidate is dropped early if its log-ratio to the baseline is above this in all rounds: after two rounds, or after
the first one if it is twice as slow."""

STALE_ASKS = 6
"""Consecutive proposals of known candidates after which untried ones are taken at random."""

WORTH_LEARNING = 0.0005
"""Minimum expected gain, as a log-ratio, for screening to continue."""

CHECK_EVERY = 2 * SCREENING_BATCH
"""Candidates between two checks of the expected gain."""

LEAST_DIFFERENCE = 0.03
MOST_NOISY_ROUNDS = 6
"""Luck of launches that is assumed to choose the number of rounds, and its maximum where the host is noisy."""

PROMISING = 0.015
"""While no candidate is expected to gain this much, as a log-ratio, screening uses the time of the other stages."""

HOPELESS_GAIN = 0.01
FEWEST_SHARE = 0.15
"""If all choices and all harmless pairs of choices were tried, and no candidate is expected to gain this much, as a
log-ratio, screening ends once this share of the budget is spent: who gives more time wants more to be tried."""

ALL_PAIRS_TRIED = "no setting and no pair of settings is expected to gain 1%"
"""Why screening ended if nothing is promising after all settings and pairs of settings were tried."""

NOTHING_STANDS_OUT = "no candidate is expected to gain more than the noise of a launch"
"""Why screening ended if no candidate was promising after all choices, a further batch of candidates, and the same
share of the budget. Racing then shows sooner than screening whether any of them gains."""

N_LEADERS = 3
"""The best measured candidates, whose neighbors are tried, and which are launched again."""

LAUNCH_AGAIN_EVERY = 2
"""Of so many batches, one launches a leader again, so that luck of its launch does not decide."""

PROMISING_ERRORS = 1.0
"""A candidate is not promising either while its expected gain is below so many standard errors of one launch."""

DOUBTFUL = 0.05
DOUBTFUL_ERRORS = 2.0
DOUBTFUL_LAUNCHES = 3
N_DOUBTFUL = 3
"""If all pairs of choices were tried, and the best candidate is not expected to gain more than this, as a log-ratio or
in standard errors of one launch, the leaders are launched again until each has so many launches. After that, each batch
launches the best ones again. If their gain is luck, screening then ends."""


Proposed = list[tuple[optuna.Trial, CandidateResult]]
"""New candidates with their trials."""

Duplicates = list[tuple[optuna.Trial, Candidate]]
"""Proposals of candidates that are among these already, with their trials."""


def screen(board: Board, screening: Screening) -> ScreeningResult:
    """Screen candidates until time, trials or candidates run out, or no further gain is expected.

    Args:
        board: The search.
        screening: What proposes candidates, and learns from results.
    """
    with board.time_stage("screening"), screening.keep_if_interrupted():
        screening.begin()
        while batch := screening.next_batch():
            for group in screening.list_groups(batch):
                with board.launch(group) as live:
                    for n_rounds, measured in enumerate(live.rounds(screening.choose_rounds()), 1):
                        live.add(measured)
                        screening.report()
                        # A host that became busy makes rounds much longer than planned.
                        if board.now_s() >= board.end_s:
                            break
                        screening.drop_hopeless(live, n_rounds)
            screening.finish(batch)
        screening.end()
    return screening.conclude()


class ScreeningBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates that are screened together.

    Attributes:
        proposed: New candidates with their trials.
        again: Candidates that were measured before.
        duplicates: Proposals of new candidates of the batch, which get the same results.
        begin_s: When it was chosen, on the runner's clock.
        first_launch: Number of its first launch.
    """

    proposed: Proposed
    again: list[CandidateResult]
    duplicates: Duplicates
    begin_s: float
    first_launch: int

    @property
    def results(self) -> list[CandidateResult]:
        """The results of all its candidates."""
        return [*(result for _, result in self.proposed), *self.again]


class Screening:
    """Proposes candidates for a search, learns from their results, and decides when it is enough.

    Attributes:
        next_check: Number of screened candidates at which the expected gain is checked next.
        noise: Noise of the rounds: that of the board.
        first: Candidates that are screened before the sampler proposes any.
        has_paired: Whether the pairs of the best choices are in the queue.
        n_batches: Batches so far.
        n_done: Candidates of all batches that are complete.
        best: The best of them so far.
        expected: Log-ratio that each measured candidate is expected to have, by the key of its config.
        predicted: The same of all candidates, in the order of the space. Those that were added since are missing.
        expected_best: Gain that is expected of the best of all candidates, as a log-ratio.
        racing_s: Time that racing needs, as far as is known.
        confirmation_s: Time that the confirmation needs.
        ended_early: Why it ended before its time; empty if it did not.
    """

    def __init__(self, board: Board, study: optuna.Study) -> None:
        self.board = board
        self.study = study
        self.space: SearchSpace = board.space
        self.sampler = study.sampler if isinstance(study.sampler, ThompsonSampler) else None
        self.next_check = 0
        self.noise = board.noise
        self.n_batches = 0
        self.n_done = 0
        self.best: CandidateResult | None = None
        self.expected: dict[str, float] = {}
        self.predicted: NDArray[np.float64] = np.zeros(0)
        self.expected_best = math.inf
        self.racing_s = board.plan.racing_s
        self.confirmation_s = board.plan.confirmation_s
        self.ended_early = ""
        self.has_paired = False
        self._batch_s = 0.0
        if self.sampler:
            self.extend(candidate for config in board.hints if (candidate := self.space.find(config)))
        self.first = FirstCandidates(board, self.space, self.count_earlier())
        self.learn([result for result in board.results if result is not board.baseline])
        for candidate in self.first.now:
            self.enqueue(candidate)

    # What a search on several hosts does in another way; see `ortune.tuning.shared_job`.

    def count_earlier(self) -> int:
        """Return how many hosts began with the first candidates before this one."""
        return 0

    def enqueue(self, candidate: Candidate) -> None:
        """Put a candidate in Optuna's queue."""
        self.study.enqueue_trial(self.space.labels_of(candidate))

    def receive(self) -> bool:
        """Add results that were measured elsewhere, and return whether there were any."""
        return False

    def is_over(self) -> bool:
        """Return whether screening has ended elsewhere."""
        return False

    def is_known(self, candidate: Candidate) -> bool:
        """Return whether a candidate was measured, or is about to be."""
        return candidate in self.board.results

    @property
    def n_screened(self) -> int:
        """Number of candidates screened, without the baseline."""
        return len(self.board.results) - 1

    def list_untried(self) -> list[Candidate]:
        """Return the candidates that may still be proposed."""
        return [candidate for candidate in self.board.candidates if not self.is_known(candidate)]

    def is_left(self, trial: optuna.Trial, candidate: Candidate) -> bool:
        """Return whether a proposed candidate is left to others."""
        return False

    def is_queued(self, trial: optuna.Trial) -> bool:
        """Return whether a proposal comes from a queue that others work on, too."""
        return False

    def admit(self, candidate: Candidate) -> CandidateResult:
        """Return the empty result of a candidate that is measured now."""
        return self.board.results.get_or_add(candidate)

    def take(self, proposed: Proposed) -> Proposed:
        """Return the candidates that are measured here."""
        return proposed

    def rank_to_launch_again(self, leaders: list[CandidateResult]) -> list[CandidateResult]:
        """Return leaders in the order in which they are launched again."""
        return sorted(leaders, key=lambda result: result.n_launches)

    def end(self) -> None:
        """Let others know that screening has ended here."""

    # The steps of a batch.

    def begin(self) -> None:
        """Begin with what is known already."""
        if self.receive():
            self.update_expected()
            self.replan()
        self.report()

    def next_batch(self) -> ScreeningBatch | None:
        """Choose the candidates that are measured next; None if screening ends."""
        board = self.board
        while (left := self.n_to_screen - self.n_screened) > 0:
            begin_s = board.now_s()
            # A batch that would end long after the planned time would shorten racing and confirmation.
            if begin_s + self._batch_s / 2 >= self.find_end_s() or self.is_over() or self.is_complete():
                return None
            if self.n_batches:
                for candidate in self.first.take_waiting(self.find_known, self.n_screened):
                    self.enqueue(candidate)
            n = min(board.plan.batch, board.plan.max_live - 1)
            again = self.choose_to_launch_again() if n > 1 else []
            proposed, duplicates = self.propose(min(n - len(again), left))
            if not proposed and not again:
                return None
            proposed = self.take(proposed)
            batch = ScreeningBatch(
                proposed=proposed,
                again=again,
                duplicates=duplicates,
                begin_s=begin_s,
                first_launch=board.n_launches + 1,
            )
            if batch.results:
                self.n_batches += 1
                return batch
            self.update(begin_s)
        return None

    def list_groups(self, batch: ScreeningBatch) -> Iterator[list[CandidateResult]]:
        """Yield the candidates that are launched together: the batch, then each that lacked memory, alone."""
        yield batch.results
        while self.board.starved:
            yield [self.board.starved.pop()]

    def drop_hopeless(self, live: LiveRound, n_rounds: int) -> None:
        """End the candidates that are far behind the baseline after so many rounds of their launch."""
        hopeless = HOPELESS if n_rounds >= ROUNDS_BEFORE_DROPPING else HOPELESS_AT_ONCE
        for position, result in live.candidates():
            if self.is_hopeless(result, hopeless):
                live.drop(position)

    def finish(self, batch: ScreeningBatch) -> None:
        """Report the results of a batch to Optuna, and plan what follows."""
        self.learn_batch(batch)
        self.update(batch.begin_s)

    def learn_batch(self, batch: ScreeningBatch) -> None:
        """Let the sampler and Optuna know the results of a batch."""
        corrected = self.board.results.correct_slow_launches()
        self.learn([*batch.results, *(result for result in corrected if result not in batch.results)])
        for trial, result in batch.proposed:
            self.finish_trial(trial, result)
        for trial, candidate in batch.duplicates:
            self.finish_trial(trial, self.board.results[candidate])

    def update(self, begin_s: float) -> None:
        """Plan what follows a batch that began at a time on the runner's clock."""
        board = self.board
        self._batch_s = board.now_s() - begin_s
        self.receive()
        self.update_expected()
        self.replan()
        self.n_done = self.n_screened
        self.best = next(iter(board.results.rank()), None)
        self.report()

    def conclude(self) -> ScreeningResult:
        """Return what the model expects of candidates."""
        board = self.board
        found = ScreeningResult(
            ended_early=self.ended_early,
            is_unpromising=self.ended_early == ALL_PAIRS_TRIED or (board.is_enough and self.is_unpromising),
            racing_s=self.racing_s,
            confirmation_s=self.confirmation_s,
        )
        if not self.sampler:
            return found
        return msgspec.structs.replace(
            found,
            expected={
                key: float(self.predicted[number])
                for key, number in self.space.numbers.items()
                if number < len(self.predicted)
            },
            unseen_gain=self.sampler.bound_gain(self.study),
            luck=self.sampler.luck,
            sigmas=(self.sampler.pair_luck, math.sqrt(self.noise.variance)),
        )

    @contextlib.contextmanager
    def keep_if_interrupted(self) -> Iterator[None]:
        """Keep what was found until an interrupt."""
        try:
            yield
        except KeyboardInterrupt:
            self.board.screened = self.conclude()
            raise

    def learn(self, results: list[CandidateResult]) -> None:
        """Let the sampler know what candidates showed."""
        self.noise.update(results)
        for result in results:
            self.observe(result)

    def find_end_s(self) -> float:
        """Return when screening ends, on the runner's clock: racing and confirmation need the rest of the time."""
        return self.board.end_s - self.racing_s - self.confirmation_s

    def report(self) -> None:
        """Report progress: of all candidates of the space, how many were screened."""
        board = self.board
        planned_s = self.find_end_s()
        end_s = planned_s
        if self.n_done:
            now_s = board.now_s()
            n_left = self.n_to_screen - self.n_done
            end_s = min(end_s, now_s + n_left * (now_s - board.stage_start_s) / self.n_done)
        # If no candidates are left before the planned time, the other stages get more time than planned.
        then_s = self.racing_s + self.confirmation_s
        if end_s < planned_s:
            # Also those that are not promising then race.
            then_s = min(board.end_s - end_s, LONGEST_RACING * board.plan.racing_s + board.plan.confirmation_s)
        board.report("screening", self.n_done, len(board.candidates) - 1, self.best, end_s=end_s, then_s=then_s)

    @property
    def n_to_screen(self) -> int:
        """Maximum number of candidates to screen."""
        n = len(self.board.candidates) - 1
        return n if self.board.n_trials is None else min(n, self.board.n_trials)

    def find_known(self, candidate: Candidate) -> CandidateResult | None:
        """Return what is known of a candidate, or None if it was not measured."""
        return self.board.results[candidate] if self.is_known(candidate) else None

    @property
    def usual_error(self) -> float:
        """Standard error of a log-ratio in one launch due to the noise of its rounds."""
        return math.sqrt(MEDIAN_VARIANCE * self.noise.variance / self.board.plan.screening_rounds)

    @property
    def best_gain(self) -> float:
        """Gain that is expected of the best candidate so far, as a log-ratio."""
        return -min(self.expected.values(), default=0.0)

    def update_expected(self) -> None:
        """Find what the model expects, and let the sampler know which candidates lead."""
        board = self.board
        if not self.sampler:
            return
        self.sampler.describe_baseline(board.results.spread_baseline(), self.noise.baseline_share)
        expected = self.sampler.expected()
        self.predicted = expected
        self.expected = {
            result.candidate.config.key: float(expected[self.space.numbers[result.candidate.config.key]])
            for result in board.results
            if result is not board.baseline
        }
        self.expected_best = -float(expected.min())
        board.gain_left = self.bound_gain_left(expected)
        is_beyond_noise = self.expected_best >= max(PROMISING, PROMISING_ERRORS * self.usual_error)
        self.sampler.is_promising = is_beyond_noise or len(board.goal.objectives) > 1
        leaders = [result for result in board.results.rank() if not result.excess]
        # Most of the lead of a candidate that was measured while the host was busy is chance.
        leaders = sorted(leaders, key=board.is_doubtful)[:N_LEADERS]
        self.sampler.leaders = [self.space.numbers[result.candidate.config.key] for result in leaders]
        if self.n_screened >= self.first.n:
            self.refine(expected)
            if not self.has_paired:
                self.has_paired = True
                self.pair_choices(expected)

    def bound_gain_left(self, expected: NDArray[np.float64]) -> float | None:
        """Return by how much any candidate is better than the best one so far, at most, as a log-ratio.

        Args:
            expected: The log-ratio to the baseline that each candidate is expected to have.

        Returns:
            A bound that holds with a probability of 95 %; None with several objectives, and while no candidate is known
            to stay within the limits.
        """
        board = self.board
        measured = [result for result in board.results if result is board.baseline or result.log_ratios is not None]
        numbers = [self.space.numbers[result.candidate.config.key] for result in measured if not result.excess]
        if len(board.goal.objectives) > 1 or not numbers:
            return None
        assert self.sampler
        return self.sampler.bound_gain_left(min(numbers, key=lambda number: float(expected[number])))

    def refine(self, expected: NDArray[np.float64]) -> None:
        """Add candidates that the space does not list: with values between those of its choices.

        These are the candidates next to the best ones, and all that have such a value in common with the best one. And
        choices for different parts of a program that win alone are combined.

        Args:
            expected: The log-ratio to the baseline that each candidate is expected to have.
        """
        assert self.sampler
        tried = np.array([self.space.numbers[result.candidate.config.key] for result in self.board.results])
        best = int(tried[np.argmin(expected[tried])])
        adjacent = self.space.refine(best)
        found = [*adjacent, *(candidate for leader in self.sampler.leaders for candidate in self.space.refine(leader))]
        found += self.space.combine(self.space.candidates[best].labels)
        found += self.space.join(best, {int(number): -float(expected[number]) for number in tried})
        self.extend(found)
        self.sampler.adjacent = [self.space.numbers[candidate.config.key] for candidate in adjacent]

    def pair_choices(self, expected: NDArray[np.float64]) -> None:
        """Put the pairs of the best choices in Optuna's queue.

        Args:
            expected: The log-ratio to the baseline that each candidate is expected to have.
        """
        keeping = [
            result.candidate for result in self.board.results if result.log_ratios is not None and not result.excess
        ]
        gains = [(candidate, -float(expected[self.space.numbers[candidate.config.key]])) for candidate in keeping]
        for candidate in list_pairs(self.space, gains):
            if not self.is_known(candidate):
                self.enqueue(candidate)

    def extend(self, candidates: Iterable[Candidate]) -> None:
        """Add those candidates that the space does not have."""
        assert self.sampler
        extended = self.space.extend(candidates)
        if len(extended.candidates) > len(self.space.candidates):
            self.space = self.board.space = extended
            self.sampler.extend(extended)

    def replan(self) -> None:
        """Leave only as much time for racing and confirmation as the best candidate so far needs."""
        board = self.board
        if board.results.describe_earlier().n_slow:
            board.plan = allow_slow_launches(board.plan)
        if not self.expected or len(board.goal.objectives) > 1:
            return
        assert self.sampler
        if self.best_gain < PROMISING:
            self.racing_s = 0.0
            self.confirmation_s = unpromising_confirmation_s(board.plan, board.goal, board.pace)
            return
        self.racing_s = board.plan.racing_s
        self.confirmation_s = reserve_confirmation(
            board.plan,
            board.goal,
            board.pace,
            gain=self.best_gain,
            launch_sigma=self.sampler.pair_luck,
            round_sigma=math.sqrt(self.noise.variance),
        )

    def is_complete(self) -> bool:
        """Return whether no further gain is expected, and note it."""
        self.ended_early = self.explain_end()
        if self.ended_early:
            self.board.add_note(f"screening ended early: {self.ended_early}")
        return bool(self.ended_early)

    def explain_end(self) -> str:
        """Return why no further gain is expected, or "" if one may be."""
        board = self.board
        if not self.sampler:
            return ""
        if board.is_enough:
            return f"no candidate is likely to gain {format_bound(board.until or 0.0)} more than the best one so far"
        if self.n_screened < self.first.n:
            return ""
        if self.tried_all_pairs():
            return ALL_PAIRS_TRIED
        if self.nothing_stands_out():
            return NOTHING_STANDS_OUT
        if self.n_screened < self.next_check:
            return ""
        self.next_check = self.n_screened + CHECK_EVERY
        self.sampler.baseline_keeps = not board.baseline.excess
        expected_gain = self.sampler.expected_gain(self.study)
        left = len(board.candidates) - len(board.results)
        if expected_gain < WORTH_LEARNING:
            return f"the {left} untried candidates are expected to gain less than {WORTH_LEARNING:.2%} more"
        if self.is_futile(expected_gain):
            return f"none of the {left} untried candidates is likely to gain more than {NEGLIGIBLE_GAIN:.0%}"
        return ""

    @property
    def is_unpromising(self) -> bool:
        """Whether no candidate is expected to gain anything."""
        assert self.sampler
        return self.expected_best < HOPELESS_GAIN and not self.sampler.is_promising

    def tried_all_pairs(self) -> bool:
        """Return whether all choices and all pairs of them were tried, and nothing is expected to gain anything."""
        assert self.sampler
        return self.is_unpromising and self.may_end() and not self.sampler.has_new_pairs(self.study)

    def nothing_stands_out(self) -> bool:
        """Return whether all choices and a further batch were tried, and no candidate is promising."""
        assert self.sampler
        is_promising = self.sampler.is_promising  # always, with several objectives
        return not is_promising and self.n_screened >= self.first.n + SCREENING_BATCH and self.may_end()

    def may_end(self) -> bool:
        """Return whether a share of the budget was spent, and the baseline stays within the limits."""
        board = self.board
        return not board.baseline.excess and board.end_s - board.now_s() <= (1 - FEWEST_SHARE) * board.planned_s

    def is_futile(self, expected_gain: float) -> bool:
        """Return whether nothing that was tried is promising, and nothing else is likely to gain enough to matter."""
        assert self.sampler
        negligible = math.log1p(NEGLIGIBLE_GAIN)
        if len(self.board.goal.objectives) > 1 or not self.sampler.baseline_keeps or expected_gain > negligible:
            return False
        return self.best_gain < PROMISING and self.sampler.bound_gain(self.study) < negligible

    def choose_to_launch_again(self) -> list[CandidateResult]:
        """Return a leader to launch again in the next batch, or none."""
        if not self.sampler or self.n_screened < self.first.n:
            return []
        leaders = [result for result in self.board.results.rank() if not result.excess and not result.failure]
        is_clear = self.expected_best >= max(DOUBTFUL, DOUBTFUL_ERRORS * self.usual_error)
        if not is_clear and len(self.board.goal.objectives) == 1 and not self.sampler.has_new_pairs(self.study):
            better = [result for result in leaders if -(result.log_ratio or 0.0) > HOPELESS_GAIN]
            unsure = [result for result in better if result.n_launches < DOUBTFUL_LAUNCHES]
            return unsure[: min(self.board.plan.batch, self.board.plan.max_live - 1)] or better[:N_DOUBTFUL]
        if self.n_batches % LAUNCH_AGAIN_EVERY:
            return []
        return self.rank_to_launch_again(leaders[:N_LEADERS])[:1]

    def list_labels(self) -> dict[str, list[str]]:
        """Return the choices of each dimension for Optuna."""
        # The other strategies would spread their trials over the values between those of the space.
        return {
            dimension.name: list(dimension.labels) if self.sampler else [choice.label for choice in dimension.choices]
            for dimension in self.space.dimensions
        }

    def propose(self, n: int) -> tuple[Proposed, Duplicates]:
        """Return up to `n` new candidates, and further proposals of the same.

        Optuna gets the known result of a proposal that was measured before.
        """
        batch: Proposed = []
        duplicates: Duplicates = []
        n_stale = 0
        labels = self.list_labels()
        while len(batch) < n:
            if n_stale == STALE_ASKS and not self.enqueue_untried():
                break
            trial = self.study.ask()
            candidate = self.space.draw(
                lambda dimension, trial=trial: trial.suggest_categorical(  # type: ignore[misc]
                    dimension.name, labels[dimension.name]
                )
            )
            if self.is_left(trial, candidate):
                n_stale += not self.is_queued(trial)
                continue
            key = candidate.config.key
            trial.set_user_attr(CONFIG, key)
            if not self.is_known(candidate):
                n_stale = 0
                batch.append((trial, self.admit(candidate)))
            elif any(key == result.candidate.config.key for _, result in batch):
                duplicates.append((trial, candidate))
                n_stale += 1
            else:
                self.finish_trial(trial, self.board.results[candidate])
                n_stale += not self.is_queued(trial)
        return batch, duplicates

    def enqueue_untried(self) -> bool:
        """Put a random untried candidate in Optuna's queue, or return False if there is none left."""
        untried = self.list_untried()
        if not untried:
            return False
        self.enqueue(untried[int(self.board.runner.rng.integers(len(untried)))])
        return True

    def choose_rounds(self) -> int:
        """Return the number of rounds of each launch: more on a noisy host, if there is time for them.

        It minimizes the time per information, `(launch + n * round) * (luck**2 + noise**2 / n)`.
        """
        board = self.board
        if not self.sampler or board.plan.one_at_a_time:
            return board.plan.screening_rounds
        n = board.plan.batch + 1
        round_s = n * block_wall_s(board.plan.block, board.pace)
        noise = math.sqrt(MEDIAN_VARIANCE * self.noise.variance)
        best = math.sqrt(board.expect_launch_s(n) / round_s) * noise / LEAST_DIFFERENCE
        fitting = int((board.end_s - board.now_s()) / round_s)
        return max(board.plan.screening_rounds, min(round(best), MOST_NOISY_ROUNDS, fitting))

    def is_hopeless(self, result: CandidateResult, hopeless: float) -> bool:
        """Return whether a candidate's log-ratio to the baseline is above `hopeless` in all rounds and objectives."""
        if self.board.is_doubtful(result):
            return False
        ratios = (value for score in result.scores for value in score.log_ratios)
        return all(value > hopeless for value in ratios) and result.excess >= self.board.baseline.excess

    def observe(self, result: CandidateResult) -> None:
        """Let the sampler know what the launches of a candidate showed."""
        if not self.sampler:
            return
        number = self.space.numbers[result.candidate.config.key]
        observed = [observation for observation in self.sampler.observed if observation.number != number]
        if result.failure:
            observed.append(Observed(number, None, 0.0, 0.0, False, -1 - number))
        elif result.log_ratios is not None:
            # Relative to the baseline, which is 0 in the model.
            excess = result.excess - self.board.baseline.excess
            is_doubtful = self.board.is_doubtful(result)
            for launch, log_ratios, variance in self.noise.list_launches(result, is_doubtful=is_doubtful):
                observed.append(Observed(number, log_ratios, variance, excess, not result.excess, launch))
        self.sampler.observed = observed

    def finish_trial(self, trial: optuna.Trial, result: CandidateResult) -> None:
        """Report a candidate's log-ratios and excesses over limits to Optuna, or that it failed."""
        if result.failure:
            trial.set_user_attr("failure", result.failure.message)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        for limit, excess in zip(self.board.goal.limits, result.excesses, strict=False):
            trial.set_constraint(limit.text, excess)
        if result.log_ratios is not None:
            self.study.tell(trial, list(result.log_ratios))
        elif result is self.board.baseline:
            self.study.tell(trial, [0.0] * len(self.board.goal.objectives))
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
