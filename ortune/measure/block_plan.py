"""Plans blocks and paired runs: how long a block is, and how many launches and rounds fit into a given time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from ortune.measure.compute_figures import is_of_calls, is_pooled, required_calls
from ortune.measure.judge import LAUNCHES_OF_A_PROOF
from ortune.worker import Block, BlockPlan
from ortune.worker.open_loop import plan_warm_up
from ortune.workload import FIGURES, Goal, Limit, Load

SHORTEST_BLOCK_NS = 50_000_000
LONGEST_BLOCK_NS = 1_000_000_000
SHORT_BLOCK_NS = 300_000_000
CALLS_PER_BLOCK = 3
CALLS_PER_CALLER = 16
"""The usual limit of a block's duration, and the limit where there is little time. Calls per block: for one caller, and
for each of several, which drift in and out of step. The speed of a shared host varies within tenths of a second: in the
same time, pairs of short blocks are more precise than pairs of long ones (`benchmarks/variance.py`). Shorter ones would
hardly show CPU use by others, which the kernel counts in ticks of 10 ms."""

PERCENTILE_BLOCK_NS = 150_000_000
"""Minimum duration of blocks for a percentile beyond the median, if there is time for enough of them. It needs many
calls, and more of the time of a long block is measured."""

MIN_CALLS = 2
LEAD_IN_SHARE = 0.08
"""Unmeasured calls before a block, as a share of it. After a resume, caches are cold and threads are asleep."""

PAIRED_LEAD_IN_SHARE = 0.5
LEAD_IN_CALLS = 5
COLD_NS = 30_000_000
"""The largest share in paired runs, and how long caches are cold: for some calls or some milliseconds, whichever ends
first. The first call after a resume takes up to 75% longer, and the second and third one are slow as well. Settings
that differ only in that, such as allocators with large pages, would seem to gain up to 2%."""

GPU_LEAD_IN_NS = 150_000_000
"""The shortest lead-in of comparisons with an NVIDIA GPU. In the first 20 ms after a resume, calls that launch many
kernels took 12% longer than after 0.4 s, and from 50 to 150 ms 5 to 9% longer (two models on an H100;
`benchmarks/resumed_calls.py`). Captured graphs, which need one launch, took at most 5% longer. With a shorter lead-in,
their gain would be overestimated."""

LONG_CALL_NS = 100_000_000
"""A call that takes longer needs no unmeasured call before it, and no second one in its block: caches and threads are
ready within a small part of it."""

ARRIVALS_PER_BLOCK = 16
LONGEST_SERVER_BLOCK_NS = 2_000_000_000
SERVER_LEAD_IN_SHARE = 0.05
"""The same with a request rate. The queue continues from block to block, and an unmeasured call wakes the threads."""

SHORTEST_WARM_UP_NS = 1_000_000_000
LONGEST_WARM_UP_NS = 10_000_000_000
WARM_UP_FACTOR = 4
"""With a request rate, each launch first lets the queue reach its steady state. A candidate gets at most a second, or
in a paired run at most this multiple of the baseline's time. A search has no time for long queues in screening."""

QUOTA_PERIOD_NS = 100_000_000
QUOTA_PERIODS = 5
QUOTA_LEAD_IN_PERIODS = 1.5
"""Under a CPU quota, the kernel lets a process run at full speed until its share of the period is used up. A block
shorter than several periods would see only that burst, and not the throttling that follows."""

SUSTAINED_LEAD_IN_NS = 60_000_000_000
SUSTAINED_BLOCK_NS = 10_000_000_000
"""Unmeasured calls, and the shortest block after them, where the speed counts that the host sustains. A processor may
take more power than it sustains until the mean, over the last 28 s on many laptops, is what it sustains. Where that is
15 W, a config that takes 30 W reaches it 19 s after a pause, and one that takes 17 W, which slows it down by 4 %, after
60 s (the power grows with the third power of the frequency)."""

LONG_LAUNCH_S = 1.0
"""Launches that take longer are planned as if they were made one after the other."""

