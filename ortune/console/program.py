"""What `ortune search ... -- COMMAND` prints: the program, its sessions, the space, the verdict and its settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ortune.console.header import add_goal, add_host, show_variables
from ortune.console.sentence import summarize
from ortune.console.verdict import (
    find_warnings,
    format_evidence,
    format_headline,
    is_recommended,
    make_limits_table,
    needs_reason,
)
from ortune.console.warnings import warn_other_models
from ortune.console.widgets import (
    KEPT,
    add_note,
    format_count,
    format_figure,
    format_figures,
    format_reason,
    make_grid,
    make_table,
    show_warning,
)
from ortune.host import HostClass
from ortune.knobs import describe
from ortune.numbers import format_ratio
from ortune.program.prepare import PreparedProgram
from ortune.program.search import ProgramResult
from ortune.record.schema import Record
from ortune.workload import Figure, Workload, list_figures
from ortune.workload.program import ProgramRun

WHAT = {
    "run": "complete runs of the command",
    "call": "calls of {call}",
    "metric": "a number that the program prints: {metric}",
    "server": "requests to {url}",
}
"""What is measured, in words."""

TITLES_OF_RUNS = {"p50": "median time", "mean": "mean time"}
"""Titles of the latencies of complete runs."""


def show_program(console: Console, prepared: PreparedProgram) -> None:
    """Print the program, the sessions that it creates, and what is searched for."""
    grid = make_grid()
    grid.add_row("program", shlex.join(prepared.task.command))
    grid.add_row("measured", describe_measure(prepared.describe_run()))
    for model in prepared.models:
        facts = [format_count(model.n_sessions, "session"), f"{model.share:.0%} of the time of all sessions"]
        if not model.own.is_default:
            facts.append(f"the program sets {describe(model.own)}")
        grid.add_row("model", add_note(model.name, ", ".join(facts)))
    add_host(grid, HostClass.of(prepared.host))
    if not prepared.space.base.is_default:
        grid.add_row("fixed", add_note(describe(prepared.space.base), "in every candidate and in the baseline"))
    if prepared.server:
        grid.add_row("load", str(prepared.goal.load))
    if prepared.request.beside:
        grid.add_row("background", prepared.request.beside)
    names = ", ".join(dimension.knob.title for dimension in prepared.space.dimensions if len(dimension.choices) > 1)
    grid.add_row("space", add_note(format_count(len(prepared.space.candidates), "candidate"), names))
    add_goal(grid, prepared.goal, prepared.request.budget)
    if prepared.n_kept_blocks:
        grid.add_row("resumed", f"{format_count(prepared.n_kept_blocks, 'block')} measured before")
    console.print(grid)
    show_variables(console, of_program=True)
    for text in prepared.warnings:
        show_warning(console, text)
    console.print()


def describe_measure(run: ProgramRun) -> str:
    """Return what is measured of a program, in words."""
    return WHAT[run.kind].format(call=run.call, metric=run.metric, url=run.url)


def show_program_verdict(console: Console, result: ProgramResult, output: Path | None, command: Sequence[str]) -> None:
    """Print the verdict, the settings of each model, and what to do next.

    Args:
        console: Where to print.
        result: The result of the search.
        output: Where it was written, or None.
        command: The program and its arguments.
    """
    record = result.records[0]
    evidence = record.evidence
    console.print()
    console.print(format_headline(record))
    if needs_reason(record):
        console.print(Text(format_reason(evidence.reason), "dim"))
    if evidence.best_so_far:
        best = find_winner(result)
        text = f"Best so far, not proven: {format_ratio(evidence.best_so_far.speedup)}"
        console.print(Text(f"{text}  {best}" if best else text))
    if evidence.speedup:
        subject = "" if is_recommended(record) else f"{find_winner(result)}: "
        console.print(Text(f"{subject}{format_evidence(record, evidence.speedup)}"))
    console.print()
    if is_recommended(record):
        console.print(Text(f"change  {describe(result.outcome.config)}"))
        console.print()
    if evidence.baseline and evidence.winner:
        show_program_figures(console, record)
    warnings = [*find_warnings(record), *([warn_other_models(result.others)] if result.others else [])]
    for warning in warnings:
        show_warning(console, warning)
    if warnings:
        console.print()
    console.print(Text(summarize(record), "italic"))
    if output is not None:
        console.print()
        grid = make_grid()
        grid.add_row("written", str(output))
        if result.kept is not None:
            grid.add_row("kept", add_note(str(result.kept), KEPT))
        if is_recommended(record):
            words = ["ortune", "apply", str(output), "--", *command]
            grid.add_row("next", Text(shlex.join(words), "bold"))
        console.print(grid)


def find_winner(result: ProgramResult) -> str:
    """Return the description of the candidate that was compared with the program as it is; empty if there is none."""
    evidence = result.outcome.evidence
    config = evidence.winner.config if evidence.winner else evidence.best_so_far and evidence.best_so_far.config
    return describe(config) if config else ""


def find_title(figure: Figure, workload: Workload, unit: str) -> str:
    """Return the title of a figure's row in the table of a program; empty if it has none there.

    Args:
        figure: The figure.
        workload: What was measured of the program.
        unit: What is timed: a call, a request or a run.
    """
    if figure.unit == "number":  # it has a row already
        return ""
    if figure.unit == "per_s":
        return figure.name_row(unit) if unit == "request" else ""
    if not figure.is_latency:
        return figure.name_row(unit)
    if unit != "run":
        return figure.name
    # Of a few runs, a percentile beyond the median says nothing.
    return TITLES_OF_RUNS.get(figure.name, figure.name if figure.name in workload.figures else "")


def show_program_figures(console: Console, record: Record) -> None:
    """Print the figures of the program as it is, and of the candidate."""
    evidence, recommended = record.evidence, is_recommended(record)
    assert evidence.baseline and evidence.winner and record.workload.program
    sides = (evidence.baseline, evidence.winner)
    kind = record.workload.program.kind
    unit = {"call": "call", "server": "request"}.get(kind, "run")
    table = make_table()
    table.add_column("", min_width=16)
    table.add_column("as it is", justify="right", style="dim", min_width=9)
    table.add_column("tuned" if recommended else "candidate", justify="right", style="bold" if recommended else "")
    if all(side.metric is not None for side in sides):
        objective = record.workload.objectives[0]
        table.add_row(objective, *(format_figure(objective, side.metric or 0.0) for side in sides))
    for figure in list_figures("program", record.workload.figures):
        title = find_title(figure, record.workload, unit)
        if title:
            table.add_row(title, *format_figures(figure, sides))
    console.print(table)
    console.print()
    if evidence.limits:
        console.print(make_limits_table(evidence.baseline_limits, evidence.limits, recommended=recommended))
        console.print()
