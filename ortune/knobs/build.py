"""Builds the search space for a model on a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ortune.host import Host
from ortune.knobs import ids
from ortune.knobs.catalogue import KNOBS, knob_of
from ortune.knobs.config import CPU, DEFAULT, Config, Provider
from ortune.knobs.default_dimensions import (
    batch_dimension,
    level_dimension,
    minor_dimensions,
    provider_dimensions,
    skip_newer,
)
from ortune.knobs.dimension import DEFAULT_CHOICE, Choice, Dimension, Skipped
from ortune.knobs.knob import Value
from ortune.knobs.providers import chain_of, find_provider
from ortune.knobs.requested import apply_request, only_under
from ortune.knobs.rules import make_cpu_rules, make_memory_rules, make_usage_rules
from ortune.knobs.space import SearchSpace
from ortune.knobs.space_options import SpaceOptions
from ortune.knobs.thread_dimensions import execution_dimensions, pool_dimension, thread_dimensions
from ortune.model import ModelInfo


def build_space(host: Host, model: ModelInfo, options: SpaceOptions = SpaceOptions()) -> SearchSpace:  # noqa: B008
    """Return what is worth trying for `model` on `host`.

    Args:
        host: The host.
        model: The model.
        options: What the space is for, and what the user says about knobs.

    Raises:
        UsageError: A request of the user cannot be met.
    """
    found: list[Dimension | Skipped] = []
    on_cpu = CPU in options.providers
    if len(options.providers) > 1:
        found.append(_provider_dimension(options))
    if on_cpu:
        found += _cpu_dimensions(host, model, options)
    else:
        why = "the CPU is not among the providers"
        found += [Skipped(knob=KNOBS[name], why=why) for name in (ids.INTRA_OP_NUM_THREADS, ids.EXECUTION_MODE)]
    found.append(level_dimension(options))
    found += minor_dimensions(host, model, options)
    for name in options.providers:
        for dimension in provider_dimensions(find_provider(name), host, model, options):
            found.append(only_under(dimension, name, options) if isinstance(dimension, Dimension) else dimension)
    found = _merge(found)
    if len(options.batches) > 1:
        found.insert(0, batch_dimension(options.batches))
    found = apply_request(found, options)
    dimensions = [dimension for dimension in found if isinstance(dimension, Dimension)]
    return SearchSpace(
        dimensions=tuple(dimensions),
        n_default_threads=host.n_default_threads,
        skipped=tuple(skipped for skipped in found if isinstance(skipped, Skipped)),
        rules=(
            *make_usage_rules(dimensions),
            *(make_memory_rules(dimensions, options) if on_cpu else ()),
            *(make_cpu_rules(host, model, dimensions, options) if on_cpu else ()),
        ),
        base=_base(options),
        plugins=options.plugins,
    )


def _cpu_dimensions(host: Host, model: ModelInfo, options: SpaceOptions) -> list[Dimension | Skipped]:
    """Return the thread pools of the CPU provider, skipped knobs last."""
    pool: Dimension | None = None
    found: list[Dimension | Skipped] = []
    if options.sessions > 1:
        skipped = skip_newer(KNOBS[ids.GLOBAL_THREAD_POOL], options)
        pool = None if skipped else pool_dimension(host, options)
        found += [part for part in (skipped, pool) if part]
    found += [*execution_dimensions(host, model), *thread_dimensions(host, options, pool)]
    return [
        *(only_under(dimension, CPU, options) for dimension in found if isinstance(dimension, Dimension)),
        *(skipped for skipped in found if isinstance(skipped, Skipped)),
    ]


def _base(options: SpaceOptions) -> Config:
    """Return what all candidates have in common."""
    config = msgspec.structs.replace(DEFAULT, providers=_chain(options.providers[0], options))
    config = config.with_plugins(options.plugins)
    for name, value in options.fix.items():
        knob = knob_of(name)
        if not knob.provider:
            config = config.with_setting(knob.where, knob.name, value)
    return msgspec.structs.replace(config, batch=options.batches[0]) if options.batches else config


def fixed_options(fix: Mapping[str, Value]) -> dict[str, dict[str, str]]:
    """Return the options of providers that the user fixed, by the provider's name."""
    found: dict[str, dict[str, str]] = {}
    for name, value in fix.items():
        knob = knob_of(name)
        if knob.provider:
            found.setdefault(knob.provider, {})[knob.name] = str(value)
    return found


def _chain(provider: str, options: SpaceOptions) -> tuple[Provider, ...]:
    """Return a provider and its fallbacks, each with the options that the user fixed."""
    fixed = fixed_options(options.fix)
    return tuple((name, {**defaults, **fixed.get(name, {})}) for name, defaults in chain_of(provider))


def _provider_dimension(options: SpaceOptions) -> Dimension:
    """Return the choice of a provider. The first provider is the default."""
    choices = [
        Choice(
            label=find_provider(name).alias, value=_chain(name, options), why=f"{name} runs the nodes that it supports"
        )
        for name in options.providers[1:]
    ]
    return Dimension(knob=KNOBS[ids.PROVIDERS], choices=(DEFAULT_CHOICE, *choices))


def _merge(found: Sequence[Dimension | Skipped]) -> list[Dimension | Skipped]:
    """Return the dimensions with those that several providers have merged into one.

    The choice of a provider and IO binding come first, because others depend on them. Skipped knobs come last.
    """
    merged: dict[str, Dimension] = {}
    for dimension in found:
        if isinstance(dimension, Dimension) and (known := merged.get(dimension.name)):
            name = ids.PROVIDERS
            both = known.no_effect_when.get(name, frozenset()) & dimension.no_effect_when.get(name, frozenset())
            merged[dimension.name] = msgspec.structs.replace(known, no_effect_when={**known.no_effect_when, name: both})
        elif isinstance(dimension, Dimension):
            merged[dimension.name] = dimension
    first = [merged[name] for name in (ids.PROVIDERS, ids.IO_BINDING) if name in merged]
    others = [dimension for dimension in merged.values() if dimension.name not in {ids.PROVIDERS, ids.IO_BINDING}]
    return [*first, *others, *(skipped for skipped in found if isinstance(skipped, Skipped))]