MOST_USUAL_LAUNCHES = 16
MOST_ROUNDS_PER_LAUNCH = 32
MIN_ROUNDS_PER_LAUNCH = 2
ENOUGH_ROUNDS = 60
"""Size of a paired run: at least 60 rounds over 5 to 16 launches where time allows. More launches narrow the interval
more than more rounds do, because the memory layout of a launch affects all of its blocks, and they show whether some
launches are slow."""

LATE_SHARE = 0.2
FEWEST_LATE_ROUNDS = 4
MOST_LATE_ROUNDS = 100
"""Largest share of the time of a paired run for late rounds, and their least and largest number."""

MOST_LAUNCHES_BY_NOISE = 24
CHEAP = 1.1
"""Launches at most where their number follows from how much launches and rounds differ. Up to the usual number, further
ones are cheap if they make the expected interval at most 10 % wider."""

MIN_ROUNDS = 20
ENOUGH_LAUNCHES = 8
RESERVE = 1.1
"""Rounds and launches if the user gives no time. A percentile may require more rounds for its calls, and contended
rounds require a reserve."""

ROUNDING = 0.01
"""Tolerance for the time of a round, as a share of it, because sums of seconds are not exact."""

BLOCK_OVERHEAD_S = 0.002
"""Time to resume and suspend the process, in addition to the calls of a block."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast calls follow each other under a load, measured in the baseline's first blocks.

    Attributes:
        load: The load.
        gap_ns: Time per completed call whose duration is measured, over all callers together.
        call_ns: Duration of one call.
        growth: How many times as long the calls of a candidate may take: those of the largest batch that can keep the
            limits, if time grows with the number of items.
        gap_growth: The same for the time per completed call where such candidates need as many calls as others: for a
            limit on latency. Without one, their percentiles differ so much from the baseline's that fewer suffice.
        n_cases: Input cases, each of which a block must contain.
        quota: Whether a CPU quota applies.
        creations_ns: Time that each block spends on creating sessions.
        on_gpu: Whether the baseline or a candidate runs on an NVIDIA GPU.
        counts_calls: Whether blocks of paired runs end after a number of calls, not after a time. The calls are those
            of a program, which has its own items: with blocks of equal time, the faster side would get ahead of the
            other, and calls with different items would be compared.
    """

    load: Load = Load()
    gap_ns: float
    call_ns: float
    growth: float = 1.0
    gap_growth: float = 1.0
    n_cases: int = 1
    quota: bool = False
    creations_ns: int = 0
    on_gpu: bool = False
    counts_calls: bool = False

    @property
    def call_pace(self) -> CallPace | None:
        """How fast calls follow each other, if blocks of paired runs end after a number of calls; else None."""
        if not self.counts_calls:
            return None
        return CallPace(gap_ns=self.gap_ns, n_concurrent=max(round(self.call_ns / self.gap_ns), 1))

    @property
    def longest_call_ns(self) -> float:
        """Duration of the longest call of a candidate that is not slower than the baseline per item."""
        return self.call_ns * self.growth


