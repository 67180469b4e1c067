"""`ortune search ... -- COMMAND`: find the best settings of a program."""

from __future__ import annotations

import sys
from pathlib import Path

from ortune.cli.command import Values, command
from ortune.cli.search import check_can_open, exit_for, make_resume_command, open_report, show_resume_if_interrupted
from ortune.options import make_request
from ortune.requests import ProgramSearchRequest, SearchOutputOptions
from ortune.sanitize import escape_json


@command(ProgramSearchRequest, SearchOutputOptions, has_steps=True)
def search_program(values: Values, console_options: SearchOutputOptions) -> None:
    """Find the best settings for the sessions of a program, confirm the gain, and write them to a record.

    The program stays unmodified. By default, complete runs are measured.
    """
    from ortune.console.explain import explain_search, show_explanations
    from ortune.console.program import show_program, show_program_verdict
    from ortune.console.progress import SearchProgress
    from ortune.console.search import show_resume
    from ortune.console.widgets import make_console
    from ortune.limited import STANDARD_STREAM
    from ortune.program.prepare import prepare_program
    from ortune.program.search import search_program as run
    from ortune.record.files import encode_record

    name = Path(values["command"][0]).name if values.get("command") else "program"
    path = Path(values.get("output") or f"{name}.ortune.json")
    request = make_request(ProgramSearchRequest, {**values, "output": path}, "cli")
    to_stdout = str(request.output) == STANDARD_STREAM
    if console_options.open:
        check_can_open(path)
    console = make_console(stderr=console_options.json or to_stdout)
    prepared = prepare_program(request)
    if not console_options.quiet:
        show_program(console, prepared)
    with (
        show_resume_if_interrupted(console, path, quiet=console_options.quiet),
        SearchProgress(console, quiet=console_options.quiet) as progress,
    ):
        result = run(prepared, progress)
    if not console_options.quiet:
        show_program_verdict(console, result, None if to_stdout or result.fault else path, request.command)
        if console_options.explain:
            show_explanations(console, explain_search(result.records[0]))
        if result.unfinished:
            show_resume(console, make_resume_command(sys.argv))
    if console_options.json and not to_stdout:
        sys.stdout.buffer.write(escape_json(encode_record(result.document).decode()).encode())
    if result.fault:
        raise result.fault
    if console_options.open:
        open_report(path)
    exit_for(result.outcome)
