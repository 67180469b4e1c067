"""Record a landscape: measure every candidate for a model under a load, several times.

    python -m benchmarks.record MODEL [--name NAME] [--clients N] [--sessions N] [--rate R] [--objective p50]
        [--quota 1.0] [--beside COMMAND] [--only KNOB]

All candidates are launched several times, each time in a new order, in batches that include the default. Then the
candidates that look best are launched more often, so that the best one is known more precisely. The blocks are those
of a search. Contended blocks are not repeated: busy periods of the host are part of the landscape. This takes minutes.
Settings that give the same graph are one candidate, as in a search: the recorded space contains which ones are.
Run it on an idle host, after `python -m models.build MODEL`.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.host import describe_run
from benchmarks.inputs import shapes_of
from benchmarks.landscape import LANDSCAPES, N_QUANTILES, About, Recording
from benchmarks.loads import cpu_quota
from models.build import build
from ortune.host import HostClass, read_host
from ortune.knobs import Candidate
from ortune.measure.block_plan import plan_block
from ortune.measure.compute_figures import compute_block_figure, to_cost
from ortune.measure.open import open_comparison
from ortune.model import compute_digest
from ortune.program_options import parse_rate_per_s
from ortune.requests import SearchRequest
from ortune.tuning.prepare import prepare
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate
from ortune.workload import Goal

BATCH = 7
"""Candidates that are live together with the default."""

LOAD_DEADLINE_S = 60.0


class Recorder:
    """Measures batches, and stores a row for each block."""

    def __init__(self, executor: Executor, goal: Goal, plan: BlockPlan, seed: int) -> None:
        self.executor = executor
        self.goal = goal
        self.plan = plan
        self.rng = np.random.default_rng(seed)
        self.start_s = executor.now_s()
        self.rows: list[tuple[int, int, int, float, float, float, bool]] = []
        self.profiles: list[list[float]] = []
        self.loads_ns: list[int] = []
        self.launches: list[tuple[int, float]] = []
        self.failures: dict[int, Failure] = {}
        self.n_turns = 0

    def sweep(self, candidates: list[tuple[int, Candidate]], rounds: int, word: str) -> None:
        """Measure all candidates in batches, in a new order."""
        (default,) = [pair for pair in candidates if pair[0] == 0]
        others = [pair for pair in candidates if pair[0] and pair[0] not in self.failures]
        order = [others[k] for k in self.rng.permutation(len(others))]
        n_batches = math.ceil(len(order) / BATCH)
        for k in range(n_batches):
            self.batch([default, *order[k::n_batches]], rounds)
            print(f"\r{word}: {k + 1} of {n_batches} batches", end="", flush=True, file=sys.stderr)
        print(file=sys.stderr)

    def batch(self, batch: list[tuple[int, Candidate]], rounds: int) -> None:
        """Launch a batch and measure its rounds."""
        start_s = self.executor.now_s()
        answers = self.executor.launch([candidate.config for _, candidate in batch], deadline_s=LOAD_DEADLINE_S)
        self.launches.append((len(batch), self.executor.now_s() - start_s))
        lives: list[tuple[int, int, LiveCandidate]] = []
        for (number, _), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Failure):
                self.fail(number, answer)
            else:
                lives.append((number, len(self.loads_ns), answer))
                self.loads_ns.append(answer.session_info.load_ns)
        try:
            for _ in range(rounds):
                for k in self.rng.permutation(len(lives)):
                    number, launch, live = lives[k]
                    if number in self.failures:
                        continue
                    block = live.measure(self.plan)
                    if isinstance(block, Failure):
                        self.fail(number, block)
                    else:
                        self.keep(number, launch, block)
                self.n_turns += 1
        finally:
            for _, _, live in lives:
                live.close()

    def fail(self, number: int, failure: Failure) -> None:
        """Exclude a candidate from further batches. Exit if it is the default."""
        if number == 0:
            raise SystemExit(f"the default failed: {failure.message}")
        self.failures[number] = failure

    def keep(self, number: int, launch: int, block: Block) -> None:
        """Add a row."""
        name = self.goal.objective
        log_cost = math.log(to_cost(name, compute_block_figure(name, block, self.loads_ns[launch])))
        foreign = math.nan if block.foreign_share is None else block.foreign_share
        time_s = self.executor.now_s() - self.start_s
        self.rows.append((number, launch, self.n_turns, time_s, log_cost, foreign, block.contended))
        points = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
        quantiles = np.quantile(block.samples_ns, points)
        self.profiles.append((quantiles / np.median(block.samples_ns)).tolist())

    def best(self, n: int) -> list[int]:
        """Return the numbers of the best candidates so far, relative to the default in the same rounds."""
        base: dict[int, float] = {turn: value for number, _, turn, _, value, _, _ in self.rows if number == 0}
        found: dict[int, list[float]] = {}
        for number, _, turn, _, value, _, _ in self.rows:
            if number and number not in self.failures and turn in base:
                found.setdefault(number, []).append(value - base[turn])
        return sorted(found, key=lambda number: statistics.median(found[number]))[:n]


def record(arguments: argparse.Namespace, path: Path) -> None:
    """Record one landscape."""
    request = SearchRequest(
        model=str(build(arguments.model)),
        clients=arguments.clients,
        sessions=arguments.sessions,
        rate=arguments.rate,
        objective=arguments.objective,
        beside=arguments.beside,
        only=tuple(arguments.only or ()),
        shape=shapes_of(arguments.model),
    )
    goal = request.goal
    prepared = prepare(request)
    candidates = list(enumerate(prepared.space.candidates))
    quota = prepared.host.limits.quota
    with open_comparison(prepared) as opened:
        (executor,), check = opened.executors, opened.runner.check
        recorder = Recorder(executor, goal, plan_block(opened.calibration.pace), seed=arguments.seed)
        for number in range(arguments.sweeps):
            recorder.sweep(candidates, arguments.rounds, f"sweep {number + 1} of {arguments.sweeps}")
            check()
        best = {0, *recorder.best(arguments.refine)}
        for number in range(arguments.refinements):
            recorder.sweep(
                [candidates[k] for k in sorted(best)],
                arguments.rounds + 1,
                f"the best, {number + 1} of {arguments.refinements}",
            )
            check()
    each_s, start_s = fit_launches(recorder.launches)
    columns = dict(zip(list(Recording.COLUMNS)[:7], zip(*recorder.rows, strict=True), strict=True))
    recording = Recording(
        About(
            name=path.stem,
            model=f"{arguments.model} {compute_digest(prepared.model.files)}",
            traits=prepared.model.traits,
            host=HostClass.of(prepared.host),
            host_text="{host}, {versions}".format(**describe_run()),
            quota=quota.cpus if quota else None,
            background_load=arguments.beside,
            goal=goal,
            runtime=executor.runtime,
            recorded=datetime.datetime.now().astimezone().date().isoformat(),
            space=prepared.space,
            launch_s=each_s,
            start_s=start_s,
            block_ns=recorder.plan.duration_ns,
            failures=recorder.failures,
        ),
        **{name: np.asarray(values) for name, values in columns.items()},
        profile=np.asarray(recorder.profiles),
        load_ns=np.asarray(recorder.loads_ns),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    recording.save(path)
    print(
        f"{path.name}: {len(candidates)} candidates, {len(recorder.rows)} blocks of "
        f"{recorder.plan.duration_ns / 1e6:.0f} ms, {recording.contended.mean():.0%} contended, "
        f"{len(recorder.failures)} failed, {executor.now_s() - recorder.start_s:.0f} s, "
        f"{path.stat().st_size / 1000:.0f} kB"
    )


def fit_launches(launches: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the time that each worker adds to a launch, and the fixed time of a launch.

    All launches of a recording have about the same size, so the two cannot be separated. The fixed time is assumed to
    be that of one more worker, which is the start of an interpreter on an idle CPU.
    """
    each_s = statistics.median(duration_s / (n + 1) for n, duration_s in launches)
    return each_s, each_s


