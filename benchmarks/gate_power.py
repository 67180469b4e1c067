"""Measure how often gates are wrong and how long they take, by replay of recorded noise and live on this host.

    python -m benchmarks.gate_power replay [--gates 300] [--slowdown PERCENT]... [--ours] [--json FILE]
    python -m benchmarks.gate_power live [--model squeezenet_qdq] [--same 60] [--ten 60] [--five 40] [--json FILE]
    python -m benchmarks.gate_power hog [--model squeezenet_qdq] [--gates 30] [--json FILE]
    python -m benchmarks.gate_power config [--model squeezenet] [--gates 10] [--json FILE]

`replay` draws blocks from the landscapes in benchmarks/landscapes, whose noise, drift and busy periods were recorded
on a shared host, and multiplies the costs of head by a known factor: in all launches, or by its square in half of them,
which is the same on average. The rules of other tools get the same noise:
pytest-benchmark's --benchmark-compare-fail=median:10% against a stored run, and asv's (two interleaved rounds,
Mann-Whitney at 0.002, and a factor of 1.1). `--ours` leaves them out.

`live` gates a model against itself, with a worker for head whose calls take longer by a given share
(benchmarks/slow_worker.py). `hog` does this while two processes compute all the time. `config` gates configs that are
known to be slower. Run these on an idle host.

Sources: pytest-benchmark's documentation ("Comparing past runs"); `asv_runner` and asv/commands/compare.py of asv 0.6.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from benchmarks.landscape import Landscape, load_landscape, recorded_paths
from benchmarks.replay import ReplayExecutor, open_replay
from models.build import build
from ortune.gates.prepare import N_SIDES
from ortune.gates.results import Gate, GateSide
from ortune.gates.run import run_gate
from ortune.gates.sequential_test import SequentialTest, run_test
from ortune.knobs import DEFAULT, Config
from ortune.measure.block_plan import RunPlan, fewest_rounds, plan_block
from ortune.measure.compute_figures import compute_block_figure, to_cost
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate
from ortune.workload import Goal, InputOptions

SLOWDOWNS = (0.0, 0.03, 0.05, 0.10, 0.15)
ALLOWED = 1.03
BUDGET_S = 180.0

LATER_S = 3600.0
"""Time between a stored run and the run that is compared with it."""

BENCHMARK_S = 1.0
"""Time for which pytest-benchmark runs a function (--benchmark-max-time)."""

ASV_ROUNDS = 2
ASV_SAMPLES = 10
ASV_FACTOR = 1.1
ASV_P = 0.002
"""asv's rounds, samples per round (`repeat` is at most 10), `--factor` of `asv continuous`, and its significance."""

SLOW_WORKER = Path(__file__).parent / "slow_worker.py"


# Gates by replay.


class Slowed:
    """A candidate of a landscape whose calls take longer by a factor."""

    def __init__(self, live: LiveCandidate, factor: float) -> None:
        self.config, self.session_info = live.config, live.session_info
        self._live, self._factor = live, factor

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure a block and multiply its latencies."""
        block = self._live.measure(plan)
        if isinstance(block, Failure):
            return block
        factor = self._factor
        return msgspec.structs.replace(
            block,
            samples_ns=(block.samples_ns * factor).astype(np.int64),
            n_calls=block.n_calls / factor,
            service_ns=block.service_ns * factor,
        )

    def close(self) -> None:
        """Close the candidate."""
        self._live.close()


class SlowedExecutor:
    """Launches candidates of a landscape whose calls take longer by a factor.

    Args:
        executor: Launches the candidates.
        factor: The factor.
        rng: Decides which half of the launches takes longer, by the square of the factor; None for all of them alike.
    """

    def __init__(self, executor: Executor, factor: float, rng: np.random.Generator | None = None) -> None:
        self.runtime = executor.runtime
        self._executor, self._factor, self._rng = executor, factor, rng

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch candidates."""
        answers = self._executor.launch(configs, deadline_s=deadline_s, independent=independent)
        return [answer if isinstance(answer, Failure) else Slowed(answer, self._draw_factor()) for answer in answers]

    def _draw_factor(self) -> float:
        if self._rng is None:
            return self._factor
        return self._factor**2 if self._rng.random() < 0.5 else 1.0

    def now_s(self) -> float:
        """Return the time of the replay."""
        return self._executor.now_s()


