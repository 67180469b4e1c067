"""Measures all models of a host together, each with requests at its rate; several sharings in interleaved blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ortune.measure.block_runner import BlockRunner
from ortune.measure.compute_figures import required_calls
from ortune.measure.interval import Interval, share_error
from ortune.measure.open import OpenComparison
from ortune.measure.paired_run import ENOUGH_QUIET
from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.colocation.timings import Timing
from ortune.planning.deployment import Deployment
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.rate_latency import bound_utilization, find_moments, summarize_rate
from ortune.worker import BlockPlan, Failure, LiveCandidate
from ortune.worker.attempts import Attempts
from ortune.worker.colocated import ColocatedBlock, open_colocated
from ortune.workload import Load

ARRIVALS_PER_COLOCATED_BLOCK, ARRIVALS_PER_PROCESS = 8, 4
SHORTEST_COLOCATED_BLOCK_NS = 500_000_000
LONGEST_COLOCATED_BLOCK_NS = 20_000_000_000
"""Requests of each model in a block on average, and of each of its processes, at least, and the limits of the block's
duration. All models are measured over the same window, so the one with the lowest rate decides. The upper limit does
not apply to the requests of each process."""

LONGEST_COLOCATED_WARM_UP_S = 3.0

FEWEST_COLOCATED_ROUNDS, MOST_COLOCATED_ROUNDS = 4, 100
LAUNCHES = 2
"""Rounds of each launch, and launches of each sharing."""


class SharedHost(Protocol):
    """A host on which the models are open.

    Attributes:
        runner: Measures blocks.
        launch_s: Time that a launch of one process of each model takes, about.
    """

    runner: BlockRunner
    launch_s: float

    def measure_alone(self, number: int, deployments: Sequence[Deployment]) -> list[Timing | None]:
        """Measure deployments of a model while nothing else runs; None for those that fail or do not fit."""

    def launch(self, sharing: Sharing, loads: Sequence[Load]) -> LiveCandidate | Failure:
        """Launch all processes of a sharing."""


class OpenHost:
    """The models of a host, whose default deployments have been launched.

    Args:
        opened: The open comparison of each model.
        defaults: The default deployment of each.
    """

    def __init__(self, opened: Sequence[OpenComparison], defaults: Sequence[Deployment]) -> None:
        self.opened = tuple(opened)
        self.runner = opened[0].runner
        self.launch_s = sum(comparison.calibration.launch_s for comparison in opened)
        self._runners = [
            DeploymentRunner(comparison, default) for comparison, default in zip(opened, defaults, strict=True)
        ]

    def measure_alone(self, number: int, deployments: Sequence[Deployment]) -> list[Timing | None]:
        """Measure deployments of a model briefly, in rounds with its default deployment, while nothing else runs."""
        return [
            None
            if screened is None or screened.failure
            else Timing(
                samples_ns=screened.samples_ns, cpu_ns_per_call=screened.cpu_ns_per_call, peak_bytes=screened.peak_bytes
            )
            for screened in self._runners[number].screen(deployments)
        ]

    def launch(self, sharing: Sharing, loads: Sequence[Load]) -> LiveCandidate | Failure:
        """Launch all processes of a sharing, one model after the other."""
        lives: list[LiveCandidate] = []
        for opened, deployment in zip(self.opened, sharing.deployments, strict=True):
            executor = opened.open_executor(deployment.load, deployment.cpus)
            deadline_s = opened.runner.load_deadline_s * deployment.processes
            (answer,) = executor.launch([deployment.config], deadline_s=deadline_s)
            if isinstance(answer, Failure):
                for live in lives:
                    live.close()
                return answer
            lives.append(answer)
        colocated = open_colocated(lives, loads)
        return colocated if isinstance(colocated, Failure) else self.runner.keep_alive(colocated, None)


class Together(msgspec.Struct, kw_only=True):
    """The blocks of one sharing.

    Attributes:
        sharing: The sharing.
        streams: The blocks of each launch.
        failure: Why it failed, or None.
        attempts: Decides whether it is launched again.
    """

    sharing: Sharing
    streams: list[list[ColocatedBlock]] = []
    failure: Failure | None = None
    attempts: Attempts = msgspec.field(default_factory=Attempts)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return sum(map(len, self.streams))


def plan_block(
    sharings: Sequence[Sharing],
    demands: Sequence[Demand],
    scale: float,
    *,
    longest_warm_up_s: float = LONGEST_COLOCATED_WARM_UP_S,
) -> BlockPlan:
    """Return how long a block is, so that each process of each model gets several requests.

    A block has at least one request of each process. With few on average, they would arrive too evenly.
    """
    loads = [load for sharing in sharings for load in sharing.loads_at(demands, scale)]
    longest_s = max(
        max(ARRIVALS_PER_COLOCATED_BLOCK, ARRIVALS_PER_PROCESS * load.processes) / (load.rate_per_s or math.inf)
        for load in loads
    )
    fewest_s = max(ARRIVALS_PER_PROCESS * load.processes / (load.rate_per_s or math.inf) for load in loads)
    duration_ns = math.ceil(
        max(min(max(longest_s * 1e9, SHORTEST_COLOCATED_BLOCK_NS), LONGEST_COLOCATED_BLOCK_NS), fewest_s * 1e9)
    )
    lead_in_ns = duration_ns // 20
    return BlockPlan(
        load=loads[0],
        duration_ns=duration_ns,
        lead_in_ns=lead_in_ns,
        min_calls=1,
        deadline_s=15 + 20 * (duration_ns + lead_in_ns) / 1e9 + longest_warm_up_s,
        longest_warm_up_ns=int(longest_warm_up_s * 1e9),
    )


def find_block_s(plan: BlockPlan) -> float:
    """Return the time that a block takes, about."""
    return (plan.duration_ns + plan.lead_in_ns) / 1e9 + 0.05


def find_launch_s(host: SharedHost, sharing: Sharing) -> float:
    """Return the time that a launch of a sharing and the warm-up of its queues take, about."""
    n_more = sum(deployment.processes - 1 for deployment in sharing.deployments) / len(sharing.deployments)
    return host.launch_s * (1 + n_more / 2) + 1.0


def count_rounds(
    host: SharedHost,
    sharings: Sequence[Sharing],
    plan: BlockPlan,
    demands: Sequence[Demand],
    scale: float,
    time_s: float,
) -> int:
    """Return the rounds of each launch that fit into a time: no more than the figures need."""
    launches_s = LAUNCHES * sum(find_launch_s(host, sharing) for sharing in sharings)
    fitting = int((time_s - launches_s) / (LAUNCHES * len(sharings) * find_block_s(plan)))
    needed = max(2 * required_calls(demand.figure) / (demand.rate_per_s * scale) for demand in demands)
    most = min(math.ceil(needed * 1e9 / plan.duration_ns / LAUNCHES), MOST_COLOCATED_ROUNDS)
    return max(min(fitting, max(most, 2 * FEWEST_COLOCATED_ROUNDS)), FEWEST_COLOCATED_ROUNDS)


def measure_together(
    host: SharedHost,
    sharings: Sequence[Sharing],
    demands: Sequence[Demand],
    scale: float,
    *,
    plan: BlockPlan,
    rounds: int,
    one_at_a_time: bool = False,
    observe: Callable[[int, int], None] = lambda done, total: None,
) -> list[Together]:
    """Measure all models at once under each sharing, in rounds of one block of each.

    Args:
        host: The host.
        sharings: The sharings.
        demands: What each model must serve.
        scale: By what all rates are multiplied.
        plan: Size of a block.
        rounds: Rounds of each launch.
        one_at_a_time: Whether only one sharing may be in memory at a time. Its blocks then follow one another.
        observe: Called with the rounds that are done and planned.

    Returns:
        What was measured of each. After a failure that repeats, a sharing has no more blocks.
    """
    found = [Together(sharing=sharing) for sharing in sharings]
    n_done, n_total = 0, LAUNCHES * rounds
    observe(n_done, n_total)
    for launch in range(LAUNCHES):
        order = list(range(len(found)))[:: -1 if launch % 2 else 1]
        groups = [[found[place]] for place in order] if one_at_a_time else [[found[place] for place in order]]
        for group in groups:
            lives: dict[int, LiveCandidate] = {}
            try:
                for _ in range(rounds):
                    traffic = host.runner.draw_traffic(plan)
                    for place in host.runner.rng.permutation(len(group)).tolist():
                        measure_one(host, group[place], lives, place, demands, scale, traffic)
                    if not one_at_a_time:
                        n_done += 1
                        observe(n_done, n_total)
            finally:
                for live in lives.values():
                    live.close()
        if one_at_a_time:
            n_done += rounds
            observe(n_done, n_total)
    return found


def measure_one(
    host: SharedHost,
    target: Together,
    lives: dict[int, LiveCandidate],
    place: int,
    demands: Sequence[Demand],
    scale: float,
    plan: BlockPlan,
) -> None:
    """Measure one block of a sharing, which is launched if it is not live. A process that ends is launched again."""
    while not target.failure:
        if place not in lives:
            loads = target.sharing.loads_at(demands, scale)
            live = target.attempts.launch(functools.partial(host.launch, target.sharing, loads))
            if isinstance(live, Failure):
                target.failure = live
                return
            lives[place] = live
            target.streams.append([])
        with host.runner.without_repeats():
            block = lives[place].measure(plan)
        if isinstance(block, Failure):
            lives.pop(place).close()
            if not target.attempts.may_launch_again(block):
                target.failure = block
            continue
        assert isinstance(block, ColocatedBlock)
        target.attempts.add_block()
        target.streams[-1].append(block)
        return


def is_contended(streams: Sequence[Sequence[ColocatedBlock]]) -> bool:
    """Return whether other processes used the CPUs in so many blocks that the figures may be those of a busy host."""
    marked = [block.contended for stream in streams for block in stream]
    return sum(marked) > (1 - ENOUGH_QUIET) * len(marked)


def find_latencies(
    streams: Sequence[Sequence[ColocatedBlock]], sharing: Sharing, demands: Sequence[Demand], scale: float
) -> list[Interval]:
    """Return the figure of the latency of each model in ns. All intervals hold together.

    Models that share cores are slow while others have long queues, so that their blocks are joined as those of others.
    """
    loads = sharing.loads_at(demands, scale)
    parts = [[[block.parts[number] for block in stream] for stream in streams] for number in range(len(demands))]
    moments = [find_moments(own, load) for own, load in zip(parts, loads, strict=True)]
    longest_ns = max((moment.relaxation_ns for moment in moments if moment), default=0.0)
    return [
        summarize_rate(
            own,
            load,
            demand.figure,
            share_error(len(demands)),
            relaxation_ns=0.0 if sharing.kind == "divided" else longest_ns,
        )
        for own, load, demand in zip(parts, loads, demands, strict=True)
    ]


def find_utilizations(
    streams: Sequence[Sequence[ColocatedBlock]], sharing: Sharing, demands: Sequence[Demand], scale: float
) -> list[Interval]:
    """Return the share of the callers' time that calls of each model took. All intervals hold together."""
    loads = sharing.loads_at(demands, scale)
    parts = [[[block.parts[number] for block in stream] for stream in streams] for number in range(len(demands))]
    error = share_error(len(demands))
    return [bound_utilization(own, load, error) for own, load in zip(parts, loads, strict=True)]
