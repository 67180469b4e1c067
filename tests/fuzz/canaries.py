"""Files with the metrics of canaries."""

from __future__ import annotations

import functools
import io
import json

from tests.fuzz.mutation import make_json_mutation
from tests.fuzz.target import Target, attempt, find_folder
from tests.metrics import make_metrics, make_model, make_rollout, write_metrics

NAMES = (
    "canary",
    "control",
    "a" * 64,
    "0123456789ab",
    "694",
    "1388",
    "2776",
    "2777",
    "",
    "\x00",
    "\x1b[31m",
    "buckets",
)


@functools.cache
def seeds() -> tuple[bytes, ...]:
    """Return a process with one model, and one with several."""
    several = [
        make_model([1000, 10**12]),
        make_model([5000] * 2000, name="b.onnx", sha256="b" * 64, n_own=2, reason="no provider", n_failed=7),
    ]
    return tuple(
        json.dumps(process).encode()
        for process in (make_metrics(1, "canary"), make_metrics(2, "control", several, host="b"))
    )


@functools.cache
def known() -> tuple[dict[str, object], ...]:
    """Return processes that the one of the input is compared with."""
    return tuple(make_rollout(n=4))


def run_canary(data: bytes) -> None:
    """Read the metrics of a process, compare them with others, and show the result."""
    from ortune.cli.output import encode_json
    from ortune.console.fleet import show_fleet_comparison
    from ortune.console.safe_console import SafeConsole
    from ortune.fleet.canary_metrics import read_metrics
    from ortune.fleet.compare import compare_arms

    folder = write_metrics(find_folder() / "canaries", *known())
    (folder / "canary-00-1-1.json").write_bytes(data)
    metrics = read_metrics(folder)
    assert len(metrics.processes) == 4 + (not metrics.faults)
    comparison = attempt(compare_arms, metrics)
    if comparison is not None:
        show_fleet_comparison(SafeConsole(file=io.StringIO(), width=100), comparison)
        encode_json(comparison)


CANARIES = Target(run_canary, seeds, make_json_mutation(lambda: NAMES))
