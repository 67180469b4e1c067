"""Measure by how much the rates of two models on a simulated host can be multiplied: is what is measured right?

    python -m benchmarks.live_scale [--searches 60] [--time 60]

Two models share a host with four cores. Calls of `a` take 8 ms of one core, those of `b` 30 ms. All calls may take
longer where requests arrive than where each model was measured alone, as if they competed for caches. The speed of
noisy hosts differs from launch to launch by 6 %, otherwise by 1 %. The scale is predicted and measured as `ortune plan`
does it for several models, with the given time for measurements. The truth is that of long runs at many scales.

Printed are the mean error of the predicted and of the measured scale, its standard deviation, how many are right within
10 %, and how many of the intervals contain the truth.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from benchmarks.live_capacity import read_arguments, summarize
from ortune.planning.colocation.measured_scale import (
    HIGHEST_SCALE_SHARE,
    LOWEST_SCALE_SHARE,
    MOST_SCALE_MEASUREMENTS,
    find_duration_s,
)
from ortune.planning.colocation.predict import MANY_REQUESTS, NEAR_SCALE, Predictor
from ortune.planning.colocation.scale_models import find_limited_figure, make_scale_models
from ortune.planning.colocation.sharing import Demand, Kind, Sharing
from ortune.planning.colocation.timings import Timing
from ortune.planning.deployment import Deployment
from ortune.queueing.live_capacity import find_joint_capacity
from ortune.queueing.rate_model import RateMeasurement
from ortune.queueing.services import resample
from ortune.queueing.shared_cores import SharedLatencies, SharedService, simulate_shared_cores
from ortune.workload import parse_limit

N_CORES = 4.0
CALLS_NS = (8e6, 30e6)
CALL_VARIATION = 0.1
"""Duration of the calls of both models, and the standard deviation of its logarithm."""

QUIET_SIGMA, NOISY_SIGMA = 0.01, 0.06
LAUNCH_S = 2.5
N_SAMPLES = 400

TRUE_STEPS = 13
TRUE_RUNS = 10
TRUE_REQUESTS = 4000
"""Scales of the runs for the truth, runs at each, and requests of the model with fewer of them in each run."""


class Case(NamedTuple):
    """A host and what both models must keep.

    Attributes:
        name: What is printed.
        targets: The target of each model; "" for none.
        processes: Processes of each model.
        kind: How they share the cores.
        sigma: By how much launches differ.
        slowdown: By which factor calls take longer than alone.
        rates_per_s: Rates of both models.
    """

    name: str
    targets: tuple[str, str]
    processes: tuple[int, int] = (2, 2)
    kind: Kind = "divided"
    sigma: float = QUIET_SIGMA
    slowdown: float = 1.0
    rates_per_s: tuple[float, float] = (100.0, 10.0)


CASES = (
    Case("quiet, divided", ("p90<24ms", "p90<90ms")),
    Case("quiet, divided", ("p99<40ms", "")),
    Case("quiet, divided", ("", "")),
    Case("quiet, all cores", ("p90<24ms", "p90<90ms"), (4, 4), "unpinned"),
    Case("quiet, all cores", ("mean<16ms", "p90<90ms"), (4, 4), "unpinned"),
    Case("quiet, one safe", ("p90<24ms", "p99<900ms")),
    Case("quiet, 300:3", ("p90<24ms", "p99<900ms"), (3, 1), rates_per_s=(300.0, 3.0)),
    Case("slower, divided", ("p90<24ms", "p90<90ms"), slowdown=1.15),
    Case("faster, divided", ("p90<24ms", "p90<90ms"), slowdown=0.85),
    Case("slower, all cores", ("p90<24ms", "p90<90ms"), (4, 4), "unpinned", slowdown=1.15),
    Case("faster, all cores", ("p90<24ms", ""), (4, 4), "unpinned", slowdown=0.85),
    Case("noisy, divided", ("p90<24ms", "p90<90ms"), sigma=NOISY_SIGMA),
    Case("noisy, all cores", ("p90<24ms", "p90<90ms"), (4, 4), "unpinned", sigma=NOISY_SIGMA, slowdown=1.15),
)


def make_demands(case: Case) -> tuple[Demand, ...]:
    """Return what each model must serve."""
    return tuple(
        Demand(name=name, rate_per_s=rate, slo=parse_limit(target) if target else None)
        for name, rate, target in zip("ab", case.rates_per_s, case.targets, strict=True)
    )


def draw_calls(rng: np.random.Generator, mean_ns: float, n: int) -> NDArray[np.float64]:
    """Return durations of calls."""
    return mean_ns * np.exp(rng.normal(0, CALL_VARIATION, n))


def serve(case: Case, scale: float, n_requests: int, rng: np.random.Generator, factor: float) -> list[SharedLatencies]:
    """Return the latencies of both models at a scale in one launch."""
    services = [
        SharedService(
            rate_per_s=scale * rate,
            services=resample((factor * case.slowdown * draw_calls(rng, call_ns, 4 * N_SAMPLES)).astype(np.int64)),
            cores_per_call=1.0,
            processes=processes,
        )
        for rate, call_ns, processes in zip(case.rates_per_s, CALLS_NS, case.processes, strict=True)
    ]
    return simulate_shared_cores(
        services, N_CORES, n_requests=n_requests, most_requests=200 * n_requests, seed=int(rng.integers(2**31))
    )


def find_highest(case: Case) -> float:
    """Return the scale at which a model, or the host, is always busy."""
    own = [p / (r * c / 1e9) for p, r, c in zip(case.processes, case.rates_per_s, CALLS_NS, strict=True)]
    cores = N_CORES / sum(r * c / 1e9 for r, c in zip(case.rates_per_s, CALLS_NS, strict=True))
    return min(*own, cores) / case.slowdown


def compare(case: Case, found: list[SharedLatencies]) -> list[float]:
    """Return the limited figure of each model divided by its limit."""
    figures = [find_limited_figure(demand) for demand in make_demands(case)]
    return [
        figure.compute(result.latencies_ns, result.utilization) / figure.limit
        for figure, result in zip(figures, found, strict=True)
    ]


def run_at_share(case: Case, job: tuple[float, int]) -> list[float]:
    """Return the limited figures, divided by their limits, of a long run at a share of the highest scale."""
    share, seed = job
    rng = np.random.default_rng([seed, 77])
    found = serve(case, share * find_highest(case), TRUE_REQUESTS, rng, math.exp(rng.normal(0, case.sigma)))
    return compare(case, found)


def find_call_ns(case: Case, number: int, scale: float, found: SharedLatencies) -> float:
    """Return the mean duration of the calls of a model."""
    return found.utilization * case.processes[number] * 1e9 / (scale * case.rates_per_s[number])


def search(case: Case, seed: int, time_s: float) -> tuple[float, float, float, float, int]:
    """Return the predicted scale, the measured one with its interval, and the number of measurements."""
    rng = np.random.default_rng([seed, 1])
    demands = make_demands(case)
    timings = [
        Timing(
            samples_ns=(draw_calls(rng, call_ns, N_SAMPLES) * math.exp(rng.normal(0, case.sigma / 2))).astype(np.int64),
            cpu_ns_per_call=call_ns,
            peak_bytes=1,
        )
        for call_ns in CALLS_NS
    ]
    sharing = Sharing(kind=case.kind, deployments=tuple(Deployment(processes=process) for process in case.processes))
    predictor = Predictor(demands=demands, n_cores=N_CORES)
    predicted = predictor.find_scale(sharing, timings, step=NEAR_SCALE, n_requests=MANY_REQUESTS)
    models = make_scale_models(predictor, sharing, timings)
    highest = HIGHEST_SCALE_SHARE * find_highest(case) * case.slowdown
    spent_s = 0.0

    def measure(scale: float, slowdowns: Sequence[float]) -> list[RateMeasurement] | None:
        nonlocal spent_s
        duration_s = find_duration_s(models, demands, scale, slowdowns)
        if spent_s + LAUNCH_S + duration_s > time_s:
            if spent_s:
                return None
            duration_s = time_s / 4
        spent_s += LAUNCH_S + duration_s
        n_requests = round(duration_s * scale * min(case.rates_per_s))
        found = serve(case, scale, n_requests, rng, math.exp(rng.normal(0, case.sigma)))
        return [
            model.observe(scale, result.latencies_ns, find_call_ns(case, number, scale, result), result.utilization)
            for number, (model, result) in enumerate(zip(models, found, strict=True))
        ]

    capacity = find_joint_capacity(
        measure,
        models,
        lowest_per_s=LOWEST_SCALE_SHARE * predicted,
        highest_per_s=highest,
        start_per_s=predicted,
        most_measurements=MOST_SCALE_MEASUREMENTS,
    )
    rate = capacity.rate_per_s
    return predicted, rate.estimate, rate.low, rate.high, capacity.n_measurements


def main() -> None:
    """Print the table."""
    arguments = read_arguments(__doc__)
    print(write_header())
    print(f"{arguments.searches} searches, {arguments.time:g} s for measurements")
    print(
        f"{'host':18} {'targets':19} scale  predicted: error  within 10%   measured: error  within 10%  intervals  runs"
    )
    shares = np.linspace(0.4, 1.0, TRUE_STEPS)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for case in CASES:
            jobs = [(share, run) for share in shares for run in range(TRUE_RUNS)]
            runs = np.array(list(pool.map(functools.partial(run_at_share, case), jobs)))
            ratios = runs.reshape(TRUE_STEPS, TRUE_RUNS, 2).mean(axis=1).max(axis=1)
            logs = np.log(np.maximum.accumulate(np.maximum(ratios, 1e-9)))
            truth = float(np.interp(0.0, logs, shares)) * find_highest(case)
            found = np.array(
                list(pool.map(functools.partial(search, case, time_s=arguments.time), range(arguments.searches)))
            )
            print(
                f"{case.name:18} {', '.join(target or '-' for target in case.targets):19} {truth:5.2f}  "
                f"{summarize(found, truth)}  {found[:, 4].mean():4.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
