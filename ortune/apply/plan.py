"""Make the plan that `ortune.apply.inside.hook` follows inside a program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.apply.canary import plan_canary
from ortune.apply.messages import (
    describe_left_out,
    describe_mismatch,
    describe_missing_allocator,
    describe_missing_cache,
    missing_variables,
)
from ortune.errors import RecordError, UsageError
from ortune.host.allocators import LD_PRELOAD, preload
from ortune.knobs.config import CPU, Config, Plugin
from ortune.knobs.ids import ALLOCATOR, GLOBAL_THREAD_POOL
from ortune.knobs.plugin_options import spell_for_plugins
from ortune.knobs.plugins import PLUGIN_MODULES
from ortune.model.info import ModelFile
from ortune.naming import PACKAGE
from ortune.planning.read import read_configs, use_cache_dir
from ortune.program_options import ProgramRequest
from ortune.record.schema import Record, Tried
from ortune.record.select import SelectedRecord, Sourced, Wanted, select_per_model
from ortune.sanitize import printable

MOST_INPUTS = 16
MOST_PLANNED_SHAPES = 32
"""Numbers of inputs, and of shapes of each, that a plan holds for each record."""


def choose_records(configs: Sequence[str | Path], options: ProgramRequest) -> tuple[SelectedRecord, ...]:
    """Read records, and select one for each model; none if there are none.

    Raises:
        RecordError: A file holds no records, or they are for several models and one is needed.
    """
    return choose_for(read_for(configs, options), options)


def read_for(configs: Sequence[str | Path], options: ProgramRequest) -> tuple[Sourced, ...]:
    """Read all records, of all models and classes of hosts.

    Raises:
        RecordError: A file holds no records.
    """
    return read_configs(configs, trust=options.trust, pick=options.pick)


def choose_for(records: Sequence[Sourced], options: ProgramRequest) -> tuple[SelectedRecord, ...]:
    """Select a record for each model; none if there are none.

    Raises:
        RecordError: They are for several models and one is needed.
    """
    if not records:
        return ()
    wanted = Wanted(load=options.given_load, pick=options.pick, any_host=options.any_host)
    choices = select_per_model(records, wanted, one_model=options.any_model)
    # Programs may change their working directory.
    folder = None if options.cache_dir is None else options.cache_dir.absolute()
    return tuple(use_cache_dir(choice, folder) for choice in choices)


def make_hook_plan(
    choices: Sequence[SelectedRecord], options: ProgramRequest, hint: str, canary: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the plan as JSON types: see `ortune.apply.inside.finder.Plan`.

    Args:
        choices: A record for each model.
        options: How to use them.
        hint: How to get a report on each session.
        canary: What `plan_canary` returned.

    Raises:
        UsageError: Two configs need different global thread pools.
    """
    check_pools(choices)
    return {
        **({"canary": canary} if canary else {}),
        "rules": [_rule(choice) for choice in choices],
        "any_model": options.any_model,
        "keep_explicit": options.keep_explicit,
        "explain": options.explain,
        "explain_json": None if options.explain_json is None else os.fspath(options.explain_json.absolute()),
        "quiet": options.quiet,
        "hint": "" if options.explain or options.explain_json else hint,
    }


def _rule(choice: SelectedRecord) -> dict[str, Any]:
    record = choice.record
    rule = make_rule(
        choice.source,
        record.model.path,
        record.model.files,
        record.config if choice.applies else None,
        record.tried,
        onnxruntime=record.runtime.onnxruntime,
        # Programs were searched with the providers that they request.
        own_providers=record.workload.program is not None and record.config.provider == CPU,
        reason=choice.reason,
    )
    return {**rule, "measured": describe_measured(record, shapes_vary=choice.shapes_vary)}


