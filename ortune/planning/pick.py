"""Picks a deployment of a plan, and makes the record that `ortune apply` needs of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import msgspec

from ortune.errors import RecordError
from ortune.knobs import Config
from ortune.measure.comparison import Speedup
from ortune.measure.judge import Verdict, compare
from ortune.planning.colocation.result import HostPlan, ModelResult
from ortune.planning.deployment import Deployment
from ortune.planning.result import Estimate, LengthPlan, Plan, PlannedDeployment
from ortune.record.schema import RECORD_SCHEMA, Evidence, Record, Search, Tried
from ortune.workload import Limit, Load

LARGEST_LOG_RATIO = 300.0
"""What a file can contain, and no measurement shows."""

MODEL = "model"
"""Name of a server, where it is the only one on its host."""


class PickedDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment of a plan, with what it was planned for.

    Attributes:
        row: The deployment with its figures, as the plan has it.
        number: Its number in the plan, counted from 1.
        is_recommended: Whether it is the one that the plan recommends.
        record: The settings of its sessions, as a record.
        capacity: The highest rate that keeps the target; None if it is not known, or without a target.
        throughput: Calls per second with all callers busy, or those that were served; None if neither was measured.
        replicas: With a rate: hosts like the one that was measured that it needs; None if that is not known.
        slo: The target for the latency, or None.
        rate_per_s: The rate that all replicas serve together, or None.
        headroom: Share of the capacity that is left unused.
        lengths: How its callers group items of different lengths; None if the plan says nothing about it.
        name: Name of its server.
        n_before: Processes of other models on the same host, whose servers have the first ports.
        shared: How it shares the host with other models; empty for the only one.
    """

    row: PlannedDeployment | ModelResult
    number: int
    is_recommended: bool
    record: Record
    capacity: Estimate | None = None
    throughput: Estimate | None = None
    replicas: int | None = None
    slo: Limit | None = None
    rate_per_s: float | None = None
    headroom: float = 0.0
    lengths: LengthPlan | None = None
    name: str = MODEL
    n_before: int = 0
    shared: str = ""

    @property
    def deployment(self) -> Deployment:
        """The deployment."""
        return self.row.deployment

    @property
    def sustained_per_s(self) -> float:
        """The rate that it can take: the capacity, or the throughput where there is none."""
        found = self.capacity or self.throughput
        return found.estimate if found else 0.0

    @property
    def most_per_s(self) -> float:
        """The highest rate that one replica is planned for: what it can take, without the headroom."""
        return self.sustained_per_s * (1 - self.headroom)

    @property
    def most_cpus(self) -> float:
        """CPUs that all processes use at that rate on average; 0 if that is not known."""
        row = self.row
        if isinstance(row, PlannedDeployment) and row.deployment.batching and row.at_rate:
            # Batches are smaller than at full load, and take more CPU time per request.
            used = row.cpu_cores * row.at_rate.utilization * self.most_per_s / row.at_rate.rate_per_s
            return min(used, row.cpu_cores)
        return self.most_per_s * row.cpu_ns_per_call / 1e9

    @property
    def full_cpus(self) -> float:
        """CPUs that all processes use on average while all callers are busy; 0 if that is not known."""
        row = self.row
        if isinstance(row, PlannedDeployment):
            return row.cpu_cores
        return row.served_per_s * row.cpu_ns_per_call / 1e9 / row.utilization if row.utilization else 0.0

    @property
    def rate_of_replica_per_s(self) -> float:
        """The rate that one replica gets: its part of the planned rate, or the highest one where there is none."""
        if self.rate_per_s and self.replicas:
            return self.rate_per_s / self.replicas
        return self.most_per_s


def pick_deployment(plan: Plan, pick: int | str | None = None) -> PickedDeployment:
    """Return a deployment of a plan.

    Args:
        plan: The plan.
        pick: Its number, counted from 1 as in the table of the plan; or what it is the best in: throughput, memory or
            cpu. None for the recommended one.

    Raises:
        RecordError: The plan has no such deployment.
    """
    place = find_place(plan, pick)
    row = plan.rows[place]
    return PickedDeployment(
        row=row,
        number=place + 1,
        is_recommended=place == plan.recommended and plan.meets_target,
        record=make_record(plan, place),
        capacity=row.capacity,
        throughput=row.throughput,
        replicas=row.replicas,
        slo=plan.slo,
        rate_per_s=plan.rate_per_s,
        headroom=plan.headroom,
        lengths=plan.lengths if plan.lengths and plan.lengths.place == place else None,
    )


