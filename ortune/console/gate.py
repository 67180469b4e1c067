"""What `ortune gate` and `ortune report` show: how a gate stands, how it ended, and how gates went over time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ortune.compare.interval import Interval
from ortune.console.search import KEPT, add_inputs, add_load, figure, figure_of_summary, make_grid, show_guesses
from ortune.console.text import duration, plural, size, three_digits
from ortune.gate.reporters.history import Entry
from ortune.gate.reporters.messages import (
    cost_of,
    decision_of,
    describe_allowed,
    describe_finding,
    describe_interval,
    reason_of,
)
from ortune.gate.results import Finding, GateError, GateRequest, GateResult, InterimResult, Observe
from ortune.knobs import describe
from ortune.workload import Feed

COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow", "error": "red"}

WIDTH = 21
"""Characters of the line on which an interval is drawn; odd, so that no difference has a place of its own."""

WIDE = 100
"""Columns from which on a history tells how head was named."""

SPAN = 3.0
"""What the line shows: from no difference to this multiple of what is allowed, on both sides."""


class GateScreen:
    """Shows gates while they run; nothing is drawn while a block is measured.

    Args:
        console: Where.
        quiet: Whether to show nothing.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._live: Live | None = None
        if console.is_terminal and not quiet:
            self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @contextlib.contextmanager
    def watch(self, request: GateRequest, feed: Feed) -> Iterator[Observe]:
        """Show what is compared and what is fed, and yield what shows how it stands."""
        if not self._quiet:
            grid = make_grid()
            for name, side in (("base", request.base), ("head", request.head)):
                notes = [describe(side.config)] if not side.config.is_default else []
                notes += [side.python] if side.python else []
                grid.add_row(name, f"{escape(side.text)}  [dim]{escape(', '.join(notes))}[/]")
            add_inputs(grid, feed)
            add_load(grid, request.goal.load, feed)
            allowed = ", ".join(f"{name} {100 * share:+.3g}%" for name, share in request.slowdowns.items())
            grid.add_row("allowed", f"{allowed}  [dim]at most {duration(request.max_time_s * 1e9)}[/]")
            self._console.print(grid)
            show_guesses(self._console, feed)
            self._console.print()
        show, looks = self.observer(request.name), list[InterimResult]()

        def observe(interim: InterimResult) -> None:
            looks.append(interim)
            show(interim)

        try:
            with self:
                yield observe
        except BaseException:
            # Whatever ended it, an interrupt perhaps: what was measured before is told.
            if looks and not self._quiet:
                self._console.print(draw_look(request.name, looks[-1]))
            raise

    def observer(self, name: str) -> Observe:
        """Return what shows how a gate stands."""

        def observe(interim: InterimResult) -> None:
            if self._live:
                self._live.update(draw_look(name, interim), refresh=True)

        return observe

    def finish(self, result: GateResult | GateError) -> None:
        """Show how one of several gates ended."""
        if self._quiet:
            return
        decision = decision_of(result)
        text = Text.assemble((f"{decision:>12}", f"bold {COLOURS[decision]}"), f"  {result.name}  ")
        findings = result.findings if isinstance(result, GateResult) else ()
        told = "; ".join(map(describe_finding, findings))
        # Where the intervals do not say by themselves why it ended like this, the reason does.
        if decision not in {finding.decision for finding in findings}:
            told = "; ".join(filter(None, (told, reason_of(result))))
        text.append(told)
        self._console.print(text, soft_wrap=True)

    def show(self, result: GateResult) -> None:
        """Show how a single gate ended."""
        if self._quiet:
            return
        if result.base.summary:
            self._console.print(figures_table(result))
            self._console.print()
        for finding in result.findings:
            self._console.print(draw_finding(finding))
        itself = f"; base against itself {describe_interval(result.self_check)}" if result.self_check else ""
        self._console.print(
            Text(
                f"{plural(result.pairs, 'pair')} of blocks, {plural(result.launches, 'launch', 'launches')} of each, "
                f"{result.wall_s:.0f} s{itself}",
                "dim",
            )
        )
        if result.max_error is not None:
            self._console.print(Text(f"outputs agree: they differ by {result.max_error:.2g} at most", "dim"))
        for check in result.limits:
            self._console.print(Text.assemble(("limit ", "dim"), check.limit, "  ", Text.from_markup(KEPT[check.kept])))
        self._console.print(Text.assemble((result.decision, f"bold {COLOURS[result.decision]}"), f"  {result.reason}"))

    def show_all(self, results: Sequence[GateResult | GateError]) -> None:
        """Show what several gates come to, where that is not what they came to by themselves."""
        if self._quiet:
            return
        counts = {name: sum(decision_of(each) == name for each in results) for name in COLOURS}
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        self._console.print(Text(f"{plural(len(results), 'gate')}: {told} (Holm's correction for {len(results)})"))


