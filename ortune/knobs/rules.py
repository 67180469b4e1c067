"""What documentation recommends for a model on a host: a search tries it first.

Source: the pages "Thread management", "Memory consumption" and "Performance tuning" of onnxruntime.ai, and the advice
of Optimum and Triton for servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortune.host import Host
from ortune.knobs import ids
from ortune.knobs.affinity import Placement
from ortune.knobs.dimension import Dimension, Rule, choose_alone
from ortune.knobs.space_options import SpaceOptions
from ortune.knobs.thread_dimensions import PARALLEL, choose_fitting, count_fitting_threads
from ortune.model import ModelInfo

HEAVY = frozenset(
    {
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DynamicQuantizeLSTM",
        "Einsum",
        "FusedConv",
        "FusedMatMul",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "MatMulNBits",
        "MultiHeadAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    }
)
"""Operators with enough work to share among threads."""

_NAMES = {
    "threads": ids.INTRA_OP_NUM_THREADS,
    "affinity": ids.INTRA_OP_THREAD_AFFINITIES,
    "spinning": ids.INTRA_OP_ALLOW_SPINNING,
    "blocks": ids.DYNAMIC_BLOCK_BASE,
    "level": ids.GRAPH_OPTIMIZATION_LEVEL,
}


SAVING_MEMORY = (ids.ENABLE_MEM_PATTERN, ids.ENABLE_CPU_MEM_ARENA, ids.DISABLE_PREPACKING)
"""What takes memory to make calls faster; the first often makes little difference to their speed."""

WHY_FITTING = "a pool that fits this host and its load, unlike the default"


def make_usage_rules(dimensions: Sequence[Dimension]) -> Iterator[Rule]:
    """Yield rules about how the session is used.

    There are rules for the last and a middle number of items in a call, for each execution provider, and for captured
    graphs. Source of the rule for captured graphs: "CUDA Execution Provider" of onnxruntime.ai.
    """
    for dimension in dimensions:
        choices = dimension.choices[1:]
        if dimension.name == ids.BATCH:
            for label in dict.fromkeys((choices[-1].label, choices[len(choices) // 2].label)):
                yield Rule(labels={dimension.name: label}, why="the items of a call share what a call costs")
        if dimension.name == ids.PROVIDERS or dimension.knob.captures:
            for choice in choices:
                yield Rule(labels=choose_alone(dimensions, dimension, choice), why=choice.why)


def make_memory_rules(dimensions: Sequence[Dimension], options: SpaceOptions) -> Iterator[Rule]:
    """Yield rules about settings that save memory, if it is the first objective."""
    if options.figures[0] != "memory":
        return
    known = {dimension.name: dimension for dimension in dimensions}
    for name in SAVING_MEMORY:
        for choice in known[name].choices[1:] if name in known else ():
            yield Rule(labels=choose_alone(dimensions, known[name], choice), why=choice.why)


def make_cpu_rules(
    host: Host, model: ModelInfo, dimensions: Sequence[Dimension], options: SpaceOptions
) -> Iterator[Rule]:
    """Yield the rules for the CPU provider that can be followed in these dimensions.

    Args:
        host: The host.
        model: The model.
        dimensions: The dimensions of the search space.
        options: What the space is for.
    """
    known = {(dimension.name, choice.label): choice for dimension in dimensions for choice in dimension.choices}

    def rule(why: str, **chosen: str) -> Iterator[Rule]:
        labels = {_NAMES[name]: label for name, label in chosen.items()}
        affinity = known.get((ids.INTRA_OP_THREAD_AFFINITIES, chosen.get("affinity", "")))
        if all(item in known for item in labels.items()) and (not affinity or chosen["threads"] in affinity.value_by):
            yield Rule(labels=labels, why=why)

    cores = len(host.usable_cores)
    n_processes = options.processes
    fitting = choose_fitting(host, options)
    if fitting and fitting.items() <= known.keys():
        yield Rule(labels=fitting, why=WHY_FITTING, fits_host=True)
    heavy = HEAVY & set(model.traits.ops)
    why = "no thread waits for another" if heavy else "no operator of this graph has much work to share"
    yield from rule(f"one thread: {why}", threads="1")
    if 1 < (share := cores // n_processes) < cores:
        why = f"the cores, divided among {n_processes} processes"
        yield from rule(why, threads=str(share))
        yield from rule(f"{why}, and workers that sleep", threads=str(share), spinning="off")
    yield from rule("workers that sleep leave the CPUs to others", spinning="off")
    if host.limits.throttled:
        why = "a pool that fits the CPU quota and does not use it up by spinning"
        yield from rule(why, threads=str(count_fitting_threads(host, options)), spinning="off")
    yield from rule("one thread per physical core, each pinned to its core", threads=str(cores), affinity="compact")
    yield from rule("one thread per physical core, free to move", threads=str(cores))
    placement = Placement(host)
    if len(placement.nodes) > 1:
        n_node = placement.count_cores(placement.nodes[0])
        # If a node is one L3 domain, only one of the two policies is a choice.
        for policy in ("node", "l3"):
            yield from rule("one NUMA node: all memory is local", threads=str(n_node), affinity=policy)
    yield from rule("blocks of decreasing size, base 4: recommended against late threads", blocks="4")
    # The subgraphs of If, Loop and Scan run sequentially in any mode.
    if (ids.EXECUTION_MODE, PARALLEL) in known and not model.traits.control_flow:
        why = f"up to {model.traits.width} operators of this graph can run in parallel"
        parallel = {ids.EXECUTION_MODE: PARALLEL}
        yield Rule(labels=parallel, why=why)
        yield Rule(labels={**parallel, ids.INTRA_OP_NUM_THREADS: "1"}, why=f"{why}: one thread for each")
    if model.traits.quantized:
        for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"):
            why = "a quantized graph: fused operators are not always faster than its quantized operators"
            yield from rule(why, level=level)
