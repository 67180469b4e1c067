"""Compare measuring configurations one after another, as onnxruntime_perf_test does, with `ortune bench`.

    python -m benchmarks.one_at_a_time [--repeats 10] [--json FILE] [--show]

This is perf_test's method, not the tool, which is not on PyPI: a process for each configuration creates the session,
runs it once to warm up, then calls it back to back for some seconds, and prints the average and the median of all
calls. The calls are made from Python. The reader compares the outputs of two processes, one after the other, and takes
a difference of more than 2 % for real, as there is no interval. `ortune bench` gets the same two configurations and the
same seconds in total, and claims a difference if its 95 % interval excludes 1.

A repeat compares each pair once with each method, in turn, so that a busy period of the host affects both. Pairs are
the default with itself, where each claim is false, and the default with two settings. Their true ratios are not known:
for them, what counts is how far the estimates of a method lie apart.

`--json FILE` adds the repeats to those that the file has; `--show` only prints what it has. Run this on an idle host.

Source of the method: onnxruntime/test/perftest/performance_runner.cc and main.cc of onnxruntime 1.32.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort

from benchmarks.host import describe_run, write_header

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "models" / "tiny_cnn.onnx"
SHAPE = (1, 3, 32, 32)

PAIRS = {
    "the default with itself": "graph_optimization_level=ORT_ENABLE_ALL",
    "without memory arena": "enable_cpu_mem_arena=false",
    "level extended": "graph_optimization_level=ORT_ENABLE_EXTENDED",
}
"""What is compared with the default: a setting and its value. The first is the default's own value."""

SAME = next(iter(PAIRS))

SECONDS = 5.0
"""How long each process calls the session. `ortune bench` gets twice as much for both."""

NOTABLE = math.log(1.02)
"""A difference between two outputs that a reader takes for real, as a log-ratio."""


def main() -> None:
    """Compare, or measure one configuration in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10, help="comparisons of each pair with each method")
    parser.add_argument("--json", type=Path, help="where to keep all repeats")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(time_session(arguments.one)))
        return
    kept: dict[str, Any] = {**describe_run(), "repeats": []}
    if arguments.json and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())
    for _ in range(0 if arguments.show else arguments.repeats):
        for pair, setting in PAIRS.items():
            kept["repeats"].append({"pair": pair, "one": [run_one(""), run_one(setting)], "bench": run_bench(setting)})
            if arguments.json:
                arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    show(kept)


def time_session(setting: str) -> dict[str, float]:
    """Return the average and the median duration of calls, in ns, as perf_test measures them."""
    options = ort.SessionOptions()
    name, _, value = setting.partition("=")
    if name == "graph_optimization_level":
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, value)
    elif name == "enable_cpu_mem_arena":
        options.enable_cpu_mem_arena = value != "false"
    session = ort.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)}
    session.run(None, feed)
    durations = []
    now = time.perf_counter_ns()
    end = now + int(SECONDS * 1e9)
    while now < end:
        session.run(None, feed)
        before, now = now, time.perf_counter_ns()
        durations.append(now - before)
    return {"mean": statistics.fmean(durations), "p50": statistics.median(durations)}


def run_one(setting: str) -> dict[str, float]:
    """Return what a process measures that has this setting; without one if it is empty."""
    command = [sys.executable, "-m", "benchmarks.one_at_a_time", f"--one={setting}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def run_bench(setting: str) -> dict[str, float]:
    """Return the ratio that `ortune bench` claims for a setting, with its interval: above 1 if it is faster."""
    command = [sys.executable, "-m", "ortune", "bench", str(MODEL), f"--set={setting}", f"--budget={2 * SECONDS:g}s"]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, check=False, text=True)
    if done.returncode:
        # Such as on a busy host, where this time is too short.
        raise SystemExit(done.stderr)
    speedup = json.loads(done.stdout)["rows"][-1]["speedup"]
    return {end: float(speedup[end]) for end in ("low", "estimate", "high")}


class Judged(NamedTuple):
    """What one method found in all comparisons of a pair.

    Attributes:
        pair: The pair.
        method: The method, and the figure that it compares.
        n: Number of comparisons.
        n_claims: How many of them claim a difference.
        lowest: Lowest estimate of the ratio.
        median: Median of the estimates.
        highest: Highest estimate.
    """

    pair: str
    method: str
    n: int
    n_claims: int
    lowest: float
    median: float
    highest: float


def judge(kept: dict[str, Any]) -> list[Judged]:
    """Return what each method found, for each pair."""
    judged = []
    for pair in PAIRS:
        rows = [row for row in kept["repeats"] if row["pair"] == pair]
        if not rows:
            continue
        for figure in ("mean", "p50"):
            ratios = [row["one"][0][figure] / row["one"][1][figure] for row in rows]
            claims = [abs(math.log(ratio)) > NOTABLE for ratio in ratios]
            judged.append(judge_method(pair, f"one after another, {figure}", ratios, claims))
        ratios = [row["bench"]["estimate"] for row in rows]
        claims = [row["bench"]["low"] > 1 or row["bench"]["high"] < 1 for row in rows]
        judged.append(judge_method(pair, "ortune bench, p50", ratios, claims))
    return judged


def judge_method(pair: str, method: str, ratios: list[float], claims: list[bool]) -> Judged:
    """Return what a method found, given its estimates and which of them it claims."""
    return Judged(
        pair=pair,
        method=method,
        n=len(ratios),
        n_claims=sum(claims),
        lowest=min(ratios),
        median=statistics.median(ratios),
        highest=max(ratios),
    )


def show(kept: dict[str, Any]) -> None:
    """Print what each method found, for each pair."""
    print(write_header(kept))
    for result in judge(kept):
        print(
            f"{result.pair}: {result.method}: claims a difference in {result.n_claims} of {result.n}; "
            f"ratios from {result.lowest:.3f} to {result.highest:.3f}, median {result.median:.3f}"
        )


if __name__ == "__main__":
    main()
