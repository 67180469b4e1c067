"""Compares searches by one, two and four workers that share a storage, on replayed landscapes.

    python -m benchmarks.shared_search [--storage journal,postgresql,grpc] [--landscapes NAME,...] [--budget 600]
                                       [--first 0] [--count 20] [--json FILE] [--report FILE]
    python -m benchmarks.shared_search --classes [--storage ...] [--first 0] [--count 20] [--json FILE]

Each worker is a process with an own node name. Their clock is simulated (`benchmarks.shared_clock`): it counts what is
replayed, the CPU time of each worker, and the time of its calls of the storage. Four workers need no four hosts. On a
busy machine, the server of the storage answers more slowly, and several workers seem slower than they are.

Two times are compared with those of one worker, in replays with the same number:

- to the result: until the worker that does racing and confirmation has its verdict. The target is that two workers need
  1/1.7 of the time, and four workers 1/3.
- to the same quality: until the candidate that this worker holds to be the best is one that has at least 99 % of the
  speedup of what one worker chose in the end, and stays one. This includes no proof. It is not known where one worker
  found nothing.

Whether answers are the same is compared with how often one worker gives the same answer in two replays.

Screening and racing are divided; the check of each host and the confirmation are not. The more of the time screening
takes, the more the others help. `EARLY` are recorded landscapes of usual models, where screening ends early, after a
minute. On `SLOW`, calls take a second: `--strategy adaptive` ends after some minutes there, and `--strategy exhaustive
--budget 1200` takes the whole budget.

With `--classes`, two workers of one class and two of another search at the same time. What is the best of one class is
not that of the other. Nothing of a class may be in the study of the other.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import statistics
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.databases import run, start_postgres
from benchmarks.landscape import Landscape
from benchmarks.parts import add_part_options, reopen_rows, run_part
from benchmarks.shared_clock import SharedClock
from benchmarks.shared_worker import load, make_parser, name_identity, run_worker
from ortune.storage import RESULT, SharedResult, SharedStudy, parse_location
from tests.servers import GrpcProxy

Row = dict[str, Any]

FORK = multiprocessing.get_context("fork")
"""Workers share what this process has imported, and the landscape."""

TARGETS = {2: 1.7, 4: 3.0}

SETS = {"SLOW": "slow_1s-0", "EARLY": "magika,minilm_l6_int8,squeezenet_quota,silero_vad"}
"""Sets of landscapes."""

ALIKE = 0.02
"""Largest relative difference of the true speedups of two answers that count as equally good."""

SAME_QUALITY = 0.99
LEAST_SPEEDUP = 1.02
"""Share of the speedup of one worker's choice that is the same quality, where it has at least the second speedup."""

CLASSES = {"class-a": "plateau_40-0", "class-b": "plateau_40-1"}
"""The landscape of each of two classes."""

PATIENCE_S = 90.0


def start_worker(connection: Connection, landscape: Landscape, arguments: Sequence[str]) -> None:
    """Run a worker in a child process, and send what it found."""
    connection.send(run_worker(landscape, make_parser().parse_args(arguments)))
    os._exit(0)  # a call of the storage may hang


def run_workers(
    given: argparse.Namespace, members: Sequence[tuple[str, str]], storage: str, seed: int, folder: str
) -> tuple[str, list[Row]]:
    """Run workers at the same time, and return the name of their studies and their results.

    Args:
        given: The command line.
        members: The landscape of each worker, and its class.
        storage: The storage.
        seed: Random seed.
        folder: Folder for the clock.
    """
    study = uuid.uuid4().hex
    clock = Path(folder, study)
    SharedClock.create(clock, len(members))
    landscapes = {name: load(name) for name, _ in members}
    children = []
    for number, (landscape, host_class) in enumerate(members):
        arguments = [landscape, storage, "--study", study, "--host-class", host_class]
        arguments += ["--node", f"node-{number}", "--seed", str(1000 * number + seed), "--strategy", given.strategy]
        arguments += ["--budget", str(given.budget), "--patience", str(PATIENCE_S)]
        arguments += ["--clock", str(clock), "--slot", str(number)]
        receiver, sender = FORK.Pipe(duplex=False)
        child = FORK.Process(target=start_worker, args=(sender, landscapes[landscape], arguments))
        child.start()
        sender.close()
        children.append((child, receiver))
    rows = []
    for child, receiver in children:
        try:
            rows.append(receiver.recv())
        except EOFError:
            raise SystemExit("a worker ended without a result") from None
        child.join()
    return study, rows


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


def measure(given: argparse.Namespace) -> Iterator[Row]:
    """Run the searches that the command line asks for, and yield what each gave."""
    for kind in given.storage.split(","):
        with tempfile.TemporaryDirectory() as folder, open_kind(kind, folder) as storage:
            for seed in range(given.first, given.first + given.count):
                if given.classes:
                    yield {"storage": kind, "seed": seed, **run_classes(given, storage, seed, folder)}
                    continue
                for landscape in SETS.get(given.landscapes, given.landscapes).split(","):
                    rows = [
                        run_search_of(given, landscape, n, storage, seed, folder)
                        for n in map(int, given.workers.split(","))
                    ]
                    for row in rows:
                        target = SAME_QUALITY * rows[0]["speedup"]
                        row["quality_s"] = find_time(row.pop("trace"), target)
                        yield {"storage": kind, "landscape": landscape, "seed": seed, **row}


