"""Searches the best settings of a program, and writes a record for each of its models."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ortune.errors import ProgramError, UsageError
from ortune.host import HostClass
from ortune.knobs import Config
from ortune.measure.open import OpenComparison, Wrap, begin_measuring, launch_baseline, start_comparison
from ortune.program.executor import open_program_executor
from ortune.program.identity import describe_program_identity
from ortune.program.launcher import TunedModel
from ortune.program.outputs import is_unjudged, make_check_error
from ortune.program.prepare import PreparedProgram
from ortune.program.runner import FIRST_RUN_DEADLINE_S, Cpus
from ortune.program.space import ProgramModel, resolve
from ortune.program.task import ProgramTask
from ortune.record.files import list_records
from ortune.record.rounding import round_record
from ortune.record.schema import RECORD_SCHEMA, Bundle, Record, Search, Tried
from ortune.record.trials import summarize_trials
from ortune.steps import enter_step
from ortune.tuning.open import open_search
from ortune.tuning.outcome import Observe, Outcome
from ortune.tuning.record_outcome import make_trials
from ortune.tuning.resume import JournaledExecutor, make_begin
from ortune.worker import Executor, Failure, LiveCandidate
from ortune.worker.attempts import Attempts
from ortune.workload import Tolerance, Workload
from ortune.workload.workload import BackgroundProgram, InputData

LARGEST_FIRST_RUN_SHARE = 0.5
"""Part of the budget that running the program once, to see its sessions, counts as at most."""

MAX_RECORDED_SHAPES = 64
"""Shapes of an input that a record holds, the most frequent ones."""


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the search of a program.

    Attributes:
        document: What is written: the record of a single model, or a bundle with one for each.
        outcome: The outcome that they were made from. Its configs are what candidates change of the program.
        kept: Path of the copy of a replaced document with stronger evidence, or None.
        others: Models that the program did not call while it was observed, but of which it created sessions later. They
            have no settings and no record.
        unfinished: Path of the journal, if the search can go on; else None.
        fault: Why the document or its trials could not be written, and where they are instead; None if they were.
    """

    document: Record | Bundle
    outcome: Outcome
    kept: Path | None = None
    others: tuple[str, ...] = ()
    unfinished: Path | None = None
    fault: UsageError | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        """A record for each model."""
        return list_records(self.document)


def search_program(prepared: PreparedProgram, observe: Observe = lambda progress: None) -> ProgramResult:
    """Run the search, and write its records if the request names a file.

    Raises:
        OrtuneError: The program does not work, or the search cannot go on. In the last case, the results so far are
            still written.
    """
    request = prepared.request
    begin = make_begin(
        describe_program_identity(prepared),
        free_bytes=prepared.host.limits.memory_bytes,
        shares=prepared.shares,
        spent_s=count_spent(prepared),
    )
    others: set[str] = set()
    with open_search(request, begin, functools.partial(open_program, prepared, others=others)) as running:
        prepared = msgspec.structs.replace(prepared, goal=running.opened.goal)
        # It imports Optuna, which gates and verifications of programs do not need.
        from ortune.tuning.job import SearchSettings, run_search

        settings = SearchSettings(budget_s=request.budget, n_trials=request.trials, until=request.until)
        outcome = run_search(prepared.space, running.opened, settings, observe)
        records = make_records(prepared, outcome, running.begin.started, n_resumes=running.n_resumes)
        document = records[0] if len(records) == 1 else Bundle(schema=RECORD_SCHEMA, records=records)
        saved = running.save(document, make_trials(records[0], outcome, prepared.goal, prepared.host), outcome)
    unfinished = running.end(outcome, saved)
    return ProgramResult(
        document=saved.record,
        outcome=outcome,
        kept=saved.kept,
        others=tuple(sorted(others)),
        unfinished=unfinished,
        fault=saved.fault,
    )


def count_spent(prepared: PreparedProgram) -> float:
    """Return the part of the budget that preparation took, in seconds; at most half of it."""
    budget_s = prepared.request.budget
    return min(prepared.spent_s, LARGEST_FIRST_RUN_SHARE * budget_s) if budget_s else 0.0


@contextlib.contextmanager
def open_program(
    prepared: PreparedProgram,
    *,
    n_sides: int = 2,
    others: set[str] | None = None,
    wrap: Wrap | None = None,
    free_bytes: int | None = None,
) -> Iterator[OpenComparison]:
    """Start the background load, and measure the program as it is for the first time.

    Args:
        prepared: The program.
        n_sides: Candidates that are live at the same time, at least, unless they do not fit into memory.
        others: Gets the names of models whose sessions have no settings, as they were not called before.
        wrap: Wraps the executor, or None.
        free_bytes: Free memory to plan with, or None for that of the host.

    Raises:
        ProgramError: The program does not work.
        MeasureError: The background load does not run.
    """
    request, host = prepared.request, prepared.host
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(begin_measuring(request.beside))
        inner = open_program_executor(
            prepared.task,
            [
                TunedModel(name=model.name, path=identity.path, files=identity.files)
                for model, identity in zip(prepared.models, prepared.identities, strict=True)
            ],
            prepared.runtime,
            Cpus(
                usable=host.limits.usable,
                n_cores=len(host.usable_cores),
                background_load=load.pid if load else None,
            ),
            server=prepared.server,
            keeps_running=prepared.keeps_running,
            others=others,
            run_s=prepared.run_s,
        )
        stack.callback(inner.close)

        def launch(by: Executor, on_attempt: Callable[[], None]) -> LiveCandidate:
            enter_step(f"{'starting' if inner.keeps_alive else 'first run of'} {Path(prepared.task.command[0]).name}")
            return launch_first(by, prepared.task, prepared.space.base, on_attempt)

        first = launch_baseline(inner, launch, wrap)
        executor = first.executor
        opened = start_comparison(
            executor,
            first.live,
            prepared.goal,
            # A program that is run to completion has no launch apart from its runs.
            first_launch_s=first.launch_s if inner.keeps_alive else 0.0,
            seed=request.seed,
            quota=host.limits.throttled,
            # A quota lets a program run at full speed until the share of a period is used up, so that time matters.
            counts_calls=prepared.keeps_running and not host.limits.throttled,
            n_sides=n_sides,
            free_bytes=host.limits.memory_bytes if free_bytes is None else free_bytes,
            start_s=first.start_s,
            check=load.check if load else lambda: None,
        )
        # Also of a program that does not seem to end: it may have ended when the search that is resumed began.
        if prepared.keeps_running:
            check = inner.check_finalist
            if isinstance(executor, JournaledExecutor):
                check = functools.partial(executor.check_finalist, check=inner.check_finalist)
            opened = msgspec.structs.replace(opened, check_finalist=check)
        if prepared.server and not prepared.server.has_port:
            opened.runner.one_at_a_time = True
        yield opened