def gate_by_replay(
    landscape: Landscape, factor: float, seed: int, *, by_launch: bool = False
) -> tuple[str, float, int]:
    """Return the decision of `ortune gate`, and the time and the blocks that it took in the replay."""
    opened = open_replay(landscape, seed=seed)
    (executor,) = opened.executors
    goal, calibration = landscape.goal, opened.calibration
    block = plan_block(calibration.pace)
    test = SequentialTest(
        goal=goal,
        allowed={goal.objective: ALLOWED},
        plan=RunPlan(block=block, launches=None, rounds=fewest_rounds(block)),
        launch_s=N_SIDES * calibration.launch_s,
        start_s=0.0,
        end_s=BUDGET_S,
    )
    rng = np.random.default_rng([seed, 5]) if by_launch else None
    executors = (executor, SlowedExecutor(executor, factor, rng))
    run, interim = run_test(test, opened.runner, executors, (DEFAULT, DEFAULT))
    return interim.decision, executor.now_s(), N_SIDES * run.n_rounds


def samples_of(executor: ReplayExecutor, factor: float, n_blocks: int, block: BlockPlan) -> list[float]:
    """Return the costs of the blocks of one launch."""
    (live,) = executor.launch([DEFAULT], deadline_s=60)
    assert not isinstance(live, Failure)
    name = executor.landscape.goal.objective
    found = []
    for _ in range(n_blocks):
        answer = live.measure(block)
        assert not isinstance(answer, Failure)
        found.append(factor * to_cost(name, compute_block_figure(name, answer, live.session_info.load_ns)))
    return found


def pytest_benchmark(landscape: Landscape, factor: float, seed: int, *, later_s: float) -> str:
    """Return the decision of pytest-benchmark: the median may be 10 % above that of an earlier run."""
    executor = ReplayExecutor(landscape, seed=seed)
    block = short_block(landscape)
    n_blocks = max(round(BENCHMARK_S * 1e9 / block.duration_ns), 5)
    before = statistics.median(samples_of(executor, 1.0, n_blocks, block))
    executor.spend(later_s)
    after = statistics.median(samples_of(executor, factor, n_blocks, block))
    return "fail" if after > 1.10 * before else "pass"


def asv(landscape: Landscape, factor: float, seed: int) -> str:
    """Return the decision of asv: alternating rounds of both sides, a rank test, and a factor."""
    from scipy.stats import mannwhitneyu

    executor = ReplayExecutor(landscape, seed=seed)
    block = short_block(landscape)
    sides: tuple[list[float], list[float]] = ([], [])
    for _ in range(ASV_ROUNDS):
        for side, side_factor in zip(sides, (1.0, factor), strict=True):
            side.extend(samples_of(executor, side_factor, ASV_SAMPLES, block))
    ratio = statistics.median(sides[1]) / statistics.median(sides[0])
    differs = mannwhitneyu(*sides, alternative="two-sided").pvalue < ASV_P
    return "fail" if differs and ratio > ASV_FACTOR else "pass"


def short_block(landscape: Landscape) -> BlockPlan:
    """Return a block of 50 ms."""
    return BlockPlan(load=landscape.goal.load, duration_ns=50_000_000, lead_in_ns=0, min_calls=1, deadline_s=60)


@cache
def landscapes() -> list[Landscape]:
    """Return the recorded landscapes that can be replayed."""
    return [landscape for path in recorded_paths() if not (landscape := load_landscape(path)).has_queue]


