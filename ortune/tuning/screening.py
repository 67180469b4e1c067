"""The screen: candidates are proposed, and a few blocks of each against the default say which are promising."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import optuna

from ortune.compare.results import StageTime
from ortune.knobs import Candidate, SearchSpace
from ortune.tuning.results import Entry
from ortune.tuning.sampler import CONFIG, EXCESS, KEEPS, VARIANCE, ThompsonSampler
from ortune.tuning.state import Context
from ortune.worker import LiveCandidate

BATCH = 4
"""Candidates that are live at a time, beside the default: they start in parallel and share its control blocks."""

ROUNDS_BEFORE_DROPPING = 2
HOPELESS = 0.2
"""Log-ratio to the default above which all rounds of a candidate must lie for it to be dropped early."""

STALE_ASKS = 6
"""Proposals in a row that are known already, after which untried candidates are taken at random."""

WORTH_LEARNING = 0.0005
"""Log-ratio that the screen must be expected to gain for it to go on."""

LOOK_EVERY = 3 * BATCH
"""Candidates between two looks at what is left to gain."""

USUAL_NOISE = 0.03
"""Standard deviation of a block's log-ratio, until enough of them were seen."""

LAUNCH_LUCK = 0.01
LAUNCH_LUCK_OF_CALLERS = 0.04
"""Standard deviation between launches of one config, which the rounds of one launch cannot tell: of one caller, and of
several."""

BUSY_SPELL = 0.25
"""The same for a candidate that was measured in a busy spell of the host."""


def run_screening(context: Context, study: optuna.Study) -> StageTime:
    """Screen candidates until time, trials or the space are used up, or nothing is left to gain."""
    return _Screen(context, study).run()


def first_selections(context: Context) -> Iterator[dict[str, str]]:
    """Yield what is screened before the sampler is asked: what is left open stays at its default.

    Sceptics get the plain strategies as they are: they begin with the default alone. Ours begins with what earlier
    searches found, what the documentation advises, and each choice by itself, from which the effects are learnt.
    """
    yield {}
    if context.strategy in {"random", "exhaustive"}:
        return
    space = context.space
    if context.strategy == "adaptive":
        for config in context.hints:
            number = space.numbers.get(config.key)
            if number is not None:
                yield dict(space.candidates[number].labels)
        for rule in space.rules:
            yield dict(rule.labels)
    yield from space.one_factor()


