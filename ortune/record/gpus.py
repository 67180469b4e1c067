"""Compares the GPU that a record was made with to the one that its config would use here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ortune.knobs.config import CUDA_BASED
from ortune.record.schema import Record


class GpuDifference(NamedTuple):
    """The names of two GPUs that differ.

    Attributes:
        recorded: The GPU of the record.
        here: The GPU of this host.
    """

    recorded: str
    here: str


def find_gpu_difference(record: Record, gpus: Sequence[str] | None = None) -> GpuDifference | None:
    """Return how the GPU of a record differs from the one here.

    There is no difference if the config uses no NVIDIA GPU, or if one of the two GPUs is not known.

    Args:
        record: The record.
        gpus: Names of the GPUs here, as providers number them; None to read them.
    """
    if record.config.provider not in CUDA_BASED or not record.runtime.gpus:
        return None
    # Only here: programs with records for the CPU start without it.
    from ortune.worker.gpu import find_number, list_gpus

    number = find_number(record.config)
    here_all = list_gpus()[0] if gpus is None else gpus
    recorded, here = record.runtime.gpus[number : number + 1], here_all[number : number + 1]
    return GpuDifference(recorded[0], here[0]) if recorded and here and recorded != here else None


def list_recorded_gpus(record: Record) -> tuple[str, ...]:
    """Return the names of the GPUs that a record depends on; none if the search used no NVIDIA GPU."""
    return record.runtime.gpus if CUDA_BASED.intersection(record.tried.providers) else ()