RULES: dict[str, Callable[[Landscape, float, int], tuple[str, float, int]]] = {
    "ortune gate": gate_by_replay,
    "ortune gate, half of the launches": functools.partial(gate_by_replay, by_launch=True),
    "pytest-benchmark, median 10 %, stored": lambda *a: (pytest_benchmark(*a, later_s=LATER_S), 0.0, 0),
    "pytest-benchmark, one after the other": lambda *a: (pytest_benchmark(*a, later_s=0.0), 0.0, 0),
    "asv continuous": lambda *a: (asv(*a), 0.0, 0),
}


def replay_one(task: tuple[str, int, float, int]) -> tuple[str, float, int]:
    """Run one gate."""
    rule, number, slowdown, seed = task
    with threadpool_limits(limits=1):
        return RULES[rule](landscapes()[number], 1 + slowdown, seed)


def replay(n_gates: int, slowdowns: Sequence[float], rules: Sequence[str], path: Path | None) -> None:
    """Print a table of decisions, and the time and blocks of ortune's own gates."""
    found: dict[str, Any] = {"gates": n_gates, "rows": []}
    n = len(landscapes())
    print(f"{n_gates} gates for each figure, over {n} recorded landscapes; allowed 3 %; share that fails / passes, %")
    print(f"{'rule':<40}" + "".join(f"{100 * slowdown:>14.0f} %" for slowdown in slowdowns))
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for rule in rules:
            cells = []
            for slowdown in slowdowns:
                tasks = [(rule, number % n, slowdown, number) for number in range(n_gates)]
                outcomes = list(pool.map(replay_one, tasks, chunksize=4))
                decisions = [decision for decision, _, _ in outcomes]
                fails, passes = decisions.count("fail"), decisions.count("pass")
                row = {
                    "rule": rule,
                    "slowdown": slowdown,
                    "fail": fails,
                    "pass": passes,
                    "inconclusive": n_gates - fails - passes,
                    "median_s": statistics.median(spent for _, spent, _ in outcomes),
                    "median_blocks": statistics.median(blocks for *_, blocks in outcomes),
                    "mean_blocks": statistics.fmean(blocks for *_, blocks in outcomes),
                }
                found["rows"].append(row)
                cells.append(f"{100 * fails / n_gates:6.2f} /{100 * passes / n_gates:6.2f} ")
            print(f"{rule:<40}" + " ".join(cells), flush=True)
    for title, name in (("seconds, median", "median_s"), ("blocks, median", "median_blocks"), ("mean", "mean_blocks")):
        cells = [f"{row[name]:14.0f}  " for row in found["rows"] if row["rule"] == "ortune gate"]
        print(f"{'ortune gate: ' + title:<40}" + "".join(cells))
    if path:
        path.write_text(json.dumps({**describe_run(), **found}, indent=1) + "\n")


# Live gates.


def make_gate(model: str, config: Config, command: tuple[str, ...], seed: int, budget_s: float) -> Gate:
    """Return a gate of a model with a config against itself."""
    path = str(build(model))
    return Gate(
        base=GateSide(text=model, model=path),
        head=GateSide(text=model, model=path, config=config, command=command),
        goal=Goal(),
        slowdowns={"p50": ALLOWED - 1},
        budget_s=budget_s,
        inputs=InputOptions(shapes=shapes_of(model)),
        seed=seed,
    )


def gate_live(model: str, share: float, seed: int, config: Config = DEFAULT, budget_s: float = BUDGET_S) -> Any:
    """Run one gate live, and return its row."""
    command = (sys.executable, "-P", str(SLOW_WORKER), str(share)) if share else ()
    start = time.monotonic()
    result = run_gate(make_gate(model, config, command, seed, budget_s))
    slowdown = result.findings[0].slowdown if result.findings else None
    return {
        "share": share,
        "decision": result.decision,
        "wall_s": time.monotonic() - start,
        "slowdown": slowdown and slowdown.estimate,
        "low": slowdown and slowdown.low,
        "high": slowdown and slowdown.high,
        "pairs": result.pairs,
        "launches": result.launches,
        "regime": result.noise.regime,
        "reason": result.reason,
    }


