"""A/A tests of the default: how often a difference is claimed, and how wide the interval is.

    python -m benchmarks.aa [--bench] [--comparisons 10] [--budget 60] [--json FILE] [MODEL ...]

Each comparison is the confirmation of a search with that budget, with the default in place of the winner. A correct
tool claims that the winner is faster in at most 1 of 40 comparisons, and that the two differ in at most 2 of 40. With
`--bench`, each is one of `ortune bench`. Run this on an idle host, after `python -m models.build` for the models.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from benchmarks.null_rows import make_row, print_sums, show_row
from benchmarks.parts import Row
from models.build import build
from ortune.knobs import DEFAULT
from ortune.measure.bench import bench
from ortune.measure.evaluate import evaluate
from ortune.measure.open import open_comparison, prepare_comparison
from ortune.measure.paired_run import PairedRun, Side
from ortune.tuning.plan import split_budget
from ortune.workload import Goal, InputOptions

MODELS = ("tiny_regressor", "squeezenet", "ppocrv2_cls", "minilm_l6_int8")


def compare_once(name: str, budget_s: float, seed: int) -> Row:
    """Compare the default with itself once, and return what a search would claim."""
    setup = prepare_comparison(str(build(name)), Goal(), InputOptions(shapes=shapes_of(name)), seed=seed)
    with open_comparison(setup) as opened:
        runner = opened.runner
        plan = split_budget(opened.goal, opened.calibration, left_s=budget_s, free_bytes=opened.free_bytes)
        run = PairedRun(
            [Side(name=side_name, config=DEFAULT) for side_name in ("default", "copy")], opened.goal.load, seed=seed
        )
        run.measure(runner, plan.confirmation, end_s=runner.now_s() + 1.5 * plan.confirmation_s)
        comparison = evaluate(run.in_one_regime(), opened.goal, runner)
    return make_row(comparison, model=name)


def bench_once(name: str, budget_s: float, seed: int) -> Row:
    """Compare the default with itself once, as `ortune bench` does."""
    setup = prepare_comparison(str(build(name)), Goal(), InputOptions(shapes=shapes_of(name)), seed=seed)
    return make_row(bench(setup, [Side(name="copy", config=DEFAULT)], budget_s=budget_s), model=name)


def main() -> None:
    """Run the comparisons, models in turn, so that a busy period of the host does not affect only one model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--comparisons", type=int, default=10, help="comparisons of each model")
    parser.add_argument("--budget", type=float, default=60.0, help="budget of the search, in seconds")
    parser.add_argument("--bench", action="store_true", help="measure as `ortune bench` does")
    parser.add_argument("--json", type=Path, help="where to write all results")
    arguments = parser.parse_args()
    print(write_header())
    rows = []
    for number in range(arguments.comparisons):
        for name in arguments.models:
            row = (bench_once if arguments.bench else compare_once)(name, arguments.budget, seed=number)
            rows.append(row)
            print(show_row(row, number, f"{name:16}"), flush=True)
    print_sums(rows, "model", 16)
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_run(), "comparisons": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
