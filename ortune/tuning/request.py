"""The main job, in order: read the host and the model, build the space, search it, write the record."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ortune.compare.open import open_executor, usual_tolerance
from ortune.errors import UsageError
from ortune.host import Host, HostClass, read_host
from ortune.host.allocators import find_allocators
from ortune.knobs import CPU, KNOBS, Config, SearchSpace, SpaceOptions, build_space
from ortune.knobs.knob import Value
from ortune.knobs.providers import find_provider
from ortune.model import ModelInfo, read_model
from ortune.record.files import STANDARD_STREAM, check_writable, is_record, path_of_trials, write_record
from ortune.record.schema import Record
from ortune.record.trials import encode_trials, is_trials_file
from ortune.tuning.hints import make_finding, recall, remember
from ortune.tuning.outcome import Budget, Observe, Outcome, StrategyName
from ortune.tuning.record_outcome import make_record, make_trials
from ortune.tuning.study import check_study
from ortune.worker.executor import BUILD_DEADLINE_S, WORKER_COMMAND, launch_reference
from ortune.worker.runtime import NOT_FOR_SEARCHES, find_installed_version, find_provider_fault, read_installed_runtime
from ortune.workload import Feed, Goal, InputOptions, Tolerance, make_feed

MOST_REMEMBERED = 2
"""Configs of one search that later ones may begin with."""


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for.

    Attributes:
        model: Path of the ONNX file.
        output: Where to write the record, or None.
        goal: Load, objective and limits.
        beside: A command that runs beside the trials, or None.
        budget_s: Wall time to spend, in seconds; None for what the model and the objective need.
        n_trials: Candidates to screen at most, or None.
        seed: Seed of everything that is drawn.
        inputs: What the user says about inputs.
        tolerance: How far outputs may lie from the default's, or None for what suits the model.
        study: File for Optuna's study, or None.
        strategy: In which order candidates are screened.
        history: File of earlier searches, to begin from and to add to, or None.
        providers: Execution providers to choose from, in the user's words; None for the CPU and whatever else works.
        tune: Values to try, by the id of a knob.
        fix: Values that every candidate has, the default too, by the id of a knob.
        only: Ids of the knobs to try, or none for all.
        approximate: Whether knobs may be tried that change outputs beyond rounding.
        build_deadline_s: Time that a provider may take to compile the model, once for each candidate.
        worker_command: Program and arguments that start a worker.
        memory_limit_bytes: Private memory that one worker may take, or None for a share of what is free.
    """

    model: str
    output: Path | None = None
    goal: Goal = Goal()
    beside: str | None = None
    budget_s: float | None = None
    n_trials: int | None = None
    seed: int = 0
    inputs: InputOptions = InputOptions()
    tolerance: Tolerance | None = None
    study: Path | None = None
    strategy: StrategyName = "adaptive"
    history: Path | None = None
    providers: tuple[str, ...] | None = None
    tune: Mapping[str, tuple[Value, ...]] = {}
    fix: Mapping[str, Value] = {}
    only: tuple[str, ...] = ()
    approximate: bool = False
    build_deadline_s: float = BUILD_DEADLINE_S
    worker_command: Sequence[str] = WORKER_COMMAND
    memory_limit_bytes: int | None = None


class PreparedSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out before the search: shown to the user, and enough to begin.

    Attributes:
        hints: What was best for similar models in earlier searches on this host.
        faults: Why providers that onnxruntime has, or that were asked for, do not run here.
    """

    request: SearchRequest
    host: Host
    model: ModelInfo
    space: SearchSpace
    feed: Feed
    tolerance: Tolerance
    hints: tuple[Config, ...] = ()
    faults: Mapping[str, str] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a search gives.

    Attributes:
        record: The record.
        outcome: What it was made of.
        kept: Where the record is that was there before and proves more, or None.
    """

    record: Record
    outcome: Outcome
    kept: Path | None = None


def prepare(request: SearchRequest) -> PreparedSearch:
    """Read the host and the model, and make the space and the inputs.

    Raises:
        OrtuneError: Something that the user gave does not make sense.
    """
    if request.budget_s is not None and not request.budget_s > 0:
        raise UsageError(f"--budget {request.budget_s:g}s: a search needs time.", "Give it a minute: --budget 60s.")
    if request.n_trials is not None and request.n_trials < 1:
        raise UsageError(f"--trials {request.n_trials}: at least one candidate must be tried.")
    if request.output is not None:
        check_writable(request.output, may_replace=is_record)
        if str(request.output) != STANDARD_STREAM:
            check_writable(path_of_trials(request.output), may_replace=is_trials_file)
    if request.study is not None:
        check_writable(request.study, "study")
        check_study(request.study)
    model = read_model(request.model)
    host = read_host()
    feed = make_feed(model, request.inputs)
    providers, faults = choose_providers(request.providers)
    space = build_space(host, model, make_space_options(request, providers, n_cases=feed.n_cases))
    hints: tuple[Config, ...] = ()
    if request.history is not None and request.strategy == "adaptive":
        known = recall(request.history, HostClass.of(host), model.traits, request.goal)
        hints = tuple(config for config in known if config.key in space.numbers)
    return PreparedSearch(
        request=request,
        host=host,
        model=model,
        space=space,
        feed=feed,
        tolerance=request.tolerance or usual_tolerance(model, approximate=request.approximate),
        hints=hints,
        faults=faults,
    )


