"""Checks of the graph: constants, layouts, shapes, control flow, node overhead."""

from __future__ import annotations

import shlex
from collections import Counter

from ortune.doctor.checks.text import format_bytes, format_ns, list_ops, plural, tool_command
from ortune.doctor.facts import ModelFacts
from ortune.doctor.findings import DoctorFinding, advise, ok, warn
from ortune.doctor.optimized_graph import DEFAULT_LEVEL, EXTENDED_LEVEL
from ortune.model.graph import Graph, GraphInput, Node
from ortune.model.info import CONTROL_FLOW

CONSTANTS_SINCE_IR = 4
"""From this IR version on, the caller may override an initializer that is also a graph input."""


def check_initializers(facts: ModelFacts) -> DoctorFinding:
    """Find initializers that are also listed as graph inputs."""
    graph = facts.original
    weights = {weight.name for weight in graph.weights if not weight.in_node}
    listed = [info for info in graph.inputs if info.name in weights]
    if not listed:
        return ok("no initializers among the graph inputs")
    if graph.ir_version < CONSTANTS_SINCE_IR:
        return ok(f"{len(listed)} initializers among the graph inputs, as IR version {graph.ir_version} requires")
    return warn(
        f"{len(listed)} of {plural(len(weights), 'initializer')} listed as graph inputs",
        f"From IR version {CONSTANTS_SINCE_IR} on, callers may override them, so ONNX Runtime does not treat them as "
        "constants: no constant folding, fewer fusions, no prepacked weights",
        "Remove them from the graph inputs, unless your program overrides them",
        tool_command(facts, "tools.remove_initializer_from_input", "fixed"),
    )


LARGE_BYTES = 16_000_000
GROWN = 1.5


def check_constants(facts: ModelFacts) -> DoctorFinding:
    """Find weights that grow by more than half and 16 MB when folded, and 16 MB or more in Constant nodes."""
    assert facts.extended is not None
    before = sum(weight.n_bytes for weight in facts.original.weights)
    after = sum(weight.n_bytes for weight in facts.extended.weights)
    if after > GROWN * before and after - before > LARGE_BYTES:
        packed = any(weight.dtype.endswith(("int8", "int4")) and weight.shape for weight in facts.original.weights)
        return advise(
            f"constant folding turns {format_bytes(before)} of weights into {format_bytes(after)}",
            "Weights stored in 8 bits or fewer are unpacked to float, and all work is done in float: the model is "
            "small only on disk"
            if packed
            else "The folded constants are larger than what they are computed from, and are read in every run",
            "Quantize the float model with onnxruntime.quantization, so that integer operators are used"
            if packed
            else "Compare with a session without constant folding; a search does not try that",
            "onnxruntime.quantization.quantize_dynamic(float_model, int8_model)"
            if packed
            else 'onnxruntime.InferenceSession(path, disabled_optimizers=["ConstantFolding"])',
        )
    in_nodes = sum(weight.n_bytes for weight in facts.original.weights if weight.in_node)
    if in_nodes > LARGE_BYTES:
        return advise(
            f"{format_bytes(in_nodes)} of weights in Constant nodes",
            "Only initializers can be memory-mapped from an external file; Constant nodes are parsed and copied at "
            "each start",
            "Save the weights as external data",
            "onnx.save_model(model, path, save_as_external_data=True, convert_attribute=True)",
        )
    return ok(f"{format_bytes(before)} of weights")


TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)

MIN_GAIN = 1.2
"""A gain in a short trial that noise rarely causes."""

FEW_ROUND_TRIPS = 1
"""A model with NHWC inputs and outputs needs one transpose at each end."""


def check_layout(facts: ModelFacts) -> DoctorFinding | None:
    """Find repeated transposes between NHWC and NCHW, and CPU-specific layouts that slow a short trial down."""
    assert facts.extended is not None
    assert facts.optimized is not None
    convolutions = [node for node in facts.optimized.nodes if "Conv" in node.op]
    # At the default level, reorders for this CPU absorb transposes, but move the data all the same.
    perms = Counter(node.attributes.get("perm") for node in facts.extended.select("Transpose"))
    n_left = perms[TO_NHWC] + perms[TO_NCHW]
    if not convolutions:
        return None
    # Heads of detectors end with transposes in one direction only; these are not round trips.
    if min(perms[TO_NHWC], perms[TO_NCHW]) > FEW_ROUND_TRIPS:
        return advise(
            f"{n_left} transposes between NHWC and NCHW are left around {plural(len(convolutions), 'convolution')}",
            "ONNX convolutions use NCHW. A model built in NHWC, as in TensorFlow, moves its data back and forth",
            "Convert the model with NCHW inputs and outputs; if that is not enough, train it in NCHW",
            "python -P -m tf2onnx.convert --saved-model FOLDER --inputs-as-nchw INPUT --outputs-as-nchw OUTPUT "
            "--output model.onnx",
        )
    reorders = facts.optimized.select("ReorderInput", "ReorderOutput")
    gain = _gain_without_layout(facts)
    if reorders and gain > MIN_GAIN:
        return advise(
            f"{len(reorders)} reorders to and from the blocked layout (NCHWc) around "
            f"{plural(len(convolutions), 'convolution')}; a short trial without them was {gain:.2f} times as fast",
            "ORT_ENABLE_ALL chooses this layout to speed up convolutions, but the operators between them do not "
            "support it here, so the data moves back and forth",
            "Measure the level without this layout; `ortune search` tries it too",
            f"ortune bench {shlex.quote(facts.path)} --set graph_optimization_level=ORT_ENABLE_EXTENDED",
        )
    what = f"{plural(n_left, 'transpose')} between NHWC and NCHW"
    return ok(f"{what}, {plural(len(reorders), 'reorder')} for the CPU's layout" if reorders else what)


