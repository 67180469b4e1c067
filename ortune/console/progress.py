"""Live progress of a search and of a comparison.

Nothing is drawn by a thread in the background: it would share the CPU with the block that is being measured.
"""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from ortune.console.widgets import format_interval, format_ratio
from ortune.tuning.outcome import Progress as SearchReport

PLAIN_INTERVAL_S = 5.0
"""Time between two lines where there is no terminal."""

LIVE_INTERVAL_S = 0.1
"""Time between two updates of a terminal."""

WIDE = 60
"""Minimum number of columns to show a bar and the remaining time."""

STAGE_WIDTH = len("confirmation")


class LiveBar:
    """Bars on a terminal, and nothing elsewhere. Used as a context manager.

    Args:
        console: Where to draw.
        columns: Columns of each bar.
        quiet: Whether to draw nothing.
    """

    def __init__(self, console: Console, *columns: ProgressColumn, quiet: bool) -> None:
        self.is_live = console.is_terminal and not quiet
        self.bar = Progress(*columns, console=console, auto_refresh=False, expand=True)

    def __enter__(self) -> Self:
        if self.is_live:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_live:
            self.finish()
            self.bar.stop()

    def finish(self) -> None:
        """Draw the last state."""
        self.bar.refresh()


class SearchProgress(LiveBar):
    """Shows the progress of a search: a bar for each stage on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        wide = console.width >= WIDE
        bar = BarColumn(bar_width=14, table_column=Column(no_wrap=True, min_width=14))
        left = TextColumn("{task.fields[left]}", "dim", markup=False, table_column=Column(no_wrap=True))
        super().__init__(
            console,
            TextColumn(f"{{task.description:>{STAGE_WIDTH}}}", "cyan", markup=False, table_column=Column(no_wrap=True)),
            *([bar] if wide else []),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True, min_width=5)),
            *([left] if wide else []),
            TextColumn(
                "{task.fields[best]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            quiet=quiet,
        )
        self._console = console
        self._quiet = quiet
        self._last_s = -math.inf
        self._stage = ""
        self._task: TaskID | None = None

    def __call__(self, report: SearchReport) -> None:
        """Show a report."""
        if self._quiet:
            return
        for note in report.notes:
            self._console.print(Text(note, "yellow"), soft_wrap=not self.is_live)
        now_s = time.monotonic()
        new_stage = report.stage != self._stage
        self._stage = report.stage
        done = report.done == report.total
        if self.is_live:
            self._draw(report, new_stage, refresh=new_stage or done or now_s - self._last_s > LIVE_INTERVAL_S)
        elif new_stage or done or now_s - self._last_s > PLAIN_INTERVAL_S:
            self._console.print(Text(format_report(report)), soft_wrap=True)
        else:
            return
        self._last_s = now_s

    def _draw(self, report: SearchReport, new_stage: bool, *, refresh: bool) -> None:
        if new_stage:
            self.finish()
            self._task = self.bar.add_task(report.stage, total=report.total, left="", best="")
        assert self._task is not None
        self.bar.update(
            self._task,
            completed=report.done,
            total=max(report.total, report.done),
            left=f"{report.left_s:4.0f} s left",
            best=format_best(report),
        )
        if refresh:
            self.bar.refresh()

    def finish(self) -> None:
        """Draw the last state of the current stage."""
        if self._task is not None:
            self.bar.update(self._task, total=self.bar.tasks[-1].completed, left="")
            self.bar.refresh()


def format_report(report: SearchReport) -> str:
    """Return where a search stands, as a line of a log."""
    label = "" if report.stage == "confirmation" else "best so far: "
    return f"{report.stage} {report.done}/{report.total}, {report.left_s:.0f} s left, {label}{format_best(report)}"


def format_best(report: SearchReport) -> str:
    """Return the best candidate so far with its speedup."""
    if report.best is None or report.speedup is None:
        return "no result yet"
    bounds = ""
    if math.isfinite(report.speedup.low) and math.isfinite(report.speedup.high):
        bounds = f" {format_interval(report.speedup.low, report.speedup.high)}"
    return f"{format_ratio(report.speedup.estimate)}{bounds}  {report.best.label}"


class ComparisonProgress(LiveBar):
    """Shows how many rounds of a comparison are done, on a terminal only."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        super().__init__(
            console,
            TextColumn("  rounds", "cyan"),
            BarColumn(bar_width=30 if console.width >= WIDE else 14),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("", table_column=Column(ratio=1)),
            quiet=quiet,
        )
        self._task: TaskID | None = None

    def __call__(self, n_done: int, n_total: int) -> None:
        """Show that so many rounds of so many are done."""
        if not self.is_live:
            return
        if self._task is None:
            self._task = self.bar.add_task("rounds", total=n_total)
        self.bar.update(self._task, completed=n_done, total=n_total)
        self.bar.refresh()
