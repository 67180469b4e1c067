"""A complete graph without the data of its weights, for `ortune doctor`.

`python -m ortune.model.graph MODEL` is the child process that prints it as JSON; see `ortune.model.child`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ortune.model.child import ParserCrashError, answer_parent, explain_fault, read_in_child
from ortune.model.data_files import locate_data_file
from ortune.model.info import Dim
from ortune.model.onnx_file import (
    describe_node,
    find_data_files,
    name_dtype,
    parse_model,
    read_tensor_type,
    subgraphs_of,
)

LONGEST_ATTRIBUTE = 16
"""Maximum length of lists and strings in attributes. Longer ones are data, and left out."""

WITHOUT_TYPES = "--without-types"
"""Argument of the child process that skips type inference."""

LARGEST_SHAPE_BYTES = 1024
"""Maximum size of weights that are kept for shape inference. Small ones may contain shapes."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the main graph or of a subgraph.

    Attributes:
        op: Its operator.
        domain: The domain of the operator; empty for the standard ONNX domain.
        name: Its name, which may be empty.
        inputs: Names of its inputs. The name of an omitted optional input is empty.
        outputs: Names of its outputs.
        attributes: Numbers, short strings and short lists of integers. Other attributes are left out.
        scope: Names of the control-flow nodes that contain it, outermost first, such as "loop/if"; empty in the main
            graph.
    """

    op: str
    domain: str = ""
    name: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: dict[str, int | float | str | tuple[int, ...]] = {}
    scope: str = ""


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """A constant tensor: an initializer, or the value of a Constant node.

    Attributes:
        name: The name of the value.
        dtype: Its element type, as in `InputInfo`.
        shape: Its shape.
        n_bytes: Size of its data in bytes.
        in_node: Whether it is the value of a Constant node.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    in_node: bool = False


