"""Opens a comparison: background load, executor, memory limit, reference launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ortune.model import ModelInfo, compute_digest
from ortune.model.identity import ModelIdentity
from ortune.worker.background_load import BackgroundLoad
from ortune.worker.executor import ProcessExecutor
from ortune.workload import Feed, Goal, Tolerance, Workload
from ortune.workload.values import APPROXIMATE_TOLERANCE, QUANTIZED_TOLERANCE

if TYPE_CHECKING:
    from ortune.tuning.request import PreparedSearch

MEMORY_SHARE = 0.8
"""Part of the free memory that one worker may take."""


def usual_tolerance(model: ModelInfo, *, approximate: bool) -> Tolerance:
    """Return how far outputs may lie from the default's, where the user does not say."""
    if approximate:
        return APPROXIMATE_TOLERANCE
    return QUANTIZED_TOLERANCE if model.traits.quantized else Tolerance()


@contextlib.contextmanager
def open_executor(setting: PreparedSearch) -> Iterator[tuple[ProcessExecutor, Callable[[], None]]]:
    """Yield an executor for a setting, beside the background_load if there is one, and what raises when that has ended.

    Raises:
        BackgroundLoadError: The background_load does not run.
    """
    request, host = setting.request, setting.host
    free_bytes = host.limits.memory_bytes
    background_load = BackgroundLoad(request.beside) if request.beside is not None else None
    with (
        background_load or contextlib.nullcontext(),
        ProcessExecutor(
            setting.model,
            setting.feed,
            setting.tolerance,
            usable=host.limits.usable,
            background_load=background_load.pid if background_load else None,
            memory_limit_bytes=request.memory_limit_bytes or (int(MEMORY_SHARE * free_bytes) if free_bytes else None),
            n_sessions=request.goal.load.sessions,
            build_deadline_s=request.build_deadline_s,
            command=request.worker_command,
        ) as executor,
    ):
        yield executor, background_load.check if background_load else lambda: None


def describe_model(path: str, model: ModelInfo) -> ModelIdentity:
    """Return a model's identity, as it is written to the record."""
    return ModelIdentity(path=path, digest=compute_digest(model.files), files=model.files)


def describe_workload(goal: Goal, feed: Feed, tolerance: Tolerance, background_load: str | None) -> Workload:
    """Return what is measured, as it is written to the record."""
    return Workload(
        load=goal.load,
        objectives=goal.objectives,
        limits=goal.limits,
        n_samples=len(feed.samples),
        inputs=feed.describe(),
        tolerance=tolerance,
        background_load=background_load,
    )