def find_place(plan: Plan, pick: int | str | None) -> int:
    """Return the place of a deployment; see `pick_deployment`."""
    if pick is None:
        return plan.recommended
    if isinstance(pick, str):
        for resource, place in plan.best.items():
            if resource == pick:
                return place
        raise RecordError(f"{pick}: the plan has no deployment that is the best in that.", option="pick")
    if not 1 <= pick <= len(plan.rows):
        raise RecordError(f"{pick}: the plan has deployments 1 to {len(plan.rows)}.", option="pick")
    return pick - 1


def make_record(plan: Plan, place: int) -> Record:
    """Return the settings of a deployment as a record. A setting that any deployment had counts as tried."""
    row = plan.rows[place]
    base = plan.rows[0].deployment.config
    config = row.deployment.config
    tried = [tried_row.deployment.config for tried_row in plan.rows]
    tried += [screened.deployment.config for screened in plan.screened]
    verdict: Verdict = "inconclusive"
    if row.is_proven:
        verdict = "faster"
    elif config == base:
        verdict = "default_is_best"
    reason = plan.reason if place == plan.recommended else "the plan recommends another deployment"
    return Record(
        schema=RECORD_SCHEMA,
        config=config,
        base=base,
        cache_options=row.cache_options,
        evidence=Evidence(
            verdict=verdict,
            reason=reason,
            objective="throughput",
            speedup=find_speedup(row, plan.rows[0]),
            noise=plan.noise,
        ),
        model=plan.model,
        workload=msgspec.structs.replace(plan.workload, load=find_load(row.deployment, row.sustained_per_s)),
        host=plan.host,
        runtime=plan.runtime,
        search=describe_search(plan, tried, n_tried=len(plan.screened)),
    )


def describe_search(plan: Plan | HostPlan, tried: Sequence[Config], *, n_tried: int) -> Search:
    """Return how the settings of a plan were found.

    Args:
        plan: The plan.
        tried: The configs of all deployments of the model.
        n_tried: Number of deployments that were measured.
    """
    return Search(
        started=plan.started,
        budget_s=plan.budget_s,
        seed=plan.seed,
        strategy="plan",
        n_candidates=n_tried,
        n_tried=n_tried,
        tried=Tried.of(*tried),
    )


def find_load(deployment: Deployment, sustained_per_s: float) -> Load:
    """Return the load that a deployment is for, given the rate that it can take.

    With one caller, a program whose calls overlap does not fit, of which `ortune apply` warns. With several, they need
    not overlap: with a rate, `ortune apply` does not expect it. A file may hold a rate that no load has.
    """
    if deployment.clients > 1:
        with contextlib.suppress(ValueError):
            return deployment.load_at(sustained_per_s)
    return deployment.load


def find_speedup(row: PlannedDeployment, default: PlannedDeployment) -> Speedup | None:
    """Return how many times as much a deployment serves as the default one; None if that is not known.

    With a target, this is the ratio of their capacities, if both were measured. Their errors are independent.
    """
    one, other = row.capacity, default.capacity
    if row is default or one is None or other is None:
        return describe_speedup(row.ratio)
    if not (is_measured(one) and is_measured(other)) or one.high is None or other.high is None:
        # A proof by the capacity alone says nothing about the throughput.
        is_faster = row.ratio is not None and compare(row.ratio, 1) == "above"
        return None if row.is_proven and not is_faster else describe_speedup(row.ratio)
    below = math.hypot(math.log(one.estimate / one.low), math.log(other.high / other.estimate))
    above = math.hypot(math.log(one.high / one.estimate), math.log(other.estimate / other.low))
    log_ratio = math.log(one.estimate / other.estimate)
    if max(below, above, abs(log_ratio)) > LARGEST_LOG_RATIO:
        return None
    return Speedup(
        estimate=math.exp(log_ratio),
        low=math.exp(log_ratio - below),
        high=math.exp(log_ratio + above),
        confidence=min(one.confidence, other.confidence),
        n_pairs=0,
        n_launches=0,
    )


def is_measured(capacity: Estimate) -> bool:
    """Return whether a capacity was measured, and found to be above 0."""
    high = math.inf if capacity.high is None else capacity.high
    return capacity.source == "measured" and 0 < capacity.low <= capacity.estimate <= high


def describe_speedup(ratio: Estimate | None) -> Speedup | None:
    """Return the throughput relative to that of the default deployment, as records have it."""
    if ratio is None or ratio.high is None:
        return None
    return Speedup(
        estimate=ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        confidence=ratio.confidence,
        n_pairs=0,
        n_launches=0,
    )
