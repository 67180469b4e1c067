"""The model: what its graph asks for and what it can profit from, read in a process of its own."""

from __future__ import annotations

from pathlib import Path

from ortune.model.child import read_in_child
from ortune.model.identity import ModelIdentity, compute_digest, hash_file
from ortune.model.info import Dim, InputInfo, ModelFile, ModelInfo, OutputInfo, Traits

__all__ = [
    "Dim",
    "InputInfo",
    "ModelFile",
    "ModelIdentity",
    "ModelInfo",
    "OutputInfo",
    "Traits",
    "compute_digest",
    "hash_file",
    "read_model",
]


def read_model(path: str | Path) -> ModelInfo:
    """Read a model's inputs and traits.

    Weights never enter this process: a child parses the file, and only the facts come back.

    Raises:
        ModelError: The file is missing, is not an ONNX model, or its external data is missing.
    """
    return read_in_child("ortune.model.inspect", path, ModelInfo)
