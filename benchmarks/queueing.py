"""Compare simulated queues and their capacities with queueing theory.

    python -m benchmarks.queueing [--runs 20]

Requests arrive at random. Service times are constant (M/D/c) or exponentially distributed (M/M/c). Printed are:

1. for mean, p50 and p99 of the latency: theory, the largest error of some simulations, their mean standard error, and
   the share of 95 % intervals that contain the theory, with the time of a simulation;
2. for the capacity by simulated queues: its error, and the share of intervals that contain the theory.

Targets: errors of at most 2 % in the first table and 5 % in the second. The theory is in
`ortune/queueing/theory.py`, with its sources.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks.host import write_header
from ortune.measure.interval import Interval
from ortune.queueing.capacity import simulate_capacity
from ortune.queueing.queue_model import Queue
from ortune.queueing.services import make_services
from ortune.queueing.simulation import simulate
from ortune.queueing.theory import ConstantQueue, ExponentialQueue, KnownQueue, find_known_capacity

SERVICE_NS = 1_000_000
SERVERS = (1, 2, 4, 8)
UTILIZATIONS = (0.3, 0.6, 0.8, 0.9, 0.95)
LIMITS: dict[str, tuple[float, ...]] = {"M/M": (7.0, 12.0, 40.0), "M/D": (1.5, 3.0, 10.0)}
THEORY: dict[str, Callable[[float, int], KnownQueue]] = {"M/M": ExponentialQueue, "M/D": ConstantQueue}


def make_queue(kind: str, n_servers: int) -> Queue:
    return Queue(services=make_services(SERVICE_NS, "exponential" if kind == "M/M" else "constant"), clients=n_servers)


def contains(interval: Interval, truth: float) -> bool:
    """Return whether an interval contains a value, up to a rounding error."""
    return interval.low * (1 - 1e-9) <= truth <= interval.high * (1 + 1e-9)


def compare_simulation(kind: str, n_servers: int, utilization: float, n_runs: int) -> None:
    """Print a line of the first table."""
    queue, known = make_queue(kind, n_servers), THEORY[kind](utilization, n_servers)
    truths = [known.mean, known.quantile(0.5), known.quantile(0.99)]
    intervals: list[list[Interval]] = []
    start_s = time.monotonic()
    for seed in range(n_runs):
        found = simulate(queue, utilization * queue.highest_per_s, seed=seed)
        intervals.append([found.mean(), found.percentile(50), found.percentile(99)])
    each_s = (time.monotonic() - start_s) / n_runs
    cells = []
    for position, truth in enumerate(truths):
        column = [interval[position] for interval in intervals]
        worst = max(abs(latency.estimate / SERVICE_NS / truth - 1) for latency in column)
        error = np.mean([(latency.high - latency.low) / 2 / 1.96 / latency.estimate for latency in column])
        share = np.mean([contains(latency, truth * SERVICE_NS) for latency in column])
        cells.append(f"{truth:8.3f} {worst:6.2%} {error:6.2%} {share:5.0%}")
    print(f"{kind}/{n_servers}  {utilization:4.2f}  " + "  ".join(cells) + f"  {each_s:4.2f} s", flush=True)


def compare_capacity(kind: str, n_servers: int, limit: float, n_runs: int) -> None:
    """Print a line of the second table."""
    queue = make_queue(kind, n_servers)
    truth = find_known_capacity(THEORY[kind], n_servers, 0.99, limit)
    if not 0.02 < truth < 0.98:
        return
    found = [simulate_capacity(queue, 99, limit * SERVICE_NS, seed=seed) for seed in range(n_runs)]
    errors = [capacity.rate_per_s.estimate / queue.highest_per_s / truth - 1 for capacity in found]
    share = np.mean([contains(capacity.rate_per_s, truth * queue.highest_per_s) for capacity in found])
    n = np.mean([capacity.n_measurements for capacity in found])
    print(
        f"{kind}/{n_servers}  {limit:5.1f}  {truth:6.3f}  {max(map(abs, errors)):7.2%}  {share:5.0%}  {n:5.1f}",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="simulations of each queue")
    arguments = parser.parse_args()
    print(write_header())
    print("latency in service times: theory, largest error, standard error, share of intervals that contain the theory")
    print("queue  load  " + "  ".join(f"{name:>28}" for name in ("mean", "p50", "p99")) + "    time")
    for kind in THEORY:
        for n_servers in SERVERS:
            for utilization in UTILIZATIONS:
                compare_simulation(kind, n_servers, utilization, arguments.runs)
    print("\ncapacity for a limit on p99, by simulation: utilization in theory, largest error, share of intervals")
    print("queue  limit  theory    error  share  rates")
    for kind in THEORY:
        for n_servers in (1, 4):
            for limit in LIMITS[kind]:
                compare_capacity(kind, n_servers, limit, arguments.runs)


if __name__ == "__main__":
    main()
