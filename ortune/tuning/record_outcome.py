"""Turns the outcome of a search into the record and its trials file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortune.compare.open import describe_model, describe_workload
from ortune.compare.results import Summary
from ortune.host import HostClass
from ortune.record.rounding import round_record, significant
from ortune.record.schema import SCHEMA, Evidence, OutputCheck, Record, Search
from ortune.record.trials import Header, TrialRound, Trials, TrialSession, summarize_trials
from ortune.tuning.outcome import Outcome
from ortune.worker import Runtime

if TYPE_CHECKING:
    from ortune.tuning.request import PreparedSearch


RAW_DIGITS = 7
"""Significant digits of figures in the trials file."""


def make_record(setting: PreparedSearch, outcome: Outcome, runtime: Runtime, started: str) -> Record:
    """Return the record of a search, with rounded figures.

    Args:
        setting: What was searched for.
        outcome: What was found.
        runtime: The software of the workers.
        started: When the search began, in ISO 8601 with the time zone.
    """
    request = setting.request
    summary = summarize_trials(outcome.trials)
    return round_record(
        Record(
            schema=SCHEMA,
            config=outcome.config,
            base=setting.space.base,
            evidence=make_evidence(setting, outcome),
            model=describe_model(request.model, setting.model),
            workload=describe_workload(request.goal, setting.feed, setting.tolerance, request.beside),
            host=HostClass.of(setting.host),
            runtime=runtime,
            search=Search(
                started=started,
                budget_s=outcome.budget_s,
                seed=request.seed,
                strategy=request.strategy,
                hints=len(setting.hints),
                interrupted=outcome.interrupted,
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


def make_evidence(setting: PreparedSearch, outcome: Outcome) -> Evidence:
    """Return what the recommendation rests on."""
    winner = outcome.winner
    return Evidence(
        verdict=outcome.verdict,
        reason=outcome.reason,
        objective=",".join(setting.request.goal.objectives),
        speedup=outcome.speedup,
        baseline=_without_session(outcome.baseline),
        winner=_without_session(winner),
        limits=outcome.limits,
        baseline_limits=outcome.baseline_limits,
        closest=outcome.closest,
        front=tuple(
            msgspec.structs.replace(point, summary=msgspec.structs.replace(point.summary, session=None))
            for point in outcome.front
        ),
        best_so_far=outcome.best_so_far,
        output_check=OutputCheck(
            compared="values" if outcome.deterministic else "shapes",
            max_error=winner.session.max_error if winner and winner.session else None,
            rejected=sum(1 for trial in outcome.trials if trial.failure and trial.failure.kind == "wrong_output"),
        ),
        noise=outcome.noise,
    )


def _without_session(summary: Summary | None) -> Summary | None:
    return summary and msgspec.structs.replace(summary, session=None)


def _round_values(measured: TrialRound) -> TrialRound:
    """Return a round with the digits that a clock of nanoseconds can tell in a block."""
    values = {
        number: tuple(significant(value, RAW_DIGITS) for value in figures)
        for number, figures in measured.values.items()
    }
    return msgspec.structs.replace(measured, values=values)


def make_trials(record: Record, outcome: Outcome) -> Trials:
    """Return the content of the trials file that belongs to a record."""
    workload = record.workload
    sides = [outcome.baseline, outcome.winner, *(point.summary for point in outcome.front)]
    sessions = {
        side.config.key: TrialSession(config=side.config, session=side.session)
        for side in sides
        if side and side.session
    }
    return Trials(
        header=Header(
            schema=record.schema,
            model=record.model.digest,
            started=record.search.started,
            objectives=workload.objectives,
            figures=tuple(dict.fromkeys((*workload.objectives, *(limit.figure for limit in workload.limits)))),
        ),
        trials=outcome.trials,
        rounds=tuple(map(_round_values, outcome.rounds)),
        sessions=tuple(sessions.values()),
    )
