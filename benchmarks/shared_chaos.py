"""Kills workers at random, restarts the database in mid-search, and sets clocks apart, while workers share a search.

    python -m benchmarks.shared_chaos [--studies 30] [--first 0] [--json FILE] [--report FILE]

Each study has several workers, as processes with own node names. Their clocks of the time of day are one hour behind,
right, one hour ahead, ...: the Debian package `datefudge` changes what the C library returns. Once the study has some
trials, workers are killed at random times, and started again with the same outbox. PostgreSQL is restarted once in each
study, when the study has a number of trials that is drawn at random, and a worker is in screening. It is away for
seconds. A worker that is started meanwhile ends with a message, and is started again.

A study ends right if all workers end, and the config of each is within 2 % of the best. Measurements that a worker had
completed and that are not in the storage at the end are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna

from benchmarks.databases import start_postgres
from benchmarks.parts import Row, add_part_options, reopen_rows, run_part
from benchmarks.shared_worker import REFUSED, name_identity
from ortune.storage import SharedStudy, parse_location
from tests.servers import DatabaseServer

NEAR = 1.02
"""Ratio to the best within which an answer is right."""

LONGEST_S = 300.0
MOST_STARTS = 8

FEWEST_TRIALS, MOST_TRIALS = 5, 45
"""Trials of a study before the database is restarted."""

AWAY_S = 3.0

OFFSETS_S = (-3600, 0, 3600, 1800)
"""How far the clock of each worker is ahead."""

HOST_CLASS = "Simulated"
STARTING = "starting"


def find_datefudge() -> Path:
    """Return the path of the library that changes the time of day."""
    found = sorted(Path("/usr/lib").glob("*/datefudge/datefudge.so"))
    if not found:
        raise SystemExit("datefudge is not installed (Debian package datefudge)")
    return found[0]


class Workers:
    """The workers of one study.

    Args:
        given: The command line.
        storage: URL or path of the storage.
        folder: Folder for their files.
        seed: Random seed.

    Attributes:
        study: Identifier of the study.
        alive: The processes that run, by number.
        rows: What those found that have ended.
        faults: What those printed that ended with a fault.
        n_refused: Starts while the storage did not answer.
    """

    def __init__(self, given: argparse.Namespace, storage: str, folder: Path, seed: int) -> None:
        self.study = uuid.uuid4().hex
        self.alive: dict[int, subprocess.Popen[bytes]] = {}
        self.rows: list[Row] = []
        self.faults: list[str] = []
        self.n_refused = 0
        self._starts: Counter[int] = Counter()
        self._given = given
        self._storage = storage
        self._folder = folder
        self._seed = seed
        for number in range(given.workers):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a worker, or start it again."""
        self._starts[number] += 1
        given = self._given
        command = [sys.executable, "-m", "benchmarks.shared_worker", given.landscape, self._storage]
        command += ["--study", self.study, "--host-class", HOST_CLASS, "--node", f"node-{number}"]
        command += ["--seed", str(100 * self._seed + number), "--budget", str(given.budget)]
        command += ["--factor", str(given.factor), "--patience", str(given.patience)]
        command += ["--outbox", str(self._folder / f"{number}.outbox.jsonl"), "--log", str(self._find_log(number))]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "LD_PRELOAD": str(find_datefudge()),
            "DATEFUDGE": str(-OFFSETS_S[number % len(OFFSETS_S)]),
        }
        self.alive[number] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def _find_log(self, number: int) -> Path:
        return self._folder / f"{number}.{self._starts[number]}.log"

    def check(self) -> None:
        """Note what workers that have ended found, and start those again that were killed."""
        for number, child in list(self.alive.items()):
            if child.poll() is None:
                continue
            del self.alive[number]
            text, error = child.communicate()
            if child.returncode == 0:
                row = json.loads(text)
                ahead = datetime.datetime.fromisoformat(row["time_of_day"]) - datetime.datetime.now().astimezone()
                self.rows.append({**row, "ahead_s": round(ahead.total_seconds())})
                continue
            if child.returncode == REFUSED:
                self.n_refused += 1
                time.sleep(0.2)
            elif child.returncode > 0:
                self.faults.append(
                    " | ".join(splitline.strip() for splitline in error.decode().strip().splitlines()[-9:])[:600]
                )
            if self._starts[number] < MOST_STARTS:
                self.start(number)

    def find_stages(self, shared: SharedStudy) -> dict[int, str]:
        """Return the stage of each worker that runs, as it announced it."""
        stages = {state.worker: str(state.stage) for state in shared.read_nodes()}
        found = {}
        for number in self.alive:
            log = self._find_log(number)
            lines = log.read_text().split() if log.exists() else []
            found[number] = stages.get(lines[0], STARTING) if lines else STARTING
        return found

    def kill(self, number: int) -> None:
        """Kill a worker."""
        self.alive[number].kill()
        self.alive[number].wait()

    def end(self) -> None:
        """Kill all that still run."""
        for child in self.alive.values():
            child.kill()
            child.communicate()

    def list_completed(self) -> set[str]:
        """Return the identifiers of all measurements that workers completed."""
        logs = [path.read_text().split() for path in self._folder.glob("*.log")]
        return {name for log in logs for name in log[1:]}


