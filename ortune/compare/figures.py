"""Computes the figures of a config from its blocks: percentiles, throughput, CPU time, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.worker.block import Block
from ortune.workload import FIGURES, Objective

Z_95 = 1.959964
"""Quantile of the normal distribution: 95 % of it lie within so many standard deviations."""

MOST_KEPT = 500
"""Latencies of a block that are kept for percentiles over several blocks."""

TAIL_CALLS = 3
"""Calls that must lie beyond a percentile for it to be read off a few blocks."""


def figure_of(name: Objective, blocks: Sequence[Block], load_ns: Sequence[int] = ()) -> float:
    """Return a figure in its own unit, over all of these blocks together.

    Args:
        name: Which figure.
        blocks: At least one.
        load_ns: How long creating the sessions took, for "load-time" where the blocks hold no creations.
    """
    figure = FIGURES[name]
    if figure.percentile is not None:
        return percentile_of(blocks, figure.percentile)
    if name == "mean":
        samples = np.concatenate([block.samples_ns for block in blocks])
        return float(samples.mean())
    if name == "throughput":
        return 1e9 * sum(block.n_calls for block in blocks) / sum(block.wall_ns for block in blocks)
    if name == "cpu":
        return sum(block.cpu_ns for block in blocks) / sum(block.n_calls for block in blocks)
    if name == "memory":
        return float(max(block.memory.peak_bytes for block in blocks))
    creations = [block.creations_ns for block in blocks if block.creations_ns is not None]
    return float(np.median(np.concatenate(creations))) if creations else float(np.median(load_ns))


def percentile_of(blocks: Sequence[Block], point: float) -> float:
    """Return a percentile of latency, in ns: of each case by itself, and of these the geometric mean."""
    values = [percentiles(samples, [point])[0] for samples in split_cases(blocks)]
    return values[0] if len(values) == 1 else math.exp(sum(map(math.log, values)) / len(values))


def calls_of(blocks: Sequence[Block]) -> int:
    """Return how many calls a percentile rests on: those of the case that has fewest."""
    return min(len(samples) for samples in split_cases(blocks))


def percentile_bounds(blocks: Sequence[Block], point: float) -> tuple[float, float]:
    """Return a 95 % interval of a percentile, in ns, whatever the distribution; infinite where calls are too few.

    Source: the number of calls below a percentile is binomial, so that its interval is one of ranks (H. A. David and
    H. N. Nagaraja, "Order Statistics", section 7.1); here in the normal approximation.
    """
    low = high = 0.0
    cases = split_cases(blocks)
    for samples in cases:
        p, n = point / 100, len(samples)
        margin = Z_95 * math.sqrt(p * (1 - p) / n)
        low += math.log(percentiles(samples, [100 * max(p - margin, 0.0)])[0])
        # The highest rank bounds nothing: the next call may be slower.
        high += math.log(percentiles(samples, [100 * (p + margin)])[0]) if n * (1 - p - margin) >= 1 else math.inf
    return math.exp(low / len(cases)), math.exp(high / len(cases))


def split_cases(blocks: Sequence[Block]) -> list[NDArray[np.int64]]:
    """Return the latencies of each case."""
    samples = np.concatenate([block.samples_ns for block in blocks])
    if blocks[0].cases is None:
        return [samples]
    cases = np.concatenate([block.cases for block in blocks if block.cases is not None])
    return [samples[cases == case] for case in np.unique(cases)]


def percentiles(samples: NDArray[np.int64], points: Sequence[float]) -> list[float]:
    """Return these percentiles, each a value that occurred."""
    return [float(value) for value in np.percentile(samples, list(points), method="inverted_cdf")]


def figure_of_block(name: Objective, block: Block, load_ns: int) -> float:
    """Return a figure of one block, to rank candidates by.

    Of a percentile that the block has too few calls for, the highest that it has enough calls for is taken.
    """
    if FIGURES[name].percentile is not None:
        return supported_figure(name, [block])
    return figure_of(name, [block], [load_ns])


def is_pooled(name: Objective) -> bool:
    """Return whether a figure needs more calls than one block has: a percentile beyond the median."""
    percentile = FIGURES[name].percentile
    return percentile is not None and percentile > 50


def supported_figure(name: Objective, blocks: Sequence[Block]) -> float:
    """Return a percentile over these blocks, or the highest that they have enough calls for."""
    point = FIGURES[name].percentile
    assert point is not None
    return percentile_of(blocks, min(point, supported_percentile(calls_of(blocks))))


def thin(block: Block) -> Block:
    """Return a block with some hundred of its latencies at most, evenly by rank: enough for its percentiles."""
    step = -(-len(block.samples_ns) // MOST_KEPT)
    if step == 1 or block.cases is not None:
        return block
    # From the slow end, so that the slowest stays.
    return msgspec.structs.replace(block, samples_ns=np.sort(block.samples_ns)[::-1][::step])


def cost(name: Objective, value: float) -> float:
    """Return a figure as a cost: smaller is better."""
    return 1 / value if FIGURES[name].larger_is_better else value


def supported_percentile(n_calls: int) -> float:
    """Return the highest percentile that so many calls can tell, at least the median."""
    return max(50.0, 100 * (1 - TAIL_CALLS / n_calls))


def calls_needed(name: Objective) -> int:
    """Return how many calls a figure must rest on: 1522 for p99, 139 for p90, one for what is no percentile.

    So many that with 95 % confidence the true percentile lies within half of the tail on either side: p99 between
    p98.5 and p99.5.

    Source of the formula: MLPerf Inference Rules, appendix "Number of Queries", which LoadGen follows:
    n = z^2 p (1 - p) / margin^2. Its margin is a twentieth of the tail, at 99 %, which takes 262,742 calls for p99:
    right for publishing an absolute latency, but a tuner compares.
    """
    percentile = FIGURES[name].percentile
    if percentile is None:
        return 1
    p = percentile / 100
    margin = (1 - p) / 2
    # Rounded before: 1 - 0.99 is a little less than 0.01.
    return math.ceil(round(Z_95**2 * p * (1 - p) / margin**2, 6))
