"""Compare the capacity that `ortune plan` states with long live runs: where does the target really break?

    python -m benchmarks.capacity [--figure p90] [--quota 1] [--budget TIME] [--seconds 20] [--json FILE] [MODEL ...]
    python -m benchmarks.capacity --report FILE

The target is a p99 of at most four times the median of a call with ONNX Runtime's default. Some hosts, such as shared
virtual machines, stop all programs for some milliseconds every second or so: no rate keeps a p99 there. For such a
host, choose a lower percentile with --figure. A plan is made, and the capacity of its recommended deployment is taken.
Then requests arrive for a long time, in fresh launches, in turn at 0.9 and at 1.1 times this rate. All runs at one rate
count as one long run: the target is kept if the share of all requests that take longer is at most that of the
percentile. The capacity is right within 10 % if the target is kept at the first rate and broken at the second, and
wrong if an interval excludes that. As long as the interval of one of these shares includes that of the percentile, both
are measured again, up to twelve times; what is then neither right nor clearly wrong is undecided. As the intervals are
looked at several times, they exclude the target wrongly more often than in 5 % of the cases.

The speed of a shared host changes within minutes, and with it the capacity. Therefore, the throughput of the
deployment is measured before and after the capacity measurement and each of these runs. The rate and the latency are
scaled by the ratio of the throughputs. Runs during which it changed by more than 7 % do not count: at a rate that is
right before, the host is then too slow, or too fast. If it changed by more during the capacity measurement, there is
no result.

With --quota, everything runs in a cgroup with this CPU quota, which needs a Linux host on which the user may create
cgroups. Run this on an idle host. With --json, results are added to a file, so that a run can be made in parts.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from benchmarks.inputs import shapes_of
from benchmarks.loads import cpu_quota
from benchmarks.parts import Row, add_part_options, read_rows, run_part
from benchmarks.plan import find_median_ns
from models.build import build
from ortune.compare.block_plan import RunPlan
from ortune.compare.figures import compute_figure
from ortune.compare.interval import DEFAULT_CONFIDENCE, Interval
from ortune.compare.open import open_comparison
from ortune.errors import MeasureError, OrtuneError
from ortune.host import read_host
from ortune.options import make_request
from ortune.planning.deployment import Deployment
from ortune.planning.measured_capacity import CapacityMeasurement
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.prepare import prepare_plan
from ortune.planning.result import Estimate, PlannedDeployment
from ortune.planning.run import make_plan
from ortune.requests import PlanRequest
from ortune.worker import BlockPlan
from ortune.workload import Limit, parse_limit
from ortune.workload.objectives import FIGURES

MODELS = ("squeezenet", "minilm_l6_int8", "ppocrv4_rec", "inception_v2", "resnet50")
LIMIT_FACTOR = 4.0
SHARES = (0.9, 1.1)
FEWEST_RUNS, MOST_RUNS = 3, 12
"""Runs at each rate, with those that do not count."""

STEADY = 0.07
"""Largest difference between the speeds before and after a run that counts, as a share."""

THROUGHPUT = RunPlan(
    block=BlockPlan(duration_ns=500_000_000, lead_in_ns=0, min_calls=3, deadline_s=60.0), launches=1, rounds=6
)
"""How the throughput is measured around capacities and runs."""


def check_capacity(name: str, arguments: argparse.Namespace) -> Row:
    """Make a plan for a model, and load its recommended deployment slightly below and above its capacity."""
    options: dict[str, Any] = {"model": str(build(name)), "shape": shapes_of(name), "seed": arguments.seed}
    options["budget"] = arguments.budget
    text = f"{arguments.figure}<{LIMIT_FACTOR * find_median_ns(options) / 1e6:.3f}ms"
    row: Row = {"model": name, "quota": arguments.quota, "target": text, "figure": arguments.figure}
    options["slo"] = text
    limit = parse_limit(text)
    throughputs: dict[str, tuple[float, float]] = {}
    try:
        with watch_throughput(throughputs):
            plan = make_plan(prepare_plan(make_request(PlanRequest, options)))
    except OrtuneError as error:
        return {**row, "problem": str(error)}
    choice = plan.choice
    capacity = choice.capacity
    assert capacity
    row |= {"deployment": choice.deployment.title, "capacity": capacity.estimate, "source": capacity.source}
    row |= {"low": capacity.low, "high": capacity.high, "throughput": choice.throughput.estimate}
    if choice.predicted_capacity:
        row["predicted"] = choice.predicted_capacity.estimate
    if not capacity.estimate:
        return {**row, "problem": "no rate was found at which the recommended deployment meets the target"}
    if choice.deployment.key not in throughputs:
        return {**row, "problem": "the capacity of the recommended deployment was not measured"}
    before, after = throughputs[choice.deployment.key]
    row["throughput"] = math.sqrt(before * after)
    if abs(math.log(after / before)) > STEADY:
        return {**row, "problem": f"after the capacity measurement, the host was {after / before:.2f}x as fast"}
    runs, speeds = measure_long(choice, row["throughput"], options, limit, arguments)
    if not all(runs):
        return {**row, "problem": "the host was never as fast after a run as before it"}
    row["runs"] = []
    for share, latencies in zip(SHARES, runs, strict=True):
        found, percentile = find_share(latencies, limit), np.quantile(np.concatenate(latencies), point_of(limit))
        row["runs"].append((share, percentile / 1e6, found.estimate, found.low, found.high))
    row |= {"n_runs": sum(map(len, runs)), "speeds": speeds, "limit": 1 - point_of(limit)}
    return row


def point_of(limit: Limit) -> float:
    """Return the share of the requests that must keep a limit."""
    point = FIGURES[limit.figure].percentile
    assert point
    return point / 100


@contextlib.contextmanager
def watch_throughput(found: dict[str, tuple[float, float]]) -> Iterator[None]:
    """Note the throughput of each deployment before and after its capacity is measured, by its key."""
    run = CapacityMeasurement.run

    def run_between(self: CapacityMeasurement, end_s: float, observe: Callable[[int], None]) -> Estimate | None:
        start_s = self._runner.now_s()
        before = measure_throughput(self._runner, self._deployment)
        capacity = run(self, end_s + self._runner.now_s() - start_s, observe)
        if capacity is not None:
            found[self._deployment.key] = before, measure_throughput(self._runner, self._deployment)
        return capacity

    CapacityMeasurement.run = run_between  # type: ignore[method-assign]
    try:
        yield
    finally:
        CapacityMeasurement.run = run  # type: ignore[method-assign]


def measure_throughput(runner: DeploymentRunner, deployment: Deployment) -> float:
    """Return the calls per second of a deployment while all its callers are busy."""
    run = runner.confirm([deployment], THROUGHPUT, lambda done, planned: None)
    if run.failures:
        raise MeasureError(f"{deployment.title} fails.")
    return compute_figure("throughput", run.blocks(1))


def measure_long(
    row: PlannedDeployment, reference: float, options: dict[str, Any], limit: Limit, arguments: argparse.Namespace
) -> tuple[list[list[NDArray[np.float64]]], list[float]]:
    """Return the latencies in ns of each run below and above the capacity, and the speeds of the host.

    The speeds are those around each run that counts, relative to that while the capacity was measured. The latencies
    are those of a host that is as fast as it was then.

    Args:
        row: The recommended deployment.
        reference: Its throughput while its capacity was measured.
        options: Options of the plan.
        limit: The target.
        arguments: The command line.
    """
    prepared = prepare_plan(make_request(PlanRequest, {**options, "seed": arguments.seed + 1}))
    assert row.capacity
    runs: list[list[NDArray[np.float64]]] = [[] for _ in SHARES]
    speeds: list[float] = []
    with open_comparison(prepared.setup) as opened:
        runner = DeploymentRunner(opened, prepared.space.default)

        def measure_speed() -> float:
            return measure_throughput(runner, row.deployment) / reference

        before = measure_speed()
        for _ in range(MOST_RUNS):
            for found, share in zip(runs, SHARES, strict=True):
                rate_per_s = share * row.capacity.estimate * before
                blocks, _ = runner.run_at_rate(row.deployment, rate_per_s, limit.figure, arguments.seconds)
                after = measure_speed()
                if abs(math.log(after / before)) <= STEADY:
                    found.append(math.sqrt(before * after) * np.concatenate([block.samples_ns for block in blocks]))
                    speeds.append(round(math.sqrt(before * after), 3))
                before = after
            if min(map(len, runs)) < FEWEST_RUNS:
                continue
            shares = [find_share(found, limit) for found in runs]
            if all(not each.low <= 1 - point_of(limit) <= each.high for each in shares):
                break
    return runs, speeds


def find_share(runs: Sequence[NDArray[np.float64]], limit: Limit) -> Interval:
    """Return the share of the requests of all runs that take longer than the limit.

    The interval is that of the differences between the runs (Cochran, "Sampling Techniques" (1977), chapter 9, for the
    ratio of sums of clusters).
    """
    n = np.array([len(each) for each in runs])
    above = np.array([int((each > limit.bound).sum()) for each in runs])
    share = float(above.sum() / n.sum())
    half = math.inf
    if len(runs) > 1:
        error = math.sqrt(float(((above - share * n) ** 2).sum()) / (len(runs) - 1) / len(runs)) / float(n.mean())
        half = float(stdtrit(len(runs) - 1, (1 + DEFAULT_CONFIDENCE) / 2)) * error
    return Interval(
        estimate=share, low=max(share - half, 0.0), high=min(share + half, 1.0), confidence=DEFAULT_CONFIDENCE
    )


def show(row: Row) -> str:
    """Return the line of a case."""
    quota = f"quota {row['quota']:g}" if row["quota"] else "no quota"
    head = f"{row['model']:16} {quota:9} {row['target']:14}"
    if "problem" in row:
        return f"{head} {row['problem']}"
    sign = "=" if row["source"] == "measured" else "~"
    text = f"{head} {sign}{row['capacity']:.1f}/s [{row['low']:.1f}, {row['high'] or math.inf:.1f}]"
    text += f" of {row['throughput']:.1f}/s, {row['n_runs']} runs, host {min(row['speeds']):.2f} to "
    text += f"{max(row['speeds']):.2f}x as fast"
    for share, value, above, low, high in row["runs"]:
        text += f"; at {share:g}x {row['figure']} {value:.1f} ms, {above:.1%} above the limit [{low:.1%}, {high:.1%}]"
    return f"{text}; {judge(row)}; {row['deployment']}"


def judge(row: Row) -> str:
    """Return whether the target breaks within 10 % of the capacity."""
    if "runs" not in row:
        return "unknown"
    limit, ((_, _, below, below_low, _), (_, _, above, _, above_high)) = row["limit"], row["runs"]
    if below <= limit < above:
        return "right"
    return "WRONG" if below_low > limit or above_high <= limit else "undecided"


def report(rows: Sequence[Row]) -> None:
    """Print all cases, and how many are right."""
    for row in rows:
        print(show(row))
    verdicts = [judge(row) for row in rows]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in ("right", "WRONG", "undecided", "unknown"))
    print(f"{len(rows)} capacities, within 10 %: {counts}")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--figure", choices=("p50", "p90", "p95", "p99"), default="p99", help="figure of the target")
    parser.add_argument("--quota", type=float, help="CPU quota in CPUs, set with a cgroup")
    parser.add_argument("--budget", type=float, help="budget of a plan in seconds (default: the usual one)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each run at a rate")
    parser.add_argument("--seed", type=int, default=0)
    add_part_options(parser)
    arguments = parser.parse_args()
    if arguments.report:
        report(read_rows(arguments.report))
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
