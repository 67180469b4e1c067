"""Measure capacities on simulated hosts: how far is what `ortune plan` measures from the truth, and does it know?

    python -m benchmarks.live_capacity [--searches 60] [--time 60]

A host is simulated with two callers, whose calls take 12 ms. Its speed may drift, as on a host that others share: the
logarithm of the speed is an Ornstein-Uhlenbeck process with a standard deviation of 6 %, which changes within 8 s. At
random, about once a second, all calls may stand still for 10 ms. Or calls take 1.4 times as long for 2 s, about every
10 s, as while another virtual machine uses the same cores. Launches differ by 1 %. Calls may take longer or less
long where requests arrive than at full load, where the prediction gets its durations from.

The capacity is predicted and measured as `ortune plan` does it, with the given time for measurements. The truth is that
of runs of the same host at many rates, of 2000 s each. Printed are the mean error, its standard deviation, how
many capacities are right within 10 %, and how many of the intervals contain the truth.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import heapq
import math
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from ortune.measure.compute_figures import required_calls
from ortune.planning.capacity import make_rate_model, predict_capacity
from ortune.planning.deployment import Deployment
from ortune.planning.measured_capacity import HIGHEST_RATE_SHARE, LEAST_S, LOWEST_RATE_SHARE, MOST_RATE_MEASUREMENTS
from ortune.planning.measuring import BLOCKS_PER_RATE
from ortune.queueing.live_capacity import MEASUREMENT_RELAXATIONS, find_live_capacity
from ortune.queueing.rate_model import RateMeasurement, find_factors
from ortune.workload import parse_limit
from ortune.workload.figures import FIGURES

N_CALLERS = 2
CALL_NS = 12e6
CALL_VARIATION = 0.1
"""Callers, duration of their calls, and the standard deviation of its logarithm."""

DRIFT, DRIFT_S, STEP_NS = 0.06, 8.0, 1e8
STALL_NS, STALLS_PER_S = 10e6, 1.0
SPELL_SLOWDOWN, SPELL_S, BETWEEN_SPELLS_S = 1.4, 2.0, 8.0
"""By which factor calls take longer in slow periods, how long these last, and the times between them, on average."""

LAUNCH_SIGMA = 0.01
LAUNCH_NS = 1.5e9
WARM_UP_NS = 0.5e9

FULL_LOAD_NS = 1e9
N_FULL_LOADS = 4
"""How long calls are measured back to back for the prediction, and how often."""

TRUE_SHARES = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96)
TRUE_NS = 500e9
N_TRUE_RUNS = 4
"""Rates of the runs for the truth, as shares of the highest; how long they are, and how many at each rate."""

MOST_CALLS = 2000


class Case(NamedTuple):
    """A host and a target.

    Attributes:
        name: What is printed.
        target: The target.
        is_noisy: Whether the speed drifts and calls stand still.
        has_spells: Whether there are slow periods.
        slowdown: By which factor calls take longer where requests arrive.
    """

    name: str
    target: str
    is_noisy: bool = False
    slowdown: float = 1.0
    has_spells: bool = False


CASES = (
    Case("quiet", "p90<48ms"),
    Case("quiet", "p99<96ms"),
    Case("quiet", "mean<30ms"),
    Case("quiet, slower calls", "p90<48ms", slowdown=1.15),
    Case("quiet, slower calls", "mean<30ms", slowdown=1.15),
    Case("quiet, faster calls", "p90<48ms", slowdown=0.87),
    Case("noisy", "p90<48ms", is_noisy=True),
    Case("noisy", "p99<96ms", is_noisy=True),
    Case("noisy, slower calls", "p90<48ms", is_noisy=True, slowdown=1.3),
    Case("slow periods", "p90<48ms", has_spells=True),
    Case("slow periods", "p99<96ms", has_spells=True),
    Case("slow periods", "mean<30ms", has_spells=True),
)


class Host:
    """A simulated host whose time goes on from run to run.

    Args:
        case: What it is like.
        seed: Random seed.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.rng = np.random.default_rng(seed)
        self.now_ns = 0.0
        self.log_speed = self.rng.normal(0, DRIFT) if case.is_noisy else 0.0
        self.speed_ns = 0.0
        self.stalls: list[float] = []
        self.is_slow = False
        self.phase_end_ns = float(self.rng.exponential(BETWEEN_SPELLS_S * 1e9))

    def serve(
        self, arrivals_ns: NDArray[np.float64], slowdown: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the latency of each request, and the duration of its call, in a fresh launch."""
        n = len(arrivals_ns)
        factor = slowdown * math.exp(self.rng.normal(0, LAUNCH_SIGMA))
        calls_ns = CALL_NS * factor * np.exp(self.rng.normal(0, CALL_VARIATION, n))
        latencies_ns, durations_ns = np.empty(n), np.empty(n)
        free = [self.now_ns] * N_CALLERS
        for number, (arrival_ns, call_ns) in enumerate(zip(arrivals_ns.tolist(), calls_ns.tolist(), strict=True)):
            start_ns = max(heapq.heappop(free), arrival_ns)
            end_ns = self._end(start_ns, call_ns)
            heapq.heappush(free, end_ns)
            latencies_ns[number], durations_ns[number] = end_ns - arrival_ns, end_ns - start_ns
        return latencies_ns, durations_ns

    def _end(self, start_ns: float, call_ns: float) -> float:
        """Return when a call ends that takes so long on a quiet host."""
        if self.case.has_spells:
            while self.phase_end_ns < start_ns:
                self.is_slow = not self.is_slow
                self.phase_end_ns += self.rng.exponential(1e9 * (SPELL_S if self.is_slow else BETWEEN_SPELLS_S))
            return start_ns + call_ns * (SPELL_SLOWDOWN if self.is_slow else 1.0)
        if not self.case.is_noisy:
            return start_ns + call_ns
        keep = math.exp(-STEP_NS / 1e9 / DRIFT_S)
        while self.speed_ns < start_ns:
            self.speed_ns += STEP_NS
            self.log_speed = self.log_speed * keep + self.rng.normal(0, DRIFT * math.sqrt(1 - keep**2))
        end_ns = start_ns + call_ns * math.exp(self.log_speed)
        while not self.stalls or self.stalls[-1] < end_ns:
            self.stalls.append((self.stalls[-1] if self.stalls else 0.0) + self.rng.exponential(1e9 / STALLS_PER_S))
        while self.stalls[0] < start_ns - 50 * CALL_NS:
            self.stalls.pop(0)
        for stall_ns in self.stalls:
            if start_ns <= stall_ns < end_ns:
                end_ns += STALL_NS
        return end_ns

    def run_full(self) -> NDArray[np.int64]:
        """Return durations of calls back to back."""
        n = round(N_CALLERS * FULL_LOAD_NS / CALL_NS)
        _, durations_ns = self.serve(np.full(n, self.now_ns), 1.0)
        self.now_ns += FULL_LOAD_NS + LAUNCH_NS
        return durations_ns.astype(np.int64)

    def run_at(self, rate_per_s: float, duration_ns: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return latencies and durations where requests arrive, after a warm-up."""
        n = round((WARM_UP_NS + duration_ns) * rate_per_s / 1e9)
        arrivals_ns = self.now_ns + np.cumsum(self.rng.exponential(1e9 / rate_per_s, n))
        found = self.serve(arrivals_ns, self.case.slowdown)
        counts = arrivals_ns >= self.now_ns + WARM_UP_NS
        self.now_ns = float(arrivals_ns[-1]) + LAUNCH_NS
        return found[0][counts], found[1][counts]


def find_value(latencies_ns: NDArray[np.float64], target: str) -> float:
    """Return the share of the latencies above the limit, or their mean."""
    limit = parse_limit(target)
    is_mean = FIGURES[limit.figure].percentile is None
    return float(latencies_ns.mean() if is_mean else (latencies_ns > limit.bound).mean())


def find_truth(case: Case, number: int) -> list[float]:
    """Return the share of the requests above the limit, or their mean latency, at each rate in long runs."""
    highest_per_s = 1e9 * N_CALLERS / CALL_NS / case.slowdown
    return [
        find_value(Host(case, 10_000 + number).run_at(share * highest_per_s, TRUE_NS)[0], case.target)
        for share in TRUE_SHARES
    ]


def search(case: Case, seed: int, time_s: float) -> tuple[float, float, float, float, int]:
    """Return the predicted capacity, the measured one with its interval, and the number of measurements."""
    host = Host(case, seed)
    samples_ns = np.concatenate([host.run_full() for _ in range(N_FULL_LOADS)])[:MOST_CALLS]
    limit = parse_limit(case.target)
    deployment = Deployment(clients=N_CALLERS)
    model = make_rate_model(deployment, samples_ns, limit, seed=0)
    predicted = predict_capacity(deployment, samples_ns, limit, seed=0).estimate
    highest_per_s = HIGHEST_RATE_SHARE * 1e9 * N_CALLERS / float(samples_ns.mean())
    end_ns = host.now_ns + time_s * 1e9

    def find_duration_ns(rate_per_s: float, slowdown: float) -> float:
        n_calls = max(required_calls(limit.figure), 200)
        least_ns = max(MEASUREMENT_RELAXATIONS * model.find_relaxation_ns(rate_per_s, slowdown), LEAST_S * 1e9)
        return max(n_calls * 1e9 / rate_per_s, least_ns)

    def measure(rate_per_s: float, slowdown: float) -> RateMeasurement | None:
        duration_ns = find_duration_ns(rate_per_s, slowdown)
        if host.now_ns + LAUNCH_NS + WARM_UP_NS + duration_ns > end_ns:
            return None
        latencies_ns, durations_ns = host.run_at(rate_per_s, duration_ns)
        parts = [part for part in np.array_split(durations_ns, BLOCKS_PER_RATE) if len(part) > 1]
        factors = find_factors([part.mean() for part in parts], [part.std() for part in parts], list(map(len, parts)))
        return model.observe(rate_per_s, latencies_ns, float(durations_ns.mean()), factors=factors)

    found = find_live_capacity(
        measure,
        model,
        lowest_per_s=LOWEST_RATE_SHARE * predicted,
        highest_per_s=highest_per_s,
        start_per_s=predicted,
        most_measurements=MOST_RATE_MEASUREMENTS,
    )
    rate = found.rate_per_s
    return predicted, rate.estimate, rate.low, rate.high, found.n_measurements


def read_arguments(description: str | None) -> argparse.Namespace:
    """Return the number of searches, and the seconds for measurements."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=60, help="searches for each case")
    parser.add_argument("--time", type=float, default=60.0, help="seconds for measurements")
    return parser.parse_args()


def summarize(found: NDArray[np.float64], truth: float) -> str:
    """Return the errors of predicted and of measured values, and how many of the intervals contain the truth.

    Args:
        found: For each search, what was predicted and measured, and the interval.
        truth: The true value.
    """
    parts = []
    for values in (found[:, 0], found[:, 1]):
        errors = values / truth - 1
        parts.append(f"{errors.mean():+6.1%} ± {errors.std():5.1%}  {(np.abs(errors) < 0.1).mean():6.0%}")
    contained = ((found[:, 2] <= truth) & (truth <= found[:, 3])).mean()
    return f"{parts[0]}   {parts[1]}  {contained:7.0%}"


def main() -> None:
    """Print the table."""
    arguments = read_arguments(__doc__)
    print(write_header())
    print(f"{arguments.searches} searches, {arguments.time:g} s for measurements")
    print(
        f"{'host':20} {'target':10} load  predicted: error  within 10%   measured: error  within 10%  intervals  rates"
    )
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for case in CASES:
            runs = np.array(list(pool.map(functools.partial(find_truth, case), range(N_TRUE_RUNS))))
            found = np.array(
                list(pool.map(functools.partial(search, case, time_s=arguments.time), range(arguments.searches)))
            )
            limit = parse_limit(case.target)
            point = FIGURES[limit.figure].percentile
            goal = limit.bound if point is None else 1 - point / 100
            # The logarithm of a share, or of a mean, is close to linear in the rate between two runs.
            logs = np.log(np.maximum(runs.mean(axis=0), 1e-9))
            use = float(np.interp(math.log(goal), logs, TRUE_SHARES))
            truth = use * 1e9 * N_CALLERS / CALL_NS / case.slowdown
            print(
                f"{case.name:20} {case.target:10} {use:.2f}  {summarize(found, truth)}  {found[:, 4].mean():5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
