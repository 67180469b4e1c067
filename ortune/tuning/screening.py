"""Screening: proposes candidates, and measures a few blocks of each to find the promising ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import optuna

from ortune.knobs import Candidate, SearchSpace
from ortune.tuning.plan import BATCH
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import CONFIG, EXCESS, KEEPS, VARIANCE, ThompsonSampler
from ortune.tuning.state import SearchState
from ortune.worker import LiveCandidate

ROUNDS_BEFORE_DROPPING = 2
HOPELESS = 0.2
HOPELESS_AT_ONCE = 0.7
"""A candidate is dropped early if its log-ratio to the baseline is above this in all rounds: after two rounds, or after
the first one if it is twice as slow."""

STALE_ASKS = 6
"""Consecutive proposals of known candidates after which untried ones are taken at random."""

WORTH_LEARNING = 0.0005
"""Minimum expected gain, as a log-ratio, for screening to continue."""

CHECK_EVERY = 3 * BATCH
"""Candidates between two checks of the expected gain."""

USUAL_NOISE = 0.03
"""Standard deviation of a block's log-ratio, until enough of them are known."""

LAUNCH_SIGMA = 0.01
LAUNCH_SIGMA_OF_CALLERS = 0.04
"""Standard deviation between launches of one config, which the rounds of one launch do not show: with one caller, and
with several."""

BUSY_SIGMA = 0.25
"""Standard deviation of a candidate that was measured while the host was busy."""


def run_screening(state: SearchState, study: optuna.Study) -> None:
    """Screen candidates until time, trials or candidates run out, or no further gain is expected."""
    with state.time_stage("screening"):
        _Screening(state, study).run()


def first_selections(state: SearchState) -> Iterator[dict[str, str]]:
    """Yield the labels of candidates to screen before the sampler proposes any. Missing labels mean the default.

    "random" and "exhaustive" start with the baseline only, to be comparable with other tuners. "adaptive" starts with
    the best of earlier searches, the advice of the documentation, and each choice alone, to learn the effects.
    """
    yield {}
    if state.strategy in {"random", "exhaustive"}:
        return
    space = state.space
    if state.strategy == "adaptive":
        for config in state.hints:
            number = space.numbers.get(config.key)
            if number is not None:
                yield dict(space.candidates[number].labels)
        for rule in space.rules:
            yield dict(rule.labels)
    yield from space.one_factor()