class CallPace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the calls of a program follow each other at the start of a launch.

    Attributes:
        gap_ns: Time per call of the baseline, over all threads and processes together.
        n_concurrent: Number of calls that are in progress at the same time.
    """

    gap_ns: float
    n_concurrent: int = 1


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a paired run.

    Attributes:
        block: How each block is measured.
        launches: Launches of each side; 0 if there is no time for one, None for no limit.
        rounds: Rounds per launch. It is even, so that each order comes up as often as its reverse, or 1 of long blocks.
        in_turn: Whether one side is launched and measured after the other, so that none runs while another one rests.
        late_rounds: Rounds that follow in the first launch. They show only whether late calls are as early ones.
        call_pace: The baseline's pace at the start of a launch, if blocks end after a number of calls; None if they end
            by time.
    """

    block: BlockPlan
    launches: int | None
    rounds: int
    in_turn: bool = False
    late_rounds: int = 0
    call_pace: CallPace | None = None

    @property
    def n_rounds(self) -> int:
        """Rounds of all launches."""
        return (self.launches or 0) * self.rounds

    def next_block(self, gap_ns: float | None = None) -> BlockPlan:
        """Return the plan of the next block. If its calls are counted, there are as many as fit into its time.

        Args:
            gap_ns: Time per call in the block before, as calls may become shorter or longer; None for the first block.
        """
        block, pace = self.block, self.call_pace
        if pace is None:
            return block
        gap_ns = gap_ns or pace.gap_ns
        # Calls that are in progress when a block ends are measured, and replace as many of the next lead-in.
        n_lead_in = max(1, round(block.lead_in_ns / gap_ns)) + pace.n_concurrent
        return msgspec.structs.replace(
            block,
            n_calls=max(block.min_calls, round(block.duration_ns / gap_ns)),
            n_lead_in_calls=n_lead_in if block.lead_in_ns else 0,
        )

    def find_gap_ns(self, planned: BlockPlan, measured: Block) -> float | None:
        """Return the time per call that is expected in the next block; None for that at the start of a launch.

        A program that ended within the block begins with its first items again.
        """
        has_ended = measured.n_calls < (planned.n_calls or 0) and measured.wall_ns < self.block.duration_ns
        return None if has_ended else measured.wall_ns / measured.n_calls


def is_long(pace: Pace) -> bool:
    """Return whether calls are so long that each of them counts, and so few that none should be wasted."""
    return pace.load.rate_per_s is None and pace.load.n_callers == 1 and pace.call_ns >= LONG_CALL_NS


def measure_pace(block: Block, goal: Goal, *, n_cases: int, quota: bool, load_ns: int) -> Pace:
    """Return the pace seen in a first block; `load_ns` is the time that creating the session took."""
    rate = goal.load.rate_per_s
    growth = estimate_growth(goal, block.service_ns)
    needs_creations = "load-time" in goal.figures
    return Pace(
        load=goal.load,
        gap_ns=1e9 / rate if rate else block.wall_ns / max(block.n_calls - block.n_untimed, 1e-9),
        call_ns=block.service_ns,
        growth=growth,
        gap_growth=growth if any(map(is_latency, goal.limits)) else 1.0,
        n_cases=n_cases,
        quota=quota,
        creations_ns=max(SHORTEST_BLOCK_NS, 3 * load_ns) if needs_creations else 0,
    )


def estimate_growth(goal: Goal, call_ns: float) -> float:
    """Return how many times as long as the baseline's the calls of a candidate may take that keeps the limits.

    Args:
        goal: The goal, with the numbers of items in a call.
        call_ns: Duration of a call of the baseline.
    """
    if not goal.batches:
        return 1.0
    bounds = [limit.bound if limit.relative else limit.bound / call_ns for limit in goal.limits if is_latency(limit)]
    return max(min([max(goal.batches) / goal.batches[0], *bounds]), 1.0)


def is_latency(limit: Limit) -> bool:
    """Return whether a limit is one of latency."""
    return limit.figure == "mean" or FIGURES[limit.figure].percentile is not None


