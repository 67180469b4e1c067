"""`ortune report`: show and plot a history of gates."""

from __future__ import annotations

from pathlib import Path

from ortune.cli.command import Values, command
from ortune.options import make_request
from ortune.requests import ReportRequest


@command(ReportRequest)
def report(values: Values) -> None:
    """Show the results of gates over time, and plot them."""
    from ortune.console.warnings import warn_broken_line
    from ortune.console.widgets import make_console, show_warning
    from ortune.gates.reporters.history import read_history
    from ortune.gates.reporters.plot import choose_entries, draw_history

    request = make_request(ReportRequest, values, "cli")
    found, broken = read_history(Path("/dev/stdin" if request.history == "-" else request.history))
    for number in broken:
        show_warning(make_console(stderr=True), warn_broken_line(request.history, number))
    entries = choose_entries(found, request.only)
    if request.output is not None:
        draw_history(entries, Path(request.output))
    if not request.quiet:
        from ortune.console.report import show_history

        show_history(make_console(), entries, request.output)
