"""Facts about a model: its files, its inputs and outputs, and the traits of its graph."""

from __future__ import annotations

import msgspec

from ortune.numbers import Count

Dim = int | str | None
"""A dimension: its fixed size, its symbolic name, or None if the model specifies neither."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators with subgraphs."""


class InputInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input that each call must provide.

    Attributes:
        name: Its name.
        dtype: NumPy's name of the element type, or ONNX's name in lower case if NumPy has none, such as "bfloat16";
            "string" for strings; empty if the input is not a tensor.
        shape: Its dimensions; None if the rank is unknown.
        index_size: If the values are indices of a table, its number of rows: values from 0 to `index_size - 1` are
            valid. Else None.
        index_dim: If the table is another input, the symbolic dimension that is its number of rows; else empty.
        strings: Strings that the graph accepts as values of this input, such as categories and keys of labels.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    index_size: int | None = None
    index_dim: str = ""
    strings: tuple[str, ...] = ()


class OutputInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output.

    Attributes:
        name: Its name.
        shape: Its dimensions; None if the rank is unknown, or if it is not a tensor.
        quantum: If it is dequantized at the end, the step between two adjacent values. Else None.
    """

    name: str
    shape: tuple[Dim, ...] | None = None
    quantum: float | None = None


class Traits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Properties of a graph that determine which settings can matter.

    Attributes:
        opset: Version of the default operator set.
        ir_version: Version of the file format.
        n_nodes: Number of nodes, including those of subgraphs.
        width: Largest number of nodes that can run at the same time: the widest level of the graph, without constants.
        quantized: Whether weights or activations are 8-bit or 4-bit integers.
        control_flow: Whether the graph contains an If, Loop or Scan.
        ops: Number of nodes with each operator.
    """

    opset: int
    ir_version: int
    n_nodes: int
    width: int
    quantized: bool
    control_flow: bool
    ops: dict[str, Count]


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a model.

    Attributes:
        name: Path relative to the model's folder.
        size_bytes: Size.
        sha256: SHA-256 of the content, as hexadecimal digits.
    """

    name: str
    size_bytes: Count
    sha256: str


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a model.

    Attributes:
        path: Absolute path of the ONNX file.
        files: The ONNX file, then its external data files in order of name.
        inputs: Inputs that each call must provide.
        outputs: Outputs.
        traits: Properties of the graph.
        metadata: What the exporter wrote about it: short texts by name.
    """

    path: str
    files: tuple[ModelFile, ...]
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    traits: Traits
    metadata: dict[str, str] = {}
