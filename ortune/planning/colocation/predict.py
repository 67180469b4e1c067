"""Predicts the latency of each of several models that share the cores of a host, from durations of calls alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.colocation.timings import Timing
from ortune.queueing.limited_figures import LimitedFigure, Utilization, limit_figure
from ortune.queueing.moments import QueueMoments
from ortune.queueing.rate_model import RateModel
from ortune.queueing.services import resample
from ortune.queueing.shared_cores import SharedLatencies, SharedService, simulate_shared_cores
from ortune.queueing.simulation import HIGHEST_UTILIZATION
from ortune.queueing.tails import ABOVE, Tail
from ortune.workload.objectives import FIGURES

PRECISION = 0.02
"""How closely a scale is enclosed, as a share of it."""

FAR, NEAR = 2.0, 1.15
"""Factors by which a scale is changed until it is enclosed, from a guess and from a rough prediction."""

WIDEST = 64.0
"""Factor around the start in which a scale is searched, in either direction."""

FEW_REQUESTS, MANY_REQUESTS, TAIL_REQUESTS = 800, 2000, 8000
"""Requests of the model with the lowest rate: to compare sharings, for a figure that is reported, and for shares of
requests that exceed a limit."""

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
        if scale > HIGHEST_UTILIZATION * self.find_highest_scale(sharing, timings):
            return math.inf
        found = self._simulate(sharing, timings, scale, n_requests)
        return max(compare_with_target(each, demand) for each, demand in zip(found, self.demands, strict=True))

    def find_highest_scale(self, sharing: Sharing, timings: Sequence[Timing]) -> float:
        """Return the scale at which the callers of a model, or all cores, are always busy; see `find_ratio`."""
        scales = [
            deployment.n_callers * 1e9 / (demand.rate_per_s * timing.mean_ns)
            for demand, deployment, timing in zip(self.demands, sharing.deployments, timings, strict=True)
        ]
        busy_cores = sum(
            demand.rate_per_s * timing.cpu_ns_per_call / 1e9
            for demand, timing in zip(self.demands, timings, strict=True)
        )
        return min([*scales, self.n_cores / busy_cores if busy_cores > 0 else math.inf])

    def make_models(self, sharing: Sharing, timings: Sequence[Timing]) -> list[RateModel]:
        """Return what is expected of each model if all rates are multiplied by a number, which stands for the rate.

        Args:
            sharing: How the models share the cores.
            timings: What was measured of the deployment of each.
        """
        highest = self.find_highest_scale(sharing, timings)

        @functools.cache
        def simulate(utilization: float) -> list[Tail]:
            scale = utilization * highest
            found = self._simulate(sharing, timings, scale, TAIL_REQUESTS)
            return describe_tails(found, sharing, self.demands, timings, scale, self.n_cores)

        def simulate_model(number: int, utilization: float) -> Tail:
            return simulate(utilization)[number]

        return [
            RateModel(
                functools.partial(simulate_model, number),
                highest_per_s=highest,
                service_ns=timing.mean_ns,
                figure=find_limited_figure(demand),
            )
            for number, (demand, timing) in enumerate(zip(self.demands, timings, strict=True))
        ]

    def _simulate(
        self, sharing: Sharing, timings: Sequence[Timing], scale: float, n_requests: int
    ) -> list[SharedLatencies]:
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
            services,
            self.n_cores,
            n_requests=n_requests,
            most_requests=REQUESTS_OF_ALL * n_requests,
            seed=self.seed,
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
        least, most = start / WIDEST, start * WIDEST

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
        while high > (1 + PRECISION) * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return low


def compare_with_target(found: SharedLatencies, demand: Demand) -> float:
    """Return the figure of the latency divided by the target; without a target, how busy the processes are.

    A queue that grows without bound keeps no target.
    """
    busy = found.utilization / HIGHEST_UTILIZATION
    if busy > 1:
        return math.inf
    if not demand.slo:
        return busy
    point = FIGURES[demand.slo.figure].percentile
    latencies = found.latencies_ns
    value = latencies.mean() if point is None else np.quantile(latencies, point / 100)
    return float(value / demand.slo.bound)


def find_limited_figure(demand: Demand) -> LimitedFigure:
    """Return what limits the rates of a model: its target, or that requests are served as they arrive."""
    if not demand.slo:
        return Utilization(HIGHEST_UTILIZATION)
    return limit_figure(FIGURES[demand.slo.figure].percentile, demand.slo.bound)


def describe_tails(
    found: Sequence[SharedLatencies],
    sharing: Sharing,
    demands: Sequence[Demand],
    timings: Sequence[Timing],
    scale: float,
    n_cores: float,
) -> list[Tail]:
    """Return the latencies of each model as tables.

    Requests that come one after another wait for the same queue: that of their process, and where cores are shared,
    that of all calls for the cores.

    Args:
        found: What a simulation found of each model.
        sharing: How the models share the cores.
        demands: What each model must serve.
        timings: What was measured of the deployment of each.
        scale: By what all rates are multiplied.
        n_cores: Cores of the host.
    """
    for_cores_ns = 0.0 if sharing.kind == "divided" else find_core_queue(demands, timings, scale, n_cores).relaxation_ns
    tails = []
    for each, timing, deployment, demand in zip(found, timings, sharing.deployments, demands, strict=True):
        own = QueueMoments(
            utilization=min(each.utilization, HIGHEST_UTILIZATION),
            service_ns=timing.mean_ns / deployment.clients,
            variation=1 + each.call_variation,
            n_callers=deployment.clients,
        )
        per_ns = demand.rate_per_s * scale / 1e9
        inflation = max(own.relaxation_ns * per_ns / deployment.processes, for_cores_ns * per_ns, 1.0)
        tails.append(
            Tail(
                utilization=each.utilization,
                quantiles_ns=np.quantile(each.latencies_ns, 1 - ABOVE),
                mean_ns=float(each.latencies_ns.mean()),
                inflation=inflation,
                mean_sd_ns=float(each.latencies_ns.std()) * math.sqrt(inflation),
                relaxation_ns=max(own.relaxation_ns, for_cores_ns),
                call_variation=each.call_variation,
            )
        )
    return tails


def find_core_queue(demands: Sequence[Demand], timings: Sequence[Timing], scale: float, n_cores: float) -> QueueMoments:
    """Return what is known of the queue of all calls for the cores. Each keeps all cores busy for some time."""
    rates = np.array([demand.rate_per_s * scale / 1e9 for demand in demands])
    busy_ns = np.array([timing.cpu_ns_per_call / n_cores for timing in timings])
    spread = np.array([float(timing.samples_ns.var()) / timing.mean_ns**2 for timing in timings])
    mean_ns = max(float(np.average(busy_ns, weights=rates)), 1.0)
    square = float(np.average(busy_ns**2 * (1 + spread), weights=rates))
    return QueueMoments(
        utilization=min(float(rates @ busy_ns), HIGHEST_UTILIZATION),
        service_ns=mean_ns,
        variation=max(square / mean_ns**2, 1.0),
    )
