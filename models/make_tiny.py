"""Write the tiny models of the repository: `python -m models.make_tiny`. Weights are random, with a fixed seed.

tiny_cnn.onnx      an image classifier with branches, as in Inception: 1x3x32x32 to 10 classes
tiny_encoder.onnx  a text encoder: token ids and a mask, with symbolic batch and sequence, to one vector per text
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

HERE = Path(__file__).parent
OPSET, IR_VERSION = 17, 8


class GraphBuilder:
    """Collects the nodes and weights of a graph, and writes the model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.rng = np.random.default_rng(0)

    def add_weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        values = self.rng.normal(0, np.sqrt(2 / fan_in) if len(shape) > 1 else 0.1, shape)
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def add_constant(self, values: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add_node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def save(self, path: Path, inputs: list[Any], outputs: list[Any]) -> None:
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ortune",
        )
        checker.check_model(model, full_check=True)
        save(model, path)


def make_cnn() -> None:
    graph = GraphBuilder()

    def conv(value: str, channels_in: int, channels: int, kernel: int, stride: int = 1) -> str:
        pad = kernel // 2
        value = graph.add_node(
            "Conv",
            value,
            graph.add_weight(channels, channels_in, kernel, kernel),
            graph.add_weight(channels),
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )
        return graph.add_node("Relu", value)

    value = conv("image", 3, 8, 3, stride=2)
    for channels_in in (8, 24):
        branches = [
            conv(value, channels_in, 8, 1),
            conv(conv(value, channels_in, 4, 1), 4, 8, 3),
            conv(
                graph.add_node("MaxPool", value, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
                channels_in,
                8,
                1,
            ),
        ]
        value = graph.add_node("Concat", *branches, axis=1)
    value = graph.add_node("Flatten", graph.add_node("GlobalAveragePool", value))
    value = graph.add_node("Gemm", value, graph.add_weight(10, 24), graph.add_weight(10), transB=1)
    graph.add_node("Softmax", value, output="probabilities", axis=-1)
    graph.save(
        HERE / "tiny_cnn.onnx",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
    )


def make_encoder(vocabulary: int = 50, width: int = 16) -> None:
    graph = GraphBuilder()
    value = graph.add_node("Gather", graph.add_weight(vocabulary, width), "input_ids", axis=0)
    query, key, values = (graph.add_node("MatMul", value, graph.add_weight(width, width)) for _ in range(3))
    scores = graph.add_node("MatMul", query, graph.add_node("Transpose", key, perm=[0, 2, 1]))
    mask = graph.add_node("Cast", "attention_mask", to=TensorProto.FLOAT)
    bias = graph.add_node(
        "Mul",
        graph.add_node("Sub", graph.add_constant(np.float32(1)), mask),
        graph.add_constant(np.float32(-1e4)),
    )
    bias = graph.add_node("Unsqueeze", bias, graph.add_constant(np.array([1], np.int64)))
    attention = graph.add_node("Softmax", graph.add_node("Add", scores, bias), axis=-1)
    value = graph.add_node("Add", value, graph.add_node("MatMul", attention, values))
    hidden = graph.add_node("Relu", graph.add_node("MatMul", value, graph.add_weight(width, 2 * width)))
    value = graph.add_node("Add", value, graph.add_node("MatMul", hidden, graph.add_weight(2 * width, width)))
    graph.add_node("ReduceMean", value, output="embedding", axes=[1], keepdims=0)
    shape = ["batch", "sequence"]
    graph.save(
        HERE / "tiny_encoder.onnx",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape),
        ],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width])],
    )


if __name__ == "__main__":
    make_cnn()
    make_encoder()
