"""Runs a record's config and the default once, and reads back the effective settings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from ortune.apply.fit import Mismatch, find_mismatches
from ortune.host import read_host
from ortune.measure.block_runner import BlockRunner
from ortune.model import read_model
from ortune.record.schema import Record
from ortune.record.select import check_model
from ortune.worker import Failure, Runtime, SessionInfo
from ortune.worker.executor import BASELINE_LOAD_DEADLINE_S, launch_reference, open_workers
from ortune.workload import InputOptions, make_feed
from ortune.workload.batching import list_batches


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check.

    Attributes:
        runtime: The software on this host.
        loaded: The session with the config, read back, or the reason why there is none.
        mismatches: Differences between the recorded host and software and these.
    """

    runtime: Runtime
    loaded: SessionInfo | Failure
    mismatches: tuple[Mismatch, ...]

    @property
    def works(self) -> bool:
        """Whether the config works on this host."""
        return isinstance(self.loaded, SessionInfo)

    @property
    def fits(self) -> bool:
        """Whether the config works on this host, and this host is of the recorded class."""
        return self.works and not self.mismatches


def run_once(record: Record, model: str | Path, data: str | None = None) -> CheckResult:
    """Create the default's session and the config's, run both, and compare their outputs.

    Inputs have the recorded shapes, or the first of them if there are several.

    Args:
        record: The record to check.
        model: Path of the ONNX file.
        data: Input data as for a search, or None to synthesize it.

    Raises:
        OrtuneError: The record is for another model, or the model does not run.
    """
    check_model(record, model)
    info = read_model(model)
    host = read_host()
    shapes = {name: given.shapes[0] for name, given in record.workload.inputs.items()}
    options = InputOptions(shapes=shapes, data=data, seed=record.search.seed)
    feed = make_feed(info, options, list_batches(record.base.batch, record.config.batch))
    with open_workers(
        info,
        feed,
        record.workload.tolerance,
        usable=host.limits.usable,
        n_sessions=record.workload.load.sessions,
    ) as executor:
        launch_reference(executor, info, feed, record.base).close()
        runner = BlockRunner(executor, np.random.default_rng())
        runner.load_deadline_s = BASELINE_LOAD_DEADLINE_S
        (tuned,) = runner.launch([record.config])
        return CheckResult(
            runtime=executor.runtime,
            loaded=tuned if isinstance(tuned, Failure) else tuned.session_info,
            mismatches=find_mismatches(record, host, executor.runtime),
        )