def draw_look(name: str, interim: InterimResult) -> Group:
    """Return how a gate stands: the interval closing in on what is allowed."""
    lines: list[Text | Table] = [draw_finding(finding) for finding in interim.findings]
    noise = "  others use the CPUs" if interim.contended else ""
    lines.append(
        Text(
            f"{name}: {plural(interim.pairs, 'pair')}, {plural(interim.launches, 'launch', 'launches')}, "
            f"{interim.spent_s:.0f} of at most {interim.max_time_s:.0f} s; base against itself "
            f"{describe_interval(interim.self_check)}{noise}",
            "dim",
        )
    )
    return Group(*lines)


def draw_finding(finding: Finding) -> Text:
    """Return a finding as a line: the interval, no difference, and what is allowed."""
    text = Text(f"{cost_of(finding.objective):>12}  ")
    text.append_text(draw_interval(finding.slowdown, finding.allowed))
    text.append(f"  {describe_interval(finding.slowdown)}", COLOURS[finding.decision])
    text.append(f"  allowed {describe_allowed(finding.allowed)}", "dim")
    return text


def draw_interval(interval: Interval, allowed: float) -> Text:
    """Return an interval on a line, with `|` at no difference and `¦` at what is allowed."""
    span = SPAN * abs(allowed - 1)
    middle = WIDTH // 2

    def place(ratio: float) -> int:
        offset = (ratio - 1) / span if span else 0.0
        return min(max(round(middle + offset * middle), 0), WIDTH - 1)

    marks = [" "] * WIDTH
    low, high = place(interval.low), place(interval.high)
    for position in range(low, high + 1):
        marks[position] = "━"
    marks[place(interval.estimate)] = "●"
    text = Text()
    limit = place(allowed)
    for position, mark in enumerate(marks):
        if mark != " ":
            text.append(mark, "yellow" if position == limit else "cyan")
        elif position == limit:
            text.append("¦", "yellow")
        else:
            text.append("|" if position == middle else "·", "dim")
    return text


def figures_table(result: GateResult) -> Table:
    """Return the figures of both sides."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True, style="cyan", justify="right")
    for name in ("p50", "p99", "calls/s", "CPU", "memory", "creation"):
        table.add_column(name, justify="right", no_wrap=True)
    versions = {side.runtime.onnxruntime for side in (result.base, result.head)}
    if len(versions) > 1:
        table.add_column("onnxruntime", no_wrap=True)
    for name, side in (("base", result.base), ("head", result.head)):
        summary = side.summary
        if summary is None:
            continue
        table.add_row(
            name,
            *(figure(each, figure_of_summary(summary, each)) for each in ("p50", "p99")),
            three_digits(summary.calls_per_s),
            duration(summary.cpu_ns_per_call),
            size(summary.peak_bytes or 0),
            duration(summary.load_ns),
            *([side.runtime.onnxruntime] if len(versions) > 1 else []),
        )
    return table


def show_history(console: Console, entries: Sequence[Entry], output: str | None) -> None:
    """Print how the gates of a history went."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = ["time", "gate", "decision", "head against base"]
    # Where there is room for it.
    columns += ["head"] if console.width >= WIDE else []
    for column in columns:
        table.add_column(column, no_wrap=column in {"time", "decision"}, overflow="fold")
    for entry in entries:
        slowdowns = "\n".join(f"{cost_of(name)} {describe_interval(each)}" for name, each in entry.slowdowns.items())
        table.add_row(
            entry.time[:16].replace("T", " "),
            escape(entry.name),
            f"[{COLOURS.get(entry.decision, 'red')}]{escape(entry.decision)}[/]",
            escape(slowdowns or entry.reason),
            *([escape(entry.head)] if console.width >= WIDE else []),
        )
    console.print(table)
    if output is not None:
        console.print(Text.assemble(("drawn  ", "green"), output))
