"""The result of a comparison: figures, speedups and limits of each side, and the noise of the host."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from ortune.knobs.config import DEFAULT, Config
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval, format_speedup
from ortune.measure.judge import COUNTED_LAUNCHES_OF_A_PROOF, LAUNCHES_OF_A_PROOF, Kept
from ortune.numbers import FEW, Count, format_ratio
from ortune.worker import CpuPlace, Failure, SessionInfo
from ortune.workload import FIGURES, Objective

Stage = Literal["fitting", "screening", "racing", "pruning", "confirmation"]
"""Stages of a search. In the first one, a thread pool that fits the host and its load is compared with the default, if
ONNX Runtime's own pool does not fit."""

SLOW_LAUNCH = 1.5
"""A launch is slow if its calls take this many times as long as usual: as in the slowest of the fastest quarter."""

PROOF: frozenset[Stage] = frozenset({"fitting", "confirmation"})
"""Stages whose candidate was not chosen by the rounds that are measured in it."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of one side, over all of its blocks that count.

    Attributes:
        config: Its settings.
        p50_ns: Median latency of a call. With a request rate, latency counts from the arrival. With several input
            cases, percentiles are geometric means over the cases.
        p90_ns: 90th percentile of latency.
        p95_ns: 95th percentile of latency.
        p99_ns: 99th percentile of latency.
        mean_ns: Mean latency.
        worst_p50_ns: With several processes: median latency of the calls of the slowest process of each launch. None
            for a single process.
        worst_p99_ns: 99th percentile of the same.
        calls_per_s: Throughput of all callers together; of items if the workload has batches.
        cpu_ns_per_call: CPU time of all processes per call, including threads that spin between calls; per item if the
            workload has batches.
        cpu_ns_between_calls: With a request rate: the part of it that was spent while no call was in progress.
        utilization: With a request rate: the share of the callers' time that calls take. From 1 on, the queue grows
            without bound.
        utilization_low: Lower end of its confidence interval; None for a single launch.
        utilization_high: Upper end.
        n_calls: Number of calls that the figures rest on. With several input cases, of the case with the fewest.
        load_ns: Median time to create the session.
        steady_bytes: Resident memory of the whole process after its blocks; after the calls of its launch, if memory is
            an objective or has a limit. With several processes, the sum. Pages that they share, such as those of
            libraries, count in each.
        peak_bytes: Largest resident memory up to then.
        gpu_bytes: Memory in use on the GPU; None without a GPU, or where it cannot be read.
        nodes: Number of nodes that each execution provider got; empty for the CPU alone.
        build_s: Time that the execution provider took to compile the model, once, before the session started from the
            compiled model; None if it does not compile models, or compiles them for each session.
        metric: Mean of the number that a program prints; None if it is not wanted.
        others: Figures without a field of their own, by name: percentiles that an objective or a limit names, such as
            p99.9. Absent if there are none.
    """

    config: Config = DEFAULT
    p50_ns: float
    p90_ns: float
    p95_ns: float
    p99_ns: float
    mean_ns: float
    worst_p50_ns: float | None = None
    worst_p99_ns: float | None = None
    calls_per_s: float
    cpu_ns_per_call: float
    cpu_ns_between_calls: float | None = None
    utilization: float | None = None
    utilization_low: float | None = None
    utilization_high: float | None = None
    n_calls: Count
    load_ns: float
    steady_bytes: Count | None = None
    peak_bytes: Count | None = None
    gpu_bytes: Count | None = None
    nodes: Annotated[dict[str, Count], FEW] = {}
    build_s: float | None = None
    metric: float | None = None
    others: Annotated[dict[Objective, float], FEW] | msgspec.UnsetType = msgspec.UNSET

    def get_figure(self, name: Objective) -> float | None:
        """Return a figure by its name in options; None if it is not known."""
        field = FIGURES[name].field
        if field:
            value: float | None = getattr(self, field)
            return value
        return None if self.others is msgspec.UNSET else self.others.get(name)


