"""Reading models, and errors for files that are not models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.make_tiny import make_cnn, make_encoder
from ortune import ModelError
from ortune.model import compute_digest, read_model
from ortune.model.inspect import inspect_model
from tests.conftest import TINY_CNN, TINY_ENCODER


def make_model_file(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any] | None = None
) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights or [])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def value(name: str, kind: int, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def test_tiny_models_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.make_tiny.HERE", tmp_path)
    make_cnn()
    make_encoder()
    for committed in (TINY_CNN, TINY_ENCODER):
        assert onnx.load(tmp_path / committed.name) == onnx.load(committed)


def test_inputs_outputs_and_traits() -> None:
    model = read_model(TINY_CNN)
    assert [(info.name, info.dtype, info.shape) for info in model.inputs] == [("image", "float32", (1, 3, 32, 32))]
    assert [output.name for output in model.outputs] == ["probabilities"]
    assert model.traits.width == 3
    assert not model.traits.quantized
    assert model.traits.ops["Conv"] == 9


def test_size_of_the_table_of_token_ids() -> None:
    ids, mask = read_model(TINY_ENCODER).inputs
    assert ids.index_size == 50
    assert ids.shape == ("batch", "sequence")
    assert mask.index_size is None


def test_indices_of_the_rows_of_another_input(tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(np.zeros((16, 4), np.float32), "w")]
    nodes = [
        helper.make_node("MatMul", ["atoms", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gather", ["r", "ends"], ["y"]),
    ]
    inputs = [
        value("atoms", TensorProto.FLOAT, ["num_atoms", 16]),
        value("ends", TensorProto.INT64, [2, "num_edges"]),
    ]
    path = make_model_file(
        tmp_path / "m.onnx", nodes, inputs, [value("y", TensorProto.FLOAT, [2, "num_edges", 4])], weights
    )
    atoms, ends = inspect_model(path).inputs
    assert (atoms.index_dim, ends.index_dim) == ("", "num_atoms")


def test_metadata(tmp_path: Path) -> None:
    model = onnx.load(TINY_CNN)
    helper.set_model_props(model, {"imgsz": "[32, 32]", "names": "x" * 2000})
    onnx.save(model, tmp_path / "m.onnx")
    assert inspect_model(tmp_path / "m.onnx").metadata == {"imgsz": "[32, 32]"}


def test_tables_after_casts_and_in_subgraphs(tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.zeros((7, 4), np.float32), "table")
    branch = helper.make_graph(
        [helper.make_node("Gather", ["table", "cast"], ["row"])], "then", [], [value("row", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Gather", ["table", "cast"], ["row2"])], "else", [], [value("row2", TensorProto.FLOAT, None)]
    )
    path = make_model_file(
        tmp_path / "m.onnx",
        [
            helper.make_node("Cast", ["ids"], ["cast"], to=TensorProto.INT64),
            helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
        ],
        [value("ids", TensorProto.INT32, ["n"]), value("flag", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, None)],
        [table],
    )
    model = read_model(path)
    assert model.inputs[0].index_size == 7
    assert model.traits.control_flow


def test_step_of_a_dequantized_output(tmp_path: Path) -> None:
    scale = numpy_helper.from_array(np.float32(0.5), "scale")
    zero = numpy_helper.from_array(np.uint8(0), "zero")
    path = make_model_file(
        tmp_path / "m.onnx",
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, [4])],
        [value("y", TensorProto.FLOAT, [4])],
        [scale, zero],
    )
    model = read_model(path)
    assert model.traits.quantized
    assert model.outputs[0].quantum == 0.5


def test_initializers_are_not_inputs(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    path = make_model_file(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", TensorProto.FLOAT, [3]), value("w", TensorProto.FLOAT, [3])],
        [value("y", TensorProto.FLOAT, [3])],
        [weight],
    )
    assert [info.name for info in read_model(path).inputs] == ["x"]


@pytest.fixture
def external(tmp_path: Path) -> Path:
    path = tmp_path / "external.onnx"
    model = onnx.load(TINY_CNN)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_is_part_of_the_digest(external: Path) -> None:
    model = read_model(external)
    assert [file.name for file in model.files] == ["external.onnx", "weights.bin"]
    before = compute_digest(model.files)
    data = external.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:-4] + b"\1\2\3\4")
    assert compute_digest(read_model(external).files) != before


def test_renamed_model_has_the_same_digest(tmp_path: Path) -> None:
    shutil.copy(TINY_CNN, tmp_path / "other.onnx")
    assert compute_digest(read_model(tmp_path / "other.onnx").files) == compute_digest(read_model(TINY_CNN).files)


def test_error_names_missing_external_data(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin is missing"):
        read_model(external)


def test_error_names_truncated_external_data(external: Path) -> None:
    data = external.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        read_model(external)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an ONNX model"),
        (b"hello, this is text", "not an ONNX model"),
        (b"\x08\x08", "not an ONNX model"),
        (b"    ORTM" + bytes(100), "ORT format"),
        (TINY_CNN.read_bytes()[:4000], "not an ONNX model, or is truncated"),
    ],
    ids=["empty", "text", "no graph", "ORT format", "truncated"],
)
def test_files_that_are_not_models(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_model(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file"):
        read_model(tmp_path / "nothing.onnx")
    with pytest.raises(ModelError, match="not a file"):
        read_model(tmp_path)
