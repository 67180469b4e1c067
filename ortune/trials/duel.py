"""The duel: the challenger against the default, launched afresh several times, in ABBA blocks.

Nothing that was measured before counts here. The challenger was chosen because it looked fast, and part of that
was luck; what is claimed must not rest on the luck that it was chosen for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from ortune.knobs import DEFAULT, Config
from ortune.measure import Block, Failure, Live, Memory
from ortune.measure.cpu import QUIET_SHARE
from ortune.measure.stats import Interval, clustered_interval, percentiles, t_interval
from ortune.trials.ledger import Entry
from ortune.trials.meter import one_regime, raise_default
from ortune.trials.stage import Context
from ortune.trials.values import CONFIDENCE, NEGLIGIBLE_GAIN, Speedup, StageTime, Summary, Verdict

ENOUGH_QUIET = 0.5
"""Share of all pairs that must be quiet for the claim to rest on quiet pairs."""


class Pair(msgspec.Struct, frozen=True):
    """Two blocks, one right after the other: the challenger's and the default's."""

    challenger: Block
    default: Block

    @property
    def log_speedup(self) -> float:
        """How much faster the challenger was."""
        return math.log(self.default.p50_ns / self.challenger.p50_ns)

    @property
    def contended(self) -> bool:
        """Whether either block was."""
        return self.challenger.contended or self.default.contended


class Side:
    """What is known of one side's sessions over all restarts."""

    def __init__(self) -> None:
        self.lives: list[Live] = []
        self.memories: list[Memory] = []


class DuelResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the duel showed.

    Attributes:
        speedup: The interval, or None when there were too few pairs for one.
        challenger: The challenger's figures, or None likewise.
        default: The default's.
        contended: Whether the claim rests on pairs that were measured while others used the CPUs.
        failure: Why the challenger is out after all, or None.
        time: Where the time went.
    """

    speedup: Speedup | None
    challenger: Summary | None
    default: Summary | None
    contended: bool
    failure: Failure | None
    time: StageTime


def run_duel(context: Context, entry: Entry, *, seed: int) -> DuelResult:
    """Fight the duel as it was planned."""
    plan, meter = context.plan, context.meter
    start_s, inference_s = context.now_s(), meter.inference_s
    # Noise may stretch it, but not without end.
    end_s = max(start_s + 1.5 * plan.duel_s, context.end_s)
    entry.enter("duel")
    restarts: list[list[Pair]] = []
    sides = (Side(), Side())
    failure: Failure | None = None
    total = plan.restarts * plan.pairs_per_restart
    for number in range(plan.restarts):
        pairs: list[Pair] = []
        restarts.append(pairs)
        failure = _fight(context, entry, number, pairs, sides)
        speedup = _running(restarts)
        context.report("duel", sum(map(len, restarts)), total, entry, speedup)
        if failure or context.now_s() > end_s:
            break
    time = meter.stage_time("duel", start_s, inference_s)
    return _result(context, entry, restarts, sides, failure, time, seed)


def _fight(context: Context, entry: Entry, number: int, pairs: list[Pair], sides: tuple[Side, Side]) -> Failure | None:
    """Launch both sides once, and measure their pairs."""
    configs = [entry.candidate.config, DEFAULT]
    lives: list[Live | None] = [None, None]
    try:
        # Neither side is always the first to start, nor the first to be measured.
        for position in ((0, 1), (1, 0))[number % 2]:
            (answer,) = context.meter.launch([configs[position]])
            if isinstance(answer, Failure):
                if position == 1:
                    raise_default(answer)
                context.fail(entry, answer)
                return answer
            lives[position] = answer
        both = [live for live in lives if live is not None]
        for step in range(context.plan.pairs_per_restart // 2):
            for order in ((0, 1), (1, 0)) if (step + number) % 2 == 0 else ((1, 0), (0, 1)):
                measured = context.meter.sequence(both, order, context.plan.duel_block)
                for position, failure in measured.failures.items():
                    if position == 1:
                        raise_default(failure)
                    context.fail(entry, failure)
                    return failure
                pair = Pair(measured.blocks[0], measured.blocks[1])
                pairs.append(pair)
                entry.log_ratios.append((-pair.log_speedup, pair.contended))
                entry.n_blocks += 1
                context.default.n_blocks += 1
        for side, fighter in zip(sides, both, strict=True):
            side.lives.append(fighter)
            memory = fighter.memory()
            if memory:
                side.memories.append(memory)
    finally:
        for live in lives:
            if live is not None:
                live.close()
    return None


def _running(restarts: list[list[Pair]]) -> Interval | None:
    values = [pair.log_speedup for pairs in restarts for pair in pairs]
    return t_interval(values).exp() if values else None


def _result(
    context: Context,
    entry: Entry,
    restarts: list[list[Pair]],
    sides: tuple[Side, Side],
    failure: Failure | None,
    time: StageTime,
    seed: int,
) -> DuelResult:
    all_pairs = [(pair, pair.contended) for pairs in restarts for pair in pairs]
    kept, contended = one_regime(all_pairs, n_quiet=math.ceil(ENOUGH_QUIET * len(all_pairs)))
    if not contended and kept and mean_foreign_share(kept) > QUIET_SHARE:
        # No block by itself, but all of them together: the host was busy throughout.
        kept, contended = [pair for pair, _ in all_pairs], True
    counted = {id(pair) for pair in kept}
    clusters = [[pair.log_speedup for pair in pairs if id(pair) in counted] for pairs in restarts]
    clusters = [cluster for cluster in clusters if cluster]
    if failure or len(clusters) < 2:
        return DuelResult(speedup=None, challenger=None, default=None, contended=contended, failure=failure, time=time)
    interval = clustered_interval(clusters, confidence=CONFIDENCE, seed=seed).exp()
    speedup = Speedup(
        estimate=interval.estimate,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        pairs=len(kept),
        restarts=len(clusters),
    )
    challenger = _summarise(entry.candidate.config, [pair.challenger for pair in kept], sides[0])
    default = _summarise(DEFAULT, [pair.default for pair in kept], sides[1])
    return DuelResult(
        speedup=speedup, challenger=challenger, default=default, contended=contended, failure=None, time=time
    )


def mean_foreign_share(pairs: Sequence[Pair]) -> float:
    """Return the share of the CPUs' time that others used during these pairs, 0 where it is not told."""
    blocks = [block for pair in pairs for block in (pair.challenger, pair.default)]
    known = [(block.foreign_share, block.wall_ns) for block in blocks if block.foreign_share is not None]
    if not known:
        return 0.0
    return sum(share * wall_ns for share, wall_ns in known) / sum(wall_ns for _, wall_ns in known)