def plan_block(
    pace: Pace,
    shortest_ns: int = SHORTEST_BLOCK_NS,
    longest_warm_up_ns: int = 0,
    longest_ns: int = LONGEST_BLOCK_NS,
    largest_lead_in_share: float = LEAD_IN_SHARE,
) -> BlockPlan:
    """Return how long a block is.

    A block lasts at least 50 ms and holds about 8 calls (16 per caller with several callers, 16 arrivals at each
    process with a rate), unless that takes more than `longest_ns` (2 s with a rate). Under a CPU quota it lasts at
    least 500 ms. With `largest_lead_in_share`, the calls before it take up to this share of it where caches are cold
    for so long.
    """
    server = pace.load.scenario == "server"
    load = pace.load
    per_caller = CALLS_PER_BLOCK if load.n_callers == 1 else CALLS_PER_CALLER * load.n_callers
    n_calls = pace.n_cases * (ARRIVALS_PER_BLOCK * load.processes if server else per_caller)
    longest_ns = LONGEST_SERVER_BLOCK_NS if server else longest_ns
    min_calls = (1 if is_long(pace) else MIN_CALLS) * pace.n_cases
    share = SERVER_LEAD_IN_SHARE if server else LEAD_IN_SHARE
    min_gap_ns = load.processes * pace.gap_ns if server else pace.call_ns
    if pace.quota:
        shortest_ns = max(shortest_ns, QUOTA_PERIODS * QUOTA_PERIOD_NS)
    duration_ns = min(max(shortest_ns, n_calls * pace.gap_ns), max(longest_ns, shortest_ns, min_calls * min_gap_ns))
    cold_ns = 0 if server else min(LEAD_IN_CALLS * pace.call_ns, COLD_NS, largest_lead_in_share * duration_ns)
    gpu_ns = GPU_LEAD_IN_NS if pace.on_gpu else 0
    lead_in_ns = 0 if is_long(pace) else max(share * duration_ns, cold_ns, gpu_ns)
    if pace.quota:
        lead_in_ns = max(lead_in_ns, QUOTA_LEAD_IN_PERIODS * QUOTA_PERIOD_NS)
    warm_up_ns = longest_warm_up_ns if server else 0
    slowest_ns = duration_ns + lead_in_ns + 3 * pace.longest_call_ns + pace.creations_ns
    # The call of a large batch may be longer than the block of the baseline. Then it is a block, as long calls are.
    give_up_ns = int(max(duration_ns, LONG_CALL_NS)) if pace.growth > 1 else None
    return BlockPlan(
        load=pace.load,
        duration_ns=int(duration_ns),
        lead_in_ns=int(lead_in_ns),
        min_calls=min_calls,
        creations_ns=pace.creations_ns,
        # A candidate that is twenty times slower than the baseline times out.
        deadline_s=5 + 20 * slowest_ns / 1e9 + warm_up_ns / 1e9,
        give_up_ns=give_up_ns,
        longest_warm_up_ns=warm_up_ns,
    )


def expect_warm_up_ns(pace: Pace, longest_ns: int = LONGEST_WARM_UP_NS) -> int:
    """Return how long the baseline's queue takes to reach its steady state; 0 without a request rate."""
    return plan_warm_up(np.array([pace.call_ns]), pace.load.of_process, longest_ns) if pace.load.rate_per_s else 0


def limit_warm_up_ns(pace: Pace) -> int:
    """Return how long any side of a paired run may take to reach its steady state."""
    return min(max(WARM_UP_FACTOR * expect_warm_up_ns(pace), SHORTEST_WARM_UP_NS), LONGEST_WARM_UP_NS)


def launch_sides_s(launch_s: float, n_sides: int) -> float:
    """Return how long it takes to launch several sides at the same time.

    Each of them adds half of a launch, as processes start side by side. Where launches are long, each adds a whole one:
    loading a large model may use all CPUs, or be limited by the disk.
    """
    return launch_s * (1 + (n_sides - 1) * (1.0 if launch_s > LONG_LAUNCH_S else 0.5))


