"""Records for tests, without a search."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec

from ortune import Config, Load, Record, Speedup, read_record
from ortune.host import HostClass, read_host
from ortune.measure.comparison import LimitCheck
from ortune.model import ModelInfo, compute_digest
from ortune.record.files import encode_record
from ortune.record.schema import FrontPoint, Tried
from ortune.worker.runtime import read_installed_runtime
from ortune.workload import InputOptions, make_feed, parse_limit
from tests.conftest import ROOT
from tests.simulated.reading import read_here

ELSEWHERE = HostClass(
    id="0123456789abcdef",
    name="Some CPU, 32 cores, 64 threads, 2 NUMA nodes",
    system="Linux",
    machine="x86_64",
    cpu_model="Some CPU",
    n_logical=64,
    n_cores=32,
    n_packages=2,
    n_numa_nodes=2,
    n_usable=64,
    n_usable_cores=32,
    n_usable_numa_nodes=2,
)
"""A class of hosts that is not the one of these tests."""

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})

EXAMPLE = ROOT / "tests" / "data" / "limits.ortune.json"


installed = functools.cache(read_installed_runtime)


@functools.cache
def read_once(path: str, modified_ns: int) -> ModelInfo:
    """Read a model that has not been read since it was modified, without a child process."""
    info = read_here("ortune.model.inspect", path, ModelInfo)
    assert isinstance(info, ModelInfo)
    return info


def make_record(model: Path, config: Config, *, load: Load | None = None, here: bool = True, **changes: Any) -> Record:
    """Return a record for a model and a config, of this class of host unless `here` says otherwise."""
    record, info = read_record(EXAMPLE), read_once(str(model), model.stat().st_mtime_ns)
    runtime = installed()
    return msgspec.structs.replace(
        record,
        config=config,
        evidence=msgspec.structs.replace(
            record.evidence,
            winner=record.evidence.winner and msgspec.structs.replace(record.evidence.winner, config=config),
        ),
        model=msgspec.structs.replace(
            record.model, path=str(model), digest=compute_digest(info.files), files=info.files
        ),
        workload=msgspec.structs.replace(
            record.workload, inputs=make_feed(info, InputOptions()).describe(), load=load or record.workload.load
        ),
        host=HostClass.of(read_host()) if here else ELSEWHERE,
        runtime=runtime if here and runtime else record.runtime,
        search=msgspec.structs.replace(record.search, tried=Tried(), best=()),
        **changes,
    )


def make_local_record(model: Path, config: Config, **changes: Any) -> Record:
    """Return a record of this class of host for a single caller and the objective p50, without limits."""
    record = make_record(model, config, load=Load())
    return msgspec.structs.replace(
        record,
        workload=msgspec.structs.replace(record.workload, objectives=("p50",), limits=()),
        evidence=msgspec.structs.replace(record.evidence, objective="p50", limits=(), baseline_limits=()),
        **changes,
    )


def claim_limits(record: Record, **speedups: Speedup) -> Record:
    """Return a record whose config keeps a limit that the baseline exceeds.

    Args:
        record: A record with a winner.
        speedups: Speedups of a point of a Pareto front; without any, there is a single objective.
    """
    limit, evidence = parse_limit("p99<1ms"), record.evidence
    assert evidence.winner
    kept = LimitCheck(limit=limit.text, figure="p99", bound=limit.bound, value=9e5, low=8e5, high=9.5e5, kept="yes")
    if speedups:
        point = FrontPoint(summary=evidence.winner, speedups=speedups, limits=(kept,))
        evidence = msgspec.structs.replace(evidence, verdict="trade_off", front=(point,), winner=None, speedup=None)
    else:
        evidence = msgspec.structs.replace(evidence, verdict="within_limits", limits=(kept,))
    objectives = tuple(speedups) or record.workload.objectives
    workload = msgspec.structs.replace(record.workload, limits=(limit,), objectives=objectives)
    return msgspec.structs.replace(record, evidence=evidence, workload=workload)


def write(record: Record, path: Path) -> Path:
    """Write a record, and return where."""
    path.write_bytes(encode_record(record))
    return path
