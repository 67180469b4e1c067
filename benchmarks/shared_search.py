"""Compares searches by one, two and four workers that share a storage, on replayed landscapes.

Each worker is a process with an own node name. Their clock is simulated (`benchmarks.shared_clock`): it counts what is
replayed, the CPU time of each worker, and the time of its calls of the storage. Four workers need no four hosts. The
time of a search is that until the worker that does racing and confirmation has its result, and that until the last
worker has repeated the confirmation.

The storages of `--storage` get new studies. Without it, a journal file in a temporary folder is used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from benchmarks.shared_clock import SharedClock

Row = dict[str, Any]


def run_workers(given: argparse.Namespace, landscape: str, storage: str, n: int, seed: int, folder: str) -> list[Row]:
    """Run the workers of one search, and return their results."""
    study = uuid.uuid4().hex
    clock = Path(folder, study)
    SharedClock.create(clock, n)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.shared_worker", landscape, storage, "--study", study),
                *("--node", f"node-{number}", "--seed", str(1000 * number + seed), "--strategy", given.strategy),
                *("--budget", str(given.budget), "--patience", "90"),
                *("--clock", str(clock), "--slot", str(number)),
            ],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for number in range(n)
    ]
    rows = []
    for child in children:
        text, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"a worker ended with exit code {child.returncode}")
        rows.append(json.loads(text))
    return rows


def main() -> None:
    """Run the searches that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--landscapes", default="magika")
    parser.add_argument("--storage", default="", help="URLs or journal files, separated by commas")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--strategy", default="adaptive")
    given = parser.parse_args()
    counts = [int(text) for text in given.workers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for storage in given.storage.split(",") if given.storage else [str(Path(folder, "fleet.journal"))]:
            for landscape in given.landscapes.split(","):
                rows: dict[int, list[Row]] = {n: [] for n in counts}
                for seed in range(given.seed, given.seed + given.replays):
                    for n in counts:
                        found = run_workers(given, landscape, storage, n, seed, folder)
                        first = next(row for row in found if row["is_finalist"])
                        last_s = max(row["s"] for row in found)
                        rows[n].append({**first, "last_s": last_s, "n_lost": sum(row["n_unsent"] for row in found)})
                        print(json.dumps({"landscape": landscape, "seed": seed, "n": n, **rows[n][-1]}), flush=True)
                show(landscape, storage, rows)


def show(landscape: str, storage: str, rows: dict[int, list[Row]]) -> None:
    """Print times and answers, relative to those of one worker."""
    kind = storage.partition("://")[0] if "://" in storage else "journal"
    alone = rows[min(rows)]
    for n, found in rows.items():
        ratios = [one["s"] / row["s"] for one, row in zip(alone, found, strict=True)]
        last = [one["last_s"] / row["last_s"] for one, row in zip(alone, found, strict=True)]
        same = [row["verdict"] == one["verdict"] for one, row in zip(alone, found, strict=True)]
        alike = [abs(row["speedup"] / one["speedup"] - 1) <= 0.02 for one, row in zip(alone, found, strict=True)]
        median_s = statistics.median(row["s"] for row in found)
        n_tried = statistics.median(row["n_tried"] for row in found)
        chosen = [row["chosen"] == one["chosen"] for one, row in zip(alone, found, strict=True)]
        regrets = [100 * (row["best"] / row["speedup"] - 1) for row in found]
        print(
            f"{landscape:22} {kind:10} {n} workers, {len(found)} replays: "
            f"median {median_s:.0f} s, "
            f"x{statistics.median(ratios):.2f} to the result, x{statistics.median(last):.2f} to the last proof; "
            f"same verdict {sum(same)}, within 2 % {sum(alike)}, same config {sum(chosen)}; "
            f"mean regret {statistics.mean(regrets):.2f} %, tried {n_tried:.0f}, "
            f"not sent {sum(row['n_lost'] for row in found)}"
        )


if __name__ == "__main__":
    main()
