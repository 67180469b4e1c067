"""`ortune report`: write a page about a record, a bench or a history of gates."""

from __future__ import annotations

import os
from pathlib import Path

from ortune.cli.command import Values, command
from ortune.errors import UsageError
from ortune.limited import STANDARD_STREAM
from ortune.options import make_request
from ortune.requests import ReportRequest
from ortune.secret_variables import STORAGE_VARIABLES

PAGE_SUFFIX = ".html"


@command(ReportRequest)
def report(values: Values) -> None:
    """Write a self-contained page about what a command measured: charts, tables, settings, how to reproduce it."""
    from ortune.console.report import show_history
    from ortune.console.warnings import warn_broken_line
    from ortune.console.widgets import make_console, show_note, show_warning
    from ortune.report.history import choose_entries
    from ortune.report.make import make_page
    from ortune.report.source import History, read_source
    from ortune.report.write import check_installed, check_output, write_charts, write_page

    request = make_request(ReportRequest, values, "cli")
    path = Path(request.output) if request.output is not None else choose_output(request.file)
    check_output(path)
    source = read_source(request.file)
    to_stdout = str(path) == STANDARD_STREAM
    console = make_console(stderr=to_stdout)
    if isinstance(source, History):
        for number in source.broken:
            show_warning(make_console(stderr=True), warn_broken_line(request.file, number))
        source = History(entries=choose_entries(source.entries, request.only))
        if not request.quiet:
            show_history(console, source.entries)
    elif request.only:
        raise UsageError("is for histories of gates.", f"Leave it out: {request.file} is none.", option="only")
    check_installed()
    page = make_page(source, Path(request.file).name if request.file != STANDARD_STREAM else "stdin")
    write_page(page, path)
    charts = write_charts(page, Path(request.png)) if request.png is not None else ()
    if not request.quiet:
        for chart in (*([] if to_stdout else [path]), *charts):
            show_note(console, "written", str(chart), "green", fold=False)
    if request.open:
        open_page(path)


def choose_output(file: str) -> Path:
    """Return the default output: next to the file, or `report.html` for stdin.

    Raises:
        UsageError: The page would replace the file.
    """
    if file == STANDARD_STREAM:
        return Path(f"report{PAGE_SUFFIX}")
    path = Path(file).with_suffix(PAGE_SUFFIX)
    if path == Path(file):
        raise UsageError(f"{file} would be replaced by its report.", "Name another file with {output=FILE}.")
    return path


def open_page(path: Path) -> None:
    """Open a page in the user's browser, if there is one."""
    import webbrowser

    for name in STORAGE_VARIABLES:
        os.environ.pop(name, None)  # the browser inherits the environment of this process
    if str(path) != STANDARD_STREAM:
        webbrowser.open(path.resolve().as_uri())
