"""The result of planning for several models on one host: a document that is data only."""

from __future__ import annotations

import msgspec

from ortune.bounds import MOST_MODELS
from ortune.host import HostClass
from ortune.measure.comparison import Noise
from ortune.measure.judge import TARGET_VERDICTS, TargetVerdict, find_deciding
from ortune.model.identity import ModelIdentity
from ortune.numbers import Count
from ortune.planning.colocation.sharing import Demand, Kind, describe_kind
from ortune.planning.deployment import Deployment
from ortune.planning.result import Estimate, check_figures, check_headroom, check_origin, check_replicas
from ortune.worker import Runtime
from ortune.workload import Workload
from ortune.workload.figures import Objective

HOST_PLAN_SCHEMA = 1
"""Version of the document."""

MOST_SHARINGS = 1000
"""Sharings that a document holds at most."""


class PlannedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of the plan.

    Attributes:
        demand: What it must serve.
        model: Its identity.
        workload: Its input data.
    """

    demand: Demand
    model: ModelIdentity
    workload: Workload


class ModelResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of one model while all others were under load, too.

    Attributes:
        deployment: Its processes, with their settings and CPUs.
        figure: The figure of the latency.
        latency_ns: That figure, from arrival to end, in ns; None if requests arrived faster than they were served.
        verdict: Whether the target is kept.
        is_above_target: Whether the estimate of the figure is above the target.
        served_per_s: Requests that were served per second.
        utilization: Share of the callers' time that calls took.
        n_requests: Requests that the figure rests on.
        cpu_ns_per_call: CPU time of all its processes per call.
        memory_bytes: Largest resident memory of all its processes.
    """

    deployment: Deployment
    figure: Objective
    latency_ns: Estimate | None
    verdict: TargetVerdict
    is_above_target: bool = False
    served_per_s: float
    utilization: float
    n_requests: Count
    cpu_ns_per_call: float
    memory_bytes: int

    def __post_init__(self) -> None:
        """Reject numbers that no figure has."""
        check_figures(self.served_per_s, self.utilization, self.cpu_ns_per_call, self.memory_bytes)


class PlannedSharing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to share the host, measured with all models under load.

    Attributes:
        kind: How cores are shared.
        models: What was found of each model.
        cpu_cores: CPU cores that all processes used.
        memory_bytes: Largest resident memory of all processes. Pages that they share count in each.
        scale: By how much all requested rates can be multiplied before a target is missed; None if it is not known.
        predicted_scale: Where the scale was measured: what had been predicted.
        replicas: Hosts like this one that the requested rates need, with the headroom; None if no number is enough.
        price_per_hour: Price of all of them.
    """

    kind: Kind
    models: tuple[ModelResult, ...]
    cpu_cores: float
    memory_bytes: int
    scale: Estimate | None = None
    predicted_scale: Estimate | None = None
    replicas: Count | None = None
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        """Reject numbers that no figure has."""
        check_figures(self.cpu_cores, self.memory_bytes, self.price_per_hour or 0.0)
        check_replicas(self.replicas)

    @property
    def title(self) -> str:
        """A short description."""
        return describe_kind(self.kind, [model.deployment for model in self.models])

    @property
    def is_estimated_to_keep(self) -> bool:
        """Whether no latency is estimated to be above its target, be it proven or not."""
        return self.verdict != "broken" and not any(model.is_above_target for model in self.models)

    @property
    def verdict(self) -> TargetVerdict:
        """Whether all targets are kept."""
        return find_deciding((model.verdict for model in self.models), tuple(TARGET_VERDICTS.values()))


class RejectedSharing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to share the host that is not in the plan.

    Attributes:
        kind: How cores are shared.
        deployments: The deployment of each model.
        problem: Why it is not in the plan.
    """

    kind: Kind
    deployments: tuple[Deployment, ...]
    problem: str

    @property
    def title(self) -> str:
        """A short description."""
        return describe_kind(self.kind, self.deployments)


class HostPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan for several models on one host.

    Attributes:
        schema: Version of the document.
        models: The models, and what each must serve.
        rows: The ways to share the host that were measured, the default deployment of each model first.
        recommended: Place of the recommended one; None if none meets all targets.
        reason: Why.
        measured_scale: By what the requested rates were multiplied in measurements: 1, or less where one host is too
            small.
        rejected: Ways to share the host that were not measured, or that failed.
        headroom: Share of the capacity that is left unused.
        price_per_hour: Price of a host per hour, or None.
        n_cores: Cores of the host that may be used.
        budget_s: Time that was planned.
        spent_s: Time that was spent.
        started: When it began, in ISO 8601 with the time zone.
        seed: Random seed.
        interrupted: Whether the user ended it early.
        problem: The error that ended the measurement of the factor for the rates; empty if there was none.
        host: Class of the host.
        runtime: The software.
        noise: CPU use by other processes.
    """

    schema: int = HOST_PLAN_SCHEMA
    models: tuple[PlannedModel, ...]
    rows: tuple[PlannedSharing, ...]
    recommended: int | None
    reason: str
    measured_scale: float
    rejected: tuple[RejectedSharing, ...] = ()
    headroom: float = 0.0
    price_per_hour: float | None = None
    n_cores: Count
    budget_s: float
    spent_s: float
    started: str
    seed: int = 0
    interrupted: bool = False
    problem: str = ""
    host: HostClass
    runtime: Runtime
    noise: Noise

    def __post_init__(self) -> None:
        """Reject what does not belong together."""
        if not 1 < len(self.models) <= MOST_MODELS:
            raise ValueError(f"it has {len(self.models)} models; there must be 2 to {MOST_MODELS}")
        if not self.rows or len(self.rows) > MOST_SHARINGS or len(self.rejected) > MOST_SHARINGS:
            raise ValueError(f"it has {len(self.rows)} rows and {len(self.rejected)} that were rejected")
        if self.recommended is not None and not 0 <= self.recommended < len(self.rows):
            raise ValueError(f"it has {len(self.rows)} rows, and recommends another one")
        if any(len(row.models) != len(self.models) for row in self.rows) or any(
            len(rejected.deployments) != len(self.models) for rejected in self.rejected
        ):
            raise ValueError("a row has another number of models than the plan")
        if not self.measured_scale > 0:
            raise ValueError("the rates that were measured must be positive")
        check_figures(self.price_per_hour or 0.0, self.budget_s, self.spent_s)
        check_headroom(self.headroom)
        check_origin(self.started, self.seed)

    @property
    def choice(self) -> PlannedSharing | None:
        """The recommended sharing."""
        return None if self.recommended is None else self.rows[self.recommended]
