"""Live progress of a search and of a comparison.

A thread shows that the command is alive while configs are loaded. Nothing is drawn while a block is measured: that
would share the CPU with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ortune.console.spinner import LiveSteps
from ortune.console.widgets import format_count
from ortune.measure.comparison import Stage
from ortune.numbers import format_interval, format_ratio, is_unbounded
from ortune.steps import end_steps
from ortune.times import read_clock_s
from ortune.tuning.outcome import Progress as SearchReport
from ortune.tuning.verdict import LARGE_GAIN, format_bound

PLAIN_INTERVAL_S = 5.0
"""Time between two lines where there is no terminal."""

LIVE_INTERVAL_S = 0.1
"""Time between two updates of a terminal."""

WIDE_FOR_BAR = 60
"""Minimum number of columns to show a bar and the remaining time."""

STAGE_WIDTH = len("confirmation")

STAGES: Mapping[Stage, str] = {
    "fitting": "a thread pool that fits the host and its load against the default, which does not",
    "screening": "many candidates, each measured briefly alongside the default",
    "racing": "the best ones again, in new processes, until one leads",
    "pruning": "the leader beside itself without each of its settings, to drop those that do nothing",
    "confirmation": "the leader against the default, in new processes; this counts as proof",
}
"""What each stage of a search does."""

WIDE_STAGES = 80
"""Minimum number of columns to show a stage of a search in one line. Below that, its speedup has its own."""

PROGRESS_BAR_WIDTH = 10
COUNT_WIDTH = len("10 of 10 rounds")
LEFT_WIDTH = len("at most 1000 s")
NARROW_INDENT = 2


class StepColumn(ProgressColumn):
    """The last column of bars: what is done while nothing is measured. It fills the width."""

    def __init__(self, bar: LiveBar) -> None:
        super().__init__(table_column=Column(ratio=1, no_wrap=True))
        self._bar = bar

    def render(self, task: Task) -> Text:
        """Return the current step, for the bar that was added last."""
        is_last = task.id == self._bar.bar.task_ids[-1]
        return Text(self._bar.steps.text if is_last else "", "dim")


class LiveBar:
    """Bars on a terminal, and nothing elsewhere. Used as a context manager.

    Args:
        console: Where to draw.
        columns: Columns of each bar.
        quiet: Whether to draw nothing.
    """

    def __init__(self, console: Console, *columns: ProgressColumn, quiet: bool) -> None:
        self.is_live = console.is_terminal and not quiet
        self.bar = Progress(*columns, StepColumn(self), console=console, auto_refresh=False, expand=True)
        self.steps = LiveSteps(self.bar.refresh, console.encoding)

    def __enter__(self) -> Self:
        if self.is_live:
            self.bar.start()
            self.steps.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.steps.close()
        if self.is_live:
            self.finish()
            self.bar.stop()

    def finish(self) -> None:
        """Draw the last state."""
        self.bar.refresh()


class SearchProgress:
    """Shows the progress of a search: its stages on a terminal, a line every few seconds elsewhere.

    Used as a context manager.

    Args:
        console: Where to draw.
        quiet: Whether to draw nothing.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.is_live = console.is_terminal and not quiet
        self._console = console
        self._quiet = quiet
        self._last_s = -math.inf
        self._reports: dict[Stage, SearchReport] = {}
        self._is_done = False
        self._live = Live(console=console, auto_refresh=False, get_renderable=self.render)
        self._steps = LiveSteps(self._live.refresh, console.encoding)

    def __enter__(self) -> Self:
        self._steps.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.close()
        if self._live.is_started:
            self.finish()
            self._live.refresh()
            self._live.stop()

    def finish(self) -> None:
        """Show from now on that the search has ended."""
        self._is_done = True

    def __call__(self, report: SearchReport) -> None:
        """Show a report."""
        end_steps()
        if self._quiet:
            return
        for note in report.notes:
            self._console.print(Text(note, "yellow"), soft_wrap=not self.is_live)
        now_s = read_clock_s()
        before = self._reports.get(report.stage)
        # Or the first with a result.
        is_new = before is None or (before.speedup is None and report.speedup is not None)
        is_complete = report.done == report.total
        self._reports[report.stage] = report
        interval_s = LIVE_INTERVAL_S if self.is_live else PLAIN_INTERVAL_S
        if not (is_new or is_complete or now_s - self._last_s > interval_s):
            return
        self._last_s = now_s
        if not self.is_live:
            if before is None:
                self._console.print(Text(f"{report.stage}: {STAGES[report.stage]}"), soft_wrap=True)
            self._console.print(Text(format_report(report)), soft_wrap=True)
        elif self._live.is_started:
            self._live.refresh()
        else:
            self._live.start(refresh=True)
            self._steps.take_over()

    def render(self) -> RenderableType:
        """Return all stages so far, and below them the best candidate and what the current stage does."""
        reports = [*self._reports.values()]
        current = None if self._is_done or not reports else reports[-1]
        stages = [draw_stage(report, self._console.width, is_current=report is current) for report in reports]
        indent = STAGE_WIDTH + 2 if self._console.width >= WIDE_STAGES else NARROW_INDENT
        if current and current.best and current.speedup:
            known = filter(None, (current.best.label, format_gain_left(current)))
            stages.append(Padding(Text("; ".join(known), "dim"), (0, 0, 0, indent)))
        if current:
            step = self._steps.text
            explained = Text(step, "dim") if step else Text(STAGES[current.stage], "dim italic")
            stages.append(Padding(explained, (0, 0, 0, indent)))
        return Group(*stages)


