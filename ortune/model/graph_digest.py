"""Computes the digest of an optimized graph: graphs with the same digest are the same program.

It imports onnx, so only child processes use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.model.onnx_file import parse_model, subgraphs_of


def digest_graph(path: Path) -> str:
    """Return the digest of all nodes of a graph, of their attributes, and of types and shapes of the weights.

    Names do not count, nor does the order of nodes: ONNX Runtime makes up names, and orders the branches of a graph in
    another way each time. Inputs count by their position, weights in a separate file by type and shape, and other
    weights also by their values.

    A value is described by the node that computes it and by the descriptions of that node's inputs, as in a Merkle tree
    (R. Merkle, "A digital signature based on a conventional encryption function", CRYPTO 1987).

    Args:
        path: The graph, as ONNX Runtime writes it.

    Raises:
        ModelError: The file is not an ONNX model.
    """
    model = parse_model(path)
    opsets = sorted((opset.domain, opset.version) for opset in model.opset_import)
    return _combine(repr(opsets), _digest_nodes(model.graph, {}, 0))


def _combine(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _digest_nodes(graph: Any, outer: Mapping[str, str], depth: int) -> str:
    """Return the digest of a graph.

    Args:
        graph: The graph.
        outer: Descriptions of the values of the graphs that contain it, by name.
        depth: How many graphs contain it.
    """
    values = {**outer, "": ""}  # an optional input that is left out has an empty name
    for position, value in enumerate(graph.input):
        values[value.name] = _combine("input", str(depth), str(position))
    for tensor in graph.initializer:
        values[tensor.name] = _describe_weight(tensor)
    nodes = []
    for node in graph.node:
        described = _combine(
            node.domain,
            node.op_type,
            *(_describe_attribute(attribute) for attribute in sorted(node.attribute, key=lambda found: found.name)),
            *(_digest_nodes(subgraph, values, depth + 1) for subgraph in subgraphs_of(node)),
            *(values.get(name, name) for name in node.input),
            # Optional outputs that are left out are not computed.
            repr([bool(name) for name in node.output]),
        )
        nodes.append(described)
        for position, name in enumerate(node.output):
            if name:
                values[name] = _combine(described, str(position))
    return _combine(*sorted(nodes), *(values.get(value.name, value.name) for value in graph.output))


def _describe_attribute(attribute: Any) -> str:
    """Return an attribute as text; only the name of one that holds graphs."""
    if attribute.HasField("g") or attribute.graphs:
        return str(attribute.name)
    return hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()


def _describe_weight(tensor: Any) -> str:
    described = type(tensor)()
    described.CopyFrom(tensor)
    for field in ("name", "doc_string", "external_data"):
        described.ClearField(field)
    return hashlib.sha256(described.SerializeToString(deterministic=True)).hexdigest()
