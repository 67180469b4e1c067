"""Shows the comparison of the canaries of a rollout with the other processes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ortune.console.widgets import format_count, format_duration, make_table, show_warning
from ortune.fleet.compare import ComparisonRow, FleetComparison
from ortune.measure.interval import format_speedup

VERDICTS = {
    "better": ("The canary is better", "bold green"),
    "not_worse": ("The canary is not worse", "bold green"),
    "worse": ("The canary is worse", "bold red"),
    "inconclusive": ("Inconclusive", "bold yellow"),
}

ALL = "all models"


def show_fleet_comparison(console: Console, comparison: FleetComparison) -> None:
    """Print a comparison."""
    table = make_table()
    for name in ("model", "figure"):
        table.add_column(name, no_wrap=True)
    for name in ("canary", "control", "speedup"):
        table.add_column(name, justify="right", no_wrap=True)
    models = {(row.model, row.sha256) for row in comparison.rows}
    for row in (*(comparison.rows if len(models) > 1 else ()), *comparison.total):
        decides = not row.model and row.metric == comparison.metric
        name = row.model or (ALL if len(models) > 1 else comparison.rows[0].model)
        table.add_row(name, row.metric, *_describe_arms(row), _describe_speedup(row), style="bold" if decides else "")
    console.print(table)
    row = next(total for total in comparison.total if total.metric == comparison.metric)
    counts = " and ".join(
        f"{format_count(arm.n_processes, noun, many)} on {format_count(arm.n_hosts, 'host')}"
        for arm, noun, many in (
            (row.canary, "canary", "canaries"),
            (row.control, "other process", "other processes"),
        )
    )
    console.print(Text(f"{counts}; config {comparison.config}", "dim"))
    for text in comparison.warnings:
        show_warning(console, text)
    verdict, style = VERDICTS[comparison.verdict]
    console.print(Text.assemble((verdict, style), f" ({comparison.metric}): {comparison.reason}."))


def _describe_arms(row: ComparisonRow) -> list[str]:
    return ["-" if arm.value is None else format_duration(arm.value) for arm in (row.canary, row.control)]


def _describe_speedup(row: ComparisonRow) -> str:
    if row.speedup is None:
        return "-"
    return format_speedup(row.speedup)
