"""The result of planning: a document that is data only."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from ortune.compare.comparison import Noise
from ortune.host import HostClass
from ortune.model.identity import ModelIdentity
from ortune.planning.deployment import Deployment
from ortune.worker import Runtime
from ortune.workload import Limit, Workload

SCHEMA = 1
"""Version of the document."""

MOST_DEPLOYMENTS = 1000
"""Deployments that a document holds at most."""

Source = Literal["measured", "predicted"]
"""Whether a figure was measured under such a load, or computed from durations of calls by a model of the queue."""

Resource = Literal["throughput", "memory", "cpu"]
"""What a deployment can be the best in: the highest throughput or capacity, the least memory, the least CPU time per
call."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure with its interval.

    Attributes:
        estimate: The figure.
        low: Lower end of the interval.
        high: Upper end; None if there is no finite one.
        confidence: Coverage of the interval.
        source: Where it comes from.
        n_measurements: For a capacity: the rates at which the latency was measured or simulated.
    """

    estimate: float
    low: float
    high: float | None
    confidence: float
    source: Source
    n_measurements: int | None = None

    def __post_init__(self) -> None:
        """Reject numbers that no figure has."""
        numbers = (self.estimate, self.low, self.high if self.high is not None else 0.0)
        if not all(math.isfinite(each) and each >= 0 for each in numbers) or not 0 < self.confidence < 1:
            raise ValueError("the figures must be finite and not negative, and the confidence between 0 and 1")


class AtRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency of a deployment at the part of the asked rate that each replica gets.

    Attributes:
        rate_per_s: That rate.
        p50_ns: Median latency, from arrival to end.
        p99_ns: 99th percentile.
        utilization: Share of the callers' time that calls take.
        source: Where the figures come from.
    """

    rate_per_s: float
    p50_ns: float
    p99_ns: float
    utilization: float
    source: Source


class PlannedDeployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment with its figures.

    Attributes:
        deployment: The deployment.
        throughput: Calls per second with all callers busy.
        ratio: The same relative to the default deployment; None for that itself.
        p50_ns: Median duration of a call then.
        p99_ns: 99th percentile of it.
        cpu_cores: CPU cores that are in use then.
        cpu_ns_per_call: CPU time of all processes per call.
        memory_bytes: Largest resident memory of all processes. Pages that they share count in each.
        capacity: With a target: the highest rate that keeps it.
        predicted_capacity: Where the capacity was measured: what the model of the queue had predicted.
        is_proven: Whether it is better than the default deployment: its throughput, or with a target its capacity.
        replicas: With a rate: hosts like this one that it needs, with the headroom; None if no number is enough.
        at_rate: The latency at the part of the rate that each of them gets.
        price_of_million: Price of a million calls, in the unit of the price per hour.
    """

    deployment: Deployment
    throughput: Estimate
    ratio: Estimate | None = None
    p50_ns: float
    p99_ns: float
    cpu_cores: float
    cpu_ns_per_call: float
    memory_bytes: int
    capacity: Estimate | None = None
    predicted_capacity: Estimate | None = None
    is_proven: bool = False
    replicas: int | None = None
    at_rate: AtRate | None = None
    price_of_million: float | None = None

    @property
    def sustained_per_s(self) -> float:
        """The rate that it can take: the capacity within the target, or the throughput where there is no target."""
        return (self.capacity or self.throughput).estimate


class ScreenedDeployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What screening found of a deployment.

    Attributes:
        deployment: The deployment.
        ratio: Its throughput relative to the default deployment, from a few blocks; None if it was not measured.
        problem: Why it was not measured, or why it is not in the plan; empty if it works.
    """

    deployment: Deployment
    ratio: float | None = None
    problem: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan: deployments that were measured thoroughly, and the recommended one.

    Attributes:
        schema: Version of the document.
        rows: The deployments, the default first.
        recommended: Place of the recommended one.
        reason: Why it is recommended.
        best: Places of the best ones in each respect, among those that keep the target.
        screened: All deployments that were tried.
        slo: The target, or None.
        rate_per_s: The asked rate, or None.
        headroom: Share of the capacity that is left unused.
        price_per_hour: Price of a replica, or None.
        dispatch: Which process a request waits for, in predictions and in measurements at a rate.
        budget_s: Time that was planned.
        spent_s: Time that was spent.
        started: When it began, in ISO 8601 with the time zone.
        seed: Random seed.
        interrupted: Whether the user ended it early.
        workload: What was measured.
        model: Identity of the model.
        host: Class of the host.
        runtime: The software.
        noise: CPU use by other processes.
    """

    schema: int = SCHEMA
    rows: tuple[PlannedDeployment, ...]
    recommended: int
    reason: str
    best: dict[Resource, int]
    screened: tuple[ScreenedDeployment, ...] = ()
    slo: Limit | None = None
    rate_per_s: float | None = None
    headroom: float = 0.0
    price_per_hour: float | None = None
    dispatch: Literal["common", "round-robin", "random"] = "random"
    budget_s: float
    spent_s: float
    started: str
    seed: int = 0
    interrupted: bool = False
    workload: Workload
    model: ModelIdentity
    host: HostClass
    runtime: Runtime
    noise: Noise

    def __post_init__(self) -> None:
        """Reject places of deployments that are not there."""
        places = (self.recommended, *self.best.values())
        if not self.rows or not all(0 <= place < len(self.rows) for place in places):
            raise ValueError(f"it has {len(self.rows)} deployments, and names others")
        if missing := set(get_args(Resource)) - set(self.best):
            raise ValueError(f"it lacks the best deployment for {', '.join(sorted(missing))}")
        if len(self.rows) > MOST_DEPLOYMENTS or len(self.screened) > MOST_DEPLOYMENTS:
            raise ValueError(f"it has more than {MOST_DEPLOYMENTS} deployments")

    @property
    def choice(self) -> PlannedDeployment:
        """The recommended deployment."""
        return self.rows[self.recommended]
