"""Dynamic batching: whether servers that put waiting requests together can take more within the target.

Durations of calls are measured for several sizes of the batch. A simulated queue then gives the capacity for numbers of
requests in a batch and delays (`ortune.queueing.batching`). The best of them becomes a deployment like any other: its
capacity is measured with the batching server of the workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ortune.measure.interval import Interval
from ortune.planning.capacity import describe_capacity, describe_predicted, widen
from ortune.planning.deployment import LONGEST_DELAY_US, Batching, Deployment
from ortune.planning.measuring import DeploymentRunner, Screened
from ortune.planning.result import AtRate, Estimate, PlannedDeployment
from ortune.queueing.batching import BatchedQueue, BatchTimes, make_batch_times, simulate_batches
from ortune.queueing.capacity import Capacity, find_capacity
from ortune.queueing.limited_figures import limit_figure
from ortune.queueing.rate_model import RateModel
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION
from ortune.queueing.tails import simulate_batched_tail
from ortune.workload import Limit, Objective
from ortune.workload.figures import FIGURES

MOST_BATCHED_REQUESTS = 32
"""Requests in a batch, at most."""

FIRST_SIZES, FURTHER_SIZES = (2, 4, 8), (16, 32)
LARGEST_USEFUL_RATIO = 0.97
"""Sizes of batches that are measured. Larger ones follow as long as twice the size takes less time per item than this
share of it."""

N_BASES = 2
"""Deployments with the highest predicted capacities, to which batches are added."""

DELAY_SHARES = (0.03, 0.06, 0.12, 0.25, 0.5)
"""Delays that are tried, as shares of the time that the target leaves after a call with one item."""

CLEAR_GAIN = 0.03
"""Smallest gain of a capacity, as a share, for which requests are delayed. Smaller ones may be simulation errors."""

N_COUNTED_PER_DELAY = 600
"""Requests of each replication that count. The choice among delays needs less precision than a percentile alone."""

MOST_DURATION_FACTORS = 200
"""Durations of calls of one size relative to their mean that are resampled, at most."""


class BatchedDeployment(NamedTuple):
    """A deployment with dynamic batching, and what was predicted of it.

    Attributes:
        deployment: The deployment.
        full: The same processes, with calls of full batches back to back.
        times: Durations of calls.
        capacity: The predicted capacity.
    """

    deployment: Deployment
    full: Deployment
    times: BatchTimes
    capacity: Estimate


def find_batched(
    runner: DeploymentRunner, rows: Sequence[PlannedDeployment], slo: Limit, *, seed: int
) -> tuple[list[BatchedDeployment], list[Screened]]:
    """Return the best deployment with dynamic batching, and all batches that were measured.

    Args:
        runner: Measures deployments.
        rows: The deployments without batches, with predicted capacities.
        slo: The target.
        seed: Random seed.

    Raises:
        MeasureError: The default deployment fails.
    """
    ranked = sorted(rows, key=lambda row: -row.sustained_per_s)
    found: list[BatchedDeployment] = []
    measured: list[Screened] = []
    for row in ranked[:N_BASES]:
        screened = measure_sizes(runner, row.deployment, slo)
        measured += screened
        working = [result for result in screened if not result.failure]
        if len(working) > 1 and working[0].deployment.config.batch == 1:
            times = make_times(working)
            error = find_relative_error(row.capacity)
            batching, capacity = choose_batching(row.deployment, times, slo, seed=seed, error=error)
            if batching:
                found.append(
                    BatchedDeployment(
                        deployment=msgspec.structs.replace(row.deployment, batching=batching),
                        full=with_batch(row.deployment, batching.max_batch),
                        times=times,
                        capacity=capacity,
                    )
                )
    best = sorted(found, key=lambda row: -row.capacity.estimate)[:1]
    return best, measured


def with_batch(deployment: Deployment, size: int) -> Deployment:
    """Return a deployment whose callers make calls of several items."""
    return msgspec.structs.replace(deployment, config=msgspec.structs.replace(deployment.config, batch=size))


def measure_sizes(runner: DeploymentRunner, deployment: Deployment, slo: Limit) -> list[Screened]:
    """Measure calls of several sizes, as long as larger ones are faster per item and keep the target."""
    sizes = (1, *FIRST_SIZES)
    found = [result for result in runner.screen([with_batch(deployment, size) for size in sizes]) if result]
    for size in FURTHER_SIZES:
        last = [result for result in found if not result.failure][-2:]
        if len(last) < 2 or last[-1].deployment.config.batch != size // 2:
            break
        before, after = (call_ns(result) / result.deployment.config.batch for result in last)
        if after > LARGEST_USEFUL_RATIO * before or size * after > slo.bound:
            break
        found += [result for result in runner.screen([with_batch(deployment, size)]) if result]
    return found


def call_ns(screened: Screened) -> float:
    """Return the mean duration of a call."""
    return float(screened.samples_ns.mean())


def make_times(screened: Sequence[Screened]) -> BatchTimes:
    """Return durations of calls by size, which vary as much as those that were measured.

    Raises:
        ValueError: Calls with one item were not measured.
    """
    ratios = np.sort(np.concatenate([result.samples_ns / call_ns(result) for result in screened]))
    step = -(-len(ratios) // MOST_DURATION_FACTORS)
    factors = ratios[step // 2 :: step]
    return make_batch_times(
        {result.deployment.config.batch: call_ns(result) for result in screened},
        factors=tuple(map(float, factors / factors.mean())),
    )


def find_relative_error(capacity: Estimate | None) -> float:
    """Return half the width of the interval of a capacity, as a logarithm; infinite if neither end is known."""
    if not capacity or capacity.estimate <= 0:
        return math.inf
    if capacity.high:
        return math.log(capacity.high / capacity.estimate)
    return math.log(capacity.estimate / capacity.low) if capacity.low > 0 else math.inf


def choose_batching(
    deployment: Deployment, times: BatchTimes, slo: Limit, *, seed: int, error: float = 0.0
) -> tuple[Batching | None, Estimate]:
    """Return the batches with the highest predicted capacity, and that capacity.

    The number of requests is chosen first, without a delay, and then the delay.

    Args:
        deployment: The deployment.
        times: Durations of calls by size.
        slo: The target.
        seed: Random seed.
        error: Error of the durations of calls, as a logarithm: how much the capacity without batches differs between
            launches. It becomes a part of the interval.

    Returns:
        None as the batching if single calls have a capacity that is as high.
    """
    single = predict_batched_capacity(deployment, times, None, slo, seed=seed)
    best: tuple[Batching | None, Estimate] = None, single
    for size in times.sizes[1:]:
        best = find_better(best, deployment, times, Batching(max_batch=size), slo, seed)
    if best[0]:
        left_us = max(slo.bound - times.times_ns[0], 0.0) / 1e3
        for share in DELAY_SHARES:
            delay_us = min(round_delay(share * left_us), LONGEST_DELAY_US)
            if delay_us:
                best = find_better(
                    best, deployment, times, Batching(max_batch=best[0].max_batch, max_delay_us=delay_us), slo, seed
                )
    batching, capacity = best
    return batching, widen(capacity, error)


def find_better(
    best: tuple[Batching | None, Estimate],
    deployment: Deployment,
    times: BatchTimes,
    batching: Batching,
    slo: Limit,
    seed: int,
) -> tuple[Batching | None, Estimate]:
    """Return the better of two ways to put requests together. The second one must be better by more than the errors."""
    least_per_s = (1 + CLEAR_GAIN) * best[1].estimate
    # A capacity takes about ten simulations. One shows whether it would be high enough.
    if not keeps_target(deployment, times, batching, slo, least_per_s, seed=seed):
        return best
    capacity = predict_batched_capacity(deployment, times, batching, slo, seed=seed)
    return (batching, capacity) if capacity.estimate > least_per_s else best


def keeps_target(
    deployment: Deployment, times: BatchTimes, batching: Batching, slo: Limit, rate_per_s: float, *, seed: int
) -> bool:
    """Return whether simulated processes keep the target at a rate, all of them together."""
    queue = make_batched_queue(deployment, times, batching)
    of_process_per_s = rate_per_s / deployment.processes
    if of_process_per_s > HIGHEST_SIMULATED_UTILIZATION * queue.highest_per_s:
        return False
    return of_process_per_s <= 0 or simulate_figure(queue, of_process_per_s, slo, seed).estimate <= slo.bound


def round_delay(delay_us: float) -> int:
    """Return a delay with one significant digit, as people write it."""
    if delay_us < 1:
        return 0
    unit = 10 ** int(math.log10(delay_us))
    return int(round(delay_us / unit) * unit)


def make_batched_queue(deployment: Deployment, times: BatchTimes, batching: Batching | None) -> BatchedQueue:
    """Return the queue of one process."""
    return BatchedQueue(
        times=times,
        max_batch=batching.max_batch if batching else 1,
        max_delay_ns=1000 * batching.max_delay_us if batching else 0,
        n_servers=deployment.clients,
    )


def predict_batched_capacity(
    deployment: Deployment, times: BatchTimes, batching: Batching | None, slo: Limit, *, seed: int
) -> Estimate:
    """Return the highest rate at which simulated processes keep the target, all of them together."""
    queue = make_batched_queue(deployment, times, batching)
    found = find_capacity(
        lambda rate_per_s: simulate_figure(queue, rate_per_s, slo, seed),
        slo.bound,
        lowest_per_s=queue.highest_per_s * (1 - HIGHEST_SIMULATED_UTILIZATION),
        highest_per_s=queue.highest_per_s * HIGHEST_SIMULATED_UTILIZATION,
        start_per_s=queue.highest_per_s * 0.7,
    )
    return describe_capacity(scale_capacity(found, deployment.processes), "predicted")


def simulate_figure(queue: BatchedQueue, rate_per_s: float, slo: Limit, seed: int) -> Interval:
    """Return the figure of the target, in ns, of one simulated process at a rate."""
    latencies = simulate_batches(queue, rate_per_s, n_kept=N_COUNTED_PER_DELAY, seed=seed).latencies
    point = FIGURES[slo.figure].percentile
    return latencies.mean() if point is None else latencies.percentile(point)


def make_batched_rate_model(deployment: Deployment, times: BatchTimes, slo: Limit, *, seed: int) -> RateModel:
    """Return what is expected of a deployment with dynamic batching at each rate."""
    queue = make_batched_queue(deployment, times, deployment.batching)
    point = FIGURES[slo.figure].percentile
    return RateModel(
        functools.partial(simulate_batched_tail, queue, point=point, seed=seed),
        highest_per_s=deployment.processes * queue.highest_per_s,
        service_ns=None,
        figure=limit_figure(point, slo.bound),
    )


def scale_capacity(found: Capacity, n_processes: int) -> Capacity:
    """Return the capacity of several processes, to which requests come with the same probability."""
    rate = found.rate_per_s
    scaled = Interval(
        estimate=n_processes * rate.estimate,
        low=n_processes * rate.low,
        high=n_processes * rate.high,
        confidence=rate.confidence,
    )
    return msgspec.structs.replace(found, rate_per_s=scaled)


def predict_batched_latency(
    deployment: Deployment, times: BatchTimes, rate_per_s: float, figure: Objective, *, seed: int
) -> AtRate | None:
    """Return the latency, with the figure of the target, at a rate; None if the queue would grow, or almost."""
    queue = make_batched_queue(deployment, times, deployment.batching)
    of_process_per_s = rate_per_s / deployment.processes
    if of_process_per_s > HIGHEST_SIMULATED_UTILIZATION * queue.highest_per_s:
        return None
    found = simulate_batches(queue, of_process_per_s, n_kept=N_COUNTED_PER_DELAY, seed=seed)
    return describe_predicted(found.latencies, rate_per_s, found.utilization, figure)
