"""Replay searches on recordings whose launches are as slow as they were, without a limit.

    python -m benchmarks.slow_launches [--replays 16] [--budget 60]

Other replays limit launches to four standard deviations, as a single one that hung says little about others. Here, any
launch may be as slow as a recorded one: up to 17 times. The columns are the searches whose answer is within 2 % of the
best config, the answers that are slower than the default, the searches that prove a gain, and the fewest launches that
such a proof rests on.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from functools import cache

from threadpoolctl import threadpool_limits

from benchmarks.host import write_header
from benchmarks.landscape import Landscape
from benchmarks.regret import Row, load_recorded, replay


@cache
def list_landscapes() -> list[Landscape]:
    """Return all recordings that can be replayed, those for testing first."""
    return [
        landscape
        for for_testing in (True, False)
        for landscape in load_recorded(for_testing=for_testing, outlying=math.inf)
    ]


def replay_many(job: tuple[int, int, float]) -> list[Row]:
    """Return the results of all seeds on one landscape."""
    number, n_replays, budget_s = job
    with threadpool_limits(limits=1):  # each CPU already has a process
        return [replay(list_landscapes()[number], "ours", budget_s, seed) for seed in range(n_replays)]


def main() -> None:
    """Print a line for each recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=16)
    parser.add_argument("--budget", type=float, default=60.0)
    options = parser.parse_args()
    print(write_header())
    print(f"{options.replays} searches of {options.budget:g} s each")
    print(f"{'landscape':28}{'within 2 %':>12}{'slower':>8}{'proven':>8}{'fewest launches':>17}")
    landscapes, n_slower, n_few = list_landscapes(), 0, 0
    with ProcessPoolExecutor() as pool:
        jobs = [(number, options.replays, options.budget) for number in range(len(landscapes))]
        for landscape, rows in zip(landscapes, pool.map(replay_many, jobs), strict=True):
            proven = [row["n_launches"] for row in rows if row["verdict"] == "faster"]
            n_slower += (slower := sum(row["worse"] for row in rows))
            n_few += sum(n < 5 for n in proven)
            found = f"{sum(row['regret'] <= 2 for row in rows)} of {len(rows)}"
            fewest = min(proven, default="-")
            print(f"{landscape.name:28}{found:>12}{slower:>8}{len(proven):>8}{fewest:>17}", flush=True)
    n_all = len(landscapes) * options.replays
    print(f"of {n_all} searches: {n_slower} slower than the default, {n_few} proven by fewer than five launches")


if __name__ == "__main__":
    main()
