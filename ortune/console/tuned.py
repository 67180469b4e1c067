"""What is printed before a program is compared with itself under the settings of its records."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.table import Table

from ortune.apply.fit import find_load_mismatch
from ortune.console.header import add_host, show_variables
from ortune.console.program import describe_measure
from ortune.console.warnings import warn_load_mismatch
from ortune.console.widgets import add_note, make_grid, show_warning
from ortune.host import HostClass
from ortune.knobs import describe
from ortune.measure.interval import format_speedup
from ortune.program.tuned import TunedProgram


def show_tuned(console: Console, tuned: TunedProgram) -> None:
    """Print the program, its settings, what is measured, and what the records claim."""
    grid = make_grid()
    add_program(grid, tuned)
    grid.add_row("tuned", describe(tuned.config))
    record = tuned.record
    claim = format_speedup(record.gain) if record.gain else record.evidence.verdict.replace("_", " ")
    grid.add_row("recorded", f"{claim}  {record.objectives[0]}, {record.search.started[:10]}")
    console.print(grid)
    show_tuned_warnings(console, tuned)
    console.print()


def add_program(grid: Table, tuned: TunedProgram) -> None:
    """Add the program, its models, and what is measured."""
    program = tuned.program
    grid.add_row("program", shlex.join(program.task.command))
    grid.add_row("measured", describe_measure(program.describe_run()))
    for model in program.models:
        facts = f"{model.share:.0%} of the time of all sessions"
        if not model.own.is_default:
            facts += f", the program sets {describe(model.own)}"
        grid.add_row("model", add_note(model.name, facts))
    add_host(grid, HostClass.of(program.host))
    if program.server:
        grid.add_row("load", str(program.goal.load))
    if program.request.beside:
        grid.add_row("background", program.request.beside)


def show_tuned_warnings(console: Console, tuned: TunedProgram) -> None:
    """Print how the comparison differs from that of the records, and from one in another environment."""
    show_variables(console, of_program=True)
    found = find_load_mismatch(tuned.record, tuned.program.request.beside)
    for warning in [*tuned.notes, *(warn_load_mismatch(mismatch.recorded, mismatch.here) for mismatch in found)]:
        show_warning(console, warning)