class _Screening:
    """The screening of one search.

    Attributes:
        duplicates: Proposals of candidates of the current batch, which get the same result.
        next_check: Number of screened candidates at which the expected gain is checked next.
        round_variance: Variance of the log-ratio of one round.
        n_first: Candidates that are screened before the sampler proposes any.
    """

    def __init__(self, state: SearchState, study: optuna.Study) -> None:
        self.state = state
        self.study = study
        self.space: SearchSpace = state.space
        self.duplicates: list[tuple[optuna.Trial, Candidate]] = []
        self.next_check = 0
        self.round_variance = USUAL_NOISE**2
        known: set[str] = set()
        for selection in first_selections(state):
            candidate = self.space.select(selection)
            # Two rules, or a rule and a hint, may give the same candidate.
            if candidate.config.key not in known and candidate.config.key in self.space.numbers:
                known.add(candidate.config.key)
                self.enqueue(candidate)
        self.n_first = len(known) - 1

    def enqueue(self, candidate: Candidate) -> None:
        """Put a candidate in Optuna's queue."""
        self.study.enqueue_trial(self.space.labels_of(candidate))

    def run(self) -> None:
        """Screen batches of candidates."""
        state = self.state
        start_s = state.now_s()
        end_s = start_s + state.plan.screening_s
        total = len(state.candidates) - 1
        if state.n_trials is not None:
            total = min(total, state.n_trials)
        baseline = state.launch_baseline()
        try:
            batch_s = 0.0
            # A batch that would end long after the planned time would shorten racing and confirmation.
            while (begin_s := state.now_s()) + batch_s / 2 < end_s and (left := total - self.n_screened) > 0:
                if self.is_complete():
                    break
                batch = self.propose(min(state.plan.batch, state.plan.max_live - 1, left))
                if not batch:
                    break
                self.measure(baseline, batch)
                batch_s = state.now_s() - begin_s
                ranked = state.results.rank()
                done = self.n_screened
                state.report(
                    "screening",
                    done,
                    min(total, state.estimate_total(done, start_s, end_s)),
                    ranked[0] if ranked else None,
                )
        finally:
            baseline.close()
        sampler = self.study.sampler
        if isinstance(sampler, ThompsonSampler):
            expected = sampler.expected(self.study)
            state.unseen_gain = sampler.bound_gain(self.study)
            state.expected = {key: float(expected[number]) for key, number in self.space.numbers.items()}

    @property
    def n_screened(self) -> int:
        """Number of candidates screened, without the baseline."""
        return len(self.state.results) - 1

    def is_complete(self) -> bool:
        """Return whether no further gain is expected, and note it."""
        state, sampler = self.state, self.study.sampler
        if not isinstance(sampler, ThompsonSampler) or self.n_screened < max(self.n_first, self.next_check):
            return False
        self.next_check = self.n_screened + CHECK_EVERY
        sampler.baseline_keeps = not state.baseline.excess
        if sampler.expected_gain(self.study) >= WORTH_LEARNING:
            return False
        left = len(state.candidates) - len(state.results)
        state.ended_early = f"the {left} untried candidates are expected to gain less than {WORTH_LEARNING:.2%} more"
        state.add_note(f"screening ended early: {state.ended_early}")
        return True

    def propose(self, n: int) -> list[tuple[optuna.Trial, CandidateResult]]:
        """Return up to `n` new candidates. Optuna gets the known result of a proposal that was measured before."""
        results = self.state.results
        batch: list[tuple[optuna.Trial, CandidateResult]] = []
        duplicates: list[tuple[optuna.Trial, Candidate]] = []
        n_stale = 0
        while len(batch) < n:
            if n_stale == STALE_ASKS and not self.enqueue_untried():
                break
            trial = self.study.ask()
            candidate = self.space.draw(
                lambda dimension, trial=trial: trial.suggest_categorical(  # type: ignore[misc]
                    dimension.name, [choice.label for choice in dimension.choices]
                )
            )
            trial.set_user_attr(CONFIG, candidate.config.key)
            if candidate not in results:
                n_stale = 0
                batch.append((trial, results.get_or_add(candidate)))
            elif any(candidate.config.key == result.candidate.config.key for _, result in batch):
                duplicates.append((trial, candidate))
                n_stale += 1
            else:
                self.finish_trial(trial, results[candidate])
                n_stale += 1
        self.duplicates = duplicates
        return batch

    def enqueue_untried(self) -> bool:
        """Put a random untried candidate in Optuna's queue, or return False if all have been tried."""
        untried = [candidate for candidate in self.state.candidates if candidate not in self.state.results]
        if not untried:
            return False
        self.enqueue(untried[int(self.state.runner.rng.integers(len(untried)))])
        return True

    def measure(self, baseline: LiveCandidate, batch: list[tuple[optuna.Trial, CandidateResult]]) -> None:
        """Measure a batch, and report the results to Optuna. Candidates that lack memory are measured again alone."""
        state = self.state
        self.measure_rounds(baseline, [result for _, result in batch])
        while state.starved:
            self.measure_rounds(baseline, [state.starved.pop()])
        self.round_variance = self.estimate_round_variance()
        for trial, result in batch:
            self.finish_trial(trial, result)
        for trial, candidate in self.duplicates:
            self.finish_trial(trial, state.results[candidate])

    def measure_rounds(self, baseline: LiveCandidate, results: list[CandidateResult]) -> None:
        """Launch candidates, and measure their rounds with the baseline."""
        state = self.state
        lives = state.launch(results)
        try:
            for number in range(state.plan.screening_rounds):
                if number:
                    hopeless = HOPELESS if number >= ROUNDS_BEFORE_DROPPING else HOPELESS_AT_ONCE
                    for result, live in lives:
                        if self.is_hopeless(result, hopeless):
                            live.close()
                    lives = [(result, live) for result, live in lives if not self.is_hopeless(result, hopeless)]
                if not lives:
                    break
                lives = state.measure_round(baseline, lives)
        finally:
            for _, live in lives:
                live.close()

    def is_hopeless(self, result: CandidateResult, hopeless: float) -> bool:
        """Return whether a candidate's log-ratio to the baseline is above `hopeless` in all rounds and objectives."""
        if self.is_doubtful(result):
            return False
        ratios = (value for score in result.scores for value in score.log_ratios)
        return all(value > hopeless for value in ratios) and result.excess >= self.state.baseline.excess

    def is_doubtful(self, result: CandidateResult) -> bool:
        """Return whether a candidate was measured while the host was busy, on a host that is usually quiet."""
        return result.is_contended and not self.state.runner.is_mostly_contended

    def finish_trial(self, trial: optuna.Trial, result: CandidateResult) -> None:
        """Report a candidate's log-ratios and excesses over limits to Optuna, or that it failed."""
        baseline = self.state.baseline
        if result.failure:
            trial.set_user_attr("failure", result.failure.message)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        for limit, excess in zip(self.state.goal.limits, result.excesses, strict=False):
            trial.set_constraint(limit.text, excess)
        if result.log_ratios is not None:
            trial.set_user_attr(VARIANCE, self.estimate_variance(result))
            # Relative to the baseline, which is 0 in the model.
            trial.set_user_attr(EXCESS, result.excess - baseline.excess)
            trial.set_user_attr(KEEPS, not result.excess)
            self.study.tell(trial, list(result.log_ratios))
        elif result is baseline:
            self.study.tell(trial, [0.0] * len(self.state.goal.objectives))
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def estimate_round_variance(self) -> float:
        """Return the variance of a round's log-ratio over all candidates, each of which has only a few rounds.

        With several objectives, the noisiest counts. Source of the correction for the median of variances of few
        values: E. B. Wilson and M. M. Hilferty, "The distribution of chi-square" (1931).
        """
        known: list[list[float]] = []
        for result in self.state.results:
            n_free = len(result.selected_scores) - 1
            if n_free > 0 and result is not self.state.baseline:
                variances = np.var([score.log_ratios for score in result.selected_scores], axis=0, ddof=1)
                known.append((variances / (1 - 2 / (9 * n_free)) ** 3).tolist())
        return max(map(statistics.median, zip(*known, strict=True))) if len(known) >= BATCH else USUAL_NOISE**2

    def estimate_variance(self, result: CandidateResult) -> float:
        """Return the variance of a candidate's log-ratio due to its rounds and its launch."""
        launch_sigma = LAUNCH_SIGMA if self.state.goal.load.clients == 1 else LAUNCH_SIGMA_OF_CALLERS
        busy_sigma = BUSY_SIGMA if self.is_doubtful(result) else 0.0
        # The median of a few values has about 1.3 times the variance of their mean.
        n_rounds = max(len(result.round_log_ratios), 1)
        return 1.3 * self.round_variance / n_rounds + launch_sigma**2 + busy_sigma**2
