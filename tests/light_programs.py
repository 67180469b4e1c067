"""Programs of tests whose processes take as little CPU time as possible; see `tests/programs/light.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from ortune import Goal
from ortune.measure.block_runner import BlockRunner
from ortune.measure.open import OpenComparison
from ortune.model.child import read_in_child
from ortune.program import search as searching
from ortune.program.prepare import PreparedProgram
from ortune.program.search import open_program
from ortune.replaceable import replaced
from ortune.worker import Executor, LiveCandidate
from tests.simulated.reading import read_here


@contextlib.contextmanager
def light_sessions(**environment: str) -> Iterator[None]:
    """Let the programs of tests have sessions without onnxruntime, and read models in this process.

    Args:
        environment: Further environment variables.
    """
    with pytest.MonkeyPatch.context() as patch, replaced({read_in_child: read_here}):
        for name, value in {"LIGHT_SESSIONS": "1", **environment}.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def open_uncalibrated(prepared: PreparedProgram, **options: Any) -> Iterator[OpenComparison]:
    """Launch a program as `open_program` does, but once, and without measuring it."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(searching, "start_comparison", start_uncalibrated)
            opened = stack.enter_context(open_program(prepared, **options))
        yield opened


def start_uncalibrated(
    executor: Executor, first: LiveCandidate, goal: Goal, *, check: Callable[[], None], **others: Any
) -> OpenComparison:
    """Return a comparison without a calibration; see `ortune.measure.open.start_comparison`."""
    first.close()
    runner = BlockRunner(executor, np.random.default_rng(0), check)
    runner.attempts_of(first.config).add_block()  # it works
    return OpenComparison(
        runner=runner,
        calibration=cast("Any", None),
        goal=goal,
        seed=0,
        start_s=0.0,
        free_bytes=None,
        deterministic=True,
        executors=(executor,),
        open_executor=lambda load, cpus=(): executor,
    )
