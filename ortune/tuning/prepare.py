"""Prepares a search: reads the model and the host, makes the inputs, and builds the search space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.host import HostClass
from ortune.host.allocators import find_allocators
from ortune.knobs import Config, SearchSpace, SpaceOptions, build_space, ids, knob_of
from ortune.knobs.build import fixed_options
from ortune.knobs.canonical import canonical
from ortune.knobs.config import PLUGIN
from ortune.measure.captures import check_space_captures
from ortune.measure.open import ComparisonSetup, allow_tf32, prepare_comparison
from ortune.record.files import check_record_writable, check_writable
from ortune.record.schema import Record
from ortune.record.select import read_any_record
from ortune.requests import SearchRequest, SpaceRequest, SuggestRequest
from ortune.steps import enter_step
from ortune.storage import Location, find_location
from ortune.storage.location import FILE_VARIABLE, URL_VARIABLE
from ortune.tuning.effects import read_effects
from ortune.tuning.hints import history_path, recall
from ortune.tuning.resume import find_unfinished
from ortune.tuning.situation import Situation
from ortune.tuning.suggest import SuggestedConfig, suggest
from ortune.worker.executor import WORKER_COMMAND
from ortune.worker.graphs import merge_same_programs
from ortune.worker.installed import find_installed_version, require_runtime
from ortune.worker.providers import ChosenProviders, choose_providers


class PreparedSearch(ComparisonSetup, frozen=True, kw_only=True):
    """Everything that a search needs before it starts.

    Attributes:
        request: The options of the search.
        space: The search space.
        hints: The best configs of earlier searches for similar models on this host.
        suggested: The config that `ortune suggest` suggests; empty if there is none.
        faults: The reason why a provider does not work on this host, for each available or requested provider.
        n_kept_blocks: Blocks of an unfinished search that this one goes on with.
        location: The storage that it shares with other hosts, or None.
        spent_s: Time of the budget that was spent before it starts, in seconds.
    """

    request: SearchRequest
    space: SearchSpace
    hints: tuple[Config, ...] = ()
    suggested: tuple[Config, ...] = ()
    faults: Mapping[str, str] = {}
    n_kept_blocks: int = 0
    location: Location | None = None
    spent_s: float = 0.0


def prepare(request: SearchRequest) -> PreparedSearch:
    """Read the host and the model, and make the space and the inputs.

    Raises:
        OrtuneError: An option is not valid, or the model or the host cannot be read.
    """
    if request.worker_command is None:
        require_runtime()
    if request.output is not None:
        check_record_writable(request.output)
    given, recorded = request, read_recorded(request)
    location = find_location(request.storage)
    if location is not None and (request.resume or request.restart):
        # The storage comes from the environment: `SearchRequest.check` rejects the option.
        raise UsageError(
            f"{location.title}, the storage that the environment names, has all that the search needs to go on.",
            "Leave out {resume} and {restart}. To go on with a search of this host alone, unset "
            f"{URL_VARIABLE} and {FILE_VARIABLE}.",
        )
    # The storage has everything that such a search needs to go on.
    unfinished = find_unfinished(request) if location is None else None
    if request.study is not None:
        # It imports Optuna, which commands that only build the space do not need.
        from ortune.tuning.study import check_study

        check_writable(request.study, "study")
        check_study(request.study, unfinished.id if unfinished else None)
    setup = prepare_comparison(
        request.model,
        request.goal,
        request.input_options,
        tolerance=request.tolerance,
        approximate=request.allow_approximate,
        beside=request.beside,
        seed=request.seed,
    )
    if recorded:
        request = with_settings_of(request, recorded, setup.host.n_default_threads)
    enter_step("checking execution providers")
    choice = choose_providers(request.provider, fixed_options(request.fix))
    enter_step("making the search space")
    options = make_space_options(request, choice, n_cases=setup.feed.n_cases)
    try:
        space = merge_same_programs(build_space(setup.host, setup.model, options), [setup.model])
    except UsageError as error:
        raise cannot_try(given, error.message) if recorded else error from None
    check_space_captures(space, setup)
    hints: tuple[Config, ...] = ()
    suggested: tuple[Config, ...] = ()
    if recorded:
        candidate = space.find(canonical(recorded.config, setup.host.n_default_threads))
        if candidate is None:
            raise cannot_try(given, "some of its settings depend on others, or on this host.")
        suggested = (candidate.config,)
    elif request.strategy == "adaptive":
        host_class = HostClass.of(setup.host)
        if history := find_history(request):
            known = recall(history, host_class, setup.model.traits, setup.goal)
            found = [candidate.config for config in known if (candidate := space.find(config))]
            hints = tuple({config.key: config for config in found}.values())
        situation = Situation.of(host_class, setup.goal, has_background_load=request.beside is not None)
        if isinstance(suggestion := suggest(space, situation, read_effects()), SuggestedConfig):
            suggested = (suggestion.config,)
    return PreparedSearch(
        program=msgspec.structs.replace(setup.program, command=request.worker_command or WORKER_COMMAND),
        feed=setup.feed,
        goal=setup.goal,
        tolerance=request.tolerance or allow_tf32(setup.tolerance, space.chains),
        host=setup.host,
        base=space.base,
        beside=setup.beside,
        seed=setup.seed,
        memory_limit_bytes=request.memory_limit_bytes,
        build_deadline_s=request.build_timeout,
        request=given,
        space=space,
        hints=hints,
        suggested=suggested,
        faults=choice.faults,
        location=location,
        n_kept_blocks=unfinished.n_blocks if unfinished and request.resume else 0,
    )


def read_recorded(request: SearchRequest) -> Record | None:
    """Return the record whose settings are tried, or None if the request names none.

    Raises:
        RecordError: It cannot be read, or was made with a program.
        UsageError: It recommends the baseline, would be overwritten, or the user names other values to try.
    """
    if request.simplify is None:
        return None
    if request.tune or request.only:
        raise UsageError(
            "and {tune} or {only} contradict each other: the record has the values to try.",
            "Leave one of them out.",
            option="simplify",
        )
    if request.output is not None and request.output.resolve() == request.simplify.resolve():
        raise UsageError(
            f"{request.simplify}: the search would overwrite this record.",
            "Name another file: {output=simpler.json}.",
            option="simplify",
        )
    record = read_any_record(request.simplify, request.model, request.goal.load).record
    if record.workload.program:
        raise RecordError(
            f"The record {request.simplify} was made with a program, and only records of a model can be simplified.",
        )
    if record.config == record.base:
        raise UsageError(
            f"{request.simplify}: recommends the baseline, so there are no settings to drop.", option="simplify"
        )
    return record


def with_settings_of(request: SearchRequest, record: Record, n_default_threads: int) -> SearchRequest:
    """Return a request that tries the settings of a record and no others, with the baseline of the record.

    Args:
        request: The request that names the record.
        record: The record.
        n_default_threads: Number of threads of ONNX Runtime's default pool on this host.

    Raises:
        UsageError: A setting cannot be tried, or none has an effect.
    """
    config = canonical(record.config, n_default_threads)
    fix = {**list_settings(record.base), **request.fix}
    tune = {name: (value,) for name, value in list_settings(config).items() if fix.get(name) != value}
    providers = dict.fromkeys(side.provider for side in (record.base, config))
    only = [*tune, *([ids.PROVIDERS] if len(providers) > 1 else [])]
    if config.batch != record.base.batch:
        raise cannot_try(request, "it has another number of items per call than its baseline.")
    if not only:
        raise cannot_try(request, "its settings have no effect on this host.")
    try:
        return request.replace(
            tune=tune, fix=fix, only=tuple(only), provider=request.provider or tuple(providers), simplify=None
        )
    except UsageError as error:
        raise cannot_try(request, error.message) from None


def list_settings(config: Config) -> dict[str, int | bool | str]:
    """Return the settings of a config by the id of the knob, without those that are options of their own."""
    own = config.settings.items()
    return {
        name: value for name, value in own if name not in {ids.PROVIDERS, ids.BATCH} and not name.endswith(f".{PLUGIN}")
    }


def cannot_try(request: SearchRequest, why: str) -> UsageError:
    """Return the error that a search cannot try the config of the record that it simplifies."""
    return UsageError(f"{request.simplify}: a search cannot try this config here: {why}", option="simplify")


def find_history(request: SearchRequest | SuggestRequest) -> Path | None:
    """Return the file with earlier searches, or None if the user disabled it."""
    return history_path() if request.history else None


def make_space_options(
    request: SearchRequest | SpaceRequest | SuggestRequest, choice: ChosenProviders, *, n_cases: int = 1
) -> SpaceOptions:
    """Return what the search space is for; `n_cases` is the number of different input shapes.

    Raises:
        UsageError: A knob belongs to a provider that is not among those to try.
    """
    for name in (*request.tune, *request.fix, *request.only):
        knob = knob_of(name)
        if knob.provider and knob.provider not in choice.names:
            raise UsageError(
                f"{name}: {knob.provider} is not among the providers of this search.", f"Add {{provider={knob.alias}}}."
            )
    goal = request.goal
    return SpaceOptions(
        figures=goal.figures,
        clients=goal.load.clients,
        sessions=goal.load.sessions,
        processes=goal.load.processes,
        pinned=goal.load.pinned,
        batches=goal.batches,
        n_cases=n_cases,
        has_rate=goal.load.rate_per_s is not None,
        has_background_load=not isinstance(request, SpaceRequest) and request.beside is not None,
        providers=choice.names,
        plugins=choice.plugins,
        tune=request.tune,
        fix=request.fix,
        only=request.only,
        approximate=request.allow_approximate,
        allocators=tuple(find_allocators()),
        onnxruntime=find_installed_version(),
    )
