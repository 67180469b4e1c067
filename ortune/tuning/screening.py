"""Screening: proposes candidates, and measures a few blocks of each to find the promising ones."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import optuna
from numpy.typing import NDArray

from ortune.knobs import Candidate, SearchSpace
from ortune.measure.block_plan import block_wall_s, launch_sides_s
from ortune.tuning.first_candidates import FirstCandidates
from ortune.tuning.merge import Merger, send_launches
from ortune.tuning.noise import MEDIAN_VARIANCE
from ortune.tuning.pairs import list_pairs
from ortune.tuning.plan import BATCH, LONGEST_RACING, reserve_confirmation, unpromising_confirmation_s
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import CONFIG, CandidateSampler, Observed, ThompsonSampler
from ortune.tuning.state import SearchState
from ortune.tuning.verdict import NEGLIGIBLE_GAIN

ROUNDS_BEFORE_DROPPING = 2
HOPELESS = 0.2
HOPELESS_AT_ONCE = 0.7
"""A candidate is dropped early if its log-ratio to the baseline is above this in all rounds: after two rounds, or after
the first one if it is twice as slow."""

QUEUED = "queued"
"""Attribute of a trial in Optuna's queue, where other nodes may measure its candidate first."""

STALE_ASKS = 6
"""Consecutive proposals of known candidates after which untried ones are taken at random."""

WORTH_LEARNING = 0.0005
"""Minimum expected gain, as a log-ratio, for screening to continue."""

CHECK_EVERY = 2 * BATCH
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

N_LEADERS = 3
"""The best measured candidates, whose neighbors are tried, and which are launched again."""

RELAUNCH_EVERY = 2
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


