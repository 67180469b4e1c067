"""Computes figures from blocks: percentiles, throughput, CPU time, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.measure.comparison import Latencies
from ortune.worker import Block
from ortune.workload import FIGURES, Objective

Z_95 = 1.959964
"""Quantile of the normal distribution: 95 % of it lies within this many standard deviations."""

MAX_KEPT_SAMPLES = 500
"""Samples of a block that are kept for percentiles over several blocks."""

TAIL_CALLS = 3
"""Calls that must lie beyond a percentile for it to be read from a few blocks."""


def compute_figure(name: Objective, blocks: Sequence[Block], load_ns: Sequence[int] = ()) -> float:
    """Return a figure in its own unit, over all of these blocks together.

    Args:
        name: The figure.
        blocks: At least one.
        load_ns: Time to create each session, for "load-time" where the blocks contain no session creations.
    """
    percentile = FIGURES[name].percentile
    return COMPUTED[name](blocks, load_ns) if percentile is None else compute_percentile(blocks, percentile)


def compute_mean(blocks: Sequence[Block], load_ns: Sequence[int]) -> float:
    """Return the mean latency of all calls in ns."""
    return float(np.concatenate([block.samples_ns for block in blocks]).mean())


def compute_throughput(blocks: Sequence[Block], load_ns: Sequence[int]) -> float:
    """Return the items per second of all callers together."""
    return 1e9 * sum(block.n_items for block in blocks) / sum(block.wall_ns for block in blocks)


def compute_cpu(blocks: Sequence[Block], load_ns: Sequence[int]) -> float:
    """Return the CPU time per item in ns."""
    return sum(block.cpu_ns for block in blocks) / sum(block.n_items for block in blocks)


def compute_memory(blocks: Sequence[Block], load_ns: Sequence[int]) -> float:
    """Return the largest resident memory in bytes."""
    return float(max(block.memory.peak_bytes for block in blocks))


def compute_load_time(blocks: Sequence[Block], load_ns: Sequence[int]) -> float:
    """Return the median time to create a session in ns: in the blocks, or without one there, those of the launches."""
    creations = [block.creations_ns for block in blocks if block.creations_ns is not None]
    return float(np.median(np.concatenate(creations))) if creations else float(np.median(load_ns))


def compute_metric(blocks: Sequence[Block], load_ns: Sequence[int]) -> float:
    """Return the mean of the numbers that a program printed."""
    return float(np.mean([block.metric for block in blocks if block.metric is not None]))


COMPUTED: dict[Objective, Callable[[Sequence[Block], Sequence[int]], float]] = {
    "mean": compute_mean,
    "throughput": compute_throughput,
    "cpu": compute_cpu,
    "memory": compute_memory,
    "load-time": compute_load_time,
    "metric": compute_metric,
    "score": compute_metric,
}
"""How each figure that is no percentile is computed from blocks, and from the time to create the session of each launch
for blocks without session creations."""


def compute_block_figure(name: Objective, block: Block, load_ns: int) -> float:
    """Return a figure of one block, for ranking candidates.

    For a percentile that needs more calls than the block has, return the highest percentile that it supports.
    """
    if FIGURES[name].percentile is not None:
        return compute_supported_percentile(name, [block])
    return compute_figure(name, [block], [load_ns])


def compute_percentile(blocks: Sequence[Block], point: float) -> float:
    """Return a percentile of latency in ns. With several cases, return the geometric mean of their percentiles."""
    values = [percentiles(samples, [point])[0] for samples in split_cases(blocks)]
    return values[0] if len(values) == 1 else math.exp(sum(map(math.log, values)) / len(values))


def compute_supported_percentile(name: Objective, blocks: Sequence[Block]) -> float:
    """Return a percentile over these blocks, or the highest that they have enough calls for."""
    point = FIGURES[name].percentile
    assert point is not None
    return compute_percentile(blocks, min(point, supported_percentile(count_calls(blocks))))


def bound_percentile(blocks: Sequence[Block], point: float, confidence: float = 0.95) -> float:
    """Return a duration in ns that a percentile does not exceed, for any distribution of independent calls.

    With several cases, it is the geometric mean of theirs. Where there are too few calls, it is the slowest one, which
    the percentile may exceed.

    Args:
        blocks: The blocks.
        point: The percentile.
        confidence: Confidence of the bound.

    Source: the number of calls above a percentile is binomial, so a bound is one of ranks (H. A. David and H. N.
    Nagaraja, "Order Statistics", section 7.1).
    """
    from scipy.special import bdtr

    logs = []
    for samples in split_cases(blocks):
        n, n_above = len(samples), 0
        while bdtr(n_above + 1, n, 1 - point / 100) <= 1 - confidence:
            n_above += 1
        logs.append(math.log(max(float(np.partition(samples, n - 1 - n_above)[n - 1 - n_above]), 1.0)))
    return math.exp(sum(logs) / len(logs))


def percentiles(samples: NDArray[np.int64], points: Sequence[float]) -> list[float]:
    """Return percentiles of the samples, each a value that occurred.

    They are those of `numpy.percentile` with the method "inverted_cdf", which takes six to ten times as long for one
    block.
    """
    ordered = np.sort(samples)
    ranks = (math.ceil(len(ordered) * (point / 100) - 1) for point in points)
    return [float(ordered[min(max(rank, 0), len(ordered) - 1)]) for rank in ranks]


def compute_worst_percentile(launches: Sequence[Sequence[Block]], point: float) -> float | None:
    """Return a percentile of latency of the slowest process in ns, or None for blocks of a single process.

    In each launch, another process may be the slowest. The percentile is over the calls of the slowest ones.

    Args:
        launches: The blocks of each launch.
        point: The percentile.
    """
    slowest = [find_slowest_process(blocks, point) for blocks in launches]
    calls = [block for blocks in slowest for block in blocks]
    return compute_percentile(calls, point) if calls else None


def find_slowest_process(blocks: Sequence[Block], point: float) -> list[Block]:
    """Return the blocks of one launch with the calls of the process with the largest percentile only.

    Returns:
        Nothing for blocks of a single process.
    """
    known = [(block, block.processes) for block in blocks if block.processes is not None]
    numbers = np.unique(np.concatenate([processes for _, processes in known])) if known else ()
    sides = [[select_calls(block, processes == number) for block, processes in known] for number in numbers]
    return max(sides, key=lambda side: compute_percentile(side, point), default=[])


def select_calls(block: Block, wanted: NDArray[np.bool_]) -> Block:
    """Return a block with some of its calls."""
    cases = None if block.cases is None else block.cases[wanted]
    return msgspec.structs.replace(block, samples_ns=block.samples_ns[wanted], cases=cases, processes=None)


LATENCY_SHARES = tuple(
    sorted({*(n / 100 for n in range(101)), 0.001, 0.005, 0.992, 0.995, 0.998, 0.999, 0.9995, 0.9999})
)
"""Shares of the calls whose latencies describe a distribution: closer together at the tail."""

LATENCY_DIGITS = 4


def describe_latencies(blocks: Sequence[Block]) -> Latencies:
    """Return the distribution of the latency of all calls of some blocks.

    Shares that differ by less than a call from those of the fastest and the slowest call are left out.
    """
    samples = np.concatenate([block.samples_ns for block in blocks])
    shares = [
        share for share in LATENCY_SHARES if share in {0.0, 1.0} or 1 / len(samples) <= share <= 1 - 1 / len(samples)
    ]
    values = np.quantile(samples, shares, method="inverted_cdf")
    return Latencies(
        n_calls=len(samples),
        shares=tuple(shares),
        ns=tuple(float(f"{value:.{LATENCY_DIGITS}g}") for value in values),
    )


def split_cases(blocks: Sequence[Block]) -> list[NDArray[np.int64]]:
    """Return the samples of each input case that occurs, in the order of their numbers."""
    return list(split_by_case(blocks).values())


def split_by_case(blocks: Sequence[Block]) -> dict[int, NDArray[np.int64]]:
    """Return the samples of each input case that occurs, by its number."""
    samples = np.concatenate([block.samples_ns for block in blocks])
    if blocks[0].cases is None:
        return {0: samples}
    cases = np.concatenate([block.cases for block in blocks if block.cases is not None])
    return {int(case): samples[cases == case] for case in np.unique(cases)}


def count_calls(blocks: Sequence[Block]) -> int:
    """Return how many calls a percentile rests on: those of the case with the fewest."""
    return min(len(samples) for samples in split_cases(blocks))


def thin_samples(block: Block) -> Block:
    """Return a block with at most a few hundred samples, evenly spaced by rank, which suffice for its percentiles."""
    step = -(-len(block.samples_ns) // MAX_KEPT_SAMPLES)
    if step == 1 or block.cases is not None:
        return block
    # Start at the slow end, to keep the slowest.
    return msgspec.structs.replace(block, samples_ns=np.sort(block.samples_ns)[::-1][::step], processes=None)


def to_cost(name: Objective, value: float) -> float:
    """Return a figure as a cost: smaller is better."""
    return 1 / value if FIGURES[name].larger_is_better else value


def is_pooled(name: Objective) -> bool:
    """Return whether a figure needs more calls than one block has: a percentile beyond the median."""
    percentile = FIGURES[name].percentile
    return percentile is not None and percentile > 50


def is_of_calls(name: Objective) -> bool:
    """Return whether a figure is about calls as they are at a time, not about memory or what a program prints."""
    return FIGURES[name].unit in {"ns", "per_s"} and name != "load-time"


def is_total(name: Objective) -> bool:
    """Return whether a figure is a total divided by another one: all calls count, also the rare slow ones."""
    return FIGURES[name].is_total


def supported_percentile(n_calls: int) -> float:
    """Return the highest percentile that this number of calls supports, at least the median."""
    return max(50.0, 100 * (1 - TAIL_CALLS / n_calls))


def fewest_calls(name: Objective, confidence: float) -> int:
    """Return how many independent calls are needed for one of them to lie beyond a percentile with confidence.

    With fewer, nothing is known about the calls beyond it: 368 for p99 with 95 % confidence on both sides.
    """
    percentile = FIGURES[name].percentile
    return 1 if percentile is None else math.ceil(math.log((1 - confidence) / 2) / math.log(percentile / 100))


def required_calls(name: Objective) -> int:
    """Return how many calls a figure must rest on: 1522 for p99, 139 for p90, 1 for a figure that is no percentile.

    With this many, the true percentile lies within half of the tail on either side with 95 % confidence: p99 between
    p98.5 and p99.5.

    Source of the formula: MLPerf Inference Rules, appendix "Number of Queries", which LoadGen follows:
    n = z^2 p (1 - p) / margin^2. Its margin is a twentieth of the tail, at 99 %, which takes 262,742 calls for p99.
    That is right for publishing an absolute latency, but ortune compares two configs.
    """
    percentile = FIGURES[name].percentile
    if percentile is None:
        return 1
    p = percentile / 100
    margin = (1 - p) / 2
    # Round first: 1 - 0.99 is slightly less than 0.01.
    return math.ceil(round(Z_95**2 * p * (1 - p) / margin**2, 6))