def choose_providers(wanted: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the execution providers that are to be tried and work here, and why others do not.

    Args:
        wanted: Names or short names; None for the CPU and whatever else works.

    Raises:
        UsageError: A name is not known, or none of those that are wanted works.
    """
    if wanted is not None and all(find_provider(text).name == CPU for text in wanted):
        return (CPU,), {}
    runtime = read_installed_runtime()
    known = runtime.providers if runtime else ()
    if wanted is None:
        names = (CPU, *(name for name in known if name not in {CPU, *NOT_FOR_SEARCHES}))
    else:
        names = tuple(dict.fromkeys(find_provider(text).name for text in wanted))
    faults = {}
    for name in names:
        if name not in known and name != CPU:
            package = find_provider(name).package
            faults[name] = f"the installed onnxruntime does not have it; {package} does"
        elif name != CPU and (fault := find_provider_fault(name)):
            faults[name] = fault
    working = tuple(name for name in names if name not in faults)
    if not working:
        told = "; ".join(f"{find_provider(name).alias}: {fault}" for name, fault in faults.items())
        needs = " ".join(find_provider(name).needs for name in names)
        raise UsageError(f"--provider {','.join(wanted or ())}: none of them works here. {told}.", f"It needs {needs}.")
    return working, faults


def make_space_options(request: SearchRequest, providers: tuple[str, ...], *, n_cases: int = 1) -> SpaceOptions:
    """Return what the search space is for; `n_cases` is the number of different input shapes.

    Raises:
        UsageError: A knob belongs to a provider that is not among them.
    """
    for name in (*request.tune, *request.fix, *request.only):
        knob = KNOBS[name]
        if knob.provider and knob.provider not in providers:
            raise UsageError(
                f"{name}: {knob.provider} is not among the providers of this search.", f"Add --provider {knob.alias}."
            )
    goal = request.goal
    return SpaceOptions(
        figures=goal.figures,
        clients=goal.load.clients,
        sessions=goal.load.sessions,
        n_cases=n_cases,
        has_rate=goal.load.rate_per_s is not None,
        has_background_load=request.beside is not None,
        providers=providers,
        tune=request.tune,
        fix=request.fix,
        only=request.only,
        approximate=request.approximate,
        allocators=find_allocators(),
        onnxruntime=find_installed_version(),
    )


def search(setting: PreparedSearch, observe: Observe = lambda progress: None) -> Result:
    """Run the search, and write the record if the request names a file.

    Raises:
        OrtuneError: The model does not run, the default cannot be measured, or the command beside the trials ends;
            then what was found before that is written all the same.
    """
    from threadpoolctl import threadpool_limits

    from ortune.tuning.search import SearchSettings, run_search

    request, host = setting.request, setting.host
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    # Threads of NumPy's that wait for work spin for a while, and would be measured as foreign CPU use.
    with threadpool_limits(limits=1, user_api="blas"), open_executor(setting) as (executor, check):
        start_s = executor.now_s()
        first = launch_reference(executor, setting.model, setting.feed, setting.space.base)
        outcome = run_search(
            setting.space,
            executor,
            Budget(seconds=request.budget_s, n_trials=request.n_trials),
            SearchSettings(
                goal=request.goal,
                n_cases=setting.feed.n_cases,
                quota=host.limits.quota is not None,
                free_bytes=host.limits.memory_bytes,
                seed=request.seed,
                study_path=request.study,
                strategy=request.strategy,
                hints=setting.hints,
            ),
            first=first,
            start_s=start_s,
            observe=observe,
            check=check,
        )
        record, kept = make_record(setting, outcome, executor.runtime, started), None
        if request.output is not None:
            written = write_record(record, request.output, encode_trials(make_trials(record, outcome)))
            record, kept = written.record, written.kept
        if request.history is not None and (best := best_of(outcome, setting.space.base)):
            remember(request.history, make_finding(HostClass.of(host), setting.model.traits, request.goal, best))
        if outcome.interrupted:
            check()
    return Result(record=record, outcome=outcome, kept=kept)


def best_of(outcome: Outcome, base: Config) -> list[Config]:
    """Return what is worth trying next time beside the base: what was proven, the winner first, and what came next."""
    if outcome.verdict not in {"faster", "within_limits", "trade_off"}:
        return []
    front = [point.summary.config for point in outcome.front]
    raced = [
        trial
        for trial in outcome.trials
        if trial.stage != "screening" and trial.speedups and trial.speedups[0] > 1 and not trial.over_limits
    ]
    raced.sort(key=lambda trial: trial.speedups or (), reverse=True)
    best = {config.key: config for config in (outcome.config, *front, *(trial.config for trial in raced))}
    return [config for config in best.values() if config != base][:MOST_REMEMBERED]
