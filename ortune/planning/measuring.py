"""Measures deployments: many briefly, a few thoroughly, and one at a rate of requests.

All are measured in blocks that are interleaved with those of the default deployment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.measure.block_plan import Pace, RunPlan, block_wall_s, plan_block
from ortune.measure.compute_figures import compute_figure, required_calls
from ortune.measure.interval import Interval
from ortune.measure.memory import MEMORY_SHARE, count_on_gpu
from ortune.measure.open import OpenComparison
from ortune.measure.paired_run import BASELINE_POSITION, PairedRun, Side
from ortune.planning.deployment import Deployment
from ortune.planning.memory import MemoryNeeds, count_items
from ortune.planning.rate_latency import summarize_rate
from ortune.planning.result import AtRate, describe_interval
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.group import merge_services
from ortune.workload import Load, Objective

DEFAULT_DEPLOYMENT = "the default deployment"

SCREENING_ROUNDS = 2
SCREENING_BLOCK_NS = 150_000_000
"""Rounds of a deployment in screening, and shortest duration of a block. Each of two rounds has its own order."""

MOST_SIDES = 8
"""Deployments that are live at the same time in screening, at most. More would need more memory, and would lie further
from the block of the default deployment that they are compared with."""

MOST_DEPLOYMENT_LAUNCHES, FEWEST_DEPLOYMENT_LAUNCHES = 8, 3
FEWEST_DEPLOYMENT_ROUNDS, MOST_DEPLOYMENT_ROUNDS = 2, 32
FINAL_BLOCK_NS = 300_000_000
"""Launches of each finalist, rounds of a launch, and shortest duration of a block."""

PROCESS_LAUNCH_SHARE = 0.5
"""Part of the time of a launch that each further process adds, as processes start side by side."""

MOST_KEPT_SAMPLES = 2000
"""Durations of calls of a deployment that are kept for the model of the queue."""

BLOCKS_PER_RATE = 10
"""Blocks of a measurement at one rate. The interval of the percentile rests on how much they differ."""

FEWEST_OF_PROCESS = 6.0
"""Requests in a block, for each process. A block has at least one, so that with fewer on average, they would arrive too
evenly."""

LONGEST_RATE_BLOCK_NS = 20_000_000_000
"""Longest duration of a block, unless the fewest requests of each process take longer."""

USUAL_WARM_UP_S, BLOCK_OVERHEAD = 1.0, 1.15
"""How long queues take to reach their steady state, about, and blocks including what comes before and after them, as a
multiple of their duration."""


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a deployment in screening.

    Attributes:
        deployment: The deployment.
        log_ratio: Its throughput relative to that of the default deployment, as a logarithm; NaN after a failure.
        samples_ns: Durations of calls.
        cpu_ns_per_call: CPU time of all processes per call.
        peak_bytes: Largest resident memory of all processes together.
        failure: Why it failed, or None.
    """

    deployment: Deployment
    log_ratio: float = math.nan
    samples_ns: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cpu_ns_per_call: float = math.nan
    peak_bytes: int = 0
    failure: Failure | None = None


