"""Checks of fusions: patterns that ONNX Runtime replaces by one operator if it recognizes them."""

from __future__ import annotations

from collections.abc import Callable

from ortune.doctor.checks.text import plural, tool_command
from ortune.doctor.facts import ModelFacts
from ortune.doctor.findings import DoctorFinding, advise, ok
from ortune.model.graph import Node

OFFLINE = "--model_type bert --opt_level 0"
"""At any other level the transformer optimizer creates a session, and imports torch for it."""

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
"""Operators between the matrix products and the softmax of attention: scale, mask, bias, quantization."""

MOST_BETWEEN = 4


def check_attention(facts: ModelFacts) -> DoctorFinding | None:
    """Find attention blocks that are not fused."""
    graph = facts.optimized
    assert graph is not None
    producers, readers = graph.find_producers(), graph.find_readers()
    found = [
        node
        for node in graph.select("Softmax")
        if node.inputs
        and _reaches_product(node, lambda reached: [producers[name] for name in reached.inputs if name in producers])
        and _reaches_product(
            node, lambda reached: [reader for name in reached.outputs for reader in readers.get(name, ())]
        )
    ]
    n_fused = len(graph.select(*ATTENTION))
    if not found:
        return ok(f"{plural(n_fused, 'attention block')}, all fused") if n_fused else None
    return advise(
        f"{plural(len(found), 'attention block')} not fused" + (f", {n_fused} fused" if n_fused else ""),
        "ONNX Runtime fuses attention only if it recognizes the exporter's pattern. Otherwise the matrix of attention "
        "scores is written and read several times",
        "Try the transformer optimizer (it needs sympy) with the model type that fits, or export with an attention "
        "operator (opset 23 has Attention)",
        tool_command(facts, "transformers.optimizer", "fused", OFFLINE),
    )


def _reaches_product(node: Node, step: Callable[[Node], list[Node]]) -> bool:
    """Return whether a matrix product is a few steps away, across scale, mask and the like."""
    front = [node]
    for _ in range(MOST_BETWEEN + 1):
        front = [neighbor for one in front for neighbor in step(one)]
        if any(reached.op in PRODUCTS for reached in front):
            return True
        front = [reached for reached in front if reached.op in BETWEEN]
    return False


GELU = frozenset({"Gelu", "BiasGelu", "FastGelu", "QuickGelu"})


def check_gelu(facts: ModelFacts) -> DoctorFinding | None:
    """Find GELUs that are not fused."""
    assert facts.optimized is not None
    readers = facts.optimized.find_readers()
    found = [node for node in facts.optimized.select("Erf", "Tanh") if _is_gelu(node, readers)]
    n_fused = len(facts.optimized.select(*GELU))
    if not found:
        return ok(f"{plural(n_fused, 'GELU')}, all fused") if n_fused else None
    tanh = all(node.op == "Tanh" for node in found)
    return advise(
        f"{plural(len(found), 'GELU')} with {found[0].op} not fused" + (f", {n_fused} fused" if n_fused else ""),
        "On the CPU, ONNX Runtime fuses only the form with Erf. A fused operator reads and writes the data once "
        "instead of five times or more"
        if tanh
        else "The pattern differs from the one that ONNX Runtime fuses. A fused operator reads and writes the data "
        "once instead of five times",
        "Try the transformer optimizer, which knows more patterns (it needs sympy), or export for opset 20, which has "
        "Gelu",
        tool_command(facts, "transformers.optimizer", "fused", OFFLINE),
    )


def _is_gelu(node: Node, readers: dict[str, list[Node]]) -> bool:
    """Return whether 1 is added to the node's output and the sum is multiplied, in either order."""
    for one in readers.get(node.outputs[0], ()):
        if one.op not in {"Add", "Mul"}:
            continue
        for two in readers.get(one.outputs[0], ()):
            if {one.op, two.op} == {"Add", "Mul"}:
                # A scaled and shifted Tanh is a sigmoid: in a GELU, the product comes after the Add.
                return node.op == "Erf" or one.op == "Add"
    return False
