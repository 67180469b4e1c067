"""Metrics of canaries, for tests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ortune.apply.inside.canary import GROWTH_SCALE


def make_model(durations_ns: Any, **changes: Any) -> dict[str, Any]:
    """Return the JSON of a model with calls of these durations."""
    buckets: dict[str, int] = {}
    for duration_ns in durations_ns:
        key = str(int(math.log(duration_ns) * GROWTH_SCALE))
        buckets[key] = buckets.get(key, 0) + 1
    return {
        "name": "model.onnx",
        "sha256": "a" * 64,
        "n_tuned": 0,
        "n_own": 1,
        "reason": "",
        "n_calls": len(durations_ns),
        "n_failed": 0,
        "total_ns": int(sum(durations_ns)),
        "buckets": buckets,
        **changes,
    }


def make_metrics(pid: int = 7, arm: str = "control", models: Any = None, **changes: Any) -> dict[str, Any]:
    """Return the JSON of a process, as a program writes it."""
    return {
        "format": 1,
        "host": "a",
        "host_class": "0123456789abcdef",
        "pid": pid,
        "start_ns": 1_000_000_000_000_000_000 + pid,
        "arm": arm,
        "decided_pid": changes.get("pid", pid),
        "decided_ns": 1_000_000_000_000_000_000 + pid,
        "share": 0.5,
        "config": "0123456789ab",
        "onnxruntime": "1.32.0",
        "written_ns": 1_000_000_010_000_000_000,
        "wall_ns": 10_000_000_000,
        "cpu_ns": 4_000_000_000,
        "models": [make_model([1_000_000] * 1000)] if models is None else models,
        **changes,
    }


def write_metrics(folder: Path, *processes: dict[str, Any]) -> Path:
    """Write the files of processes into a folder."""
    folder.mkdir(exist_ok=True)
    for process in processes:
        (folder / f"canary-{process['host'].encode().hex()}-{process['pid']}-{process['start_ns']}.json").write_text(
            json.dumps(process) + "\n"
        )
    return folder


def make_rollout(
    ratio: float = 0.9, *, n: int = 12, hosts: tuple[str, ...] = ("a", "b"), luck: float = 0.02, seed: int = 0
) -> list[dict[str, Any]]:
    """Return the processes of a rollout, half of which are canaries.

    Args:
        ratio: Durations of canaries, relative to the others.
        n: Number of processes.
        hosts: Their hosts, which differ by 30%.
        luck: Standard deviation of the logarithm between processes.
        seed: Seed of all that is random.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        host = number // 2 % len(hosts)
        is_canary = bool(number % 2)
        level = 1e6 * 1.3**host * (ratio if is_canary else 1) * math.exp(rng.normal(0, luck))
        model = make_model(level * np.exp(rng.normal(0, 0.1, 1500)), n_tuned=int(is_canary), n_own=int(not is_canary))
        cpu_ns = int(model["total_ns"] * 1.1)
        arm = "canary" if is_canary else "control"
        found.append(make_metrics(100 + number, arm, [model], host=hosts[host], cpu_ns=cpu_ns))
    return found
