"""The model: its inputs, its traits and its identity, read in a child process."""

from __future__ import annotations

from pathlib import Path

from ortune.model.child import read_in_child
from ortune.model.identity import ModelIdentity, compute_digest, hash_data_file, hash_file
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
    "hash_data_file",
    "hash_file",
    "read_model",
]


def read_model(path: str | Path) -> ModelInfo:
    """Return the inputs, outputs, traits and files of a model.

    A child process parses the file, so that its weights are never loaded into this process.

    Raises:
        ModelError: The file or its external data is missing, or the file is not an ONNX model.
    """
    return read_in_child("ortune.model.inspect", path, ModelInfo)
