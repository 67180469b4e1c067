"""The checks: each a function from what is known of a model to a finding.

To add one, write a function that takes a `Graphs` and returns a finding made by `fine`, `advise` or `warn`, or None
where there is nothing to check. Then add it to `CHECKS`, with a name and the attributes of `Graphs` that it cannot do
without. Most of them come from the troubleshooting part of ONNX Runtime's page on performance tuning.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ortune.doctor.values import Finding, Graphs, Unchecked
from ortune.model.graph import Graph, GraphInput, Node


class Check(NamedTuple):
    """A check, its name, and what of `Graphs` it needs."""

    name: str
    run: Callable[[Graphs], Finding | None]
    needs: tuple[str, ...] = ()


def fine(what: str) -> Finding:
    """Return the finding that nothing needs to be done."""
    return Finding(severity="fine", what=what)


def advise(what: str, why: str, hint: str, command: str = "") -> Finding:
    """Return a finding that is worth a try."""
    return Finding(severity="advice", what=what, why=why, hint=hint, command=command)


def warn(what: str, why: str, hint: str, command: str = "") -> Finding:
    """Return a finding that should be cured."""
    return Finding(severity="problem", what=what, why=why, hint=hint, command=command)


def run_checks(checks: Sequence[Check], graphs: Graphs) -> tuple[tuple[Finding, ...], tuple[Unchecked, ...]]:
    """Return what the checks find, the worst first, and which of them cannot be made."""
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    for check in checks:
        lacking = [name for name in check.needs if getattr(graphs, name) is None]
        if lacking:
            why = graphs.missing.get(lacking[0], "")
            unchecked.append(Unchecked(check=check.name, why=why or f"{lacking[0]} is not known"))
        elif finding := check.run(graphs):
            findings.append(msgspec.structs.replace(finding, check=check.name))
    order = ("problem", "advice", "fine")
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity))), tuple(unchecked)


# Words.


def count(number: int, noun: str) -> str:
    """Return a count with its noun, such as `1 node` or `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def tell_ops(nodes: Iterable[Node], most: int = 4) -> str:
    """Return how many nodes there are of each operator, such as `3 Conv, 1 Relu`."""
    counts = Counter(node.op for node in nodes).most_common()
    told = ", ".join(f"{number} {op}" for op, number in counts[:most])
    return f"{told} and others" if len(counts) > most else told


def tell_bytes(n_bytes: int) -> str:
    """Return a size in the unit that fits."""
    if n_bytes < 1e6:
        return f"{n_bytes / 1e3:.0f} kB" if n_bytes >= 1e4 else f"{n_bytes} bytes"
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e7 else f"{n_bytes / 1e6:.1f} MB"


def convert(graphs: Graphs, module: str, suffix: str, *options: str, named: bool = True) -> str:
    """Return a command that runs one of onnxruntime's tools on the model and writes another one beside it."""
    path = Path(graphs.path)
    source, target = shlex.quote(graphs.path), shlex.quote(str(path.with_suffix(f".{suffix}.onnx")))
    files = f"--input {source} --output {target}" if named else f"{source} {target}"
    return " ".join(["python -m", f"onnxruntime.{module}", *([files, *options] if named else [*options, files])])


# Whether it loads at all.

CURES = (
    (
        r"not a registered function|No Op registered|No opset import|[Cc]ustom",
        "Register the library with the operator: SessionOptions.register_custom_ops_library(path)",
    ),
    (
        r"Could not find an implementation|NOT_IMPLEMENTED",
        "It has the operator, but not for these types: cast its inputs to float32, or export it otherwise",
    ),
    (
        r"IR version|under development|opset",
        "The file is newer than this onnxruntime: upgrade it, or convert the model with onnx.version_converter",
    ),
    (
        r"external data|External data|initializer.*file|No such file",
        "Put the external data files beside the model, under the names that it was saved with",
    ),
    (r"bad_alloc|lack of memory", "Free some memory, or give the container more"),
)
"""What helps against a message of ONNX Runtime's, the first that fits."""


def check_loading(graphs: Graphs) -> Finding:
    """Tell whether ONNX Runtime loads the model."""
    if not graphs.load_error:
        return fine("ONNX Runtime loads the model")
    hint = next((hint for pattern, hint in CURES if re.search(pattern, graphs.load_error)), "")
    return warn(
        "ONNX Runtime cannot load the model",
        f"It says: {shorten(graphs.load_error)}",
        hint or "Check the file: onnx.checker should find what is wrong",
        "" if hint else f'python -c "import onnx; onnx.checker.check_model({graphs.path!r}, full_check=True)"',
    )


def shorten(message: str, most: int = 400) -> str:
    """Return ONNX Runtime's message without places in its source."""
    message = re.sub(r"/\S+\.(cc|h):\d+ .*?\) (?=[A-Z])", "", message)
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", message).strip()
    return message if len(message) <= most else message[: most - 1] + "…"


def check_data_files(graphs: Graphs) -> Finding:
    """Tell whether all external data is there."""
    files = graphs.original.data_files
    if not files:
        return fine("all data is in the ONNX file")
    bad = [file for file in files if file.found_bytes is None or file.found_bytes < file.needed_bytes]
    if not bad:
        return fine(f"{count(len(files), 'external file')}, all there")
    first = bad[0]
    expected = f", at least {tell_bytes(first.needed_bytes)}" if first.needed_bytes else ""
    state = "is missing" if first.found_bytes is None else f"has only {tell_bytes(first.found_bytes)}"
    others = f", and {count(len(bad) - 1, 'other file')}" if len(bad) > 1 else ""
    return warn(
        f"external data {first.name}{expected}, {state}{others}",
        "Weights that are too large for the ONNX file lie beside it, and are found by name",
        "Copy the model again with all of its files, and do not rename them",
    )


KNOWN_DOMAINS = frozenset(
    {
        "",
        "ai.onnx.ml",
        "ai.onnx.training",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "com.microsoft.experimental",
        "org.pytorch.aten",
    }
)
"""Domains whose operators ONNX Runtime has, as far as its packages are built with them."""

EXTENSIONS = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})


def check_operators(graphs: Graphs) -> Finding:
    """Find operators that ONNX Runtime does not have by itself."""
    graph = graphs.original
    own = set(graph.functions)
    custom = [
        node for node in graph.nodes if node.domain not in KNOWN_DOMAINS and f"{node.domain}:{node.op}" not in own
    ]
    # ONNX Runtime registers some of its own under ONNX's domain; as long as they load, all is well.
    unknown = [node for node in graph.nodes if f"{node.domain}:{node.op}" in graph.unregistered]
    if custom:
        domains = ", ".join(sorted({node.domain for node in custom}))
        extensions = all(node.domain in EXTENSIONS for node in custom)
        return warn(
            f"{tell_ops(custom)} of the domain {domains}: custom operators",
            "ONNX Runtime cannot load the model without the library that holds them, and does not fuse around them",
            "Install onnxruntime-extensions and register it" if extensions else "Register the library that has them",
            "options.register_custom_ops_library("
            + ("onnxruntime_extensions.get_library_path())" if extensions else "path)"),
        )
    if unknown and graphs.load_error:
        return warn(
            f"{tell_ops(unknown)}: opset {graph.opsets.get('', 0)} of ONNX has no such operator",
            "ONNX Runtime refuses a model with an operator that it does not know",
            "Export the model for an opset that has the operator, or register a library for it",
        )
    return fine("all operators are standard, or ONNX Runtime's own")


# The file.

OLDEST_OPSET = 7
"""ONNX Runtime promises to run models from this opset on."""

OLD_OPSET = 13
NEW_OPSET = 17

GAINS_FROM_OPSET = frozenset({"DequantizeLinear", "Erf", "QuantizeLinear", "ReduceMean", "Softmax"})
"""What newer opsets have better operators for: quantisation, GELU, normalisation, attention."""


def check_opset(graphs: Graphs) -> Finding:
    """Find old operator sets."""
    graph = graphs.original
    opset = graph.opsets.get("", 0)
    if not any(node.domain == "" for node in graph.nodes) or opset >= OLD_OPSET:
        return fine(f"opset {opset}, IR version {graph.ir_version}")
    gains = [node for node in graph.nodes if node.op in GAINS_FROM_OPSET]
    # A softmax at the end of a classifier gains nothing.
    if opset >= OLDEST_OPSET and len(gains) < 2:
        return fine(f"opset {opset}: old, but enough here; quantising per channel needs {OLD_OPSET}")
    return advise(
        f"opset {opset} is old, and there are {tell_ops(gains)}" if gains else f"opset {opset} is old",
        "Quantising per channel needs opset 13, one LayerNormalization operator comes with 17, one Gelu with 20; "
        "ONNX Runtime's newer fusions look for these",
        "Export the model anew, or convert it, and compare the outputs",
        convert(graphs, "tools.update_onnx_opset", f"opset{NEW_OPSET}", f"--opset {NEW_OPSET}", named=False),
    )


CONSTANTS_SINCE_IR = 4
"""From this IR version on, an initialiser that is listed among the inputs may be overridden by the caller."""


def check_initializers(graphs: Graphs) -> Finding:
    """Find initialisers among the graph's inputs."""
    graph = graphs.original
    weights = {weight.name for weight in graph.weights if not weight.in_node}
    listed = [info for info in graph.inputs if info.name in weights]
    if not listed:
        return fine("no initialiser is listed among the inputs")
    if graph.ir_version < CONSTANTS_SINCE_IR:
        return fine(f"{len(listed)} initialisers among the inputs, as IR version {graph.ir_version} wants: constants")
    return warn(
        f"{len(listed)} of {count(len(weights), 'initialiser')} listed among the graph's inputs",
        f"From IR version {CONSTANTS_SINCE_IR} on the caller may override them, so ONNX Runtime takes them for "
        "variables: no constant folding, fewer fusions, no prepacked weights",
        "Take them out of the inputs, unless you do override them",
        convert(graphs, "tools.remove_initializer_from_input", "fixed"),
    )


LARGE_BYTES = 16_000_000
GROWN = 1.5


def check_constants(graphs: Graphs) -> Finding:
    """Find constants that swell when they are folded, and large ones inside nodes."""
    assert graphs.extended is not None
    before = sum(weight.n_bytes for weight in graphs.original.weights)
    after = sum(weight.n_bytes for weight in graphs.extended.weights)
    if after > GROWN * before and after - before > LARGE_BYTES:
        packed = any(weight.dtype.endswith(("int8", "int4")) and weight.shape for weight in graphs.original.weights)
        return advise(
            f"constant folding makes {tell_bytes(after)} of weights out of {tell_bytes(before)}",
            "Weights that are stored in 8 bits are unpacked to float, and computed with as such: the model is small "
            "on disk alone"
            if packed
            else "What it computes ahead is larger than what it is computed from, and is read in every run",
            "Quantise the float model with onnxruntime.quantization, so that its integer operators are used"
            if packed
            else "Compare a session without the folding: ortune does not turn it off by itself",
            "onnxruntime.quantization.quantize_dynamic(float_model, int8_model)"
            if packed
            else 'onnxruntime.InferenceSession(path, disabled_optimizers=["ConstantFolding"])',
        )
    in_nodes = sum(weight.n_bytes for weight in graphs.original.weights if weight.in_node)
    if in_nodes > LARGE_BYTES:
        return advise(
            f"{tell_bytes(in_nodes)} of weights are held by Constant nodes",
            "Only initialisers can be mapped from an external file; these are parsed and copied at each start",
            "Save them as external data",
            "onnx.save_model(model, path, save_as_external_data=True, convert_attribute=True)",
        )
    return fine(f"{tell_bytes(before)} of weights")


# Layouts and fusions.

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)

WORTH_TELLING = 1.2
"""A gain in a short trial that noise alone seldom makes."""

FEW_ROUND_TRIPS = 1
"""A model whose callers use NHWC needs one transpose at each end."""


def check_layout(graphs: Graphs) -> Finding | None:
    """Find transposes between NHWC and NCHW, and reorders between NCHW and the blocked layout of the CPU."""
    assert graphs.extended is not None
    assert graphs.optimized is not None
    convolutions = [node for node in graphs.optimized.nodes if "Conv" in node.op]
    # Layouts for this CPU take transposes into their reorders, which move the data all the same.
    perms = Counter(node.attributes.get("perm") for node in graphs.extended.select("Transpose"))
    n_left = perms[TO_NHWC] + perms[TO_NCHW]
    if not convolutions:
        return None
    # Heads of detectors end in one direction alone; that is no round trip.
    if min(perms[TO_NHWC], perms[TO_NCHW]) > FEW_ROUND_TRIPS:
        return advise(
            f"{n_left} transposes between NHWC and NCHW are left beside {count(len(convolutions), 'convolution')}",
            "ONNX convolutions are NCHW; a model that was NHWC, as TensorFlow's are, moves its data to and fro",
            "Convert it with NCHW inputs and outputs; where that is not enough, train it in NCHW",
            "python -m tf2onnx.convert --saved-model FOLDER --inputs-as-nchw INPUT --outputs-as-nchw OUTPUT "
            "--output model.onnx",
        )
    reorders = graphs.optimized.select("ReorderInput", "ReorderOutput")
    if reorders and _gain_without_layout(graphs) > WORTH_TELLING:
        return advise(
            f"{len(reorders)} reorders to and from the blocked layout (NCHWc) beside "
            f"{count(len(convolutions), 'convolution')}: without them a short trial was "
            f"{_gain_without_layout(graphs):.2f} times as fast",
            "The layout that ORT_ENABLE_ALL chooses is meant to make convolutions faster, but the operators between "
            "them here do not know it, and the data is moved to and fro",
            "Measure the level without layouts as it should be measured; `ortune search` does so too",
            f"ortune bench {shlex.quote(graphs.path)} --set graph_optimization_level=ORT_ENABLE_EXTENDED",
        )
    told = f"{count(n_left, 'transpose')} between NHWC and NCHW"
    return fine(f"{told}, {count(len(reorders), 'reorder')} for the CPU's own layout" if reorders else told)


def _gain_without_layout(graphs: Graphs) -> float:
    """Return how many times as fast a run is without layouts for this CPU; 1 where it is not known."""
    times = graphs.run_ns or {}
    if len(times) < 2 or not times["ORT_ENABLE_EXTENDED"]:
        return 1.0
    return times["ORT_ENABLE_ALL"] / times["ORT_ENABLE_EXTENDED"]


OFFLINE = "--model_type bert --opt_level 0"
"""With another level it creates a session, and imports torch for that."""

GELU = frozenset({"Gelu", "BiasGelu", "FastGelu", "QuickGelu"})


def check_gelu(graphs: Graphs) -> Finding | None:
    """Find GELUs that are still written out."""
    assert graphs.optimized is not None
    readers = graphs.optimized.find_readers()
    found = [node for node in graphs.optimized.select("Erf", "Tanh") if _is_gelu(node, readers)]
    n_fused = len(graphs.optimized.select(*GELU))
    if not found:
        return fine(f"{count(n_fused, 'GELU')}, all fused") if n_fused else None
    tanh = all(node.op == "Tanh" for node in found)
    return advise(
        f"{count(len(found), 'GELU')} still written out with {found[0].op}" + (f", {n_fused} fused" if n_fused else ""),
        "On the CPU ONNX Runtime fuses only the form with Erf; one operator reads and writes the data once, not "
        "five times or more"
        if tanh
        else "The pattern differs from the one that ONNX Runtime fuses; one operator reads and writes the data once, "
        "not five times",
        "Let the optimiser for transformers try, which knows more patterns (it needs sympy), or export for opset 20, "
        "which has Gelu",
        convert(graphs, "transformers.optimizer", "fused", OFFLINE),
    )


def _is_gelu(node: Node, readers: dict[str, list[Node]]) -> bool:
    """Return whether 1 is added to it and the sum multiplied, in the one order or the other."""
    for one in readers.get(node.outputs[0], ()):
        if one.op not in {"Add", "Mul"}:
            continue
        for two in readers.get(one.outputs[0], ()):
            if {one.op, two.op} == {"Add", "Mul"}:
                # A Tanh that is scaled and shifted is a sigmoid; only after an Add comes a GELU's product.
                return node.op == "Erf" or one.op == "Add"
    return False


ATTENTION = frozenset(
    {
        "Attention",
        "DecoderMaskedMultiHeadAttention",
        "DecoderMaskedSelfAttention",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "PackedAttention",
        "PackedMultiHeadAttention",
        "QAttention",
        "SparseAttention",
    }
)
PRODUCTS = frozenset({"MatMul", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "Einsum"})
BETWEEN = frozenset(
    {
        "Add",
        "Cast",
        "Clip",
        "DequantizeLinear",
        "Div",
        "Dropout",
        "DynamicQuantizeLinear",
        "Max",
        "Mul",
        "QuantizeLinear",
        "Reshape",
        "Sub",
        "Where",
    }
)
"""What may stand between the products and the softmax of an attention: scale, mask, bias, quantisation."""

MOST_BETWEEN = 4


def check_attention(graphs: Graphs) -> Finding | None:
    """Find attentions that are still written out."""
    graph = graphs.optimized
    assert graph is not None
    producers, readers = graph.find_producers(), graph.find_readers()
    found = [
        node
        for node in graph.select("Softmax")
        if node.inputs
        and _reaches(node, lambda each: [producers[name] for name in each.inputs if name in producers])
        and _reaches(node, lambda each: [reader for name in each.outputs for reader in readers.get(name, ())])
    ]
    n_fused = len(graph.select(*ATTENTION))
    if not found:
        return fine(f"{count(n_fused, 'attention')}, all fused") if n_fused else None
    return advise(
        f"{count(len(found), 'attention')} still written out" + (f", {n_fused} fused" if n_fused else ""),
        "ONNX Runtime fuses an attention only where it knows the exporter's pattern; written out, the matrix of all "
        "pairs is read and written several times",
        "Let the optimiser for transformers try (it needs sympy), with the model type that fits, or export with "
        "fused attention (opset 23 has Attention)",
        convert(graphs, "transformers.optimizer", "fused", OFFLINE),
    )


def _reaches(node: Node, step: Callable[[Node], list[Node]]) -> bool:
    """Return whether a product is found within a few steps, across scale, mask and the like."""
    front = [node]
    for _ in range(MOST_BETWEEN + 1):
        front = [each for one in front for each in step(one)]
        if any(each.op in PRODUCTS for each in front):
            return True
        front = [each for each in front if each.op in BETWEEN]
    return False


FLOAT_WORK = frozenset({"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"})


def check_quantization(graphs: Graphs) -> Finding | None:
    """Find operators of a quantised graph that are computed in float."""
    assert graphs.optimized is not None
    n_before = len(graphs.original.select("DequantizeLinear"))
    if not n_before:
        return None
    left = graphs.optimized.select("DequantizeLinear")
    readers = graphs.optimized.find_readers()
    work = {
        id(reader): reader
        for node in left
        for name in node.outputs
        for reader in readers.get(name, ())
        if reader.op in FLOAT_WORK
    }
    if not work:
        return fine(f"{len(left)} of {n_before} DequantizeLinear are left, none in front of heavy work")
    return advise(
        f"{tell_ops(work.values())} of a quantised graph are computed in float; {len(left)} of {n_before} "
        "DequantizeLinear are left",
        "ONNX Runtime uses an integer kernel only where all inputs and the output of an operator are quantised, with "
        "types and scales that the kernel knows; else each run unpacks to float first",
        "Prepare the float model (symbolic shapes need sympy), quantise it anew in QDQ form, activations and weights",
        convert(graphs, "quantization.preprocess", "prepared").replace(shlex.quote(graphs.path), "FLOAT_MODEL.onnx"),
    )


MANY_CHAINS = 3


def check_casts(graphs: Graphs) -> Finding | None:
    """Find casts of casts."""
    assert graphs.optimized is not None
    producers = graphs.optimized.find_producers()
    casts = graphs.optimized.select("Cast")
    chains = [node for node in casts if node.inputs[0] in producers and producers[node.inputs[0]].op == "Cast"]
    if len(chains) < MANY_CHAINS:
        return fine(f"{count(len(casts), 'cast')}, {len(chains) or 'none'} of what was just cast") if casts else None
    return advise(
        f"{count(len(chains), 'cast')} of what was just cast",
        "Each reads and writes the whole tensor; most come from conversions to float16",
        "Let ONNX Runtime drop them: rounding in between is lost with them, so compare the outputs",
        'options.add_session_config_entry("optimization.enable_cast_chain_elimination", "1")',
    )


HEAVY = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})


def check_float64(graphs: Graphs) -> Finding:
    """Find arithmetic in double precision."""
    dtypes = graphs.original.dtypes
    double = [
        node
        for node in graphs.original.nodes
        if node.op not in {"Cast", "Constant"}
        and node.domain != "ai.onnx.ml"
        and any(dtypes.get(name) == "float64" for name in node.outputs)
    ]
    heavy = [node for node in double if node.op in HEAVY]
    if not heavy and len(double) * 10 < len(graphs.original.nodes):
        return fine(f"{count(len(double), 'small node')} in float64" if double else "nothing in float64")
    return advise(
        f"{count(len(double), 'node')} computed in float64: {tell_ops(heavy or double)}",
        "Twice the memory, half the numbers in a vector, and no tuned kernel for most operators",
        "Export the model in float32: model.float() in PyTorch, astype(float32) before a conversion",
    )


# Shapes and control flow.

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


def check_shapes(graphs: Graphs) -> Finding:
    """Find open sizes that make ONNX Runtime compute shapes in every run."""
    graph = graphs.optimized
    assert graph is not None
    weights = {weight.name for weight in graphs.original.weights}
    open_inputs = [info for info in graphs.original.inputs if info.name not in weights and _is_open(info)]
    if not open_inputs:
        return fine("all sizes of the inputs are fixed")
    names = dict.fromkeys(
        dim or f"{info.name}[{axis}]"
        for info in open_inputs
        for axis, dim in enumerate(info.shape or ())
        if not isinstance(dim, int)
    )
    told = ", ".join(list(names)[:3]) + (", ..." if len(names) > 3 else "")
    computed = _shape_nodes(graph)
    if len(computed) <= MANY_SHAPE_NODES * len(graph.nodes):
        return fine(f"few nodes compute shapes; open sizes: {told}")
    return advise(
        f"{len(computed)} of {count(len(graph.nodes), 'node')} compute shapes, for the open sizes {told}",
        "With fixed sizes they are folded away; memory is planned for each set of sizes anew, and CUDA graphs need "
        "sizes that never change",
        "If your callers always send the same sizes, fix them, input by input",
        convert(graphs, "tools.make_dynamic_shape_fixed", "fixed", _fix(open_inputs[0], graphs), named=False),
    )


def _is_size(dim: int | str | None) -> bool:
    return isinstance(dim, int)


def _is_open(info: GraphInput) -> bool:
    return info.shape is None or not all(map(_is_size, info.shape))


def _fix(info: GraphInput, graphs: Graphs) -> str:
    shape = graphs.sizes.get(info.name)
    told = shape or [dim if _is_size(dim) else "N" for dim in info.shape or ()]
    sizes = ",".join(map(str, told))
    return f"--input_name {shlex.quote(info.name)} --input_shape {sizes}"


def _shape_nodes(graph: Graph) -> list[Node]:
    """Return the nodes that compute with sizes alone."""
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


CONTROL_FLOW = ("If", "Loop", "Scan")


def check_control_flow(graphs: Graphs) -> Finding:
    """Find branches and loops."""
    graph = graphs.optimized or graphs.original
    found = graph.select(*CONTROL_FLOW)
    if not found:
        return fine("no branches or loops")
    inside = [node for node in graph.nodes if node.scope]
    if all(node.op == "If" for node in found):
        hint = "Where a condition never changes for you, make that input a constant: ONNX Runtime then keeps one branch"
    else:
        hint = "Where the number of rounds is fixed, unroll the loop when you export the model"
    return advise(
        f"{tell_ops(found)} with {count(len(inside), 'node')} inside",
        "Nodes inside run one after another even with ORT_PARALLEL, their memory is planned apart, and CUDA graphs "
        "cannot be captured",
        hint,
    )


# Execution providers.

SHAPE_WORK = SHAPE_OPS | FOLLOWS_SHAPE | {"Constant", "Expand", "Identity", "NonZero", "Reshape", "Tile"}
"""What ONNX Runtime leaves to the CPU on purpose: sizes are needed there."""


def check_providers(graphs: Graphs) -> Finding:
    """Find nodes that other execution providers leave to the CPU."""
    if not graphs.providers:
        return fine("only the CPU here; name another provider with --provider")
    assert graphs.assigned is not None
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in graphs.providers)
    if graphs.provider_error:
        return (warn if graphs.named else advise)(
            f"no session can be created with {names}",
            f"ONNX Runtime says: {shorten(graphs.provider_error)}",
            "Install the libraries that it needs, in the versions that its documentation names",
        )
    there = [name for name in graphs.providers if name in graphs.session_providers]
    if not there:
        return (warn if graphs.named else advise)(
            f"{names} does not work here: the session runs without it",
            "ONNX Runtime only logs that a provider cannot be loaded, and runs the model on the CPU",
            "Install the libraries that it needs, in the versions that its documentation names",
        )
    cpu = [node for node in graphs.assigned if node.provider == "CPUExecutionProvider"]
    n_nodes = len(graphs.assigned)
    if n_nodes and len(cpu) == n_nodes:
        return (warn if graphs.named else advise)(
            f"{names} takes none of {count(n_nodes, 'node')}: the model runs on the CPU",
            "The provider has no kernel for these operators and types, or counts them as not worth its while",
            "Run it on the CPU alone, or export it with types that the provider knows, such as float16 or float32",
        )
    work = [Node(op=node.op, domain=node.domain, name=node.name) for node in cpu if node.op not in SHAPE_WORK]
    if not work:
        return fine(f"{names} takes {n_nodes - len(cpu)} of {n_nodes} nodes; the CPU computes shapes")
    return advise(
        f"{len(cpu)} of {n_nodes} nodes run on the CPU beside {names}: {tell_ops(work)}",
        "Data is copied from and to the device around each of them",
        "Look where they are: with session.disable_cpu_ep_fallback ONNX Runtime refuses such a model and names them",
        'options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")',
    )


CUDA = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"})


def check_cuda_graphs(graphs: Graphs) -> Finding | None:
    """Tell whether CUDA graphs can be captured."""
    if not CUDA & set(graphs.providers):
        return None
    assert graphs.assigned is not None
    hindrances = []
    graph = graphs.optimized or graphs.original
    if graph.select(*CONTROL_FLOW):
        hindrances.append("control flow")
    if any(node.provider == "CPUExecutionProvider" for node in graphs.assigned):
        hindrances.append("nodes on the CPU")
    if any(not info.dtype for info in graphs.original.inputs):
        hindrances.append("inputs that are no tensors")
    if hindrances:
        return advise(
            f"CUDA graphs cannot be captured: {' and '.join(hindrances)}",
            "A captured graph is launched at once, instead of kernel by kernel: it helps models with many small nodes",
            "Remove what hinders it, if the model is made of many small nodes",
        )
    return fine("CUDA graphs can be captured, with IO binding and sizes that do not change (enable_cuda_graph)")


# Times.

SLOW_CREATION_NS = 500_000_000


def check_creation(graphs: Graphs) -> Finding:
    """Find models whose sessions spend their time on optimisation."""
    assert graphs.creation_ns is not None
    total, plain = graphs.creation_ns["ORT_ENABLE_ALL"], graphs.creation_ns["ORT_DISABLE_ALL"]
    if total < SLOW_CREATION_NS or total < 2 * plain:
        return fine(f"a session is created in {total / 1e6:.0f} ms")
    target = str(Path(graphs.path).with_suffix(".optimized.onnx"))
    return advise(
        f"creating a session takes {total / 1e9:.1f} s, {(total - plain) / 1e9:.1f} s of it for optimising the graph",
        "It is done anew at each start of the process",
        "Write the optimised model once, on the kind of host that runs it, and load that with ORT_DISABLE_ALL",
        f"options.optimized_model_filepath = {target!r}",
    )


TINY_NODE_NS = 5_000
MANY_NODES = 100


def check_overhead(graphs: Graphs) -> Finding:
    """Find models whose nodes are so small that calling them costs as much as their work."""
    assert graphs.optimized is not None
    assert graphs.run_ns is not None
    n_nodes = len(graphs.optimized.nodes)
    run_ns = graphs.run_ns["ORT_ENABLE_ALL"]
    each_ns = run_ns / max(n_nodes, 1)
    told = f"{run_ns / 1e6:.3g} ms a run, {each_ns / 1e3:.3g} µs for each of {count(n_nodes, 'node')}"
    if each_ns >= TINY_NODE_NS or n_nodes < MANY_NODES or graphs.optimized.select(*CONTROL_FLOW):
        return fine(told)
    return advise(
        f"many tiny nodes: {told}",
        "Calling a kernel costs a microsecond or two, and handing its work to other threads several more",
        "Put several requests into one call, and try a single thread; `ortune search` does",
        f"ortune bench {shlex.quote(graphs.path)} --set intra_op_num_threads=1",
    )


CHECKS = (
    Check("loading", check_loading),
    Check("external data", check_data_files),
    Check("operators", check_operators),
    Check("opset", check_opset),
    Check("initialisers", check_initializers),
    Check("constants", check_constants, ("extended",)),
    Check("layout", check_layout, ("extended", "optimized")),
    Check("attention", check_attention, ("optimized",)),
    Check("GELU", check_gelu, ("optimized",)),
    Check("quantisation", check_quantization, ("optimized",)),
    Check("casts", check_casts, ("optimized",)),
    Check("float64", check_float64),
    Check("shapes", check_shapes, ("optimized",)),
    Check("control flow", check_control_flow),
    Check("providers", check_providers, ("assigned",)),
    Check("CUDA graphs", check_cuda_graphs, ("assigned",)),
    Check("creation", check_creation, ("creation_ns",)),
    Check("overhead", check_overhead, ("optimized", "run_ns")),
)
"""All checks, in the order in which they are shown."""