def launch_first(
    executor: Executor, task: ProgramTask, base: Config, on_attempt: Callable[[], None] = lambda: None
) -> LiveCandidate:
    """Launch the program as it is, with what the user fixed, again if it ends suddenly.

    Args:
        executor: What launches it.
        task: The program.
        base: What the user fixed.
        on_attempt: Called before each attempt.

    Raises:
        ProgramError: It does not work, or hangs.
    """

    def launch() -> LiveCandidate | Failure:
        on_attempt()
        (answer,) = executor.launch([base], deadline_s=FIRST_RUN_DEADLINE_S)
        return answer

    # Waiting for what does not end takes long enough once.
    first = Attempts(max_first_timeouts=1).launch(launch)
    if not isinstance(first, Failure):
        return first
    name = Path(task.command[0]).name
    if is_unjudged(task, first):
        raise make_check_error(name, first)
    raise ProgramError(
        f"{name} does not work as it is ({first.title}): {first.message}.",
        "Run the command without ortune, and check what it needs. Its stdin is empty unless {stdin=FILE} names a file.",
    )


def make_records(
    prepared: PreparedProgram, outcome: Outcome, started: str, *, n_resumes: int = 0
) -> tuple[Record, ...]:
    """Return a record for each model, proven by the measurements of the whole program.

    Args:
        prepared: The program.
        outcome: The outcome of its search.
        started: When the search began, in ISO 8601 with the time zone.
        n_resumes: How often it was resumed.
    """
    search = describe_search(prepared, outcome, started, n_resumes)
    return tuple(make_record(prepared, outcome, search, number) for number in range(len(prepared.models)))


def describe_search(prepared: PreparedProgram, outcome: Outcome, started: str, n_resumes: int) -> Search:
    """Return what records say of a search. Its best trials have the settings of all models."""
    summary = summarize_trials(outcome.trials)
    return Search(
        started=started,
        budget_s=outcome.budget_s,
        seed=prepared.request.seed,
        strategy="adaptive",
        interrupted=outcome.interrupted,
        ended_early=outcome.ended_early,
        n_resumes=n_resumes,
        n_candidates=outcome.n_candidates,
        n_tried=summary.n_tried,
        failed=summary.failed,
        tried=find_tried(outcome),
        best=summary.best,
        stages=outcome.stages,
    )


def make_record(prepared: PreparedProgram, outcome: Outcome, search: Search, number: int) -> Record:
    """Return the record of one model, by its number."""
    request, model = prepared.request, prepared.models[number]

    def settings_of(config: Config) -> Config:
        return resolve(config, model)

    changed = outcome.config.of_model(model.name)
    kept = model.varied.keys() - changed.session_options.keys() - changed.session_config.keys()
    return round_record(
        Record(
            schema=RECORD_SCHEMA,
            config=settings_of(outcome.config),
            base=settings_of(prepared.space.base),
            evidence=outcome.evidence.map_configs(settings_of),
            model=prepared.identities[number],
            workload=Workload(
                load=prepared.goal.load,
                objectives=prepared.goal.objectives,
                limits=prepared.goal.limits,
                inputs=describe_inputs(model),
                tolerance=Tolerance(),
                background_load=BackgroundProgram.of(request.beside) if request.beside is not None else None,
                program=prepared.describe_run(),
            ),
            host=HostClass.of(prepared.host),
            runtime=prepared.runtime,
            search=msgspec.structs.replace(
                search,
                tried=search.tried.without(kept),
                best=tuple(msgspec.structs.replace(trial, config=settings_of(trial.config)) for trial in search.best),
            ),
        )
    )


def find_tried(outcome: Outcome) -> Tried:
    """Return the names of all settings that the search tried, those of single models included."""
    configs = [trial.config for trial in outcome.trials]
    own = [
        Config(session_options=settings.session_options, session_config=settings.session_config)
        for config in configs
        for settings in config.models.values()
    ]
    return Tried.of(*configs, *own)


def describe_inputs(model: ProgramModel) -> dict[str, InputData]:
    """Return the inputs of a model as the program passes them, with the most frequent shapes."""
    shapes: dict[str, dict[tuple[int, ...], None]] = {}
    dtypes: dict[str, str] = {}
    for seen in model.shapes[:MAX_RECORDED_SHAPES]:
        for info in seen.inputs:
            if info.shape is not None:
                shapes.setdefault(info.name, {})[info.shape] = None
                dtypes[info.name] = info.dtype
    return {
        name: InputData(dtype=dtypes[name], shapes=tuple(own), origin="the program") for name, own in shapes.items()
    }