def _gain_without_layout(facts: ModelFacts) -> float:
    """Return how many times as fast a run is without layouts for this CPU; 1 if that is not known."""
    times = facts.run_ns or {}
    if len(times) < 2 or not times[EXTENDED_LEVEL]:
        return 1.0
    return times[DEFAULT_LEVEL] / times[EXTENDED_LEVEL]


SHAPE_OPS = frozenset({"Shape", "Size"})
FOLLOWS_SHAPE = frozenset(
    {
        "Add",
        "Cast",
        "Concat",
        "ConstantOfShape",
        "Div",
        "Equal",
        "Floor",
        "Gather",
        "Max",
        "Min",
        "Mul",
        "Range",
        "Slice",
        "Squeeze",
        "Sub",
        "Unsqueeze",
        "Where",
    }
)
MANY_SHAPE_NODES = 0.1


def check_shapes(facts: ModelFacts) -> DoctorFinding:
    """Find dynamic dimensions that make more than a tenth of the nodes compute shapes in every run."""
    graph = facts.optimized
    assert graph is not None
    weights = {weight.name for weight in facts.original.weights}
    dynamic_inputs = [info for info in facts.original.inputs if info.name not in weights and _is_dynamic(info)]
    if not dynamic_inputs:
        return ok("all input sizes are fixed")
    names = dict.fromkeys(
        dim or f"{info.name}[{axis}]"
        for info in dynamic_inputs
        for axis, dim in enumerate(info.shape or ())
        if not isinstance(dim, int)
    )
    listed = ", ".join(list(names)[:3]) + (", ..." if len(names) > 3 else "")
    computed = _find_shape_nodes(graph)
    if len(computed) <= MANY_SHAPE_NODES * len(graph.nodes):
        return ok(f"few nodes compute shapes; dynamic dimensions: {listed}")
    return advise(
        f"{len(computed)} of {plural(len(graph.nodes), 'node')} compute shapes; dynamic dimensions: {listed}",
        "With fixed sizes these nodes are folded away. Memory is planned again for each set of sizes, and CUDA graphs "
        "need sizes that never change",
        "If your program always uses the same sizes, fix them, one input at a time. Write yours for N",
        tool_command(
            facts, "tools.make_dynamic_shape_fixed", "fixed", _shape_options(dynamic_inputs[0], facts), named=False
        ),
    )


def _is_size(dim: int | str | None) -> bool:
    return isinstance(dim, int)


def _is_dynamic(info: GraphInput) -> bool:
    return info.shape is None or not all(map(_is_size, info.shape))


def _shape_options(info: GraphInput, facts: ModelFacts) -> str:
    """Return the options that fix an input's shape to that of the run; N stands for sizes that nobody gave."""
    given = facts.input_shapes.get(info.name) if info.name not in facts.guessed else None
    shape = given or [dim if _is_size(dim) else "N" for dim in info.shape or ()]
    return f"--input_name {shlex.quote(info.name)} --input_shape {','.join(map(str, shape))}"


def _find_shape_nodes(graph: Graph) -> list[Node]:
    """Return the nodes that compute only with sizes."""
    weights = {weight.name for weight in graph.weights}
    shapes: set[str] = set()
    found = []
    for node in graph.nodes:
        inputs = {name for name in node.inputs if name} - weights
        follows = node.op in FOLLOWS_SHAPE and inputs and inputs <= shapes
        if node.op in SHAPE_OPS or follows:
            found.append(node)
            shapes.update(node.outputs)
    return found


def check_control_flow(facts: ModelFacts) -> DoctorFinding:
    """Find branches and loops: If, Loop and Scan."""
    graph = facts.optimized or facts.original
    found = graph.select(*CONTROL_FLOW)
    if not found:
        return ok("no branches or loops")
    inside = [node for node in graph.nodes if node.scope]
    if all(node.op == "If" for node in found):
        fix = "If a condition never changes, make that input a constant: ONNX Runtime then keeps only one branch"
    else:
        fix = "If the number of iterations is fixed, unroll the loop when you export the model"
    return advise(
        f"{list_ops(found)} with {plural(len(inside), 'node')} inside",
        "Nodes inside run one after another even with ORT_PARALLEL, their memory is planned separately, and CUDA "
        "graphs cannot be captured",
        fix,
    )


TINY_NODE_NS = 5_000
MANY_NODES = 100


def check_overhead(facts: ModelFacts) -> DoctorFinding:
    """Find models of 100 nodes or more, without control flow, that take less than 5 µs per node."""
    assert facts.optimized is not None
    assert facts.run_ns is not None
    n_nodes = len(facts.optimized.nodes)
    run_ns = facts.run_ns[DEFAULT_LEVEL]
    each_ns = run_ns / max(n_nodes, 1)
    sizes = " with guessed sizes" if facts.guessed else ""
    what = f"{format_ns(run_ns)} per run{sizes}, {format_ns(each_ns)} for each of {plural(n_nodes, 'node')}"
    if each_ns >= TINY_NODE_NS or n_nodes < MANY_NODES or facts.optimized.select(*CONTROL_FLOW):
        return ok(what)
    return advise(
        f"many tiny nodes: {what}",
        "Calling a kernel costs a microsecond or two, and distributing its work to other threads several more",
        "Process several requests in one call, and try a single thread; `ortune search` tries it too",
        f"ortune bench {shlex.quote(facts.path)} --set intra_op_num_threads=1",
    )
