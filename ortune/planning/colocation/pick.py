"""Picks a way to share a host, and makes the deployments and records that `ortune apply` needs of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ortune.errors import RecordError
from ortune.knobs.config import DEFAULT, Config
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.judge import Verdict
from ortune.planning.colocation.result import HostPlan, ModelResult, PlannedSharing
from ortune.planning.pick import MODEL, PickedDeployment, describe_search, find_load
from ortune.planning.result import LARGEST_FIGURE, SMALLEST_FIGURE, Estimate
from ortune.record.schema import RECORD_SCHEMA, Evidence, Record

LONGEST_SERVER_NAME = 30
"""Characters of the name of a server, without its prefix and its number."""


def pick_models(plan: HostPlan, pick: int | str | None = None) -> tuple[PickedDeployment, ...]:
    """Return the deployment of each model in one of the ways to share the host.

    Args:
        plan: The plan.
        pick: Its number, counted from 1 as in the table of the plan; None for the recommended one.

    Raises:
        RecordError: The plan has no such row, or recommends none.
    """
    place = find_place(plan, pick)
    row = plan.rows[place]
    names = name_servers([model.demand.name for model in plan.models])
    picked = []
    n_before = 0
    for number, (planned, found) in enumerate(zip(plan.models, row.models, strict=True)):
        capacity = scale_rate(row.scale, planned.demand.rate_per_s)
        picked.append(
            PickedDeployment(
                row=found,
                number=place + 1,
                is_recommended=place == plan.recommended,
                record=make_record(plan, place, number, capacity),
                capacity=capacity,
                throughput=describe_served(found),
                replicas=row.replicas,
                slo=planned.demand.slo,
                rate_per_s=planned.demand.rate_per_s,
                headroom=plan.headroom,
                name=names[number],
                n_before=n_before,
                shared=row.title,
            )
        )
        n_before += found.deployment.processes
    return tuple(picked)


def find_place(plan: HostPlan, pick: int | str | None) -> int:
    """Return the place of a row; see `pick_models`."""
    numbers = f"1 to {len(plan.rows)}"
    if pick is None:
        if plan.recommended is None:
            raise RecordError(
                "The plan recommends no way to share the host: none meets all targets.",
                f"Choose one with {{pick=N}}, from {numbers}, or plan for lower rates.",
                option="pick",
            )
        return plan.recommended
    if isinstance(pick, str) or not 1 <= pick <= len(plan.rows):
        raise RecordError(f"{pick}: this plan has rows {numbers}.", "Pick one of them.", option="pick")
    return pick - 1


def scale_rate(scale: Estimate | None, rate_per_s: float) -> Estimate | None:
    """Return the rate that a model can take while the rates of the others grow as its own; None if it is not known.

    Args:
        scale: By how much all rates can be multiplied.
        rate_per_s: The requested rate of the model.
    """
    if scale is None:
        return None
    high = None if scale.high is None else limit_figure(rate_per_s * scale.high)
    return msgspec.structs.replace(
        scale,
        estimate=limit_figure(rate_per_s * scale.estimate),
        low=limit_figure(rate_per_s * scale.low),
        high=high,
    )


def limit_figure(value: float) -> float:
    """Return a number that a plan may hold: 0 for one that is smaller, and the largest one for one that is larger."""
    return 0.0 if value < SMALLEST_FIGURE else min(value, LARGEST_FIGURE)


def describe_served(found: ModelResult) -> Estimate:
    """Return the rate that was served."""
    return Estimate(estimate=found.served_per_s, low=0.0, high=None, confidence=DEFAULT_CONFIDENCE, source="measured")


def name_servers(names: Sequence[str]) -> list[str]:
    """Return a name for the server of each model.

    It is legal for services of all systems. With its prefix, it is the name of no other service, and no other word of
    YAML.
    """
    found: list[str] = []
    for name in names:
        own = re.sub(r"[^a-z0-9]+", "-", name.lower())[-LONGEST_SERVER_NAME:].strip("-")
        first = f"{MODEL}-{own}".rstrip("-")
        candidates = [first, *(f"{first}-{number}" for number in range(2, len(names) + 2))]
        found.append(next(candidate for candidate in candidates if candidate not in found))
    return found


def make_record(plan: HostPlan, place: int, number: int, capacity: Estimate | None) -> Record:
    """Return the settings of a model in one of the ways to share the host, as a record.

    Args:
        plan: The plan.
        place: Place of the row.
        number: Place of the model.
        capacity: The rate that the model can take.
    """
    row, planned = plan.rows[place], plan.models[number]
    found = row.models[number]
    base, config = find_base(plan, number), found.deployment.config
    tried = [tried_row.models[number].deployment.config for tried_row in plan.rows]
    tried += [rejected.deployments[number].config for rejected in plan.rejected]
    sustained_per_s = capacity.estimate if capacity else found.served_per_s
    return Record(
        schema=RECORD_SCHEMA,
        config=config,
        base=base,
        evidence=Evidence(
            verdict=find_verdict(plan, row, config, base),
            reason=plan.reason if place == plan.recommended else "the plan recommends another way to share the host",
            objective=found.figure,
            noise=plan.noise,
        ),
        model=planned.model,
        workload=msgspec.structs.replace(planned.workload, load=find_load(found.deployment, sustained_per_s)),
        host=plan.host,
        runtime=plan.runtime,
        search=describe_search(plan, tried, n_tried=len(plan.rows)),
    )


def find_base(plan: HostPlan, number: int) -> Config:
    """Return the config of the default deployment of a model."""
    first = plan.rows[0]
    return first.models[number].deployment.config if first.kind == "default" else DEFAULT


def find_verdict(plan: HostPlan, row: PlannedSharing, config: Config, base: Config) -> Verdict:
    """Return what the plan has shown of a config.

    That is, with those of the other models, that targets are met that are missed with the defaults.
    """
    if config == base:
        return "default_is_best"
    default = plan.rows[0]
    is_missed = default.kind == "default" and default.verdict == "broken"
    return "within_limits" if row.verdict == "kept" and is_missed else "inconclusive"
