"""What `ortune plan` prints: the deployments that were compared, and the recommended one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self, get_args

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from ortune.console.header import add_host, add_inputs, add_model, show_header
from ortune.console.plan_lengths import show_lengths
from ortune.console.progress import LIVE_INTERVAL_S, PLAIN_INTERVAL_S, STAGE_WIDTH, WIDE_FOR_BAR, LiveBar
from ortune.console.warnings import warn_noise
from ortune.console.widgets import (
    UNLIMITED_WIDTH,
    add_note,
    format_bytes,
    format_count,
    format_cpus,
    format_duration,
    format_number,
    format_rate,
    format_reason,
    make_grid,
    make_settings_table,
    make_table,
    show_note,
    show_warning,
)
from ortune.errors import spell_as_flag
from ortune.host import HostClass
from ortune.knobs import describe
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.limits import judge_limit
from ortune.numbers import format_interval, format_ratio
from ortune.planning.prepare import PreparedPlan
from ortune.planning.result import AtRate, Estimate, Plan, PlannedDeployment
from ortune.steps import end_steps
from ortune.times import read_clock_s
from ortune.workload import Limit, Objective

Part = Literal["capacity", "resources", "rate"]

PARTS: tuple[Part, ...] = get_args(Part)
"""What a table of deployments shows: how much each can take, what it needs for a call, and at the requested rate."""

TITLES = {"throughput": "most throughput", "memory": "least memory", "cpu": "least CPU time"}

DISPATCHES = {
    "random": "one queue for each process, and requests go to each with the same probability",
    "round-robin": "one queue for each process, and requests go to each in turn",
    "common": "one queue for all processes",
}


def show_plan_header(console: Console, prepared: PreparedPlan) -> None:
    """Print what is planned for."""
    setup, options = prepared.setup, prepared.options
    grid = make_grid()
    add_model(grid, setup.model)
    add_inputs(grid, setup.feed)
    add_host(grid, HostClass.of(setup.host))
    if setup.beside:
        grid.add_row("background", setup.beside)
    if not setup.base.is_default:
        grid.add_row("fixed", add_note(describe(setup.base), "in every deployment"))
    if options.lengths:
        lengths = options.lengths.lengths
        described = f"{len(lengths)} items of length {min(lengths)} to {max(lengths)}"
        grid.add_row("lengths", add_note(described, options.lengths.text))
    parts = [options.slo.text if options.slo else "the highest throughput"]
    if options.rate_per_s:
        parts.append(f"{format_rate(options.rate_per_s)} with {options.headroom:.0%} headroom")
    grid.add_row("target", ", ".join(parts))
    counts = prepared.space.first_counts
    about = f"about {options.time_s:.0f} s"
    if options.longest_extension_s:
        about += f", at most {options.time_s + options.longest_extension_s:.0f} s"
    grid.add_row("space", add_note(f"{format_processes(counts)} at first", about))
    show_header(console, grid, setup)


def format_processes(counts: Sequence[int]) -> str:
    """Return numbers of processes, such as `1, 2 and 4 processes`."""
    *first, last = (str(count) for count in counts)
    text = f"{', '.join(first)} and {last}" if first else last
    return f"{text} {'process' if counts == (1,) else 'processes'}"


def show_plan(console: Console, plan: Plan, path: Path | None) -> None:
    """Print the deployments, the recommended one, and warnings.

    Args:
        console: Where to print.
        plan: The plan.
        path: Where it was written, or None.
    """
    console.print()
    for table in fit_tables(console, plan):
        console.print(table)
        console.print()
    show_choice(console, plan)
    if plan.lengths:
        show_lengths(console, plan.lengths, plan.price_per_hour)
    show_sources(console, plan)
    for screened in plan.screened:
        if screened.problem:
            show_note(console, "not used", f"{screened.deployment.title}: {screened.problem}", "bold red")
    for warning in find_warnings(plan):
        show_warning(console, warning)
    if path is not None and str(path) != "-":
        show_note(console, "written", str(path), "bold green", fold=False)
        usage = f"ortune apply {path} {spell_as_flag('to', 'TARGET')}"
        if plan.meets_target:
            console.print(Text(f"To write it for gunicorn, Kubernetes and others: {usage}", "dim"))


def fit_tables(console: Console, plan: Plan) -> list[Table]:
    """Return one table if it fits, else one for each part."""
    table = make_plan_table(plan, PARTS)
    if fits(console, table):
        return [table]
    needs = make_plan_table(plan, ("resources", "rate"))
    tables = [needs] if fits(console, needs) else [make_plan_table(plan, (part,)) for part in ("resources", "rate")]
    return [
        make_names_table(plan),
        make_plan_table(plan, ("capacity",)),
        *(part_table for part_table in tables if part_table.columns[1:]),
    ]


def fits(console: Console, table: Table) -> bool:
    """Return whether no cell of a table would be wrapped."""
    return Measurement.get(console, console.options.update(width=UNLIMITED_WIDTH), table).maximum <= console.width


def make_names_table(plan: Plan) -> Table:
    """Return the names of the deployments by their numbers."""
    table = make_table()
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("deployment", overflow="fold")
    for number, row in enumerate(plan.rows, 1):
        table.add_row(str(number), name_row(plan, number - 1, row))
    return table


def make_plan_table(plan: Plan, parts: Sequence[Part]) -> Table:
    """Return a table with a row for each deployment, and their names if it has all parts.

    Args:
        plan: The plan.
        parts: What it shows.
    """
    both = len(parts) == len(PARTS)
    has_rate, has_price = plan.rate_per_s is not None, plan.price_per_hour is not None
    table = make_table()
    table.add_column("", justify="right", no_wrap=True)
    if both:
        table.add_column("deployment", overflow="fold")
    headings = []
    if "capacity" in parts:
        headings += [f"{name_unit(plan)}s/s", "ratio", *([f"within {plan.slo.text}"] if plan.slo else [])]
    headings += ["p50", "p99", "CPUs", "memory"] if "resources" in parts else []
    if "rate" in parts:
        headings += ["replicas", f"{name_latency(plan)} at rate"] if has_rate else []
        headings += ["per million"] if has_price else []
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for number, row in enumerate(plan.rows, 1):
        cells: list[str | Text] = [name_row(plan, number - 1, row)] if both else []
        if "capacity" in parts:
            cells += [
                format_number(row.throughput.estimate),
                format_estimate_ratio(row.ratio),
                *([format_capacity(row.capacity)] if plan.slo else []),
            ]
        if "resources" in parts:
            cells += [format_duration(row.p50_ns), format_duration(row.p99_ns)]
            cells += [format_number(row.cpu_cores), format_bytes(row.memory_bytes)]
        if "rate" in parts:
            if has_rate:
                cells.append("none is enough" if row.replicas is None else str(row.replicas))
                cells.append(format_latency(find_latency(row.at_rate)) if row.at_rate else "")
            if has_price:
                cells.append("" if row.price_of_million is None else format_number(row.price_of_million))
        table.add_row(str(number), *cells)
    return table


def name_unit(plan: Plan) -> str:
    """Return what figures are per: an item where calls have several, else a call."""
    return "item" if plan.workload.batches else "call"


def name_row(plan: Plan, place: int, row: PlannedDeployment) -> Text:
    """Return the name of a deployment, in bold for the recommended one."""
    name = Text(row.deployment.title, "bold" if place == plan.recommended else "")
    return Text.assemble(name, ("  (the default)", "dim")) if place == 0 else name


def format_estimate_ratio(ratio: Estimate | None) -> str:
    """Return a ratio to the default deployment with its interval."""
    if ratio is None:
        return ""
    bounds = "" if ratio.high is None else f" {format_interval(ratio.low, ratio.high)}"
    return f"{format_ratio(ratio.estimate)}{bounds}"


def format_capacity(capacity: Estimate | None) -> str:
    """Return a capacity with its interval. A tilde marks one that is predicted."""
    if capacity is None:
        return ""
    if capacity.estimate <= 0 and capacity.source == "measured":
        return f"< {format_rate(capacity.high)}" if capacity.high else "unknown"
    high = "" if capacity.high is None else format_number(capacity.high)
    mark = "~" if capacity.source == "predicted" else ""
    return f"{mark}{format_rate(capacity.estimate)} [{format_number(capacity.low)}, {high}]"


def is_undecided(row: PlannedDeployment, slo: Limit) -> bool:
    """Return whether a capacity was measured, but there was no time for rates that are low enough.

    If calls alone take longer than the target, no rate is.
    """
    capacity = row.capacity
    is_zero = capacity is not None and capacity.source == "measured" and capacity.estimate <= 0
    return is_zero and row.p50_ns < slo.bound


def name_latency(plan: Plan) -> Objective:
    """Return the figure of the latency at the requested rate: that of the target, or p99 without one."""
    has_target = any(row.at_rate and row.at_rate.target for row in plan.rows)
    return plan.slo.figure if plan.slo and has_target else "p99"


def find_latency(found: AtRate) -> Estimate:
    """Return the latency at a rate in ns; see `name_latency`."""
    return found.target or Estimate(
        estimate=found.p99_ns,
        low=found.p99_low_ns or 0.0,
        high=found.p99_high_ns,
        confidence=DEFAULT_CONFIDENCE,
        source=found.source,
    )


def format_latency(found: Estimate) -> str:
    """Return a latency with its interval. A tilde marks one that is predicted."""
    if found.source == "predicted":
        return f"~{format_duration(found.estimate)}"
    low, high = (format_duration(bound) if bound is not None else "" for bound in (found.low, found.high))
    return f"{format_duration(found.estimate)} [{low}, {high}]"


def show_choice(console: Console, plan: Plan) -> None:
    """Print the recommended deployment with its settings, and the best in each respect."""
    choice = plan.choice
    title, style = (choice.deployment.title, "bold green") if plan.meets_target else ("none", "bold red")
    show_note(console, "recommended", title, style)
    console.print(Text(format_reason(plan.reason)))
    if plan.rate_per_s and choice.replicas:
        rate_per_host = plan.rate_per_s / choice.replicas
        hosts = format_count(choice.replicas, "host")
        console.print(Text(f"{format_rate(plan.rate_per_s)} need {hosts}: {format_rate(rate_per_host)} each."))
    for text in compare_predictions(choice, name_latency(plan)):
        console.print(Text(text))
    if choice.worst_p99_ns is not None:
        console.print(Text(f"p99 of the slowest process: {format_duration(choice.worst_p99_ns)}."))
    if choice.deployment.cpus:
        cpus = "; ".join(map(format_cpus, choice.deployment.cpus))
        console.print(Text(f"CPUs of each process: {cpus}"))
    if not choice.deployment.config.is_default:
        console.print()
        console.print(make_settings_table(choice.deployment.config))
    console.print()
    grid = make_grid()
    for resource, title in TITLES.items():
        place = plan.best[resource]  # type: ignore[index]
        grid.add_row(title, f"{place + 1}  {plan.rows[place].deployment.title}")
    console.print(grid)
    console.print()


def show_sources(console: Console, plan: Plan) -> None:
    """Print what the figures mean, and which of them are measured."""
    lines = [
        f"{name_unit(plan)}s/s, p50, p99, CPUs and memory: measured while all callers call back to back, in launches "
        "that are interleaved with those of the default deployment."
    ]
    if plan.slo:
        lines.append(
            f"within {plan.slo.text}: the highest rate at which requests that arrive at random meet the target; ~ "
            f"marks predictions from the durations of calls, the others are measured ({DISPATCHES[plan.dispatch]})."
        )
    if plan.workload.batches:
        lines.append("p50, p99 and the target refer to calls. Rates, capacities and prices refer to items.")
    if any(row.deployment.batching for row in plan.rows):
        lines.append(
            "With batches of requests, the figures for calls back to back are those of full batches. The latency at a "
            "rate is that of single requests, which wait for others."
        )
    if plan.rate_per_s:
        lines.append(
            f"{name_latency(plan)} at rate: ~ marks predictions from the durations of calls, the others are measured "
            f"({DISPATCHES[plan.dispatch]})."
        )
    for line in lines:
        console.print(Text(line, "dim"))


def compare_predictions(row: PlannedDeployment, figure: Objective) -> list[str]:
    """Return what was measured of a deployment, and what had been predicted, in sentences.

    Args:
        row: The deployment.
        figure: The figure of the latency at the requested rate.
    """
    lines = []
    if row.capacity and row.capacity.estimate > 0 and row.predicted_capacity:
        predicted = row.predicted_capacity.estimate
        lines.append(f"Capacity: {format_rate(row.capacity.estimate)} measured, {format_rate(predicted)} predicted.")
    if row.at_rate and row.predicted_at_rate:
        measured = format_duration(find_latency(row.at_rate).estimate)
        expected = format_duration(find_latency(row.predicted_at_rate).estimate)
        rate = format_rate(row.at_rate.rate_per_s)
        lines.append(f"{figure} at {rate}: {measured} measured, {expected} predicted.")
    return lines


def find_warnings(plan: Plan) -> list[str]:
    """Return what to know about the figures."""
    warnings = warn_noise(plan.noise, plan.workload)
    if plan.lengths_problem:
        warnings.append(f"Ways to group items of different lengths were not compared: {plan.lengths_problem}")
    if plan.interrupted:
        warnings.append("The plan was interrupted before everything was measured.")
    elif plan.problem:
        problem = plan.problem.rstrip(".")
        warnings.append(
            f"The measurement with arriving requests failed: {problem}. Figures that were not measured are predicted."
        )
    elif plan.slo and not plan.meets_target and any(is_undecided(row, plan.slo) for row in plan.rows):
        warnings.append(
            "The budget was too small to find the highest rate at which the target is met. Use a larger --budget."
        )
    elif plan.slo and plan.choice.capacity and plan.choice.capacity.source == "predicted":
        warnings.append(
            "The budget was too small to measure the capacity: that of the recommended deployment is predicted. "
            "Use a larger --budget."
        )
    if plan.choice.predicted_at_rate and not plan.choice.at_rate:
        warnings.append("At the required rate, requests arrived faster than they were served. Use a larger --headroom.")
    elif plan.choice.replicas and not plan.choice.at_rate:
        warnings.append("At the required rate, callers would be busy almost all the time. Use a larger --headroom.")
    elif plan.slo and plan.choice.at_rate and exceeds(plan.slo, plan.choice.at_rate):
        warnings.append(f"At the required rate, {plan.slo.text} was not met. Use a larger --headroom.")
    return warnings


def exceeds(slo: Limit, found: AtRate) -> bool:
    """Return whether a latency that was measured at a rate is certainly above a target."""
    is_known = found.target is not None or slo.figure == "p99"
    return found.source == "measured" and is_known and judge_limit(slo, find_latency(found)) == "no"


class PlanProgress(LiveBar):
    """Shows the stage and how much of it is done: a bar on a terminal, a line for each stage elsewhere."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        super().__init__(
            console,
            TextColumn(f"{{task.description:>{STAGE_WIDTH}}}", "cyan", markup=False),
            *([BarColumn(bar_width=30)] if console.width >= WIDE_FOR_BAR else []),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            quiet=quiet,
        )
        self._console = console
        self._quiet = quiet
        self._stage = ""
        self._task: TaskID | None = None
        self._last_s = 0.0

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __call__(self, stage: str, n_done: int, n_total: int) -> None:
        """Show that so much of a stage is done."""
        end_steps()
        if self._quiet:
            return
        is_new = stage != self._stage
        self._stage = stage
        now_s = read_clock_s()
        interval_s = LIVE_INTERVAL_S if self.is_live else PLAIN_INTERVAL_S
        if not is_new and n_done < n_total and now_s - self._last_s < interval_s:
            return
        self._last_s = now_s
        if not self.is_live:
            self._console.print(Text(f"{stage} {n_done}/{n_total}"), soft_wrap=True)
            return
        if is_new or self._task is None:
            self._task = self.bar.add_task(stage, total=n_total)
        self.bar.update(self._task, completed=n_done, total=n_total)
        self.bar.refresh()
        self.steps.take_over()