def plan_paired_run(time_s: float, goal: Goal, pace: Pace, launch_s: float, n_sides: int) -> RunPlan:
    """Return the size of a paired run that fits into `time_s`.

    The time is used first for launches, then for rounds. Where the speed counts that the host sustains, each launch has
    one long block of each side.
    """
    if goal.sustained:
        plan = plan_sustained_launch(goal, pace)
        launches = int(time_s / paired_run_s(plan, pace, launch_s, n_sides) + ROUNDING)
        return msgspec.structs.replace(plan, launches=min(launches, MOST_USUAL_LAUNCHES))
    launch_s += expect_warm_up_ns(pace) / 1e9
    longest_ns = limit_warm_up_ns(pace)
    has_percentile = any(map(is_pooled, goal.figures))
    for shortest_ns in (PERCENTILE_BLOCK_NS, SHORTEST_BLOCK_NS) if has_percentile else (SHORTEST_BLOCK_NS,):
        block = plan_block(pace, shortest_ns, longest_ns, largest_lead_in_share=PAIRED_LEAD_IN_SHARE)
        round_s = n_sides * block_wall_s(block, pace)
        for launches in range(MOST_USUAL_LAUNCHES, LAUNCHES_OF_A_PROOF - 1, -1):
            rounds = int((time_s / launches - launch_sides_s(launch_s, n_sides)) / round_s + ROUNDING) // 2 * 2
            # Further launches leave less time for calls, of which a percentile needs enough.
            has_calls = launches <= ENOUGH_LAUNCHES or rounds * launches >= required_rounds(goal, pace, block)
            if rounds * launches >= ENOUGH_ROUNDS and has_calls:
                # More rounds are useless unless a percentile needs them.
                most = max(MOST_ROUNDS_PER_LAUNCH, 2 * math.ceil(required_rounds(goal, pace, block) / launches / 2))
                return RunPlan(block=block, launches=launches, rounds=min(rounds, most), call_pace=pace.call_pace)
    block = plan_block(pace, SHORTEST_BLOCK_NS, longest_ns)
    found = fit_launches(time_s, block, pace, launch_s, n_sides)
    if (found.launches or 0) >= LAUNCHES_OF_A_PROOF:
        return found
    return fit_launches(
        time_s, plan_block(pace, SHORTEST_BLOCK_NS, longest_ns, SHORT_BLOCK_NS), pace, launch_s, n_sides
    )


def plan_sustained_launch(goal: Goal, pace: Pace) -> RunPlan:
    """Return a launch that measures each side alone, after calls that spend what the host allows for a short time.

    A block is as long as the calls require that the fewest launches must have together.
    """
    usual = plan_block(pace)
    calls_ns = required_rounds(goal, pace, usual) * usual.duration_ns / LAUNCHES_OF_A_PROOF
    duration_ns = int(max(SUSTAINED_BLOCK_NS, calls_ns))
    block = msgspec.structs.replace(
        usual,
        duration_ns=duration_ns,
        lead_in_ns=SUSTAINED_LEAD_IN_NS,
        deadline_s=usual.deadline_s + 2 * (SUSTAINED_LEAD_IN_NS + duration_ns) / 1e9,
    )
    return RunPlan(block=block, launches=1, rounds=1, in_turn=True, call_pace=pace.call_pace)


def plan_launches(
    time_s: float,
    pace: Pace,
    launch_s: float,
    *,
    launch_sigma: float,
    round_sigma: float,
    fewest: int = LAUNCHES_OF_A_PROOF,
) -> RunPlan:
    """Return the size of a paired run of two sides whose interval is expected to be the narrowest.

    Args:
        time_s: Duration of the run.
        pace: How fast calls follow each other.
        launch_s: Duration of a launch.
        launch_sigma: Standard deviation of a log-ratio due to its two launches.
        round_sigma: Standard deviation of a log-ratio in one round.
        fewest: Number of launches at least.

    Returns:
        The plan, with 0 launches if the time does not suffice for the minimum of launches.
    """
    from scipy.special import stdtrit

    # With long calls, there is no time for so many rounds.
    for enough in (ENOUGH_ROUNDS, 0):
        block = plan_block(pace, largest_lead_in_share=PAIRED_LEAD_IN_SHARE if enough else LEAD_IN_SHARE)
        round_s, step = 2 * block_wall_s(block, pace), fewest_rounds(block)
        widths: dict[tuple[int, int], float] = {}
        for launches in range(fewest, MOST_LAUNCHES_BY_NOISE + 1):
            rounds = int((time_s / launches - launch_sides_s(launch_s, 2)) / round_s + ROUNDING) // step * step
            rounds = min(rounds, MOST_ROUNDS_PER_LAUNCH)
            if rounds < step or rounds * launches < enough:
                continue
            error = math.sqrt((launch_sigma**2 + round_sigma**2 / rounds) / launches)
            widths[launches, rounds] = error * float(stdtrit(launches - 1, 0.975))
        if widths:
            launches, rounds = choose_launches(widths)
            return RunPlan(block=block, launches=launches, rounds=rounds, call_pace=pace.call_pace)
    return RunPlan(block=plan_block(pace), launches=0, rounds=0)


