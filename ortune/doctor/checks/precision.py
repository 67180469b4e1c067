"""Checks of number formats: quantization, casts, float64."""

from __future__ import annotations

from ortune.doctor.checks.text import list_ops, plural, tool_command
from ortune.doctor.facts import ModelFacts
from ortune.doctor.findings import DoctorFinding, advise, ok

FLOAT_WORK = frozenset({"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"})


def check_quantization(facts: ModelFacts) -> DoctorFinding | None:
    """Find operators of a quantized graph that run in float."""
    assert facts.optimized is not None
    n_before = len(facts.original.select("DequantizeLinear"))
    if not n_before:
        return None
    left = facts.optimized.select("DequantizeLinear")
    readers = facts.optimized.find_readers()
    work = {
        id(reader): reader
        for node in left
        for name in node.outputs
        for reader in readers.get(name, ())
        if reader.op in FLOAT_WORK
    }
    if not work:
        return ok(f"{len(left)} of {n_before} DequantizeLinear left, none before heavy operators")
    return advise(
        f"{list_ops(work.values())} of a quantized graph run in float; {len(left)} of {n_before} DequantizeLinear are "
        "left",
        "ONNX Runtime uses an integer kernel only if all inputs and the output of an operator are quantized, with "
        "types and scales that the kernel supports. Otherwise each run converts the data to float first",
        "Prepare the float model (symbolic shape inference needs sympy) and quantize it again in QDQ format, "
        "activations and weights",
        tool_command(facts, "quantization.preprocess", "prepared", source="FLOAT_MODEL.onnx"),
    )


MANY_CHAINS = 3


def check_casts(facts: ModelFacts) -> DoctorFinding | None:
    """Find three or more casts that directly follow another cast."""
    assert facts.optimized is not None
    producers = facts.optimized.find_producers()
    casts = facts.optimized.select("Cast")
    chains = [node for node in casts if node.inputs[0] in producers and producers[node.inputs[0]].op == "Cast"]
    if len(chains) < MANY_CHAINS:
        return ok(f"{plural(len(casts), 'cast')}, {len(chains) or 'none'} right after another cast") if casts else None
    return advise(
        f"{plural(len(chains), 'cast')} right after another cast",
        "Each cast reads and writes the whole tensor. Most of them come from a conversion to float16",
        "Let ONNX Runtime remove them. That also removes the rounding in between, so compare the outputs",
        'options.add_session_config_entry("optimization.enable_cast_chain_elimination", "1")',
    )


HEAVY = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})


def check_float64(facts: ModelFacts) -> DoctorFinding:
    """Find heavy operators in float64, or float64 in a tenth of the nodes or more."""
    dtypes = facts.dtypes or {}
    double = [
        node
        for node in facts.original.nodes
        if node.op not in {"Cast", "Constant"}
        and node.domain != "ai.onnx.ml"
        and any(dtypes.get(name) == "float64" for name in node.outputs)
    ]
    heavy = [node for node in double if node.op in HEAVY]
    if not double or (not heavy and len(double) * 10 < len(facts.original.nodes)):
        return ok(f"{plural(len(double), 'small node')} in float64" if double else "no nodes in float64")
    return advise(
        f"{plural(len(double), 'node')} in float64: {list_ops(heavy or double)}",
        "float64 takes twice the memory, a vector register holds half as many numbers, and most operators have no "
        "optimized kernel for it",
        "Export the model in float32: call model.float() in PyTorch, or astype(float32) before a conversion",
    )