class _Screen:
    def __init__(self, context: Context, study: optuna.Study) -> None:
        self.context = context
        self.study = study
        self.space: SearchSpace = context.space
        self.pending: list[tuple[optuna.Trial, Candidate]] = []
        self.next_look = 0
        self.of_round = USUAL_NOISE**2
        known: set[str] = set()
        for selection in first_selections(context):
            candidate = self.space.select(selection)
            # Two rules may come to the same, and so may a rule and a hint.
            if candidate.config.key not in known and candidate.config.key in self.space.numbers:
                known.add(candidate.config.key)
                self.enqueue(candidate)
        self.n_first = len(known) - 1

    def enqueue(self, candidate: Candidate) -> None:
        self.study.enqueue_trial(self.space.labels_of(candidate))

    def run(self) -> StageTime:
        context = self.context
        start_s, inference_s = context.now_s(), context.meter.inference_s
        end_s = start_s + context.plan.screening_s
        total = len(context.candidates) - 1
        if context.budget.n_trials is not None:
            total = min(total, context.budget.n_trials)
        default = context.launch_default()
        try:
            batch_s = 0.0
            # A batch that would end far behind the screen's time would take it from the race and the duel.
            while (begin_s := context.now_s()) + batch_s / 2 < end_s and (left := total - self.n_screened) > 0:
                if self.is_over():
                    break
                batch = self.ask(min(BATCH, context.plan.max_live - 1, left))
                if not batch:
                    break
                self.measure(default, batch)
                batch_s = context.now_s() - begin_s
                challengers = context.ledger.challengers()
                done = self.n_screened
                context.report(
                    "screening",
                    done,
                    min(total, context.estimate_total(done, start_s, end_s)),
                    challengers[0] if challengers else None,
                )
        finally:
            default.close()
        sampler = self.study.sampler
        if isinstance(sampler, ThompsonSampler):
            expected = sampler.expected(self.study)
            context.expected = {key: float(expected[number]) for key, number in self.space.numbers.items()}
        return context.meter.stage_time("screening", start_s, inference_s)

    @property
    def n_screened(self) -> int:
        return len(self.context.ledger) - 1

    def is_over(self) -> bool:
        """Return whether nothing is left to gain, and say so."""
        sampler = self.study.sampler
        if not isinstance(sampler, ThompsonSampler) or self.n_screened < max(self.n_first, self.next_look):
            return False
        self.next_look = self.n_screened + LOOK_EVERY
        sampler.default_keeps = not self.context.default.excess
        gain = sampler.gain_left(self.study)
        if gain >= WORTH_LEARNING:
            return False
        left = len(self.context.candidates) - len(self.context.ledger)
        self.context.ended_early = (
            f"the {left} candidates that were not tried are expected to gain less than {WORTH_LEARNING:.2%} more"
        )
        self.context.note(f"enough seen: {self.context.ended_early}")
        return True

    def ask(self, n: int) -> list[tuple[optuna.Trial, Entry]]:
        """Return up to `n` new candidates; a proposal that is known already is answered from the ledger."""
        ledger = self.context.ledger
        batch: list[tuple[optuna.Trial, Entry]] = []
        pending: list[tuple[optuna.Trial, Candidate]] = []
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
            if candidate not in ledger:
                n_stale = 0
                batch.append((trial, ledger.open(candidate)))
            elif any(candidate.config.key == entry.candidate.config.key for _, entry in batch):
                pending.append((trial, candidate))
                n_stale += 1
            else:
                self.tell(trial, ledger[candidate])
                n_stale += 1
        self.pending = pending
        return batch

    def enqueue_untried(self) -> bool:
        """Put a random untried candidate in Optuna's queue, or return False when all have been tried."""
        untried = [candidate for candidate in self.context.candidates if candidate not in self.context.ledger]
        if not untried:
            return False
        self.enqueue(untried[int(self.context.meter.rng.integers(len(untried)))])
        return True

    def measure(self, default: LiveCandidate, batch: list[tuple[optuna.Trial, Entry]]) -> None:
        """Launch the batch, measure its rounds, and tell Optuna the results."""
        context = self.context
        lives = context.launch([entry for _, entry in batch])
        try:
            for number in range(context.plan.screening_rounds):
                if number >= ROUNDS_BEFORE_DROPPING:
                    for entry, live in lives:
                        if self.is_hopeless(entry):
                            live.close()
                    lives = [(entry, live) for entry, live in lives if not self.is_hopeless(entry)]
                if not lives:
                    break
                measured = context.meter.round([default, *(live for _, live in lives)], context.plan.block)
                context.ledger.post([context.default, *(entry for entry, _ in lives)], measured)
                for position in measured.failures:
                    entry = lives[position - 1][0]
                    context.fail(entry, measured.failures[position])
                lives = [(entry, live) for entry, live in lives if not entry.failure]
        finally:
            for _, live in lives:
                live.close()
        self.of_round = self.scatter()
        for trial, entry in batch:
            self.tell(trial, entry)
        for trial, candidate in self.pending:
            self.tell(trial, context.ledger[candidate])

    def is_hopeless(self, entry: Entry) -> bool:
        if self.is_doubtful(entry):
            return False
        scores = entry.scores
        return all(value > HOPELESS for score in scores for value in score.log_ratios) and entry.excess >= (
            self.context.default.excess
        )

    def is_doubtful(self, entry: Entry) -> bool:
        """Return whether what was seen of a candidate is due to a busy spell, on a host that is not always busy."""
        return entry.is_contended and not self.context.meter.is_mostly_contended

    def tell(self, trial: optuna.Trial, entry: Entry) -> None:
        """Tell Optuna a candidate's median log-ratios to the default and its excess over limits, or that it failed."""
        if entry.failure:
            trial.set_user_attr("failure", entry.failure.message)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        for limit, excess in zip(self.context.goal.limits, entry.excesses, strict=False):
            trial.set_constraint(limit.text, excess)
        if entry.vector is not None:
            trial.set_user_attr(VARIANCE, self.variance(entry))
            # What all have in common is no choice's effect, and the model takes the default as 0.
            trial.set_user_attr(EXCESS, entry.excess - self.context.default.excess)
            trial.set_user_attr(KEEPS, not entry.excess)
            self.study.tell(trial, list(entry.vector))
        elif entry is self.context.default:
            self.study.tell(trial, [0.0] * len(self.context.goal.objectives))
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def scatter(self) -> float:
        """Return the variance of a round's log-ratio, by all candidates together: a few rounds tell little of theirs.

        Of several objectives, the noisiest counts. Source of the correction for the median of variances of few values:
        E. B. Wilson and M. M. Hilferty, "The distribution of chi-square" (1931).
        """
        known: list[list[float]] = []
        for entry in self.context.ledger:
            n_free = len(entry.counting) - 1
            if n_free > 0 and entry is not self.context.default:
                variances = np.var([score.log_ratios for score in entry.counting], axis=0, ddof=1)
                known.append((variances / (1 - 2 / (9 * n_free)) ** 3).tolist())
        return max(map(statistics.median, zip(*known, strict=True))) if len(known) >= BATCH else USUAL_NOISE**2

    def variance(self, entry: Entry) -> float:
        """Return the variance of a candidate's log-ratio by noise: of its rounds, and of its launch."""
        luck = LAUNCH_LUCK if self.context.goal.load.clients == 1 else LAUNCH_LUCK_OF_CALLERS
        # The median of a few has about 1.3 times the variance of their mean.
        spell = BUSY_SPELL if self.is_doubtful(entry) else 0.0
        return 1.3 * self.of_round / max(len(entry.values), 1) + luck**2 + spell**2
