"""Finds the inputs, outputs and traits of an ONNX file.

`python -m ortune.model.inspect MODEL` is the child process that prints them as JSON; see `ortune.model.child`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ortune.errors import ModelError
from ortune.model.child import answer_parent, explain_fault
from ortune.model.data_files import locate_data_file
from ortune.model.identity import hash_data_file, hash_file
from ortune.model.info import CONTROL_FLOW, Dim, InputInfo, ModelInfo, OutputInfo, Traits
from ortune.model.onnx_file import describe_node, find_data_files, parse_model, read_tensor_type, subgraphs_of

Info = TypeVar("Info", InputInfo, OutputInfo)

PASS_THROUGH = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "GatherND",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators whose output contains the values of their first input (Concat: of all its inputs)."""

SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear"})
"""Operators whose output has the shape of their first input."""

EMBED_TABLES = {0: 2, 1: 4, 8: 3}
"""Inputs of ONNX Runtime's fused embedding that are indices, by position, with the positions of their tables.

Source: com.microsoft.EmbedLayerNormalization in onnxruntime's ContribOperators.md.
"""

KEEPS_ROWS = SAME_SHAPE | {
    "Abs",
    "Add",
    "BatchNormalization",
    "Clip",
    "Div",
    "Elu",
    "Erf",
    "Exp",
    "Gelu",
    "Gemm",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "MatMul",
    "Mul",
    "Neg",
    "PRelu",
    "Pow",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Sub",
    "Tanh",
}
"""Operators whose output has as many rows as their first input, at least where it has two axes."""

MAX_METADATA, LONGEST_METADATA = 100, 1000
"""Entries of a model's metadata that are read, and their largest number of characters."""

MAX_STRINGS = 64
"""Maximum number of known strings of an input."""


