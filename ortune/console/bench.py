"""What `ortune bench` shows: what is compared, how far it is, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ortune.compare.bench import Comparison, Entrant, Row
from ortune.compare.limits import capacity, is_overloaded
from ortune.console.search import add_subject, figure, figure_of_summary, make_grid, show_caveats
from ortune.console.text import duration, interval, ratio, size, three_digits
from ortune.knobs import describe
from ortune.tuning.request import PreparedSearch
from ortune.workload import FIGURES

NAME_WIDTH = 20


def show_bench(console: Console, setting: PreparedSearch, entrants: Sequence[Entrant]) -> None:
    """Print what is measured, and what is compared."""
    grid = make_grid()
    add_subject(grid, setting)
    grid.add_row("1", "default  [dim]what the others are compared with[/]")
    for number, entrant in enumerate(entrants, 2):
        settings = describe(entrant.config)
        grid.add_row(
            str(number), escape(entrant.name) + (f"  [dim]{escape(settings)}[/]" if settings != entrant.name else "")
        )
    console.print(grid)
    show_caveats(console, setting)


class BenchProgress:
    """Shows how many rounds are done; nothing is drawn while a block is measured."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._live = console.is_terminal and not quiet
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("[cyan]  rounds[/]"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        if not self._live:
            return
        if self._task is None:
            self._task = self._bar.add_task("rounds", total=total)
        self._bar.update(self._task, completed=done, total=total)
        self._bar.refresh()


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table, and what to know about it."""
    objective = comparison.objective
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("config", overflow="fold")
    shown = list(dict.fromkeys(["p50", "p99", objective]))
    names = [name for name in shown if FIGURES[name].percentile or name in {"mean", "load-time"}]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("calls/s", "CPU", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"{objective} ratio", no_wrap=True)
    for number, row in enumerate(comparison.rows, 1):
        table.add_row(str(number), escape(_short(row.name)), *_cells(row, names))
    console.print()
    console.print(table)
    console.print()
    for row in comparison.rows:
        if row.failure:
            console.print(Text(f"{row.name}: {row.failure.kind.replace('_', ' ')}: {row.failure.message}", "red"))
    first = next((row.speedup for row in comparison.rows if row.speedup), None)
    if first:
        console.print(
            Text(
                f"Ratios above 1 are better than the default in {FIGURES[objective].title}; 95 % intervals, "
                f"{first.pairs} paired blocks over {first.restarts} launches of each.",
                "dim",
            )
        )
    n_calls = min((row.summary.n_calls for row in comparison.rows if row.summary), default=0)
    if n_calls < comparison.calls_needed:
        console.print(
            Text(
                f"{objective} should rest on {comparison.calls_needed} calls of each, and there were {n_calls}: "
                "give it a longer --time, or take a lower percentile.",
                "yellow",
            )
        )
    if comparison.noise.regime == "contended":
        console.print(Text("Other programs used the CPUs most of the time: this holds for a busy host.", "yellow"))
    for row in comparison.rows:
        if row.summary and is_overloaded(row.summary):
            load = comparison.workload.load
            console.print(
                Text(
                    f"overload: {row.name} can serve {capacity(row.summary, load):.3g} of {load.rate_per_s:g} "
                    "requests a second; its latency grows with the time that is looked at.",
                    "red",
                )
            )


def _short(name: str) -> str:
    """Return a name that leaves room for the figures; the whole of it stands above the table."""
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    if row.failure or not row.summary:
        return [*[""] * (len(names) + 3), "[red]failed[/]"]
    summary, speedup = row.summary, row.speedup
    return [
        *(figure(name, figure_of_summary(summary, name)) for name in names),
        three_digits(summary.calls_per_s),
        duration(summary.cpu_ns_per_call),
        size(summary.peak_bytes or 0),
        escape(f"{ratio(speedup.estimate)} {interval(speedup.low, speedup.high)}") if speedup else "",
    ]
