"""The latency of requests that arrive at a rate, from blocks of streams that go on from block to block.

A long queue lasts over many blocks, which are therefore not independent. Blocks are joined until they last as long as
the queue takes to forget its state, and an upper end is never below what the size of long queues allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from ortune.measure.interval import Interval
from ortune.measure.quantiles import percentile_interval
from ortune.measure.stats import t_interval
from ortune.queueing.moments import QueueMoments, find_mean_wait
from ortune.queueing.replications import quantile_of_normal
from ortune.worker import Block
from ortune.worker.group import merge_services
from ortune.workload import Load, Objective
from ortune.workload.figures import FIGURES

BATCH_RELAXATIONS = 2.0
"""Duration of a batch of blocks as a multiple of the relaxation time. Batches are then nearly independent."""


def find_moments(streams: Sequence[Sequence[Block]], load: Load) -> QueueMoments | None:
    """Return what the blocks say about the queues; None if requests arrive faster than they are served.

    The variation is that of the calls, or a larger one at which an M/G/c queue has these waits: calls that are slow one
    after another, because of others on the host, make queues longer.
    """
    blocks = [block for stream in streams for block in stream]
    mean_ns, deviation_ns = merge_services(blocks)
    utilization = load.utilization(mean_ns)
    if utilization >= 1:
        return None
    service_ns = mean_ns / load.clients
    samples_ns = np.concatenate([block.samples_ns for block in blocks])
    wait_ns = float(samples_ns.mean()) - mean_ns
    constant_ns = find_mean_wait(utilization, service_ns, 1.0, load.clients)
    # Waits of other causes, such as a caller that wakes up late, do not make latencies vary.
    most = 1 + float(samples_ns.var()) / mean_ns**2
    return QueueMoments(
        utilization=utilization,
        service_ns=service_ns,
        # With many callers that are rarely busy, no request waits for another.
        variation=max(min(wait_ns / constant_ns, most) if constant_ns > 0 else 1.0, 1 + (deviation_ns / mean_ns) ** 2),
        n_callers=load.clients,
    )


def join_into_batches(stream: Sequence[Block], duration_ns: float) -> list[list[Block]]:
    """Return the blocks of a stream in batches that last at least so long; all in one if they do not."""
    batches: list[list[Block]] = [[]]
    for block in stream:
        if sum(batched.wall_ns for batched in batches[-1]) >= duration_ns and batches[-1]:
            batches.append([])
        batches[-1].append(block)
    if len(batches) > 1 and sum(batched.wall_ns for batched in batches[-1]) < duration_ns:
        rest = batches.pop()
        batches[-1] += rest
    return [batch for batch in batches if batch]


def summarize_rate(
    streams: Sequence[Sequence[Block]],
    load: Load | None,
    figure: Objective,
    confidence: float,
    *,
    relaxation_ns: float = 0.0,
) -> Interval:
    """Return a figure of the latency in ns, with its interval.

    Args:
        streams: The blocks of each launch.
        load: How requests arrive; None where the utilization does not say how long queues are, as with servers that put
            requests together. Blocks are then taken to be independent.
        figure: The figure.
        confidence: Coverage of the interval.
        relaxation_ns: Relaxation time of other queues that these requests compete with; 0 for none.
    """
    moments = find_moments(streams, load) if load else None
    if load and not moments:
        return Interval(estimate=math.inf, low=math.inf, high=math.inf, confidence=confidence)
    if moments:
        relaxation_ns = max(relaxation_ns, moments.relaxation_ns)
    batches = [batch for stream in streams for batch in join_into_batches(stream, BATCH_RELAXATIONS * relaxation_ns)]
    point = FIGURES[figure].percentile
    if point is None:
        means = [float(np.concatenate([block.samples_ns for block in batch]).mean()) for batch in batches]
        found = t_interval(means, confidence)
        if not moments or not load:
            return found
        # Without long queues, batches differ less than the mean may be wrong.
        duration_ns = load.processes * sum(block.wall_ns for stream in streams for block in stream)
        least_ns = quantile_of_normal(confidence) * moments.find_error(duration_ns)
        return msgspec.structs.replace(found, high=max(found.high, found.estimate + least_ns))
    clumps = moments.clumps if moments else None
    return percentile_interval(batches, point, confidence, clumps=clumps, by_case=False).exp()


def bound_utilization(streams: Sequence[Sequence[Block]], load: Load, confidence: float) -> Interval:
    """Return the share of the callers' time that calls take, with the interval of the differences between blocks."""
    return t_interval([load.utilization(block.service_ns) for stream in streams for block in stream], confidence)
