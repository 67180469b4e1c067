"""What `ortune search` prints before it measures; the rest is in `progress`, `verdict` and `front`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ortune.console.header import add_goal, add_subject, show_header
from ortune.console.widgets import add_note, format_count, make_grid
from ortune.storage.node import name_node
from ortune.tuning.prepare import PreparedSearch


def show_search(console: Console, prepared: PreparedSearch) -> None:
    """Print what was detected, what was guessed, and what is searched for."""
    grid = make_grid()
    add_subject(grid, prepared)
    n_candidates = len(prepared.space.candidates) - 1
    names = ", ".join(dimension.knob.title for dimension in prepared.space.dimensions if len(dimension.choices) > 1)
    known = f"; {format_count(len(prepared.hints), 'hint')} from earlier searches" if prepared.hints else ""
    grid.add_row("space", add_note(format_count(n_candidates, "candidate"), f"{names}{known}"))
    add_goal(grid, prepared.goal, prepared.request.budget)
    if prepared.location:
        grid.add_row("shared", f"{name_node()} by {prepared.location.title}")
    if prepared.n_kept_blocks:
        grid.add_row("resumed", f"{format_count(prepared.n_kept_blocks, 'block')} measured before")
    show_header(console, grid, prepared, prepared.faults)


def show_resume(console: Console, command: str) -> None:
    """Print the command that goes on with an unfinished search."""
    console.print(Text("What was measured is kept. To go on:", "dim"))
    console.print(Text(f"  {command}"), soft_wrap=True)
