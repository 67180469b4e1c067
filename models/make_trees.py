"""Writes tree ensembles of any size, which take long to load."""

from __future__ import annotations

from pathlib import Path

import numpy as np

N_FEATURES = 20


def make_trees(path: Path, *, n_trees: int, depth: int) -> None:
    """Write a regressor of complete trees with random features and thresholds.

    Args:
        path: Where to write it.
        n_trees: Number of trees.
        depth: Number of branches from the root to each leaf.
    """
    import onnx
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)
    n_branches, n_nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    numbers = np.arange(n_nodes)
    is_branch = numbers < n_branches
    features = np.where(is_branch, rng.integers(0, N_FEATURES, (n_trees, n_nodes)), 0)
    thresholds = np.where(is_branch, rng.normal(size=(n_trees, n_nodes)), 0)
    leaves = numbers[~is_branch]
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=np.repeat(np.arange(n_trees), n_nodes).tolist(),
        nodes_nodeids=np.tile(numbers, n_trees).tolist(),
        nodes_featureids=features.ravel().tolist(),
        nodes_values=thresholds.ravel().tolist(),
        nodes_modes=np.where(is_branch, "BRANCH_LEQ", "LEAF").tolist() * n_trees,
        nodes_truenodeids=np.tile(np.where(is_branch, 2 * numbers + 1, 0), n_trees).tolist(),
        nodes_falsenodeids=np.tile(np.where(is_branch, 2 * numbers + 2, 0), n_trees).tolist(),
        target_treeids=np.repeat(np.arange(n_trees), len(leaves)).tolist(),
        target_nodeids=np.tile(leaves, n_trees).tolist(),
        target_ids=[0] * (n_trees * len(leaves)),
        target_weights=rng.normal(size=n_trees * len(leaves)).tolist(),
    )
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", N_FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
