"""Replay searches on the development landscapes with other constants, to choose the constants of the search.

    python -m benchmarks.tune [NAME=VALUE ...] [--replays 4] [--budgets 15,60] [--sets recorded,synthetic,varied]

A name is that of a constant in a module of ortune, such as `tuning.additive.TAIL=3`. The same seeds give the same
simulated hosts, so that two runs of this script can be compared. The test landscapes cannot be read here: constants are
chosen on development landscapes, and `benchmarks.regret` judges the search on the others.

The figures are those of `benchmarks.regret`. "nulls" are the landscapes whose best candidate gains less than 2 %.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import importlib
import itertools
import math
import multiprocessing
import statistics
import sys

from threadpoolctl import threadpool_limits

from benchmarks.landscape import Landscape
from benchmarks.regret import DEVELOPMENT_SETS, Row, development_set, replay, summarize

SMALL_GAIN = math.log(1.02)
"""Gain of the best candidate, as a log-ratio, below which a landscape is a null."""


def set_constant(text: str) -> None:
    """Set a constant of ortune, given as MODULE.NAME=VALUE, in all modules that imported it.

    Raises:
        ValueError: There is no such constant, or the value has another type.
    """
    name, _, value = text.partition("=")
    module_name, _, constant = name.rpartition(".")
    module = importlib.import_module(f"ortune.{module_name}")
    before = getattr(module, constant, None)
    if before is None or not constant.isupper():
        raise ValueError(f"{name}: ortune has no such constant")
    after = ast.literal_eval(value)
    if isinstance(before, float) and isinstance(after, int):
        after = float(after)
    if type(after) is not type(before):
        raise ValueError(f"{text}: the value is {before!r}, which has another type")
    for loaded_module in list(sys.modules.values()):
        if (
            loaded_module.__name__.startswith(("ortune", "benchmarks"))
            and getattr(loaded_module, constant, None) is before
        ):
            setattr(loaded_module, constant, after)


def replay_one(job: tuple[Landscape, float, int]) -> Row:
    """Run one search."""
    landscape, budget_s, seed = job
    with threadpool_limits(limits=1):  # each CPU already has a process
        return replay(landscape, "ours", budget_s, seed)


def show(title: str, budget_s: float, rows: list[Row]) -> None:
    """Print the figures of some searches."""
    if not rows:
        return
    figures = summarize(rows)
    median_s = statistics.median(row["spent_s"] for row in rows)
    faster = sum(row["verdict"] == "faster" for row in rows) / len(rows)
    print(
        f"{title:24} {budget_s:6.0f} s {figures['n']:5} searches  regret {figures['mean']:6.2f} %  "
        f"within 2 % {figures['within_2']:.3f}  covered {figures['coverage'] or 0:.3f}  faster {faster:.3f}  "
        f"missed {figures['missed']:.3f}  spent {median_s:5.1f} s  tried {figures['tried']:4.0f}"
    )


def main() -> None:
    """Replay with the constants of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("constants", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--replays", type=int, default=4)
    parser.add_argument("--budgets", default="15,60", help="budgets in seconds")
    parser.add_argument("--sets", default="recorded,synthetic,varied")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        for text in arguments.constants:
            set_constant(text)
    except (ValueError, ImportError, SyntaxError) as error:
        parser.error(str(error))
    chosen = {
        title: development_set(title)
        for title in DEVELOPMENT_SETS
        if title.split(",")[0].lower() in arguments.sets.split(",")
    }
    budgets = [float(text) for text in arguments.budgets.split(",")]
    seeds = range(arguments.seed, arguments.seed + arguments.replays)
    landscapes = [landscape for found in chosen.values() for landscape in found]
    jobs = list(itertools.product(landscapes, budgets, seeds))
    # Forked processes have the constants.
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        rows = list(pool.map(replay_one, jobs, chunksize=4))
    nulls = {landscape.name for landscape in landscapes if landscape.log_speedup(landscape.best) < SMALL_GAIN}
    for budget_s in budgets:
        of_budget = [row for row in rows if row["budget_s"] == budget_s]
        for title, found in chosen.items():
            names = {landscape.name for landscape in found}
            show(title.lower(), budget_s, [row for row in of_budget if row["landscape"] in names])
        show("nulls", budget_s, [row for row in of_budget if row["landscape"] in nulls])
        show("all", budget_s, of_budget)


if __name__ == "__main__":
    main()
