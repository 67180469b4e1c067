"""Measure what searches of slow models try, and whether they keep their budget.

    python -m benchmarks.slow [--replays 10]
    python -m benchmarks.slow --live [--json FILE]

The replays run on the held-out landscapes with calls of 150 ms and of 1 s (benchmarks/held_out.py), with a budget of
60 s and with the default budget. Targets for 60 s: at least 12 candidates with calls of 150 ms, 5 with calls of 1 s,
and a tenth more time than the budget at most.

Live searches use ppocrv4_det with images whose calls take about as long on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out import all_held_out, kind_of
from benchmarks.host import describe_run, write_header
from benchmarks.replay import open_replay
from models.build import build
from ortune.tuning.job import SearchSettings, run_search

KINDS = ("slow_150ms", "slow_1s")
BUDGETS_S = (60.0, None)

LIVE = {"150 ms": "1x3x832x832", "1 s": "1x3x1952x1952"}
"""Shapes of the input of ppocrv4_det."""


def replay_all(n_replays: int) -> None:
    """Print the results of replays."""
    print(write_header())
    print("calls       budget   tried  time spent       within 2 %  verdicts")
    for kind in KINDS:
        for budget_s in BUDGETS_S:
            tried, spent, within, verdicts = [], [], [], Counter[str]()
            for landscape in all_held_out():
                if kind_of(landscape.name) != kind:
                    continue
                for seed in range(n_replays):
                    opened = open_replay(landscape, seed=seed)
                    outcome = run_search(landscape.first_space, opened, SearchSettings(budget_s=budget_s))
                    chosen = landscape.space.numbers[outcome.config.key]
                    lag = landscape.log_speedup(landscape.best) - landscape.log_speedup(chosen)
                    tried.append(len(outcome.trials) - 1)
                    spent.append(opened.runner.now_s())
                    within.append(lag < np.log(1.02))
                    verdicts[outcome.evidence.verdict] += 1
            budget = "default" if budget_s is None else f"{budget_s:.0f} s"
            print(
                f"{kind:11} {budget:8} {np.mean(tried):5.1f}  {np.mean(spent):4.0f} (max {max(spent):3.0f}) s  "
                f"{np.mean(within):10.0%}  {dict(verdicts)}",
                flush=True,
            )


def search(call: str, budget_s: float | None) -> dict[str, Any]:
    """Search ppocrv4_det on this host, and return what the record says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        command = [sys.executable, "-P", "-m", "ortune", "search", str(build("ppocrv4_det"))]
        command += ["--shape", f"x={LIVE[call]}", "-o", str(path), "--no-history"]
        command += [] if budget_s is None else ["--budget", f"{budget_s:g}s"]
        start_s = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - start_s
        if not path.exists():
            raise SystemExit(done.stderr)
        record = json.loads(path.read_text())
    evidence = record["evidence"]
    return {
        "call": call,
        "budget_s": budget_s,
        "wall_s": round(wall_s, 1),
        "tried": record["search"]["n_tried"],
        "verdict": evidence["verdict"],
        "reason": evidence["reason"],
        "speedup": evidence.get("speedup"),
        "p50_ms": evidence.get("baseline", {}).get("p50_ns", 0) / 1e6,
    }


def search_all(json_path: Path | None) -> None:
    """Print the results of live searches."""
    print(write_header())
    rows = []
    for call in LIVE:
        for budget_s in BUDGETS_S:
            row = search(call, budget_s)
            rows.append(row)
            print({name: value for name, value in row.items() if name != "reason"}, flush=True)
    if json_path:
        json_path.write_text(json.dumps({**describe_run(), "rows": rows}, indent=1) + "\n")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=10, help="replays of each landscape")
    parser.add_argument("--live", action="store_true", help="search a real model instead")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.live:
        search_all(arguments.json)
    else:
        replay_all(arguments.replays)


if __name__ == "__main__":
    main()
