"""`ortune gate`: keep a model, a config or an onnxruntime from becoming slower, in CI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode, OrtuneError, UsageError, spell_as_flag
from ortune.options import make_request
from ortune.requests import GateFileOptions, GateReportOptions, GateRequest
from ortune.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortune.gates.results import GateError, GateResult

    Results = Sequence[GateResult | GateError]


@command(GateRequest, GateFileOptions, GateReportOptions, optional=frozenset({"base"}), has_steps=True)
def gate(values: Values, source: GateFileOptions, reports: GateReportOptions) -> None:
    """Measure BASE and HEAD side by side until it is decided whether HEAD is slower."""
    check_outputs(reports)
    from_file = source.all or source.only or source.file
    if from_file and "base" in values:
        raise UsageError(f"{values['base']}: --all, --only and --file take gates from a file.", "Leave it out.")
    if not from_file and "base" not in values:
        raise UsageError("There is nothing to gate.", "Pass BASE and HEAD, a CONFIG.json, or --all.")
    requests = _read_file(source, values) if from_file else [make_request(GateRequest, values, "cli")]
    run_and_report(lambda done: run(requests, done, reports), requests[0].name, reports)


def run_and_report(
    measure: Callable[[list[GateResult | GateError]], Results], name: str, reports: GateReportOptions
) -> None:
    """Run gates, write the reports, and exit with the code of the joint decision.

    CI also gets a report of an error or an interrupt, including the gates that finished before.

    Args:
        measure: Runs the gates. It is called with a list, to which it appends each of several gates when it has ended.
        name: Name of the only gate, or of the first one.
        reports: The reports.
    """
    from ortune.gates.results import GateError
    from ortune.gates.run import judge_together

    done: list[GateResult | GateError] = []
    try:
        results = measure(done)
    except BaseException as error:
        if isinstance(error, OrtuneError):
            message, hint = error.render(spell_as_flag)
            done.append(GateError(name=name, message=message, hint=hint))
        if done:
            try:
                write_reports(judge_together(done), reports)
            except UsageError as fault:
                from ortune.console.widgets import make_console

                # What happened first is what the user must know.
                make_console(stderr=True).print(f"error: {fault.render(spell_as_flag)[0]}", soft_wrap=True)
        raise
    write_reports(results, reports)
    exit_with_decision(results, reports.inconclusive)


def _read_file(source: GateFileOptions, values: Values) -> list[GateRequest]:
    from ortune.gates.file import read_gates

    given = dict(values)
    return read_gates(source.file, source.only, given, trust=bool(given.pop("trust", False)))


def check_outputs(reports: GateReportOptions) -> None:
    """Check, before running the gates, that the report files can be written.

    Raises:
        UsageError: A file cannot be written.
    """
    from ortune.gates.reporters.history import is_history
    from ortune.gates.reporters.markdown import TITLE
    from ortune.record.files import check_writable

    ours: dict[str, Callable[[bytes], bool]] = {
        "junit": lambda content: b"<testsuite" in content,
        "markdown": lambda content: content.startswith(TITLE.encode()),
        "history": is_history,
    }
    for name, is_ours in ours.items():
        path = getattr(reports, name)
        if path is not None:
            check_writable(Path(path), name, is_ours)


def run(
    requests: Sequence[GateRequest], done: list[GateResult | GateError], reports: GateReportOptions
) -> tuple[GateResult | GateError, ...]:
    """Run the gates and show their progress.

    Args:
        requests: The gates.
        done: Each of several gates is appended when it has ended.
        reports: The reports to write, which decide where progress is shown.

    Raises:
        OrtuneError: The only gate could not be measured.
    """
    from ortune.console.gate import GateDisplay
    from ortune.console.widgets import make_console
    from ortune.gates.acceptance import list_notes
    from ortune.gates.prepare import make_gate, prepare_gate
    from ortune.gates.run import run_gate, run_gates

    display = GateDisplay(make_console(stderr=reports.take_stdout), quiet=reports.quiet, explain=reports.explain)
    if len(requests) == 1:
        gate = make_gate(requests[0])
        setup = prepare_gate(gate)
        with display.watch(gate, setup.feed, list_notes(gate, setup.tolerance)) as observe:
            result = run_gate(gate, observe, setup=setup)
        display.show(result)
        return (result,)

    def finished(result: GateResult | GateError) -> None:
        done.append(result)
        display.finish(result)

    display.show_variables()
    with display:
        results = run_gates(requests, lambda number: display.observer(requests[number].name), finished)
    for alone, together in zip(done, results, strict=True):
        if together is not alone:
            display.correct(together)
    display.show_all(results)
    return results


def write_reports(results: Results, reports: GateReportOptions) -> None:
    """Write the reports for other programs.

    Raises:
        UsageError: A file cannot be written. The other reports have been written then.
    """
    from ortune.gates.reporters.history import append_history
    from ortune.gates.reporters.markdown import render_markdown
    from ortune.record.files import write_atomically

    faults: list[UsageError] = []

    def attempt(write: Callable[..., None], *arguments: Any) -> None:
        try:
            write(*arguments)
        except UsageError as fault:
            faults.append(fault)

    if reports.json:
        print_json(results)
    if reports.junit is not None:
        from ortune.gates.reporters.junit import render_junit

        text = render_junit(results, inconclusive_fails=reports.inconclusive == "fail")
        attempt(write_atomically, Path(reports.junit), text)
    if reports.markdown is not None:
        attempt(write_atomically, Path(reports.markdown), render_markdown(results).encode())
    if reports.history is not None:
        attempt(append_history, Path(reports.history), results)
    write_for_github(results, reports)
    if faults:
        others = [fault.message for fault in faults[1:]]
        raise UsageError(faults[0].message, details=others)


def write_for_github(results: Results, reports: GateReportOptions) -> None:
    """Write the summary and the annotations of a workflow of GitHub, if this is one."""
    from ortune.gates.reporters.markdown import render_markdown

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(render_markdown(results) + "\n")
        except OSError as error:
            text = f"cannot write $GITHUB_STEP_SUMMARY ({summary}): {error.strerror}"
            sys.stderr.write(f"ortune: {printable(text)}\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from ortune.gates.reporters.github import render_annotations

        # GitHub reads annotations from both streams.
        (sys.stderr if reports.take_stdout else sys.stdout).write(render_annotations(results))


def exit_with_decision(results: Results, inconclusive: str) -> None:
    """Exit with the code of the joint decision."""
    from ortune.gates.run import exit_decision

    codes = {"pass": ExitCode.DONE, "fail": ExitCode.FAILED, "error": ExitCode.ERROR}
    codes["inconclusive"] = {"pass": ExitCode.DONE, "fail": ExitCode.FAILED}.get(inconclusive, ExitCode.INCONCLUSIVE)
    code = codes[exit_decision(results)]
    if code:
        raise typer.Exit(code)
