"""The waits of a queue with one server, for random arrivals and any service times, without simulation.

The wait of a request in the steady state is distributed as the highest point of a random walk whose steps are a service
time minus a gap. It follows from a factorization of the steps' generating function, which the fast Fourier transform
computes on a lattice.

Source: R. Gruebel, "Algorithm AS 265: G/G/1 via fast Fourier transform", Applied Statistics 40 (1991).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.queueing.queue_model import Queue
from ortune.queueing.services import ServiceTimes

LATTICE_STEPS = 64
"""Steps of the lattice in a mean service time."""

LATTICE_TAIL = 30.0
"""The lattice extends to waits that are exceeded with a probability of about e^-TAIL."""

MOST_POINTS = 1 << 19


class WaitDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of waits.

    Attributes:
        step_ns: Distance of the lattice's points.
        masses: Probability of each multiple of the step, from 0.
    """

    step_ns: float
    masses: NDArray[np.float64]

    @property
    def mean_ns(self) -> float:
        """The mean in ns."""
        return float(np.arange(len(self.masses)) @ self.masses) * self.step_ns

    def find_threshold(self, share: float) -> tuple[float, float]:
        """Return a wait in ns that about this share of the requests exceed, and the share that do."""
        exceeding = 1 - np.cumsum(self.masses)
        place = min(int(np.searchsorted(-exceeding, -share)), len(exceeding) - 1)
        # Half way between two points, where the lattice is most accurate.
        return (place + 0.5) * self.step_ns, float(exceeding[place])

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Return independent waits in ns."""
        points = np.searchsorted(np.cumsum(self.masses), rng.random(n))
        return np.asarray(np.minimum(points, len(self.masses) - 1) * self.step_ns)


def find_single_server_waits(queue: Queue, rate_per_s: float) -> WaitDistribution | None:
    """Return the distribution of waits if one server that is as fast as all servers of a queue took their place.

    Returns:
        The distribution; None if arrivals are periodic. Waits may then have few values, as many as there are sums of
        service times, and the lattice is not accurate.
    """
    utilization = queue.utilization(rate_per_s)
    if queue.arrivals == "periodic":
        return None
    service_ns = queue.services.mean_ns / queue.servers_of_queue
    gap_ns = queue.n_queues * 1e9 / rate_per_s
    step_ns = service_ns / LATTICE_STEPS
    # In heavy traffic, waits are exponentially distributed with this mean.
    wait_ns = (service_ns * queue.services.variation + gap_ns * queue.arrival_variation) / 2 / (1 - utilization)
    longest_ns = LATTICE_TAIL * max(wait_ns, gap_ns, service_ns)
    n = min(1 << math.ceil(math.log2(2 * longest_ns / step_ns)), MOST_POINTS)
    step_ns = max(step_ns, 2 * longest_ns / n)
    services = spread_services(queue.services, queue.servers_of_queue, step_ns, n // 2)
    gaps = spread_gaps(queue, gap_ns, step_ns, n // 2)
    step_mean = float(np.arange(n // 2) @ (services - gaps))
    return WaitDistribution(step_ns=step_ns, masses=find_highest(services, gaps, step_mean)[: n // 2])


def find_highest(ups: NDArray[np.float64], downs: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Return the distribution of the highest point of a random walk on a lattice.

    With f the generating function of a step, 1 - f(z) has a zero at z = 1, and 1 - 1/z has the same. Without it, the
    logarithm is a series in z and 1/z. Its part with positive powers belongs to the highest point.

    Args:
        ups: Probabilities that a step goes up by 0, 1, 2, ...
        downs: The same for going down, independently.
        mean: Mean of a step, which is negative.
    """
    n = 2 * len(ups)
    steps = np.fft.fft(ups, n) * np.conj(np.fft.fft(downs, n))
    shift = 1 - np.exp(2j * np.pi * np.arange(n) / n)  # 1 - 1/z at the points z of numpy's transform
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (1 - steps) / shift
    ratio[0] = -mean
    logarithm = np.log(np.abs(ratio)) + 1j * np.unwrap(np.angle(ratio))
    series = np.fft.ifft(logarithm).real
    series[0] = 0.0
    series[n // 2 :] = 0.0
    masses = np.fft.ifft(np.exp(series.sum() - np.fft.fft(series))).real
    masses = np.maximum(masses, 0.0)
    return np.asarray(masses / masses.sum())


def spread_services(services: ServiceTimes, n_servers: int, step_ns: float, n: int) -> NDArray[np.float64]:
    """Return probabilities of the multiples of a step, with the same mean as the service times."""
    if services.distribution in {"exponential", "lognormal"} and not services.is_constant:
        limits = np.arange(n + 1, dtype=np.float64) * (step_ns * n_servers)
        return spread_means(services.limited_mean(limits) / (step_ns * n_servers))
    points = np.array(services.sample_ns or [services.mean_ns]) / (n_servers * step_ns)
    return spread_atoms(points, np.ones(len(points)), n)


def spread_gaps(queue: Queue, gap_ns: float, step_ns: float, n: int) -> NDArray[np.float64]:
    """Return probabilities of the multiples of a step, with the same mean as the gaps between arrivals."""
    from scipy.special import gammainc

    shape = 1 / queue.arrival_variation
    x = np.arange(n + 1) * step_ns * shape / gap_ns
    means = shape * gammainc(shape + 1, x) + x * (1 - gammainc(shape, x))
    return spread_means(means * gap_ns / shape / step_ns)


def spread_means(limited_means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a lattice distribution, from the means of min(X, 0), min(X, 1), ... of a distribution."""
    differences = np.diff(limited_means)
    masses = np.concatenate([[1 - differences[0]], -np.diff(differences)])
    masses[-1] += 1 - masses.sum()
    return np.asarray(np.maximum(masses, 0.0))


def spread_atoms(points: NDArray[Any], masses: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Return a lattice distribution, where each value is split between the two points next to it.

    Args:
        points: Values in steps.
        masses: Their weights, which need not sum to 1.
        n: Points of the lattice.
    """
    points = np.minimum(points, n - 2)
    below = np.floor(points).astype(int)
    part = points - below
    found = np.bincount(below, masses * (1 - part), n) + np.bincount(below + 1, masses * part, n)
    return np.asarray(found / found.sum())
