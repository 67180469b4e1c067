"""Makes a transformer encoder of a usual size. Weights are random, with a fixed seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from models.make_tiny import GraphBuilder

VOCABULARY, POSITIONS = 5000, 512
WIDTH, HEADS, LAYERS = 256, 4, 4
"""Sizes between those of BERT tiny and BERT mini."""


def make_transformer(path: Path, *, pooled: bool = True) -> None:
    """Write an encoder of token ids and a mask, with symbolic batch and sequence.

    Args:
        path: Path of the file.
        pooled: Whether the output is one vector per text, the mean over all tokens, also over padding. Otherwise it is
            one vector per token, which does not depend on padding.
    """
    graph = GraphBuilder()
    bias = _make_bias(graph)
    tokens = graph.add_node("Gather", graph.add_weight(VOCABULARY, WIDTH), "input_ids", axis=0)
    length = graph.add_node("Shape", "input_ids", start=1, end=2)
    start = graph.add_constant(np.array([0], np.int64))
    positions = graph.add_node("Slice", graph.add_weight(POSITIONS, WIDTH), start, length, start)
    value = _normalize(graph, graph.add_node("Add", tokens, positions))
    for _ in range(LAYERS):
        value = _normalize(graph, graph.add_node("Add", value, _attend(graph, value, bias)))
        value = _normalize(graph, graph.add_node("Add", value, _feed_forward(graph, value)))
    shape = ["batch", "sequence"]
    if pooled:
        graph.add_node("ReduceMean", value, output="embedding", axes=[1], keepdims=0)
        output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH])
    else:
        graph.add_node("Identity", value, output="last_hidden_state")
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, WIDTH])
    graph.save(
        path,
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")],
        [output],
    )


def _make_bias(graph: GraphBuilder) -> str:
    """Return a value that is very low for masked tokens, of shape (batch, 1, 1, sequence)."""
    mask = graph.add_node("Cast", "attention_mask", to=TensorProto.FLOAT)
    missing = graph.add_node("Sub", graph.add_constant(np.float32(1)), mask)
    bias = graph.add_node("Mul", missing, graph.add_constant(np.float32(-1e4)))
    return graph.add_node("Unsqueeze", bias, graph.add_constant(np.array([1, 2], np.int64)))


def _project(graph: GraphBuilder, value: str, wide_in: int, wide_out: int) -> str:
    product = graph.add_node("MatMul", value, graph.add_weight(wide_in, wide_out))
    return graph.add_node("Add", product, graph.add_weight(wide_out))


def _normalize(graph: GraphBuilder, value: str) -> str:
    ones, zeros = (graph.add_constant(np.full(WIDTH, number, np.float32)) for number in (1, 0))
    return graph.add_node("LayerNormalization", value, ones, zeros, axis=-1)


def _attend(graph: GraphBuilder, value: str, bias: str) -> str:
    by_head = graph.add_constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))

    def split(**attributes: Any) -> str:
        heads = graph.add_node("Reshape", _project(graph, value, WIDTH, WIDTH), by_head)
        return graph.add_node("Transpose", heads, **attributes)

    queries, keys, values = split(perm=[0, 2, 1, 3]), split(perm=[0, 2, 3, 1]), split(perm=[0, 2, 1, 3])
    scale = graph.add_constant(np.float32((WIDTH // HEADS) ** -0.5))
    scores = graph.add_node("Mul", graph.add_node("MatMul", queries, keys), scale)
    weights = graph.add_node("Softmax", graph.add_node("Add", scores, bias), axis=-1)
    together = graph.add_node("Transpose", graph.add_node("MatMul", weights, values), perm=[0, 2, 1, 3])
    joined = graph.add_node("Reshape", together, graph.add_constant(np.array([0, 0, WIDTH], np.int64)))
    return _project(graph, joined, WIDTH, WIDTH)


def _feed_forward(graph: GraphBuilder, value: str) -> str:
    hidden = _project(graph, value, WIDTH, 4 * WIDTH)
    error = graph.add_node("Erf", graph.add_node("Mul", hidden, graph.add_constant(np.float32(0.5**0.5))))
    gate = graph.add_node("Mul", hidden, graph.add_constant(np.float32(0.5)))
    activated = graph.add_node("Mul", gate, graph.add_node("Add", error, graph.add_constant(np.float32(1))))
    return _project(graph, activated, 4 * WIDTH, WIDTH)
