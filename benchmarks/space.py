"""Measure the time to build search spaces for large hosts, and the time of a search outside of measurements.

    python -m benchmarks.space

Targets: less than 100 ms, and less than 5 % of the wall time. For the second, searches of 20,000 candidates are
replayed on a synthetic landscape: a replay takes only the time outside of measurements, and simulates the duration of
the search.
"""

from __future__ import annotations

import time

from threadpoolctl import threadpool_limits

from benchmarks.host import write_header
from benchmarks.replay import open_replay
from benchmarks.synthetic import make_landscape
from ortune.knobs import build_space
from ortune.tuning.job import SearchSettings, run_search
from tests.simulated import make_host, make_model

N_REPLAYS = 5


def main() -> None:
    """Print sizes and times of search spaces for 2 to 512 CPUs and several widths of graphs, and times of searches."""
    print(write_header())
    print("CPUs  nodes  width  candidates  best of 5")
    for n_cores, smt, n_nodes in ((2, 1, 1), (32, 2, 2), (256, 2, 8)):
        for width in (1, 3, 8):
            times = []
            for _ in range(5):
                start = time.perf_counter()
                space = build_space(make_host(n_cores, smt=smt, n_nodes=n_nodes), make_model(width))
                n = len(space.candidates)
                times.append(time.perf_counter() - start)
            print(f"{n_cores * smt:4}  {n_nodes:5}  {width:5}  {n:10}  {min(times) * 1e3:6.1f} ms")
    landscape = make_landscape("512", "cliffs", seed=11, n_extra=4)
    n = len(landscape.space.candidates)
    landscape.space.numbers  # noqa: B018  (a search builds this once, together with the space)
    print(f"\n{n} candidates\nbudget  replayed  outside of measuring, mean of {N_REPLAYS}")
    for budget_s in (60.0, 300.0):
        outside_s, spent_s = 0.0, 0.0
        for seed in range(N_REPLAYS):
            start = time.perf_counter()
            with threadpool_limits(limits=1):
                opened = open_replay(landscape, seed=seed)
                run_search(landscape.first_space, opened, SearchSettings(budget_s=budget_s))
            outside_s += time.perf_counter() - start
            spent_s += opened.runner.now_s()
        mean_s = outside_s / N_REPLAYS
        print(f"{budget_s:4.0f} s  {spent_s / N_REPLAYS:6.0f} s  {mean_s:5.2f} s, {outside_s / spent_s:.1%}")


if __name__ == "__main__":
    main()
