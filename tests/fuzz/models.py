"""Models."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import resource
import signal
import traceback
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.fuzz.mutation import mutate_bytes, mutate_message
from tests.fuzz.target import Target, attempt, find_folder, write_input


@functools.cache
def model_seeds() -> tuple[bytes, ...]:
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Constant", [], ["one"], value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
            node("Gather", ["table", "ids"], ["rows"], axis=0),
            node("Equal", ["ids", "one"], ["same"]),
            node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
            node("LabelEncoder", ["s"], ["n"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[0, 1]),
            node("If", ["cond"], ["z"], then_branch=branch("t"), else_branch=branch("e")),
            node("EmbedLayerNormalization", ["ids", "seg", "w", "p", "t"], ["e0"], domain="com.microsoft"),
        ],
        "g",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "n"]),
            helper.make_tensor_value_info("s", TensorProto.STRING, [None]),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("q", TensorProto.UINT8, [1, 4]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("rows", "y", "z")],
        [
            helper.make_tensor("table", TensorProto.FLOAT, [3, 2], [0.0] * 6),
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("zero", TensorProto.UINT8, [], [0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)])
    outside = onnx.ModelProto()
    outside.CopyFrom(model)
    tensor = outside.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    return (model.SerializeToString(), outside.SerializeToString(), TINY_CNN.read_bytes(), TINY_ENCODER.read_bytes())


def branch(name: str) -> Any:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info(f"{name}z", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("Identity", ["table"], [f"{name}z"])], name, [], [value])


MODEL_WORDS = (
    *(
        "ids",
        "table",
        "rows",
        "y",
        "batch",
        "n",
        "",
        "value",
        "axis",
        "gather_axis",
        "keys_strings",
        "location",
        "offset",
    ),
    *("Gather", "GatherElements", "Constant", "DequantizeLinear", "QuantizeLinear", "Equal", "If", "Loop", "Identity"),
    *(
        "Reshape",
        "Concat",
        "EmbedLayerNormalization",
        "MatMul",
        "Conv",
        "ai.onnx",
        "ai.onnx.ml",
        "com.microsoft",
        "w.bin",
    ),
    *(
        "Attention",
        "LSTM",
        "Scan",
        "OneHotEncoder",
        "cats_strings",
        "length",
        "then_branch",
        "QLinearConv",
        "Cast",
        "to",
    ),
)


def mutate_model(data: bytes, random: Random) -> bytes:
    """Change some fields of a model, or its bytes."""
    import onnx

    if random.random() < 0.25:
        return mutate_bytes(data, random)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # noqa: BLE001  (the input may be no model)
        return mutate_bytes(data, random)
    for _ in range(1 + int(random.random() * 4)):
        mutate_message(model, random, MODEL_WORDS)
    try:
        return bytes(model.SerializeToString())
    except Exception:  # noqa: BLE001  (protobuf refuses texts that are not Unicode)
        return mutate_bytes(data, random)


def run_model(data: bytes) -> None:
    """Read a model as the child process does, take its answer as the parent does, and make the inputs."""
    from ortune.model.child import make_reply, parse_reply
    from ortune.model.graph import Graph, summarize_graph
    from ortune.model.info import ModelInfo
    from ortune.model.inspect import inspect_model
    from ortune.workload import InputOptions, make_feed

    warm_up()
    path = write_input("m.onnx", data)
    if not (path.parent / "w.bin").exists():
        write_input("w.bin", bytes(24))
    info = attempt(lambda: parse_reply(make_reply(inspect_model, path), path, ModelInfo))
    if info is not None:
        attempt(make_feed, info, InputOptions())
    if zlib.crc32(data) % 4:
        return
    # The onnx package infers types in C++, where malformed models crash it: only the child. Forks take time.
    reply = in_fork(lambda: make_reply(summarize_graph, path))
    if reply is not None:
        attempt(parse_reply, reply, path, Graph)


@functools.cache
def warm_up() -> None:
    """Load what the forks use: the schemas of all operators."""
    from ortune.model.child import make_reply
    from ortune.model.graph import summarize_graph

    make_reply(summarize_graph, TINY_CNN)
    gc.freeze()


def in_fork(make: Callable[[], bytes]) -> bytes | None:
    """Return what a function returns in a child process; None if the process crashes."""
    output = find_folder() / "reply"
    child = os.fork()
    if child == 0:
        status = 1
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            output.write_bytes(make())
            status = 0
        except BaseException:  # noqa: BLE001  (a child must not run what its parent runs next)
            traceback.print_exc()
        finally:
            os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if os.WIFSIGNALED(status):
        return None
    assert status == 0, "the child raised an exception"
    return output.read_bytes()


MODELS = Target(run_model, model_seeds, mutate_model)
