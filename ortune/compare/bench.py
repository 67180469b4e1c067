"""`ortune bench`, in order: read the configs, let them and the default meet, tell how they compare."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ortune.compare.block_plan import paired_run_needed_s, size_paired_run
from ortune.compare.block_runner import BlockRunner
from ortune.compare.calibrate import calibrate
from ortune.compare.figures import calls_needed, is_pooled
from ortune.compare.open import describe_model, describe_workload, open_executor
from ortune.compare.paired_run import DEFAULT_POSITION, PairedRun, PairedStats
from ortune.compare.results import LimitCheck, Noise, Speedup, Summary
from ortune.errors import UsageError
from ortune.host import HostClass
from ortune.knobs import CPU, DEFAULT, Config, find_knob, ids
from ortune.knobs.knob import PLACES
from ortune.knobs.providers import chain_of, find_provider
from ortune.model.identity import ModelIdentity
from ortune.record.files import read_record
from ortune.tuning.request import PreparedSearch
from ortune.worker import Failure, Runtime
from ortune.worker.executor import launch_reference
from ortune.workload import Workload

USUAL_TIME_S = 20.0

DEFAULT_WORD = "default"
"""Stands for ONNX Runtime's default among the configs."""


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """A config that is to be compared with the default, and its name."""

    name: str
    config: Config


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How one config did.

    Attributes:
        name: Its name.
        config: Its settings.
        summary: All figures, or None when it failed.
        speedup: How many times better than the default in the objective; None for the default, and on failure.
        limits: Whether it keeps to each limit.
        failure: Why it is out, or None.
    """

    name: str
    config: Config
    summary: Summary | None = None
    speedup: Speedup | None = None
    limits: tuple[LimitCheck, ...] = ()
    failure: Failure | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How all configs did, the default first."""

    objective: str
    rows: tuple[Row, ...]
    calls_needed: int
    noise: Noise
    workload: Workload
    model: ModelIdentity
    host: HostClass
    runtime: Runtime


Observe = Callable[[int, int], None]
"""Is told how many rounds of how many are done. It is never called while a block is measured."""


def read_entrants(configs: Sequence[str], settings: Sequence[str]) -> tuple[Entrant, ...]:
    """Return the configs of records, and those that are written as settings.

    Args:
        configs: Paths of records, or the word `default`.
        settings: Each a config, as `knob=value,knob=value`.

    Raises:
        RecordError: A file is no record.
        UsageError: A setting is unknown or has no value.
    """
    entrants = [
        Entrant(name=path, config=DEFAULT if path == DEFAULT_WORD else read_record(path).config) for path in configs
    ]
    for text in settings:
        entrants.append(Entrant(name=text, config=parse_settings(text)))
    return tuple(entrants)


def parse_settings(text: str) -> Config:
    """Parse `intra_op_num_threads=1,session.intra_op.allow_spinning=0`.

    Raises:
        UsageError: A setting is unknown or has no value.
    """
    config = DEFAULT
    # Affinity strings hold commas too: a new setting begins where a name and an equals sign follow.
    for part in re.split(r",(?=[A-Za-z0-9_.]+=)", text):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(f"--set {text}: {part!r} is not a setting.", "Write it as --set intra_op_num_threads=1.")
        try:
            config = set_knob(config, name.strip(), value)
        except UsageError as error:
            raise UsageError(f"--set {text}: {error.message}", error.hint) from None
    return config


def set_knob(config: Config, name: str, value: str) -> Config:
    """Return the config with one more setting; an option of a provider, or `providers`, brings the provider in.

    Raises:
        UsageError: There is no such knob, or no such value of it.
    """
    knob = find_knob(name)
    if knob.id == ids.PROVIDERS:
        return with_provider(config, find_provider(value).name)
    if not knob.is_settable:
        raise UsageError(f"{knob.id}: ortune cannot set it ({PLACES[knob.where]}).")
    if knob.provider:
        config = with_provider(config, knob.provider)
    return config.with_setting(knob.where, knob.name, knob.parse(value), knob.provider)


