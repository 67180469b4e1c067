"""The screen: Optuna proposes candidates, a few blocks of each against the default say which are promising."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import optuna

from ortune.errors import UsageError
from ortune.knobs import Candidate, SearchSpace, catalogue
from ortune.knobs.space import DEFAULT_LABEL, SPINNING_OFF
from ortune.measure import Live
from ortune.trials.ledger import Entry
from ortune.trials.stage import Context
from ortune.trials.values import StageTime

BATCH = 4
"""Candidates that are live at a time, beside the default: they start in parallel and share its control blocks."""

ROUNDS_BEFORE_DROPPING = 2
HOPELESS = 0.2
"""Log-ratio to the default above which all rounds of a candidate must lie for it to be dropped early."""

STALE_ASKS = 6
"""Proposals in a row that are known already, after which untried candidates are taken at random."""

STUDY_NAME = "ortune"


EASY_WINS = (
    {catalogue.INTRA_OP_NUM_THREADS.name: "1"},
    {catalogue.INTRA_OP_ALLOW_SPINNING.name: SPINNING_OFF.label},
)
"""Tried first: what wins most often under a load that is more than one caller in a loop."""


def open_study(path: Path | None, seed: int, n_objectives: int) -> optuna.Study:
    """Return a new study: in memory, or in a file that Optuna and its dashboard can open later.

    Args:
        path: A file whose suffix says its kind: .db, .sqlite or .sqlite3 for SQLite, .log or .journal for Optuna's
            journal; or None.
        seed: Seed of the sampler.
        n_objectives: How many objectives there are.

    Raises:
        UsageError: The file exists, or has another suffix.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    sampler = optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)
    storage: Any = None
    if path is not None:
        if path.exists():
            raise UsageError(f"--study {path}: the file exists.", "Name a new file; each search gets its own study.")
        if path.suffix in {".db", ".sqlite", ".sqlite3"}:
            storage = f"sqlite:///{path.resolve()}"
        elif path.suffix in {".log", ".journal"}:
            backend = optuna.storages.journal.JournalFileBackend(str(path))
            storage = optuna.storages.JournalStorage(backend)
        else:
            raise UsageError(
                f"--study {path}: the suffix {path.suffix!r} is not known.",
                "Use .db for SQLite, or .journal for Optuna's journal file.",
            )
    return optuna.create_study(
        study_name=STUDY_NAME, storage=storage, sampler=sampler, directions=["minimize"] * n_objectives
    )


def run_screen(context: Context, study: optuna.Study) -> StageTime:
    """Screen candidates until time, trials or the space are used up."""
    return _Screen(context, study).run()


class _Screen:
    def __init__(self, context: Context, study: optuna.Study) -> None:
        self.context = context
        self.study = study
        self.space: SearchSpace = context.space
        # The default was measured against itself by definition; the rest of the queue leaves it in one dimension.
        known = {(dimension.name, choice.label) for dimension in self.space.dimensions for choice in dimension.choices}
        easy = [selection for selection in EASY_WINS if known.issuperset(selection.items())]
        for selection in ({}, *easy, *self.space.one_factor()):
            labels = {dimension.name: DEFAULT_LABEL for dimension in self.space.dimensions}
            study.enqueue_trial({**labels, **selection}, skip_if_exists=True)

    def run(self) -> StageTime:
        context = self.context
        start_s, inference_s = context.now_s(), context.meter.inference_s
        end_s = start_s + context.plan.screen_s
        total = len(context.candidates) - 1
        if context.budget.n_trials is not None:
            total = min(total, context.budget.n_trials)
        default = context.launch_default()
        try:
            while context.now_s() < end_s and (left := total - self.n_screened) > 0:
                batch = self.ask(min(BATCH, context.plan.max_live - 1, left))
                if not batch:
                    break
                self.measure(default, batch)
                challengers = context.ledger.challengers()
                done = self.n_screened
                context.report(
                    "screen",
                    done,
                    min(total, context.estimate_total(done, start_s, end_s)),
                    challengers[0] if challengers else None,
                )
        finally:
            default.close()
        return context.meter.stage_time("screen", start_s, inference_s)

    @property
    def n_screened(self) -> int:
        return len(self.context.ledger) - 1

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
        choice = untried[int(self.context.meter.rng.integers(len(untried)))]
        self.study.enqueue_trial(choice.labels)
        return True

    def measure(self, default: Live, batch: list[tuple[optuna.Trial, Entry]]) -> None:
        """Launch the batch, measure its rounds, and tell Optuna the results."""
        context = self.context
        lives = context.launch([entry for _, entry in batch])
        try:
            for number in range(context.plan.screen_rounds):
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
        for trial, entry in batch:
            self.tell(trial, entry)
        for trial, candidate in self.pending:
            self.tell(trial, context.ledger[candidate])

    def is_hopeless(self, entry: Entry) -> bool:
        scores = entry.scores
        return all(value > HOPELESS for score in scores for value in score.log_ratios) and entry.excess >= (
            self.context.default.excess
        )

    def tell(self, trial: optuna.Trial, entry: Entry) -> None:
        """Tell Optuna a candidate's median log-ratios to the default and its excess over limits, or that it failed."""
        trial.set_user_attr("config", entry.candidate.config.key)
        if entry.failure:
            trial.set_user_attr("failure", entry.failure.message)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        for limit, excess in zip(self.context.goal.limits, entry.excesses, strict=False):
            trial.set_constraint(limit.text, excess)
        if entry.vector is not None:
            self.study.tell(trial, list(entry.vector))
        elif entry.candidate.config.is_default:
            self.study.tell(trial, [0.0] * len(self.context.goal.objectives))
        else:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