def run_study(given: argparse.Namespace, storage: str, server: DatabaseServer | None, folder: Path, seed: int) -> Row:
    """Run the workers of one study, and return what it gave."""
    rng = random.Random(seed)
    workers = Workers(given, storage, folder, seed)
    shared = SharedStudy(parse_location(storage, "storage"), name_identity(workers.study, HOST_CLASS))
    received: list[str] = []
    kills: list[str] = []
    restart: Row | None = None
    n_before_restart = rng.randint(FEWEST_TRIALS, MOST_TRIALS)
    begin_s = time.monotonic()
    kill_s: float | None = None
    while workers.alive and time.monotonic() - begin_s < LONGEST_S:
        time.sleep(0.05)
        workers.check()
        received += [measurement.id for measurement in shared.receive()]
        stages = workers.find_stages(shared)
        if server and restart is None and len(received) >= n_before_restart and "screening" in stages.values():
            restart = {"trials": len(received), "stages": sorted(stages.values())}
            server.stop()
            time.sleep(AWAY_S)
            server.start()
        if kill_s is None and received:
            kill_s = time.monotonic() + rng.expovariate(1 / given.kill_every)
        if kill_s is not None and time.monotonic() > kill_s and len(kills) < given.kills and workers.alive:
            number = rng.choice(sorted(workers.alive))
            kills.append(workers.find_stages(shared)[number])
            workers.kill(number)
            kill_s = time.monotonic() + rng.expovariate(1 / given.kill_every)
    workers.end()
    received += [measurement.id for measurement in shared.receive()]
    completed = workers.list_completed()
    # What a worker completed last may not have been logged, so there may be more in the storage than in the logs.
    rows = workers.rows
    return {
        "landscape": given.landscape,
        "storage": given.storage,
        "workers": given.workers,
        "seed": seed,
        "n_ended": len(rows),
        "kills": kills,
        "restart": restart,
        "n_completed": len(completed),
        "n_lost": len(completed - set(received)),
        "n_twice": len(received) - len(set(received)),
        "n_unsent": sum(row["n_unsent"] for row in rows),
        "n_lost_connections": sum(any("sent later" in note for note in row["notes"]) for row in rows),
        "is_right": len(rows) == given.workers and all(row["best"] / row["speedup"] <= NEAR for row in rows),
        "answers": sorted({f"{row['verdict']} {row['speedup']:.3f} of {row['best']:.3f}" for row in rows}),
        "unproven": [
            f"{row['node']}: {row['proof']}, {row['reason']}" for row in rows if row["best"] / row["speedup"] > NEAR
        ],
        "ahead_s": sorted(row["ahead_s"] for row in rows),
        "n_refused": workers.n_refused,
        "faults": workers.faults,
        "s": round(time.monotonic() - begin_s, 1),
    }


def measure(given: argparse.Namespace) -> Iterator[Row]:
    """Run the studies that the command line asks for, and yield what each gave."""
    find_datefudge()
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(start_postgres()) if given.storage == "postgresql" else None
        for seed in range(given.first, given.first + given.studies):
            with tempfile.TemporaryDirectory() as name:
                storage = started.url if started else str(Path(name, "fleet.journal"))
                yield run_study(given, storage, started.server if started else None, Path(name), seed)


def show(rows: Sequence[Row]) -> None:
    """Print what all studies gave together."""
    kinds = Counter(f"{row['landscape']}, {row['storage']}, {row['workers']} workers" for row in rows)
    print("; ".join(kinds))
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} studies ended right")
    print(
        f"{sum(row['n_completed'] for row in rows)} measurements completed, {sum(row['n_lost'] for row in rows)} lost, "
        f"{sum(row['n_twice'] for row in rows)} written twice, {sum(row['n_unsent'] for row in rows)} not sent"
    )
    kills = Counter(stage for row in rows for stage in row["kills"])
    print(f"{kills.total()} kills, by what the worker did: {describe(kills)}")
    restarts = [row["restart"] for row in rows if row["restart"]]
    stages = Counter(stage for restart in restarts for stage in restart["stages"])
    trials = [restart["trials"] for restart in restarts]
    print(
        f"{len(restarts)} restarts of the database, after {min(trials, default=0)} to {max(trials, default=0)} trials, "
        f"by what workers did: {describe(stages)}; "
        f"{sum(row['n_lost_connections'] for row in rows)} workers went on without it"
    )
    ahead = [offset_s for row in rows for offset_s in row["ahead_s"]]
    print(f"clocks of workers: {min(ahead, default=0)} to {max(ahead, default=0)} s ahead")
    print(
        f"{sum(row['n_refused'] for row in rows)} starts while the database was away, "
        f"{sum(len(row['faults']) for row in rows)} workers ended with a traceback"
    )
    print(f"{min(row['s'] for row in rows):.0f} to {max(row['s'] for row in rows):.0f} s per study")


def describe(counts: Counter[Any]) -> str:
    """Return counts as text."""
    return ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))


def main() -> None:
    """Run the studies that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--landscape", default="squeezenet_quota")
    parser.add_argument("--storage", default="postgresql", choices=("journal", "postgresql"))
    parser.add_argument("--studies", type=int, default=30)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=6.0, help="mean time between two kills in seconds")
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--factor", type=float, default=8.0, help="how many times faster than real time it is")
    parser.add_argument("--patience", type=float, default=4.0)
    add_part_options(parser)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    show(reopen_rows(given.report) if given.report else run_part(measure(given), given.json, json.dumps))


if __name__ == "__main__":
    main()
