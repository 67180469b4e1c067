"""Simulates several services on the cores of one host: how long requests take while all of them compete for cores.

Each service has queues and servers of its own. A call needs some number of cores. While all calls together need more
than there are, all of them are slowed down by the same factor, as a fair scheduler does (processor sharing: L.
Kleinrock, "Time-shared systems: a theoretical treatment", Journal of the ACM 14 (1967)). Calls that lose more, because
their threads wait for each other or spin, are slower than computed here.
"""

from __future__ import annotations

import heapq
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
    rates = [each.rate_per_s for each in services]
    span_ns = 1e9 * min(n_requests / min(rates), most_requests / sum(rates))
    return _Simulation(services, n_cores, span_ns, seed).run()


class _Simulation:
    def __init__(self, services: Sequence[SharedService], n_cores: float, span_ns: float, seed: int) -> None:
        self.services = services
        self.n_cores = n_cores
        self.span_ns = span_ns
        self.arrivals: list[list[float]] = []
        self.work: list[list[float]] = []
        self.queue_of: list[list[int]] = []
        for number, each in enumerate(services):
            rng = np.random.default_rng([seed, number])
            n = max(int(span_ns * each.rate_per_s / 1e9), 2)
            self.arrivals.append(np.cumsum(rng.exponential(1e9 / each.rate_per_s, n)).tolist())
            self.work.append(each.services.draw(rng, (n,)).tolist())
            self.queue_of.append(rng.integers(0, each.processes, n).tolist())

    def run(self) -> list[SharedLatencies]:
        """Go from event to event. Progress is counted in the time that calls would take with enough cores."""
        services = self.services
        waiting = [[deque[int]() for _ in range(each.processes)] for each in services]
        free = [[each.clients] * each.processes for each in services]
        ends: list[list[float]] = [[0.0] * len(each) for each in self.arrivals]
        starts: list[list[float]] = [[0.0] * len(each) for each in self.arrivals]
        events = sorted(
            (at, number, request) for number, each in enumerate(self.arrivals) for request, at in enumerate(each)
        )
        running: list[tuple[float, int, int]] = []
        now = progress = demand = 0.0
        place = 0

        def start(number: int, request: int) -> None:
            nonlocal demand
            starts[number][request] = now
            heapq.heappush(running, (progress + self.work[number][request], number, request))
            demand += services[number].cores_per_call

        while place < len(events) or running:
            pace = min(1.0, self.n_cores / demand) if demand > self.n_cores else 1.0
            end_at = now + (running[0][0] - progress) / pace if running else np.inf
            if place < len(events) and events[place][0] <= end_at:
                at, number, request = events[place]
                place += 1
                progress += (at - now) * pace
                now = at
                queue = self.queue_of[number][request]
                if free[number][queue]:
                    free[number][queue] -= 1
                    start(number, request)
                else:
                    waiting[number][queue].append(request)
                continue
            progress = running[0][0]
            now = float(end_at)
            _, number, request = heapq.heappop(running)
            demand -= services[number].cores_per_call
            ends[number][request] = now
            queue = self.queue_of[number][request]
            if waiting[number][queue]:
                start(number, waiting[number][queue].popleft())
            else:
                free[number][queue] += 1
        return [self._summarize(number, starts[number], ends[number]) for number in range(len(services))]

    def _summarize(self, number: int, starts: list[float], ends: list[float]) -> SharedLatencies:
        service = self.services[number]
        skipped = int(WARM_UP_SHARE * len(ends))
        latencies = np.array(ends) - np.array(self.arrivals[number])
        calls = np.array(ends) - np.array(starts)
        mean_ns = float(calls.mean())
        busy = mean_ns * service.rate_per_s / 1e9 / (service.processes * service.clients)
        return SharedLatencies(
            latencies_ns=latencies[skipped:], utilization=busy, call_variation=float(calls.var()) / mean_ns**2
        )