def choose_launches(widths: Mapping[tuple[int, int], float]) -> tuple[int, int]:
    """Return the launches, and the rounds of each, with the narrowest interval, or more launches if they are cheap.

    Args:
        widths: The expected width of the interval of each choice.
    """
    narrowest = min(widths, key=lambda choice: widths[choice])
    cheap = [
        choice
        for choice, width in widths.items()
        if choice[0] <= MOST_USUAL_LAUNCHES and width <= CHEAP * widths[narrowest]
    ]
    return max([narrowest, *cheap])


def fit_launches(time_s: float, block: BlockPlan, pace: Pace, launch_s: float, n_sides: int) -> RunPlan:
    """Return as many launches as fit into `time_s`, each with as many rounds as possible."""
    step = fewest_rounds(block)
    round_s = n_sides * block_wall_s(block, pace)
    for launches in range(MOST_USUAL_LAUNCHES, 0, -1):
        rounds = int((time_s / launches - launch_sides_s(launch_s, n_sides)) / round_s + ROUNDING) // step * step
        if rounds >= step:
            return RunPlan(block=block, launches=launches, rounds=rounds, call_pace=pace.call_pace)
    return RunPlan(block=block, launches=0, rounds=0)


def shortest_run_s(pace: Pace, launch_s: float, launches: int = LAUNCHES_OF_A_PROOF) -> float:
    """Return the time of the shortest paired run of two sides that can prove anything, with so many launches."""
    block = plan_block(pace, longest_ns=SHORT_BLOCK_NS)
    return paired_run_s(RunPlan(block=block, launches=launches, rounds=fewest_rounds(block)), pace, launch_s, 2)


def paired_run_s(plan: RunPlan, pace: Pace, launch_s: float, n_sides: int) -> float:
    """Return the time of a paired run of this size in seconds, in which no block is repeated."""
    launches_s = (plan.launches or 0) * launch_sides_s(launch_s + expect_warm_up_ns(pace) / 1e9, n_sides)
    return launches_s + (plan.n_rounds + plan.late_rounds) * n_sides * block_wall_s(plan.block, pace)


