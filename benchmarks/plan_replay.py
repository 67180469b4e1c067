"""Replay the search of `ortune plan` on simulated hosts, and compare its choice with the exhaustive optimum.

    python -m benchmarks.plan_replay [--replays 200] [--seed 0] [--json FILE]

A replay draws a host with 16 to 96 cores in four nodes, and a model. Throughput as a function of processes and threads
follows from assumptions that are drawn for each replay:

- A call has a serial part (Amdahl's law), 1 to 25 % of its time with one thread. Each thread adds 0.01 to 1 % of it,
  for waking and waiting for the others.
- Threads beyond a node are slower by 5 to 60 %, because memory and caches are remote.
- Processes that do not fit side by side into a node straddle two nodes, and lose up to 15 %.
- Memory bandwidth limits the throughput of the host smoothly, to 0.3 to 4 times what all cores could do without it.
- Each process has a copy of the weights. Where those of a node do not fit into its L3 cache, calls are slower by up to
  40 %, in proportion to the part that does not fit.
- More threads than cores slow all calls down by the overload, and by 20 to 150 % of it again, because threads spin.
- Launches differ by 0.3 to 2 %, blocks by 0.5 to 3 %, and the host drifts.

All stages of the plan are run: screening, choice of finalists, confirmation, recommendation. The regret is the part of
the optimum's true throughput that the recommended deployment lacks. The optimum is that of all pairs of numbers of
processes and threads with at most two threads per core in total. Each process has one caller: several callers in one
process with one thread would often be as good, and hide how good the numbers of processes and threads are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from ortune.compare.open import start_comparison
from ortune.knobs import DEFAULT, Config, ids
from ortune.planning.deployment import Deployment
from ortune.planning.options import PlanOptions
from ortune.planning.run import run_stages
from ortune.planning.space import MOST_THREADS_PER_CORE, make_deployment_space
from ortune.worker import Failure
from ortune.workload import Goal, Load
from ortune.workload.load import MOST_PROCESSES
from tests.simulation import SimulatedExecutor, make_host

CORES = (16, 24, 32, 48, 64, 96)
N_NODES = 4
NEAR = 0.03
CALL_NS = 20e6
BUDGET_S = 600.0
FREE_BYTES = 64 << 30


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput as a function of processes and threads; the attributes are the assumptions above.

    Attributes:
        n_cores: Cores of the host.
        serial: Serial part of a call.
        wake: Part of a call that each thread adds.
        remote: How much slower threads beyond a node are.
        straddle: Loss of processes that straddle two nodes.
        bandwidth: Limit of the throughput, relative to all cores without a limit.
        copies: Copies of the weights that fit into the L3 cache of a node.
        miss: How much slower calls are if none fits.
        spin: Part of an overload that is lost again.
    """

    n_cores: int
    serial: float
    wake: float
    remote: float
    straddle: float
    bandwidth: float
    copies: float
    miss: float
    spin: float

    def find_throughput(self, processes: int, threads: int) -> float:
        """Return calls per time of a call with one thread on an idle host."""
        node = self.n_cores / N_NODES
        beyond = max(threads - node, 0) / threads
        call = self.serial + (1 - self.serial) / threads * (1 + self.remote * beyond) + self.wake * (threads - 1)
        if threads <= node and threads * (node // threads) < node and processes > node // threads:
            call *= 1 + self.straddle * (1 - threads * (node // threads) / node)
        copies = processes / N_NODES if threads <= node else processes * math.ceil(threads / node) / N_NODES
        call *= 1 + self.miss * max(1 - self.copies / copies, 0.0)
        overload = max(processes * threads / self.n_cores, 1.0)
        call *= overload * (1 + self.spin * (overload - 1))
        limit = self.bandwidth * self.n_cores
        unlimited = processes / call
        return float(unlimited / (1 + (unlimited / limit) ** 4) ** 0.25)

    def find_optimum(self) -> tuple[int, int]:
        """Return the numbers of processes and threads with the highest throughput."""
        most = min(MOST_PROCESSES, MOST_THREADS_PER_CORE * self.n_cores)
        pairs = (
            pair
            for pair in itertools.product(range(1, most + 1), range(1, self.n_cores + 1))
            if pair[0] * pair[1] <= MOST_THREADS_PER_CORE * self.n_cores
        )
        return max(pairs, key=lambda pair: self.find_throughput(*pair))


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        seed: Its seed.
        n_cores: Cores of the host.
        optimum: Processes and threads of the optimum.
        gain: Throughput of the optimum relative to the default deployment.
        chosen: Processes and threads of the recommended deployment.
        regret: Part of the optimum's throughput that it lacks.
        worse: Whether it is worse than the default deployment.
        n_screened: Deployments that were measured in screening.
        simulated_s: Simulated time that it took.
    """

    seed: int
    n_cores: int
    optimum: tuple[int, int]
    gain: float
    chosen: tuple[int, int]
    regret: float
    worse: bool
    n_screened: int
    simulated_s: float


def draw_surface(rng: np.random.Generator) -> Surface:
    """Return a random host and model."""
    n_cores = int(rng.choice(CORES))
    return Surface(
        n_cores=n_cores,
        serial=float(np.exp(rng.uniform(np.log(0.01), np.log(0.25)))),
        wake=float(np.exp(rng.uniform(np.log(1e-4), np.log(1e-2)))),
        remote=float(rng.uniform(0.05, 0.6)),
        straddle=float(rng.uniform(0, 0.15)),
        bandwidth=float(np.exp(rng.uniform(np.log(0.3), np.log(4)))),
        copies=float(np.exp(rng.uniform(np.log(0.25), np.log(16)))),
        miss=float(rng.uniform(0, 0.4)),
        spin=float(rng.uniform(0.2, 1.5)),
    )


def replay(seed: int) -> Replay:
    """Plan on a simulated host, and return how good the choice is."""
    rng = np.random.default_rng([seed, 1])
    surface = draw_surface(rng)

    def count_threads(config: Config) -> int:
        return int(config.session_options.get(ids.INTRA_OP_NUM_THREADS, surface.n_cores))

    def latency(config: Config, load: Load) -> float:
        throughput = surface.find_throughput(load.processes, count_threads(config))
        return CALL_NS * load.n_callers / throughput

    executor = SimulatedExecutor(
        lambda config: CALL_NS,
        seed=seed,
        block_sigma=float(np.exp(rng.uniform(np.log(0.005), np.log(0.03)))),
        launch_sigma=float(np.exp(rng.uniform(np.log(0.003), np.log(0.02)))),
        latency_under=latency,
    )
    (first,) = executor.launch([DEFAULT], deadline_s=9)
    assert not isinstance(first, Failure)
    goal = Goal(objectives=("throughput",))
    opened = start_comparison(executor, first, goal, first_launch_s=0.2, seed=seed, free_bytes=FREE_BYTES)
    host = make_host(surface.n_cores, n_nodes=N_NODES)
    space = msgspec.structs.replace(make_deployment_space(host, DEFAULT), settings=(), n_pinned=0, most_clients=1)
    outcome = run_stages(space, opened, PlanOptions(budget_s=BUDGET_S))
    chosen: Deployment = outcome.rows[outcome.recommended].deployment
    optimum = surface.find_optimum()
    best = surface.find_throughput(*optimum)
    pair = (chosen.processes, count_threads(chosen.config))
    found = surface.find_throughput(*pair)
    default = surface.find_throughput(1, surface.n_cores)
    return Replay(
        seed=seed,
        n_cores=surface.n_cores,
        optimum=optimum,
        gain=best / default,
        chosen=pair,
        regret=1 - found / best,
        worse=found < default * (1 - 1e-9),
        n_screened=len(outcome.screened),
        simulated_s=executor.time_s,
    )


def report(replays: Sequence[Replay]) -> None:
    """Print a line for each number of cores, and one for all."""
    print("cores  replays  within 3 %  mean regret  90th percentile  worse than default  screened  optimum's gain")
    for n_cores in (*CORES, 0):
        some = [each for each in replays if n_cores in {0, each.n_cores}]
        if not some:
            continue
        regrets = np.array([each.regret for each in some])
        print(
            f"{n_cores or 'all':>5}  {len(some):7}  {np.mean(regrets <= NEAR):10.1%}  {regrets.mean():11.2%}  "
            f"{np.quantile(regrets, 0.9):15.2%}  {sum(each.worse for each in some):18}  "
            f"{np.mean([each.n_screened for each in some]):8.1f}  "
            f"{np.exp(np.mean([math.log(each.gain) for each in some])):13.2f}x"
        )
    worst = sorted(replays, key=lambda each: -each.regret)[:8]
    print("\nlargest regrets:")
    for each in worst:
        print(
            f"  seed {each.seed}: {each.regret:.2%} on {each.n_cores} cores, chosen {each.chosen[0]} processes x "
            f"{each.chosen[1]} threads, optimum {each.optimum[0]} x {each.optimum[1]}"
        )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=200, help="number of replays")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first replay")
    parser.add_argument("--json", type=Path, help="where to write the result of each replay")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.replays)
    with ProcessPoolExecutor() as pool:
        replays = list(pool.map(replay, seeds, chunksize=5))
    print(f"{arguments.replays} replays from seed {arguments.seed}, a budget of {BUDGET_S:.0f} simulated seconds\n")
    report(replays)
    if arguments.json:
        arguments.json.write_text(json.dumps([msgspec.to_builtins(each) for each in replays], indent=1) + "\n")


if __name__ == "__main__":
    main()