def _summarise(config: Config, blocks: list[Block], side: Side) -> Summary:
    samples = np.concatenate([block.samples_ns for block in blocks])
    wall_ns = sum(block.wall_ns for block in blocks)
    p50, p90, p95, p99 = percentiles(samples, [50, 90, 95, 99])
    return Summary(
        config=config,
        p50_ns=p50,
        p90_ns=p90,
        p95_ns=p95,
        p99_ns=p99,
        mean_ns=float(samples.mean()),
        calls_per_s=len(samples) / (wall_ns / 1e9),
        cpu_ns_per_call=sum(block.cpu_ns for block in blocks) / len(samples),
        n_calls=len(samples),
        load_ns=float(statistics.median(live.loaded.load_ns for live in side.lives)),
        steady_bytes=round(statistics.median(each.steady_bytes for each in side.memories)) if side.memories else None,
        peak_bytes=max(each.peak_bytes for each in side.memories) if side.memories else None,
        session=side.lives[-1].loaded,
    )


def judge(speedup: Speedup) -> tuple[Verdict, str]:
    """Return the verdict on an interval, and the reason in a sentence."""
    if speedup.low > 1:
        return "faster", "the whole interval lies above 1"
    if speedup.high < 1 + NEGLIGIBLE_GAIN:
        return (
            "default_is_best",
            f"the best other candidate gains less than {NEGLIGIBLE_GAIN:.0%}, if anything",
        )
    return (
        "inconclusive",
        "the interval holds both no gain and a gain worth having: give it a larger --budget, or a quieter host",
    )
