"""The model: its inputs, its traits and its identity, read in a child process.

The function that reads a model is imported on first use: applying a record only needs the identity.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ortune.model.identity import ModelIdentity, compute_digest, hash_data_file, hash_file
from ortune.model.info import Dim, InputInfo, ModelFile, ModelInfo, OutputInfo, Traits

if TYPE_CHECKING:
    from ortune.model.read import read_model

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


def __getattr__(name: str) -> Any:
    """Import a name on first use (PEP 562)."""
    if name == "read_model":
        return importlib.import_module(f"{__name__}.read").read_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