def run_search_of(given: argparse.Namespace, landscape: str, n: int, storage: str, seed: int, folder: str) -> Row:
    """Run one search, and return the result of the worker that did racing and confirmation, with what others did."""
    _, found = run_workers(given, [(landscape, "class-a")] * n, storage, seed, folder)
    first = next((row for row in found if row["is_finalist"]), found[0])
    return {
        **first,
        "n": n,
        "budget_s": given.budget,
        "strategy": given.strategy,
        "last_s": max(row["s"] for row in found),
        "n_measured": sum(row["n_own"] for row in found),
        "n_lost": sum(row["n_unsent"] for row in found),
        "n_apart": sum(row["is_apart"] for row in found),
        "endings": sorted({row["ended_early"] for row in found} - {""}),
    }


def find_time(trace: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return from when on the best candidate had at least a speedup, or None if that of the end has less."""
    time_s = None
    for at_s, speedup in trace:
        if speedup < target:
            time_s = None
        elif time_s is None:
            time_s = at_s
    return time_s


def run_classes(given: argparse.Namespace, storage: str, seed: int, folder: str) -> Row:
    """Run two workers of each class at the same time, and return what the studies contain of the other class."""
    members = [(landscape, host_class) for host_class, landscape in CLASSES.items() for _ in range(2)]
    study, found = run_workers(given, members, storage, seed, folder)
    n_measurements = n_foreign = n_right = 0
    for host_class in CLASSES:
        own = [row for row, (_, of_worker) in zip(found, members, strict=True) if of_worker == host_class]
        nodes = {row["node"] for row in own}
        shared = SharedStudy(parse_location(storage, "storage"), name_identity(study, host_class))
        measurements, states = shared.receive(), shared.read_nodes()
        results = shared.read_all(RESULT, SharedResult).values()
        n_measurements += len(measurements)
        written_by = [*(measurement.node for measurement in measurements), *(state.node for state in states)]
        n_foreign += sum(node not in nodes for node in (*written_by, *(result.node for result in results)))
        n_foreign += nodes != {state.node for state in states}
        n_right += len(results) == 1 and all(row["best"] / row["speedup"] <= 1 + ALIKE for row in own)
    return {"classes": True, "n_measurements": n_measurements, "n_foreign": n_foreign, "n_right": n_right}


def describe(row: Row) -> str:
    """Return a line about one search, or about two of different classes."""
    if "classes" in row:
        return f"{row['storage']}, {row['seed']}: two classes, {row['n_foreign']} of the other"
    quality = "-" if row["quality_s"] is None else f"{row['quality_s']:.0f}"
    return (
        f"{row['storage']}, {row['landscape']}, {row['seed']}, {row['n']} workers: {row['s']:.0f} s, "
        f"{quality} s to the same quality, {row['speedup']:.3f} of {row['best']:.3f}, {row['stages']}, "
        f"waited {row['waited_s']:.1f}, storage {row['storage_s']:.1f}, CPU {row['cpu_s']:.1f}, "
        f"{row['n_tried']} tried, {row['n_measured']} measured, {row['ended_early']}"
    )


def show(rows: Sequence[Row]) -> None:
    """Print times and answers of all searches, relative to those of one worker."""
    searches = [row for row in rows if "classes" not in row]
    storages = list(dict.fromkeys(row["storage"] for row in rows))
    for kind in storages:
        of_kind = [row for row in searches if row["storage"] == kind]
        if not of_kind:
            continue
        names = list(dict.fromkeys(row["landscape"] for row in of_kind))
        budgets = {(row["strategy"], row["budget_s"]) for row in of_kind}
        print(f"\n{kind}: " + "; ".join(f"{strategy}, budget {budget:g} s" for strategy, budget in sorted(budgets)))
        for name in names:
            show_speedups(name, [row for row in of_kind if row["landscape"] == name])
        if len(names) > 1:
            show_speedups("all", of_kind)
    show_classes([row for row in rows if "classes" in row])


def show_speedups(name: str, rows: Sequence[Row]) -> None:
    """Print how much faster several workers were on a landscape, and what they answered."""
    alone = {(row["landscape"], row["seed"]): row for row in rows if row["n"] == 1}
    for n in dict.fromkeys(row["n"] for row in rows):
        pairs = [(alone[row["landscape"], row["seed"]], row) for row in rows if row["n"] == n]
        found = [row for _, row in pairs]
        shares = [row["stages"].get("screening", 0.0) / row["s"] for row in found]
        print(
            f"  {name}, {n} worker{'s' if n > 1 else ''}, {len(found)} replays: "
            f"{describe_spread((row['s'] for row in found), '.0f')} s to the result, {statistics.mean(shares):.0%} of "
            f"it screening, {sum(bool(row['endings']) for row in found)} ended early, "
            f"tried {statistics.median(row['n_tried'] for row in found):.0f}"
        )
        if n in TARGETS:
            show_ratios(pairs, TARGETS[n])
            print(f"    like one worker: {compare_answers(pairs)}")
        else:
            in_order = sorted(found, key=lambda row: (row["landscape"], row["seed"]))
            again = [
                (one, other) for one, other in itertools.pairwise(in_order) if one["landscape"] == other["landscape"]
            ]
            print(f"    like one worker in the next replay: {compare_answers(again)}")
        regrets = [100 * (row["best"] / row["speedup"] - 1) for row in found]
        print(
            f"    regret {describe_spread(regrets, '.1f')} %; storage "
            f"{statistics.median(row['storage_s'] for row in found):.1f} s, CPU "
            f"{statistics.median(row['cpu_s'] for row in found):.1f} s, waited "
            f"{statistics.median(row['waited_s'] for row in found):.1f} s; not sent "
            f"{sum(row['n_lost'] for row in found)}, set apart {sum(row['n_apart'] for row in found)}"
        )


def show_ratios(pairs: Sequence[tuple[Row, Row]], target: float) -> None:
    """Print how many times faster several workers were than one."""
    ratios = [one["s"] / row["s"] for one, row in pairs]
    last = [one["last_s"] / row["last_s"] for one, row in pairs]
    screening = [
        one["stages"]["screening"] / row["stages"]["screening"]
        for one, row in pairs
        if "screening" in row["stages"] and "screening" in one["stages"]
    ]
    rates = [measure_rate(row) / measure_rate(one) for one, row in pairs if "screening" in row["stages"]]
    total = sum(one["s"] for one, _ in pairs) / sum(row["s"] for _, row in pairs)
    verdict = "reached" if statistics.median(ratios) >= target else "missed"
    print(
        f"    times faster: {describe_spread(ratios)} to the result, {total:.2f} in sum (target {target:g}: "
        f"{verdict}); {describe_spread(last)} to the last proof; {describe_spread(screening)} in screening, with "
        f"{describe_spread(rates)} times as many measurements per second"
    )
    gaining = [(one["quality_s"], row["quality_s"]) for one, row in pairs if one["speedup"] >= LEAST_SPEEDUP]
    reached = [one_s / s for one_s, s in gaining if one_s and s]
    if reached:
        spread = describe_spread(reached)
        print(f"    times faster to the same quality: {spread}; reached in {len(reached)} of {len(gaining)}")


def measure_rate(row: Row) -> float:
    """Return how many measurements all workers completed per second of screening."""
    return float(row["n_measured"] / row["stages"]["screening"])


def compare_answers(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Return how many pairs of answers are the same, as text."""
    same_config = sum(one["config"] == row["config"] for one, row in pairs)
    same_verdict = [one["verdict"] == row["verdict"] for one, row in pairs]
    near = [abs(row["speedup"] / one["speedup"] - 1) <= ALIKE for one, row in pairs]
    both = sum(same and is_near for same, is_near in zip(same_verdict, near, strict=True))
    return (
        f"same config {same_config} of {len(pairs)}, same verdict {sum(same_verdict)}, gain within {ALIKE:.0%} "
        f"{sum(near)}, both of these {both}"
    )


def describe_spread(values: Iterable[float], form: str = ".2f") -> str:
    """Return the median, the smallest and the largest of some values."""
    found = list(values)
    return f"{statistics.median(found):{form}} [{min(found):{form}}, {max(found):{form}}]"


def show_classes(rows: Sequence[Row]) -> None:
    """Print whether classes mixed."""
    for kind in dict.fromkeys(row["storage"] for row in rows):
        found = [row for row in rows if row["storage"] == kind]
        print(
            f"\n{kind}: two classes at the same time, {len(found)} replays: {sum(row['n_foreign'] for row in found)} "
            f"of {sum(row['n_measurements'] for row in found)} measurements are in the study of the other class, "
            f"{sum(row['n_right'] for row in found)} of {2 * len(found)} searches within {ALIKE:.0%} of the best of "
            "their class"
        )


def main() -> None:
    """Run the searches that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--landscapes", default="EARLY", help="names of landscapes, SLOW, or EARLY")
    parser.add_argument("--storage", default="journal", help="journal, postgresql and grpc, separated by commas")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--count", type=int, default=20, help="replays of each landscape")
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--strategy", default="adaptive")
    parser.add_argument("--classes", action="store_true", help="search for two classes at the same time")
    add_part_options(parser)
    given = parser.parse_args()
    with threadpool_limits(1):  # of workers, too
        rows = reopen_rows(given.report) if given.report else run_part(measure(given), given.json, describe)
    show(rows)


if __name__ == "__main__":
    main()