def draw_stage(report: SearchReport, width: int, *, is_current: bool) -> RenderableType:
    """Return a stage of a search: what is done, the time left, and the best speedup. None of them is ever cut.

    Args:
        report: The last report of the stage.
        width: Columns of the console.
        is_current: Whether the stage has not ended.
    """
    stage = Text(report.stage.rjust(STAGE_WIDTH), "cyan")
    count = format_steps(report)
    left = format_left(report) if is_current else ""
    speedup = format_best_speedup(report)
    if width < WIDE_STAGES:
        first = Text.assemble((report.stage, "cyan"), f"  {count}", (f"  {left}" if left else "", "dim"))
        return Group(first, Padding(Text(speedup), (0, 0, 0, NARROW_INDENT))) if speedup else first
    bar = ProgressBar(total=1.0, completed=report.share if is_current else 1.0, width=PROGRESS_BAR_WIDTH)
    row = Table.grid(padding=(0, 2, 0, 0))
    for least in (STAGE_WIDTH, PROGRESS_BAR_WIDTH, COUNT_WIDTH, LEFT_WIDTH, 0):
        row.add_column(no_wrap=True, min_width=least)
    row.add_row(stage, bar, count, Text(left, "dim"), speedup)
    return row


def format_steps(report: SearchReport) -> str:
    """Return how many steps of a stage are done, of how many."""
    if report.total is None:
        return format_count(report.done, "launch", "launches")
    unit = " rounds" if report.stage == "confirmation" else ""
    shared = f" ({report.n_shared} by others)" if report.stage == "screening" and report.n_shared else ""
    return f"{report.done} of {report.total}{unit}{shared}"


def format_left(report: SearchReport) -> str:
    """Return how long a search will take, or what it will take at most if it may still end early."""
    if report.left_s < 0.5:
        return "nearly done"
    return f"at most {report.left_s:.0f} s" if report.may_end_early else f"{report.left_s:.0f} s left"


def format_report(report: SearchReport) -> str:
    """Return where a search stands, as a line of a log."""
    label = "" if report.stage == "confirmation" else "best so far: "
    best = format_best_speedup(report)
    best = f"{best}  {report.best.label}" if best and report.best else "no result yet"
    if left := format_gain_left(report):
        best = f"{best}; {left}"
    nodes = f" on {format_count(report.n_nodes, 'node')}" if report.n_nodes > 1 else ""
    return f"{report.stage}{nodes} {format_steps(report)}, {format_left(report)}, {label}{best}"


def format_gain_left(report: SearchReport) -> str:
    """Return by how much any candidate is better than the best so far, at most; empty if little is known of that."""
    if report.gain_left is None or report.gain_left > LARGE_GAIN:
        return ""
    return f"at most {format_bound(report.gain_left)} left to gain"


def format_best_speedup(report: SearchReport) -> str:
    """Return the speedup of the best candidate so far with its interval; empty if there is none."""
    if report.best is None or report.speedup is None:
        return ""
    low, high = report.speedup.low, report.speedup.high
    bounds = "" if is_unbounded(low, high) else f" {format_interval(low, high)}"
    return f"{format_ratio(report.speedup.estimate)}{bounds}"


class ComparisonProgress(LiveBar):
    """Shows how many rounds of a comparison are done, on a terminal only."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        super().__init__(
            console,
            TextColumn("  rounds", "cyan"),
            BarColumn(bar_width=30 if console.width >= WIDE_FOR_BAR else 14),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            quiet=quiet,
        )
        self._task: TaskID | None = None

    def __call__(self, n_done: int, n_total: int) -> None:
        """Show that so many rounds of so many are done."""
        end_steps()
        if not self.is_live:
            return
        if self._task is None:
            self._task = self.bar.add_task("rounds", total=n_total)
        self.bar.update(self._task, completed=n_done, total=n_total)
        self.bar.refresh()
        self.steps.take_over()
