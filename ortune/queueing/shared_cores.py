"""Simulates several services on the cores of one host: how long requests take while all of them compete for cores.

Each service has queues and servers of its own. A call needs some number of cores. While all calls together need more
than there are, all of them are slowed down by the same factor, as a fair scheduler does (processor sharing: L.
Kleinrock, "Time-shared systems: a theoretical treatment", Journal of the ACM 14 (1967)). Calls that lose more, because
their threads wait for each other or spin, are slower than computed here.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.queueing.services import ServiceTimes

WARM_UP_SHARE = 0.1
"""Part of the requests at the beginning that do not count, because queues start empty."""


class SharedService(msgspec.Struct, frozen=True, kw_only=True):
    """A service on a shared host.

    Attributes:
        rate_per_s: Requests per second, arriving at random.
        services: Durations of calls with enough cores.
        cores_per_call: Cores that a call keeps busy.
        processes: Processes, each with a queue of its own; requests come to any of them with the same probability.
        clients: Calls that each process makes at a time.
    """

    rate_per_s: float
    services: ServiceTimes
    cores_per_call: float
    processes: int = 1
    clients: int = 1


class SharedLatencies(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation found of one service.

    Attributes:
        latencies_ns: Time of each request from arrival to end, in order of arrival.
        utilization: Share of its servers' time that calls took, slowed down as they were.
        call_variation: Squared coefficient of variation of the durations of these calls.
    """

    latencies_ns: NDArray[np.float64]
    utilization: float
    call_variation: float


def simulate_shared_cores(
    services: Sequence[SharedService],
    n_cores: float,
    *,
    n_requests: int = 1500,
    most_requests: int = 12_000,
    seed: int = 0,
) -> list[SharedLatencies]:
    """Return the latencies of each service.

    Args:
        services: The services.
        n_cores: Cores of the host.
        n_requests: Requests of the service with the lowest rate; the others have more, in proportion to their rates.
        most_requests: Requests of all services together, at most.
        seed: Random seed. Arrivals at two rates have the same random numbers.
    """
    rates = [service.rate_per_s for service in services]
    span_ns = 1e9 * min(n_requests / min(rates), most_requests / sum(rates))
    return _Simulation(services, n_cores, span_ns, seed).run()


class _Simulation:
    def __init__(self, services: Sequence[SharedService], n_cores: float, span_ns: float, seed: int) -> None:
        self.services = services
        self.n_cores = n_cores
        self.arrivals: list[NDArray[np.float64]] = []
        # All services in one list, one after another: the work of each request, its cores, and its queue.
        self.work: list[float] = []
        self.cores: list[float] = []
        self.queue_of: list[int] = []
        # The free callers of each queue.
        self.free: list[int] = []
        for number, service in enumerate(services):
            rng = np.random.default_rng([seed, number])
            n = max(int(span_ns * service.rate_per_s / 1e9), 2)
            self.arrivals.append(np.cumsum(rng.exponential(1e9 / service.rate_per_s, n)))
            self.work += service.services.draw(rng, (n,)).tolist()
            self.cores += [service.cores_per_call] * n
            self.queue_of += (len(self.free) + rng.integers(0, service.processes, n)).tolist()
            self.free += [service.clients] * service.processes

    def run(self) -> list[SharedLatencies]:
        """Go from event to event. Progress is counted in the time that calls would take with enough cores."""
        # Most of the time of predictions is spent here, so that the loop has local names and no calls of its own.
        work, cores, queue_of, free, n_cores = self.work, self.cores, self.queue_of, self.free, self.n_cores
        heappush, heappop = heapq.heappush, heapq.heappop
        all_arrivals = np.concatenate(self.arrivals)
        order = np.argsort(all_arrivals, kind="stable")
        waiting = [deque[int]() for _ in free]
        starts = [0.0] * len(work)
        ends = [0.0] * len(work)
        running: list[tuple[float, int]] = []
        now = progress = demand = 0.0
        # What follows the last arrival: all calls end.
        for request, at in zip([*order.tolist(), -1], [*all_arrivals[order].tolist(), math.inf], strict=True):
            pace = 1.0
            while running:
                pace = n_cores / demand if demand > n_cores else 1.0
                end_at = now + (running[0][0] - progress) / pace
                if at <= end_at:
                    break
                now = end_at
                progress, ended = heappop(running)
                ends[ended] = now
                demand -= cores[ended]
                queue = queue_of[ended]
                if waiting[queue]:
                    started = waiting[queue].popleft()
                    starts[started] = now
                    demand += cores[started]
                    heappush(running, (progress + work[started], started))
                else:
                    free[queue] += 1
            if request < 0:
                break
            progress += (at - now) * pace
            now = at
            queue = queue_of[request]
            if free[queue]:
                free[queue] -= 1
                starts[request] = now
                demand += cores[request]
                heappush(running, (progress + work[request], request))
            else:
                waiting[queue].append(request)
        bounds = np.cumsum([len(arrival) for arrival in self.arrivals])[:-1]
        parts = zip(np.split(np.array(starts), bounds), np.split(np.array(ends), bounds), strict=True)
        return [self._summarize(number, *part) for number, part in enumerate(parts)]

    def _summarize(self, number: int, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> SharedLatencies:
        service = self.services[number]
        skipped = int(WARM_UP_SHARE * len(ends))
        latencies = ends - self.arrivals[number]
        calls = ends - starts
        mean_ns = float(calls.mean())
        busy = mean_ns * service.rate_per_s / 1e9 / (service.processes * service.clients)
        return SharedLatencies(
            latencies_ns=latencies[skipped:], utilization=busy, call_variation=float(calls.var()) / mean_ns**2
        )
