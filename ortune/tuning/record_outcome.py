"""Turns the outcome of a search into the record and its trials file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.host import Host, HostClass
from ortune.measure.open import OpenComparison
from ortune.record.files import Kind, follow_link, path_of_trials
from ortune.record.journal import Journal
from ortune.record.leftovers import remove_leftovers
from ortune.record.rescue import Saved, save_record
from ortune.record.rounding import round_record, significant
from ortune.record.schema import RECORD_SCHEMA, Record, Search
from ortune.record.trials import TrialRound, Trials, TrialsHeader, encode_trials, summarize_trials
from ortune.tuning.outcome import Outcome
from ortune.tuning.prepare import PreparedSearch
from ortune.worker.compiled_models import find_cache_options
from ortune.workload import Goal

RAW_DIGITS = 7
"""Significant digits of figures in the trials file."""


def make_record(
    prepared: PreparedSearch, outcome: Outcome, opened: OpenComparison, started: str, *, n_resumes: int = 0
) -> Record:
    """Return the record of a search, with rounded figures.

    Args:
        prepared: The inputs of the search.
        outcome: The outcome of the search.
        opened: What was measured with.
        started: When the search began, in ISO 8601 with the time zone.
        n_resumes: How often it was resumed.
    """
    summary = summarize_trials(outcome.trials)
    return round_record(
        Record(
            schema=RECORD_SCHEMA,
            config=outcome.config,
            base=prepared.base,
            cache_options=find_cache_options(outcome.config, opened.runner.sessions),
            evidence=outcome.evidence,
            model=prepared.program.describe(),
            workload=prepared.describe_workload(),
            host=HostClass.of(prepared.host),
            runtime=opened.runtime,
            search=Search(
                started=started,
                budget_s=outcome.budget_s,
                seed=prepared.seed,
                strategy=prepared.request.strategy,
                n_hints=len(prepared.hints),
                interrupted=outcome.interrupted,
                n_resumes=n_resumes,
                ended_early=outcome.ended_early,
                n_candidates=outcome.n_candidates,
                n_tried=summary.n_tried,
                failed=summary.failed,
                tried=summary.tried,
                best=summary.best,
                stages=outcome.stages,
            ),
        )
    )


def _round_values(measured: TrialRound) -> TrialRound:
    """Return a round with figures limited to the digits that clocks can resolve in a block."""
    values = {
        number: tuple(significant(value, RAW_DIGITS) for value in figures)
        for number, figures in measured.values.items()
    }
    frequencies_hz = {number: significant(hz) for number, hz in measured.frequencies_hz.items()}
    return msgspec.structs.replace(measured, values=values, frequencies_hz=frequencies_hz)


def make_trials(record: Record, outcome: Outcome, goal: Goal, host: Host) -> Trials:
    """Return the content of the trials file that belongs to a record."""
    return Trials(
        header=TrialsHeader(
            schema=record.schema,
            model=record.model.digest,
            started=record.search.started,
            objectives=goal.objectives,
            figures=goal.figures,
            topology=host.topology,
            usable=host.limits.usable,
        ),
        trials=outcome.trials,
        rounds=tuple(map(_round_values, outcome.rounds)),
        sessions=outcome.sessions,
    )


def save_outcome(
    document: Kind, trials: Trials, output: Path | None, journal: Journal | None, *, is_complete: bool
) -> Saved[Kind]:
    """Write what a search found, and remove what is not needed after that.

    Args:
        document: The record, or the bundle of those of a program.
        trials: Its trials.
        output: Where it goes; None to write nothing.
        journal: The journal of the search, or None. It stays if the search can go on.
        is_complete: Whether the search is complete.
    """
    if output is None:
        return Saved(record=document)
    saved = save_record(document, output, encode_trials(trials))
    if journal and saved.fault is None:
        for path in (output, path_of_trials(output)):
            remove_leftovers(follow_link(path))
        if is_complete:
            journal.remove()
    return saved
