"""Queues with random arrivals whose latencies are known exactly.

Sources: L. Kleinrock, "Queueing Systems", volume 1 (1975), for exponentially distributed service times (M/M/c).
C. D. Crommelin, "Delay probability formulae when the holding times are constant", Post Office Electrical Engineers'
Journal 25 (1932), for the number of requests in a queue with constant service times (M/D/c). G. J. Franx, "A simple
solution for the M/D/c waiting time distribution", Operations Research Letters 29 (2001), for the waiting times there: a
finite sum of positive terms, where Crommelin's terms alternate in sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

LONGEST_WAIT = 1e6
"""Waits are searched up to this many service times."""


class KnownQueue(Protocol):
    """A queue whose latencies are known. Times are in units of the mean service time."""

    @property
    def mean_wait(self) -> float:
        """Mean time from arrival to start."""

    @property
    def mean(self) -> float:
        """Mean time from arrival to end."""

    def quantile_wait(self, share: float) -> float:
        """Return the time that this share of the waits does not exceed."""

    def quantile(self, share: float) -> float:
        """Return the time that this share of the latencies does not exceed."""


class ExponentialQueue:
    """M/M/c: exponentially distributed service times.

    Args:
        utilization: Share of the servers' time that calls take, below 1.
        n_servers: Number of servers.
    """

    def __init__(self, utilization: float, n_servers: int = 1) -> None:
        self.utilization, self.n_servers = utilization, n_servers
        self.waiting_share = erlang_c(utilization, n_servers)

    @property
    def mean_wait(self) -> float:
        """Mean time from arrival to start."""
        return self.waiting_share / (self.n_servers * (1 - self.utilization))

    @property
    def mean(self) -> float:
        """Mean time from arrival to end."""
        return self.mean_wait + 1

    def quantile_wait(self, share: float) -> float:
        """Return the time that this share of the waits does not exceed."""
        if 1 - self.waiting_share >= share:
            return 0.0
        return math.log(self.waiting_share / (1 - share)) / (self.n_servers * (1 - self.utilization))

    def quantile(self, share: float) -> float:
        """Return the time that this share of the latencies does not exceed."""
        return find_quantile(lambda time: 1 - self._exceed(time), share)

    def _exceed(self, time: float) -> float:
        """Return the share of latencies above a time."""
        spare = self.n_servers * (1 - self.utilization) - 1
        # The wait and the service have rates that differ by `spare`.
        both = time * math.exp(-time)
        if abs(spare) > 1e-9:
            both = (math.exp(-time) - math.exp(-(1 + spare) * time)) / spare
        return math.exp(-time) + self.waiting_share * both


class ConstantQueue:
    """M/D/c: constant service times.

    Args:
        utilization: Share of the servers' time that calls take, below 1.
        n_servers: Number of servers.
    """

    def __init__(self, utilization: float, n_servers: int = 1) -> None:
        self.utilization, self.n_servers = utilization, n_servers
        self._numbers = count_requests(utilization * n_servers, n_servers)
        # The probability that at most 0, 1, 2, ... requests wait.
        self._waiting = np.cumsum(self._numbers)[n_servers:]

    @property
    def mean_wait(self) -> float:
        """Mean time from arrival to start, by Little's law."""
        waiting = np.maximum(np.arange(len(self._numbers)) - self.n_servers, 0)
        return float(waiting @ self._numbers) / (self.utilization * self.n_servers)

    @property
    def mean(self) -> float:
        """Mean time from arrival to end."""
        return self.mean_wait + 1

    def quantile_wait(self, share: float) -> float:
        """Return the time that this share of the waits does not exceed."""
        return find_quantile(self.distribute, share)

    def quantile(self, share: float) -> float:
        """Return the time that this share of the latencies does not exceed."""
        return 1 + self.quantile_wait(share)

    def distribute(self, wait: float) -> float:
        """Return the share of requests that wait at most this long."""
        from scipy.special import gammaln

        k = int(wait) + 1
        mean = self.utilization * self.n_servers * (k - wait)
        j = np.arange(k * self.n_servers)
        at_most = self._waiting[np.minimum(j[::-1], len(self._waiting) - 1)]
        return float(np.exp(j * math.log(mean) - mean - gammaln(j + 1)) @ at_most)


def erlang_c(utilization: float, n_servers: int) -> float:
    """Return the share of requests that wait in an M/M/c queue (Erlang's formula C)."""
    load = utilization * n_servers
    blocked = 1.0
    for n in range(1, n_servers + 1):  # Erlang's formula B, by its recursion
        blocked = load * blocked / (n + load * blocked)
    return blocked / (1 - utilization * (1 - blocked))


def count_requests(load: float, n_servers: int) -> NDArray[np.float64]:
    """Return the probabilities of 0, 1, 2, ... requests in an M/D/c queue.

    All requests that are being served at one time are done one service time later. The number of requests then consists
    of those that were waiting, and those that have arrived since. This is a Markov chain. It is cut off where
    probabilities are below 1e-15.

    Args:
        load: Requests that arrive per service time, below `n_servers`.
        n_servers: Number of servers.
    """
    from scipy.linalg import solve
    from scipy.special import gammaln

    # The tail falls at least as fast as that of a normal random walk with the same drift and variance, about.
    decay = 2 * (1 - load / n_servers)
    n = n_servers * 4 + 60 + int(40 / min(decay, 1.0))
    j = np.arange(n)
    arrived = np.exp(j * math.log(load) - load - gammaln(j + 1))
    moves = np.zeros((n, n))
    for i in range(n):
        left = max(i - n_servers, 0)
        moves[i, left:] = arrived[: n - left]
        moves[i, -1] += 1 - moves[i].sum()
    equations = moves.T - np.eye(n)
    equations[-1] = 1.0
    found = solve(equations, np.eye(n)[-1])
    return np.asarray(np.maximum(found, 0) / np.maximum(found, 0).sum())


def find_quantile(distribute: Callable[[float], float], share: float) -> float:
    """Return where a distribution function reaches a share."""
    from scipy.optimize import brentq

    if distribute(0.0) >= share:
        return 0.0
    high = 1.0
    while distribute(high) < share and high < LONGEST_WAIT:
        high *= 2
    return float(brentq(lambda time: distribute(time) - share, 0.0, high, xtol=1e-10))


def find_known_capacity(queue: Callable[[float, int], KnownQueue], n_servers: int, share: float, limit: float) -> float:
    """Return the utilization at which a quantile of the latency reaches a limit, for comparison with estimates.

    Args:
        queue: `ExponentialQueue` or `ConstantQueue`.
        n_servers: Number of servers.
        share: The share of latencies that must keep the limit.
        limit: The limit, in service times.
    """
    from scipy.optimize import brentq

    high = 0.5
    while queue(high, n_servers).quantile(share) < limit:
        high = (1 + high) / 2
    return float(brentq(lambda utilization: queue(utilization, n_servers).quantile(share) - limit, 1e-3, high))
