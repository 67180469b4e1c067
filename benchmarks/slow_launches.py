"""Replay searches on recordings whose launches are as slow as they were, without a limit.

    python -m benchmarks.slow_launches [--replays 16] [--budget 60] [--phases [SECONDS] | --two-speeds]

Other replays limit launches to four standard deviations, as a single one that hung says little about others. Here, any
launch may be as slow as a recorded one: up to 17 times. The columns are the searches whose answer is within 2 % of the
best config, the answers that are slower than the default, the searches that prove a gain, those of them whose interval
does not contain the true gain, the fewest launches that count in such a proof, and the answers with a setting that does
nothing.

With `--phases`, all configs with several threads take 2.7 times as long in phases of six seconds on average, or of the
given number of seconds, 35 % of the time: as on a host where another guest uses one of two physical CPUs. These are the
recordings and held-out landscapes for testing, without those where this is a part of what is optimized. What is best is
best outside of phases.

With `--two-speeds`, they take 2.4 times as long in a quarter of the launches instead, independently of each other.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import msgspec
from threadpoolctl import threadpool_limits

from benchmarks.held_out import all_held_out, kind_of
from benchmarks.host import write_header
from benchmarks.landscape import Landscape, Phases
from benchmarks.regret import Row, load_recorded, replay

PHASES = Phases(share=0.35, mean_s=6.0, factor=2.7)
"""Calls with two threads took 95 instead of 35 µs in seven launches in a row on a virtual machine with two CPUs. The
share of the time and the duration are assumed."""

TWO_SPEEDS = Phases(share=0.25, mean_s=None, factor=2.4)
"""On the same machine, 17 to 30 % of the launches with two threads are slow, by this factor."""


@cache
def list_landscapes(phases: Phases | None) -> list[Landscape]:
    """Return all recordings that can be replayed, those for testing first, or landscapes for testing with phases."""
    if phases:
        for_testing = [*load_recorded(for_testing=True), *all_held_out()]
        return [msgspec.structs.replace(found, phases=phases) for found in for_testing if found.goal.objective == "p50"]
    return [
        landscape
        for for_testing in (True, False)
        for landscape in load_recorded(for_testing=for_testing, outlying=math.inf)
    ]


def replay_many(job: tuple[int, int, float, Phases | None]) -> list[Row]:
    """Return the results of all seeds on one landscape."""
    number, n_replays, budget_s, phases = job
    with threadpool_limits(limits=1):  # each CPU already has a process
        return [replay(list_landscapes(phases)[number], "ours", budget_s, seed) for seed in range(n_replays)]


def is_wrong(row: Row) -> bool:
    """Return whether a gain is claimed whose interval does not contain the true one."""
    return row["verdict"] == "faster" and not row["covered"]


def main() -> None:
    """Print a line for each recording, and for each kind of held-out landscape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=16)
    parser.add_argument("--budget", type=float, default=60.0)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--phases", type=float, nargs="?", const=PHASES.mean_s, metavar="SECONDS")
    kind.add_argument("--two-speeds", action="store_const", const=TWO_SPEEDS)
    options = parser.parse_args()
    phases = msgspec.structs.replace(PHASES, mean_s=options.phases) if options.phases else options.two_speeds
    print(write_header())
    print(f"{options.replays} searches of {options.budget:g} s each")
    titles = f"{'within 2 %':>12}{'slower':>8}{'proven':>8}{'wrong':>7}{'fewest launches':>17}{'useless':>9}"
    print(f"{'landscape':28}{titles}")
    landscapes = list_landscapes(phases)
    jobs = [(number, options.replays, options.budget, phases) for number in range(len(landscapes))]
    kinds: dict[str, list[Row]] = {}
    with ProcessPoolExecutor() as pool:
        for landscape, rows in zip(landscapes, pool.map(replay_many, jobs), strict=True):
            kinds.setdefault(kind_of(landscape.name) or landscape.name, []).extend(rows)
    for name, rows in kinds.items():
        proven = [row["n_launches"] for row in rows if row["verdict"] == "faster"]
        n_wrong = sum(is_wrong(row) for row in rows)
        found = f"{sum(row['regret'] <= 2 for row in rows)} of {len(rows)}"
        n_slower = sum(row["worse"] for row in rows)
        n_useless = sum(row["n_useless"] > 0 for row in rows)
        fewest = min(proven, default="-")
        print(f"{name:28}{found:>12}{n_slower:>8}{len(proven):>8}{n_wrong:>7}{fewest:>17}{n_useless:>9}")
    searches = [row for rows in kinds.values() for row in rows]
    n_all, n_slower = len(searches), sum(row["worse"] for row in searches)
    n_near = sum(row["regret"] <= 2 for row in searches)
    n_proven, n_wrong = sum(row["verdict"] == "faster" for row in searches), sum(map(is_wrong, searches))
    print(f"of {n_all} searches: {n_near} within 2 %, {n_slower} slower than the default")
    print(f"of {n_proven} proven gains: {n_wrong} intervals do not contain the true gain")


if __name__ == "__main__":
    main()