class Screening:
    """The screening of one search.

    Attributes:
        duplicates: Proposals of candidates of the current batch, which get the same result.
        next_check: Number of screened candidates at which the expected gain is checked next.
        noise: Noise of the rounds: that of the state.
        merger: Merges what other nodes measured.
        postponed: Candidates of the queue that other nodes measure, by the key of their config.
        first: Candidates that are screened before the sampler proposes any.
        has_paired: Whether the pairs of the best choices are in the queue.
        n_batches: Batches so far.
        n_done: Candidates of all batches that are complete.
        best: The best of them so far.
        expected_best: Gain that is expected of the best of all candidates, as a log-ratio.
    """

    def __init__(self, state: SearchState, study: optuna.Study) -> None:
        self.state = state
        self.study = study
        self.space: SearchSpace = state.space
        self.sampler = study.sampler if isinstance(study.sampler, ThompsonSampler) else None
        self.duplicates: list[tuple[optuna.Trial, Candidate]] = []
        self.next_check = 0
        self.noise = state.noise
        self.merger = Merger(state.results, state.goal)
        self.postponed: dict[str, Candidate] = {}
        self.n_batches = 0
        self.n_done = 0
        self.best: CandidateResult | None = None
        self.expected_best = math.inf
        self.end_s = state.end_s
        if self.sampler:
            self.extend(each for config in state.hints if (each := self.space.find(config)))
        self.first = FirstCandidates(state, self.space)
        known = [result for result in state.results if result is not state.baseline]
        self.noise.update(known)
        for result in known:
            self.observe(result)
        self.has_paired = False
        for candidate in self.first.now:
            self.enqueue(candidate)

    def enqueue(self, candidate: Candidate) -> None:
        """Put a candidate in Optuna's queue."""
        queued = {QUEUED: True} if self.state.exchange.is_shared else None
        self.study.enqueue_trial(self.space.labels_of(candidate), user_attrs=queued)

    def run(self) -> None:
        """Screen candidates until time, trials or candidates run out, or no further gain is expected."""
        with self.state.time_stage("screening"):
            self.run_batches()

    def run_batches(self) -> None:
        """Screen batches of candidates."""
        state = self.state
        batch_s = 0.0
        if self.receive():
            self.update_expected()
            self.replan()
        self.report()
        while (left := self.n_to_screen - self.n_screened) > 0:
            begin_s = state.now_s()
            end_s = state.find_screening_end_s()
            # A batch that would end long after the planned time would shorten racing and confirmation.
            if begin_s + batch_s / 2 >= end_s or state.exchange.is_screened() or self.is_complete():
                break
            if self.n_batches:
                for candidate in self.first.take_waiting(self.find_known, self.n_screened):
                    self.enqueue(candidate)
            n = min(state.plan.batch, state.plan.max_live - 1)
            again = self.choose_relaunched() if n > 1 else []
            proposed = self.propose(min(n - len(again), left))
            if not proposed and not again:
                break
            batch = self.lease(proposed)
            if batch or again:
                self.measure(batch, again)
            batch_s = state.now_s() - begin_s
            self.receive()
            self.update_expected()
            self.replan()
            self.n_done = self.n_screened
            self.best = next(iter(state.results.rank()), None)
            self.report()
        state.exchange.enter("waiting", spent_s=state.now_s() - state.stage_start_s)
        self.conclude()

    def complete(self) -> None:
        """Merge what other nodes measured until they ended screening."""
        if self.receive():
            self.update_expected()
            self.state.is_unpromising = self.state.is_unpromising and self.is_unpromising
        self.conclude()

    def conclude(self) -> None:
        """Let the state know what the model expects of untried candidates."""
        if self.sampler:
            self.state.unseen_gain = self.sampler.bound_gain(self.study)
            self.state.luck = self.sampler.luck
            self.state.sigmas = self.sampler.pair_luck, math.sqrt(self.noise.variance)

    def report(self) -> None:
        """Report progress: of all candidates of the space, how many were screened."""
        state = self.state
        planned_s = state.find_screening_end_s()
        end_s = planned_s
        if self.n_done:
            now_s = state.now_s()
            n_left = self.n_to_screen - self.n_done
            end_s = min(end_s, now_s + n_left * (now_s - state.stage_start_s) / self.n_done)
        # If no candidates are left before the planned time, the other stages get more time than planned.
        then_s = state.racing_s + state.confirmation_s
        if end_s < planned_s:
            # Also those that are not promising then race.
            then_s = min(state.end_s - end_s, LONGEST_RACING * state.plan.racing_s + state.plan.confirmation_s)
        state.report("screening", self.n_done, len(state.candidates) - 1, self.best, end_s=end_s, then_s=then_s)

    @property
    def n_to_screen(self) -> int:
        """Maximum number of candidates to screen."""
        n = len(self.state.candidates) - 1
        return n if self.state.n_trials is None else min(n, self.state.n_trials)

    @property
    def n_screened(self) -> int:
        """Number of candidates screened, without the baseline."""
        return len(self.state.results) - 1 - len(self.merger.emptied)

    def is_known(self, candidate: Candidate) -> bool:
        """Return whether a candidate was measured, or is about to be."""
        return candidate in self.state.results and candidate.config.key not in self.merger.emptied

    def find_known(self, candidate: Candidate) -> CandidateResult | None:
        """Return what is known of a candidate, or None if it was not measured."""
        return self.state.results[candidate] if self.is_known(candidate) else None

    @property
    def usual_error(self) -> float:
        """Standard error of a log-ratio in one launch due to the noise of its rounds."""
        return math.sqrt(MEDIAN_VARIANCE * self.noise.variance / self.state.plan.screening_rounds)

    @property
    def best_gain(self) -> float:
        """Gain that is expected of the best candidate so far, as a log-ratio."""
        return -min(self.state.expected.values(), default=0.0)

    def update_expected(self) -> None:
        """Let the state know what the model expects, and the sampler which candidates lead."""
        state = self.state
        if not self.sampler:
            return
        self.sampler.describe_baseline(state.results.spread_baseline(), self.noise.baseline_share)
        expected = self.sampler.expected()
        state.expected = {
            result.candidate.config.key: float(expected[self.space.numbers[result.candidate.config.key]])
            for result in state.results
            if result is not state.baseline
        }
        self.expected_best = -float(expected.min())
        is_beyond_noise = self.expected_best >= max(PROMISING, PROMISING_ERRORS * self.usual_error)
        self.sampler.is_promising = is_beyond_noise or len(state.goal.objectives) > 1
        leaders = [result for result in state.results.rank() if not result.excess]
        # Most of the lead of a candidate that was measured while the host was busy is chance.
        leaders = sorted(leaders, key=state.is_doubtful)[:N_LEADERS]
        self.sampler.leaders = [self.space.numbers[result.candidate.config.key] for result in leaders]
        if self.n_screened >= self.first.n:
            self.refine(expected)
            if not self.has_paired:
                self.has_paired = True
                self.pair_choices(expected)

    def refine(self, expected: NDArray[np.float64]) -> None:
        """Add candidates that the space does not list: with values between those of its choices.

        These are the candidates next to the best ones, and all that have such a value in common with the best one. And
        choices for different parts of a program that win alone are combined.

        Args:
            expected: The log-ratio to the baseline that each candidate is expected to have.
        """
        assert self.sampler
        tried = np.array([self.space.numbers[result.candidate.config.key] for result in self.state.results])
        best = int(tried[np.argmin(expected[tried])])
        adjacent = self.space.refine(best)
        found = [*adjacent, *(each for leader in self.sampler.leaders for each in self.space.refine(leader))]
        found += self.space.combine(self.space.candidates[best].labels)
        found += self.space.join(best, {int(number): -float(expected[number]) for number in tried})
        self.extend(found)
        self.sampler.adjacent = [self.space.numbers[each.config.key] for each in adjacent]

    def pair_choices(self, expected: NDArray[np.float64]) -> None:
        """Put the pairs of the best choices in Optuna's queue.

        Args:
            expected: The log-ratio to the baseline that each candidate is expected to have.
        """
        keeping = [each.candidate for each in self.state.results if each.log_ratios is not None and not each.excess]
        gains = [(candidate, -float(expected[self.space.numbers[candidate.config.key]])) for candidate in keeping]
        for candidate in list_pairs(self.space, gains):
            if not self.is_known(candidate):
                self.enqueue(candidate)

    def extend(self, candidates: Iterable[Candidate]) -> None:
        """Add those candidates that the space does not have."""
        assert self.sampler
        extended = self.space.extend(candidates)
        if len(extended.candidates) > len(self.space.candidates):
            self.space = self.state.space = extended
            self.sampler.extend(extended)

    def replan(self) -> None:
        """Leave only as much time for racing and confirmation as the best candidate so far needs."""
        state = self.state
        if not state.expected or len(state.goal.objectives) > 1:
            return
        assert self.sampler
        if self.best_gain < PROMISING:
            state.racing_s = 0.0
            state.confirmation_s = unpromising_confirmation_s(state.plan, state.goal, state.pace)
            return
        state.racing_s = state.plan.racing_s
        state.confirmation_s = reserve_confirmation(
            state.plan,
            state.goal,
            state.pace,
            gain=self.best_gain,
            launch_sigma=self.sampler.pair_luck,
            round_sigma=math.sqrt(self.noise.variance),
        )

    def is_complete(self) -> bool:
        """Return whether no further gain is expected, and note it."""
        state = self.state
        state.ended_early = self.explain_end()
        if state.ended_early:
            state.is_unpromising = state.ended_early == ALL_PAIRS_TRIED
            state.add_note(f"screening ended early: {state.ended_early}")
        return bool(state.ended_early)

    def explain_end(self) -> str:
        """Return why no further gain is expected, or "" if one may be."""
        state = self.state
        if not self.sampler or self.n_screened < self.first.n:
            return ""
        if self.tried_all_pairs():
            return ALL_PAIRS_TRIED
        if self.n_screened < self.next_check:
            return ""
        self.next_check = self.n_screened + CHECK_EVERY
        self.sampler.baseline_keeps = not state.baseline.excess
        expected_gain = self.sampler.expected_gain(self.study)
        left = len(state.candidates) - len(state.results)
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
        state = self.state
        if not self.is_unpromising or state.baseline.excess:
            return False
        if state.end_s - state.now_s() > (1 - FEWEST_SHARE) * state.planned_s:
            return False
        return not self.sampler.has_new_pairs(self.study)

    def is_futile(self, expected_gain: float) -> bool:
        """Return whether nothing that was tried is promising, and nothing else is likely to gain enough to matter."""
        assert self.sampler
        negligible = math.log1p(NEGLIGIBLE_GAIN)
        if len(self.state.goal.objectives) > 1 or not self.sampler.baseline_keeps or expected_gain > negligible:
            return False
        return self.best_gain < PROMISING and self.sampler.bound_gain(self.study) < negligible

    def choose_relaunched(self) -> list[CandidateResult]:
        """Return a leader to launch again in the next batch, or none."""
        if not self.sampler or self.n_screened < self.first.n:
            return []
        leaders = [result for result in self.state.results.rank() if not result.excess and not result.failure]
        is_clear = self.expected_best >= max(DOUBTFUL, DOUBTFUL_ERRORS * self.usual_error)
        if not is_clear and len(self.state.goal.objectives) == 1 and not self.sampler.has_new_pairs(self.study):
            better = [result for result in leaders if -(result.log_ratio or 0.0) > HOPELESS_GAIN]
            unsure = [result for result in better if result.n_launches < DOUBTFUL_LAUNCHES]
            return unsure[: min(self.state.plan.batch, self.state.plan.max_live - 1)] or better[:N_DOUBTFUL]
        if self.n_batches % RELAUNCH_EVERY:
            return []
        # Leaders that only other nodes measured come first, which also shows whether nodes agree.
        has_own = self.state.exchange.has_own
        return sorted(
            leaders[:N_LEADERS], key=lambda result: (has_own(result.candidate.config.key), result.n_launches)
        )[:1]

    def receive(self) -> bool:
        """Merge what other nodes measured, and return whether there was anything new.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        state, exchange = self.state, self.state.exchange
        if not exchange.is_shared:
            return False
        exchange.refresh()
        state.end_s = self.end_s - exchange.spent_elsewhere_s()
        changed, new = self.merger.merge(exchange.received(), self.space)
        if self.sampler:
            self.extend(result.candidate for result in changed)
        self.noise.update(changed)
        for result in changed:
            self.observe(result)
            key = result.candidate.config.key
            if key in new:
                self.add_trial(result)
            elif key in self.merger.emptied:
                self.postponed[key] = result.candidate
        leased = exchange.leased()
        for key, candidate in list(self.postponed.items()):
            if key not in leased:
                del self.postponed[key]
                if not self.is_known(candidate):
                    self.enqueue(candidate)
        return bool(changed)

    def add_trial(self, result: CandidateResult) -> None:
        """Add a candidate that another node measured to the study of this search."""
        labels = self.list_labels()
        params = self.space.labels_of(result.candidate)
        params = {name: label for name, label in params.items() if label in labels[name]}
        ratios = None if result.failure else result.log_ratios
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE if ratios else optuna.trial.TrialState.FAIL,
                params=params,
                distributions={name: optuna.distributions.CategoricalDistribution(labels[name]) for name in params},
                values=list(ratios) if ratios else None,
                user_attrs={CONFIG: result.candidate.config.key},
            )
        )

    def list_labels(self) -> dict[str, list[str]]:
        """Return the choices of each dimension for Optuna."""
        # The other strategies would spread their trials over the values between those of the space.
        return {
            each.name: list(each.labels) if self.sampler else [choice.label for choice in each.choices]
            for each in self.space.dimensions
        }

    def lease(self, batch: list[tuple[optuna.Trial, CandidateResult]]) -> list[tuple[optuna.Trial, CandidateResult]]:
        """Return the candidates of a batch that no other node began to measure at the same time."""
        state = self.state
        if not state.exchange.is_shared:
            return batch
        keys = [result.candidate.config.key for _, result in batch]
        denied = state.exchange.lease(keys, spent_s=state.now_s() - state.stage_start_s)
        kept = []
        for trial, result in batch:
            key = result.candidate.config.key
            if key in denied:
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
                self.postponed[key] = self.merger.emptied[key] = result.candidate
            else:
                kept.append((trial, result))
        return kept

    def propose(self, n: int) -> list[tuple[optuna.Trial, CandidateResult]]:
        """Return up to `n` new candidates. Optuna gets the known result of a proposal that was measured before."""
        results = self.state.results
        leased = self.state.exchange.leased()
        if isinstance(self.study.sampler, CandidateSampler):
            self.study.sampler.excluded = leased
        batch: list[tuple[optuna.Trial, CandidateResult]] = []
        duplicates: list[tuple[optuna.Trial, Candidate]] = []
        n_stale = 0
        labels = self.list_labels()
        while len(batch) < n:
            if n_stale == STALE_ASKS and not self.enqueue_untried(leased):
                break
            trial = self.study.ask()
            candidate = self.space.draw(
                lambda dimension, trial=trial: trial.suggest_categorical(  # type: ignore[misc]
                    dimension.name, labels[dimension.name]
                )
            )
            key = candidate.config.key
            is_queued = bool(trial.user_attrs.get(QUEUED))
            if key in leased:
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
                if is_queued:
                    self.postponed[key] = candidate
                else:
                    n_stale += 1
                continue
            trial.set_user_attr(CONFIG, key)
            if not self.is_known(candidate):
                n_stale = 0
                self.merger.emptied.pop(key, None)
                batch.append((trial, results.get_or_add(candidate)))
            elif any(candidate.config.key == result.candidate.config.key for _, result in batch):
                duplicates.append((trial, candidate))
                n_stale += 1
            else:
                self.finish_trial(trial, results[candidate])
                # What other nodes measured of the queue does not count.
                n_stale += not is_queued
        self.duplicates = duplicates
        return batch

    def enqueue_untried(self, leased: frozenset[str]) -> bool:
        """Put a random untried candidate in Optuna's queue, or return False if all have been tried or are leased."""
        untried = [each for each in self.state.candidates if not self.is_known(each) and each.config.key not in leased]
        if not untried:
            return False
        self.enqueue(untried[int(self.state.runner.rng.integers(len(untried)))])
        return True

    def measure(self, batch: list[tuple[optuna.Trial, CandidateResult]], again: list[CandidateResult]) -> None:
        """Measure a batch, and report the results to Optuna. Candidates that lack memory are measured again alone.

        Args:
            batch: New candidates with their trials.
            again: Candidates that were measured before.
        """
        state = self.state
        self.n_batches += 1
        begin_s, first_launch = state.now_s(), state.n_launches + 1
        results = [*(result for _, result in batch), *again]
        self.measure_rounds(results)
        while state.starved:
            self.measure_rounds([state.starved.pop()])
        self.noise.update(results)
        for result in results:
            self.observe(result)
        for trial, result in batch:
            self.finish_trial(trial, result)
        for trial, candidate in self.duplicates:
            self.finish_trial(trial, state.results[candidate])
        if state.exchange.is_shared:
            spent_s = (state.now_s() - begin_s) / max(len(results), 1)
            send_launches(state.exchange, results, first_launch, spent_s=spent_s)

    def measure_rounds(self, results: list[CandidateResult]) -> None:
        """Launch candidates, and measure their rounds with the baseline."""
        state = self.state
        baseline, lives = state.launch(results)
        try:
            for number in range(self.choose_rounds()):
                if number:
                    hopeless = HOPELESS if number >= ROUNDS_BEFORE_DROPPING else HOPELESS_AT_ONCE
                    for result, live in lives:
                        if self.is_hopeless(result, hopeless):
                            live.close()
                    lives = [(result, live) for result, live in lives if not self.is_hopeless(result, hopeless)]
                if not lives:
                    break
                lives = state.measure_round(baseline, lives)
                self.report()
                # A host that became busy makes rounds much longer than planned.
                if state.now_s() >= state.end_s:
                    break
        finally:
            baseline.close()
            for _, live in lives:
                live.close()

    def choose_rounds(self) -> int:
        """Return the number of rounds of each launch: more on a noisy host, if there is time for them.

        It minimizes the time per information, `(launch + n * round) * (luck**2 + noise**2 / n)`.
        """
        state = self.state
        if not self.sampler or state.plan.one_at_a_time:
            return state.plan.screening_rounds
        n = state.plan.batch + 1
        round_s = n * block_wall_s(state.plan.block, state.pace)
        noise = math.sqrt(MEDIAN_VARIANCE * self.noise.variance)
        best = math.sqrt(launch_sides_s(state.plan.launch_s, n) / round_s) * noise / LEAST_DIFFERENCE
        fitting = int((state.end_s - state.now_s()) / round_s)
        return max(state.plan.screening_rounds, min(round(best), MOST_NOISY_ROUNDS, fitting))

    def is_hopeless(self, result: CandidateResult, hopeless: float) -> bool:
        """Return whether a candidate's log-ratio to the baseline is above `hopeless` in all rounds and objectives."""
        if self.state.is_doubtful(result):
            return False
        ratios = (value for score in result.scores for value in score.log_ratios)
        return all(value > hopeless for value in ratios) and result.excess >= self.state.baseline.excess

    def observe(self, result: CandidateResult) -> None:
        """Let the sampler know what the launches of a candidate showed."""
        if not self.sampler:
            return
        number = self.space.numbers[result.candidate.config.key]
        observed = [each for each in self.sampler.observed if each.number != number]
        if result.failure:
            observed.append(Observed(number, None, 0.0, 0.0, False, -1 - number))
        elif result.log_ratios is not None:
            # Relative to the baseline, which is 0 in the model.
            excess = result.excess - self.state.baseline.excess
            is_doubtful = self.state.is_doubtful(result)
            for launch, log_ratios, variance in self.noise.list_launches(result, is_doubtful=is_doubtful):
                observed.append(Observed(number, log_ratios, variance, excess, not result.excess, launch))
        self.sampler.observed = observed

    def finish_trial(self, trial: optuna.Trial, result: CandidateResult) -> None:
        """Report a candidate's log-ratios and excesses over limits to Optuna, or that it failed."""
        if result.failure:
            trial.set_user_attr("failure", result.failure.message)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        for limit, excess in zip(self.state.goal.limits, result.excesses, strict=False):
            trial.set_constraint(limit.text, excess)
        if result.log_ratios is not None:
            self.study.tell(trial, list(result.log_ratios))
        elif result is self.state.baseline:
            self.study.tell(trial, [0.0] * len(self.state.goal.objectives))
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
