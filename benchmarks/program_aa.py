"""A/A tests of programs: how often a gain is claimed where there is none.

    python -m benchmarks.program_aa [--comparisons 40] [--first 0] [--budget 60] [--sleep 5] [--json FILE]
    python -m benchmarks.program_aa --report FILE

Each comparison is the confirmation of a search with that budget. In place of the winner, there is a candidate that sets
what the program sets itself: its sessions get options, as those of every candidate, and end up with the same ones. A
correct tool claims a gain in at most 1 of 40 comparisons: intervals have a confidence of 95%, so that one in 40 lies
above 1 by chance, and one below.

The program is `benchmarks/timed_program.py`: a function that sleeps a set time and runs a tiny model. In turn, it is
measured by complete runs, by calls while it stays alive, and as a server. Run this on an idle host. `--first` is the
number of the first comparison. With `--json`, results are added to a file, so that a run can be made in parts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.null_rows import make_row, print_sums, show_row
from benchmarks.parts import Row, add_part_options, reopen_rows, run_part
from ortune.knobs import DEFAULT
from ortune.measure.evaluate import evaluate
from ortune.measure.paired_run import PairedRun, Side
from ortune.options import make_request
from ortune.program.prepare import PreparedProgram, prepare_program
from ortune.program.search import open_program
from ortune.requests import ProgramSearchRequest
from ortune.tuning.plan import split_budget

MODEL = Path(__file__).parent.parent / "models" / "tiny_cnn.onnx"
PROGRAM = Path(__file__).parent / "timed_program.py"

RUN_CALLS = 20
"""Calls of a complete run."""

WAYS: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "runs": ({}, ("run", str(RUN_CALLS))),
    "calls": ({"call": "__main__:Timed.work"}, ("forever", "0")),
    "server": ({"url": "http://127.0.0.1:{port}/"}, ("serve", "{port}")),
}
"""Options of the search, and arguments of the program."""

MOST_CLAIMED = 1 / 40


def prepare_way(way: str, sleep_ms: float, budget_s: float, seed: int) -> PreparedProgram:
    """Return the search of the program that is measured in one way."""
    options, arguments = WAYS[way]
    command = (sys.executable, str(PROGRAM), str(MODEL), f"{sleep_ms:g}", *arguments)
    values = {"command": command, "budget": budget_s, "seed": seed, **options}
    return prepare_program(make_request(ProgramSearchRequest, values))


def compare_once(way: str, sleep_ms: float, budget_s: float, seed: int) -> Row:
    """Compare the program with itself once, and return what a search would claim."""
    prepared = prepare_way(way, sleep_ms, budget_s, seed)
    copy = prepared.models[0].own
    assert not copy.is_default
    with open_program(prepared) as opened:
        runner = opened.runner
        plan = split_budget(
            opened.goal,
            opened.calibration,
            left_s=budget_s,
            free_bytes=opened.free_bytes,
            one_at_a_time=runner.one_at_a_time,
        )
        sides = [Side(name="program", config=DEFAULT), Side(name="copy", config=copy, is_required=True)]
        run = PairedRun(sides, opened.goal.load, seed=seed)
        run.measure(runner, plan.confirmation, end_s=runner.now_s() + 1.5 * plan.confirmation_s)
        comparison = evaluate(run.in_one_regime(), opened.goal, runner)
    return make_row(comparison, way=way, seed=seed)


def report(rows: Sequence[Row]) -> bool:
    """Print all results, and return whether few enough gains were claimed."""
    print_sums(rows, "way", 8)
    return bool(sum(row["verdict"] == "faster" for row in rows) <= max(1.0, MOST_CLAIMED * len(rows)))


def main() -> int:
    """Run the comparisons, the ways in turn, so that a busy period of the host does not affect only one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--budget", type=float, default=60.0, help="budget of the search, in seconds")
    parser.add_argument("--sleep", type=float, default=5.0, help="time that a call sleeps, in ms")
    add_part_options(parser)
    options = parser.parse_args()
    if options.report:
        return not report(reopen_rows(options.report))
    ways = tuple(WAYS)
    rows = (
        compare_once(ways[number % len(ways)], options.sleep, options.budget, seed=number)
        for number in range(options.first, options.first + options.comparisons)
    )
    return not report(run_part(rows, options.json, lambda row: show_row(row, row["seed"], f"{row['way']:8}")))


if __name__ == "__main__":
    sys.exit(main())