class GraphInput(msgspec.Struct, frozen=True, kw_only=True):
    """A value in the graph's list of inputs. It may also be an initializer. Fields are those of `InputInfo`."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of external data: its minimum size, and its actual size (None if the file is missing)."""

    name: str
    needed_bytes: int
    found_bytes: int | None


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph and its subgraphs, in flat lists.

    Attributes:
        ir_version: Version of the file format.
        opsets: Version of the operator set of each domain. The standard ONNX domain is "".
        nodes: All nodes. The nodes of a subgraph come immediately before the nodes of the graph that contains it.
        weights: All constant tensors.
        inputs: Inputs of the main graph.
        outputs: Names of the outputs of the main graph.
        dtypes: Element types of values, by name, if the model contains them or they can be inferred.
        no_dtypes: Why only the types of weights are known; empty if others are.
        functions: Operators that the model defines as functions, as "domain:name".
        unregistered: Operators in a standard domain that the ONNX standard does not define, as "domain:name".
        data_files: Files of external data.
    """

    ir_version: int
    opsets: dict[str, int]
    nodes: tuple[Node, ...]
    weights: tuple[Weight, ...] = ()
    inputs: tuple[GraphInput, ...] = ()
    outputs: tuple[str, ...] = ()
    dtypes: dict[str, str] = {}
    no_dtypes: str = ""
    functions: tuple[str, ...] = ()
    unregistered: tuple[str, ...] = ()
    data_files: tuple[DataFile, ...] = ()

    def select(self, *ops: str) -> list[Node]:
        """Return the nodes with these operators, of any domain."""
        return [node for node in self.nodes if node.op in ops]

    def find_producers(self) -> dict[str, Node]:
        """Return the node that produces each value."""
        return {name: node for node in self.nodes for name in node.outputs}

    def find_readers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return readers


def read_graph(path: str | Path) -> Graph:
    """Read the graph of a model in a child process. External data may be missing; see `Graph.data_files`.

    Raises:
        ModelError: The file is missing or is not an ONNX model, or its external data is not in its folder.
    """
    try:
        return read_in_child("ortune.model.graph", path, Graph)
    except ParserCrashError as crash:
        # What most often crashes is type inference, which most checks can do without.
        graph = read_in_child("ortune.model.graph", path, Graph, [WITHOUT_TYPES])
        cause = f"the onnx package crashed while it inferred types ({crash.cause})"
        return msgspec.structs.replace(graph, no_dtypes=cause)


def summarize_graph(path: Path, *, with_types: bool = True) -> Graph:
    """Return the graph of an ONNX file.

    Args:
        path: The file.
        with_types: Whether to infer types, which crashes the process for some malformed models.

    Raises:
        ModelError: The file is not an ONNX model, or its external data is not in its folder.
    """
    model = parse_model(path)
    opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import}
    nodes, weights, dtypes = [], [], {}
    data_files = _check_data_files(model, path.parent)
    for graph, scope in _walk(model.graph, ""):
        weights += [_make_weight(tensor, tensor.name) for tensor in graph.initializer]
        weights += [_make_weight(tensor.values, tensor.values.name) for tensor in graph.sparse_initializer]
        for number, node in enumerate(graph.node):
            try:
                nodes.append(_make_node(node, scope))
                weights += [
                    _make_weight(attribute.t, node.output[0], in_node=True)
                    for attribute in node.attribute
                    if node.op_type == "Constant" and node.output and attribute.HasField("t")
                ]
            except Exception as error:  # noqa: BLE001  (a node may be malformed in any way)
                raise explain_fault(describe_node(number, node), error) from None
    for value in _infer_types(model) if with_types else ():
        if value.type.WhichOneof("value") == "tensor_type":
            dtypes[value.name] = name_dtype(value.type.tensor_type.elem_type)
    dtypes.update({weight.name: weight.dtype for weight in weights})
    functions = tuple(f"{function.domain}:{function.name}" for function in model.functions)
    return Graph(
        ir_version=model.ir_version,
        opsets=opsets,
        nodes=tuple(nodes),
        weights=tuple(weights),
        inputs=tuple(_make_input(value) for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        dtypes=dtypes,
        functions=functions,
        unregistered=tuple(_find_unregistered(nodes, opsets, set(functions))),
        data_files=data_files,
    )


def _walk(graph: Any, scope: str) -> Iterator[tuple[Any, str]]:
    """Yield a graph and all its subgraphs, each with its scope as in `Node.scope`. Subgraphs come first."""
    for node in graph.node:
        for subgraph in subgraphs_of(node):
            name = node.name or node.op_type
            yield from _walk(subgraph, f"{scope}/{name}" if scope else name)
    yield graph, scope


def _make_node(node: Any, scope: str) -> Node:
    attributes: dict[str, int | float | str | tuple[int, ...]] = {}
    for attribute in node.attribute:
        if attribute.HasField("i"):
            attributes[attribute.name] = attribute.i
        elif attribute.HasField("f") and math.isfinite(attribute.f):
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


def _make_weight(tensor: Any, name: str, *, in_node: bool = False) -> Weight:
    shape = tuple(tensor.dims)
    return Weight(
        name=name,
        dtype=name_dtype(tensor.data_type),
        shape=shape,
        n_bytes=math.ceil(math.prod(shape) * _count_bits(tensor.data_type) / 8),
        in_node=in_node,
    )


def _count_bits(data_type: int) -> int:
    """Return the size of an element in bits: 4 for types that are stored two in a byte, 0 for strings."""
    import numpy as np
    from onnx import TensorProto, helper

    name = TensorProto.DataType.Name(data_type) if data_type in TensorProto.DataType.values() else ""
    if "INT4" in name or "FLOAT4" in name:
        return 4
    if name in {"STRING", "UNDEFINED"}:
        return 0
    try:
        return int(np.dtype(helper.tensor_dtype_to_np_dtype(data_type)).itemsize) * 8
    except (KeyError, TypeError):
        return 8


def _make_input(value: Any) -> GraphInput:
    dtype, shape = read_tensor_type(value)
    return GraphInput(name=value.name, dtype=dtype, shape=shape)


def _infer_types(model: Any) -> list[Any]:
    """Return all values whose types the model contains or that can be inferred. Drop the data of large weights."""
    from onnx import shape_inference

    for graph, _ in _walk(model.graph, ""):
        for tensor in graph.initializer:
            if len(tensor.raw_data) > LARGEST_SHAPE_BYTES:
                tensor.ClearField("raw_data")
    try:
        inferred = shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001  (it fails on some graphs that ONNX Runtime accepts)
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
        except (defs.SchemaError, TypeError):  # the latter for a version of more than 32 bits
            found[key] = None
    return list(found)


def _check_data_files(model: Any, directory: Path) -> tuple[DataFile, ...]:
    files = []
    for name, needed_bytes in find_data_files(model).items():
        file = locate_data_file(directory, name)
        found_bytes = file.stat().st_size if file.is_file() else None
        files.append(DataFile(name=name, needed_bytes=needed_bytes, found_bytes=found_bytes))
    return tuple(files)


if __name__ == "__main__":
    answer_parent(lambda path: summarize_graph(path, with_types=WITHOUT_TYPES not in sys.argv[2:]))
