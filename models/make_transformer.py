"""Makes a transformer encoder of a usual size. Weights are random, with a fixed seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper

from models.make_tiny import GraphBuilder

POSITIONS = 512


class Size(NamedTuple):
    """The size of an encoder. The default is between those of BERT tiny and BERT mini.

    Attributes:
        width: Length of the vector of a token.
        heads: Heads of each layer.
        layers: Number of layers.
        vocabulary: Number of different tokens.
    """

    width: int = 256
    heads: int = 4
    layers: int = 4
    vocabulary: int = 5000


MINILM_L3 = Size(width=384, heads=12, layers=3, vocabulary=30522)
"""The size of paraphrase-MiniLM-L3-v2."""

BERT_BASE = Size(width=768, heads=12, layers=12, vocabulary=30522)
"""The size of BERT base."""


def make_transformer(path: Path, size: Size = Size(), *, pooled: bool = True) -> None:  # noqa: B008  (immutable)
    """Write an encoder of token ids and a mask, with symbolic batch and sequence.

    Args:
        path: Path of the file.
        size: The size of the encoder.
        pooled: Whether the output is one vector per text, the mean over all tokens, also over padding. Otherwise it is
            one vector per token, which does not depend on padding.
    """
    graph = GraphBuilder()
    bias = _make_bias(graph)
    tokens = graph.add_node("Gather", graph.add_weight(size.vocabulary, size.width), "input_ids", axis=0)
    length = graph.add_node("Shape", "input_ids", start=1, end=2)
    start = graph.add_constant(np.array([0], np.int64))
    positions = graph.add_node("Slice", graph.add_weight(POSITIONS, size.width), start, length, start)
    value = _normalize(graph, graph.add_node("Add", tokens, positions), size)
    for _ in range(size.layers):
        value = _normalize(graph, graph.add_node("Add", value, _attend(graph, value, bias, size)), size)
        value = _normalize(graph, graph.add_node("Add", value, _feed_forward(graph, value, size)), size)
    shape = ["batch", "sequence"]
    if pooled:
        graph.add_node("ReduceMean", value, output="embedding", axes=[1], keepdims=0)
        output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", size.width])
    else:
        graph.add_node("Identity", value, output="last_hidden_state")
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, size.width])
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


def _normalize(graph: GraphBuilder, value: str, size: Size) -> str:
    ones, zeros = (graph.add_constant(np.full(size.width, number, np.float32)) for number in (1, 0))
    return graph.add_node("LayerNormalization", value, ones, zeros, axis=-1)


def _attend(graph: GraphBuilder, value: str, bias: str, size: Size) -> str:
    width, heads = size.width, size.heads
    by_head = graph.add_constant(np.array([0, 0, heads, width // heads], np.int64))

    def split(**attributes: Any) -> str:
        apart = graph.add_node("Reshape", _project(graph, value, width, width), by_head)
        return graph.add_node("Transpose", apart, **attributes)

    queries, keys, values = split(perm=[0, 2, 1, 3]), split(perm=[0, 2, 3, 1]), split(perm=[0, 2, 1, 3])
    scale = graph.add_constant(np.float32((width // heads) ** -0.5))
    scores = graph.add_node("Mul", graph.add_node("MatMul", queries, keys), scale)
    weights = graph.add_node("Softmax", graph.add_node("Add", scores, bias), axis=-1)
    together = graph.add_node("Transpose", graph.add_node("MatMul", weights, values), perm=[0, 2, 1, 3])
    joined = graph.add_node("Reshape", together, graph.add_constant(np.array([0, 0, width], np.int64)))
    return _project(graph, joined, width, width)


def _feed_forward(graph: GraphBuilder, value: str, size: Size) -> str:
    width = size.width
    hidden = _project(graph, value, width, 4 * width)
    error = graph.add_node("Erf", graph.add_node("Mul", hidden, graph.add_constant(np.float32(0.5**0.5))))
    gate = graph.add_node("Mul", hidden, graph.add_constant(np.float32(0.5)))
    activated = graph.add_node("Mul", gate, graph.add_node("Add", error, graph.add_constant(np.float32(1))))
    return _project(graph, activated, 4 * width, width)
