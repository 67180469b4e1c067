"""How many sessions fit into memory at the same time. A session that is suspended keeps its memory."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.knobs.config import Config
from ortune.knobs.providers import find_provider
from ortune.measure.calibrate import Calibration
from ortune.worker.block import GpuState

MEMORY_SHARE = 0.8
"""Share of the free memory that all live workers together may take."""


def is_memory_unknown(config: Config) -> bool:
    """Return whether a config's provider has its own memory, whose use is unknown: one session is live at a time."""
    return find_provider(config.provider).memory_unknown


def count_fitting(calibration: Calibration, free_bytes: int | None, share: float = MEMORY_SHARE) -> int | None:
    """Return how many sessions like the baseline's fit into memory at the same time, or None if unknown.

    One session always fits, because it was measured.

    Args:
        calibration: Memory of the baseline's first launch.
        free_bytes: Free memory of the host, or None if unknown.
        share: Share of the free memory that the sessions may take.
    """
    counts = []
    if calibration.peak_bytes and free_bytes:
        counts.append(max(int(share * free_bytes / calibration.peak_bytes), 1))
    on_gpu = count_on_gpu([calibration.gpu] if calibration.gpu else [], share)
    if on_gpu is not None:
        counts.append(on_gpu)
    return min(counts, default=None)


def count_on_gpu(states: Sequence[GpuState], share: float = MEMORY_SHARE) -> int | None:
    """Return how many sessions fit into the memory of a GPU at the same time, or None if unknown.

    Args:
        states: The GPU as each of the sessions that are live on it saw it last.
        share: Share of the free memory that the sessions may take.
    """
    before = [state.free_before_bytes for state in states if state.free_before_bytes is not None]
    left = [state.free_bytes for state in states if state.free_bytes is not None]
    if not before or not left:
        return None
    used = [state.used_bytes for state in states if state.used_bytes]
    # In a container, the memory of a process is not known. All of them together took what is no longer free.
    session_bytes = max(used) if used else (max(before) - min(left)) / len(states)
    return max(int(share * max(before) / session_bytes), 1) if session_bytes > 0 else None
