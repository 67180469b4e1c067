"""`ortune search`: find the best settings, confirm them, write them to a record."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ortune.cli.after_dashes import SEPARATOR
from ortune.cli.command import Values, command
from ortune.cli.explain_model import check_model
from ortune.errors import ExitCode, UsageError
from ortune.interrupts import is_interrupt
from ortune.limited import explain_no_access
from ortune.options import make_request
from ortune.requests import SearchOutputOptions, SearchRequest
from ortune.sanitize import escape_json
from ortune.times import read_clock_s

if TYPE_CHECKING:
    from rich.console import Console

    from ortune.tuning.outcome import Outcome


@command(SearchRequest, SearchOutputOptions, has_steps=True)
def search(values: Values, console_options: SearchOutputOptions) -> None:
    """Find the best settings for MODEL, its load and this host, confirm the gain, and write them to a record."""
    begun_s = read_clock_s()
    import msgspec

    from ortune.console.explain import explain_search, show_explanations
    from ortune.console.progress import SearchProgress
    from ortune.console.search import show_resume, show_search
    from ortune.console.verdict import show_verdict
    from ortune.console.warnings import warn_idle_providers, warn_sessions, warn_tf32_differences
    from ortune.console.widgets import make_console
    from ortune.limited import STANDARD_STREAM
    from ortune.record.files import encode_record
    from ortune.tuning.prepare import prepare
    from ortune.tuning.search import search as run

    check_model(values["model"])
    path = Path(values.get("output") or f"{Path(values['model']).stem}.ortune.json")
    request = make_request(SearchRequest, {**values, "output": path}, "cli")
    to_stdout = str(request.output) == STANDARD_STREAM
    if console_options.open:
        check_can_open(path)
    if "output" not in values:
        check_default_path(path, request.model)
    prepared = prepare(request)
    console = make_console(stderr=console_options.json or to_stdout)
    if not console_options.quiet:
        show_search(console, prepared)
    with (
        show_resume_if_interrupted(console, path, quiet=console_options.quiet),
        SearchProgress(console, quiet=console_options.quiet) as progress,
    ):
        # Under a small CPU quota, importing libraries and reading the model takes seconds of the user's time. Half a
        # second stands for what is done before and after it is measured.
        prepared_s = read_clock_s() - begun_s
        spent_s = round(prepared_s + 0.5) if prepared_s > 1 else 0
        result = run(msgspec.structs.replace(prepared, spent_s=spent_s), progress)
    if not console_options.quiet:
        written = None if to_stdout or result.fault else path
        session_warnings = [
            *warn_idle_providers(result.outcome.trials),
            *warn_tf32_differences(result.record.base, result.outcome.trials),
            *warn_sessions(result.warnings, result.n_sessions),
            *result.storage_notes,
        ]
        show_verdict(console, result.record, written, result.kept, session_warnings)
        if console_options.explain:
            show_explanations(console, explain_search(result.record))
        if result.unfinished:
            show_resume(console, make_resume_command(sys.argv))
    if console_options.json and not to_stdout:
        sys.stdout.buffer.write(escape_json(encode_record(result.record).decode()).encode())
    if result.fault:
        raise result.fault
    if console_options.open:
        open_report(path)
    exit_for(result.outcome)


def exit_for(outcome: Outcome) -> None:
    """End the process with the exit code of a search that found nothing that can be used as it is.

    Raises:
        typer.Exit: It was interrupted, or its answer is none.
    """
    if outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if outcome.evidence.verdict == "inconclusive":
        raise typer.Exit(ExitCode.INCONCLUSIVE)
    if outcome.evidence.verdict in {"infeasible", "overload"}:
        raise typer.Exit(ExitCode.FAILED)


def check_can_open(record: Path) -> None:
    """Check before a search that its report can be written and opened after it.

    Args:
        record: Where the record goes.

    Raises:
        UsageError: It goes to stdout, a package that reports need is missing, or another file would be replaced.
    """
    from ortune.cli.report import choose_output
    from ortune.limited import STANDARD_STREAM
    from ortune.report.write import check_installed, check_output

    if str(record) == STANDARD_STREAM:
        raise UsageError("needs a record in a file.", "Name it with {output=FILE}.", option="open")
    check_installed()
    check_output(choose_output(str(record)))


def open_report(record: Path) -> None:
    """Write the report about a record next to it, and open it."""
    from ortune.cli.report import choose_output, open_page
    from ortune.report.make import make_page
    from ortune.report.source import read_source
    from ortune.report.write import write_page

    path = choose_output(str(record))
    write_page(make_page(read_source(str(record)), record.name), path)
    open_page(path)


def is_unfinished(record: Path) -> bool:
    """Return whether a search for this record can go on."""
    from ortune.record.journal import path_of_journal

    journal = path_of_journal(record)
    return journal is not None and journal.exists()


def make_resume_command(arguments: Sequence[str]) -> str:
    """Return the command that goes on with the search of this process, given its arguments.

    What follows -- belongs to the program that is tuned.
    """
    end = arguments.index(SEPARATOR) if SEPARATOR in arguments else len(arguments)
    own = [argument for argument in arguments[2:end] if argument not in {"--resume", "--restart"}]
    return shlex.join(["ortune", "search", *own, "--resume", *arguments[end:]])


@contextlib.contextmanager
def show_resume_if_interrupted(console: Console, record: Path, *, quiet: bool) -> Iterator[None]:
    """Print how to go on if an interrupt ends the search for a record in this block."""
    from ortune.console.search import show_resume

    try:
        yield
    except BaseException as error:
        if is_interrupt(error) and not quiet and is_unfinished(record):
            show_resume(console, make_resume_command(sys.argv))
        raise


def check_default_path(path: Path, model: str) -> None:
    """Check that the default output does not hold the record of another model: many are called model.onnx.

    Raises:
        UsageError: It does.
    """
    from ortune.errors import RecordError
    from ortune.record.files import parse_document

    if why := explain_no_access(path):
        raise UsageError(f"{path}: {why}.", "Name a file with {output=FILE}.")
    if not path.is_file():
        return
    try:
        other = parse_document(path).records[0].model.path
    except RecordError:
        return
    if "\0" in other or Path(other).resolve() != Path(model).resolve():
        raise UsageError(f"{path} exists: it is the record of {other}.", "Name another file with {output=FILE}.")
