"""Plans for tests, without measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ortune import Config, Deployment, Plan
from ortune.host import ProcessPlacement
from ortune.knobs import DEFAULT
from ortune.planning.deployment import Batching
from ortune.planning.files import write_plan
from ortune.planning.pick import PickedDeployment, pick_deployment
from ortune.planning.result import Estimate, PlannedDeployment
from ortune.workload import parse_limit
from tests.conftest import TINY_CNN
from tests.records import make_record

QUIET = Config(session_options={"intra_op_num_threads": 1}, session_config={"session.intra_op.allow_spinning": "0"})

DEPLOYMENTS = {
    "processes": Deployment(processes=2, config=QUIET),
    "callers": Deployment(processes=2, clients=3, config=QUIET),
    "pinned": Deployment(processes=2, placement=ProcessPlacement(unit="cores", cpus=((0,), (1,))), config=QUIET),
    "batching": Deployment(processes=2, clients=2, config=QUIET, batching=Batching(max_batch=8, max_delay_us=2500)),
    "batch": Deployment(config=msgspec.structs.replace(QUIET, batch=4)),
    "default": Deployment(),
}
"""Deployments of all kinds."""


SERVERS = ("gunicorn", "uvicorn", "ray-serve", "bentoml", "triton", "kubernetes", "compose", "systemd")
"""Targets of exports that express deployments."""


def make_estimate(value: float, spread: float = 0.05, **fields: Any) -> Estimate:
    values = {"estimate": value, "low": value * (1 - spread), "high": value * (1 + spread), "confidence": 0.95}
    return Estimate(**{**values, "source": "measured", **fields})


def make_row(deployment: Deployment, per_s: float, **fields: Any) -> PlannedDeployment:
    values: dict[str, Any] = {
        "throughput": make_estimate(per_s),
        "p50_ns": 5e6,
        "p99_ns": 8e6,
        "cpu_cores": 1.9,
        "cpu_ns_per_call": 7e6,
        "memory_bytes": 60_000_000 * deployment.processes,
    }
    return PlannedDeployment(deployment=deployment, **{**values, **fields})


def make_plan(
    deployment: Deployment, model: Path = TINY_CNN, *, here: bool = True, replicas: int = 3, **changes: Any
) -> Plan:
    """Return a plan for a model that recommends a deployment; of this class of host unless `here` says otherwise."""
    record = make_record(model, DEFAULT, here=here)
    default = make_row(Deployment(), 139, capacity=make_estimate(70.0, source="predicted"), memory_bytes=50_000_000)
    if deployment == Deployment():
        rows: tuple[PlannedDeployment, ...] = (default,)
    else:
        own = make_row(
            deployment,
            246,
            ratio=make_estimate(1.77),
            capacity=make_estimate(190.0),
            is_proven=True,
            replicas=replicas,
        )
        rows = (default, own)
    best = len(rows) - 1
    values: dict[str, Any] = {
        "rows": rows,
        "recommended": best,
        "reason": "it increases the throughput",
        "best": {"throughput": best, "memory": 0, "cpu": best},
        "slo": parse_limit("p99<50ms"),
        "rate_per_s": 400.0,
        "headroom": 0.2,
        "budget_s": 60,
        "spent_s": 59.5,
        "started": "2026-11-22T10:00:00+00:00",
        "workload": record.workload,
        "model": record.model,
        "host": record.host,
        "runtime": record.runtime,
        "noise": record.evidence.noise,
    }
    return Plan(**{**values, **changes})


def pick(deployment: Deployment, *, here: bool = True, **changes: Any) -> PickedDeployment:
    """Return the recommended deployment of such a plan."""
    return pick_deployment(make_plan(deployment, here=here, **changes))


def write(plan: Plan, path: Path) -> Path:
    """Write a plan to a file, and return its path."""
    write_plan(plan, path)
    return path