def with_provider(config: Config, name: str) -> Config:
    """Return the config for a provider; options that it has for any of the chain are kept."""
    if name in dict(config.providers) and name != CPU:
        return config
    known = dict(config.providers)
    return msgspec.structs.replace(
        config, providers=tuple((each, known.get(each, options)) for each, options in chain_of(name))
    )


def bench(
    setting: PreparedSearch,
    entrants: Sequence[Entrant],
    observe: Observe = lambda done, total: None,
    *,
    base: Config = DEFAULT,
) -> Comparison:
    """Let all of them meet.

    Args:
        setting: The model, its inputs, the host, and in its request the goal, the time and the seed.
        entrants: What is compared with the default.
        observe: Is told how far it is.
        base: What stands as the default: ONNX Runtime's, or one with settings that every candidate had.

    Raises:
        OrtuneError: The model does not run, the default cannot be measured, or the command beside it ends.
    """
    request, host = setting.request, setting.host
    goal = request.goal
    with open_executor(setting) as (executor, check):
        start_s = executor.now_s()
        first = launch_reference(executor, setting.model, setting.feed, base)
        meter = BlockRunner(executor, np.random.default_rng(request.seed), check)
        start = calibrate(meter, first, goal, n_cases=setting.feed.n_cases, quota=host.limits.quota is not None)
        n_sides = 1 + len(entrants)
        free_bytes = host.limits.memory_bytes
        if free_bytes and n_sides * start.peak_bytes > 0.8 * free_bytes:
            raise UsageError(
                f"{n_sides} sessions of this model take {n_sides * start.peak_bytes / 1e9:.1f} GB, and there are "
                f"{free_bytes / 1e9:.1f} GB of memory.",
                "Compare fewer configs at a time.",
            )
        needed_s = paired_run_needed_s(goal, start.pace, start.launch_s, n_sides)
        time_s = request.budget_s or max(USUAL_TIME_S, needed_s)
        spent_s = executor.now_s() - start_s
        left_s = time_s - spent_s if request.budget_s else time_s
        launches, rounds, block = size_paired_run(left_s, goal, start.pace, start.launch_s, n_sides)
        if launches < 2:
            # A tenth more: the next calibration may find the model slower.
            enough_s = math.ceil(spent_s + 1.1 * needed_s)
            sides = f"{n_sides} configs" if n_sides > 1 else "the default"
            raise UsageError(
                f"--time {time_s:g}s is too short for {sides} of this model.",
                f"Give it --time {enough_s}s or more, or leave it out.",
            )
        match = PairedRun([base, *(entrant.config for entrant in entrants)], goal.load)
        match.play(
            meter,
            block,
            launches=launches,
            rounds=rounds,
            end_s=start_s + 2 * time_s,
            report=lambda: observe(match.n_rounds, launches * rounds),
        )
        tally = PairedStats(match, goal, request.seed)
        runtime = executor.runtime
    names = [DEFAULT_WORD, *(entrant.name for entrant in entrants)]
    return Comparison(
        objective=goal.objective,
        rows=tuple(make_row(tally, position, name) for position, name in enumerate(names)),
        calls_needed=calls_needed(goal.objective) if is_pooled(goal.objective) else 1,
        noise=meter.noise(contended=tally.contended, drift=None),
        workload=describe_workload(goal, setting.feed, setting.tolerance, request.beside),
        model=describe_model(request.model, setting.model),
        host=HostClass.of(host),
        runtime=runtime,
    )


def make_row(tally: PairedStats, position: int, name: str) -> Row:
    """Return how one side did."""
    config, failure = tally.match.configs[position], tally.match.failures.get(position)
    if failure:
        return Row(name=name, config=config, failure=failure)
    return Row(
        name=name,
        config=config,
        summary=tally.summary(position),
        speedup=None if position == DEFAULT_POSITION else tally.speedup(position, tally.goal.objective),
        limits=tuple(tally.check(position, limit) for limit in tally.goal.limits),
    )
