"""Evaluates a paired run: speedups, limits and figures of each side.

These functions take all rounds of a run. Restrict it with `PairedRun.in_one_regime()` first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from ortune.measure.block_runner import BlockRunner, Round
from ortune.measure.comparison import (
    Comparison,
    FewCalls,
    LimitCheck,
    Row,
    Speedup,
    Summary,
    TwoSpeeds,
    one_in_unseen,
)
from ortune.measure.compute_figures import (
    bound_percentile,
    compute_figure,
    compute_percentile,
    compute_worst_percentile,
    count_calls,
    describe_latencies,
    fewest_calls,
    is_pooled,
    is_total,
    required_calls,
    to_cost,
)
from ortune.measure.frequencies import find_different_frequencies
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval, share_error
from ortune.measure.late_calls import find_late_calls
from ortune.measure.limits import judge_limit
from ortune.measure.paired_run import BASELINE_POSITION, LAUNCHES_OF_AN_INTERVAL, PairedRun
from ortune.measure.quantiles import percentile_interval, percentile_ratio_interval
from ortune.measure.slow_launches import find_slow_launches, limit_slow_launches
from ortune.measure.stats import (
    TRIM,
    TYPICAL_TRIM,
    clustered_interval,
    find_varying_share,
    t_interval,
    trimmed_mean,
    widen_for_occasions,
)
from ortune.measure.two_speeds import find_two_speeds
from ortune.worker import Block
from ortune.worker.places import sum_places
from ortune.workload import FIGURES, Goal, Limit, Objective


def evaluate(
    run: PairedRun,
    goal: Goal,
    runner: BlockRunner,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    limit_confidence: float = DEFAULT_CONFIDENCE,
) -> Comparison:
    """Return the comparison of all sides of a run.

    Args:
        run: Its rounds of one regime.
        goal: The goal. Speedups refer to its first objective.
        runner: Provides the noise.
        confidence: Confidence that the intervals of the speedups have together.
        limit_confidence: Confidence with which limits are judged.
    """
    confidence = share_error(len(run.sides) - len(run.failures) - 1, confidence)
    return Comparison(
        objective=goal.objective,
        rows=tuple(
            evaluate_side(run, position, goal, confidence, limit_confidence) for position in range(len(run.sides))
        ),
        calls_needed=required_calls(goal.objective) if is_pooled(goal.objective) else 1,
        noise=msgspec.structs.replace(
            runner.describe_noise(contended=run.contended),
            two_speeds=find_side_at_two_speeds(run),
            n_left_out=run.n_left_out,
            frequencies=find_different_frequencies(run),
            one_at_a_time=runner.one_at_a_time or goal.sustained,
        ),
    )


def evaluate_side(run: PairedRun, position: int, goal: Goal, confidence: float, limit_confidence: float) -> Row:
    """Return the figures of one side, its speedup, and whether it stays within the limits.

    Args:
        run: The rounds of one regime.
        position: The side.
        goal: The goal.
        confidence: Confidence of the speedup's interval.
        limit_confidence: Confidence with which limits are judged.
    """
    side, failure = run.sides[position], run.failures.get(position)
    if failure or not run.blocks(position):
        return Row(name=side.name, config=side.config, failure=failure)
    is_baseline = position == BASELINE_POSITION
    speedup = None if is_baseline else compute_speedup(run, position, goal.objective, confidence=confidence)
    late = find_late_calls(run, position, goal.objective, speedup) if speedup else None
    return Row(
        name=side.name,
        config=side.config,
        summary=summarize(run, position, goal.figures),
        speedup=speedup.include(late, late.estimate) if speedup and late else speedup,
        limits=tuple(check_limit(run, position, limit, limit_confidence) for limit in goal.limits),
        few_calls=None if is_baseline else find_few_calls(run, position, goal.objective, confidence),
        late_calls=late,
        session=run.loaded[position][-1],
        latencies=describe_latencies(run.blocks(position)),
        pairs=()
        if is_baseline
        else tuple(
            tuple(round(math.exp(ratio), 5) for ratio in cluster)
            for cluster in find_log_ratios(*compute_log_costs(run, position, goal.objective, BASELINE_POSITION))
        ),
        places=sum_places(block.places for block in run.blocks(position)),
    )


def find_side_at_two_speeds(run: PairedRun) -> TwoSpeeds | None:
    """Return the side whose blocks ran at two speeds; the one with the largest difference if several did."""
    found = [
        speeds
        for position, side in enumerate(run.sides)
        if (speeds := find_two_speeds(side.name, run.blocks(position), has_rate=bool(run.load_of(position).rate_per_s)))
    ]
    return max(found, key=lambda two_speeds: two_speeds.factor, default=None)


def compute_speedup(
    run: PairedRun,
    position: int,
    name: Objective,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    base: int = BASELINE_POSITION,
) -> Speedup | None:
    """Return how many times better one side is than another, or None for fewer than two launches.

    Most figures are compared round by round. A percentile beyond the median needs more calls than a block has, so the
    calls of a launch are pooled, and the interval includes that over the calls of all launches.

    Means, throughput and CPU time are ratios of the totals of a launch, because a mean of rounds without the extreme
    ones would not contain rare slow calls. In a median, slow launches that both sides have do not count.

    The interval covers how much launches differ, and how much times usually differ between occasions within hours. If
    the host has become slow since earlier launches, so that median times are those of a phase, it includes those, too.
    If a percentile rests on fewer calls than it needs, it includes the interval of a figure that has enough.
    """
    launches = run.rounds_of(position, base)
    if len(launches) < LAUNCHES_OF_AN_INTERVAL:
        return None
    costs = compute_log_costs(run, position, name, base)
    clusters = find_log_ratios(*costs)
    default, own = ([statistics.fmean(launch) for launch in side] for side in costs)
    is_typical = FIGURES[name].percentile == 50
    trim = TYPICAL_TRIM if is_typical else TRIM
    ratios = [trimmed_mean(cluster, trim) for cluster in clusters]
    is_slow = find_slow_launches(own, [-ratio for ratio in ratios])
    n_slow_baselines = n_slow_of_both = 0
    slowdown = None
    if is_typical:
        slowdown = run.before.find_slowdown(default)
        is_slow_baseline = find_slow_launches(default, ratios)
        if slowdown is None:
            is_slow_baseline = [
                is_alone or run.before.is_slow(level) for is_alone, level in zip(is_slow_baseline, default, strict=True)
            ]
        counted = limit_slow_launches(clusters, is_slow, is_slow_baseline, run.before)
        if len(counted) >= LAUNCHES_OF_AN_INTERVAL:
            n_slow_baselines = sum(is_slow_baseline)
            n_slow_of_both = len(clusters) - n_slow_baselines - len(counted)
            clusters = counted
    interval = clustered_interval(clusters, confidence=confidence, trim=trim, seed=run.seed)
    if is_pooled(name):
        # A launch has too few calls: its slowest ones decide. A cost of base is divided by that of the side.
        of_all_calls = compare_percentiles(run, (base,), (position,), name, confidence)
        interval = interval.include(of_all_calls, of_all_calls.estimate)
        point = FIGURES[name].percentile
        assert point is not None
        if not has_enough_calls(run, position, name):
            interval = include_slow_calls(interval, run.blocks(base), run.blocks(position), point)
    if FIGURES[name].unit != "bytes":  # memory does not depend on how busy the host is
        by_speed = (own, default) if interval.estimate < 0 else (default, own)
        interval = widen_for_occasions(interval, find_varying_share(*by_speed))
    if not has_enough_calls(run, position, name):
        figure = find_supported_figure(run, position)
        supported = compute_speedup(run, position, figure, confidence=confidence, base=base)
        assert supported
        interval = interval.include(supported.log())
    if slowdown is not None:
        interval = run.before.include(interval, ratios)
    interval = interval.exp()
    return Speedup(
        estimate=interval.estimate,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        n_pairs=sum(map(len, clusters if is_typical else launches)),
        n_launches=len(clusters),
        n_slow_launches=sum(is_slow),
        n_slow_of_both=n_slow_of_both,
        n_slow_baselines=n_slow_baselines,
        slowdown=None if slowdown is None else math.exp(slowdown),
        span_s=launches[-1][-1].at_s - launches[0][0].at_s,
    )


def compute_log_costs(
    run: PairedRun, position: int, name: Objective, base: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the logarithms of the costs of another side and of one side: for each launch, those of its pairs."""
    launches = run.rounds_of(position, base)
    others, own = (
        [[math.log(cost) for cost in compute_costs(rounds, side, name)] for rounds in launches]
        for side in (base, position)
    )
    return others, own


