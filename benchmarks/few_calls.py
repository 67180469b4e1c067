"""Simulate what a search says of p99 with too few calls for it, if calls of one side are rarely slow.

    python -m benchmarks.few_calls [--runs 1000] [--seed 0]

The default is throttled, as under a CPU quota: 15 % of its calls take 60 ms, all others 5 ms. The candidate takes 8 ms.
Of one side, a share of all calls takes 200 ms. The last scenario is like minilm_l6_int8 under a quota of half a CPU,
with one thread as the candidate. Each run has ten launches. Calls vary by 5 %, launches by 2 %.

- claimed: runs with the verdict "faster".
- wrong: runs with this verdict, although the candidate's p99 is not better.
- contained: runs whose interval contains the true ratio of p99.
- true statement: runs in which the calls that are said to be excluded are as rare as it says: those slower than the
  slowest one that was measured.

Target: wrong in at most 5 % of the runs, and a true statement in at least 95 %.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage import make_block
from benchmarks.host import write_header
from ortune.knobs import DEFAULT
from ortune.measure.block_runner import Round
from ortune.measure.comparison import Comparison, Noise
from ortune.measure.compute_figures import required_calls
from ortune.measure.evaluate import evaluate_side
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.paired_run import PairedRun, Side
from ortune.tuning.verdict import judge_confirmation
from ortune.worker import SessionInfo
from ortune.workload import Goal, Load

N_LAUNCHES = 10
CALL_SIGMA, LAUNCH_SIGMA = 0.05, 0.02
N_CALLS = (34, 100, 200, 344, 700, 1522)
MANY_CALLS = 2_000_000


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """How long calls of one side take: each value in ms has a share of the calls."""

    ms: tuple[float, ...]
    shares: tuple[float, ...]

    def draw(self, rng: np.random.Generator, n: int, factor: float = 1.0) -> NDArray[np.float64]:
        """Return the latencies of some calls in ns."""
        levels = rng.choice(self.ms, n, p=self.shares)
        return 1e6 * factor * levels * np.exp(rng.normal(0, CALL_SIGMA, n))


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies of the default and of the candidate."""

    name: str
    default: Latencies
    candidate: Latencies


def throttled(slow_share: float) -> Latencies:
    """Return latencies of the default under a quota."""
    return Latencies(ms=(5, 60, 200), shares=(0.85 - slow_share, 0.15, slow_share))


def steady(slow_share: float) -> Latencies:
    """Return latencies of a candidate that is not throttled."""
    return Latencies(ms=(8, 200), shares=(1 - slow_share, slow_share))


SCENARIOS = (
    *(
        Scenario(name=f"candidate slow in {share:.1%}", default=throttled(0), candidate=steady(share))
        for share in (0, 0.005, 0.01, 0.015, 0.02)
    ),
    *(
        Scenario(name=f"default slow in {share:.1%}, else equal", default=steady(share), candidate=steady(0))
        for share in (0.005, 0.02)
    ),
    Scenario(
        name="both are throttled",
        default=Latencies(ms=(60, 102, 178), shares=(0.2, 0.6, 0.2)),
        candidate=Latencies(ms=(60, 92, 154), shares=(0.25, 0.71, 0.04)),
    ),
)


def draw_run(scenario: Scenario, n_calls: int, rng: np.random.Generator) -> PairedRun:
    """Return a run of both sides with so many calls of each."""
    run = PairedRun([Side(name="default", config=DEFAULT), Side(name="candidate", config=DEFAULT)], Load())
    sizes = np.diff(np.linspace(0, n_calls, N_LAUNCHES + 1).astype(int))
    session = SessionInfo(load_ns=1, providers=("CPUExecutionProvider",))
    for number, size in enumerate(sizes):
        blocks = {}
        for position, latencies in enumerate((scenario.default, scenario.candidate)):
            samples = latencies.draw(rng, int(size), math.exp(rng.normal(0, LAUNCH_SIGMA)))
            blocks[position] = make_block(samples)
            run.loaded[position].append(session)
        run.launches.append(
            [Round(blocks=blocks, loads_ns={0: 1, 1: 1}, failures={}, contended=False, at_s=float(number))]
        )
    return run


def judge(job: tuple[Scenario, int, int, int]) -> list[float]:
    """Return the shares of the columns, given a scenario, a number of calls, a number of runs and a seed."""
    scenario, n_calls, n_runs, seed = job
    rng = np.random.default_rng([seed, n_calls, *scenario.name.encode()])
    default, candidate = (latencies.draw(rng, MANY_CALLS) for latencies in (scenario.default, scenario.candidate))
    truth = float(np.quantile(default, 0.99) / np.quantile(candidate, 0.99))
    goal = Goal(objectives=("p99",))
    noise = Noise(n_blocks=0, n_contended=0, n_repeated=0, regime="quiet")
    counts = np.zeros(4)
    for _ in range(n_runs):
        run = draw_run(scenario, n_calls, rng)
        rows = tuple(evaluate_side(run, side, goal, DEFAULT_CONFIDENCE, DEFAULT_CONFIDENCE) for side in (0, 1))
        comparison = Comparison(objective="p99", rows=rows, calls_needed=required_calls("p99"), noise=noise)
        verdict, _ = judge_confirmation(goal, comparison)
        speedup, few = rows[1].speedup, rows[1].few_calls
        assert speedup
        is_claimed = verdict == "faster"
        is_true = few is None or float(np.mean(candidate > few.slowest_ns)) <= 1 / few.one_in
        counts += (is_claimed, is_claimed and truth <= 1.02, speedup.low <= truth <= speedup.high, is_true)
    return [truth, *(counts / n_runs)]


def main() -> None:
    """Print a table of all scenarios and numbers of calls."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="runs of each case")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    arguments = parser.parse_args()
    print(write_header())
    print(f"{arguments.runs} runs of each case, seed {arguments.seed}; p99 needs {required_calls('p99')} calls\n")
    print(f"{'':34}{'calls':>6}{'true ratio':>12}{'claimed':>9}{'wrong':>8}{'contained':>11}{'true statement':>16}")
    jobs = [(scenario, n, arguments.runs, arguments.seed) for scenario in SCENARIOS for n in N_CALLS]
    with ProcessPoolExecutor() as pool:
        for (scenario, n, *_), (truth, *shares) in zip(jobs, pool.map(judge, jobs), strict=True):
            claimed, wrong, contained, is_true = shares
            print(
                f"{scenario.name:34}{n:6}{truth:12.2f}{claimed:9.1%}{wrong:8.1%}{contained:11.1%}{is_true:16.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