def plan_late_rounds(
    time_s: float,
    goal: Goal,
    pace: Pace,
    launch_s: float,
    n_sides: int,
    *,
    one_at_a_time: bool = False,
    plan_run: Callable[[float], RunPlan] | None = None,
) -> RunPlan:
    """Return the plan of a run with late rounds of its first launch, if there is time for them.

    They take the time that whole launches and rounds leave, or that a shorter run leaves, which has as many rounds as
    possible, and enough launches for a proof. The calls that a percentile needs come first. There are none for several
    objectives, for sides that are measured one after the other, and for programs that end.

    Args:
        time_s: Duration of the run with them.
        goal: What is measured.
        pace: How fast calls follow each other.
        launch_s: Duration of a launch.
        n_sides: Number of sides.
        one_at_a_time: Whether sides are measured one after the other.
        plan_run: Returns the plan of a run without late rounds, given its duration in seconds; `plan_paired_run` by
            default.
    """
    plan_run = plan_run or (lambda run_s: plan_paired_run(run_s, goal, pace, launch_s, n_sides))
    plan = plan_run(time_s)
    if one_at_a_time or len(goal.objectives) > 1 or not is_of_calls(goal.objective):
        return plan
    round_s = n_sides * block_wall_s(plan.block, pace)
    most_s = LATE_SHARE * time_s
    if plan.in_turn or plan.call_pace or not plan.launches or FEWEST_LATE_ROUNDS * round_s > most_s:
        return plan
    sizes = [plan]
    if not any(map(is_pooled, goal.figures)):
        shorter = plan_run(time_s - FEWEST_LATE_ROUNDS * round_s)
        sizes += [shorter] if (shorter.launches or 0) >= min(plan.launches, LAUNCHES_OF_A_PROOF) else []
        sizes += [msgspec.structs.replace(plan, launches=n) for n in range(LAUNCHES_OF_A_PROOF, plan.launches)]
    n_calls = max(map(required_calls, goal.figures))
    sizes = [size for size in sizes if size is plan or expected_calls(size.n_rounds, size.block, pace) >= n_calls]
    for size in sorted(sizes, key=lambda size: size.n_rounds, reverse=True):
        left_s = min(time_s - paired_run_s(size, pace, launch_s, n_sides), most_s)
        n_fitting = int(left_s / (n_sides * block_wall_s(size.block, pace)) + ROUNDING)
        late_rounds = min(n_fitting // 2 * 2, MOST_LATE_ROUNDS)
        if late_rounds >= FEWEST_LATE_ROUNDS:
            return msgspec.structs.replace(size, late_rounds=late_rounds)
    return plan


def fewest_rounds(block: BlockPlan) -> int:
    """Return the minimum number of rounds per launch: more of short blocks, to see both orders of two sides."""
    return 1 if block.duration_ns >= SHORT_BLOCK_NS else MIN_ROUNDS_PER_LAUNCH


def required_run_s(goal: Goal, pace: Pace, launch_s: float, n_sides: int) -> float:
    """Return the time of a paired run that has the rounds and the calls it needs."""
    if goal.sustained:
        return LAUNCHES_OF_A_PROOF * paired_run_s(plan_sustained_launch(goal, pace), pace, launch_s, n_sides)
    block = plan_block(pace)
    # A block under a quota is long, because it holds several periods.
    least = LAUNCHES_OF_A_PROOF * fewest_rounds(block) if is_long(pace) or pace.quota else MIN_ROUNDS
    n_rounds = max(least, math.ceil(required_rounds(goal, pace, block)))
    n_launches = LAUNCHES_OF_A_PROOF if n_rounds < 2 * ENOUGH_LAUNCHES else ENOUGH_LAUNCHES
    # Each launch has an even number of rounds, or any number of the long ones under a quota.
    step = fewest_rounds(block) if pace.quota else 2
    rounds = math.ceil(n_rounds / (step * n_launches)) * step
    return paired_run_s(RunPlan(block=block, launches=n_launches, rounds=rounds), pace, launch_s, n_sides)


def required_rounds(goal: Goal, pace: Pace, block: BlockPlan) -> float:
    """Return how many blocks of each side hold the calls that the figures must rest on, with a reserve."""
    n_calls = pace.n_cases * max(required_calls(name) for name in goal.figures)
    return RESERVE * n_calls * pace.gap_ns * pace.gap_growth / block.duration_ns


def expected_calls(n_blocks: int, block: BlockPlan, pace: Pace) -> int:
    """Return how many calls of each input case a number of blocks holds."""
    return int(n_blocks * block.duration_ns / (pace.gap_ns * pace.gap_growth) / pace.n_cases)


def block_wall_s(block: BlockPlan, pace: Pace) -> float:
    """Return the wall time of a block, with its lead-in (at least one call) and the last call's overrun."""
    if pace.growth > 1 and block.give_up_ns is not None and pace.longest_call_ns > block.give_up_ns:
        return (pace.longest_call_ns + block.creations_ns) / 1e9 + BLOCK_OVERHEAD_S
    lead_in_ns = max(block.lead_in_ns, pace.longest_call_ns) if block.lead_in_ns else 0
    # Each caller makes the minimum of calls, side by side with the others.
    min_ns = 0 if pace.load.rate_per_s else block.min_calls * pace.longest_call_ns
    calls_ns = max(block.duration_ns, min_ns) + lead_in_ns + pace.longest_call_ns / 2
    return (calls_ns + block.creations_ns) / 1e9 + BLOCK_OVERHEAD_S
