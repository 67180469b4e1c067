"""The main job: open the comparison, search, write the record."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortune.errors import UsageError
from ortune.host import HostClass
from ortune.knobs import Config
from ortune.measure.limits import is_overloaded
from ortune.measure.open import open_comparison
from ortune.record.files import encode_record
from ortune.record.schema import Record
from ortune.tuning.hints import PastSearch, describe_search, name_shapes, remember
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.open import open_search
from ortune.tuning.outcome import Observe, Outcome
from ortune.tuning.plan import USUAL_SEARCH_BUDGET_S
from ortune.tuning.prepare import PreparedSearch, find_history
from ortune.tuning.record_outcome import make_record, make_trials
from ortune.tuning.resume import describe_identity, find_unfinished, make_begin
from ortune.tuning.share_outcome import open_exchange, share_outcome
from ortune.tuning.shared_job import run_shared_search
from ortune.worker.session_log import SessionWarning, collect_warnings

LARGEST_PREPARATION_SHARE = 0.25
"""Largest share of the budget that counts as spent before a search starts."""

MAX_REMEMBERED = 2
"""Configs of one search that later searches may start with."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search.

    Attributes:
        record: The record.
        outcome: The outcome that the record was made from.
        kept: Path of the copy of a replaced record with stronger evidence, or None.
        unfinished: Path of the journal, if the search can go on; else None.
        warnings: What ONNX Runtime warned of.
        n_sessions: Number of sessions that were loaded.
        fault: Why the record or its trials could not be written, and where they are instead; None if they were.
        storage_notes: What happened to the connection with the storage since the last progress, as sentences.
    """

    record: Record
    outcome: Outcome
    kept: Path | None = None
    unfinished: Path | None = None
    warnings: tuple[SessionWarning, ...] = ()
    n_sessions: int = 0
    fault: UsageError | None = None
    storage_notes: tuple[str, ...] = ()


def search(prepared: PreparedSearch, observe: Observe = lambda progress: None) -> Result:
    """Run the search, and write the record if the request names a file.

    Raises:
        OrtuneError: The model does not run, or the search cannot go on. In the last case, the results so far are still
            written.
    """
    request = prepared.request
    begin = make_begin(
        describe_identity(
            request,
            model=prepared.program.describe().digest,
            host=HostClass.of(prepared.host),
            workload=prepared.describe_workload(),
            feed=prepared.feed,
            space=prepared.space,
        ),
        free_bytes=prepared.host.limits.memory_bytes,
        hints=prepared.hints,
        suggested=prepared.suggested,
        spent_s=count_spent(prepared),
    )
    abandoned = None if prepared.location else find_unfinished(request)
    with contextlib.ExitStack() as stack:
        exchange = open_exchange(prepared, begin.identity) if prepared.location else None
        is_complete = False
        if exchange:
            stack.callback(lambda: exchange.close(completed=is_complete))
        running = stack.enter_context(
            open_search(request, begin, functools.partial(open_comparison, prepared), is_shared=exchange is not None)
        )
        begin, opened = running.begin, running.opened
        # Other searches may have ended since it began.
        prepared = msgspec.structs.replace(prepared, goal=opened.goal, hints=begin.hints, suggested=begin.suggested)
        settings = SearchSettings(
            budget_s=request.budget,
            n_trials=request.trials,
            until=request.until,
            strategy=request.strategy,
            hints=(*prepared.hints, *prepared.suggested),
            study_path=request.study,
            study_id=begin.id if running.journal else "",
            replaced_study_id=abandoned.id if abandoned else "",
        )
        if exchange:
            outcome = run_shared_search(prepared.space, opened, settings, exchange, observe)
        else:
            outcome = run_search(prepared.space, opened, settings, observe)
        record = make_record(prepared, outcome, opened, begin.started, n_resumes=running.n_resumes)
        saved = running.save(record, make_trials(record, outcome, prepared.goal, prepared.host), outcome)
        # Only after the record was written: the storage may not answer.
        if exchange and not outcome.interrupted:
            share_outcome(
                exchange,
                outcome,
                record=encode_record(record),
                started=begin.started,
                host_class=record.host,
                onnxruntime=record.runtime.onnxruntime,
            )
            is_complete = True
        if (history := find_history(request)) and (best := best_configs(outcome, prepared.base)):
            remember(history, describe_result(prepared, outcome, best))
    unfinished = running.end(outcome, saved)
    sessions = opened.runner.sessions
    return Result(
        record=saved.record,
        outcome=outcome,
        kept=saved.kept,
        unfinished=unfinished,
        warnings=collect_warnings([session.log for session in sessions]),
        n_sessions=len(sessions),
        fault=saved.fault,
        storage_notes=tuple(exchange.take_notes()) if exchange else (),
    )


def count_spent(prepared: PreparedSearch) -> float:
    """Return the part of the budget that was spent before the search starts, in seconds."""
    return min(prepared.spent_s, LARGEST_PREPARATION_SHARE * (prepared.request.budget or USUAL_SEARCH_BUDGET_S))


def describe_result(prepared: PreparedSearch, outcome: Outcome, best: Sequence[Config]) -> PastSearch:
    """Return what later searches and suggestions may use.

    A suggestion is compared with ONNX Runtime's default, so a speedup over other settings is left out. A speedup over a
    baseline whose queue grows without bound depends on the duration of the measurement.
    """
    evidence = outcome.evidence
    is_overload = evidence.baseline is not None and is_overloaded(evidence.baseline)
    is_proven = evidence.verdict == "faster" and prepared.base.is_default and not is_overload
    speedup = evidence.speedup if is_proven else None
    return describe_search(
        HostClass.of(prepared.host),
        prepared.model.traits,
        prepared.goal,
        best,
        speedup=(speedup.low, speedup.high) if speedup else None,
        has_background_load=prepared.beside is not None,
        inputs=name_shapes(prepared.feed),
    )


def best_configs(outcome: Outcome, base: Config) -> list[Config]:
    """Return the configs to try in later searches: the proven ones, starting with the winner, then the next best."""
    if outcome.evidence.verdict not in {"faster", "within_limits", "trade_off"}:
        return []
    front = [point.summary.config for point in outcome.evidence.front]
    raced = [
        trial
        for trial in outcome.trials
        if trial.stage != "screening" and trial.speedups and trial.speedups[0] > 1 and not trial.over_limits
    ]
    raced.sort(key=lambda trial: trial.speedups or (), reverse=True)
    best = {config.key: config for config in (outcome.config, *front, *(trial.config for trial in raced))}
    return [config for config in best.values() if config != base][:MAX_REMEMBERED]