class Scope:
    """The nodes of a graph and its subgraphs, with the producer and the readers of each value."""

    def __init__(self, graph: Any) -> None:
        self.nodes: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.producers: dict[str, Any] = {}
        self.readers: dict[str, list[tuple[Any, int]]] = {}
        self.symbols: dict[str, tuple[Dim, ...]] = {}
        for value in graph.input:
            self.symbols[value.name] = read_tensor_type(value)[1] or ()
        self._add(graph)

    def _add(self, graph: Any) -> None:
        for tensor in graph.initializer:
            self.shapes[tensor.name] = tuple(tensor.dims)
        for value in graph.value_info:
            dims = value.type.tensor_type.shape.dim
            if dims and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
                self.shapes[value.name] = tuple(dim.dim_value for dim in dims)
        for number, node in enumerate(graph.node):
            try:
                self._add_node(node)
            except ModelError:
                raise
            except Exception as error:  # noqa: BLE001  (a node may be malformed in any way)
                raise explain_fault(describe_node(number, node), error) from None

    def _add_node(self, node: Any) -> None:
        self.nodes.append(node)
        for name in node.output:
            self.producers[name] = node
        for position, name in enumerate(node.input):
            self.readers.setdefault(name, []).append((node, position))
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    self.shapes[node.output[0]] = tuple(attribute.t.dims)
        for subgraph in subgraphs_of(node):
            self._add(subgraph)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the fixed shape of a value, or None if unknown. Operators that keep the shape are followed."""
        for _ in range(64):
            if name in self.shapes:
                return self.shapes[name]
            node = self.producers.get(name)
            if node is None or node.op_type not in SAME_SHAPE or not node.input:
                return None
            name = node.input[0]
        return None

    def rows_of(self, name: str) -> str:
        """Return the symbolic dimension of an input that is the number of rows of a value; empty if there is none."""
        for _ in range(64):
            if name in self.symbols:
                dim = (*self.symbols[name], None)[0]
                return dim if isinstance(dim, str) else ""
            node = self.producers.get(name)
            if node is None or node.op_type not in KEEPS_ROWS or not node.input:
                return ""
            name = node.input[0]
        return ""

    def uses_of(self, name: str) -> Iterator[tuple[Any, int]]:
        """Yield each node that reads a value, and the position of that input. Pass-through operators are followed."""
        pending, seen = [name], {name}
        while pending:
            for node, position in self.readers.get(pending.pop(), ()):
                if node.op_type in PASS_THROUGH and (position == 0 or node.op_type == "Concat"):
                    pending.extend(output for output in node.output if output not in seen)
                    seen.update(node.output)
                else:
                    yield node, position


def inspect_model(path: Path) -> ModelInfo:
    """Return the inputs, outputs, traits and files of a model.

    Raises:
        ModelError: The file is not an ONNX model, or its external data is missing.
    """
    model = parse_model(path)
    graph = model.graph
    directory = path.parent
    data_files = _check_data_files(model, directory)
    scope = Scope(graph)
    initializers = {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }
    return ModelInfo(
        path=str(path),
        files=(hash_file(directory, path.name), *(hash_data_file(directory, name) for name in data_files)),
        inputs=tuple(
            _read_value("input", number, value, lambda value: _read_input(value, scope))
            for number, value in enumerate(graph.input)
            if value.name not in initializers
        ),
        outputs=tuple(
            _read_value("output", number, value, lambda value: _read_output(value, graph, scope))
            for number, value in enumerate(graph.output)
        ),
        traits=_read_traits(model, scope),
        metadata={
            entry.key: entry.value
            for entry in itertools.islice(model.metadata_props, MAX_METADATA)
            if len(entry.key) + len(entry.value) <= LONGEST_METADATA
        },
    )


def _check_data_files(model: Any, directory: Path) -> list[str]:
    """Return the names of the external data files.

    Raises:
        ModelError: A file is missing, too short, or not in the model's folder.
    """
    needed_bytes = find_data_files(model)
    for name, size_bytes in needed_bytes.items():
        file = locate_data_file(directory, name)
        if not file.is_file():
            raise ModelError(
                f"The model's external data file {file} is missing.",
                "Put it into the model's folder, under the name that the model was saved with.",
            )
        if file.stat().st_size < size_bytes:
            raise ModelError(
                f"The model's external data file {file} is truncated: "
                f"it has {file.stat().st_size} bytes, and at least {size_bytes} are needed.",
                "Copy the model again, with all of its files.",
            )
    return list(needed_bytes)


def _read_value(kind: str, number: int, value: Any, read: Callable[[Any], Info]) -> Info:
    """Return what `read` finds about an input or an output.

    Raises:
        ModelError: It is malformed.
    """
    try:
        return read(value)
    except Exception as error:  # noqa: BLE001  (it may be malformed in any way)
        raise explain_fault(f"{kind} {number}", error) from None


def _read_output(value: Any, graph: Any, scope: Scope) -> OutputInfo:
    _, shape = read_tensor_type(value)
    return OutputInfo(name=value.name, shape=shape, quantum=_find_quantum(value.name, graph, scope))


def _read_input(value: Any, scope: Scope) -> InputInfo:
    dtype, shape = read_tensor_type(value)
    if not dtype or dtype == "undefined":
        return InputInfo(name=value.name, dtype="", shape=None)
    uses = list(scope.uses_of(value.name))
    table_sizes = [size for node, position in uses if (size := _find_table_size(node, position, scope))]
    return InputInfo(
        name=value.name,
        dtype=dtype,
        shape=shape,
        index_size=min(table_sizes, default=None),
        index_dim=next((dim for node, position in uses if (dim := _find_table_dim(node, position, scope))), ""),
        strings=_find_known_strings(uses)[:MAX_STRINGS],
    )


def _find_quantum(name: str, graph: Any, scope: Scope) -> float | None:
    """Return the step of an output that comes from a DequantizeLinear, or None if it does not."""
    for _ in range(16):
        node = scope.producers.get(name)
        if node is None:
            return None
        if node.op_type == "DequantizeLinear":
            return _read_largest_scale(node, graph)
        if node.op_type not in PASS_THROUGH or not node.input:
            return None
        name = node.input[0]
    return None


def _read_largest_scale(node: Any, graph: Any) -> float | None:
    """Return the largest scale of a DequantizeLinear, or None if it is not a constant number."""
    from onnx import TensorProto, numpy_helper

    for tensor in graph.initializer:
        if node.input[1:] and tensor.name == node.input[1] and tensor.data_location != TensorProto.EXTERNAL:
            try:
                scale = float(numpy_helper.to_array(tensor).max())
            except Exception:  # noqa: BLE001  (onnx and NumPy raise many kinds for malformed tensors)
                return None
            return scale if math.isfinite(scale) else None
    return None


def _find_table_size(node: Any, position: int, scope: Scope) -> int | None:
    """Return the number of rows of the table that this input of a node is an index of; None if it is not an index."""
    if node.op_type == "EmbedLayerNormalization" and position in EMBED_TABLES:
        table = EMBED_TABLES[position]
        shape = scope.shape_of(node.input[table]) if len(node.input) > table else None
        return shape[0] if shape else None
    if node.op_type == "Equal" and len(node.input) == 2:
        # Part of a one-hot encoding: a comparison with 0 to N-1 along a new axis.
        sizes = [size for size in scope.shape_of(node.input[1 - position]) or () if size > 1]
        return sizes[0] if len(sizes) == 1 else None
    if node.op_type not in {"Gather", "GatherElements", "GatherBlockQuantized"} or position != 1:
        return None
    axis = _find_gather_axis(node)
    shape = scope.shape_of(node.input[0])
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _find_table_dim(node: Any, position: int, scope: Scope) -> str:
    """Return the symbolic number of rows of the table that this input of a node is an index of; empty if unknown."""
    if node.op_type != "Gather" or position != 1 or _find_gather_axis(node):
        return ""
    return scope.rows_of(node.input[0])


def _find_gather_axis(node: Any) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name in {"axis", "gather_axis"}), 0)


def _find_known_strings(uses: list[tuple[Any, int]]) -> tuple[str, ...]:
    """Return the strings that nodes such as OneHotEncoder and LabelEncoder accept."""
    strings: dict[str, None] = {}
    for node, _ in uses:
        for attribute in node.attribute:
            if attribute.name in {"cats_strings", "keys_strings", "classes_strings", "string_vocabulary"}:
                strings.update(dict.fromkeys(text.decode("utf-8", "replace") for text in attribute.strings))
    return tuple(strings)


def _read_traits(model: Any, scope: Scope) -> Traits:
    ops = Counter(node.op_type for node in scope.nodes)
    opset = max((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=0)
    return Traits(
        opset=opset,
        ir_version=model.ir_version,
        n_nodes=len(scope.nodes),
        width=_find_width(model.graph),
        quantized=_is_quantized(model.graph, ops),
        control_flow=bool(CONTROL_FLOW & set(ops)),
        ops=dict(sorted(ops.items())),
    )


def _is_quantized(graph: Any, ops: Counter[str]) -> bool:
    """Return whether the graph uses 8-bit or 4-bit arithmetic, or stores weights of that size."""
    from onnx import TensorProto

    if any(marker in op for op in ops for marker in ("QuantizeLinear", "Integer", "QLinear", "NBits", "QAttention")):
        return True
    small = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4}
    return any(tensor.data_type in small and len(tensor.dims) > 1 for tensor in graph.initializer)


def _find_width(graph: Any) -> int:
    """Return the largest number of nodes on one level. A node is one level above the highest of its inputs."""
    level_of = {value.name: 0 for value in graph.input}
    for tensor in graph.initializer:
        level_of.pop(tensor.name, None)
    counts: Counter[int] = Counter()
    for node in graph.node:  # in topological order, as the ONNX specification requires
        inputs = set(node.input)
        for subgraph in subgraphs_of(node):
            inputs.update(name for inner in subgraph.node for name in inner.input)
        levels = [level_of[name] for name in inputs if name in level_of]
        if levels:
            counts[max(levels) + 1] += 1
            level_of.update(dict.fromkeys(node.output, max(levels) + 1))
    return max(counts.values(), default=0)


if __name__ == "__main__":
    answer_parent(inspect_model)
