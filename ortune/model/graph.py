"""A whole graph as values, without its weights: what `ortune doctor` looks at.

`python -m ortune.model.graph MODEL` is the child process that parses the file and prints them as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ortune.model.child import answer_parent, read_in_child
from ortune.model.info import Dim

LONGEST_ATTRIBUTE = 16
"""Lists and strings in attributes that are longer are left out: they are data."""

LARGEST_SHAPE_BYTES = 1024
"""Weights up to this size may hold shapes, which shape inference needs; larger ones are dropped before it."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node, in the main graph or in a subgraph.

    Attributes:
        op: Its operator.
        domain: The operator's domain, empty for ONNX's own.
        name: Its name, which may be empty.
        inputs: Names of the values that it reads; empty where an optional one is left out.
        outputs: Names of the values that it makes.
        attributes: Numbers, short strings and short lists of integers; tensors and subgraphs are left out.
        scope: Names of the control-flow nodes around it, from the outermost, as "loop/if"; empty in the main graph.
    """

    op: str
    domain: str = ""
    name: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: dict[str, int | float | str | tuple[int, ...]] = {}
    scope: str = ""


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """A constant tensor: an initialiser, or what a Constant node makes.

    Attributes:
        name: The value's name.
        dtype: NumPy's name of the type, as in `InputInfo`.
        shape: Its sizes.
        n_bytes: Size of its data.
        in_node: Whether a Constant node holds it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    in_node: bool = False


