"""Kills workers at random, restarts the storage, and sets clocks apart, while workers share a search.

Each study has several workers, as processes with own node names, whose times of day are hours apart. Workers are killed
at random times, and started again with the same outbox. PostgreSQL is restarted once in the middle of each study. A
study ends right if all workers end, and the config of each is within 2 % of the best. Measurements that a worker had
completed and that are not in the storage at the end are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import optuna

from benchmarks.databases import start_postgres
from ortune.storage import SharedStudy, parse_location
from tests.servers import DatabaseServer

Row = dict[str, Any]

NEAR = 1.02
"""Ratio to the best within which an answer is right."""

LONGEST_S = 300.0
MOST_STARTS = 8


def start(given: argparse.Namespace, study: str, storage: str, folder: Path, number: int, seed: int) -> Any:
    """Start a worker."""
    offset_s = (-3600, 0, 3600, 1800)[number % 4]
    command = [sys.executable, "-m", "benchmarks.shared_worker", given.landscape, storage, "--study", study]
    command += ["--node", f"node-{number}", "--seed", str(seed), "--budget", str(given.budget)]
    command += ["--factor", str(given.factor), "--patience", "4", f"--clock-offset={offset_s}"]
    command += ["--outbox", str(folder / f"{number}.outbox.jsonl"), "--log", str(folder / f"{number}.log")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def restart(server: DatabaseServer) -> None:
    """Restart a database, which is away for a second."""
    server.stop()
    time.sleep(1)
    server.start()


def run_study(given: argparse.Namespace, storage: str, server: DatabaseServer | None, folder: Path, seed: int) -> Row:
    """Run the workers of one study, and return what it gave."""
    rng = random.Random(seed)
    study = uuid.uuid4().hex
    alive = {
        number: start(given, study, storage, folder, number, 100 * seed + number) for number in range(given.workers)
    }
    starts = Counter(range(given.workers))
    rows: list[Row] = []
    faults: list[str] = []
    n_kills = 0
    begin_s = time.monotonic()
    restart_s = begin_s + given.kill_every * rng.uniform(0.5, 1.5)
    kill_s = begin_s + rng.expovariate(1 / given.kill_every)
    while alive and time.monotonic() - begin_s < LONGEST_S:
        time.sleep(0.1)
        for number, child in list(alive.items()):
            if child.poll() is None:
                continue
            del alive[number]
            text, error = child.communicate()
            if child.returncode == 0:
                rows.append(json.loads(text))
            elif starts[number] < MOST_STARTS:
                if child.returncode > 0:
                    faults.append(" | ".join(each.strip() for each in error.decode().strip().splitlines()[-9:])[:600])
                starts[number] += 1
                alive[number] = start(given, study, storage, folder, number, 100 * seed + number)
        if server and time.monotonic() > restart_s:
            restart(server)
            server = None
        if time.monotonic() > kill_s and n_kills < given.kills and alive:
            alive[rng.choice(list(alive))].kill()
            n_kills += 1
            kill_s = time.monotonic() + rng.expovariate(1 / given.kill_every)
    for child in alive.values():
        child.kill()
        child.communicate()
    shared = SharedStudy(parse_location(storage, "storage"), {"model_name": given.landscape, "study": study})
    received = [each.id for each in shared.receive()]
    logs = [path.read_text().split() for path in folder.glob("*.log")]
    completed = {name for log in logs for name in log}
    # What a worker completed last may not have been logged, so there may be more in the storage than in the logs.
    answers = {(row["verdict"], row["chosen"]) for row in rows}
    return {
        "seed": seed,
        "n_ended": len(rows),
        "n_kills": n_kills,
        "n_completed": len(completed),
        "n_lost": len(completed - set(received)),
        "n_twice": len(received) - len(set(received)),
        "is_right": bool(rows) and not alive and all(row["best"] / row["speedup"] <= NEAR for row in rows),
        "answers": sorted(map(str, answers)),
        "faults": faults,
        "s": round(time.monotonic() - begin_s, 1),
    }


def main() -> None:
    """Run the studies that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--landscape", default="squeezenet_2_callers")
    parser.add_argument("--storage", default="postgresql", choices=("journal", "postgresql"))
    parser.add_argument("--studies", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=4.0, help="mean time between two kills in seconds")
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--factor", type=float, default=20.0)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(start_postgres()) if given.storage == "postgresql" else None
        for seed in range(given.seed, given.seed + given.studies):
            with tempfile.TemporaryDirectory() as name:
                storage = started.url if started else str(Path(name, "fleet.journal"))
                rows.append(run_study(given, storage, started.server if started else None, Path(name), seed))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(
        f"{given.landscape}, {given.storage}, {given.workers} workers: "
        f"{sum(row['is_right'] for row in rows)} of {len(rows)} studies ended right, "
        f"{sum(row['n_kills'] for row in rows)} kills, "
        f"{sum(row['n_completed'] for row in rows)} measurements completed, "
        f"{sum(row['n_lost'] for row in rows)} lost, {sum(row['n_twice'] for row in rows)} twice"
    )


if __name__ == "__main__":
    main()