def make_rule(
    source: str,
    path: str,
    files: Sequence[ModelFile],
    config: Config | None,
    tried: Tried,
    *,
    onnxruntime: str,
    own_providers: bool = False,
    reason: str = "",
) -> dict[str, Any]:
    """Return what to do with the sessions of one model, as JSON types.

    Args:
        source: Where the settings come from, for messages.
        path: Path of the model.
        files: Its files, by whose content it is recognized.
        config: The settings; None to keep those of the program.
        tried: Settings whose default in the config is a result, too.
        onnxruntime: Version of onnxruntime that they were found with.
        own_providers: Whether sessions keep the execution providers that the program requests.
        reason: Why there is no config.
    """
    spelled = spell_for_plugins(config) if config else None
    applied = spelled.without_captures() if spelled else None
    left_out = spelled.settings.keys() - applied.settings.keys() if spelled and applied else ()
    return {
        "source": source,
        "path": path,
        "files": msgspec.to_builtins(files),
        "config": msgspec.to_builtins(applied),
        "reason": reason,
        "plugins": {name: describe_plugin(plugin) for name, plugin in config.plugins.items()} if config else {},
        "entries": applied.provider_entries if applied else {},
        "captures": sorted(left_out),
        "tried": {
            "options": tried.session_options,
            "entries": tried.session_config,
            "providers": tried.providers,
        },
        "own_providers": own_providers,
        "onnxruntime": onnxruntime,
    }


def describe_plugin(plugin: Plugin) -> dict[str, str]:
    """Return where the library of an execution provider is found, and for which device, as JSON types."""
    module = PLUGIN_MODULES[plugin.package]
    return {"module": module.module, "function": module.function, **msgspec.to_builtins(plugin)}


def describe_measured(record: Record, *, shapes_vary: bool = False) -> dict[str, Any]:
    """Return what a record was measured with, as JSON types; see `ortune.apply.inside.fit.FitCheck`.

    An input with more shapes than a plan should hold is left out.

    Args:
        record: The record.
        shapes_vary: Whether other shapes are as planned.
    """
    load, inputs = record.workload.load, record.workload.inputs
    batch = record.config.batch
    shapes = {
        # With batches, a sample is one item.
        name: sorted({(batch, *shape[1:]) if batch > 1 else shape for shape in data.shapes})
        for name, data in list({} if shapes_vary else inputs.items())[:MOST_INPUTS]
    }
    return {
        "shapes": {name: known for name, known in shapes.items() if len(known) <= MOST_PLANNED_SHAPES},
        # A program calls its sessions as it does, and its own clients are not those of a session.
        "clients": None if load.rate_per_s or record.workload.program else load.clients,
        "program": describe_program(record),
    }


def describe_program(record: Record) -> dict[str, Any] | None:
    """Return with how many processes and calls at a time the record of a program was measured; None for a model."""
    run, load = record.workload.program, record.workload.load
    if run is None:
        return None
    is_server = run.kind == "server"
    calls = run.concurrent_calls * (load.clients if is_server else 1)
    return {
        # The number of workers of the record was not counted.
        "processes": None if record.config.workers else run.n_processes,
        "calls": None if is_server and load.rate_per_s else calls or None,
        "is_server": is_server,
    }


def find_doubts(choices: Sequence[SelectedRecord]) -> list[str]:
    """Return a warning for each record in use whose gain may be another one, because the host was busy."""
    return [
        printable(
            f"{choice.source} was measured while other processes used the CPUs. On a quiet host, its gain may be "
            "smaller. Search again when the host is idle."
        )
        for choice in choices
        if choice.applies and choice.record.evidence.noise.regime == "contended"
    ]


