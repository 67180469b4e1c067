"""How latencies are distributed at a utilization, by simulation, as tables that are looked up quickly."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

import msgspec
import numpy as np

from ortune.queueing.batching import BatchedQueue, simulate_batches
from ortune.queueing.moments import QueueMoments
from ortune.queueing.queue_model import Queue
from ortune.queueing.simulation import simulate
from ortune.workload.load import relaxation_services

USUAL_POINT = 90.0
"""Percentile that a simulation is precise for at least."""

TAIL_RELATIVE_ERROR = 0.04
"""Standard error of a simulated percentile, as a share of it."""

FEWEST_KEPT, MOST_KEPT = 600, 6000
KEPT_RELAXATIONS = 10
"""Requests of each replication of a queue with batches that count: those of so many relaxation times."""

FEWEST_BATCHES = 10.0
"""Relaxation time of a queue with batches at a low utilization, in full batches."""

ABOVE = np.concatenate([np.linspace(1, 0.1, 91)[:-1], np.logspace(-1, -4, 61)])
"""Shares of the requests above the latencies of a table, falling."""

_ABOVE: list[float] = ABOVE.tolist()

LEAST_TAIL_SHARE = 1e-6
MOST_TAIL_SHARE = 1 - LEAST_TAIL_SHARE
"""Smallest and largest share."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies at a utilization.

    Attributes:
        utilization: Share of the servers' time that calls take.
        quantiles_ns: Latencies that the shares `ABOVE` of the requests exceed.
        mean_ns: Mean latency.
        inflation: Variance inflation factor: the variance of the share of requests above a latency, divided by that of
            as many independent requests.
        mean_sd_ns: Standard error of the mean latency of n requests, multiplied by the square root of n.
        relaxation_ns: Relaxation time of the queue.
        call_ns: Mean duration of a call; of a full batch where requests are put together.
        call_variance: Variance of the mean duration of n calls, multiplied by n, as a share of the square of the mean.
        least_share: Share above latencies that no request reached.
    """

    utilization: float
    quantiles_ns: list[float]
    mean_ns: float
    inflation: float
    mean_sd_ns: float
    relaxation_ns: float
    call_ns: float
    call_variance: float
    least_share: float = LEAST_TAIL_SHARE

    def share_above(self, latency_ns: float) -> float:
        """Return the share of the requests that take longer."""
        # A fit looks up thousands of shares, each of which would take longer with NumPy.
        place = bisect.bisect_right(self.quantiles_ns, latency_ns)
        if place == 0:
            return MOST_TAIL_SHARE
        if place == len(self.quantiles_ns):
            return max(self.least_share if latency_ns > self.quantiles_ns[-1] else _ABOVE[-1], LEAST_TAIL_SHARE)
        low, high = self.quantiles_ns[place - 1], self.quantiles_ns[place]
        share_low = _ABOVE[place - 1]
        share = share_low + (latency_ns - low) / (high - low) * (_ABOVE[place] - share_low)
        return min(share, MOST_TAIL_SHARE)


SimulateTail = Callable[[float], Tail]
"""Returns the latencies at a utilization."""


def simulate_tail(queue: Queue, utilization: float, *, point: float | None, seed: int) -> Tail:
    """Return the latencies of a queue whose requests are served one by one.

    Args:
        queue: The queue.
        utilization: Share of the servers' time that calls take.
        point: The percentile that is of interest; None for the mean.
        seed: Random seed.
    """
    rate_per_s = utilization * queue.highest_per_s
    latencies = simulate(
        queue, rate_per_s, point=max(point or 0, USUAL_POINT), relative_error=TAIL_RELATIVE_ERROR, seed=seed
    )
    of_queue = queue.servers_of_queue
    moments = QueueMoments(
        utilization=utilization,
        service_ns=queue.services.mean_ns / of_queue,
        variation=queue.arrival_variation + queue.services.variation,
        n_callers=of_queue,
    )
    gap_ns = 1e9 * queue.n_queues / rate_per_s
    return Tail(
        utilization=utilization,
        quantiles_ns=latencies.quantiles(1 - ABOVE).tolist(),
        mean_ns=latencies.mean().estimate,
        # A queue that is long stays long for its relaxation time.
        inflation=max(moments.relaxation_ns / gap_ns, 1.0),
        mean_sd_ns=math.hypot(moments.find_error(gap_ns), float(latencies.values_ns.std())),
        relaxation_ns=moments.relaxation_ns,
        call_ns=queue.services.mean_ns,
        call_variance=queue.services.variation,
    )


def simulate_batched_tail(queue: BatchedQueue, utilization: float, *, point: float | None, seed: int) -> Tail:
    """Return the latencies of a queue whose requests are put together; see `simulate_tail`.

    The variance inflation follows from how much the replications differ, if they last longer than the relaxation time.
    """
    rate_per_s = utilization * queue.highest_per_s
    full_ns = float(queue.times.table(queue.max_batch)[-1])
    # Full batches follow each other almost as regularly as calls do.
    variation = 1 / queue.max_batch + queue.times.variation
    batches = max(relaxation_services(utilization, variation), FEWEST_BATCHES)
    relaxation_ns = batches * full_ns / queue.n_servers
    of_relaxation = relaxation_ns * rate_per_s / 1e9
    n = math.ceil(min(max(KEPT_RELAXATIONS * of_relaxation, FEWEST_KEPT), MOST_KEPT))
    latencies = simulate_batches(queue, rate_per_s, n_kept=n, seed=seed).latencies
    values = latencies.values_ns
    exceeded = (values > np.quantile(values, (point or USUAL_POINT) / 100)).mean(axis=0)
    share = float(exceeded.mean())
    of_independent = max(share * (1 - share) / n, 1e-12)
    return Tail(
        utilization=utilization,
        quantiles_ns=latencies.quantiles(1 - ABOVE).tolist(),
        mean_ns=latencies.mean().estimate,
        inflation=max(float(exceeded.var()) / of_independent, of_relaxation if of_relaxation > n else 1.0),
        mean_sd_ns=float(values.mean(axis=0).std()) * math.sqrt(n),
        relaxation_ns=relaxation_ns,
        call_ns=full_ns,
        call_variance=queue.times.variation,
    )