def find_log_ratios(others: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the logarithms of how many times better one side is than another, given those of their costs."""
    return [[other - cost for other, cost in zip(*launch, strict=True)] for launch in zip(others, own, strict=True)]


def compare_percentiles(
    run: PairedRun, positions: Sequence[int], base: Sequence[int], name: Objective, confidence: float
) -> Interval:
    """Return the logarithm of the ratio of a percentile over all calls of some sides to that of others.

    Args:
        run: Its rounds of one regime.
        positions: Sides with the same config.
        base: The sides that they are divided by, as many.
        name: The percentile.
        confidence: Coverage of the interval.
    """
    point = FIGURES[name].percentile
    assert point is not None
    launches, others = (
        [
            [measured.blocks[side] for measured in rounds for side in sides]
            for rounds in run.rounds_of(*positions, *base)
        ]
        for sides in (positions, base)
    )
    return percentile_ratio_interval(launches, others, point, confidence, run.seed)


def compute_costs(rounds: Sequence[Round], position: int, name: Objective) -> list[float]:
    """Return the costs of one side: one for each round, or a single one where all rounds are taken together."""
    if is_pooled(name) or is_total(name):
        return [to_cost(name, compute_pooled(rounds, position, name))]
    return [to_cost(name, measured.figure(name, position)) for measured in rounds]


def compute_pooled(rounds: Sequence[Round], position: int, name: Objective) -> float:
    """Return a figure of one side over all blocks of these rounds together."""
    blocks = [measured.blocks[position] for measured in rounds]
    return compute_figure(name, blocks, [measured.loads_ns[position] for measured in rounds])


def compute_utilization(run: PairedRun, position: int, confidence: float = DEFAULT_CONFIDENCE) -> Interval | None:
    """Return the share of the callers' time that the calls of one side take, or None without a request rate."""
    load = run.load_of(position)
    if not load.rate_per_s:
        return None
    means = [
        np.mean([measured.blocks[position].service_ns for measured in rounds]) for rounds in run.rounds_of(position)
    ]
    clusters = [[math.log(load.utilization(float(mean)))] for mean in means]
    return clustered_interval(clusters, confidence=confidence, seed=run.seed).exp()


def has_enough_calls(run: PairedRun, position: int, name: Objective) -> bool:
    """Return whether this side and the baseline have the calls that a percentile must rest on; true for others."""
    return not is_pooled(name) or count_calls_of_both(run, position) >= required_calls(name)


def count_calls_of_both(run: PairedRun, position: int) -> int:
    """Return how many calls a percentile rests on: those of this side or of the baseline, whichever has fewer."""
    return min(count_calls(run.blocks(side)) for side in (BASELINE_POSITION, position))


def find_supported_figure(run: PairedRun, position: int) -> Objective:
    """Return the highest percentile that a side and the baseline have enough calls for, or else the mean.

    The median says little of a tail, so that the mean is next.
    """
    n_calls = count_calls_of_both(run, position)
    enough = [name for name in FIGURES if is_pooled(name) and required_calls(name) <= n_calls]
    return max(enough, key=required_calls, default="mean")


def find_few_calls(
    run: PairedRun, position: int, name: Objective, confidence: float = DEFAULT_CONFIDENCE
) -> FewCalls | None:
    """Return what is known of a side if a percentile needs more calls than there are; None if it has enough.

    Args:
        run: Its rounds of one regime.
        position: The side.
        name: The percentile, or another figure, for which any number of calls is enough.
        confidence: Confidence of intervals.
    """
    if has_enough_calls(run, position, name):
        return None
    samples = np.concatenate([block.samples_ns for block in run.blocks(position)])
    supported = find_supported_figure(run, position)
    return FewCalls(
        n_calls=count_calls_of_both(run, position),
        supported=supported,
        speedup=compute_speedup(run, position, supported, confidence=confidence),
        slowest_ns=float(samples.max()),
        one_in=one_in_unseen(len(samples)),
    )


def include_slow_calls(interval: Interval, base: Sequence[Block], own: Sequence[Block], point: float) -> Interval:
    """Return the interval of the log-ratio of a percentile of two sides, widened for the calls that few calls lack.

    The percentile of either side may be as long as its number of calls allows, or as its slowest call.

    Args:
        interval: The interval of the logarithm of the ratio of base to own.
        base: Blocks of the side that is divided.
        own: Blocks of the side that it is divided by.
        point: The percentile.
    """
    above_base, above_own = (
        math.log(bound_percentile(blocks, point, interval.confidence) / compute_percentile(blocks, point))
        for blocks in (base, own)
    )
    return msgspec.structs.replace(
        interval,
        low=min(interval.low, interval.estimate - above_own),
        high=max(interval.high, interval.estimate + above_base),
    )


def check_limit(run: PairedRun, position: int, limit: Limit, confidence: float = DEFAULT_CONFIDENCE) -> LimitCheck:
    """Return whether one side stays within a limit, and how certain that is.

    A limit that is no multiple of the baseline's figure holds for all calls, also while other processes use the CPUs.
    """
    launches = run.rounds_of(position, BASELINE_POSITION) if limit.relative else run.list_all(position)
    values = []
    for rounds in launches:
        value = compute_pooled(rounds, position, limit.figure)
        base = compute_pooled(rounds, BASELINE_POSITION, limit.figure) if limit.relative else 1
        values.append(math.log(value / base))
    interval = t_interval(values, confidence)
    if is_pooled(limit.figure) and not (limit.relative and position == BASELINE_POSITION):
        interval = widen_for_calls(interval, launches, position, limit)
    interval = interval.exp()
    return LimitCheck(
        limit=limit.text,
        figure=limit.figure,
        bound=limit.bound,
        relative=limit.relative,
        value=interval.estimate,
        low=interval.low,
        high=interval.high if math.isfinite(interval.high) else None,
        kept=judge_limit(limit, interval),
    )


def widen_for_calls(interval: Interval, launches: Sequence[Sequence[Round]], position: int, limit: Limit) -> Interval:
    """Return the interval of a percentile over launches, widened for how few calls it rests on.

    The interval over all calls together is included, because a launch has too few calls for its percentile.

    Args:
        interval: Interval over the launches, of logarithms.
        launches: The rounds of each launch.
        position: The side.
        limit: The limit.
    """
    point = FIGURES[limit.figure].percentile
    assert point is not None
    sides = (position, BASELINE_POSITION) if limit.relative else (position,)
    blocks = [[[measured.blocks[side] for measured in rounds] for rounds in launches] for side in sides]
    n_calls = min(count_calls([block for launch in side for block in launch]) for side in blocks)
    if n_calls < fewest_calls(limit.figure, interval.confidence):
        return msgspec.structs.replace(interval, high=math.inf, low=-math.inf if limit.relative else interval.low)
    if limit.relative:
        of_all_calls = percentile_ratio_interval(blocks[0], blocks[1], point, interval.confidence)
    else:
        # It may have an infinite end: launches that differ much are worth fewer calls than were counted above.
        of_all_calls = percentile_interval(blocks[0], point, interval.confidence)
    return interval.include(of_all_calls, of_all_calls.estimate)


def summarize(run: PairedRun, position: int, named: Sequence[Objective] = ()) -> Summary:
    """Return all figures of one side.

    Args:
        run: Its rounds of one regime.
        position: The side.
        named: Figures that must be among them, such as percentiles that have no field.
    """
    blocks, loaded, load = run.blocks(position), run.loaded[position], run.load_of(position)
    launches = [[measured.blocks[position] for measured in rounds] for rounds in run.rounds_of(position)]
    samples = np.concatenate([block.samples_ns for block in blocks])
    p50, p90, p95, p99 = (compute_percentile(blocks, point) for point in (50, 90, 95, 99))
    loads_ns = [session.load_ns for session in loaded]
    others = {name: compute_figure(name, blocks, loads_ns) for name in (*FIGURES, *named) if not FIGURES[name].field}
    between = [block.cpu_between_ns for block in blocks if block.cpu_between_ns is not None]
    service_ns = float(np.mean([block.service_ns for block in blocks]))
    utilization = compute_utilization(run, position)
    is_bounded = utilization is not None and math.isfinite(utilization.high)
    return Summary(
        config=run.sides[position].config,
        p50_ns=p50,
        p90_ns=p90,
        p95_ns=p95,
        p99_ns=p99,
        mean_ns=float(samples.mean()),
        worst_p50_ns=compute_worst_percentile(launches, 50),
        worst_p99_ns=compute_worst_percentile(launches, 99),
        calls_per_s=compute_figure("throughput", blocks),
        cpu_ns_per_call=compute_figure("cpu", blocks),
        cpu_ns_between_calls=float(np.mean(between)) if between else None,
        utilization=load.utilization(service_ns) if load.rate_per_s else None,
        utilization_low=utilization.low if utilization and is_bounded else None,
        utilization_high=utilization.high if utilization and is_bounded else None,
        n_calls=count_calls(blocks),
        load_ns=compute_figure("load-time", blocks, loads_ns),
        steady_bytes=round(statistics.median(block.memory.steady_bytes for block in blocks)),
        peak_bytes=max(block.memory.peak_bytes for block in blocks),
        gpu_bytes=max((block.gpu.used_bytes for block in blocks if block.gpu and block.gpu.used_bytes), default=None),
        nodes=loaded[-1].nodes,
        build_s=loaded[-1].build_s,
        metric=compute_figure("metric", blocks) if blocks[0].metric is not None else None,
        others=others or msgspec.UNSET,
    )
