"""Puts the outcome of a search into a record."""

from __future__ import annotations

from ortune.host import HostClass
from ortune.record.schema import SCHEMA, Evidence, OutputCheck, Record, Search
from ortune.tuning.outcome import Outcome
from ortune.tuning.prepare import PreparedSearch
from ortune.worker import Runtime


def make_record(prepared: PreparedSearch, outcome: Outcome, runtime: Runtime, started: str) -> Record:
    """Return the record of a search.

    Args:
        prepared: The search.
        outcome: Its outcome.
        runtime: The software of the workers.
        started: When it began, in ISO 8601 with the time zone.
    """
    request = prepared.request
    return Record(
        schema=SCHEMA,
        config=outcome.config,
        evidence=Evidence(
            verdict=outcome.verdict,
            reason=outcome.reason,
            objective=",".join(prepared.goal.objectives),
            speedup=outcome.speedup,
            baseline=outcome.baseline,
            winner=outcome.winner,
            limits=outcome.limits,
            baseline_limits=outcome.baseline_limits,
            closest=outcome.closest,
            front=outcome.front,
            best_so_far=outcome.best_so_far,
            output_check=OutputCheck(
                tolerance=prepared.tolerance,
                compared="values" if outcome.deterministic else "shapes",
                max_error=outcome.winner.session.max_error if outcome.winner else None,
                rejected=sum(1 for trial in outcome.trials if trial.failure and trial.failure.kind == "wrong_output"),
            ),
            noise=outcome.noise,
        ),
        model=prepared.program.describe(),
        workload=prepared.describe_workload(),
        host=HostClass.of(prepared.host),
        runtime=runtime,
        search=Search(
            seed=prepared.seed,
            budget_s=outcome.budget_s,
            started=started,
            interrupted=outcome.interrupted,
            n_candidates=outcome.n_candidates,
            strategy=request.strategy,
            hints=len(prepared.hints),
            ended_early=outcome.ended_early,
            trials=outcome.trials,
            stages=outcome.stages,
        ),
    )