def summarize(rows: list[Any], title: str) -> None:
    """Print the decisions and times of some gates."""
    decisions = [row["decision"] for row in rows]
    times = sorted(row["wall_s"] for row in rows)
    counts = ", ".join(f"{decisions.count(decision)} {decision}" for decision in ("pass", "fail", "inconclusive"))
    print(
        f"{title:<34} {counts}; {statistics.median(times):.0f} s by the median, {times[0]:.0f} to {times[-1]:.0f} s",
        flush=True,
    )


def live(model: str, counts: dict[float, int], path: Path | None) -> None:
    """Gate a model against itself with injected slowdowns, in turn."""
    rows: list[Any] = []
    order = sorted(
        ((number / count, share) for share, count in counts.items() for number in range(count)), key=lambda pair: pair
    )
    for seed, (_, share) in enumerate(order):
        rows.append(gate_live(model, share, seed))
        save(path, model, rows)
    for share in counts:
        summarize([row for row in rows if row["share"] == share], f"{model}, {100 * share:.0f} % slower")


def hog(model: str, n_gates: int, budget_s: float, path: Path | None) -> None:
    """Gate a model against itself while two processes compute all the time."""
    code = "while True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    rows: list[Any] = []
    try:
        for seed in range(n_gates):
            rows.append(gate_live(model, 0.0, seed, budget_s=budget_s))
            save(path, model, rows)
    finally:
        for process in hogs:
            process.kill()
    summarize(rows, f"{model}, beside two hogs, at most {budget_s:.0f} s")


SLOWER = {
    "no spinning": Config(session_config={"session.intra_op.allow_spinning": "0"}),
    "blocks of two": Config(session_config={"session.dynamic_block_base": "2"}),
    "one thread": Config(session_options={"intra_op_num_threads": 1}),
}
"""Configs that are slower than the default for many models on two cores."""


def config(model: str, n_gates: int, path: Path | None) -> None:
    """Gate configs that are slower than the default."""
    rows: list[Any] = []
    for seed in range(n_gates):
        for name, slower in SLOWER.items():
            rows.append({**gate_live(model, 0.0, seed, config=slower), "config": name})
            save(path, model, rows)
    for name in SLOWER:
        ours = [row for row in rows if row["config"] == name]
        summarize(ours, f"{model}, {name}")
        ratios = [row["slowdown"] for row in ours if row["slowdown"]]
        print(f"{'':<34} {min(ratios):.3f} to {max(ratios):.3f} times as slow")


def save(path: Path | None, model: str, rows: list[Any]) -> None:
    """Write the rows so far."""
    if path:
        path.write_text(json.dumps({**describe_run(), "model": model, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replay", "live", "hog", "config"])
    parser.add_argument("--gates", type=int)
    parser.add_argument("--slowdown", type=float, action="append", help="slowdown in percent, with `replay`")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--model", default="squeezenet_qdq")
    parser.add_argument("--same", type=int, default=60)
    parser.add_argument("--ten", type=int, default=60)
    parser.add_argument("--five", type=int, default=40)
    parser.add_argument("--budget", type=float, default=60.0, help="budget of a gate with `hog`, in seconds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(write_header())
    if options.what == "replay":
        slowdowns = [share / 100 for share in options.slowdown] if options.slowdown else SLOWDOWNS
        replay(
            options.gates or 300,
            slowdowns,
            [rule for rule in RULES if not options.ours or rule.startswith("ortune gate")],
            options.json,
        )
    elif options.what == "live":
        live(options.model, {0.0: options.same, 0.05: options.five, 0.10: options.ten}, options.json)
    elif options.what == "hog":
        hog(options.model, options.gates or 30, options.budget, options.json)
    else:
        config(options.model, options.gates or 10, options.json)


if __name__ == "__main__":
    main()
