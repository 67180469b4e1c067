"""Measure how often comparisons of one config, made at different times, contradict one another.

    python -m benchmarks.occasions [--times 12] [--every 600] [--json FILE]
    python -m benchmarks.occasions --report FILE

Each occasion compares one config with the default in fresh processes, by `ortune bench`, for each of two loads. Two
comparisons contradict one another if their 95 % intervals are disjoint. Target: at most 1 of the 66 pairs of each load.
Comparisons that report a busy host are printed, but not counted: they hold for a busy host.

The report also gives the interval that pools the occasions, as `ortune apply --verify --update` does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.host import describe_run, write_header
from models.build import build, find_search_options
from ortune.measure.interval import Interval
from ortune.measure.stats import pool_intervals

LOADS = {
    "silero_vad, two callers": (
        "silero_vad",
        ["--clients", "2", "--set", "intra_op_num_threads=1"],
    ),
    "squeezenet_qdq, one caller": (
        "squeezenet_qdq",
        ["--set", "session.intra_op.allow_spinning=0"],
    ),
}
"""Models, and the options of the load and of the config."""


def compare(name: str) -> dict[str, Any]:
    """Compare the config of a load with the default once."""
    model, options = LOADS[name]
    command = [sys.executable, "-P", "-m", "ortune", "bench", str(build(model)), *find_search_options(model), *options]
    started = datetime.now().isoformat(timespec="seconds")
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout)
    speedup = result["rows"][1]["speedup"]
    return {
        "load": name,
        "started": started,
        "estimate": speedup["estimate"],
        "low": speedup["low"],
        "high": speedup["high"],
        "n_launches": speedup["n_launches"],
        "regime": result["noise"]["regime"],
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Print all comparisons, the pairs that are disjoint, and the pooled intervals."""
    for name in LOADS:
        intervals = []
        print(name)
        for row in rows:
            if row["load"] != name:
                continue
            found = Interval(estimate=row["estimate"], low=row["low"], high=row["high"], confidence=0.95)
            started, regime = row["started"][11:], row["regime"]
            if regime != "contended":
                intervals.append((found.log(), row["n_launches"]))
            print(f"  {started}  {found.estimate:6.3f}x [{found.low:.3f}, {found.high:.3f}]  {regime}")
        pairs = list(itertools.combinations([interval for interval, _ in intervals], 2))
        disjoint = sum(one.high < other.low or other.high < one.low for one, other in pairs)
        print(f"  disjoint: {disjoint} of {len(pairs)} pairs")
        if len(intervals) > 2:
            pooled = pool_intervals([interval for interval, _ in intervals], [n for _, n in intervals]).exp()
            print(f"  all occasions: {pooled.estimate:.3f}x [{pooled.low:.3f}, {pooled.high:.3f}]")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=12, help="occasions")
    parser.add_argument("--every", type=float, default=600, help="seconds from one occasion to the next")
    parser.add_argument("--json", type=Path, help="write the results to this file, and continue those that it has")
    parser.add_argument("--report", type=Path, help="print the results of this file, and measure nothing")
    arguments = parser.parse_args()
    if arguments.report:
        kept = json.loads(arguments.report.read_text())
        print(write_header(kept))
        report(kept["rows"])
        return
    rows: list[dict[str, Any]] = []
    if arguments.json and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())["rows"]
    next_s = time.monotonic()
    for _ in range(arguments.times):
        time.sleep(max(0.0, next_s - time.monotonic()))
        next_s = time.monotonic() + arguments.every
        rows += [{**describe_run(), **compare(name)} for name in LOADS]
        if arguments.json:
            arguments.json.write_text(json.dumps({**describe_run(*rows), "rows": rows}, indent=1) + "\n")
    print(write_header(*rows))
    report(rows)


if __name__ == "__main__":
    main()
