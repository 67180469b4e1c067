"""Parses ONNX files. It imports the onnx package, so that only child processes use it; see `ortune.model.child`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortune.errors import ModelError
from ortune.model.info import Dim

NUMPY_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
"""ONNX types whose lower-case names are not NumPy's."""


def parse_model(path: Path) -> Any:
    """Return a model as an `onnx.ModelProto`, without external data.

    Raises:
        ModelError: The file is not an ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    hint = "Check that the file is complete: onnx.checker.check_model(path) should pass."
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
        raise ModelError(f"{path} is not an ONNX model, or is truncated.", hint) from None
    if not model.ir_version or not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it has no graph with outputs.", hint)
    return model


def find_data_files(model: Any) -> dict[str, int]:
    """Return the external data files of a model, by name, with the minimum size in bytes that each must have."""
    from onnx import TensorProto
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors

    needed_bytes: dict[str, int] = {}
    for tensor in _get_all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            info = ExternalDataInfo(tensor)
            end = int(info.offset or 0) + int(info.length or 0)
            needed_bytes[info.location] = max(needed_bytes.get(info.location, 0), end)
    return dict(sorted(needed_bytes.items()))


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
    """Return NumPy's name of an element type, or ONNX's name in lower case if NumPy has none; "string" for strings."""
    from onnx import TensorProto

    name = str(TensorProto.DataType.Name(elem_type))
    return NUMPY_NAMES.get(name, name.lower())
