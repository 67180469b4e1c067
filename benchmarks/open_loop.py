"""Compare latencies of simulated open loops with queueing theory.

    python -m benchmarks.open_loop [--launches 400] [--utilization 0.3 0.5 0.7 0.8 0.9]

Requests arrive at random (Poisson). Calls take a constant time (M/D/1) or exponentially distributed times (M/M/1). The
load generator of ortune's workers runs on a simulated clock, in launches of 8 blocks that are planned as in a search.
Printed is the p99 over all launches, divided by its value in theory. Target: 0.95 to 1.05.

The theory is in `ortune/queueing/theory.py`, with its sources.
"""

from __future__ import annotations

import argparse

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from benchmarks.simulated_clock import SimulatedClock
from ortune.measure.block_plan import Pace, limit_warm_up_ns, plan_block
from ortune.queueing.theory import ConstantQueue, ExponentialQueue
from ortune.worker.load_generator import generate_load
from ortune.worker.open_loop import RequestStream
from ortune.workload import make_load

SERVICE_NS = 5_000_000
BLOCKS_PER_LAUNCH = 8


def simulate_p99(utilization: float, *, random_service: bool, warm_up: bool, n_launches: int, seed: int) -> float:
    """Return p99 over many launches, in service times."""
    load = make_load(rate_per_s=utilization * 1e9 / SERVICE_NS)
    assert load.rate_per_s
    pace = Pace(load=load, gap_ns=1e9 / load.rate_per_s, call_ns=SERVICE_NS)
    block = plan_block(pace, longest_warm_up_ns=limit_warm_up_ns(pace) if warm_up else 0)
    rng = np.random.default_rng(seed)
    latencies: list[NDArray[np.int64]] = []
    for _ in range(n_launches):
        clock = SimulatedClock()
        stream = RequestStream(load)

        def call(sample: int, clock: SimulatedClock = clock) -> None:
            clock.sleep_ns(int(rng.exponential(SERVICE_NS)) if random_service else SERVICE_NS)

        for _ in range(BLOCKS_PER_LAUNCH):
            plan = msgspec.structs.replace(block, seed=int(rng.integers(2**31)))
            # Without a warm-up, each block starts with an empty queue.
            continued = stream if warm_up else RequestStream(load)
            window = generate_load(call, [0], plan, lambda: None, clock, stream=continued)
            latencies.append(window.latencies_ns)
    return float(np.quantile(np.concatenate(latencies), 0.99)) / SERVICE_NS


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=400, help="launches for each utilization below 0.8")
    parser.add_argument("--utilization", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.8, 0.9])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(write_header())
    print("queue  utilization  p99 in theory  empty blocks  one stream")
    for name, random_service, known in (("M/D/1", False, ConstantQueue), ("M/M/1", True, ExponentialQueue)):
        for utilization in arguments.utilization:
            expected = known(utilization).quantile(0.99)
            # Latencies of long queues are correlated, so that a precise percentile needs more launches.
            n_launches = int(arguments.launches * max(1, (0.3 / (1 - utilization)) ** 3))
            ratios = [
                simulate_p99(
                    utilization,
                    random_service=random_service,
                    warm_up=warm_up,
                    n_launches=n_launches,
                    seed=arguments.seed,
                )
                / expected
                for warm_up in (False, True)
            ]
            print(f"{name}  {utilization:11.2f}  {expected:13.2f}  {ratios[0]:12.3f}  {ratios[1]:10.3f}", flush=True)


if __name__ == "__main__":
    main()
