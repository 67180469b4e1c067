"""Simulates a queue with many independent replications at a time.

In each replication the same recursion runs from request to request, for all of them in one array operation:

- A request starts when it has arrived and the first server is free (J. Kiefer and J. Wolfowitz, "On the theory of
  queues with many servers", Transactions of the American Mathematical Society 78 (1955)). With one server, this is the
  recursion of D. V. Lindley, "The theory of queues with a single server", Mathematical Proceedings of the Cambridge
  Philosophical Society 48 (1952).
- With constant service times, servers become free in the order in which they started.

Random numbers do not depend on the rate, so that simulations at two rates have the same requests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ortune.queueing.queue_model import Queue
from ortune.queueing.replications import SimulatedLatencies
from ortune.queueing.single_server import find_single_server_waits
from ortune.workload.load import relaxation_services

N_REPLICATIONS = 512
"""Replications, each of which is a batch of the standard errors."""

CHUNK = 1024
"""Requests of each replication whose random numbers are drawn together."""

WARM_UP = 2.0
"""Duration of the warm-up as a multiple of the relaxation time. Queues start from an approximation of the steady state,
so that little is left to relax."""

WARM_UP_FROM_EMPTY = 6.0
"""The same with periodic arrivals, where queues start empty."""

EXCURSIONS = 30.0
CALLS_BEYOND = 4000.0
"""A percentile is exceeded during few long queues, each of which lasts for about the relaxation time. This many of
them, and this many calls that exceed the percentile, make the standard error of p99 less than 1 %
(`python -m benchmarks.queueing`)."""

FEWEST_EXCURSIONS = 20.0
FEWEST_CALLS = 300.0
"""With fewer, standard errors are not reliable. This also holds for the controls."""

LATTICE_ERROR = 3e-4
"""Error of the shares of requests that wait for the single server, and of their mean wait, which are computed on a
lattice."""

CONTROLLED_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Shares of the requests that wait longer than some time for the single server; these times are controls."""

N_CACHED = 2
"""First chunks that are kept for the next rate: 8 MB each."""

SHORTEST = 64
"""Requests of each replication at least."""

MOST_SIMULATED_REQUESTS = 20_000_000
"""Requests at most, for memory and time. It is reached close to the highest rate, where errors are then larger."""

HIGHEST_SIMULATED_UTILIZATION = 0.98
"""Highest utilization that is simulated. Closer to 1, the steady state takes too long to be reached, in production too:
at 0.98, ten thousand requests per server."""


def simulate(
    queue: Queue,
    rate_per_s: float,
    *,
    point: float = 99,
    relative_error: float = 0.01,
    seed: int = 0,
    only_waits: bool = False,
) -> SimulatedLatencies:
    """Return latencies in the steady state, from arrival to end.

    Control variates make them precise: the mean gap, the mean service time, and how long the same requests would wait
    for one server that is as fast as all servers together. How those waits are distributed is computed exactly.

    Args:
        queue: The queue.
        rate_per_s: Requests that arrive per second, at all processes together.
        point: The highest percentile that is of interest, such as 99.
        relative_error: Standard error of this percentile that is aimed at, as a share.
        seed: Random seed.
        only_waits: Whether to return the waits from arrival to start instead.

    Raises:
        ValueError: The utilization is above `HIGHEST_SIMULATED_UTILIZATION`.
    """
    utilization = queue.utilization(rate_per_s)
    if not 0 < utilization <= HIGHEST_SIMULATED_UTILIZATION * (1 + 1e-9):
        raise ValueError(
            f"a utilization of {utilization:.3g}: must be above 0 and at most {HIGHEST_SIMULATED_UTILIZATION}"
        )
    relaxation = utilization * relaxation_services(utilization, queue.arrival_variation + queue.services.variation)
    beyond = 1 - min(point, 99.9) / 100
    effort = (0.01 / relative_error) ** 2
    n_requests = max(EXCURSIONS * effort, FEWEST_EXCURSIONS) * relaxation / beyond + CALLS_BEYOND * effort / beyond
    n_kept = max(math.ceil(min(n_requests, MOST_SIMULATED_REQUESTS) / N_REPLICATIONS), SHORTEST)
    known = find_single_server_waits(queue, rate_per_s)
    n_skipped = math.ceil((WARM_UP if known else WARM_UP_FROM_EMPTY) * relaxation) + 4 * queue.servers_of_queue
    gap_ns = queue.n_queues * 1e9 / rate_per_s
    thresholds = []
    if known:
        fewest = max(FEWEST_EXCURSIONS * relaxation, FEWEST_CALLS) / (n_kept * N_REPLICATIONS)
        thresholds = [known.find_threshold(share) for share in CONTROLLED_SHARES if share > fewest]
    rng = np.random.default_rng([seed, 0])
    single = known.draw(rng, N_REPLICATIONS)[None] if known else np.zeros((1, N_REPLICATIONS))
    free = draw_start(queue, utilization, single[0], rng)
    kept = np.empty((n_kept, N_REPLICATIONS))
    controls = np.zeros((3 + len(thresholds), N_REPLICATIONS))
    n_done = -n_skipped
    for gaps, services in draw_chunks(queue, n_skipped + n_kept, seed):
        arrivals = np.cumsum(gaps * (gap_ns / queue.n_queues), axis=0)
        sojourns = serve(arrivals, services, free, constant=queue.services.is_constant)
        if queue.servers_of_queue == 1:
            waits = sojourns - services
            times = waits if only_waits else sojourns
        else:
            times = sojourns - services if only_waits else sojourns
            services = services / queue.servers_of_queue
            waits = serve(arrivals, services, single) - services
            single -= arrivals[-1]
        free -= arrivals[-1]  # times stay small, so that nothing is lost by rounding
        first = max(-n_done, 0)
        if first < len(gaps):
            kept[n_done + first : n_done + len(gaps)] = times[first:]
            controls[0] += gaps[first:].sum(axis=0)
            controls[1] += services[first:].sum(axis=0)
            controls[2] += waits[first:].sum(axis=0)
            for control, (threshold_ns, _) in zip(controls[3:], thresholds, strict=True):
                control += (waits[first:] > threshold_ns).sum(axis=0)
        n_done += len(gaps)
    controls /= n_kept
    means = [queue.n_queues, queue.services.mean_ns / queue.servers_of_queue]
    if known:
        means += [known.mean_ns, *(share for _, share in thresholds)]
    return SimulatedLatencies(kept, controls[: len(means)] - np.array(means)[:, None], LATTICE_ERROR)


