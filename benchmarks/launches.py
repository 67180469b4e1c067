"""Measure what copies of a process bring over workers that are started on their own, and whether they are as fast.

    python -m benchmarks.launches [--launches 10] [MODEL ...]

Each launch has nine workers of the default, as a batch of screening has. The columns are the seconds until all of them
are ready, started on their own and as copies, and the ratio of the duration of a call in a copy to that in another
worker, with a 95% interval over the launches. For the ratio, four workers of each kind are measured in turn. The last
columns are by how much two workers of a launch differ, as the standard deviation of the logarithm of their ratio.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

from scipy.stats import t

from benchmarks.host import write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.knobs import DEFAULT
from ortune.measure.block_plan import PAIRED_LEAD_IN_SHARE, plan_block
from ortune.measure.compute_figures import compute_block_figure, to_cost
from ortune.measure.open import open_comparison, prepare_comparison
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate
from ortune.workload import Goal, InputOptions, Load

MODELS = ("squeezenet", "magika", "minilm_l6_int8")
N_SIDES = 9
N_OF_EACH = 4
N_ROUNDS = 20


def launch(executor: Executor, n: int, *, independent: bool) -> list[LiveCandidate]:
    """Return workers of the default."""
    found = []
    for answer in executor.launch([DEFAULT] * n, deadline_s=120, independent=independent):
        assert not isinstance(answer, Failure), answer.message
        found.append(answer)
    return found


def time_launch(executor: Executor, *, independent: bool) -> float:
    """Return how long a launch of nine workers takes, in seconds."""
    start_s = time.monotonic()
    lives = launch(executor, N_SIDES, independent=independent)
    spent_s = time.monotonic() - start_s
    for live in lives:
        live.close()
    return spent_s


def compare(executor: Executor, plan: BlockPlan) -> tuple[float, float, float]:
    """Return log-ratios of the durations of calls: copies to others, two copies, and two others."""
    sides = [*launch(executor, N_OF_EACH, independent=False), *launch(executor, N_OF_EACH, independent=True)]
    rounds = []
    for number in range(N_ROUNDS):
        costs = {}
        for position in list(range(len(sides)))[:: 1 if number % 2 else -1]:
            block = sides[position].measure(plan)
            assert isinstance(block, Block)
            costs[position] = math.log(to_cost("p50", compute_block_figure("p50", block, 0)))
        rounds.append(costs)
    for live in sides:
        live.close()
    own = N_OF_EACH
    all_copies = statistics.median(
        statistics.fmean(costs[side] - costs[side + own] for side in range(own)) for costs in rounds
    )
    copies = statistics.median(costs[0] - costs[1] for costs in rounds)
    others = statistics.median(costs[own] - costs[own + 1] for costs in rounds)
    return all_copies, copies, others


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--launches", type=int, default=10)
    arguments = parser.parse_args()
    print(write_header())
    print(f"{'model':16}{'started':>10}{'copies':>9}   {'copy / started':24}{'copies differ':>14}{'others differ':>14}")
    for model in arguments.models:
        setup = prepare_comparison(str(build(model)), Goal(load=Load()), InputOptions(shapes=shapes_of(model)))
        with open_comparison(setup) as opened:
            executor = opened.runner.executor
            plan = plan_block(opened.calibration.pace, largest_lead_in_share=PAIRED_LEAD_IN_SHARE)
            times_s = [
                [time_launch(executor, independent=independent) for independent in (True, False)]
                for _ in range(arguments.launches)
            ]
            found = [compare(executor, plan) for _ in range(arguments.launches)]
        started_s, copied_s = (statistics.median(column) for column in zip(*times_s, strict=True))
        ratios, copies, others = zip(*found, strict=True)
        mean = statistics.fmean(ratios)
        error = statistics.stdev(ratios) / math.sqrt(len(ratios)) * float(t.ppf(0.975, len(ratios) - 1))
        ratio = f"{math.exp(mean):.3f} [{math.exp(mean - error):.3f}, {math.exp(mean + error):.3f}]"
        print(
            f"{model:16}{started_s:8.2f} s{copied_s:7.2f} s   {ratio:24}"
            f"{100 * statistics.pstdev(copies, 0):12.1f} %{100 * statistics.pstdev(others, 0):12.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
