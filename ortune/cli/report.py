"""`ortune report`: what a history of gates shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortune.cli import options


def report(
    history: Annotated[
        str, typer.Argument(metavar="HISTORY", help="A file that ortune gate --history wrote.", show_default=False)
    ],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Draw it as .svg, .png or .pdf; needs ortune\\[report]."),
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="This gate alone; several times.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Show how the gates of a history went, and draw their slowdowns over time."""
    from ortune.console.report import show_history
    from ortune.console.warnings import warn_broken_line
    from ortune.console.widgets import make_console, show_warning
    from ortune.gate.reporters.history import read_history
    from ortune.gate.reporters.plot import choose_entries, draw_history

    found, broken = read_history(Path(history))
    for number in broken:
        show_warning(make_console(stderr=True), warn_broken_line(history, number))
    entries = choose_entries(found, name or [])
    if output is not None:
        draw_history(entries, Path(output))
    if not quiet:
        show_history(make_console(), entries, output)
