"""Makes an image classifier of the size of ResNet-50. Weights are random, with a fixed seed.

Source of the layers: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (2015), table 1. Batch
normalizations are folded into the convolutions, as in models that were exported for inference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from models.make_tiny import GraphBuilder

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Inner channels and number of blocks of each stage. The output of a block has four times as many channels."""


def make_resnet(path: Path) -> None:
    """Write a model from an image (1, 3, 224, 224) to probabilities (1, 1000)."""
    graph = GraphBuilder()

    def convolve(value: str, channels_in: int, channels: int, kernel: int, stride: int = 1) -> str:
        pads = [kernel // 2] * 4
        weights = (graph.add_weight(channels, channels_in, kernel, kernel), graph.add_weight(channels))
        shape: dict[str, Any] = {"kernel_shape": [kernel] * 2, "pads": pads, "strides": [stride] * 2}
        return graph.add_node("Conv", value, *weights, **shape)

    value = graph.add_node("Relu", convolve("image", 3, 64, 7, stride=2))
    value = graph.add_node("MaxPool", value, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    half = graph.add_constant(np.float32(0.5))  # without it, sums of random values grow with each block
    channels_in = 64
    for number, (inner, n_blocks) in enumerate(STAGES):
        for block in range(n_blocks):
            stride = 2 if number and not block else 1
            inside = graph.add_node("Relu", convolve(value, channels_in, inner, 1))
            inside = graph.add_node("Relu", convolve(inside, inner, inner, 3, stride))
            inside = convolve(inside, inner, 4 * inner, 1)
            shortcut = value if block else convolve(value, channels_in, 4 * inner, 1, stride)
            value = graph.add_node("Relu", graph.add_node("Mul", graph.add_node("Add", inside, shortcut), half))
            channels_in = 4 * inner
    value = graph.add_node("Flatten", graph.add_node("GlobalAveragePool", value))
    value = graph.add_node("Gemm", value, graph.add_weight(1000, channels_in), graph.add_weight(1000), transB=1)
    graph.add_node("Softmax", value, output="probabilities", axis=-1)
    graph.save(
        path,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 1000])],
    )
