"""The Pareto front: its table and its plot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.few_calls import describe_few_calls
from ortune.console.widgets import LIMIT_STATES, find_figure, format_figure, make_table
from ortune.errors import spell_as_flag
from ortune.knobs import describe
from ortune.measure.interval import format_speedup
from ortune.record.schema import FrontPoint, Record
from ortune.workload import FIGURES

PLOT_WIDTH, PLOT_HEIGHT = 44, 9
"""Size of the plot, in characters, without its axes."""

PLOT_MARGIN = 3


def show_front(console: Console, record: Record) -> None:
    """Print the front as a table and, where there are two objectives, as a plot."""
    names = record.workload.objectives
    front = record.evidence.front
    console.print(make_front_table(front, names))
    console.print()
    if len(names) == 2 and len(front) > 1:
        points = [(*(find_figure(point.summary, name) for name in names), str(n)) for n, point in enumerate(front, 1)]
        width = min(PLOT_WIDTH, console.width - PLOT_MARGIN)
        lines = draw_plot(points, FIGURES[names[0]].title, FIGURES[names[1]].title, width)  # type: ignore[arg-type]
        for line in lines:
            console.print(Text(line, "cyan"))
        console.print()
    text = ""
    if any(point.speedups for point in front):
        text = "Ratios above 1 are better than the default. All intervals hold simultaneously with 95% confidence."
        if few := describe_few_calls(record):
            text += f" They rest on {few}."
    if len(front) > 1 and any(point.recommended for point in front):
        others = "another" if len(names) == 2 else "the others together"
        text += (
            f" → marks the knee of the front: beyond it, improving one objective by 1% costs more than 1% of {others}. "
            f"To choose another point: ortune apply FILE {spell_as_flag('pick', 'N')}"
        )
    if text:
        console.print(Text(text.strip(), "dim"))
        console.print()


def make_front_table(front: Sequence[FrontPoint], names: Sequence[str]) -> Table:
    """Return the points of a front with their figures, for each objective."""
    table = make_table()
    table.add_column("", justify="right")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("ratio", style="dim", overflow="fold")
    table.add_column("settings", overflow="fold")
    for number, point in enumerate(front, 1):
        cells = []
        for name in names:
            speedup = point.speedups.get(name)
            cells += [format_figure(name, find_figure(point.summary, name)), format_speedup(speedup) if speedup else ""]
        settings = Text(describe(point.summary.config))
        for check in point.limits:
            if check.kept != "yes":
                settings.append(f"  {check.limit} ").append(*LIMIT_STATES[check.kept])
        table.add_row(
            f"{'→' if point.recommended else ''}{number}",
            *cells,
            settings,
            style="bold" if point.recommended else "",
        )
    return table


def draw_plot(points: Sequence[tuple[float, float, str]], across: str, up: str, width: int = PLOT_WIDTH) -> list[str]:
    """Return points as lines of text, on logarithmic axes.

    Args:
        points: Each with its value across, its value up, and a label, of which the last character is drawn.
        across: Title of the horizontal axis.
        up: Title of the vertical axis.
        width: Length of the horizontal axis, in characters.
    """
    columns = _scale([math.log(x) for x, _, _ in points], width)
    rows = _scale([math.log(y) for _, y, _ in points], PLOT_HEIGHT)
    grid = [[" "] * width for _ in range(PLOT_HEIGHT)]
    for column, row, (_, _, label) in zip(columns, rows, points, strict=True):
        grid[PLOT_HEIGHT - 1 - row][column] = label[-1]
    lines = [f"  {up}", *("  │" + "".join(line).rstrip() for line in grid)]
    return [*lines, "  └" + "─" * width, " " * max(width + PLOT_MARGIN - len(across), 0) + across]


def _scale(values: Sequence[float], n: int) -> list[int]:
    low, high = min(values), max(values)
    return [round((value - low) / (high - low) * (n - 1)) if high > low else n // 2 for value in values]
