"""Measure what tuning gains under several callers, quotas, request rates and background loads.

    python -m benchmarks.loads [--runs 3] [--json FILE] [clients long-calls quota rate beside]

Each line is a search with `ortune search` on a model of `python -m models.build`. The quota needs a Linux host on
which the user may create cgroups; on other hosts, this part is skipped with a message. Run this on an idle host.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.host import describe_run, write_header
from models.build import build, find_search_options

HOG = "sh -c 'while :; do :; done'"

Row = dict[str, Any]


class Case:
    """A load, the models that are searched, and the target.

    Args:
        models: Names in the manifest.
        arguments: Options of `ortune search`.
        quota: CPU quota of the search in CPUs, or None.
        aim: Text of the target.
        reached: Returns whether the figures of a record reach the target.
    """

    def __init__(
        self,
        models: tuple[str, ...],
        arguments: tuple[str, ...],
        aim: str,
        reached: Callable[[Row], bool],
        quota: float | None = None,
    ) -> None:
        self.models = models
        self.arguments = arguments
        self.aim = aim
        self.reached = reached
        self.quota = quota


CASES = {
    "clients": [
        Case(
            ("squeezenet", "minilm_l6_int8", "silero_vad"),
            ("--clients", "2", "--budget", "60s"),
            "throughput at least 1.2x, its lower bound above 1.1x",
            lambda row: row["estimate"] >= 1.2 and row["low"] > 1.1,
        )
    ],
    "long-calls": [
        Case(
            ("ppocrv4_det",),
            ("--clients", "2", "--budget", "60s"),
            "one thread, proven by at least five launches",
            lambda row: row["config"].get("intra_op_num_threads") == 1 and row["n_launches"] >= 5,
        )
    ],
    "quota": [
        Case(
            ("squeezenet",),
            ("--objective", "p99"),
            "p99 at most a third, throughput no lower",
            lambda row: row["p99"] >= 3 and row["throughput"] >= 1,
            quota=1.0,
        ),
        Case(
            ("minilm_l6_int8",),
            ("--objective", "p99"),
            "p99 at most a half, throughput no lower",
            lambda row: row["p99"] >= 2 and row["throughput"] >= 1,
            quota=1.0,
        ),
    ],
    "rate": [
        # No budget: the search then takes the minutes that a verdict on p99 needs at such rates.
        Case(
            ("silero_vad",),
            ("--rate", rate, "--objective", "cpu", "--limit", "p99<1.3x"),
            "CPU a request at most a quarter, p99 at most 1.3x",
            lambda row: row["cpu"] >= 4 and row["p99"] >= 1 / 1.3,
        )
        for rate in ("20/s", "50/s")
    ],
    "beside": [
        Case(
            ("squeezenet", "minilm_l6_int8"),
            ("--beside", HOG, "--objective", "mean", "--budget", "60s"),
            "mean or p99 at least 1.2x better, or an honest default_is_best",
            lambda row: max(row["mean"], row["p99"]) >= 1.2 or row["verdict"] == "default_is_best",
        )
    ],
}


@contextlib.contextmanager
def cpu_quota(cpus: float | None) -> Iterator[list[str] | None]:
    """Yield the prefix of a command that runs in a cgroup with this quota; None if no cgroup can be created."""
    if cpus is None:
        yield []
        return
    name = f"ortune-bench-{os.getpid()}"
    period_us = 100_000
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    folder, files = (
        (v1 / name, {"cpu.cfs_period_us": f"{period_us}", "cpu.cfs_quota_us": f"{int(cpus * period_us)}"})
        if v1.is_dir()
        else (v2 / name, {"cpu.max": f"{int(cpus * period_us)} {period_us}"})
    )
    try:
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text)
    except OSError as error:
        print(f"skipped: cannot create a cgroup ({error})")
        yield None
        return
    try:
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        folder.rmdir()


def search(case: Case, name: str, seed: int) -> Row | None:
    """Run one search and return its figures. All ratios are above 1 if the tuned config is better."""
    with cpu_quota(case.quota) as prefix, tempfile.TemporaryDirectory() as folder:
        if prefix is None:
            return None
        command = [
            sys.executable,
            "-P",
            "-m",
            "ortune",
            "search",
            build(name),
            *find_search_options(name),
            *case.arguments,
        ]
        done = subprocess.run(
            [*prefix, *map(str, command), "-o", f"{folder}/c.json", "--seed", str(seed), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout:
        raise SystemExit(done.stderr)
    record = json.loads(done.stdout)
    evidence = record["evidence"]
    row: Row = {
        "model": name,
        "arguments": " ".join(case.arguments),
        "quota": case.quota,
        "seed": seed,
        "verdict": evidence["verdict"],
        "reason": evidence["reason"],
        "config": {
            **record["config"].get("session_options", {}),
            **record["config"].get("session_config", {}),
        },
        "budget_s": record["search"]["budget_s"],
        "noise": evidence["noise"],
        **(evidence.get("speedup") or {}),
    }
    baseline, winner = evidence.get("baseline"), evidence.get("winner")
    if not baseline or not winner:
        print(f"  {name:15} {evidence['verdict']}: {evidence['reason']}")
        return None
    row["default"], row["tuned"] = baseline, winner
    for figure, field in (("p50", "p50_ns"), ("p99", "p99_ns"), ("mean", "mean_ns"), ("cpu", "cpu_ns_per_call")):
        row[figure] = baseline[field] / winner[field]
    row["throughput"] = winner["calls_per_s"] / baseline["calls_per_s"]
    row["reached"] = case.reached(row)
    return row


def show(row: Row) -> str:
    """Return a line that describes a search."""
    default, tuned = row["default"], row["tuned"]
    settings = ", ".join(f"{name.split('.', 1)[-1]}={value}" for name, value in row["config"].items()) or "default"
    return (
        f"  {row['model']:15} {row['verdict']:15} {row['estimate']:6.3f} [{row['low']:.3f}, {row['high']:.3f}]  "
        f"p50 {default['p50_ns'] / 1e6:.3f} to {tuned['p50_ns'] / 1e6:.3f} ms, "
        f"p99 {default['p99_ns'] / 1e6:.3f} to {tuned['p99_ns'] / 1e6:.3f} ms, "
        f"throughput {row['throughput']:.2f}x, CPU a call 1/{row['cpu']:.2f}, {row['n_launches']} launches  "
        f"{'reached' if row['reached'] else 'MISSED'}  {settings}"
    )


def main() -> None:
    """Run each case several times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all by default")
    parser.add_argument("--runs", type=int, default=3, help="searches per model and load")
    parser.add_argument("--json", type=Path, help="where to write all results")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; choose from {', '.join(CASES)}")
    print(write_header())
    rows = []
    for name in arguments.cases or CASES:
        for case in CASES[name]:
            quota = f" under a quota of {case.quota:g} CPU" if case.quota else ""
            print(f"{' '.join(case.arguments)}{quota}: {case.aim}", flush=True)
            for model in case.models:
                found = [row for seed in range(arguments.runs) if (row := search(case, model, seed))]
                for row in found:
                    print(show(row), flush=True)
                rows += found
                if found:
                    estimates = [row["estimate"] for row in found]
                    print(
                        f"  {model:15} {sum(row['reached'] for row in found)} of {len(found)} reached; ratio "
                        f"{min(estimates):.3f} to {max(estimates):.3f}, median {statistics.median(estimates):.3f}",
                        flush=True,
                    )
                if arguments.json:
                    arguments.json.write_text(json.dumps({**describe_run(), "searches": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
