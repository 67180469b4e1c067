"""What `ortune plan` prints for several models: the ways to share the host, and the recommended one."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.header import add_host, add_inputs, add_model, show_guesses, show_variables
from ortune.console.warnings import warn_noise
from ortune.console.widgets import (
    add_note,
    format_bytes,
    format_count,
    format_cpus,
    format_duration,
    format_number,
    format_rate,
    format_reason,
    make_grid,
    make_table,
    show_note,
    show_warning,
)
from ortune.errors import spell_as_flag
from ortune.host import HostClass
from ortune.planning.colocation.prepare import PreparedHostPlan
from ortune.planning.colocation.result import HostPlan, ModelResult, PlannedSharing
from ortune.planning.colocation.sharing import Demand
from ortune.planning.result import Estimate

VERDICTS = {"kept": ("met", "green"), "unclear": ("not proven", "yellow"), "broken": ("missed", "bold red")}


def show_host_plan_header(console: Console, prepared: PreparedHostPlan) -> None:
    """Print what is planned for."""
    grid = make_grid()
    for setup, demand in zip(prepared.setups, prepared.demands, strict=True):
        add_model(grid, setup.model)
        add_inputs(grid, setup.feed)
        grid.add_row("must serve", add_note(format_rate(demand.rate_per_s), describe_target(demand)))
    add_host(grid, HostClass.of(prepared.host))
    grid.add_row("space", add_note("ways to share the cores", f"about {prepared.options.budget_s:.0f} s"))
    console.print(grid)
    show_variables(console)
    for setup in prepared.setups:
        show_guesses(console, setup.feed)


def describe_target(demand: Demand) -> str:
    """Return the target of a model in words."""
    return demand.slo.text if demand.slo else "as fast as they arrive"


def show_host_plan(console: Console, plan: HostPlan, path: Path | None) -> None:
    """Print what was measured, the recommended way to share the host, and warnings.

    Args:
        console: Where to print.
        plan: The plan.
        path: Where it was written, or None.
    """
    console.print()
    if plan.measured_scale != 1:
        part = f"at {plan.measured_scale:.3g} of the requested rates, the part of one of several hosts"
        show_note(console, "measured", part)
    for number, row in enumerate(plan.rows, 1):
        console.print(Text(f"{number}  {row.title}", "bold" if number - 1 == plan.recommended else ""))
        console.print(make_models_table(plan, row))
        console.print()
    console.print(make_sharings_table(plan))
    console.print()
    show_host_choice(console, plan)
    for line in describe_sources(plan):
        console.print(Text(line, "dim"))
    for rejected in plan.rejected:
        titles = "; ".join(
            f"{model.demand.name}: {deployment.title}"
            for model, deployment in zip(plan.models, rejected.deployments, strict=True)
        )
        show_note(console, "not used", f"{rejected.title} ({titles}): {rejected.problem}", "bold red")
    for warning in find_warnings(plan):
        show_warning(console, warning)
    if path is not None and str(path) != "-":
        show_note(console, "written", str(path), "bold green", fold=False)
        if plan.choice:
            usage = f"ortune apply {path} MODEL {spell_as_flag('to', 'TARGET')}"
            console.print(Text(f"To write a model's server for gunicorn, Kubernetes and others: {usage}", "dim"))


def make_models_table(plan: HostPlan, row: PlannedSharing) -> Table:
    """Return a table with what was measured of each model under one sharing."""
    table = make_table()
    for heading in ("model", "deployment", "CPUs"):
        table.add_column(heading, overflow="fold")
    for heading in ("served", "latency", "target"):
        table.add_column(heading, justify="right", overflow="fold")
    for model, found in zip(plan.models, row.models, strict=True):
        target = Text(model.demand.slo.text if model.demand.slo else "none")
        target.append(" ")
        target.append(*VERDICTS[found.verdict])
        cpus = "; ".join(map(format_cpus, dict.fromkeys(found.deployment.cpus))) or "all"
        table.add_row(
            model.demand.name,
            found.deployment.title,
            cpus,
            format_rate(found.served_per_s),
            format_latency(found),
            target,
        )
    return table


def format_latency(found: ModelResult) -> str:
    """Return the figure of the latency with its interval."""
    if found.latency_ns is None:
        return "grows without bound"
    low, high = found.latency_ns.low, found.latency_ns.high
    bounds = f"[{format_duration(low)}, {format_duration(high) if high is not None else ''}]"
    return f"{found.figure} {format_duration(found.latency_ns.estimate)} {bounds}"


def make_sharings_table(plan: HostPlan) -> Table:
    """Return a table with what each sharing needs."""
    table = make_table()
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    has_price = plan.price_per_hour is not None
    for heading in ("CPUs used", "memory", "all rates x", "hosts", *(["per hour"] if has_price else [])):
        table.add_column(heading, justify="right", overflow="fold")
    for number, row in enumerate(plan.rows, 1):
        cells = [
            f"{format_number(row.cpu_cores)} of {plan.n_cores}",
            format_bytes(row.memory_bytes),
            format_scale(row.scale),
            "none is enough" if row.replicas is None else str(row.replicas),
        ]
        if has_price:
            cells.append("" if row.price_per_hour is None else format_number(row.price_per_hour))
        table.add_row(str(number), row.title, *cells)
    return table


def format_scale(scale: Estimate | None) -> str:
    """Return a scale, with its interval if it is measured. A tilde marks one that is predicted."""
    if scale is None:
        return ""
    if scale.estimate <= 0:
        return "none"
    if scale.source == "predicted":
        return f"~{format_number(scale.estimate)}"
    high = "" if scale.high is None else format_number(scale.high)
    return f"{format_number(scale.estimate)} [{format_number(scale.low)}, {high}]"


def show_host_choice(console: Console, plan: HostPlan) -> None:
    """Print the recommended way to share the host, or that there is none."""
    if plan.choice is None:
        show_note(console, "recommended", "none", "bold red")
        console.print(Text(format_reason(plan.reason)))
        needed = [row.replicas for row in plan.rows if row.replicas]
        if needed:
            hosts = format_count(min(needed), "host")
            headroom = f"{plan.headroom:.0%} headroom"
            console.print(Text(f"Predicted for the requested rates with {headroom}: {hosts} like this one."))
        return
    show_note(console, "recommended", plan.choice.title, "bold green")
    console.print(Text(format_reason(plan.reason)))
    if plan.choice.replicas:
        hosts = format_count(plan.choice.replicas, "host")
        console.print(Text(f"The requested rates with {plan.headroom:.0%} headroom need {hosts} like this one."))


def describe_sources(plan: HostPlan) -> list[str]:
    """Return what the figures mean, and which of them are measured."""
    return [
        "Latencies, CPUs and memory: measured with all models under load at the same time, in blocks that are "
        "interleaved with those of the other rows. Intervals of one row hold simultaneously.",
        "all rates x: the factor by which all requested rates can be multiplied together before a target is missed; "
        "~ marks predictions from the durations of calls of each model alone.",
    ]


def find_warnings(plan: HostPlan) -> list[str]:
    """Return what to know about the figures."""
    warnings = warn_noise(plan.noise, plan.models[0].workload)
    if plan.interrupted:
        warnings.append("The plan was interrupted before the factor by which the rates can be multiplied was measured.")
    elif plan.problem:
        problem = plan.problem.rstrip(".")
        warnings.append(
            f"The factor by which the rates can be multiplied could not be measured: {problem}. It is predicted."
        )
    elif plan.choice and plan.choice.scale and plan.choice.scale.source == "predicted":
        warnings.append(
            "The budget was too small to measure the factor by which the rates can be multiplied: it is predicted. "
            "Use a larger --budget."
        )
    return warnings
