"""How many requests a deployment can take within a target: predicted from durations of calls, and measured.

The model of the queue is that of the measurements at a rate: each process has a queue of its own, and a request comes
to any of them with the same probability, as when the kernel spreads connections over the processes of a server. A
common queue would have a somewhat higher capacity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.planning.deployment import Deployment
from ortune.planning.result import AtRate, Estimate, describe_interval
from ortune.queueing.capacity import Capacity, simulate_capacity
from ortune.queueing.limited_figures import limit_figure
from ortune.queueing.queue_model import Dispatch, Queue
from ortune.queueing.rate_model import RateModel
from ortune.queueing.replications import SimulatedLatencies
from ortune.queueing.services import resample
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION, simulate
from ortune.queueing.tails import simulate_tail
from ortune.queueing.theory import erlang_c
from ortune.workload import Limit, Objective
from ortune.workload.figures import FIGURES

DISPATCH: Dispatch = "random"

CAPACITY_RELATIVE_ERROR = 0.02
"""Standard error of a simulated percentile, as a share of it."""

BISECTIONS = 40
"""Bisections of the utilization."""

LARGEST_ERROR = 700.0
"""Errors from this one on, as a logarithm, say nothing, and have no number."""

HOPELESS_LOG_UTILIZATION = -10.0
"""Logarithm of the utilization of a deployment whose calls alone take longer than the target."""


def make_queue(deployment: Deployment, samples_ns: NDArray[np.int64]) -> Queue:
    """Return the queue of a deployment whose calls take that long while all callers are busy."""
    return Queue(
        services=resample(np.maximum(samples_ns, 1)),
        processes=deployment.processes,
        clients=deployment.clients,
        dispatch=DISPATCH,
    )


def make_rate_model(deployment: Deployment, samples_ns: NDArray[np.int64], limit: Limit, *, seed: int) -> RateModel:
    """Return what is expected of a deployment at each rate of items; see `predict_capacity`."""
    queue = make_queue(deployment, samples_ns)
    point = FIGURES[limit.figure].percentile
    return RateModel(
        functools.partial(simulate_tail, queue, point=point, seed=seed),
        highest_per_s=deployment.config.batch * queue.highest_per_s,
        service_ns=queue.services.mean_ns,
        figure=limit_figure(point, limit.bound),
    )


def estimate_utilization(deployment: Deployment, samples_ns: NDArray[np.int64], limit: Limit) -> float:
    """Return the highest utilization at which a limit is kept, in a fraction of a millisecond; 0 if there is none.

    A request waits with the probability of an M/M/c queue, and then for an exponentially distributed time, whose mean
    is that of an M/M/c queue scaled with the variation of the calls. This is good enough to rank deployments.

    Source: O. J. Boxma, J. W. Cohen and N. Huffels, "Approximations of the mean waiting time in an M/G/s queueing
    system", Operations Research 27 (1979), for the scaling.
    """
    services = samples_ns.astype(float)
    mean_ns = float(services.mean())
    variation = float(services.var()) / mean_ns**2
    point = FIGURES[limit.figure].percentile
    n_servers = deployment.clients

    def is_kept(utilization: float) -> bool:
        waiting = erlang_c(utilization, n_servers)
        wait_ns = mean_ns * (1 + variation) / 2 / (n_servers * (1 - utilization))
        if point is None:
            return mean_ns + waiting * wait_ns <= limit.bound
        left_ns = limit.bound - services
        above = np.where(left_ns <= 0, 1.0, waiting * np.exp(-np.maximum(left_ns, 0) / wait_ns))
        return float(above.mean()) <= 1 - point / 100

    low, high = 0.0, HIGHEST_SIMULATED_UTILIZATION
    if not is_kept(1e-6):
        return 0.0
    if is_kept(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low


def estimate_log_utilization(deployment: Deployment, samples_ns: NDArray[np.int64], limit: Limit) -> float:
    """Return the logarithm of `estimate_utilization`; a very low one if calls alone take longer than the limit."""
    utilization = estimate_utilization(deployment, samples_ns, limit)
    return math.log(utilization) if utilization > 0 else HOPELESS_LOG_UTILIZATION


def find_launch_error(
    deployment: Deployment,
    launches: Sequence[NDArray[np.int64]],
    limit: Limit,
    confidence: float = DEFAULT_CONFIDENCE,
) -> float:
    """Return by how much a predicted capacity depends on the launches whose calls it is predicted from.

    Durations of most calls are alike in all launches, but the few long ones, which decide on high percentiles, are not.

    Source: the jackknife, B. Efron and C. Stein, "The jackknife estimate of variance", The Annals of Statistics 9
    (1981).

    Args:
        deployment: The deployment.
        launches: Durations of the calls of each launch while all callers are busy.
        limit: The limit.
        confidence: Coverage of the interval.

    Returns:
        Half the width of the interval of the capacity, as a logarithm; infinite if the limit is kept only with some of
        the launches, or if there is only one.
    """
    from scipy.special import stdtrit

    n = len(launches)
    if n < 2:
        return math.inf
    rates = []
    for left_out in range(n):
        samples_ns = np.concatenate([launch for place, launch in enumerate(launches) if place != left_out])
        rates.append(estimate_utilization(deployment, samples_ns, limit) / float(samples_ns.mean()))
    if min(rates) <= 0:
        return math.inf if max(rates) > 0 else 0.0
    error = float(np.std(np.log(rates))) * math.sqrt(n - 1)
    return float(stdtrit(n - 1, (1 + confidence) / 2)) * error


def predict_capacity(
    deployment: Deployment, samples_ns: NDArray[np.int64], limit: Limit, *, seed: int, error: float = 0.0
) -> Estimate:
    """Return the highest rate at which a simulated queue keeps a limit, in items per second.

    Args:
        deployment: The deployment.
        samples_ns: Durations of calls while all callers are busy.
        limit: The limit.
        seed: Random seed.
        error: Half the width of the interval of what the durations belong to, as a logarithm; see `find_launch_error`.
    """
    found = simulate_capacity(
        make_queue(deployment, samples_ns),
        FIGURES[limit.figure].percentile,
        limit.bound,
        relative_error=CAPACITY_RELATIVE_ERROR,
        seed=seed,
    )
    return describe_capacity(found, "predicted", error=error, n_items=deployment.config.batch)


def predict_latency(
    deployment: Deployment, samples_ns: NDArray[np.int64], rate_per_s: float, figure: Objective | None, *, seed: int
) -> AtRate | None:
    """Return the latency of a simulated queue at a rate of items.

    Args:
        deployment: The deployment.
        samples_ns: Durations of calls while all callers are busy.
        rate_per_s: The rate.
        figure: The figure of the target, or None.
        seed: Random seed.

    Returns:
        The latency; None if the queue would grow without bound, or almost.
    """
    queue = make_queue(deployment, samples_ns)
    calls_per_s = rate_per_s / deployment.config.batch
    utilization = queue.utilization(calls_per_s)
    if utilization > HIGHEST_SIMULATED_UTILIZATION:
        return None
    found = simulate(queue, calls_per_s, relative_error=CAPACITY_RELATIVE_ERROR, seed=seed)
    return describe_predicted(found, rate_per_s, utilization, figure)


def describe_predicted(
    found: SimulatedLatencies, rate_per_s: float, utilization: float, figure: Objective | None
) -> AtRate:
    """Return simulated latencies as they are recorded."""
    target = None
    if figure:
        point = FIGURES[figure].percentile
        target = describe_interval(found.mean() if point is None else found.percentile(point), "predicted")
    return AtRate(
        rate_per_s=rate_per_s,
        p50_ns=found.percentile(50).estimate,
        p99_ns=found.percentile(99).estimate,
        target=target,
        utilization=utilization,
        source="predicted",
    )


def describe_capacity(found: Capacity, source: str, *, error: float = 0.0, n_items: int = 1) -> Estimate:
    """Return a capacity as it is recorded.

    Args:
        found: The rate of calls.
        source: Whether it was measured or predicted.
        error: Error of what it was computed from, as a logarithm, which becomes a part of its interval.
        n_items: Items in a call.
    """
    rate, low, high = (
        n_items * rate_per_s for rate_per_s in (found.rate_per_s.estimate, found.rate_per_s.low, found.rate_per_s.high)
    )
    capacity = Estimate(
        estimate=float(rate),
        low=float(low),
        high=float(high) if math.isfinite(high) else None,
        confidence=found.rate_per_s.confidence,
        source="measured" if source == "measured" else "predicted",
        n_measurements=found.n_measurements,
    )
    return widen(capacity, error)


def widen(capacity: Estimate, error: float) -> Estimate:
    """Return a capacity whose interval contains another error, given as a logarithm."""
    if capacity.estimate <= 0 or error <= 0:
        return capacity
    below = math.log(capacity.estimate / capacity.low) if capacity.low > 0 else math.inf
    above = math.log(capacity.high / capacity.estimate) if capacity.high else math.inf
    half = math.hypot(above, error)
    return msgspec.structs.replace(
        capacity,
        low=capacity.estimate * math.exp(-math.hypot(below, error)),
        high=capacity.estimate * math.exp(half) if half < LARGEST_ERROR else None,
    )
