"""Compare the capacity that `ortune plan` measures with long live runs: where does the target really break?

    python -m benchmarks.capacity [--figure p90] [--quota 1] [--budget TIME] [--time 600] [--json FILE] [MODEL ...]
    python -m benchmarks.capacity --report FILE

The target is a p99 of at most four times the median of a call with ONNX Runtime's default. Some hosts, such as shared
virtual machines, stop all programs for some milliseconds every second or so: no rate keeps a p99 there. For such a
host, choose a lower percentile with --figure. A plan is made, and its recommended deployment is taken. Then two things
are measured in turn, at least three times each, until the second is known within 5 % or the time is over:

- The capacity, as the plan measures it. That of the plan is the first one.
- Live runs at rates from 15 % below to 15 % above the capacity, 15 s each, in fresh launches and in random order.

All runs together are one long run at each rate. A logistic regression of the share of the requests that take longer
than the limit, on the logarithm of the rate, gives the rate at which the target breaks. Runs differ by more than
chance, so the regression is a quasi-binomial one (McCullagh and Nelder, "Generalized Linear Models" (1989), section
4.5).

The speed of a shared host changes within minutes, and with it the capacity. The mean duration of the calls in each
run and in each capacity measurement shows how fast the host was meanwhile. Rates and latencies of runs are those of a
host that is as fast as in the first capacity measurement, and so are capacities: the model of the queue says by how
much they change. Within a run, the speed may still change.

With --quota, everything runs in a cgroup with this CPU quota, which needs a Linux host on which the user may create
cgroups. Run this on an idle host. With --json, results are added to a file, so that a run can be made in parts.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, stdtrit

from benchmarks.inputs import shapes_of
from benchmarks.loads import cpu_quota
from benchmarks.parts import Row, add_part_options, reopen_rows, run_part
from benchmarks.plan import find_median_ns
from models.build import build
from ortune.errors import MeasureError, OrtuneError
from ortune.host import read_host
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.open import open_comparison
from ortune.options import make_request
from ortune.planning import run as planning_run
from ortune.planning.measured_capacity import CapacityMeasurement
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.prepare import prepare_plan
from ortune.planning.result import Estimate
from ortune.planning.run import USUAL_MEASUREMENTS, plan_deployment
from ortune.queueing.rate_model import RateMeasurement, choose_near
from ortune.requests import PlanRequest
from ortune.worker.group import merge_services
from ortune.workload import Limit, parse_limit
from ortune.workload.figures import FIGURES
from ortune.workload.load import HIGHEST_RATE_PER_S

MODELS = ("squeezenet", "minilm_l6_int8", "ppocrv4_rec", "inception_v2", "resnet50")
LIMIT_FACTOR = 4.0
SHARES = (0.85, 0.95, 1.05, 1.15)
"""Rates of the live runs, as parts of the rate at which the target is thought to break."""

RUN_S = 15.0
FEWEST_TURNS, MOST_TURNS = 3, 12
PRECISE = 0.05
"""Half the width of the interval of the rate at which the target breaks, as a logarithm, that ends a case."""

WITHIN = 0.1
LARGEST_LOG = 1.0
"""Rates further from all runs than this, as a logarithm, are not extrapolated to."""


class Run(NamedTuple):
    """A live run, on a host that is as fast as in the first capacity measurement.

    Attributes:
        log_rate: Logarithm of the rate per second.
        n: Number of requests.
        n_above: How many of them took longer than the limit.
        speed: How fast the host was.
    """

    log_rate: float
    n: int
    n_above: int
    speed: float


class Break(NamedTuple):
    """The rate at which the target breaks.

    Attributes:
        log_rate: Its logarithm; NaN if the runs do not show it.
        half: Half the width of its interval.
    """

    log_rate: float
    half: float


class WatchedMeasurement(CapacityMeasurement):
    """A capacity measurement that keeps what it measured at single rates.

    Attributes:
        seen: The measurements at single rates.
        found: The capacity; None if there were too few of them, or if no rate keeps the limit.
    """

    seen: list[RateMeasurement]
    found: Estimate | None = None

    def measure(self, rate_per_s: float, slowdown: float) -> RateMeasurement:
        """Measure at a rate."""
        found = super().measure(rate_per_s, slowdown)
        self.seen.append(found)
        return found

    def run(self, end_s: float, observe: Callable[[int], None]) -> Estimate | None:
        """Measure the capacity."""
        self.seen = []
        capacity = super().run(end_s, observe)
        if capacity and capacity.estimate:
            self.found = capacity
        return capacity

    def find_slowdown(self) -> float:
        """Return by how much calls took longer than the model of the queue has them, near the capacity."""
        assert self.found
        near = choose_near(self.seen, self.found.estimate) or self.seen
        times, weights = zip(*((measurement.service_ns, measurement.n_calls) for measurement in near), strict=True)
        assert self.model.service_ns
        return float(np.average(times, weights=weights)) / self.model.service_ns

    def find_capacity(self, slowdown: float) -> tuple[float, float, float]:
        """Return the logarithms of the capacity and of its interval, if calls took longer by this factor."""
        assert self.found
        then, now = self.model.find_capacity(self.find_slowdown()), self.model.find_capacity(slowdown)
        # The model may expect that calls alone take too long. Then only the durations of calls count.
        change = now / then if then and now else self.find_slowdown() / slowdown
        low, high = self.found.low, self.found.high or math.inf
        with np.errstate(divide="ignore"):
            logs = np.log(np.array([self.found.estimate, low, high]) * change)
        return float(logs[0]), float(logs[1]), float(logs[2])


def check_capacity(name: str, arguments: argparse.Namespace) -> Row:
    """Make a plan for a model, and measure the capacity of its recommended deployment and live runs in turn."""
    options: dict[str, Any] = {"model": str(build(name)), "shape": shapes_of(name), "seed": arguments.seed}
    options["budget"] = arguments.budget
    text = f"{arguments.figure}<{LIMIT_FACTOR * find_median_ns(options) / 1e6:.3f}ms"
    row: Row = {"model": name, "quota": arguments.quota, "target": text, "figure": arguments.figure}
    options["slo"] = text
    limit = parse_limit(text)
    measurements: list[WatchedMeasurement] = []

    def watch(*parts: Any) -> WatchedMeasurement:
        measurements.append(WatchedMeasurement(*parts))
        return measurements[-1]

    try:
        with mock.patch.object(planning_run, "CapacityMeasurement", watch):
            plan = plan_deployment(prepare_plan(make_request(PlanRequest, options)))
    except OrtuneError as error:
        return {**row, "problem": str(error)}
    choice = plan.choice
    row |= {"deployment": choice.deployment.title, "throughput": choice.throughput.estimate}
    first = next(
        (measurement for measurement in measurements if measurement.row.deployment.key == choice.deployment.key), None
    )
    if not first:
        return {**row, "problem": "the capacity of the recommended deployment was not measured"}
    prepared = prepare_plan(make_request(PlanRequest, {**options, "seed": arguments.seed + 1}))
    with open_comparison(prepared.setup) as opened:
        runner = DeploymentRunner(opened, prepared.space.default)
        try:
            found, runs = measure_in_turn(runner, first, limit, arguments)
        except OrtuneError as error:
            return {**row, "problem": str(error)}
    slowdown = found[0].find_slowdown()
    row["capacities"] = [
        (*measurement.find_capacity(slowdown), measurement.find_slowdown() / slowdown) for measurement in found
    ]
    row["runs"] = runs
    return row


def measure_in_turn(
    runner: DeploymentRunner, first: WatchedMeasurement, limit: Limit, arguments: argparse.Namespace
) -> tuple[list[WatchedMeasurement], list[Run]]:
    """Measure the capacity of a deployment and live runs in turn, and return both.

    Args:
        runner: Measures deployments.
        first: The first measurement of its capacity.
        limit: The target.
        arguments: The command line.
    """
    found = [first]

    def measure_capacity() -> None:
        again = WatchedMeasurement(runner, first.row, first.model, limit)
        again.run(runner.now_s() + USUAL_MEASUREMENTS * again.find_time_s(again.start_per_s), lambda done: None)
        if again.found:
            found.append(again)

    if not first.found:
        # The plan had no time for enough measurements, and states what it predicts.
        found.pop()
        measure_capacity()
        if not found:
            raise MeasureError("no rate was found at which the recommended deployment meets the target")
    assert first.model.service_ns
    deployment, slowdown, speed = first.row.deployment, found[0].find_slowdown(), 1.0
    reference_ns = slowdown * first.model.service_ns
    rng = np.random.default_rng(arguments.seed)
    runs: list[Run] = []
    end_s = time.monotonic() + arguments.time
    most_per_s = HIGHEST_RATE_PER_S * deployment.config.batch
    for turn in range(MOST_TURNS):
        for share in rng.permutation(SHARES):
            center = find_break(runs, limit).log_rate if turn else math.nan
            if not math.isfinite(center):
                center = float(np.mean([measurement.find_capacity(slowdown)[0] for measurement in found]))
            rate_per_s = min(float(share) * math.exp(center) * speed, most_per_s)
            blocks, _ = runner.run_at_rate(deployment, rate_per_s, limit.figure, RUN_S)
            speed = reference_ns / merge_services(blocks)[0]
            latencies_ns = speed * np.concatenate([block.samples_ns for block in blocks])
            n_above = int((latencies_ns > limit.bound).sum())
            runs.append(Run(math.log(rate_per_s / speed), len(latencies_ns), n_above, float(speed)))
        is_over = time.monotonic() > end_s
        if turn + 1 >= FEWEST_TURNS and (is_over or find_break(runs, limit).half < PRECISE):
            break
        measure_capacity()
    return found, runs


def find_break(runs: Sequence[Run], limit: Limit) -> Break:
    """Return where the target breaks, with quasi-binomial logistic regression."""
    logs = np.array([run.log_rate for run in runs])
    n = np.array([run.n for run in runs], dtype=float)
    share = np.array([run.n_above for run in runs]) / n
    center = float(logs.mean())
    columns = np.column_stack([np.ones_like(logs), logs - center])
    mean = (share * n + 0.5) / (n + 1)
    found = np.zeros(2)
    covariance: NDArray[np.float64] = np.eye(2)
    for _ in range(50):
        weights = n * mean * (1 - mean)
        covariance = np.linalg.inv(columns.T @ (weights[:, None] * columns))
        working = logit(mean) + (share - mean) / (mean * (1 - mean))
        before, found = found, covariance @ columns.T @ (weights * working)
        mean = np.clip(expit(columns @ found), 1e-6, 1 - 1e-6)
        if np.abs(found - before).max() < 1e-9:
            break
    freedom = len(runs) - 2
    covariance = covariance * max(float((n * (share - mean) ** 2 / mean / (1 - mean)).sum()) / freedom, 1.0)
    slope, factor = found[1], float(stdtrit(freedom, (1 + DEFAULT_CONFIDENCE) / 2))
    if slope <= factor * math.sqrt(covariance[1, 1]):
        return Break(math.nan, math.inf)
    at = (logit(1 - point_of(limit)) - found[0]) / slope
    if abs(at) > LARGEST_LOG:
        return Break(math.nan, math.inf)
    direction = np.array([1.0, at]) / slope
    return Break(center + float(at), factor * math.sqrt(float(direction @ covariance @ direction)))


def point_of(limit: Limit) -> float:
    """Return the share of the requests that must keep a limit."""
    point = FIGURES[limit.figure].percentile
    assert point
    return point / 100


def show(row: Row) -> str:
    """Return the line of a case."""
    quota = f"quota {row['quota']:g}" if row["quota"] else "no quota"
    head = f"{row['model']:16} {quota:9} {row['target']:14}"
    if "problem" in row:
        return f"{head} {row['problem']}"
    runs = [Run(*run) for run in row["runs"]]
    speeds = [run.speed for run in runs]
    found = find_break(runs, parse_limit(row["target"]))
    of_runs = f"{len(runs)} runs, host {min(speeds):.2f} to {max(speeds):.2f}x as fast"
    if math.isnan(found.log_rate):
        capacities = ", ".join(f"{math.exp(capacity[0]):.1f}/s" for capacity in row["capacities"])
        return (
            f"{head} the rate at which it breaks is not known: {of_runs}; capacities {capacities}; {row['deployment']}"
        )
    text = f"{head} breaks at {math.exp(found.log_rate):.1f}/s ± {math.expm1(found.half):.1%}"
    text += f" of {row['throughput']:.1f}/s, {of_runs}"
    errors = ", ".join(f"{math.expm1(error):+.1%}" for error in list_errors(row))
    n_containing = sum(count_containing(row))
    text += f"; capacities {errors}; {n_containing} of {len(row['capacities'])} intervals contain it"
    return f"{text}; {row['deployment']}"


def list_errors(row: Row) -> list[float]:
    """Return the errors of the capacities, as logarithms."""
    found = find_break([Run(*run) for run in row["runs"]], parse_limit(row["target"]))
    return [capacity[0] - found.log_rate for capacity in row["capacities"]]


def count_containing(row: Row) -> list[bool]:
    """Return for each capacity whether its interval contains the rate at which the target breaks."""
    found = find_break([Run(*run) for run in row["runs"]], parse_limit(row["target"]))
    return [capacity[1] <= found.log_rate <= capacity[2] for capacity in row["capacities"]]


def report(rows: Sequence[Row]) -> None:
    """Print all cases, and how many capacities are right."""
    for row in rows:
        print(show(row))
    measured = [row for row in rows if "runs" in row and not math.isnan(list_errors(row)[0])]
    if not measured:
        return
    errors = [list_errors(row) for row in measured]
    # A rate 10 % below the break is too low by the factor 0.9, and one 10 % above by 1.1.
    right = [[math.log(1 - WITHIN) <= error <= math.log(1 + WITHIN) for error in case] for case in errors]
    means = [math.log(1 - WITHIN) <= float(np.mean(case)) <= math.log(1 + WITHIN) for case in errors]
    n = sum(map(len, errors))
    print(f"within 10 %: {sum(map(sum, right))} of {n} capacities, the mean in {sum(means)} of {len(measured)} cases")
    print(f"intervals that contain the break: {sum(sum(count_containing(row)) for row in measured)} of {n}")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--figure", choices=("p50", "p90", "p95", "p99"), default="p99", help="figure of the target")
    parser.add_argument("--quota", type=float, help="CPU quota in CPUs, set with a cgroup")
    parser.add_argument("--budget", type=float, help="budget of a plan in seconds (default: the usual one)")
    parser.add_argument("--time", type=float, default=600.0, help="seconds for measurements in turn")
    parser.add_argument("--seed", type=int, default=0)
    add_part_options(parser)
    arguments = parser.parse_args()
    if arguments.report:
        report(reopen_rows(arguments.report))
        return
    if arguments.quota and not read_host().limits.quota:
        # The cgroup is for a second process, because this process could not leave it again.
        with cpu_quota(arguments.quota) as prefix:
            if prefix is None:
                raise SystemExit("a quota needs a cgroup, which cannot be created here")
            subprocess.run([*prefix, sys.executable, "-m", "benchmarks.capacity", *sys.argv[1:]], check=True)
        return
    names = (arguments.models or MODELS)[arguments.first :]
    with contextlib.suppress(KeyboardInterrupt):
        report(run_part((check_capacity(name, arguments) for name in names), arguments.json, show))


if __name__ == "__main__":
    main()