def check_pools(choices: Sequence[SelectedRecord]) -> None:
    """Check that the configs need at most one global thread pool. ONNX Runtime can create only one in a process.

    Raises:
        UsageError: Two configs need different ones.
    """
    known: SelectedRecord | None = None
    for choice in choices:
        if not choice.applies or choice.record.config.global_thread_pool is None:
            continue
        if known is None:
            known = choice
        here, there = (selected.record.config.settings[GLOBAL_THREAD_POOL] for selected in (choice, known))
        if here != there:
            raise UsageError(
                f"{choice.source} needs {GLOBAL_THREAD_POOL}={here}, but {known.source} needs "
                f"{GLOBAL_THREAD_POOL}={there}. A process can have only one.",
                "Apply one record alone, or search with other knobs ({only}).",
            )


def environment_of(choices: Sequence[SelectedRecord]) -> dict[str, str]:
    """Return the environment variables that the configs need.

    Raises:
        UsageError: Two configs need different values of a variable.
    """
    found: dict[str, str] = {}
    for choice in choices:
        if not choice.applies:
            continue
        for name, value in variables_needed(choice.record.config).items():
            if found.setdefault(name, value) != value:
                raise UsageError(
                    f"{choice.source} needs {name}={value}, but another record needs {name}={found[name]}.",
                    f"Tune both models with the same value ({{fix={name}=VALUE}}), or apply one record alone.",
                )
    return found | preload(found.pop(ALLOCATOR, ""), os.environ.get(LD_PRELOAD, ""))


def variables_needed(config: Config) -> dict[str, str]:
    """Return the environment variables of a config and, under its own name, the allocator."""
    return config.environment | ({ALLOCATOR: config.allocator} if config.allocator else {})


def find_foreign_settings(choices: Sequence[SelectedRecord]) -> list[str]:
    """Return a warning for each setting of the process that a record in use needs and another was measured without."""
    needs: list[tuple[SelectedRecord, dict[str, object]]] = []
    for choice in choices:
        if choice.applies:
            config = choice.record.config
            pool = {GLOBAL_THREAD_POOL: config.settings[GLOBAL_THREAD_POOL]} if config.global_thread_pool else {}
            needs.append((choice, {**variables_needed(config), **pool}))
    found = []
    for choice, own in needs:
        foreign = {
            name: f"{name}={value}, which {other.source} needs"
            for other, theirs in needs
            for name, value in theirs.items()
            if name not in own
        }
        found += [printable(f"{choice.source} was measured without {text}") for text in foreign.values()]
    return found


def missing_allocators(choices: Sequence[SelectedRecord]) -> list[str]:
    """Return a warning for each allocator that the configs need and that is not installed."""
    names = dict.fromkeys(choice.record.config.allocator for choice in choices if choice.applies)
    return [text for name in names if (text := describe_missing_allocator(name))]


def encode_plan(plan: dict[str, Any]) -> str:
    """Return the plan as the text of an environment variable.

    Raises:
        RecordError: The plan is too long for an environment variable.
    """
    text = json.dumps(plan, separators=(",", ":"))
    # Linux allows 128 KiB for a variable (MAX_ARG_STRLEN).
    if len(text) > 120_000:
        raise RecordError(
            "There are too many records for one program.", "Pass only those for the models that it loads."
        )
    return text


def plan_process(paths: Sequence[str | Path], options: ProgramRequest, warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the plan for a process that is already running.

    Args:
        paths: Records or bundles.
        options: How to use them.
        warn: Called with each warning.

    Raises:
        OrtuneError: The records cannot be read, or contradict each other.
    """
    records = read_for(paths, options)
    choices = choose_for(records, options)
    canary = plan_canary(records, choices, options)
    for choice in choices:
        if not choice.applies:
            warn(describe_mismatch(choice))
    texts = [missing_variables(environment_of(choices)), *missing_allocators(choices)]
    texts += [*find_foreign_settings(choices), *find_doubts(choices)]
    for choice in choices:
        if choice.applies:
            texts += [describe_missing_cache(choice.record), describe_left_out(choice)]
    for text in texts:
        if text:
            warn(text)
    return make_hook_plan(choices, options, f"{PACKAGE}.install(..., explain=True) shows why", canary)
