"""What is expected of each of several models on one host if all rates are multiplied by a number: the scale."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from ortune.planning.capacity import make_queue
from ortune.planning.colocation.predict import Predictor, find_highest_alone
from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.colocation.timings import Timing
from ortune.planning.deployment import Deployment
from ortune.queueing.limited_figures import LimitedFigure, Utilization, limit_figure
from ortune.queueing.moments import QueueMoments
from ortune.queueing.rate_model import RateModel
from ortune.queueing.shared_cores import SharedLatencies
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION
from ortune.queueing.tails import ABOVE, Tail, simulate_tail
from ortune.workload.figures import FIGURES

TAIL_REQUESTS, FEWEST_OF_MODEL, MOST_TAIL_REQUESTS = 100_000, 500, 400_000
"""Simulated requests at one scale: of all models together, of each model if possible, and of all together at most."""


def make_scale_models(predictor: Predictor, sharing: Sharing, timings: Sequence[Timing]) -> list[RateModel]:
    """Return what is expected of each model at a scale, which stands for the rate.

    With cores of its own, a model does not depend on the others. Otherwise, all are simulated together.

    Args:
        predictor: Simulates models that share cores.
        sharing: How the models share the cores.
        timings: What was measured of the deployment of each.
    """
    demands = predictor.demands
    if sharing.kind == "divided":
        return [
            make_model_alone(deployment, timing, demand, seed=predictor.seed)
            for deployment, timing, demand in zip(sharing.deployments, timings, demands, strict=True)
        ]

    rates = [demand.rate_per_s for demand in demands]
    of_rarest = math.ceil(max(TAIL_REQUESTS * min(rates) / sum(rates), FEWEST_OF_MODEL))

    @functools.cache
    def simulate_all(scale: float) -> list[Tail]:
        found = predictor.simulate(sharing, timings, scale, n_requests=of_rarest, most_requests=MOST_TAIL_REQUESTS)
        return describe_tails(found, sharing, demands, timings, scale, predictor.n_cores)

    def simulate_model(number: int, highest: float, utilization: float) -> Tail:
        return simulate_all(utilization * highest)[number]

    models = []
    for number, (demand, timing) in enumerate(zip(demands, timings, strict=True)):
        highest = find_highest_of(number, demands, sharing, timings, predictor.n_cores)
        models.append(
            RateModel(
                functools.partial(simulate_model, number, highest),
                highest_per_s=highest,
                service_ns=timing.mean_ns,
                figure=find_limited_figure(demand),
            )
        )
    return models


def make_model_alone(deployment: Deployment, timing: Timing, demand: Demand, *, seed: int) -> RateModel:
    """Return what is expected of a model with cores of its own at a scale of its rate."""
    figure = find_limited_figure(demand)
    point = FIGURES[demand.slo.figure].percentile if demand.slo else None
    return RateModel(
        functools.partial(simulate_tail, make_queue(deployment, timing.samples_ns), point=point, seed=seed),
        highest_per_s=find_highest_alone(deployment, timing, demand),
        service_ns=timing.mean_ns,
        figure=figure,
    )


def find_limited_figure(demand: Demand) -> LimitedFigure:
    """Return what limits the rates of a model: its target, or that requests are served as they arrive."""
    if not demand.slo:
        return Utilization(HIGHEST_SIMULATED_UTILIZATION)
    return limit_figure(FIGURES[demand.slo.figure].percentile, demand.slo.bound)


def find_highest_of(
    number: int, demands: Sequence[Demand], sharing: Sharing, timings: Sequence[Timing], n_cores: float
) -> float:
    """Return the scale at which the callers of a model are always busy, or all cores are.

    Callers of other models may be always busy at lower scales. They then need no more cores at higher ones.

    Args:
        number: The model.
        demands: What each model must serve.
        sharing: How the models share the cores.
        timings: What was measured of the deployment of each.
        n_cores: Cores of the host.
    """
    from scipy.optimize import brentq

    highest = [
        find_highest_alone(deployment, timing, demand)
        for deployment, timing, demand in zip(sharing.deployments, timings, demands, strict=True)
    ]
    cores = [demand.rate_per_s * timing.cpu_ns_per_call / 1e9 for demand, timing in zip(demands, timings, strict=True)]

    def find_spare(scale: float) -> float:
        return n_cores - sum(
            min(scale, highest_scale) * busy for highest_scale, busy in zip(highest, cores, strict=True)
        )

    own = highest[number]
    return own if find_spare(own) >= 0 else float(brentq(find_spare, 0.0, own))


def describe_tails(
    found: Sequence[SharedLatencies],
    sharing: Sharing,
    demands: Sequence[Demand],
    timings: Sequence[Timing],
    scale: float,
    n_cores: float,
) -> list[Tail]:
    """Return the latencies of models that share cores as tables.

    Requests that come one after another wait for the same queue: that of their process, or that of all calls for the
    cores.

    Args:
        found: What a simulation found of each model.
        sharing: How the models share the cores.
        demands: What each model must serve.
        timings: What was measured of the deployment of each.
        scale: By what all rates are multiplied.
        n_cores: Cores of the host.
    """
    for_cores_ns = find_core_queue(demands, timings, scale, n_cores).relaxation_ns
    tails = []
    for latencies, deployment, demand in zip(found, sharing.deployments, demands, strict=True):
        per_ns = demand.rate_per_s * scale / 1e9
        call_ns = latencies.utilization * deployment.n_callers / per_ns
        own = QueueMoments(
            utilization=min(latencies.utilization, HIGHEST_SIMULATED_UTILIZATION),
            service_ns=call_ns / deployment.clients,
            variation=1 + latencies.call_variation,
            n_callers=deployment.clients,
        )
        of_cores = max(for_cores_ns * per_ns, 1.0)
        inflation = max(own.relaxation_ns * per_ns / deployment.processes, of_cores)
        tails.append(
            Tail(
                utilization=latencies.utilization,
                quantiles_ns=np.quantile(latencies.latencies_ns, 1 - ABOVE).tolist(),
                mean_ns=float(latencies.latencies_ns.mean()),
                inflation=inflation,
                mean_sd_ns=float(latencies.latencies_ns.std()) * math.sqrt(inflation),
                relaxation_ns=max(own.relaxation_ns, for_cores_ns),
                call_ns=call_ns,
                call_variance=latencies.call_variation * of_cores,
                least_share=1 / len(latencies.latencies_ns),
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
        utilization=min(float(rates @ busy_ns), HIGHEST_SIMULATED_UTILIZATION),
        service_ns=mean_ns,
        variation=max(square / mean_ns**2, 1.0),
    )
