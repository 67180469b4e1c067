"""Picks a way to share a host, and makes the deployments and records that `ortune apply` needs of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ortune.errors import RecordError
from ortune.knobs.config import DEFAULT, Config
from ortune.planning.colocation.result import HostPlan, ModelResult, PlannedSharing
from ortune.planning.pick import MODEL, PickedDeployment, find_load
from ortune.planning.result import LARGEST_FIGURE, Estimate
from ortune.record.schema import SCHEMA, Evidence, Record, Search, Tried, Verdict

LONGEST_NAME = 40


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
    names = name_servers([each.demand.name for each in plan.models])
    picked = []
    n_before = 0
    for number, (planned, found) in enumerate(zip(plan.models, row.models, strict=True)):
        picked.append(
            PickedDeployment(
                row=found,
                number=place + 1,
                is_recommended=place == plan.recommended,
                record=make_record(plan, place, number),
                sustained=find_sustained(row, found, planned.demand.rate_per_s),
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
        raise RecordError(f"{pick}: the plan has ways to share the host from {numbers}.", option="pick")
    return pick - 1


def find_sustained(row: PlannedSharing, found: ModelResult, rate_per_s: float) -> Estimate:
    """Return the rate that a model can take while the rates of the others grow as its own."""
    if not row.scale:
        per_s = found.served_per_s
        return Estimate(estimate=per_s, low=0.0, high=None, confidence=0.95, source="measured")
    high = None if row.scale.high is None else min(rate_per_s * row.scale.high, LARGEST_FIGURE)
    return msgspec.structs.replace(
        row.scale,
        estimate=min(rate_per_s * row.scale.estimate, LARGEST_FIGURE),
        low=min(rate_per_s * row.scale.low, LARGEST_FIGURE),
        high=high,
    )


def name_servers(names: Sequence[str]) -> list[str]:
    """Return a name for the server of each model, which is legal for services of all systems."""
    found: list[str] = []
    for name in names:
        own = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-LONGEST_NAME:].strip("-")
        own = own if own[:1].isalpha() else f"{MODEL}-{own}".rstrip("-")
        while own in found:
            own = f"{own[: LONGEST_NAME - 4]}-{len(found) + 1}"
        found.append(own)
    return found


def make_record(plan: HostPlan, place: int, number: int) -> Record:
    """Return the settings of a model in one of the ways to share the host, as a record."""
    row, planned = plan.rows[place], plan.models[number]
    found = row.models[number]
    base, config = find_base(plan, number), found.deployment.config
    tried = [each.models[number].deployment.config for each in plan.rows]
    tried += [each.deployments[number].config for each in plan.rejected]
    sustained = find_sustained(row, found, planned.demand.rate_per_s).estimate
    return Record(
        schema=SCHEMA,
        config=config,
        base=base,
        evidence=Evidence(
            verdict=find_verdict(plan, row, config, base),
            reason=plan.reason if place == plan.recommended else "the plan recommends another way to share the host",
            objective=found.figure,
            noise=plan.noise,
        ),
        model=planned.model,
        workload=msgspec.structs.replace(planned.workload, load=find_load(found.deployment, sustained)),
        host=plan.host,
        runtime=plan.runtime,
        search=Search(
            started=plan.started,
            budget_s=plan.budget_s,
            seed=plan.seed,
            strategy="plan",
            n_candidates=len(tried),
            n_tried=len(plan.rows),
            tried=Tried.of(*tried),
        ),
    )


def find_base(plan: HostPlan, number: int) -> Config:
    """Return the config of the default deployment of a model."""
    first = plan.rows[0]
    return first.models[number].deployment.config if first.kind == "default" else DEFAULT


def find_verdict(plan: HostPlan, row: PlannedSharing, config: Config, base: Config) -> Verdict:
    """Return what the plan has shown of a config: that with those of the others, targets are met that are missed
    without them.
    """
    if config == base:
        return "default_is_best"
    default = plan.rows[0]
    is_missed = default.kind == "default" and default.verdict == "broken"
    return "within_limits" if row.verdict == "kept" and is_missed else "inconclusive"
