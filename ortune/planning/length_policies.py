"""How to group items of different lengths: policies are predicted from measured durations of calls, the best few and
the usual ones are measured, and the outputs of each item are compared with those of the item alone.

All policies are measured in the same processes, in rounds in random order. A block makes all calls that a policy needs
for the sample of items, so that the items per second of two policies in a round are of the same work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from ortune.errors import MeasureError
from ortune.measure.interval import DEFAULT_CONFIDENCE, share_error
from ortune.measure.stats import t_interval
from ortune.planning.call_times import list_points, measure_call_times
from ortune.planning.deployment import Deployment
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.result import Estimate, LengthPlan, LengthPolicy, describe_interval
from ortune.queueing.interpolation import CallTimes
from ortune.queueing.length_batches import Grouping, evaluate_policies
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate
from ortune.worker.block import ItemGroup, ItemsJob, Memory
from ortune.workload import Limit
from ortune.workload.length_feed import Axes

MOST_BATCH = 32
"""Items in a call, at most. Calls with more are rarely faster per item on a CPU."""

N_BEST_POLICIES = 4
"""Predicted best policies that are measured. The best one of each kind is measured as well."""

GRID_SHARE = 0.4
"""Part of the time that the grid of durations may take."""

POINT_NS = 60_000_000
POINT_CALLS = 2
SHORTEST_PASS_NS = 150_000_000
"""Duration of a block for a point of the grid, and of one of a policy, at least."""

MOST_POLICY_LAUNCHES, FEWEST_POLICY_LAUNCHES = 6, 3
MOST_POLICY_ROUNDS, FEWEST_POLICY_ROUNDS = 8, 2
"""Launches of the processes, and rounds of all policies in each."""

POLICY_TIE = 0.01
"""Share by which two policies may differ and still count as equal. Then the simpler one is better."""

SIMPLEST_FIRST = ("one at a time", "arrival", "sorted", "sorted by tokens", "buckets", "maximum", "sorted, best cuts")

HANGING_FACTOR = 40
"""A block times out after so many times its expected duration."""

FIRST_CHECK_S = 120.0
"""Time for the comparison of outputs, which comes before the first block of a policy."""


class LengthSample(msgspec.Struct, frozen=True, kw_only=True):
    """Items of different lengths.

    Attributes:
        text: The user's description.
        lengths: Length of each item, in order of arrival. They are the samples of the feed.
        maximum: Length that "maximum" pads to.
        axes: Axes of each input that have the length of the item.
    """

    text: str
    lengths: tuple[int, ...]
    maximum: int
    axes: Axes


def plan_lengths(
    runner: DeploymentRunner,
    sample: LengthSample,
    deployment: Deployment,
    *,
    place: int,
    end_s: float,
    slo: Limit | None = None,
    observe: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> LengthPlan:
    """Find the fastest way to group items of these lengths.

    Args:
        runner: Launches deployments.
        sample: The items.
        deployment: The deployment whose callers make the calls.
        place: Its place in the plan.
        end_s: When to end, on the runner's clock.
        slo: The target for the latency, which no single call may exceed; None for no target.
        observe: Called with the stage and how much of it is done and planned.

    Raises:
        MeasureError: The deployment fails.
    """
    return _LengthPlanning(runner, sample, deployment, place, end_s, slo, observe).run()


class _LengthPlanning:
    def __init__(
        self,
        runner: DeploymentRunner,
        sample: LengthSample,
        deployment: Deployment,
        place: int,
        end_s: float,
        slo: Limit | None,
        observe: Callable[[str, int, int], None],
    ) -> None:
        self.runner = runner
        self.blocks = runner.opened.runner
        self.sample = sample
        self.deployment = deployment
        self.place = place
        self.start_s = runner.now_s()
        self.end_s = end_s
        self.slo = slo
        self.observe = observe
        self.problems: dict[str, str] = {}
        self.errors: dict[str, float] = {}
        self.n_points = 0
        self.unfit_sizes: tuple[int, ...] = ()

    def run(self) -> LengthPlan:
        """Measure the grid, predict all policies, measure some of them, and choose."""
        live = self.launch()
        try:
            times = self.measure_grid(live)
        finally:
            live.close()
        groupings = self.predict(times)
        chosen = choose_live(groupings, min(MOST_BATCH, times.sizes[-1], len(self.sample.lengths)))
        rates = self.measure(chosen)
        return self.describe(groupings, chosen, rates)

    def launch(self) -> LiveCandidate:
        """Launch the deployment's processes.

        Raises:
            MeasureError: They fail.
        """
        executor = self.runner.opened.open_executor(self.deployment.load, self.deployment.cpus)
        (live,) = self.blocks.launch([self.deployment.config], executor)
        if isinstance(live, Failure):
            raise MeasureError(f"{self.deployment.title} fails ({live.title}): {live.message}")
        return live

    def measure_block(
        self, live: LiveCandidate, job: ItemsJob, duration_ns: int, expected_ns: float, calls: int = 1
    ) -> Block:
        """Measure a block in which each caller makes all calls of a job again and again.

        Raises:
            MeasureError: The deployment fails.
        """
        load = self.deployment.load
        plan = BlockPlan(
            load=load,
            duration_ns=duration_ns,
            lead_in_ns=0 if load.n_callers == 1 else 1,
            min_calls=calls,
            deadline_s=FIRST_CHECK_S + HANGING_FACTOR * (duration_ns + 2 * calls * expected_ns) / 1e9,
            job=job,
        )
        block = live.measure(plan)
        if isinstance(block, Failure):
            raise MeasureError(f"{self.deployment.title} fails ({block.title}): {block.message}")
        return block

    def measure_grid(self, live: LiveCandidate) -> CallTimes:
        """Measure durations of calls, as far as there is time."""
        lengths = self.sample.lengths
        points = list_points(min(lengths), self.sample.maximum)
        grid_s = self.start_s + GRID_SHARE * (self.end_s - self.start_s)
        # The longest one is padded further for the longer points.
        by_length = sorted(range(len(lengths)), key=lambda item: lengths[item])
        memory: dict[tuple[int, int], Memory] = {}

        @functools.cache
        def measure(size: int, length: int) -> float:
            fitting = [item for item in by_length if lengths[item] <= length]
            items = tuple(fitting[number % len(fitting)] for number in range(-size, 0))
            job = ItemsJob(groups=(ItemGroup(items=items, length=length),), axes=self.sample.axes)
            expected_ns = size * max(length, 1) * self.token_ns
            block = self.measure_block(live, job, POINT_NS, expected_ns, POINT_CALLS)
            self.n_points += 1
            self.observe("calls", self.n_points, self.n_points)
            memory[size, length] = block.memory
            return float(np.median(block.samples_ns))

        self.token_ns = 1e6
        measure(1, points[0])
        single_ns = measure(1, points[-1])
        self.token_ns = single_ns / points[-1]
        most_ns = self.slo.bound if self.slo else math.inf
        # A batch takes as long as its items one by one at most, and rarely less than a quarter of that.
        sizes = [size for size in list_points(1, min(MOST_BATCH, len(lengths))) if size * single_ns / 4 <= most_ns]
        of_item = find_growth(memory[1, points[0]], memory[1, points[-1]])

        def find_memory(size: int) -> Memory:
            measure(size, points[-1])
            return memory[size, points[-1]]

        fitting = select_fitting(sizes, find_memory, self.runner.limit_bytes, of_item) if sizes else []
        self.unfit_sizes = tuple(size for size in sizes if size > 1 and size not in fitting)
        times, _ = measure_call_times(measure, fitting or [1], points, lambda: self.runner.now_s() < grid_s)
        return times

    def predict(self, times: CallTimes) -> list[Grouping]:
        """Return all policies, the fastest one first. With a target, no call may take longer than it allows."""
        found = evaluate_policies(self.sample.lengths, times, maximum=self.sample.maximum)
        if not self.slo:
            return list(found)
        kept = [grouping for grouping in found if np.diff(grouping.ends_ns, prepend=0.0).max() <= self.slo.bound]
        return kept or [grouping for grouping in found if grouping.policy == "one at a time"]

    def make_job(self, grouping: Grouping) -> ItemsJob:
        """Return the calls of a policy."""
        groups = tuple(ItemGroup(items=group.items, length=group.length) for group in grouping.groups)
        return ItemsJob(groups=groups, axes=self.sample.axes, is_checked=True)

    def measure(self, chosen: Sequence[Grouping]) -> list[list[list[float]]]:
        """Return the items per second of each policy in each round of each launch, as logarithms."""
        jobs = [self.make_job(grouping) for grouping in chosen]
        n_callers = self.deployment.n_callers
        passes_ns = [grouping.ends_ns[-1] for grouping in chosen]
        round_s = sum(SHORTEST_PASS_NS + each_ns for each_ns in passes_ns) / 1e9
        if n_callers > 1:
            round_s *= 2  # calls before and after the window, in which not all callers are busy
        left_s = self.end_s - self.runner.now_s()
        launches, rounds = plan_rounds(left_s, self.runner.find_launch_s(self.deployment), round_s)
        rates: list[list[list[float]]] = [[] for _ in chosen]
        for launch in range(launches):
            if launch >= FEWEST_POLICY_LAUNCHES and self.runner.now_s() > self.end_s:
                break  # calls take longer than predicted, or blocks were repeated on a busy host
            live = self.launch()
            try:
                for rate in rates:
                    rate.append([])
                for number in range(rounds):
                    for place in self.blocks.rng.permutation(len(chosen)).tolist():
                        block = self.measure_block(live, jobs[place], SHORTEST_PASS_NS, passes_ns[place])
                        rates[place][-1].append(math.log(1e9 * block.n_items / block.wall_ns))
                        self.note_outputs(str(chosen[place]), block)
                    self.observe("lengths", launch * rounds + number + 1, launches * rounds)
            finally:
                live.close()
        return rates

    def note_outputs(self, name: str, block: Block) -> None:
        """Keep how the outputs of a policy differ from those of single items."""
        if block.output_fault:
            self.problems[name] = block.output_fault
        if block.output_error is not None:
            self.errors[name] = max(self.errors.get(name, 0.0), block.output_error)

    def describe(
        self, groupings: Sequence[Grouping], chosen: Sequence[Grouping], rates: Sequence[Sequence[Sequence[float]]]
    ) -> LengthPlan:
        """Return all policies, those that were measured first, and the recommended one."""
        lengths = self.sample.lengths
        means = [np.array([np.mean(launch) for launch in launches]) for launches in rates]
        names = [(grouping.policy, grouping.parameter) for grouping in chosen]
        reference = next((place for place, (policy, _) in enumerate(names) if policy == "arrival"), 0)
        single = next(place for place, (policy, _) in enumerate(names) if policy == "one at a time")
        policies = []
        for place, grouping in enumerate(chosen):
            policies.append(
                msgspec.structs.replace(
                    self.describe_predicted(grouping),
                    items_per_s=describe_interval(t_interval(means[place], DEFAULT_CONFIDENCE).exp()),
                    to_reference=self.compare(means, place, reference),
                    to_single=self.compare(means, place, single),
                    max_error=self.errors.get(str(grouping)),
                    problem=self.problems.get(str(grouping), ""),
                )
            )
        order = sorted(range(len(policies)), key=lambda place: -policies[place].items_per_s.estimate)
        ranked = [policies[place] for place in order]
        others = [self.describe_predicted(other) for other in groupings if other not in chosen]
        return LengthPlan(
            text=self.sample.text,
            lengths=lengths,
            maximum=self.sample.maximum,
            place=self.place,
            n_points=self.n_points,
            policies=(*ranked, *others),
            recommended=choose_policy(ranked),
            reference=order.index(reference),
            unfit_sizes=self.unfit_sizes,
        )

    def compare(self, means: Sequence[np.ndarray], place: int, other: int) -> Estimate | None:
        """Return the items per second of a policy relative to those of another; None for the policy itself."""
        if place == other:
            return None
        # The best of several policies is looked for.
        confidence = share_error(len(means) - 1)
        return describe_interval(t_interval(means[place] - means[other], confidence).exp())

    def describe_predicted(self, grouping: Grouping) -> LengthPolicy:
        """Return a policy with its predicted figures."""
        per_s = grouping.items_per_s * self.deployment.n_callers
        predicted = Estimate(estimate=per_s, low=0.0, high=None, confidence=DEFAULT_CONFIDENCE, source="predicted")
        return LengthPolicy(
            policy=grouping.policy,
            parameter=grouping.parameter,
            items_per_s=predicted,
            predicted_per_s=per_s,
            padding=grouping.padding(self.sample.lengths),
            n_calls=len(grouping.groups),
            longest_call_ns=float(np.diff(grouping.ends_ns, prepend=0.0).max()),
        )


def find_growth(before: Memory, after: Memory) -> float:
    """Return the growth in bytes of the peak or of the steady memory, whichever is larger.

    The peak may be that of creating the session.
    """
    return max(after.peak_bytes - before.peak_bytes, after.steady_bytes - before.steady_bytes, 0)


def select_fitting(
    sizes: Sequence[int], find_memory: Callable[[int], Memory], limit_bytes: float | None, of_item: float
) -> list[int]:
    """Return the sizes of batches of the longest items that fit into memory.

    If it is not certain that all of them fit, they are measured one after another, up to the first one that is not
    expected to fit.

    Args:
        sizes: The sizes, in ascending order.
        find_memory: Measures calls with a batch of this size, and returns the memory then.
        limit_bytes: Memory that may be used; None if it is not known.
        of_item: Lower bound of the memory of one item, in bytes.
    """
    known, largest = find_memory(sizes[0]), sizes[-1] / sizes[0]
    # Assumption: each further item needs no more memory than the whole process needed with one item.
    if limit_bytes is None or known.peak_bytes * largest <= limit_bytes:
        return list(sizes)
    fitting = [sizes[0]]
    for size in sizes[1:]:
        n_more = size - fitting[-1]
        if known.peak_bytes + n_more * of_item > limit_bytes:
            break
        found = find_memory(size)
        of_item = max(of_item, find_growth(known, found) / n_more)
        fitting.append(size)
        known = found
    return fitting


def choose_live(groupings: Sequence[Grouping], reference_size: int) -> list[Grouping]:
    """Return the policies that are measured: the usual ones, the predicted best ones, and the best of each kind.

    Args:
        groupings: All policies, the predicted fastest one first.
        reference_size: Size of the batches in order of arrival that all others are compared with.
    """
    usual = [
        grouping
        for grouping in groupings
        if grouping.policy == "one at a time" or (grouping.policy == "arrival" and grouping.parameter == reference_size)
    ]
    # With a target, the largest batches may not be allowed.
    arrivals = [grouping for grouping in groupings if grouping.policy == "arrival"]
    if arrivals and not any(grouping.policy == "arrival" for grouping in usual):
        usual.append(max(arrivals, key=lambda grouping: grouping.parameter or 0))
    kinds = {grouping.policy: grouping for grouping in reversed(groupings)}
    return _without_repetitions([*usual, *groupings[:N_BEST_POLICIES], *kinds.values()])


def _without_repetitions(groupings: Iterable[Grouping]) -> list[Grouping]:
    """Return different policies. Of those that make the same calls, the first one is kept."""
    found: dict[object, Grouping] = {}
    for grouping in groupings:
        found.setdefault(grouping.groups, grouping)
    return list(found.values())


def plan_rounds(time_s: float, launch_s: float, round_s: float) -> tuple[int, int]:
    """Return how many launches, and rounds in each, fit into a time; the fewest that prove something if none do."""
    for launches in range(MOST_POLICY_LAUNCHES, FEWEST_POLICY_LAUNCHES - 1, -1):
        rounds = int((time_s / launches - launch_s) / round_s)
        if rounds >= FEWEST_POLICY_ROUNDS:
            return launches, min(rounds, MOST_POLICY_ROUNDS)
    return FEWEST_POLICY_LAUNCHES, FEWEST_POLICY_ROUNDS


def choose_policy(measured: Sequence[LengthPolicy]) -> int:
    """Return the place of the fastest policy whose outputs are right; of equally fast ones, of the simplest."""
    right = [place for place, policy in enumerate(measured) if not policy.problem] or list(range(len(measured)))
    fastest = max(measured[place].items_per_s.estimate for place in right)
    equal = [place for place in right if measured[place].items_per_s.estimate >= (1 - POLICY_TIE) * fastest]
    return min(equal, key=lambda place: SIMPLEST_FIRST.index(measured[place].policy))