class GraphInput(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the graph lists among its inputs; it may be an initialiser as well."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of external data: how long it must be, and how long it is (None where it is missing)."""

    name: str
    needed_bytes: int
    found_bytes: int | None


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph and its subgraphs, flat.

    Attributes:
        ir_version: Version of the file format.
        opsets: Version of each domain's operators that the model asks for; ONNX's own domain is "".
        nodes: All nodes, those of subgraphs right before the node that they belong to.
        weights: All constant tensors.
        inputs: What the main graph lists as its inputs.
        outputs: Names of the main graph's outputs.
        dtypes: Types of values, as far as they are written down or can be inferred.
        functions: Operators that the model itself defines, as "domain:name".
        unregistered: Operators that the ONNX standard does not have in a domain of its own, as "domain:name".
        data_files: External data.
    """

    ir_version: int
    opsets: dict[str, int]
    nodes: tuple[Node, ...]
    weights: tuple[Weight, ...] = ()
    inputs: tuple[GraphInput, ...] = ()
    outputs: tuple[str, ...] = ()
    dtypes: dict[str, str] = {}
    functions: tuple[str, ...] = ()
    unregistered: tuple[str, ...] = ()
    data_files: tuple[DataFile, ...] = ()

    def select(self, *ops: str) -> list[Node]:
        """Return the nodes of these operators, whatever their domain."""
        return [node for node in self.nodes if node.op in ops]

    def find_producers(self) -> dict[str, Node]:
        """Return the node that makes each value."""
        return {name: node for node in self.nodes for name in node.outputs}

    def find_readers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return readers


def read_graph(path: str | Path) -> Graph:
    """Read a model's graph in a process of its own. External data may be missing: `Graph.data_files` tells.

    Raises:
        ModelError: The file is missing, or is not an ONNX model.
    """
    return read_in_child("ortune.model.graph", path, Graph)


def summarise(path: Path) -> Graph:
    """Parse the file.

    Raises:
        ModelError: It is not an ONNX model.
    """
    from ortune.model.inspect import dtype_name, parse_model

    model = parse_model(path)
    opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import}
    nodes, weights, dtypes = [], [], {}
    data_files = _read_data_files(model, path.parent)
    for graph, scope in _walk(model.graph, ""):
        weights += [_weight(tensor, tensor.name) for tensor in graph.initializer]
        weights += [_weight(tensor.values, tensor.values.name) for tensor in graph.sparse_initializer]
        for node in graph.node:
            nodes.append(_node(node, scope))
            weights += [
                _weight(attribute.t, node.output[0], in_node=True)
                for attribute in node.attribute
                if node.op_type == "Constant" and attribute.HasField("t")
            ]
    for value in _infer_types(model):
        if value.type.WhichOneof("value") == "tensor_type":
            dtypes[value.name] = dtype_name(value.type.tensor_type.elem_type)
    dtypes.update({weight.name: weight.dtype for weight in weights})
    functions = tuple(f"{function.domain}:{function.name}" for function in model.functions)
    return Graph(
        ir_version=model.ir_version,
        opsets=opsets,
        nodes=tuple(nodes),
        weights=tuple(weights),
        inputs=tuple(_read_input(value) for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        dtypes=dtypes,
        functions=functions,
        unregistered=tuple(_find_unregistered(nodes, opsets, set(functions))),
        data_files=data_files,
    )


def _walk(graph: Any, scope: str) -> Iterator[tuple[Any, str]]:
    """Yield the graph and all graphs inside it, each with the names of the nodes around it."""
    from ortune.model.inspect import subgraphs_of

    for node in graph.node:
        for subgraph in subgraphs_of(node):
            name = node.name or node.op_type
            yield from _walk(subgraph, f"{scope}/{name}" if scope else name)
    yield graph, scope


def _node(node: Any, scope: str) -> Node:
    attributes: dict[str, int | float | str | tuple[int, ...]] = {}
    for attribute in node.attribute:
        if attribute.HasField("i"):
            attributes[attribute.name] = attribute.i
        elif attribute.HasField("f"):
            attributes[attribute.name] = attribute.f
        elif attribute.HasField("s") and len(attribute.s) <= LONGEST_ATTRIBUTE:
            attributes[attribute.name] = attribute.s.decode("utf-8", "replace")
        elif 0 < len(attribute.ints) <= LONGEST_ATTRIBUTE:
            attributes[attribute.name] = tuple(attribute.ints)
    return Node(
        op=node.op_type,
        domain=node.domain if node.domain != "ai.onnx" else "",
        name=node.name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes=attributes,
        scope=scope,
    )


def _weight(tensor: Any, name: str, *, in_node: bool = False) -> Weight:
    from ortune.model.inspect import dtype_name

    shape = tuple(tensor.dims)
    return Weight(
        name=name,
        dtype=dtype_name(tensor.data_type),
        shape=shape,
        n_bytes=math.ceil(math.prod(shape) * _bits(tensor.data_type) / 8),
        in_node=in_node,
    )


def _bits(data_type: int) -> int:
    """Return the size of an element; 4-bit types are stored two in a byte, strings are not counted."""
    import numpy as np
    from onnx import TensorProto, helper

    name = TensorProto.DataType.Name(data_type)
    if "INT4" in name or "FLOAT4" in name:
        return 4
    if name in {"STRING", "UNDEFINED"}:
        return 0
    try:
        return int(np.dtype(helper.tensor_dtype_to_np_dtype(data_type)).itemsize) * 8
    except (KeyError, TypeError):
        return 8


def _read_input(value: Any) -> GraphInput:
    from ortune.model.inspect import dtype_name

    if value.type.WhichOneof("value") != "tensor_type":
        return GraphInput(name=value.name, dtype="", shape=None)
    tensor = value.type.tensor_type
    shape: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else (dim.dim_param or None)
            for dim in tensor.shape.dim
        )
    return GraphInput(name=value.name, dtype=dtype_name(tensor.elem_type), shape=shape)


def _infer_types(model: Any) -> list[Any]:
    """Return all typed values that are written down or can be inferred. The model loses its weights."""
    from onnx import shape_inference

    for graph, _ in _walk(model.graph, ""):
        for tensor in graph.initializer:
            if len(tensor.raw_data) > LARGEST_SHAPE_BYTES:
                tensor.ClearField("raw_data")
    try:
        inferred = shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001  (it fails on graphs that ONNX Runtime takes; then what is written must do)
        inferred = model
    return [
        value
        for graph, _ in _walk(inferred.graph, "")
        for values in (graph.value_info, graph.input, graph.output)
        for value in values
    ]


def _find_unregistered(nodes: list[Node], opsets: dict[str, int], functions: set[str]) -> list[str]:
    from onnx import defs

    found: dict[str, None] = {}
    for node in nodes:
        known = node.domain in {"", "ai.onnx.ml"}
        key = f"{node.domain}:{node.op}"
        if not known or key in functions or key in found:
            continue
        try:
            defs.get_schema(node.op, opsets.get(node.domain, 1), node.domain)
        except defs.SchemaError:
            found[key] = None
    return list(found)


def _read_data_files(model: Any, directory: Path) -> tuple[DataFile, ...]:
    from onnx import TensorProto
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors

    needed: dict[str, int] = {}
    for tensor in _get_all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            info = ExternalDataInfo(tensor)
            end = int(info.offset or 0) + int(info.length or 0)
            needed[info.location] = max(needed.get(info.location, 0), end)
    files = []
    for name, needed_bytes in sorted(needed.items()):
        file = directory / name
        found_bytes = file.stat().st_size if file.is_file() else None
        files.append(DataFile(name=name, needed_bytes=needed_bytes, found_bytes=found_bytes))
    return tuple(files)


if __name__ == "__main__":
    answer_parent(summarise)
