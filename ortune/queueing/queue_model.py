"""The queue in front of the servers of a deployment."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.queueing.services import ServiceTimes
from ortune.workload.load import Arrivals

Dispatch = Literal["common", "round-robin", "random"]
"""Which process a request waits for. "common": whichever is free first. "round-robin": each in turn. "random": each
with the same probability, as when the kernel spreads connections over the sockets of SO_REUSEPORT."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Servers, how requests arrive, and which of the servers each waits for. Requests are served in order of arrival.

    Attributes:
        services: Service times of a call while all servers are as busy as in production.
        processes: Processes that serve requests.
        clients: Requests that a process serves at a time.
        arrivals: At random ("poisson") or at equal intervals ("periodic").
        dispatch: Whether all processes share a queue, or how requests are spread over their queues.
    """

    services: ServiceTimes
    processes: int = 1
    clients: int = 1
    arrivals: Arrivals = "poisson"
    dispatch: Dispatch = "common"

    def __post_init__(self) -> None:
        """Reject values that describe no queue."""
        if self.processes < 1 or self.clients < 1:
            raise ValueError(f"{self.processes} processes with {self.clients} clients: there must be at least one")

    @property
    def n_servers(self) -> int:
        """Requests that are served at a time."""
        return self.processes * self.clients

    @property
    def highest_per_s(self) -> float:
        """The rate at which servers are always busy. From there on, the queue grows without bound."""
        return 1e9 * self.n_servers / self.services.mean_ns

    @property
    def n_queues(self) -> int:
        """Number of separate queues."""
        return 1 if self.dispatch == "common" else self.processes

    @property
    def servers_of_queue(self) -> int:
        """Servers that take requests from one queue."""
        return self.n_servers // self.n_queues

    def utilization(self, rate_per_s: float) -> float:
        """Return the share of the servers' time that calls take."""
        return rate_per_s / self.highest_per_s

    def draw_gaps(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return times between arrivals at one queue, in units of the mean time between any two arrivals.

        All queues are alike, so one of them has the latencies of all. What arrives at one of `n` queues is every n-th
        request, or each with probability 1/n.
        """
        n = self.n_queues
        if self.arrivals == "poisson":
            return rng.gamma(n, 1.0, shape) if self.dispatch == "round-robin" and n > 1 else rng.exponential(n, shape)
        if self.dispatch == "random" and n > 1:
            return rng.geometric(1 / n, shape).astype(float)
        return np.full(shape, float(n))

    @property
    def arrival_variation(self) -> float:
        """Squared coefficient of variation of the times between arrivals at one queue."""
        n = self.n_queues
        if self.arrivals == "poisson":
            return 1 / n if self.dispatch == "round-robin" else 1.0
        return 1 - 1 / n if self.dispatch == "random" else 0.0
