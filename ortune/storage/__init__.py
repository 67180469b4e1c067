"""Storages that several hosts share: what each of them measured of one model, through Optuna's storages."""

from ortune.storage.connect import StorageError, open_storage
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
    "find_location",
    "hash_node",
    "list_studies",
    "name_node",
    "name_worker",
    "open_storage",
    "parse_location",
]
