"""Replay searches on recordings whose launches are as slow as they were, without a limit.

    python -m benchmarks.slow_launches [--replays 16] [--budget 60] [--phases]

Other replays limit launches to four standard deviations, as a single one that hung says little about others. Here, any
launch may be as slow as a recorded one: up to 17 times. The columns are the searches whose answer is within 2 % of the
best config, the answers that are slower than the default, the searches that prove a gain, and the fewest launches that
count in such a proof.

With `--phases`, all configs with several threads take 2.7 times as long in phases of six seconds on average, 35 % of
the time: as on a host where another guest uses one of two physical CPUs. These are the recordings and held-out
landscapes for testing, without those where this is a part of what is optimized. What is best is best outside of phases.
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


@cache
def list_landscapes(with_phases: bool) -> list[Landscape]:
    """Return all recordings that can be replayed, those for testing first, or landscapes for testing with phases."""
    if with_phases:
        for_testing = [*load_recorded(for_testing=True), *all_held_out()]
        return [msgspec.structs.replace(found, phases=PHASES) for found in for_testing if found.goal.objective == "p50"]
    return [
        landscape
        for for_testing in (True, False)
        for landscape in load_recorded(for_testing=for_testing, outlying=math.inf)
    ]


def replay_many(job: tuple[int, int, float, bool]) -> list[Row]:
    """Return the results of all seeds on one landscape."""
    number, n_replays, budget_s, with_phases = job
    with threadpool_limits(limits=1):  # each CPU already has a process
        return [replay(list_landscapes(with_phases)[number], "ours", budget_s, seed) for seed in range(n_replays)]


def main() -> None:
    """Print a line for each recording, and for each kind of held-out landscape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=16)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--phases", action="store_true")
    options = parser.parse_args()
    print(write_header())
    print(f"{options.replays} searches of {options.budget:g} s each")
    print(f"{'landscape':28}{'within 2 %':>12}{'slower':>8}{'proven':>8}{'fewest launches':>17}")
    landscapes = list_landscapes(options.phases)
    jobs = [(number, options.replays, options.budget, options.phases) for number in range(len(landscapes))]
    kinds: dict[str, list[Row]] = {}
    with ProcessPoolExecutor() as pool:
        for landscape, rows in zip(landscapes, pool.map(replay_many, jobs), strict=True):
            kinds.setdefault(kind_of(landscape.name) or landscape.name, []).extend(rows)
    for kind, rows in kinds.items():
        proven = [row["n_launches"] for row in rows if row["verdict"] == "faster"]
        found = f"{sum(row['regret'] <= 2 for row in rows)} of {len(rows)}"
        n_slower = sum(row["worse"] for row in rows)
        print(f"{kind:28}{found:>12}{n_slower:>8}{len(proven):>8}{min(proven, default='-'):>17}")
    searches = [row for rows in kinds.values() for row in rows]
    n_all, n_slower = len(searches), sum(row["worse"] for row in searches)
    print(f"of {n_all} searches: {n_slower} slower than the default")


if __name__ == "__main__":
    main()
