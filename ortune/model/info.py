"""A model as pure values: its inputs, the traits of its graph, and the files it is made of."""

from __future__ import annotations

import msgspec

Dim = int | str | None
"""A fixed size, a symbolic dimension's name, or None where the model says nothing."""


class InputInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input that the caller must feed.

    Attributes:
        name: The input's name.
        dtype: NumPy's name of the element type, with "string" for strings and "bfloat16" and the like
            where NumPy has none; empty where the input is no tensor.
        shape: Its dimensions; None where even the rank is unknown.
        index_size: Where the values index a table: its number of rows. Values in 0..index_size-1 are valid.
        strings: Strings that the graph knows as values of this input (categories, label keys).
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    index_size: int | None = None
    strings: tuple[str, ...] = ()


class OutputInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One output.

    Attributes:
        name: The output's name.
        quantum: Where it is dequantized at the end: the step between neighbouring values, else None.
    """

    name: str
    quantum: float | None = None


class Traits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What in a graph can make a setting matter.

    Attributes:
        opset: Version of the default operator set.
        ir_version: Version of the file format.
        n_nodes: Nodes, those of subgraphs included.
        width: Most nodes that can run side by side: the widest level of the graph, constants left out.
        quantized: Whether weights or activations are 8-bit or 4-bit integers.
        control_flow: Whether there is an If, Loop or Scan.
        ops: Number of nodes of each operator type.
    """

    opset: int
    ir_version: int
    n_nodes: int
    width: int
    quantized: bool
    control_flow: bool
    ops: dict[str, int]


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the model: its path relative to the model's folder, and its content's SHA-256."""

    name: str
    size_bytes: int
    sha256: str


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that has been read.

    Attributes:
        path: Absolute path of the ONNX file.
        files: The ONNX file first, then its external data files in order of name.
        inputs: What the caller must feed.
        outputs: What the model returns.
        traits: What in the graph can make a setting matter.
    """

    path: str
    files: tuple[ModelFile, ...]
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    traits: Traits
