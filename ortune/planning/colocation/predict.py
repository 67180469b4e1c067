"""Predicts the latency of each of several models that share the cores of a host, from durations of calls alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.colocation.timings import Timing
from ortune.planning.deployment import Deployment
from ortune.queueing.services import resample
from ortune.queueing.shared_cores import SharedLatencies, SharedService, simulate_shared_cores
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION
from ortune.workload.figures import FIGURES

SCALE_PRECISION = 0.02
"""How closely a scale is enclosed, as a share of it."""

FAR, NEAR_SCALE = 2.0, 1.15
"""Factors by which a scale is changed until it is enclosed, from a guess and from a rough prediction."""

WIDEST_SCALE_FACTOR = 64.0
"""Factor around the start in which a scale is searched, in either direction."""

FEW_REQUESTS, MANY_REQUESTS = 800, 2000
"""Requests of the model with the lowest rate: to compare sharings, and for a figure that is reported."""

REQUESTS_OF_ALL = 6
"""Requests of all models together, as a multiple of these, at most."""


class Predictor(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts latencies on one host.

    Attributes:
        demands: What each model must serve.
        n_cores: Cores of the host.
        seed: Random seed.
    """

    demands: tuple[Demand, ...]
    n_cores: float
    seed: int = 0

    def find_ratio(
        self, sharing: Sharing, timings: Sequence[Timing], scale: float, n_requests: int = FEW_REQUESTS
    ) -> float:
        """Return the latency of the model that is closest to its target, or farthest beyond it, divided by the target.

        Args:
            sharing: How the models share the cores.
            timings: What was measured of the deployment of each.
            scale: By what all rates are multiplied.
            n_requests: Requests of the model with the lowest rate.
        """
        if scale > HIGHEST_SIMULATED_UTILIZATION * self.find_highest_scale(sharing, timings):
            return math.inf
        found = self.simulate(
            sharing, timings, scale, n_requests=n_requests, most_requests=REQUESTS_OF_ALL * n_requests
        )
        return max(compare_with_target(estimate, demand) for estimate, demand in zip(found, self.demands, strict=True))

    def find_highest_scale(self, sharing: Sharing, timings: Sequence[Timing]) -> float:
        """Return the scale at which the callers of a model, or all cores, are always busy; see `find_ratio`."""
        alone = [
            find_highest_alone(deployment, timing, demand)
            for deployment, timing, demand in zip(sharing.deployments, timings, self.demands, strict=True)
        ]
        busy = sum(
            demand.rate_per_s * timing.cpu_ns_per_call / 1e9
            for demand, timing in zip(self.demands, timings, strict=True)
        )
        return min([*alone, self.n_cores / busy if busy > 0 else math.inf])

    def simulate(
        self, sharing: Sharing, timings: Sequence[Timing], scale: float, *, n_requests: int, most_requests: int
    ) -> list[SharedLatencies]:
        """Return the latencies of each model; see `find_ratio` and `simulate_shared_cores`."""
        services = [
            SharedService(
                rate_per_s=demand.rate_per_s * scale,
                services=resample(np.maximum(timing.samples_ns, 1)),
                cores_per_call=timing.cores_per_call,
                processes=deployment.processes,
                clients=deployment.clients,
            )
            for demand, deployment, timing in zip(self.demands, sharing.deployments, timings, strict=True)
        ]
        return simulate_shared_cores(
            services, self.n_cores, n_requests=n_requests, most_requests=most_requests, seed=self.seed
        )

    def find_scale(
        self,
        sharing: Sharing,
        timings: Sequence[Timing],
        *,
        start: float = 1.0,
        step: float = FAR,
        n_requests: int = FEW_REQUESTS,
    ) -> float:
        """Return the number by which all rates can be multiplied before a target breaks; 0 if there is none.

        Args:
            sharing: How the models share the cores.
            timings: What was measured of the deployment of each.
            start: Where the number is expected.
            step: Factor by which it is changed until it is enclosed.
            n_requests: Requests of the model with the lowest rate.
        """
        least, most = start / WIDEST_SCALE_FACTOR, start * WIDEST_SCALE_FACTOR

        def keeps(scale: float) -> bool:
            return self.find_ratio(sharing, timings, scale, n_requests) <= 1

        low = high = start
        if keeps(start):
            while keeps(high := high * step):
                low = high
                if low >= most:
                    return low
        else:
            while not keeps(low := low / step):
                high = low
                if low <= least:
                    return 0.0
        while high > (1 + SCALE_PRECISION) * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return low


def compare_with_target(found: SharedLatencies, demand: Demand) -> float:
    """Return the figure of the latency divided by the target; without a target, how busy the processes are.

    A queue that grows without bound keeps no target.
    """
    busy = found.utilization / HIGHEST_SIMULATED_UTILIZATION
    if busy > 1:
        return math.inf
    if not demand.slo:
        return busy
    point = FIGURES[demand.slo.figure].percentile
    latencies = found.latencies_ns
    value = latencies.mean() if point is None else np.quantile(latencies, point / 100)
    return float(value / demand.slo.bound)


def find_highest_alone(deployment: Deployment, timing: Timing, demand: Demand) -> float:
    """Return the scale at which the callers of a model are always busy."""
    return deployment.n_callers * 1e9 / (demand.rate_per_s * timing.mean_ns)
