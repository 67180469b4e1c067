"""Parses ONNX files, and makes one. It imports onnx, so only child processes use it; see `ortune.model.child`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.errors import ModelError
from ortune.model.child import MODEL_HINT
from ortune.model.info import Dim

if TYPE_CHECKING:
    import numpy as np

MOST_TENSOR_VALUES = 1 << 56
"""Number of values that no tensor has."""

MOST_SHOWN_SIZES = 20
"""Number of sizes that a message shows."""

NUMPY_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
"""ONNX types whose lower-case names are not NumPy's."""


def parse_model(path: Path) -> Any:
    """Return a model as an `onnx.ModelProto`, without external data.

    Raises:
        ModelError: The file is not an ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    with path.open("rb") as file:
        head = file.read(8)
    if head[4:8] == b"ORTM":
        raise ModelError(
            f"{path} is in ORT format, which ortune does not read.",
            "Pass the ONNX file that it was made from.",
        )
    try:
        model = onnx.load_model(path, format="protobuf", load_external_data=False)
    except DecodeError:
        raise ModelError(f"{path} is not an ONNX model, or is truncated.", MODEL_HINT) from None
    if not model.ir_version or not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it has no graph with outputs.", MODEL_HINT)
    for tensor in _tensors_of(model):
        _check_dims(path, tensor)
    _check_names(path, model)
    return model


def _check_names(path: Path, model: Any) -> None:
    """Check that all names are texts. Protobuf returns those that are not UTF-8 as bytes.

    Raises:
        ModelError: One is not.
    """
    pending = [model.graph, *model.functions]
    for scope in pending:
        # Functions have names as inputs and outputs.
        values = (*scope.input, *scope.output, *getattr(scope, "initializer", ()))
        if not _are_texts(*(getattr(value, "name", value) for value in values)):
            raise ModelError(
                f"{path} is not an ONNX model: a name of its inputs, outputs or weights is not UTF-8.", MODEL_HINT
            )
        for number, node in enumerate(scope.node):
            if not _are_texts(node.op_type, node.name, node.domain, *node.input, *node.output):
                raise ModelError(f"{path} is not an ONNX model: a name of its node {number} is not UTF-8.", MODEL_HINT)
            pending.extend(subgraphs_of(node))


def _are_texts(*names: Any) -> bool:
    return all(isinstance(name, str) for name in names)


def _check_dims(path: Path, tensor: Any) -> None:
    """Check that the shape of a tensor is possible.

    Raises:
        ModelError: It is not.
    """
    if any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) >= MOST_TENSOR_VALUES:
        shape = ", ".join(map(str, tensor.dims[:MOST_SHOWN_SIZES]))
        raise ModelError(
            f"{path} is not an ONNX model: its tensor {tensor.name!r} has the shape [{shape}].", MODEL_HINT
        )


def describe_node(position: int, node: Any) -> str:
    """Return a description of a node for messages. Its texts may be malformed."""
    try:
        return f"node {position} ({node.op_type} {node.name!r})"
    except UnicodeDecodeError:
        return f"node {position}"


def find_data_files(model: Any) -> dict[str, int]:
    """Return the external data files of a model, by name, with the minimum size in bytes that each must have.

    The names are those in the model: `ortune.model.data_files` finds the files.

    Raises:
        ModelError: A tensor has no valid position in its file.
    """
    from onnx import TensorProto

    needed_bytes: dict[str, int] = {}
    for tensor in _tensors_of(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            numbers = [place.get(key) or "0" for key in ("offset", "length")]
            if not all(re.fullmatch(r"[0-9]{1,19}", number) for number in numbers):
                raise ModelError(f"The tensor {tensor.name!r} has no valid position in its external data: {place}.")
            name = place.get("location", "")
            needed_bytes[name] = max(needed_bytes.get(name, 0), sum(map(int, numbers)))
    return dict(sorted(needed_bytes.items()))


def _tensors_of(model: Any) -> Iterator[Any]:
    """Yield all tensors of a model: initializers, and attributes of nodes, in all graphs and functions."""
    pending = [model.graph, *model.functions]
    for scope in pending:
        # Functions have no initializers.
        yield from getattr(scope, "initializer", ())
        sparse = [*getattr(scope, "sparse_initializer", ())]
        for node in scope.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                sparse += (attribute.sparse_tensor, *attribute.sparse_tensors)
            pending.extend(subgraphs_of(node))
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)


def subgraphs_of(node: Any) -> Iterator[Any]:
    """Yield the graphs in the attributes of a node: the branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def read_tensor_type(value: Any) -> tuple[str, tuple[Dim, ...] | None]:
    """Return the element type of a value, as in `InputInfo.dtype`, and its shape; "" and None if it is not a tensor."""
    if value.type.WhichOneof("value") != "tensor_type":
        return "", None
    tensor = value.type.tensor_type
    shape: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else (dim.dim_param or None)
            for dim in tensor.shape.dim
        )
    return name_dtype(tensor.elem_type), shape


def name_dtype(elem_type: int) -> str:
    """Return NumPy's name of an element type, or ONNX's name in lower case if NumPy has none; "string" for strings.

    A type that the onnx package does not know is "unknown_" and its number.
    """
    from onnx import TensorProto

    try:
        name = str(TensorProto.DataType.Name(elem_type))
    except ValueError:
        return f"unknown_{elem_type}"
    return NUMPY_NAMES.get(name, name.lower())


def encode_identity(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """Return an ONNX file with one Identity node, from the input `x` to the output `y`."""
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(dtype)
    given, copied = (helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [given], [copied])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(model.SerializeToString())
