"""How long making the search space takes on large hosts: `python -m benchmarks.space`. Target: under 100 ms."""

from __future__ import annotations

import time

from benchmarks.host import describe_host
from ortune.knobs import build_space
from tests.simulation import make_host, make_model


def main() -> None:
    """Print size and time for hosts of 2 to 512 CPUs, and graphs of several widths."""
    print(describe_host())
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


if __name__ == "__main__":
    main()
