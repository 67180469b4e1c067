"""How latencies are distributed at a utilization, by simulation, as tables that are looked up quickly."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.queueing.batching import BatchedQueue, simulate_batches
from ortune.queueing.moments import QueueMoments, find_mean_wait
from ortune.queueing.queue_model import Queue
from ortune.queueing.replications import Latencies
from ortune.queueing.simulation import simulate

RELATIVE_ERROR = 0.04
"""Standard error of a simulated percentile, as a share of it."""

N_KEPT = 600
"""Requests of each replication of a queue with batches that count."""

RELAXATION_BATCHES = 10
"""Full batches after which a queue with batches has forgotten its state, about."""

ABOVE = np.concatenate([np.linspace(1, 0.1, 91)[:-1], np.logspace(-1, -4, 61)])
"""Shares of the requests above the latencies of a table, falling."""

LEAST_SHARE = 1e-6
"""Share above latencies that no request reached."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies at a utilization.

    Attributes:
        quantiles_ns: Latencies that the shares `ABOVE` of the requests exceed.
        mean_ns: Mean latency.
        clump: By how much the share of requests above a latency varies more than if they were independent: so many
            requests count as one.
        mean_sd_ns: Standard error of the mean latency of n requests, multiplied by the square root of n.
        relaxation_ns: Time after which the queue has forgotten its state, about.
    """

    quantiles_ns: NDArray[np.float64]
    mean_ns: float
    clump: float
    mean_sd_ns: float
    relaxation_ns: float

    def share_above(self, latency_ns: float) -> float:
        """Return the share of the requests that take longer."""
        share = float(np.interp(latency_ns, self.quantiles_ns, ABOVE, left=1.0, right=LEAST_SHARE))
        return min(max(share, LEAST_SHARE), 1 - LEAST_SHARE)


SimulateTail = Callable[[float], Tail]
"""Returns the latencies at a utilization."""


def simulate_tail(queue: Queue, utilization: float, *, point: float, seed: int) -> Tail:
    """Return the latencies of a queue whose requests are served one by one.

    Args:
        queue: The queue.
        utilization: Share of the servers' time that calls take.
        point: The highest percentile that is of interest.
        seed: Random seed.
    """
    rate_per_s = utilization * queue.highest_per_s
    latencies = simulate(queue, rate_per_s, point=max(point, 90), relative_error=RELATIVE_ERROR, seed=seed)
    of_queue = queue.servers_of_queue
    moments = QueueMoments(
        utilization=utilization,
        service_ns=queue.services.mean_ns / of_queue,
        variation=queue.arrival_variation + queue.services.variation,
        n_callers=of_queue,
    )
    wait_ns = find_mean_wait(utilization, moments.service_ns, moments.variation, of_queue)
    rate_of_queue = rate_per_s / queue.n_queues / 1e9
    waits = wait_ns**2 * moments.relaxation_ns * rate_of_queue
    return _describe(
        latencies,
        # A queue that is long stays long for its relaxation time.
        clump=max(moments.relaxation_ns * rate_of_queue, 1.0),
        mean_sd_ns=math.sqrt(waits + float(latencies.values_ns.var())),
        relaxation_ns=moments.relaxation_ns,
    )


def simulate_batched_tail(queue: BatchedQueue, utilization: float, *, point: float, seed: int) -> Tail:
    """Return the latencies of a queue whose requests are put together; see `simulate_tail`.

    How many requests exceed a latency together follows from how much the replications differ, as they last longer than
    the queue takes to forget its state.
    """
    latencies = simulate_batches(queue, utilization * queue.highest_per_s, n_kept=N_KEPT, seed=seed).latencies
    values = latencies.values_ns
    n = len(values)
    exceeded = (values > np.quantile(values, point / 100)).mean(axis=0)
    share = float(exceeded.mean())
    of_independent = max(share * (1 - share) / n, 1e-12)
    full_ns = float(queue.times.table(queue.max_batch)[-1])
    return _describe(
        latencies,
        clump=max(float(exceeded.var()) / of_independent, 1.0),
        mean_sd_ns=float(values.mean(axis=0).std()) * math.sqrt(n),
        relaxation_ns=RELAXATION_BATCHES * full_ns / queue.n_servers,
    )


def _describe(latencies: Latencies, *, clump: float, mean_sd_ns: float, relaxation_ns: float) -> Tail:
    values = latencies.values_ns
    return Tail(
        quantiles_ns=np.maximum.accumulate(np.quantile(values, 1 - ABOVE)),
        mean_ns=float(values.mean()),
        clump=clump,
        mean_sd_ns=mean_sd_ns,
        relaxation_ns=relaxation_ns,
    )
