"""Storages that several hosts share: what each of them measured of one model, through Optuna's storages.

The modules that need Optuna are imported on first use: most commands only ask whether a storage is given.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ortune.storage.errors import StorageError, UnreadableError
from ortune.storage.location import Location, find_location, parse_location
from ortune.storage.node import hash_node, name_node, name_worker
from ortune.storage.schema import (
    FAILED,
    PROOF,
    RACE,
    RESULT,
    Measurement,
    NodeState,
    Proof,
    SharedRace,
    SharedResult,
    SharedRound,
    SharedSpeedup,
)

if TYPE_CHECKING:
    from ortune.storage.connect import open_storage
    from ortune.storage.shared_study import SharedStudy, list_studies

__all__ = [
    "FAILED",
    "PROOF",
    "RACE",
    "RESULT",
    "Location",
    "Measurement",
    "NodeState",
    "Proof",
    "SharedRace",
    "SharedResult",
    "SharedRound",
    "SharedSpeedup",
    "SharedStudy",
    "StorageError",
    "UnreadableError",
    "find_location",
    "hash_node",
    "list_studies",
    "name_node",
    "name_worker",
    "open_storage",
    "parse_location",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use (PEP 562)."""
    homes = {"SharedStudy": "shared_study", "list_studies": "shared_study", "open_storage": "connect"}
    if name in homes:
        return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