class DeploymentRunner:
    """Measures deployments in interleaved blocks.

    Args:
        opened: The open comparison, whose baseline is the default deployment.
        default: The default deployment.

    Attributes:
        limit_bytes: Memory that deployments may use together; None if it is not known.
        unfit: Deployments that were not measured because they do not fit into memory.
        screened_default: What the first group of deployments was compared with; None before.
    """

    def __init__(self, opened: OpenComparison, default: Deployment) -> None:
        self.opened = opened
        self.default = default
        self.unfit: dict[str, Deployment] = {}
        self.screened_default: Screened | None = None
        calibration, free_bytes = opened.calibration, opened.free_bytes
        self.limit_bytes = MEMORY_SHARE * free_bytes if free_bytes and calibration.peak_bytes else None
        self._needs = MemoryNeeds(self.limit_bytes, count_on_gpu([calibration.gpu] if calibration.gpu else []))
        self._needs.add(default, calibration.peak_bytes)

    def now_s(self) -> float:
        """Return the time in seconds."""
        return self.opened.runner.now_s()

    def fits(self, deployment: Deployment) -> bool:
        """Return whether a deployment fits into memory, as far as is known. The default does, as it was measured.

        Without a second size, nothing is known of a single process that works on more items: it is tried.
        """
        is_unknown = deployment.processes == 1 and self._needs.n_sizes == 1
        return deployment.key == self.default.key or is_unknown or self._needs.fit([deployment])

    def find_launch_s(self, deployment: Deployment) -> float:
        """Return how long a launch of a deployment takes, about."""
        return self.opened.calibration.launch_s * (1 + PROCESS_LAUNCH_SHARE * (deployment.processes - 1))

    def screen(self, deployments: Sequence[Deployment]) -> list[Screened | None]:
        """Measure deployments briefly, in groups that fit into memory, each along with the default deployment.

        Those that work on few items come first: what they need shows whether larger ones fit.

        Returns:
            What was measured of each; None for those that do not fit into memory.

        Raises:
            MeasureError: The default deployment fails.
        """
        found: dict[str, Screened] = {}
        left = sorted(deployments, key=count_items)
        while group := self._choose_group(left):
            left = [deployment for deployment in left if deployment not in group]
            for screened in self._screen_group(group):
                found[screened.deployment.key] = screened
                if not screened.failure:
                    self._needs.add(screened.deployment, screened.peak_bytes)
        self.unfit |= {deployment.key: deployment for deployment in left}
        return [found.get(deployment.key) for deployment in deployments]

    def _choose_group(self, deployments: Sequence[Deployment]) -> list[Deployment]:
        """Return the first deployments that fit into memory together with the default deployment, or one alone."""
        group: list[Deployment] = []
        for deployment in filter(self.fits, deployments):
            if group and not self._needs.fit([self.default, *group, deployment]):
                break
            group.append(deployment)
            if len(group) == MOST_SIDES:
                break
        return group

    def _screen_group(self, group: Sequence[Deployment]) -> list[Screened]:
        run = self.start_run(group)
        plan = RunPlan(
            block=plan_block(self._find_pace(group), SCREENING_BLOCK_NS), launches=1, rounds=SCREENING_ROUNDS
        )
        run.measure(self.opened.runner, plan, end_s=math.inf)
        self.screened_default = self.screened_default or self._summarize(run, BASELINE_POSITION, self.default)
        return [self._summarize(run, position, deployment) for position, deployment in enumerate(group, 1)]

    def _summarize(self, run: PairedRun, position: int, deployment: Deployment) -> Screened:
        if failure := run.failures.get(position):
            return Screened(deployment=deployment, failure=failure)
        rounds = [measured_round for launch in run.rounds_of(position, BASELINE_POSITION) for measured_round in launch]
        ratios = [
            math.log(
                measured_round.figure("throughput", position) / measured_round.figure("throughput", BASELINE_POSITION)
            )
            for measured_round in rounds
        ]
        blocks = run.blocks(position)
        return Screened(
            deployment=deployment,
            log_ratio=float(np.mean(ratios)),
            samples_ns=thin(np.concatenate([block.samples_ns for block in blocks])),
            cpu_ns_per_call=compute_figure("cpu", blocks),
            peak_bytes=max(block.memory.peak_bytes for block in blocks),
        )

    def start_run(self, deployments: Sequence[Deployment]) -> PairedRun:
        """Return a paired run of the default deployment and others, which call back to back."""
        sides = [Side(name=DEFAULT_DEPLOYMENT, config=self.default.config, load=self.default.load)]
        sides += [
            Side(name=deployment.title, config=deployment.config, load=deployment.load) for deployment in deployments
        ]
        everything = (self.default, *deployments)
        executors = [self.opened.open_executor(deployment.load, deployment.cpus) for deployment in everything]
        self.opened.runner.one_at_a_time = not self._needs.fit(everything)
        return PairedRun(sides, self.default.load, seed=self.opened.seed, executors=executors)

    def plan_confirmation(self, deployments: Sequence[Deployment], time_s: float) -> RunPlan:
        """Return how many launches and rounds of some deployments and the default fit into a time."""
        everything = (self.default, *deployments)
        pace = self._find_pace(everything)
        launches_s = sum(map(self.find_launch_s, everything))
        for shortest_ns in (FINAL_BLOCK_NS, SCREENING_BLOCK_NS):
            block = plan_block(pace, shortest_ns)
            round_s = len(everything) * block_wall_s(block, self.opened.calibration.pace)
            for launches in range(MOST_DEPLOYMENT_LAUNCHES, FEWEST_DEPLOYMENT_LAUNCHES - 1, -1):
                rounds = int((time_s / launches - launches_s) / round_s) // 2 * 2
                if rounds >= FEWEST_DEPLOYMENT_ROUNDS:
                    return RunPlan(block=block, launches=launches, rounds=min(rounds, MOST_DEPLOYMENT_ROUNDS))
        return RunPlan(block=block, launches=FEWEST_DEPLOYMENT_LAUNCHES, rounds=FEWEST_DEPLOYMENT_ROUNDS)

    def confirm(
        self,
        deployments: Sequence[Deployment],
        plan: RunPlan,
        observe: Callable[[int, int], None],
        run: PairedRun | None = None,
    ) -> PairedRun:
        """Measure deployments in fresh launches, interleaved with the default deployment.

        Args:
            deployments: The deployments.
            plan: How many launches and rounds.
            observe: Called with the number of rounds done and planned.
            run: Where rounds are added; None for a new run.

        Raises:
            MeasureError: The default deployment fails.
        """
        run = run or self.start_run(deployments)

        def report() -> bool:
            observe(run.n_rounds, plan.n_rounds)
            return False

        run.measure(self.opened.runner, plan, end_s=math.inf, is_done=report)
        return run

    def find_rate_time_s(
        self,
        deployment: Deployment,
        rate_per_s: float,
        figure: Objective,
        *,
        least_s: float = 0.0,
        warm_up_s: float = USUAL_WARM_UP_S,
    ) -> float:
        """Return how long a measurement at a rate takes, about; see `measure_rate`."""
        block = self._plan_rate(deployment, deployment.load_at(rate_per_s), figure, least_s)
        warm_up_s = min(warm_up_s, block.longest_warm_up_ns / 1e9)
        return self.find_launch_s(deployment) + warm_up_s + BLOCK_OVERHEAD * BLOCKS_PER_RATE * block.duration_ns / 1e9

    def measure_rate(self, deployment: Deployment, rate_per_s: float, figure: Objective, confidence: float) -> Interval:
        """Measure a figure of the latency where requests arrive, given their items per second, in a fresh launch.

        Each process has a queue of its own, and each request comes to any of them with the same probability.

        Args:
            deployment: The deployment.
            rate_per_s: Items per second of all processes together.
            figure: What is measured.
            confidence: Coverage of the interval.

        Returns:
            The figure in ns with its interval; infinite if requests arrive faster than they are served.

        Raises:
            MeasureError: The deployment fails.
        """
        blocks, load = self.run_at_rate(deployment, rate_per_s, figure)
        # A server that puts requests together is almost always busy, with batches that are not full.
        return summarize_rate([blocks], None if deployment.batching else load, figure, confidence)

    def measure_latency(
        self, deployment: Deployment, rate_per_s: float, figure: Objective | None, confidence: float
    ) -> AtRate | None:
        """Measure the latency where requests arrive, given their items per second, in a fresh launch.

        Args:
            deployment: The deployment. It does not put requests together.
            rate_per_s: Items per second of all processes together.
            figure: The figure of the target, or None.
            confidence: Coverage of the intervals.

        Returns:
            The latency; None if requests arrive faster than they are served.

        Raises:
            MeasureError: The deployment fails.
        """
        blocks, load = self.run_at_rate(deployment, rate_per_s, "p99")
        p50, p99 = (summarize_rate([blocks], load, figure, confidence) for figure in ("p50", "p99"))
        if not math.isfinite(p99.estimate):
            return None
        target = describe_interval(summarize_rate([blocks], load, figure, confidence)) if figure else None
        return AtRate(
            rate_per_s=rate_per_s,
            p50_ns=p50.estimate,
            p99_ns=p99.estimate,
            p99_low_ns=max(p99.low, 0.0),
            p99_high_ns=p99.high if math.isfinite(p99.high) else None,
            target=target,
            utilization=load.utilization(merge_services(blocks)[0]),
            source="measured",
        )

    def run_at_rate(
        self, deployment: Deployment, rate_per_s: float, figure: Objective, least_s: float = 0.0
    ) -> tuple[list[Block], Load]:
        """Return the blocks of a deployment where requests arrive for so many seconds at least, and the load."""
        load = deployment.load_at(rate_per_s)
        run = PairedRun(
            [Side(name=deployment.title, config=deployment.config, load=load)],
            load,
            seed=self.opened.seed,
            executors=[self.opened.open_executor(load, deployment.cpus)],
        )
        block = self._plan_rate(deployment, load, figure, least_s)
        with self.opened.runner.without_repeats():
            run.measure(self.opened.runner, RunPlan(block=block, launches=1, rounds=BLOCKS_PER_RATE), end_s=math.inf)
        return run.blocks(0), load

    def _plan_rate(self, deployment: Deployment, load: Load, figure: Objective, least_s: float) -> BlockPlan:
        """Return how long each block is where requests arrive; see `measure_rate`."""
        assert load.rate_per_s
        gap_ns = 1e9 / load.rate_per_s
        pace = msgspec.structs.replace(
            self.opened.calibration.pace, load=load, gap_ns=gap_ns, growth=1.0, call_ns=self._find_call_ns(deployment)
        )
        block = plan_block(pace, longest_warm_up_ns=LONGEST_RATE_BLOCK_NS // 2)
        fewest_ns = math.ceil(FEWEST_OF_PROCESS * deployment.processes * gap_ns)
        n_calls = max(required_calls(figure) / BLOCKS_PER_RATE, 20.0)
        least_ns = max(n_calls * gap_ns, least_s * 1e9 / BLOCKS_PER_RATE)
        duration_ns = max(min(max(int(least_ns), block.duration_ns), LONGEST_RATE_BLOCK_NS), fewest_ns)
        deadline_s = block.deadline_s + 20 * duration_ns / 1e9
        block = msgspec.structs.replace(block, duration_ns=duration_ns, deadline_s=deadline_s)
        if batching := deployment.batching:
            block = msgspec.structs.replace(
                block, max_batch=batching.max_batch, max_delay_ns=1000 * batching.max_delay_us
            )
        return block

    def _find_call_ns(self, deployment: Deployment) -> float:
        """Return a duration that a call hardly exceeds, where as many are made at a time as the deployment serves."""
        n_items = deployment.batching.max_batch if deployment.batching else deployment.config.batch
        n_times = n_items / self.default.config.batch
        return self.opened.calibration.pace.call_ns * max(deployment.n_callers / 2, 1.0) * n_times

    def _find_pace(self, deployments: Sequence[Deployment]) -> Pace:
        """Return the pace of the slowest calls."""
        pace = self.opened.calibration.pace
        call_ns = max(map(self._find_call_ns, deployments), default=pace.call_ns)
        # Several callers share the CPUs, so that calls take longer but follow each other as fast. Large batches make a
        # block as long as their calls (`growth`).
        return msgspec.structs.replace(pace, call_ns=min(call_ns, 8 * pace.call_ns), gap_ns=2 * pace.gap_ns)


def thin(samples_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return some hundred of the samples, evenly spaced by rank."""
    step = -(-len(samples_ns) // MOST_KEPT_SAMPLES)
    return np.sort(samples_ns)[step // 2 :: step] if step > 1 else samples_ns
