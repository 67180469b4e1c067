"""Models."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import resource
import signal
import time
import traceback
import zlib
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.fuzz.mutation import mutate_bytes, mutate_message
from tests.fuzz.target import Target, attempt, write_input


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
    "Gather",
    "GatherElements",
    "Constant",
    "DequantizeLinear",
    "QuantizeLinear",
    "Equal",
    "If",
    "Loop",
    "Identity",
    "Reshape",
    "Concat",
    "EmbedLayerNormalization",
    "MatMul",
    "Conv",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "w.bin",
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
    from ortune.model.graph import Graph
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
    if zlib.crc32(data) % 2:
        return
    # The onnx package infers types in C++, where malformed models crash it: only the child. It takes time.
    reply = _child.ask(path)
    if reply is not None:
        attempt(parse_reply, reply, path, Graph)


@functools.cache
def warm_up() -> None:
    """Load what children use: the schemas of all operators."""
    from ortune.model.child import make_reply
    from ortune.model.graph import summarize_graph

    make_reply(summarize_graph, TINY_CNN)
    gc.freeze()


MOST_ANSWERS = 500
"""Number of models after which a child is replaced, so that memory that one of them broke affects few others."""

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""The signals that end a child that crashes."""

FAULT = b"\0"
"""What a child sends instead of a reply if it raises an exception, which none of them should."""


class ForkedReader:
    """A child process that summarizes the graphs of models, and is replaced when one of them crashes it."""

    def __init__(self) -> None:
        self._pid = 0
        self._here: Connection | None = None
        self._n_left = 0

    def ask(self, path: Path) -> bytes | None:
        """Return the reply about a model; None if the model crashes the child."""
        if not self._n_left:
            self._start()
        assert self._here
        self._n_left -= 1
        try:
            self._here.send_bytes(os.fsencode(path))
            reply = self._here.recv_bytes()
        except (EOFError, ConnectionError):
            assert os.WIFSIGNALED(self._end()), "the child exited"
            return None
        except BaseException:
            self._end()
            raise
        assert reply != FAULT, "the child raised an exception"
        return reply

    def _start(self) -> None:
        self._end()
        self._here, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._here.close()
            faulthandler.disable()
            for number in CRASHES:  # libFuzzer, which handles them, would write a file, and exit
                signal.signal(number, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            try:
                serve(there)
            finally:
                os._exit(0)
        there.close()
        self._n_left = MOST_ANSWERS

    def _end(self) -> int:
        """End the child, and return its status: 0 if there is none."""
        self._n_left = 0
        if not self._pid:
            return 0
        assert self._here
        self._here.close()  # the child ends when it reads the end of the pipe, unless it hangs
        pid, self._pid = self._pid, 0
        found, status = os.waitpid(pid, os.WNOHANG)
        for _ in range(100):
            if found:
                break
            time.sleep(0.01)
            found, status = os.waitpid(pid, os.WNOHANG)
        else:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        return status


def serve(connection: Connection) -> None:
    """Summarize the graphs of models until the pipe is closed."""
    from ortune.model.child import make_reply
    from ortune.model.graph import summarize_graph

    while True:
        try:
            path = Path(os.fsdecode(connection.recv_bytes()))
        except (EOFError, ConnectionError):
            return
        try:
            reply = make_reply(summarize_graph, path)
        except BaseException:  # noqa: BLE001  (a child must not run what its parent runs next)
            traceback.print_exc()
            reply = FAULT
        connection.send_bytes(reply)


_child = ForkedReader()

MODELS = Target(run_model, model_seeds, mutate_model)
