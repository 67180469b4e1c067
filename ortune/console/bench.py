"""What `ortune bench` prints: the configs, and how they compare."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ortune.console.header import add_goal, add_subject, show_header
from ortune.console.warnings import (
    warn_differing_ratio,
    warn_few_calls,
    warn_late_calls,
    warn_noise,
    warn_opposed_figures,
    warn_overload,
    warn_sessions,
)
from ortune.console.widgets import (
    UNLIMITED_WIDTH,
    WORST_P99,
    add_note,
    find_figure,
    format_duration,
    format_figure,
    format_number,
    format_pairs,
    make_grid,
    make_table,
    show_note,
    show_warning,
)
from ortune.knobs import describe
from ortune.measure.bench import BenchResult
from ortune.measure.comparison import Row, Summary
from ortune.measure.interval import DEFAULT_CONFIDENCE, format_speedup
from ortune.measure.limits import capacity_per_s, is_overloaded
from ortune.measure.open import ComparisonSetup
from ortune.measure.paired_run import Side
from ortune.worker.session_log import collect_warnings
from ortune.workload import FIGURES, Figure, Goal, list_figures
from ortune.workload.goal import AT_TWO_SPEEDS


def show_bench(console: Console, setup: ComparisonSetup, sides: Sequence[Side]) -> None:
    """Print what is measured, and the configs that are compared."""
    grid = make_grid()
    add_subject(grid, setup)
    add_goal(grid, setup.goal)
    grid.add_row("1", add_note("default", "the baseline"))
    for number, side in enumerate(sides, 2):
        # What was written as settings needs no description.
        grid.add_row(str(number), add_note(side.name, "" if "=" in side.name else describe(side.config)))
    show_header(console, grid, setup)


def show_comparison(console: Console, comparison: BenchResult) -> None:
    """Print the figures of all configs, and warnings."""
    objective = comparison.objective
    console.print()
    show_tables(console, comparison)
    for row in comparison.rows:
        if row.failure:
            failure = f"{row.failure.title}: {row.failure.message}"
            show_note(console, "failed", f"{row.name}: {failure}", "bold red")
    for name, same_as in comparison.twins.items():
        show_note(console, "same", f"{name} is the same program as {same_as}: both have the same optimized graph.")
    speedups = [row.speedup for row in comparison.rows if row.speedup]
    if speedups:
        first = speedups[0]
        together = " that hold simultaneously" if len(speedups) > 1 else ""
        has_slow = any(speedup.n_slow_launches or speedup.n_slow_baselines for speedup in speedups)
        unseen = "" if has_slow or not FIGURES[objective].is_speed else f"; {first.slow_launches}"
        console.print(
            Text(
                f"Ratios of {FIGURES[objective].title}: above 1 is better than the {comparison.rows[0].name}. "
                f"{DEFAULT_CONFIDENCE:.0%} confidence intervals{together}, from "
                f"{format_pairs(first.n_pairs, first.n_launches)} of each config{unseen}.",
                "dim",
            )
        )
    for warning in find_warnings(comparison):
        show_warning(console, warning)


def show_changed_objective(console: Console, goal: Goal, comparison: BenchResult) -> None:
    """Print that the objective is not the one that was announced, as calls run at two speeds."""
    if comparison.objective != goal.objective:
        show_note(console, "goal", f"{FIGURES[comparison.objective].title}: {AT_TWO_SPEEDS}")


def show_tables(console: Console, comparison: BenchResult) -> None:
    """Print the figures of all configs: in one table if it fits, else with the ratios in a table of their own."""
    table = make_comparison_table(comparison, with_figures=True, with_ratios=True)
    tables = [table]
    if Measurement.get(console, console.options.update(width=UNLIMITED_WIDTH), table).maximum > console.width:
        ratios = make_comparison_table(comparison, with_figures=False, with_ratios=True)
        tables = [ratios, make_comparison_table(comparison, with_figures=True, with_ratios=False)]
    for table in tables:
        console.print(table)
        console.print()


def make_comparison_table(comparison: BenchResult, *, with_figures: bool, with_ratios: bool) -> Table:
    """Return a table with a row for each config.

    Args:
        comparison: The comparison.
        with_figures: Whether to show latency, throughput and so on.
        with_ratios: Whether to show names and ratios.
    """
    objective = comparison.objective
    columns = list_columns(comparison)
    table = make_table()
    table.add_column("", justify="right", no_wrap=True)
    if with_ratios:
        table.add_column("config", overflow="fold")
    if with_figures:
        for heading in columns:
            table.add_column(heading, justify="right", overflow="fold")
    if with_ratios:
        table.add_column(f"{objective} ratio", no_wrap=True)
    for number, row in enumerate(comparison.rows, 1):
        cells: list[str | Text] = [row.name] if with_ratios else []
        if with_figures:
            cells += [show(row.summary) if row.summary else "" for show in columns.values()]
        cells += [_format_ratio(row)] if with_ratios else []
        table.add_row(str(number), *cells)
    return table


def find_warnings(comparison: BenchResult) -> list[str]:
    """Return what to know about the figures."""
    warnings = []
    n_calls = min((row.summary.n_calls for row in comparison.rows if row.summary), default=0)
    if n_calls < comparison.calls_needed:
        warnings.append(warn_few_calls(comparison.objective, comparison.calls_needed, n_calls))
    effect = "" if comparison.workload.counts_all_calls else "The ratios leave them out."
    warnings += warn_noise(comparison.noise, comparison.workload, effect=effect)
    load = comparison.workload.load
    for row in comparison.rows:
        if row.summary and is_overloaded(row.summary):
            assert load.rate_per_s
            warnings.append(warn_overload(row.name, capacity_per_s(row.summary, load), load.rate_per_s))
    for row in comparison.rows[1:]:
        warnings += [f"{row.name}: {text}" for text in find_row_warnings(comparison, row)]
    logs = [row.session.log for row in comparison.rows if row.session]
    return [*warnings, *warn_sessions(collect_warnings(logs), len(logs))]


def find_row_warnings(comparison: BenchResult, row: Row) -> list[str]:
    """Return what to know about the figures of one config beside those of the baseline."""
    baseline, speeds = comparison.rows[0], comparison.noise.two_speeds
    found = []
    if baseline.summary and row.summary:
        found += warn_opposed_figures(baseline.summary, row.summary, comparison.objective)
        if row.late_calls:
            found.append(warn_late_calls(row.late_calls))
        elif row.speedup:
            own = speeds if speeds and speeds.side in {baseline.name, row.name} else None
            found += warn_differing_ratio(baseline.summary, row.summary, comparison.objective, row.speedup, own)
    if row.few_calls:
        found.append(f"{row.few_calls}.")
    has_slow = row.speedup and (row.speedup.n_slow_launches or row.speedup.n_slow_baselines)
    if row.speedup and has_slow and FIGURES[comparison.objective].is_speed:
        found.append(f"{row.speedup.slow_launches}.")
    return found


def list_columns(comparison: BenchResult) -> dict[str, Callable[[Summary], str]]:
    """Return what shows the figures of a config, by the heading of its column."""
    figures = list_figures("bench", [comparison.objective])
    columns: dict[str, Callable[[Summary], str]] = {}
    for figure in figures:
        if figure.percentile is not None or "bench" not in figure.tables:
            columns[figure.name] = functools.partial(_format_figure, figure)
    if comparison.workload.load.processes > 1:
        columns[WORST_P99] = _format_worst
    rate = "items/s" if comparison.workload.batches else "calls/s"
    for figure in figures:
        if figure.name not in columns:
            heading = rate if figure.unit == "per_s" else figure.name_column
            columns[heading] = functools.partial(_format_figure, figure)
    return columns


def _format_figure(figure: Figure, summary: Summary) -> str:
    value = find_figure(summary, figure.name)
    # The heading says what a rate is of.
    return format_number(value) if figure.unit == "per_s" else format_figure(figure.name, value)


def _format_worst(summary: Summary) -> str:
    return "" if summary.worst_p99_ns is None else format_duration(summary.worst_p99_ns)


def _format_ratio(row: Row) -> str | Text:
    if row.failure:
        return Text("failed", "red")
    return format_speedup(row.speedup) if row.speedup else ""
