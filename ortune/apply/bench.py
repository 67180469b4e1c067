"""Reads the configs that `ortune bench` compares: those of records and those given as settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import msgspec

from ortune.errors import UsageError
from ortune.host import read_host
from ortune.knobs import DEFAULT, Config
from ortune.knobs.parse_config import make_config, split_settings
from ortune.measure.bench import BASELINE
from ortune.measure.captures import check_captures
from ortune.measure.open import ComparisonSetup, allow_tf32, prepare_comparison
from ortune.measure.paired_run import Side
from ortune.record.schema import Record
from ortune.record.select import Sourced, limit_to_host, read_any_record
from ortune.requests import BenchRequest
from ortune.worker.installed import require_runtime
from ortune.worker.providers import find_plugins_of
from ortune.workload import Load, make_goal
from ortune.workload.batching import list_batches


def prepare_bench(request: BenchRequest) -> tuple[ComparisonSetup, tuple[Side, ...]]:
    """Return the setup of a comparison, and the configs to compare with the baseline.

    Raises:
        OrtuneError: The model, its inputs, a record or a setting is not valid.
    """
    require_runtime()
    sides = read_sides(request.configs, request.set, request.model, request.goal.load, trust=request.trust)
    base, sides = cross_with_batches(sides, request.batch)
    goal = request.goal
    if not request.batch and (batches := list_batches(base.batch, *(side.config.batch for side in sides))):
        goal = make_goal(goal.load, request.objective, batches=batches, sustained=goal.sustained)
    setup = prepare_comparison(
        request.model,
        goal,
        request.input_options,
        approximate=request.allow_approximate,
        beside=request.beside,
        seed=request.seed,
    )
    tolerance = allow_tf32(setup.tolerance, [base.providers, *(side.config.providers for side in sides)])
    check_captures([(side.name, side.config) for side in sides], setup)
    return msgspec.structs.replace(setup, base=base, tolerance=tolerance), sides


def cross_with_batches(sides: Sequence[Side], batches: Sequence[int]) -> tuple[Config, tuple[Side, ...]]:
    """Return the baseline, and each config with each number of items in a call.

    A config that has a number of items itself keeps it.

    Args:
        sides: The configs to compare with the default.
        batches: The numbers of items, the baseline's first; empty to leave the configs as they are.
    """
    if not batches:
        return DEFAULT, tuple(sides)
    bases = [Side(name=BASELINE, config=DEFAULT), *sides]
    crossed = [
        Side(name=f"{side.name}, batch {n}", config=msgspec.structs.replace(side.config, batch=n))
        for side in bases
        if side.config.batch == 1
        for n in batches
    ]
    kept = [side for side in sides if side.config.batch > 1]
    return crossed[0].config, (*crossed[1:], *kept)


def read_sides(
    configs: Sequence[Any],
    settings: Sequence[Any],
    model: str | None = None,
    load: Load | None = None,
    *,
    trust: bool = False,
) -> tuple[Side, ...]:
    """Return named configs: those of records first, then those given as settings.

    Args:
        configs: Records, paths of records, `Config` objects, or the word `default`.
        settings: Configs, each as a mapping or as a string `knob=value,knob=value`.
        model: Path of the model. With the load, it selects among the records of a bundle.
        load: The load.
        trust: Whether records may have settings that need trust.

    Raises:
        RecordError: A file is not a record, or a bundle has no record for the model.
        UsageError: A setting is unknown or has no valid value.
    """
    sides = []
    for number, given in enumerate(configs, 1):
        if isinstance(given, Record):
            name = f"record {number}"
            limited = limit_to_host(Sourced(record=given, source=name), read_host(memory=False))
            sides.append(Side(name=name, config=limited.record.config))
        elif isinstance(given, Config):
            sides.append(Side(name=f"config {number}", config=given))
        elif isinstance(given, (str, PathLike)):
            config = DEFAULT
            if str(given) != BASELINE:
                config = read_any_record(given, model, load, trust=trust).record.config
            sides.append(Side(name=str(given), config=config))
        else:
            raise UsageError(f"{given!r}: is not a record, a config or the path of a record.", option="configs")
    for given in settings:
        pairs = dict(given) if isinstance(given, Mapping) else split_settings(str(given))
        name = (
            ",".join(f"{knob}={value}" for knob, value in pairs.items()) if isinstance(given, Mapping) else str(given)
        )
        sides.append(Side(name=name, config=find_plugins_of(make_config(pairs, name))))
    return tuple(sides)