def main() -> None:
    """Record a landscape according to the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODEL", help="a model of models/manifest.toml")
    parser.add_argument("--name", help="name of the landscape (default: name of the model)")
    parser.add_argument("--clients", type=int, help="concurrent callers")
    parser.add_argument("--sessions", type=int, help="sessions that the callers share")
    parser.add_argument("--rate", type=parse_rate_per_s, help="requests per second")
    parser.add_argument(
        "--objective",
        help="p50, mean or throughput (default: p50, or throughput with several callers, or p99 with a rate)",
    )
    parser.add_argument("--quota", type=float, help="CPU quota in CPUs, set with a cgroup")
    parser.add_argument("--beside", metavar="COMMAND", help="command of the background load")
    parser.add_argument("--only", metavar="KNOB", action="append", help="vary only this knob; may be repeated")
    parser.add_argument("--sweeps", type=int, default=2, help="launches of every candidate")
    parser.add_argument("--rounds", type=int, default=3, help="blocks in each launch")
    parser.add_argument("--refine", type=int, default=14, help="candidates that are launched more often")
    parser.add_argument("--refinements", type=int, default=4, help="additional launches of these")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    path = LANDSCAPES / f"{arguments.name or arguments.model}.npz"
    if arguments.quota and not read_host().limits.quota:
        # The cgroup is for a second process, because this process could not leave it again.
        with cpu_quota(arguments.quota) as prefix:
            if prefix is not None:
                subprocess.run([*prefix, sys.executable, "-m", "benchmarks.record", *sys.argv[1:]], check=True)
        return
    record(arguments, path)


if __name__ == "__main__":
    main()