class Speedup(Interval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times better than the baseline a side is: a ratio of costs, above 1 if it is better.

    Attributes:
        n_pairs: Pairs of blocks that the interval rests on.
        n_launches: Launches of each side that count.
        n_slow_launches: Launches in which the side was slow compared with the baseline.
        n_slow_of_both: Those of them that do not count in a median, as the baseline is slow as often.
        n_slow_baselines: Launches that do not count in a median, as the baseline was slow compared with the side.
        slowdown: How many times as long as in earlier launches of the search the baseline took in these, if that is
            1.5 times or more, and a median is compared. The interval then includes the gain in earlier ones. Else None.
        span_s: Time between the first and the last of the pairs, in seconds; None in plans. The interval covers
            how much the host varies within this time, and how much a gain usually differs between occasions within
            hours, but not how much it varies from day to day.
    """

    n_pairs: Count
    n_launches: Count
    n_slow_launches: Count = 0
    n_slow_of_both: Count = 0
    n_slow_baselines: Count = 0
    slowdown: float | None = None
    span_s: float | None = None

    @property
    def slow_launches(self) -> str:
        """What is known of slow launches, as a clause."""
        of_side = describe_slow_launches(self.n_slow_launches, self.n_shown)
        if not self.n_slow_baselines:
            return of_side
        return f"{of_side}; launches left out, as the baseline was slow: {self.n_slow_baselines}"

    @property
    def slow_phase(self) -> str:
        """That the host became slow, as a clause."""
        return f"the baseline took {self.slowdown or 1:.1f} times as long as in earlier launches of this search"

    @property
    def n_shown(self) -> int:
        """Launches that count, and those that do not, because one side was slow."""
        return self.n_launches + self.n_slow_baselines + self.n_slow_of_both

    @property
    def has_enough_launches(self) -> bool:
        """Whether a claim may rest on it."""
        return self.n_launches >= COUNTED_LAUNCHES_OF_A_PROOF and self.n_shown >= LAUNCHES_OF_A_PROOF


class LimitCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether one side stays within a limit.

    Attributes:
        limit: As the user wrote it.
        figure: What it bounds.
        bound: In ns, bytes, or calls per second; or as a multiple of the baseline's value.
        relative: Whether bound and value are such multiples.
        value: The figure: the geometric mean over the launches.
        low: Lower end of its confidence interval.
        high: Upper end; None if there is no finite bound.
        kept: "yes" or "no" if the whole interval lies on one side of the bound, else "unsure".
    """

    limit: str
    figure: Objective
    bound: float
    relative: bool = False
    value: float
    low: float
    high: float | None = None
    kept: Kept


class TwoSpeeds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A side whose blocks form two separate groups. Its figures depend on how often each speed occurs.

    Attributes:
        side: Its name.
        slow_share: Share of the blocks at the lower speed.
        factor: How many times as long calls take then.
    """

    side: str
    slow_share: float
    factor: float


class DifferentFrequencies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two sides during which the CPUs ran at different frequencies. Their ratio may be another one at other times.

    Attributes:
        slow: Name of the side with the lower frequency.
        slow_hz: Mean frequency of the CPUs at the end of its blocks.
        fast: Name of the other side.
        fast_hz: The same for this side.
    """

    slow: str
    slow_hz: float
    fast: str
    fast_hz: float


class Noise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU use by other processes during the measurements.

    Attributes:
        n_blocks: Blocks measured.
        n_contended: Of these, blocks during which other processes used the CPUs.
        n_repeated: Blocks that were measured again for that reason.
        foreign_share_mean: Mean share of the usable CPUs' time that other processes used; None if unknown.
        foreign_share_p90: Its 90th percentile.
        regime: Which blocks the result rests on: "quiet", "contended", or "unknown" where the system does not report
            CPU use. The two are never mixed.
        drift: The winner's speedup in racing divided by that in confirmation; None without both. Somewhat above 1 is
            normal, because the luckiest candidate is chosen. Far from 1, the host changes over time.
        n_left_out: Rounds of the comparison that do not count, because they are of the other regime.
        chosen_in: The regime of the rounds that chose the winner, if it is another one than that of its confirmation;
            None if it is the same.
        n_throttled: Blocks at whose end the GPU was throttled by heat or power.
        two_speeds: The side that ran at two speeds, if any did.
        frequencies: Sides during which the CPUs ran at different frequencies, if they did.
        n_relaunched: Workers that ended suddenly and were launched again.
        n_jumps: Blocks that were thrown away because the host slept or its time was set in the meantime.
        one_at_a_time: Whether one side was measured after the other, because too little memory was free for several
            sessions, or because the speed counts that the host sustains. Their blocks are then not interleaved.
    """

    n_blocks: Count
    n_contended: Count
    n_repeated: Count
    foreign_share_mean: float | None = None
    foreign_share_p90: float | None = None
    regime: Literal["quiet", "contended", "unknown"]
    drift: float | None = None
    n_left_out: Count = 0
    chosen_in: Literal["quiet", "contended"] | None = None
    n_throttled: Count = 0
    two_speeds: TwoSpeeds | None = None
    frequencies: DifferentFrequencies | None = None
    n_relaunched: Count = 0
    n_jumps: Count = 0
    one_at_a_time: bool = False


class StageTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time that a stage took.

    Attributes:
        stage: The stage.
        wall_s: Its wall time.
        inference_s: Time in which calls were made.
    """

    stage: Stage
    wall_s: float
    inference_s: float


class Latencies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distribution of the latency of one side, over all of its blocks that count.

    Attributes:
        n_calls: Number of calls.
        shares: Shares of the calls, in ascending order, from 0 for the fastest call to 1 for the slowest.
        ns: For each share: the latency that this share of the calls does not exceed.
    """

    n_calls: Count
    shares: tuple[float, ...]
    ns: tuple[float, ...]

    def __post_init__(self) -> None:
        """Reject what is not a distribution."""
        if len(self.shares) != len(self.ns):
            raise ValueError(f"there are {len(self.shares)} shares and {len(self.ns)} latencies")


class FewCalls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known where the objective is a percentile that needs more calls than there are.

    Attributes:
        n_calls: Calls of the side that has fewer.
        supported: The highest percentile beyond the median that these are enough for, or the mean.
        speedup: The speedup in this figure; None for fewer than two launches.
        slowest_ns: The slowest call of the side that is compared with the baseline.
        one_in: Its calls may be slower than that only if that occurs less than once in so many, with 95 % confidence.
    """

    n_calls: Count
    supported: Objective
    speedup: Speedup | None = None
    slowest_ns: float
    one_in: Count

    def __str__(self) -> str:
        known = f"{self.supported} gains {format_speedup(self.speedup)}; " if self.speedup else ""
        return (
            f"{known}calls slower than {self.slowest_ns / 1e6:.3g} ms, if rarer than 1 in {self.one_in}, are not "
            "excluded"
        )


def describe_slow_launches(n_slow: int, n_launches: int) -> str:
    """Return how many launches were slow, or how many may be although none was, as a clause."""
    if n_slow:
        verb = "was" if n_slow == 1 else "were"
        launches = "launch" if n_slow == 1 else "launches"
        return f"{n_slow} {launches} {verb} at least {SLOW_LAUNCH:g}x as slow as usual"
    one_in = one_in_unseen(n_launches)
    return f"launches {SLOW_LAUNCH:g}x as slow, if rarer than 1 in {one_in}, are not excluded"


def one_in_unseen(n: int, confidence: float = DEFAULT_CONFIDENCE) -> int:
    """Return k such that what occurs once in k times, or more often, occurs among `n` times with a confidence."""
    return max(math.floor(-1 / math.expm1(math.log(1 - confidence) / n)), 1)


class LateCalls(Interval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times better than the baseline a side is after more calls of a launch, where that is not as before.

    Attributes:
        n_calls: Calls of the side in this launch before.
        early: How many times better the side was before, over all launches.
    """

    n_calls: Count
    early: float

    def __str__(self) -> str:
        return (
            f"the ratio is {format_speedup(self)} after {self.n_calls} calls of a launch, and "
            f"{format_ratio(self.early)} before"
        )


def describe_lack(name: str, n_needed: int, n_calls: int) -> str:
    """Return that a percentile needs more calls of each side than there were, as a clause."""
    return f"{name} needs {n_needed} calls of each side, and there were {n_calls}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one side.

    Attributes:
        name: Its name.
        config: Its settings.
        summary: All figures; None if it failed or has no block that counts.
        speedup: How many times better than the baseline in the first objective. None for the baseline, after a
            failure, and for fewer than two launches.
        limits: Whether it stays within each limit.
        few_calls: What is known if the objective needs more calls than there are; None if it has enough.
        late_calls: How late calls of a launch compare, which the speedup then includes; None if they do as early ones.
        session: What took effect, read back from its last session; None after a failure.
        failure: Why it failed, or None.
        latencies: The distribution of its latency; None if it failed or has no block that counts.
        pairs: For each launch: how many times better than the baseline it was in each pair of blocks. A figure that
            needs all calls of a launch has one for each launch. Empty for the baseline and after a failure.
        places: CPU time that its threads spent on each CPU; empty if unknown.
    """

    name: str
    config: Config
    summary: Summary | None = None
    speedup: Speedup | None = None
    limits: tuple[LimitCheck, ...] = ()
    few_calls: FewCalls | None = None
    late_calls: LateCalls | None = None
    session: SessionInfo | None = None
    failure: Failure | None = None
    latencies: Latencies | None = None
    pairs: tuple[tuple[float, ...], ...] = ()
    places: tuple[CpuPlace, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How several configs compare.

    Attributes:
        objective: What the speedups are measured in.
        rows: One for each side, the baseline first.
        calls_needed: Calls of each side that the objective must rest on.
        noise: CPU use by other processes.
    """

    objective: Objective
    rows: tuple[Row, ...]
    calls_needed: Count
    noise: Noise

    @property
    def baseline(self) -> Row:
        """The row of the baseline."""
        return self.rows[0]
