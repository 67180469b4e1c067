"""Replay the search of `ortune plan` on simulated hosts, and compare its choice with the exhaustive optimum.

    python -m benchmarks.plan_replay [--replays 200] [--seed 0] [--json FILE]

A replay draws a host with 16 to 96 cores in four nodes, and a model. Throughput as a function of processes and threads
follows from assumptions that are drawn for each replay:

- A call has a serial part (Amdahl's law), 1 to 25 % of its time with one thread. Each thread adds 0.01 to 1 % of it,
  for waking and waiting for the others.
- Crossing nodes costs: threads of a process that run on another node than the first one are slower by 5 to 60 %,
  because memory and caches are remote. Where a node has several L3 domains, threads in another domain are slower by up
  to 20 %.
- Threads of a process that is not pinned run wherever the scheduler puts them. They cross some of the borders that they
  could avoid, between 20 and 100 % of them, and move between nodes, which costs up to 10 %.
- Processes that are pinned to cores of their own cannot use cores that others leave idle, and lose up to 4 %. Where
  they share an L3 domain or a node with others, they lose half or a quarter of that, but more threads than cores in one
  domain or node slow down its processes.
- Memory bandwidth limits the throughput of the host smoothly, to 0.3 to 4 times what all cores could do without it.
- Each process has a copy of the weights. Where those of a node do not fit into its L3 cache, calls are slower by up to
  40 %, in proportion to the part that does not fit.
- More threads than cores slow all calls down by the overload, and by 20 to 150 % of it again, because threads spin.
- Launches differ by 0.3 to 2 %, blocks by 0.5 to 3 %, and the host drifts.

All stages of the plan are run: screening, choice of finalists, confirmation, recommendation. The regret is the part of
the optimum's true throughput that the recommended deployment lacks. The optimum is that of all numbers of processes
and threads with at most two threads per core in total, each without pinning and with all placements of the host. Each
process has one caller: several callers in one process with one thread would often be as good, and hide how good the
numbers of processes and threads are.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.host import describe_run, write_header
from ortune.bounds import MOST_PROCESSES
from ortune.host import Cpus, Host, place_processes
from ortune.host.placement import list_units
from ortune.knobs import DEFAULT, Config, ids
from ortune.measure.open import start_comparison
from ortune.planning.deployment import Deployment
from ortune.planning.options import PlanOptions
from ortune.planning.run import run_stages
from ortune.planning.space import MOST_THREADS_PER_CORE, make_deployment_space
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate
from ortune.workload import Goal, Load
from tests.simulated import SimulatedExecutor, make_host

CORES = (16, 24, 32, 48, 64, 96)
N_NODES = 4
DOMAINS = (1, 2, 4)
"""L3 domains of a node."""

NEAR = 0.03
CALL_NS = 20e6
BUDGET_S = 600.0
FREE_BYTES = 64 << 30


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput as a function of processes, threads and placement; the attributes are the assumptions above.

    Attributes:
        host: The host.
        serial: Serial part of a call.
        wake: Part of a call that each thread adds.
        remote: How much slower threads on another node are.
        far: How much slower threads in another L3 domain of the node are.
        scatter: Part of the borders that threads cross without need, unless they are pinned.
        move: Loss of threads that are not pinned and move between nodes.
        rigid: Loss of processes that cannot use the idle cores of others.
        bandwidth: Limit of the throughput, relative to all cores without a limit.
        copies: Copies of the weights that fit into the L3 cache of a node.
        miss: How much slower calls are if none fits.
        spin: Part of an overload that is lost again.
    """

    host: Host
    serial: float
    wake: float
    remote: float
    far: float
    scatter: float
    move: float
    rigid: float
    bandwidth: float
    copies: float
    miss: float
    spin: float

    @property
    def n_cores(self) -> int:
        """Cores of the host."""
        return len(self.host.topology.cores)

    @property
    def node_size(self) -> int:
        """Cores of a node."""
        return self.n_cores // N_NODES

    @property
    def domain_size(self) -> int:
        """Cores of an L3 domain."""
        return len(self.host.topology.l3_domains[0])

    def find_throughput(self, processes: int, threads: int, cpus: tuple[Cpus, ...] = ()) -> float:
        """Return calls per time of a call with one thread on an idle host.

        Args:
            processes: Processes.
            threads: Threads of each.
            cpus: CPUs of each process; empty if they are not pinned.
        """
        copies = processes / N_NODES
        copies *= math.ceil(threads / self.node_size)
        slow = 1 + self.miss * max(1 - self.copies / copies, 0.0)
        if cpus:
            unlimited = sum(1 / call for call in self._find_pinned_calls(threads, cpus)) / slow
        else:
            unlimited = processes / (self._find_free_call(processes, threads) * slow)
        limit = self.bandwidth * self.n_cores
        return float(unlimited / (1 + (unlimited / limit) ** 4) ** 0.25)

    def _find_free_call(self, processes: int, threads: int) -> float:
        """Return the time of a call in each of some processes that are not pinned."""
        shares = []
        for size, n_parts in ((self.node_size, N_NODES), (self.domain_size, self.n_cores // self.domain_size)):
            needed = max(threads - size, 0) / threads
            most = (1 - 1 / n_parts) * (threads - 1) / threads
            shares.append(needed + self.scatter * max(most - needed, 0.0))
        # A process with a thread on each core has nowhere to move.
        call = self._find_call(threads, *shares) * (1 + self.move * (1 - threads / self.n_cores))
        return call * self._find_slowdown(processes * threads / self.n_cores)

    def _find_pinned_calls(self, threads: int, cpus: tuple[Cpus, ...]) -> list[float]:
        """Return the time of a call in each of some processes that are pinned."""
        calls: dict[Cpus, float] = {}
        for own in cpus:
            if own in calls:
                continue
            sharing = cpus.count(own)
            sizes = (self.node_size, self.domain_size)
            at_home = (max(Counter(cpu // size for cpu in own).values()) for size in sizes)
            shares = [max(threads - count, 0) / threads for count in at_home]
            looseness = 0.5
            if sharing == 1:
                looseness = 1.0
            elif len(own) == self.node_size:
                looseness = 0.25
            call = self._find_call(threads, *shares) * (1 + self.rigid * looseness)
            calls[own] = call * self._find_slowdown(sharing * threads / len(own))
        return [calls[own] for own in cpus]

    def _find_call(self, threads: int, off_node: float, off_domain: float) -> float:
        """Return the time of a call with enough cores, given the parts of the threads that are not at home."""
        slower = 1 + self.remote * off_node + self.far * max(off_domain - off_node, 0.0)
        return self.serial + (1 - self.serial) / threads * slower + self.wake * (threads - 1)

    def _find_slowdown(self, load: float) -> float:
        """Return how much slower calls are with so many threads for each core."""
        overload = max(load, 1.0)
        return overload * (1 + self.spin * (overload - 1))

    def find_optimum(self) -> Choice:
        """Return the numbers of processes and threads and the placement with the highest throughput."""
        most = min(MOST_PROCESSES, MOST_THREADS_PER_CORE * self.n_cores)
        choices = [
            Choice(processes, threads)
            for processes in range(1, most + 1)
            for threads in range(1, min(MOST_THREADS_PER_CORE * self.n_cores // processes, self.n_cores) + 1)
        ]
        for unit in list_units(self.host):
            for unpinned in [choice for choice in choices if choice.processes > 1 and not choice.cpus]:
                placement = place_processes(self.host, unpinned.processes, threads=unpinned.threads, unit=unit)
                if placement:
                    choices.append(Choice(unpinned.processes, unpinned.threads, placement.cpus, placement.title))
        return max(choices, key=lambda choice: self.find_throughput(*choice[:3]))


class Choice(NamedTuple):
    """Processes, threads of each, CPUs of each, and how these are named."""

    processes: int
    threads: int
    cpus: tuple[Cpus, ...] = ()
    placement: str = ""

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads}" + (f" {self.placement}" if self.placement else "")


class PlacedExecutor:
    """A simulated executor whose processes are pinned to CPUs.

    Args:
        executor: What launches them.
        cpus: CPUs of each process.
        place: Called with these CPUs before a block is measured.
    """

    def __init__(
        self, executor: SimulatedExecutor, cpus: tuple[Cpus, ...], place: Callable[[tuple[Cpus, ...]], None]
    ) -> None:
        self.runtime = executor.runtime
        self.now_s = executor.now_s
        self._executor = executor
        self._cpus = cpus
        self._place = place

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch candidates."""
        return [
            result if isinstance(result, Failure) else PlacedCandidate(result, lambda: self._place(self._cpus))
            for result in self._executor.launch(configs, deadline_s=deadline_s, independent=independent)
        ]


class PlacedCandidate:
    """A simulated candidate whose processes are pinned.

    Args:
        live: The candidate.
        place: Called before each block.
    """

    def __init__(self, live: LiveCandidate, place: Callable[[], None]) -> None:
        self.config = live.config
        self.session_info = live.session_info
        self.close = live.close
        self._live = live
        self._place = place

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure a block."""
        self._place()
        return self._live.measure(plan)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        seed: Its seed.
        n_cores: Cores of the host.
        optimum: The optimum.
        gain: Throughput of the optimum relative to the default deployment.
        chosen: The recommended deployment.
        regret: Part of the optimum's throughput that it lacks.
        worse: Whether it is worse than the default deployment.
        n_screened: Deployments that were measured in screening.
        simulated_s: Simulated time that it took.
    """

    seed: int
    n_cores: int
    optimum: str
    gain: float
    chosen: str
    regret: float
    worse: bool
    n_screened: int
    simulated_s: float


def draw_surface(rng: np.random.Generator) -> Surface:
    """Return a random host and model."""
    n_cores = int(rng.choice(CORES))
    n_domains = int(rng.choice([number for number in DOMAINS if n_cores // N_NODES // number >= 2]))
    return Surface(
        host=make_host(n_cores, n_nodes=N_NODES, domains_per_node=n_domains),
        serial=float(np.exp(rng.uniform(np.log(0.01), np.log(0.25)))),
        wake=float(np.exp(rng.uniform(np.log(1e-4), np.log(1e-2)))),
        remote=float(rng.uniform(0.05, 0.6)),
        far=float(rng.uniform(0, 0.2)),
        scatter=float(rng.uniform(0.2, 1)),
        move=float(rng.uniform(0, 0.1)),
        rigid=float(rng.uniform(0, 0.04)),
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

    placed: tuple[Cpus, ...] = ()

    def latency(config: Config, load: Load) -> float:
        throughput = surface.find_throughput(load.processes, count_threads(config), placed)
        return CALL_NS * load.n_callers / throughput

    def place(cpus: tuple[Cpus, ...]) -> None:
        nonlocal placed
        placed = cpus

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
    executors: dict[tuple[Cpus, ...], PlacedExecutor] = {}

    def open_executor(load: Load, cpus: tuple[Cpus, ...] = ()) -> PlacedExecutor:
        return executors.setdefault(cpus, PlacedExecutor(executor, cpus, place))

    opened = start_comparison(
        executor,
        first,
        goal,
        first_launch_s=0.2,
        seed=seed,
        free_bytes=FREE_BYTES,
        open_executor=open_executor,
    )
    space = msgspec.structs.replace(make_deployment_space(surface.host, DEFAULT), settings=(), most_clients=1)
    outcome = run_stages(space, opened, PlanOptions(budget_s=BUDGET_S))
    chosen: Deployment = outcome.rows[outcome.recommended].deployment
    title = chosen.placement.title if chosen.placement else ""
    choice = Choice(chosen.processes, count_threads(chosen.config), chosen.cpus, title)
    optimum = surface.find_optimum()
    best = surface.find_throughput(*optimum[:3])
    found = surface.find_throughput(*choice[:3])
    default = surface.find_throughput(1, surface.n_cores)
    return Replay(
        seed=seed,
        n_cores=surface.n_cores,
        optimum=str(optimum),
        gain=best / default,
        chosen=str(choice),
        regret=1 - found / best,
        worse=found < default * (1 - 1e-9),
        n_screened=len(outcome.screened),
        simulated_s=executor.time_s,
    )


def report(replays: Sequence[Replay]) -> None:
    """Print a line for each number of cores, and one for all."""
    print("cores  replays  within 3 %  mean regret  90th percentile  worse than default  screened  optimum's gain")
    for n_cores in (*CORES, 0):
        some = [result for result in replays if n_cores in {0, result.n_cores}]
        if not some:
            continue
        regrets = np.array([result.regret for result in some])
        print(
            f"{n_cores or 'all':>5}  {len(some):7}  {np.mean(regrets <= NEAR):10.1%}  {regrets.mean():11.2%}  "
            f"{np.quantile(regrets, 0.9):15.2%}  {sum(result.worse for result in some):18}  "
            f"{np.mean([result.n_screened for result in some]):8.1f}  "
            f"{np.exp(np.mean([math.log(result.gain) for result in some])):13.2f}x"
        )
    worst = sorted(replays, key=lambda result: -result.regret)[:8]
    print("\nlargest regrets, as processes x threads:")
    for result in worst:
        print(
            f"  seed {result.seed}: {result.regret:.2%} on {result.n_cores} cores, chosen {result.chosen}, "
            f"optimum {result.optimum}"
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
    print(write_header())
    print(f"{arguments.replays} replays from seed {arguments.seed}, a budget of {BUDGET_S:.0f} simulated seconds\n")
    report(replays)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({**describe_run(), "replays": msgspec.to_builtins(replays)}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
