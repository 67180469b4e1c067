"""Generates small models of ten kinds, whose open dimensions must have certain sizes or must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL

Graph = tuple[list[Any], list[Any], list[Any]]
"""Nodes, inputs and weights. The output is the last node's."""


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), [output], name=f"{op}_{output}", **attributes)


def inputs(**shapes: tuple[int, Sequence[Any]]) -> list[Any]:
    return [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in shapes.items()]


def weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.full(shape, 0.1, np.float32), name)


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def make_skips() -> Graph:
    """A network that halves images five times and joins two scales: sides are multiples of 32."""
    nodes, last = [], "x"
    for level in range(5):
        nodes.append(node("Conv", [last, "w"], f"h{level}", strides=[2, 2], pads=[1, 1, 1, 1]))
        last = f"h{level}"
    nodes += [node("Resize", [last, "", "scales"], "up"), node("Concat", ["up", "h3"], "y", axis=1)]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    return nodes, inputs(x=(FLOAT, ["N", 3, "H", "W"])), [weight("w", 3, 3, 3, 3), scales]


def make_flat() -> Graph:
    """A classifier whose last layer fixes the size of images, which its inputs leave open."""
    nodes = [node("Flatten", ["x"], "f"), node("Gemm", ["f", "w"], "y")]
    return nodes, inputs(x=(FLOAT, ["batch", 3, "height", "width"])), [weight("w", 3 * 64 * 64, 5)]


def make_named_size() -> Graph:
    """The same for images of 320 pixels: the name of its file says so."""
    nodes = [node("Flatten", ["x"], "f"), node("Gemm", ["f", "w"], "y")]
    return nodes, inputs(x=(FLOAT, [None, 1, None, None])), [weight("w", 320 * 320, 1)]


def make_molecules() -> Graph:
    """A graph network with 19 inputs: there are twice as many angles as bonds."""
    given: dict[str, tuple[int, Sequence[Any]]] = {f"atom_{number}": (FLOAT, ["num_atoms", 4]) for number in range(8)}
    given |= {f"bond_{number}": (FLOAT, ["num_bonds", 4]) for number in range(8)}
    given |= {"angles": (FLOAT, ["num_angles", 2]), "ends": (INT64, [2, "num_bonds"]), "charge": (FLOAT, [1])}
    nodes = [
        node("Sum", [f"atom_{number}" for number in range(8)], "atoms"),
        node("Sum", [f"bond_{number}" for number in range(8)], "bonds"),
        node("Reshape", ["angles", "pairs"], "turned"),
        node("Add", ["bonds", "turned"], "edges"),
        node("Gather", ["atoms", "ends"], "found"),
        node("Add", ["found", "edges"], "sent"),
        node("Mul", ["sent", "charge"], "y"),
    ]
    return nodes, inputs(**given), [ints("pairs", -1, 4)]


def make_frames() -> Graph:
    """A model of sound that cuts it into frames of 400 samples."""
    nodes = [node("Reshape", ["audio", "frames"], "f"), node("ReduceMean", ["f"], "y", axes=[2])]
    return nodes, inputs(audio=(FLOAT, ["batch", "n_samples"])), [ints("frames", 1, -1, 400)]


def make_encoder() -> Graph:
    """A text encoder with three inputs of one length."""
    nodes = [
        node("Gather", ["words", "input_ids"], "a"),
        node("Gather", ["kinds", "token_type_ids"], "b"),
        node("Add", ["a", "b"], "c"),
        node("Cast", ["attention_mask"], "m", to=FLOAT),
        node("Unsqueeze", ["m", "last"], "u"),
        node("Mul", ["c", "u"], "y"),
    ]
    shape = ["batch", "sequence"]
    given = inputs(input_ids=(INT64, shape), attention_mask=(INT64, shape), token_type_ids=(INT64, shape))
    return nodes, given, [weight("words", 50, 8), weight("kinds", 2, 8), ints("last", -1)]


def make_decoder() -> Graph:
    """A decoder: its mask is as long as the past and the new tokens together."""
    nodes = [
        node("Gather", ["words", "input_ids"], "new"),
        node("Concat", ["past", "new"], "all", axis=1),
        node("Cast", ["attention_mask"], "m", to=FLOAT),
        node("Unsqueeze", ["m", "last"], "u"),
        node("Mul", ["all", "u"], "y"),
    ]
    given = inputs(
        input_ids=(INT64, ["batch", "sequence"]),
        past=(FLOAT, ["batch", "past_sequence", 8]),
        attention_mask=(INT64, ["batch", "past_sequence + sequence"]),
    )
    return nodes, given, [weight("words", 50, 8), ints("last", -1)]


def make_reflection() -> Graph:
    """A model of sound that pads it by reflection, which needs more samples than it adds."""
    nodes = [node("Pad", ["x", "pads"], "y", mode="reflect")]
    return nodes, inputs(x=(FLOAT, [None, None])), [ints("pads", 0, 200, 0, 200)]


def make_table() -> Graph:
    """A model of tables, with strings and numbers."""
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["color"],
            ["c"],
            name="Encode",
            domain="ai.onnx.ml",
            keys_strings=["red", "blue"],
            values_floats=[0.0, 1.0],
        ),
        node("Add", ["c", "size"], "y"),
    ]
    return nodes, inputs(color=(STRING, [None, 1]), size=(FLOAT, [None, 1])), []


def make_recurrent() -> Graph:
    """A recurrent network with its state, whose batch is the second axis."""
    lstm = helper.make_node("LSTM", ["x", "w", "r", "", "", "h0", "c0"], ["y", "hn", "cn"], name="Lstm", hidden_size=4)
    given = inputs(x=(FLOAT, ["frames", "N", 3]), h0=(FLOAT, [1, "N", 4]), c0=(FLOAT, [1, "N", 4]))
    return [lstm], given, [weight("w", 1, 16, 3), weight("r", 1, 16, 4)]


GRAPHS: dict[str, Callable[[], Graph]] = {
    "skips": make_skips,
    "flat": make_flat,
    "net_320n": make_named_size,
    "molecules": make_molecules,
    "frames": make_frames,
    "encoder": make_encoder,
    "decoder": make_decoder,
    "reflection": make_reflection,
    "table": make_table,
    "recurrent": make_recurrent,
}
"""The generators, by the name of their file."""


def make_graph(name: str, folder: Path) -> Path:
    """Write a model, and return its path."""
    nodes, given, weights = GRAPHS[name]()
    output = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "g", given, [output], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
