"""Prepares a search: reads the model and the host, makes the inputs, and builds the search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ortune.compare.open import ComparisonSetup, prepare_comparison
from ortune.errors import UsageError
from ortune.host import HostClass
from ortune.host.allocators import find_allocators
from ortune.knobs import CPU, KNOBS, Config, SearchSpace, SpaceOptions, build_space
from ortune.knobs.knob import Value
from ortune.knobs.providers import find_provider
from ortune.record.files import STANDARD_STREAM, check_writable, is_record, path_of_trials
from ortune.record.trials import is_trials_file
from ortune.tuning.hints import recall
from ortune.tuning.strategy import StrategyName
from ortune.tuning.study import check_study
from ortune.worker.executor import BUILD_DEADLINE_S, WORKER_COMMAND
from ortune.worker.runtime import NOT_FOR_SEARCHES, find_installed_version, find_provider_fault, read_installed_runtime
from ortune.workload import Goal, InputOptions, Tolerance


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for.

    Attributes:
        model: Path of the ONNX file.
        output: Where to write the record, or None.
        goal: Load, objectives and limits.
        beside: Command of the background load, or None.
        budget_s: Wall time in seconds; None for what the model and the objective need.
        n_trials: Candidates to screen at most, or None.
        seed: Random seed.
        inputs: What the user says about inputs.
        tolerance: Allowed difference of outputs, or None for what suits the model.
        study: File for Optuna's study, or None.
        strategy: The order in which candidates are screened.
        history: File of earlier searches, to start from and to add to, or None.
        providers: Execution providers to choose from, as the user wrote them; None for the CPU and all others that
            work.
        tune: Values to try, by the id of a knob.
        fix: Values that all candidates have, including the baseline, by the id of a knob.
        only: Ids of the knobs to try; empty for all.
        approximate: Whether to try knobs that may change outputs beyond rounding.
        build_deadline_s: Time that a provider may take to compile the model, once for each config.
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


class PreparedSearch(ComparisonSetup, frozen=True, kw_only=True):
    """Everything that a search needs before it starts.

    Attributes:
        request: What the user asked for.
        space: What may be tried.
        hints: The best configs of earlier searches for similar models on this host.
        faults: Why a provider does not work here, for those that onnxruntime has or that were asked for.
    """

    request: SearchRequest
    space: SearchSpace
    hints: tuple[Config, ...] = ()
    faults: Mapping[str, str] = {}


def prepare(request: SearchRequest) -> PreparedSearch:
    """Read the host and the model, and make the space and the inputs.

    Raises:
        OrtuneError: An option is not valid, or the model or the host cannot be read.
    """
    if request.budget_s is not None and not request.budget_s > 0:
        raise UsageError(f"{request.budget_s:g}s: must be positive.", "Such as {budget=60s}.", option="budget")
    if request.n_trials is not None and request.n_trials < 1:
        raise UsageError(f"{request.n_trials}: must be at least 1.", option="trials")
    if request.output is not None:
        check_writable(request.output, may_replace=is_record)
        if str(request.output) != STANDARD_STREAM:
            check_writable(path_of_trials(request.output), may_replace=is_trials_file)
    if request.study is not None:
        check_writable(request.study, "study")
        check_study(request.study)
    setup = prepare_comparison(
        request.model,
        request.goal,
        request.inputs,
        tolerance=request.tolerance,
        approximate=request.approximate,
        beside=request.beside,
        seed=request.seed,
    )
    providers, faults = choose_providers(request.providers)
    space = build_space(setup.host, setup.model, make_space_options(request, providers, n_cases=setup.feed.n_cases))
    hints: tuple[Config, ...] = ()
    if request.history is not None and request.strategy == "adaptive":
        known = recall(request.history, HostClass.of(setup.host), setup.model.traits, request.goal)
        hints = tuple(config for config in known if config.key in space.numbers)
    return PreparedSearch(
        program=msgspec.structs.replace(setup.program, command=request.worker_command),
        feed=setup.feed,
        goal=setup.goal,
        tolerance=setup.tolerance,
        host=setup.host,
        base=space.base,
        beside=setup.beside,
        seed=setup.seed,
        memory_limit_bytes=request.memory_limit_bytes,
        build_deadline_s=request.build_deadline_s,
        request=request,
        space=space,
        hints=hints,
        faults=faults,
    )


def choose_providers(wanted: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the execution providers to try, and why others do not work here.

    Args:
        wanted: Names or short names; None for the CPU and all others that work.

    Raises:
        UsageError: A name is unknown, or none of the wanted providers works.
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
        reasons = "; ".join(f"{find_provider(name).alias}: {fault}" for name, fault in faults.items())
        needs = " ".join(find_provider(name).needs for name in names)
        raise UsageError(
            f"{','.join(wanted or ())}: none of these providers works here. {reasons}.",
            f"It needs {needs}.",
            option="provider",
        )
    return working, faults


def make_space_options(request: SearchRequest, providers: tuple[str, ...], *, n_cases: int = 1) -> SpaceOptions:
    """Return what the search space is for; `n_cases` is the number of different input shapes.

    Raises:
        UsageError: A knob belongs to a provider that is not among those to try.
    """
    for name in (*request.tune, *request.fix, *request.only):
        knob = KNOBS[name]
        if knob.provider and knob.provider not in providers:
            raise UsageError(
                f"{name}: {knob.provider} is not among the providers of this search.", f"Add {{provider={knob.alias}}}."
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
