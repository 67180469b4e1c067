"""Search under real CPU quotas, and compare each answer with an exhaustive bench, or with a run of ten minutes.

    python -m benchmarks.quota --json FILE [--objective p99] [--quotas 0.5 1 1.5] [--clients 1 4] [MODEL ...]

Each search has no option but --clients. It runs in a cgroup with the quota, which needs a Linux host on which the user
may create cgroups. After it, `ortune bench` compares the default with usual candidates and with the answer, for as long
as --truth says, also under the quota. What can be gained is the gain of the best of them by mean latency (one client)
or throughput (several).

With --objective p99, searches have --objective p99 and a budget of 60 s. Each is followed by a bench of the default and
the candidate that was confirmed, for ten minutes. It shows whether the interval of the search contains the ratio.

Cases that FILE has are not measured again. With --again, they are searched again, and keep their benches. With --json
alone, the table is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.host import describe_run, write_header
from benchmarks.loads import cpu_quota
from models.build import build, find_search_options

MODELS = ("squeezenet", "minilm_l6_int8", "ppocrv4_det", "magika")
QUOTAS = (0.5, 1.0, 1.5)
USUAL = (
    "intra_op_num_threads=1",
    "session.intra_op.allow_spinning=0",
    "intra_op_num_threads=1,graph_optimization_level=ORT_ENABLE_EXTENDED",
)
"""Candidates of the exhaustive bench."""

RELEVANT_GAIN = 1.05
LONGEST_SEARCH_S = 60.0
TEN_MINUTES_S = 600.0

Row = dict[str, Any]


def run_ortune(prefix: list[str], *words: str) -> tuple[Row, float]:
    """Run a command of ortune, and return what it prints as JSON, and its wall time in seconds."""
    begin_s = time.monotonic()
    command = [*prefix, sys.executable, "-P", "-m", "ortune", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "too short to compare" in done.stderr:
        # It then takes as long as it needs.
        place = words.index("--budget")
        return run_ortune(prefix, *words[:place], *words[place + 2 :])
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout), time.monotonic() - begin_s


def list_settings(config: Row) -> str:
    """Return the settings of a config in a record, as `ortune bench --set` takes them; empty for the default."""
    fields = ("session_options", "session_config", "environment")
    settings = {name: value for field in fields for name, value in config.get(field, {}).items()}
    return ",".join(f"{name}={value}" for name, value in settings.items())


def measure(
    model: str, quota: float, clients: int, objective: str | None, truth_s: float, known: Row | None = None
) -> Row:
    """Search a model under a quota, and measure what is true. Return one row of the table.

    Args:
        model: Its name in the manifest.
        quota: CPUs.
        clients: Concurrent callers.
        objective: Objective of the search; None for the one that it chooses.
        truth_s: Seconds of the bench.
        known: An earlier row of the same case, whose bench is kept if it has the answer; or None.
    """
    load = ["--clients", str(clients)] if clients > 1 else []
    common = [str(build(model)), *find_search_options(model)]
    chosen = ["--objective", objective, "--budget", "60s"] if objective else []
    with cpu_quota(quota) as prefix, tempfile.TemporaryDirectory() as folder:
        if prefix is None:
            raise SystemExit("a quota needs a cgroup, which cannot be created here")
        record, wall_s = run_ortune(prefix, "search", *common, *load, *chosen, "-o", f"{folder}/c.json")
        evidence = record["evidence"]
        answer = list_settings(record["config"])
        confirmed = list_settings(evidence["winner"]["config"]) if evidence.get("winner") else ""
        sides = [confirmed] if objective else list(dict.fromkeys([answer, *USUAL]))
        measured = objective or ("mean" if clients == 1 else "throughput")
        truth: Row = known or {}
        if any(sides) and not all(find_row(truth, side) for side in sides if side):
            sets = [word for side in sides if side for word in ("--set", side)]
            # A bench may take twice its budget on a busy host.
            words = [*common, *load, "--objective", measured, "--budget", f"{truth_s:g}s", *sets]
            truth, _ = run_ortune(prefix, "bench", *words)
    return {
        "model": model,
        "quota": quota,
        "clients": clients,
        "objective": objective or evidence["objective"],
        "verdict": evidence["verdict"],
        "reason": evidence["reason"],
        "answer": answer,
        "confirmed": confirmed,
        "speedup": evidence.get("speedup"),
        "wall_s": wall_s,
        "stages": record["search"]["stages"],
        "rows": [
            {"name": row["name"], "speedup": row.get("speedup"), "summary": row.get("summary")}
            for row in truth.get("rows", ())
        ],
        **describe_run(),
    }


def find_row(row: Row, settings: str) -> Row | None:
    """Return what the bench shows of a config; None for the default."""
    return next((bench_row for bench_row in row.get("rows", ()) if bench_row["name"] == settings), None)


def describe(row: Row) -> str:
    """Return a line of the table."""
    head = f"{row['model']:15}{row['quota']:5g}{row['clients']:8}"
    found = row["speedup"]
    claim = f"{found['estimate']:.2f} [{found['low']:.2f}, {found['high']:.2f}]" if found else "-"
    line = f"{head}  {row['verdict']:16}{claim:20}{row['wall_s']:5.0f} s  "
    if row["objective"] == "p99":
        true = find_row(row, row["confirmed"])
        ratio = true["speedup"] if true else None
        text = f"{ratio['estimate']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else "-"
        return f"{line}{text:20}{'contained' if is_contained(row) else 'NOT CONTAINED':15}{row['confirmed'] or '-'}"
    gain, name = find_gain(row)
    return f"{line}{gain:5.2f} {find_answer(row):6.2f}  {judge(row):8}{row['answer'] or 'default'}; best: {name}"


def is_contained(row: Row) -> bool:
    """Return whether the interval of the search contains the ratio of the longer run."""
    true = find_row(row, row["confirmed"])
    if not row["speedup"] or not true or not true["speedup"]:
        return False
    return bool(row["speedup"]["low"] <= true["speedup"]["estimate"] <= row["speedup"]["high"])


def find_gain(row: Row) -> tuple[float, str]:
    """Return the largest gain of the exhaustive bench, at least that of the default, and the config."""
    gains = [(bench_row["speedup"]["estimate"], bench_row["name"]) for bench_row in row["rows"] if bench_row["speedup"]]
    return max([(1.0, "default"), *gains])


def find_answer(row: Row) -> float:
    """Return the gain of the answer in the exhaustive bench."""
    found = find_row(row, row["answer"])
    return float(found["speedup"]["estimate"]) if found and found["speedup"] else 1.0


def judge(row: Row) -> str:
    """Return whether the answer is right, given what the exhaustive bench shows."""
    if find_answer(row) < 1:
        return "WORSE"
    if find_gain(row)[0] < RELEVANT_GAIN:
        return "no gain"
    return "right" if row["verdict"] == "faster" else "MISSED"


def summarize(rows: list[Row]) -> list[str]:
    """Return the totals of a table."""
    if rows and rows[0]["objective"] == "p99":
        decided = [row for row in rows if row["verdict"] not in {"inconclusive", "nothing_found"}]
        contained = sum(map(is_contained, rows))
        return [f"decided: {len(decided)} of {len(rows)}; interval contains the longer run: {contained} of {len(rows)}"]
    judged = [judge(row) for row in rows]
    relevant = [row for row in rows if find_gain(row)[0] >= RELEVANT_GAIN]
    right = sum(row["verdict"] == "faster" for row in relevant)
    longest_s = max((row["wall_s"] for row in rows), default=0.0)
    return [
        f"at least 5 % can be gained: {len(relevant)} of {len(rows)}; answered 'faster': {right} of {len(relevant)}",
        f"answers that are worse than the default: {judged.count('WORSE')}; longest search: {longest_s:.0f} s",
    ]


def main() -> None:
    """Measure the cases that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS, help="names in the manifest")
    parser.add_argument("--json", type=Path, required=True, help="file with the results, which are added to it")
    parser.add_argument("--objective", choices=["p99"], help="search for this objective, for 60 s")
    parser.add_argument("--quotas", type=float, nargs="*", default=QUOTAS, help="CPU quotas, in CPUs")
    parser.add_argument("--clients", type=int, nargs="*", help="concurrent callers; 1 and 4 by default, 1 for p99")
    parser.add_argument("--truth", type=float, help="seconds of each bench; 45 by default, 600 for p99")
    parser.add_argument("--again", action="store_true", help="search again in the cases of the file")
    parser.add_argument("--most", type=int, default=1000, help="number of cases that are measured at most")
    arguments = parser.parse_args()
    clients = arguments.clients or ([1] if arguments.objective else [1, 4])
    truth_s = arguments.truth or (TEN_MINUTES_S if arguments.objective else 45.0)
    known = json.loads(arguments.json.read_text())["cases"] if arguments.json.exists() else []
    rows = {(row["model"], row["quota"], row["clients"]): row for row in known}
    cases = [(model, quota, n) for n in clients for quota in arguments.quotas for model in arguments.models]
    wanted = [case for case in cases if (case in rows) == arguments.again]
    for case in wanted[: arguments.most]:
        rows[case] = measure(*case, arguments.objective, truth_s, rows.get(case))
        known = list(rows.values())
        arguments.json.write_text(json.dumps({**describe_run(*known), "cases": known}, indent=1) + "\n")
        print(describe(rows[case]), file=sys.stderr, flush=True)
    print(write_header(*known))
    print(f"\n{'model':15}quota clients  verdict         claim               wall     truth")
    for row in known:
        print(describe(row))
    print()
    for line in summarize(known):
        print(line)


if __name__ == "__main__":
    main()
