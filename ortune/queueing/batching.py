"""Dynamic batching: servers that take several waiting requests at a time.

A batch starts when a server is free, and the batch is full or its first request has waited for the longest delay. If no
server is free by then, the batch goes on growing until one is. These are the rules of the dynamic batcher of NVIDIA's
Triton Inference Server (`max_queue_delay_microseconds`, without preferred sizes).

Times are whole nanoseconds, so that schedules are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.queueing.interpolation import fit_increasing
from ortune.queueing.replications import SimulatedLatencies
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION, WARM_UP
from ortune.workload.load import Arrivals, relaxation_services

N_BATCHING_REPLICATIONS = 256
"""Independent replications, all of which are advanced at a time."""

N_COUNTED_REQUESTS = 2000
"""Requests of each replication that count. Waits for a batch are bounded by the delay, so that percentiles need fewer
requests than those of a queue without batches."""

SIMULATED_WARM_UP_BATCHES = 30
"""Full batches per server that are served before requests count, at least."""

NEVER = np.iinfo(np.int64).max // 4
"""A time that is not reached."""


class BatchTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call takes for a batch.

    Attributes:
        sizes: Measured sizes, increasing, from 1.
        times_ns: Duration of a call of each size, not decreasing.
        factors: Ratios of measured durations to their mean, which are resampled; empty if all calls of a size take the
            same time.
    """

    sizes: tuple[int, ...]
    times_ns: tuple[float, ...]
    factors: tuple[float, ...] = ()

    @property
    def variation(self) -> float:
        """Squared coefficient of variation of the durations of calls of one size."""
        return float(np.var(self.factors)) if self.factors else 0.0

    def table(self, max_batch: int) -> NDArray[np.float64]:
        """Return durations in ns of calls with 0, 1, 2, ... items; between measured sizes, they are interpolated.

        Raises:
            ValueError: The batch is larger than all that were measured.
        """
        if max_batch > self.sizes[-1]:
            raise ValueError(f"batches of {max_batch} were not measured, only up to {self.sizes[-1]}")
        found = np.interp(np.arange(max_batch + 1), self.sizes, self.times_ns)
        found[0] = 0.0
        return found

    def highest_per_s(self, max_batch: int, n_servers: int = 1) -> float:
        """Return the rate that servers keep up with when there is always a full batch."""
        return float(1e9 * n_servers * max_batch / self.table(max_batch)[max_batch])


def make_batch_times(measured_ns: Mapping[int, float], factors: tuple[float, ...] = ()) -> BatchTimes:
    """Return the durations of calls from measurements at several sizes.

    Noise may make a larger batch seem faster. Such sizes get the mean of both (isotonic regression).

    Raises:
        ValueError: Size 1 is missing, or a time is not positive.
    """
    sizes = sorted(measured_ns)
    times = np.array([measured_ns[size] for size in sizes], dtype=float)
    if not sizes or sizes[0] != 1:
        raise ValueError("batches of size 1 must be measured")
    if not (times > 0).all() or not np.isfinite(times).all():
        raise ValueError("durations must be positive and finite")
    return BatchTimes(sizes=tuple(sizes), times_ns=tuple(map(float, fit_increasing(times))), factors=factors)


class BatchedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Servers that take batches from one queue.

    Attributes:
        times: Durations of calls.
        max_batch: Most requests in a batch.
        max_delay_ns: Longest time that the first request of a batch waits for more, where a server is free.
        n_servers: Number of servers.
        arrivals: At random ("poisson") or at equal intervals ("periodic").
    """

    times: BatchTimes
    max_batch: int
    max_delay_ns: int = 0
    n_servers: int = 1
    arrivals: Arrivals = "poisson"

    def __post_init__(self) -> None:
        """Reject values that describe no queue."""
        if self.max_batch < 1 or self.max_delay_ns < 0 or self.n_servers < 1:
            raise ValueError(
                f"batches of {self.max_batch}, a delay of {self.max_delay_ns} ns and {self.n_servers} servers: sizes "
                "and servers must be at least 1, and the delay at least 0"
            )

    @property
    def highest_per_s(self) -> float:
        """The rate from which on the queue grows without bound."""
        return self.times.highest_per_s(self.max_batch, self.n_servers)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of several independent sequences of requests.

    Attributes:
        firsts: Position of each batch's first request in its sequence; batches by sequences.
        sizes: Requests of each batch; 0 where a sequence has fewer batches.
        starts_ns: Start of each batch.
        ends_ns: End of each batch.
    """

    firsts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    starts_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]

    def end_of_requests(self) -> NDArray[np.int64]:
        """Return the end of each request; requests by sequences."""
        n = self.firsts.shape[1]
        return np.repeat(self.ends_ns.T.ravel(), self.sizes.T.ravel()).reshape(n, -1).T


class BatchedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a queue with batches in its steady state.

    Attributes:
        latencies: Latencies of requests.
        throughput_per_s: Requests served per second.
        utilization: Share of the servers' time that calls take.
        mean_batch: Mean number of requests in a batch.
    """

    latencies: SimulatedLatencies
    throughput_per_s: float
    utilization: float
    mean_batch: float


def simulate_batches(
    queue: BatchedQueue, rate_per_s: float, *, n_kept: int = N_COUNTED_REQUESTS, seed: int = 0
) -> BatchedFigures:
    """Return figures in the steady state.

    Args:
        queue: The queue.
        rate_per_s: Requests that arrive per second.
        n_kept: Requests of each of `N_BATCHING_REPLICATIONS` replications that count.
        seed: Random seed.

    Raises:
        ValueError: The queue would grow without bound, or come too close to that.
    """
    share = rate_per_s / queue.highest_per_s
    if not 0 < share <= HIGHEST_SIMULATED_UTILIZATION * (1 + 1e-9):
        raise ValueError(
            f"{rate_per_s:g} requests per second: must be above 0 and at most {HIGHEST_SIMULATED_UTILIZATION} of "
            f"{queue.highest_per_s:g}, from where on the queue grows without bound"
        )
    # The longest queues are those of a server that takes one request at a time and is as fast as all of them together.
    relaxation = relaxation_services(share, 1 + queue.times.variation)
    n_skipped = math.ceil(queue.max_batch * queue.n_servers * SIMULATED_WARM_UP_BATCHES + WARM_UP * relaxation)
    n = n_skipped + n_kept
    rng = np.random.default_rng([seed, 0])
    gap_ns = 1e9 / rate_per_s
    if queue.arrivals == "poisson":
        arrivals = np.cumsum(rng.exponential(gap_ns, (n, N_BATCHING_REPLICATIONS)), axis=0)
    else:
        # Replications differ in when the first request arrives.
        arrivals = np.arange(n)[:, None] * gap_ns + rng.random(N_BATCHING_REPLICATIONS) * gap_ns
    arrivals_ns = arrivals.astype(np.int64)
    schedule = schedule_batches(queue, arrivals_ns, rng)
    latencies = (schedule.end_of_requests() - arrivals_ns)[n_skipped:].astype(float)
    # Batches that start in the part of the time in which requests that count arrive.
    begin, end = arrivals_ns[n_skipped], arrivals_ns[-1]
    inside = (schedule.sizes > 0) & (schedule.starts_ns >= begin) & (schedule.starts_ns < end)
    span_ns = float((end - begin).sum())
    busy_ns = float((schedule.ends_ns - schedule.starts_ns)[inside].sum())
    return BatchedFigures(
        latencies=SimulatedLatencies(latencies),
        throughput_per_s=1e9 * float(schedule.sizes[inside].sum()) / span_ns,
        utilization=busy_ns / (span_ns * queue.n_servers),
        mean_batch=float(schedule.sizes[inside].mean()) if inside.any() else math.nan,
    )


def schedule_batches(
    queue: BatchedQueue, arrivals_ns: NDArray[np.int64], rng: np.random.Generator | None = None
) -> Schedule:
    """Return the batches of independent sequences of requests, each of which starts with an empty queue.

    Args:
        queue: The queue; its `arrivals` are not used.
        arrivals_ns: Arrival times, requests by sequences, not decreasing in a sequence.
        rng: Source of random numbers, for durations that vary.
    """
    n, n_sequences = arrivals_ns.shape
    table = np.rint(queue.times.table(queue.max_batch)).astype(np.int64)
    factors = np.array(queue.times.factors)
    # All sequences in one sorted array, one after another, for searches in all of them at a time.
    length = n + queue.max_batch
    span_ns = int(arrivals_ns.max()) + 1
    offsets_ns = np.arange(n_sequences) * span_ns
    flat = np.full((n_sequences, length), NEVER, dtype=np.int64)
    flat[:, :n] = arrivals_ns.T
    sorted_ns = (np.minimum(flat, span_ns - 1) + offsets_ns[:, None]).ravel()
    flat = flat.ravel()
    rows = np.arange(n_sequences) * length
    free = np.zeros((queue.n_servers, n_sequences), dtype=np.int64)
    columns = np.arange(n_sequences)
    first = np.zeros(n_sequences, dtype=np.int64)
    found: list[tuple[NDArray[np.int64], ...]] = []
    while (first < n).any():
        server = free.argmin(axis=0)
        place = rows + np.minimum(first, n)
        full_ns = flat[place + queue.max_batch - 1]
        start = np.maximum(free[server, columns], np.minimum(full_ns, flat[place] + queue.max_delay_ns))
        arrived = np.searchsorted(sorted_ns, np.minimum(start, span_ns - 1) + offsets_ns, side="right") - place
        size = np.minimum(np.minimum(arrived, queue.max_batch), n - first)
        duration = table[size]
        if len(factors):
            assert rng is not None
            duration = np.rint(duration * rng.choice(factors, n_sequences)).astype(np.int64)
        end = start + duration
        found.append((first, size, start, end))
        free[server, columns] = np.where(size > 0, end, free[server, columns])
        first = first + size
    firsts, sizes, starts, ends = (np.stack(columns) for columns in zip(*found, strict=True))
    return Schedule(firsts=firsts, sizes=sizes, starts_ns=starts, ends_ns=ends)