def draw_chunks(queue: Queue, n: int, seed: int) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield gaps, in units of the mean one, and service times in ns, of successive requests of all replications."""
    for number, first in enumerate(range(0, n, CHUNK)):
        draw = draw_first_chunk if number < N_CACHED else draw_chunk
        gaps, services = draw(queue, number, seed)
        yield gaps[: n - first], services[: n - first]


def draw_chunk(queue: Queue, number: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the gaps and service times of one chunk. All of it is drawn, so that numbers do not depend on its use."""
    rng = np.random.default_rng([seed, 1, number])
    gaps, services = (draw(rng, (CHUNK, N_REPLICATIONS)) for draw in (queue.draw_gaps, queue.services.draw))
    for drawn in (gaps, services):
        drawn.setflags(write=False)  # they are kept for the next rate
    return gaps, services


draw_first_chunk = functools.lru_cache(maxsize=N_CACHED)(draw_chunk)


def draw_start(
    queue: Queue, utilization: float, waits_ns: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return when the servers of each replication become free, about as in the steady state, the first one first.

    Args:
        queue: The queue.
        utilization: Share of the servers' time that calls take.
        waits_ns: For each replication, a wait for one server that is as fast as all servers together.
        rng: Source of random numbers.
    """
    shape = (queue.servers_of_queue, N_REPLICATIONS)
    if shape[0] == 1:
        return waits_ns[None].copy()
    if queue.arrivals == "periodic":
        return np.zeros(shape)
    left_ns = rng.random(shape) * queue.services.draw(rng, shape)
    busy = rng.random(shape) < utilization
    # That server has all the work, these have the same work together.
    common_ns = waits_ns - left_ns.mean(axis=0)
    return np.asarray(np.sort(np.where(common_ns > 0, common_ns + left_ns, np.where(busy, left_ns, 0.0)), axis=0))


def serve(
    arrivals: NDArray[np.float64], services: NDArray[np.float64], free: NDArray[np.float64], *, constant: bool = False
) -> NDArray[np.float64]:
    """Return the time of each request from arrival to end.

    Args:
        arrivals: Arrival times, requests by replications, not decreasing in a replication.
        services: Service times of the same shape.
        free: When each server becomes free, servers by replications, sorted. It is updated.
        constant: Whether all service times are equal.
    """
    n_servers, n_replications = free.shape
    ends = np.empty_like(arrivals)
    if constant:
        # The server that is free first is the one that started first.
        for n, arrival in enumerate(arrivals):
            before = free[n] if n < n_servers else ends[n - n_servers]
            np.maximum(arrival, before, out=ends[n])
            ends[n] += services[n]
        free[:] = np.concatenate([free, ends])[-n_servers:]
    else:
        servers = list(free.copy())
        moved = np.empty(n_replications)
        for arrival, service, end in zip(arrivals, services, ends, strict=True):
            np.maximum(arrival, servers[0], out=end)
            end += service
            # Insert the end into the sorted times of the others.
            last = servers[0]
            last[:] = end
            for position in range(1, n_servers):
                other = servers[position]
                np.minimum(last, other, out=moved)
                np.maximum(last, other, out=other)
                # `other` now holds the larger one, which is compared with the next server.
                servers[position - 1][:] = moved
                last = other
        free[:] = np.stack(servers)
    ends -= arrivals
    return ends
