"""What `ortune gate` prints: what is compared, how a gate stands while it runs, and how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ortune.console.explain import explain_gates, show_explanations
from ortune.console.header import add_goal, add_inputs, add_load, show_guesses, show_variables
from ortune.console.spinner import LiveSteps
from ortune.console.tuned import add_program, show_tuned_warnings
from ortune.console.warnings import warn_of_rounds
from ortune.console.widgets import (
    LIMIT_STATES,
    WORST_P99,
    add_note,
    format_count,
    format_duration,
    format_figures,
    format_pairs,
    make_grid,
    make_table,
    show_warning,
)
from ortune.gates.reporters.messages import describe_allowed, describe_cost, describe_finding, describe_interval
from ortune.gates.results import N_COPIES, Finding, Gate, GateError, GateResult, InterimResult, Observe
from ortune.knobs import describe
from ortune.measure.comparison import describe_slow_launches, one_in_unseen
from ortune.measure.compute_figures import is_pooled, is_total
from ortune.measure.interval import Interval
from ortune.program.tuned import TunedProgram
from ortune.steps import end_steps
from ortune.workload import FIGURES, Feed, list_figures

STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "error": "red"}
"""Color of each decision."""

DRAWN_WIDTH = 21
"""Characters of a drawn interval. The number is odd, so that the middle is no difference."""

DRAWN_SPAN = 3.0
"""Largest slowdown that is drawn, as a multiple of the allowed one."""

WIDE_FOR_INTERVALS = 78
"""Minimum number of columns to draw intervals, and to show base and head as rows of the table."""


class GateDisplay:
    """Shows gates while they run and when they end. Nothing is drawn while a block is measured.

    Args:
        console: Where to print.
        quiet: Whether to print nothing.
        explain: Whether to print what the decisions rest on.
    """

    def __init__(self, console: Console, *, quiet: bool = False, explain: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._explain = explain
        self._live: Live | None = None
        self._interim: Group | None = None
        if console.is_terminal and not quiet:
            self._steps = LiveSteps(self._refresh, console.encoding)
            self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._steps.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._steps.close()
            self._live.stop()

    @contextlib.contextmanager
    def watch(self, gate: Gate, subject: Feed | TunedProgram, notes: Sequence[str] = ()) -> Iterator[Observe]:
        """Print what is compared, and yield a function that shows interim results.

        If the gate is interrupted, the last interim result stays on the screen.

        Args:
            gate: The gate.
            subject: The inputs of both models, or the program.
            notes: What a record says and has no effect.
        """
        if not self._quiet:
            self._console.print(make_header(gate, subject))
            if isinstance(subject, Feed):
                self.show_variables()
                show_guesses(self._console, subject)
            else:
                show_tuned_warnings(self._console, subject)
            for note in notes:
                show_warning(self._console, note)
            self._console.print()
        show, results = self.observer(gate.name), list[InterimResult]()

        def observe(interim: InterimResult) -> None:
            results.append(interim)
            show(interim)

        try:
            with self:
                yield observe
        except BaseException:
            if results and not self._quiet:
                self._console.print(self._draw(gate.name, results[-1]))
            raise

    def show_variables(self) -> None:
        """Say which environment variables do not count."""
        if not self._quiet:
            show_variables(self._console)

    def observer(self, name: str) -> Observe:
        """Return a function that shows the interim results of a gate."""

        def observe(interim: InterimResult) -> None:
            if self._live:
                end_steps()
                self._interim = self._draw(name, interim)
                self._refresh()
                self._steps.take_over()

        return observe

    def finish(self, result: GateResult | GateError) -> None:
        """Show how one of several gates ended."""
        if self._quiet:
            return
        findings = result.findings if isinstance(result, GateResult) else ()
        parts = [describe_finding(finding) for finding in findings]
        explaining = [finding for finding in findings if finding.decision == result.decision]
        # The intervals do not show why if no objective has this decision, or if one would fail a gate that runs alone.
        if not explaining or (result.decision == "inconclusive" and any(finding.is_above for finding in explaining)):
            parts.append(result.reason)
        self._print_decision(result, "; ".join(parts))
        for note in result.notes if isinstance(result, GateResult) else ():
            show_warning(self._console, f"{result.name}: {note}")

    def correct(self, result: GateResult | GateError) -> None:
        """Show that one of several gates is decided otherwise than alone, and why."""
        if not self._quiet:
            self._print_decision(result, result.reason)

    def _print_decision(self, result: GateResult | GateError, why: str) -> None:
        decision = Text(f"{result.decision:>12}", f"bold {STYLES[result.decision]}")
        text = f"{result.name}  {why}"
        if not self._console.is_terminal:
            # A line for each gate, for programs that search the output.
            self._console.print(Text.assemble(decision, f"  {text}"), soft_wrap=True)
        else:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(decision, text)
            self._console.print(grid)

    def show(self, result: GateResult) -> None:
        """Show how a single gate ended."""
        if self._quiet:
            return
        if result.base.summary:
            self._console.print(make_figures_table(result, transposed=self._console.width < WIDE_FOR_INTERVALS))
            self._console.print()
        drawn = self._console.width >= WIDE_FOR_INTERVALS
        for finding in result.findings:
            self._console.print(draw_finding(finding, drawn=drawn))
        for line in describe_measurement(result):
            self._console.print(Text(line, "dim"))
        for check in result.limits:
            self._console.print(Text.assemble(("limit ", "dim"), check.limit, "  ", LIMIT_STATES[check.kept]))
        for warning in warn_of_rounds(result.noise, result.workload):
            show_warning(self._console, warning)
        decision = (result.decision, f"bold {STYLES[result.decision]}")
        self._console.print(Text.assemble(decision, f"  {result.reason}"))
        if self._explain:
            show_explanations(self._console, explain_gates((result,)))

    def show_all(self, results: Sequence[GateResult | GateError]) -> None:
        """Show how many of several gates passed, failed, and so on."""
        if self._quiet:
            return
        counts = {name: sum(result.decision == name for result in results) for name in STYLES}
        parts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        correction = f"; Holm's correction for {len(results)} gates" if len(results) > 1 else ""
        self._console.print(Text(f"{format_count(len(results), 'gate')}: {parts}{correction}"))
        if self._explain:
            show_explanations(self._console, explain_gates(results))

    def _refresh(self) -> None:
        if self._live:
            self._live.refresh()

    def _render(self) -> Group:
        step = [Text(self._steps.text, "dim")] if self._steps.text else []
        return Group(*([self._interim] if self._interim else []), *step)

    def _draw(self, name: str, interim: InterimResult) -> Group:
        return draw_interim(name, interim, drawn=self._console.width >= WIDE_FOR_INTERVALS)


def make_header(gate: Gate, subject: Feed | TunedProgram) -> Table:
    """Return what is compared, and how: with which inputs and under which load, or what is measured of a program."""
    grid = make_grid()
    for name, side in (("base", gate.base), ("head", gate.head)):
        notes = [describe(side.config)] if not side.config.is_default else []
        notes += [side.python] if side.python else []
        grid.add_row(name, add_note(side.text, ", ".join(notes)))
    if isinstance(subject, Feed):
        add_inputs(grid, subject)
        add_load(grid, gate.goal, subject)
        if gate.goal.why:
            add_goal(grid, gate.goal)
    else:
        add_program(grid, subject)
    allowed = ", ".join(f"{name} {describe_allowed(1 + share)}" for name, share in gate.slowdowns.items())
    grid.add_row("allowed", add_note(allowed, f"budget {gate.budget_s:g} s"))
    return grid


def describe_measurement(result: GateResult) -> list[str]:
    """Return how much was measured, and whether the outputs match."""
    self_check = f", base vs. itself {describe_interval(result.self_check)}" if result.self_check else ""
    pairs = format_pairs(result.pairs, result.launches)
    lines = [f"{pairs} of each side, {result.wall_s:.0f} s{self_check}"]
    lines += describe_rare_calls(result)
    lines += describe_launches_of_head(result)
    if result.max_error is not None:
        difference = f"; the largest difference is {result.max_error:.2g} of the largest value"
        lines.append("outputs are identical" if result.max_error == 0 else f"outputs match{difference}")
    if not result.outputs_compared:
        lines.append("outputs were not compared")
    return lines


def describe_rare_calls(result: GateResult) -> list[str]:
    """Return which slow calls may be missing from what passes: those that are too rare to have occurred."""
    names = [
        finding.objective
        for finding in result.findings
        if (is_total(finding.objective) or is_pooled(finding.objective)) and finding.decision == "pass"
    ]
    if not names or result.head.summary is None:
        return []
    confidence = min(finding.slowdown.confidence for finding in result.findings)
    one_in = one_in_unseen(result.head.summary.n_calls, confidence)
    return [
        f"{', '.join(names)}: contains {format_count(result.head.summary.n_calls, 'call')} of head; a slow call that "
        f"occurs less than once in {one_in} may not be among them"
    ]


def describe_launches_of_head(result: GateResult) -> list[str]:
    """Return which slow launches of head there were, or may be, where it passes in p50, which is that of usual ones."""
    if result.decision != "pass" or all(finding.objective != "p50" for finding in result.findings):
        return []
    n_launches = N_COPIES * result.launches
    return [f"p50: {describe_slow_launches(result.n_slow_launches, n_launches)}"]


def draw_interim(name: str, interim: InterimResult, *, drawn: bool = True) -> Group:
    """Return how a gate stands.

    Args:
        name: Name of the gate.
        interim: Its interim result.
        drawn: Whether the console is wide enough to draw intervals.
    """
    lines: list[Text] = [draw_finding(finding, drawn=drawn) for finding in interim.findings]
    noise = "; other processes use the CPUs" if interim.contended else ""
    self_check = describe_interval(interim.self_check) if interim.self_check else "unknown"
    lines.append(
        Text(
            f"{name}: {format_pairs(interim.pairs, interim.launches)} of each side, "
            f"{interim.spent_s:.0f} of {interim.budget_s:.0f} s, "
            f"base vs. itself {self_check}{noise}",
            "dim",
        )
    )
    return Group(*lines)


def draw_finding(finding: Finding, *, drawn: bool = True) -> Text:
    """Return a finding as a line: the interval, drawn and in figures, and the allowed slowdown."""
    text = Text(f"{describe_cost(finding.objective):>{12 if drawn else 0}}  ")
    if drawn:
        text.append_text(draw_interval(finding.slowdown, finding.allowed))
        text.append("  ")
    text.append(describe_interval(finding.slowdown), STYLES[finding.decision])
    text.append(f"  allowed {describe_allowed(finding.allowed)}", "dim")
    return text


def draw_interval(interval: Interval, allowed: float) -> Text:
    """Return an interval on a line, with `|` at no difference and `¦` at the allowed slowdown."""
    span = DRAWN_SPAN * abs(allowed - 1)
    middle = DRAWN_WIDTH // 2

    def place(ratio: float) -> int:
        offset = (ratio - 1) / span if span else 0.0
        return min(max(round(middle + offset * middle), 0), DRAWN_WIDTH - 1)

    marks = [" "] * DRAWN_WIDTH
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


def make_figures_table(result: GateResult, *, transposed: bool = False) -> Table:
    """Return the figures of both sides.

    Args:
        result: The gate.
        transposed: Whether base and head are columns, for narrow consoles, instead of rows.
    """
    sides = (("base", result.base), ("head", result.head))
    columns = [("", *(name for name, side in sides if side.summary))]
    summaries = [side.summary for _, side in sides if side.summary]
    percentiles = [name for name in result.workload.figures if FIGURES[name].percentile is not None]
    for figure in list_figures("gate", percentiles):
        columns.append((figure.name_column, *format_figures(figure, summaries)))
        if figure.name == "p99" and all(summary.worst_p99_ns is not None for summary in summaries):
            columns.append((WORST_P99, *(format_duration(summary.worst_p99_ns or 0) for summary in summaries)))
    versions = [side.runtime.onnxruntime for _, side in sides if side.summary]
    if len(set(versions)) > 1:
        columns.append(("onnxruntime", *versions))
    head, *rows = columns if transposed else list(zip(*columns, strict=True))
    table = make_table()
    for position, title in enumerate(head):
        table.add_column(title, justify="right", overflow="fold", style="" if position else "cyan")
    for row in rows:
        table.add_row(*row)
    return table
