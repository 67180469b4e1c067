"""Dimensions that a search tries by default in addition to threads: graph optimization, memory, providers, ..."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ortune.host import Host
from ortune.knobs import ids
from ortune.knobs.captures import find_capture_obstacle
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import CPU
from ortune.knobs.data_files import FILES, CapturedGraph, Data, ExecutionProvider, Suggestion, read_file
from ortune.knobs.dimension import DEFAULT_CHOICE, DEFAULT_LABEL, Choice, Dimension, Skipped, make_dimension
from ortune.knobs.knob import Knob
from ortune.knobs.space_options import SpaceOptions
from ortune.knobs.thread_dimensions import PARALLEL, SPINNING_OFF, one_thread
from ortune.model import ModelInfo

LEVELS = {
    "ORT_DISABLE_ALL": "no optimizations: sometimes faster for quantized graphs",
    "ORT_ENABLE_BASIC": "only constant folding and removal of redundant nodes",
    "ORT_ENABLE_EXTENDED": "fusions, but no layout changes",
    "ORT_ENABLE_LAYOUT": "layout changes, but not the last, hardware-specific optimizations",
}
"""Reason to try each optimization level."""

MAX_STREAMS = 8


def level_dimension(options: SpaceOptions) -> Dimension:
    """Return the choice of an optimization level, of those that the installed onnxruntime has."""
    since = KNOBS[ids.GRAPH_OPTIMIZATION_LEVEL].values_since
    levels = {name: why for name, why in LEVELS.items() if not is_newer(since.get(name, ""), options.onnxruntime)}
    return make_dimension(ids.GRAPH_OPTIMIZATION_LEVEL, *levels.items())


def batch_dimension(batches: Sequence[int]) -> Dimension:
    """Return the choice of the number of items in a call. The first number is the default."""
    first, *others = batches
    choices = (Choice(label=str(n), value=n, why=f"{count_items(n)} in a call, instead of {first}") for n in others)
    default = msgspec.structs.replace(DEFAULT_CHOICE, why=f"{count_items(first)} in a call")
    return Dimension(knob=KNOBS[ids.BATCH], choices=(default, *choices), default_number=first)


def count_items(n: int) -> str:
    """Return a number of items in words."""
    return "1 item" if n == 1 else f"{n} items"


def minor_dimensions(host: Host, model: ModelInfo, options: SpaceOptions) -> Iterator[Dimension | Skipped]:
    """Yield dimensions that matter only in some cases. They are tried one at a time, with all other dimensions."""
    made: list[Dimension] = []
    if CPU in options.providers and _workers_wait(host, options):
        made += _spinning_dimensions(host, model)
    suggested = list(suggested_dimensions(model, options))
    made += [dimension for dimension in suggested if not dimension.knob.numerics]
    if model.traits.width > 1:
        made.append(
            make_dimension(
                ids.EXECUTION_ORDER,
                ("PRIORITY_BASED", "nodes run in another order"),
                no_effect_when={ids.EXECUTION_MODE: frozenset({PARALLEL})},
            )
        )
    if host.system == "Linux" and options.allocators:
        made.append(_allocator_dimension(options))
    made += [dimension for dimension in suggested if dimension.knob.numerics]
    for dimension in made:
        yield skip_newer(dimension.knob, options) or msgspec.structs.replace(dimension, alone=True)


def suggested_dimensions(model: ModelInfo, options: SpaceOptions) -> Iterator[Dimension]:
    """Yield what the data files suggest for knobs that belong to no provider, those for memory first."""
    found = [
        (knob, suggestion)
        for name in FILES
        for knob, suggestion in _match(read_file(name))
        if is_worth(suggestion, model, options)
    ]
    for knob, suggestion in sorted(found, key=lambda pair: not pair[1].if_memory):
        if options.approximate or not knob.numerics:
            values = [(knob.parse(text), why) for text, why in suggestion.values.items()]
            yield make_dimension(knob.id, *values, no_effect_when=suggestion.no_effect_when)


def _match(data: Data) -> Iterator[tuple[Knob, Suggestion]]:
    """Yield the suggestions of a file, each with its knob."""
    knobs = {knob.name: knob for knob in data.knobs}
    for suggestion in data.suggestions:
        yield knobs[suggestion.option], suggestion


def is_worth(suggestion: Suggestion, model: ModelInfo, options: SpaceOptions) -> bool:
    """Return whether a search tries a suggestion for this model, whatever it does to the outputs."""
    applies = not suggestion.if_operators or not suggestion.if_operators.isdisjoint(model.traits.ops)
    return applies and (options.memory_matters or not suggestion.if_memory)


def provider_dimensions(
    provider: ExecutionProvider, host: Host, model: ModelInfo, options: SpaceOptions
) -> Iterator[Dimension | Skipped]:
    """Yield the dimensions of an execution provider other than the CPU."""
    prefix = provider.alias
    if provider.io_binding:
        why = "buffers stay on the device between calls; the program must call run_with_iobinding"
        yield Dimension(knob=KNOBS[ids.IO_BINDING], choices=(DEFAULT_CHOICE, Choice(label="on", value=True, why=why)))
    if provider.captured_graph:
        yield _captured_graph_dimension(prefix, provider.captured_graph, model, options)
    for suggestion in provider.suggestions:
        knob = f"{prefix}.{suggestion.option}"
        if (
            is_worth(suggestion, model, options)
            and (options.providers[0] != provider.name or not suggestion.if_compared)
            and (options.approximate or not KNOBS[knob].numerics)
        ):
            yield make_dimension(
                knob, *suggestion.values.items(), alone=suggestion.alone, no_effect_when=suggestion.no_effect_when
            )
    n_cores = len(host.usable_cores)
    if provider.threads:
        counts = sorted({1, max(1, n_cores // 2), n_cores})
        yield make_dimension(
            f"{prefix}.{provider.threads}",
            *((str(n), f"{n} of the provider's own thread{'' if n == 1 else 's'}") for n in counts),
        )
    if provider.streams and not options.has_one_caller:
        streams = sorted({min(options.clients, MAX_STREAMS), min(max(2, n_cores), MAX_STREAMS)})
        yield make_dimension(f"{prefix}.{provider.streams}", *((str(n), f"{n} calls in parallel") for n in streams))


def skip_newer(knob: Knob, options: SpaceOptions) -> Skipped | None:
    """Return why a knob is skipped that the installed onnxruntime does not have, or None if it has it."""
    if is_newer(knob.since, options.onnxruntime):
        return Skipped(knob=knob, why=f"it requires onnxruntime {knob.since}")
    return None


def is_newer(since: str, installed: str) -> bool:
    """Return whether a setting requires a newer onnxruntime than the installed one, if both are known."""

    def parts(version: str) -> list[int]:
        return [int(part) for part in version.split(".")[:2] if part.isdigit()]

    return bool(since and installed) and parts(since) > parts(installed)


def _captured_graph_dimension(
    prefix: str, graph: CapturedGraph, model: ModelInfo, options: SpaceOptions
) -> Dimension | Skipped:
    """Return the choice of a captured graph, if its requirements are met."""
    knob = f"{prefix}.{graph.option}"
    obstacle = find_capture_obstacle(
        control_flow=model.traits.control_flow,
        has_one_caller=options.has_one_caller,
        has_rate=options.has_rate,
        n_cases=options.n_cases,
    )
    if obstacle:
        return Skipped(knob=KNOBS[knob], why=f"calls cannot be captured: {obstacle}")
    why = "launches the whole graph at once instead of kernel by kernel"
    # Replay uses fixed buffers, which only IO binding provides.
    return make_dimension(knob, (graph.value, why), no_effect_when={ids.IO_BINDING: frozenset({DEFAULT_LABEL})})


def _workers_wait(host: Host, options: SpaceOptions) -> bool:
    """Return whether the time between calls matters: workers spin in it, or others need the CPUs."""
    return bool(
        options.has_rate
        or options.clients > 1
        or options.has_background_load
        or host.limits.quota
        or "cpu" in options.figures
    )


def _spinning_dimensions(host: Host, model: ModelInfo) -> Iterator[Dimension]:
    """Yield how long workers spin, if they do."""
    intra = {
        ids.INTRA_OP_NUM_THREADS: one_thread(host),
        ids.INTRA_OP_ALLOW_SPINNING: frozenset({SPINNING_OFF.label}),
    }
    why = "workers stop spinning as soon as no call is running"
    yield make_dimension(ids.FORCE_SPINNING_STOP, ("1", why), no_effect_when=intra)
    pools = [(ids.INTRA_OP_SPIN_DURATION, ids.INTRA_OP_SPIN_BACKOFF, intra)]
    if model.traits.width > 1:
        inter = {
            ids.EXECUTION_MODE: frozenset({DEFAULT_LABEL}),
            ids.INTER_OP_ALLOW_SPINNING: frozenset({SPINNING_OFF.label}),
        }
        pools.append((ids.INTER_OP_SPIN_DURATION, ids.INTER_OP_SPIN_BACKOFF, inter))
    for duration, backoff, no_effect_when in pools:
        times = (("100", "workers spin for 100 µs, then sleep"), ("1000", "workers spin for 1 ms, then sleep"))
        yield make_dimension(duration, *times, no_effect_when=no_effect_when)
        yield make_dimension(
            backoff, ("8", "workers check for work less and less often"), no_effect_when=no_effect_when
        )


def _allocator_dimension(options: SpaceOptions) -> Dimension:
    return make_dimension(
        ids.ALLOCATOR, *((name, f"{name} instead of the C library's malloc") for name in options.allocators)
    )
