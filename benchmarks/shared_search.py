"""Compares searches by one, two and four workers that share a storage, on replayed landscapes.

Each worker is a process with an own node name. Their clock is simulated (`benchmarks.shared_clock`): it counts what is
replayed, the CPU time of each worker, and the time of its calls of the storage. Four workers need no four hosts. The
time of a search is that until the worker that does racing and confirmation has its result, and that until the last
worker has repeated the confirmation.

Racing and confirmation are up to one worker. The more of the time screening takes, the more the others help.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.databases import run, start_postgres
from benchmarks.shared_clock import SharedClock
from tests.servers import GrpcProxy

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


@contextlib.contextmanager
def open_kind(kind: str, folder: str) -> Iterator[str]:
    """Start a storage, and yield its URL or path."""
    if kind == "journal":
        yield str(Path(folder, "fleet.journal"))
        return
    with start_postgres() as started:
        if kind == "postgresql":
            yield started.url
            return
        proxy = GrpcProxy(started.database)
        with run(proxy):
            yield proxy.url


def main() -> None:
    """Run the searches that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--landscapes", default="magika", help="recorded ones, or kinds for testing such as cores_24-0")
    parser.add_argument("--storage", default="journal", help="journal, postgresql and grpc, separated by commas")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--replays", type=int, default=20, help="replays of each landscape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--strategy", default="adaptive")
    parser.add_argument("--json", type=Path, help="where to write the result of each search")
    given = parser.parse_args()
    counts = [int(text) for text in given.workers.split(",")]
    every = []
    for kind in given.storage.split(","):
        rows: dict[int, list[Row]] = {n: [] for n in counts}
        with tempfile.TemporaryDirectory() as folder, open_kind(kind, folder) as storage:
            for landscape in given.landscapes.split(","):
                for seed in range(given.seed, given.seed + given.replays):
                    for n in counts:
                        found = run_workers(given, landscape, storage, n, seed, folder)
                        row = {"storage": kind, "landscape": landscape, "seed": seed, "n": n, **summarize(found)}
                        rows[n].append(row)
                        every.append(row)
                        if given.json:
                            given.json.write_text(json.dumps(every, indent=1) + "\n")
        show(kind, rows, given)


def summarize(found: list[Row]) -> Row:
    """Return the result of the worker that did racing and confirmation, with what the others did."""
    first = next((row for row in found if row["is_finalist"]), found[0])
    return {
        **first,
        "last_s": max(row["s"] for row in found),
        "n_lost": sum(row["n_unsent"] for row in found),
        "n_apart": sum(row["is_apart"] for row in found),
    }


def show(kind: str, rows: dict[int, list[Row]], given: argparse.Namespace) -> None:
    """Print times and answers, relative to those of one worker."""
    alone = rows[min(rows)]
    print(f"{kind}: {given.strategy}, budget {given.budget:g} s, {given.landscapes}")
    for n, found in rows.items():
        ratios = [one["s"] / row["s"] for one, row in zip(alone, found, strict=True)]
        last = [one["last_s"] / row["last_s"] for one, row in zip(alone, found, strict=True)]
        screening = [
            one["stages"]["screening"] / row["stages"]["screening"]
            for one, row in zip(alone, found, strict=True)
            if "screening" in row["stages"]
        ]
        same = [row["verdict"] == one["verdict"] for one, row in zip(alone, found, strict=True)]
        alike = [abs(row["speedup"] / one["speedup"] - 1) <= 0.02 for one, row in zip(alone, found, strict=True)]
        regrets = [100 * (row["best"] / row["speedup"] - 1) for row in found]
        parts = [
            f"  {n} workers, {len(found)} replays: median {statistics.median(row['s'] for row in found):4.0f} s",
            f"x{statistics.median(screening):.2f} in screening, x{statistics.median(ratios):.2f} to the result",
            f"x{statistics.median(last):.2f} to the last proof, same verdict {sum(same)}, gain within 2 % {sum(alike)}",
            f"mean regret {statistics.mean(regrets):.2f} %",
            f"tried {statistics.median(row['n_tried'] for row in found):.0f}",
            f"not sent {sum(row['n_lost'] for row in found)}, set apart {sum(row['n_apart'] for row in found)}",
        ]
        print(", ".join(parts), flush=True)


if __name__ == "__main__":
    main()
