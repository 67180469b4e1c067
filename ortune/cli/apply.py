"""`ortune apply`: put records to use, in a program as it is, in code, in other systems' files; or check them here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ortune.cli import options
from ortune.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from ortune.record.schema import Record
    from ortune.workload import Load

RUNNING = "With a command"
EXPORTING = "With --to"


def apply(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG... [MODEL] [-- COMMAND]",
            help="Records or bundles, - for stdin; then the model, by default the record's; or a command to run.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TARGET", help="Write the config for another system; --list shows which."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where to write it; - for stdout.",
            rich_help_panel=EXPORTING,
        ),
    ] = None,
    list_targets: Annotated[bool, typer.Option("--list", help="Show what --to can write for.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure here whether the recorded gain holds: 0 yes, 1 no, 3 unsure.")
    ] = False,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="Wall time for --verify.", show_default="what the model needs"),
    ] = None,
    keep_explicit: Annotated[
        bool,
        typer.Option(
            "--keep-explicit",
            help="Let options that the program sets by itself win over tuned ones.",
            rich_help_panel=RUNNING,
        ),
    ] = False,
    any_model: Annotated[
        bool,
        typer.Option("--any-model", help="Use the config for sessions of every model.", rich_help_panel=RUNNING),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Tell on stderr what became of each session.", rich_help_panel=RUNNING),
    ] = False,
    explain_json: Annotated[
        str | None,
        typer.Option(
            "--explain-json", metavar="FILE", help="Add a line of JSON for each session.", rich_help_panel=RUNNING
        ),
    ] = None,
    any_host: Annotated[bool, typer.Option("--any-host", help="Use a record for another class of host.")] = False,
    clients: options.Clients = None,
    rate: options.Rate = None,
    sessions: options.Sessions = None,
    pick: Annotated[
        int | None,
        typer.Option(
            "--pick", metavar="N", help="Take point N of the record's front.", show_default="the recommended one"
        ),
    ] = None,
    inputs: options.Inputs = None,
    beside: options.Beside = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Put CONFIG to use: run a command with it, write it for other systems, verify it; or check it and show code."""
    if list_targets:
        show_targets(json=json)
        return
    configs, model = split_files(files or [])
    if keep_explicit or any_model or explain or explain_json:
        raise UsageError(
            "--keep-explicit, --any-model, --explain and --explain-json are for a command.",
            "Write it behind two dashes: ortune apply tuned.json -- python app.py.",
        )
    if to and verify:
        raise UsageError("--to and --verify are two different things.", "Verify first, then write.")
    if to and json:
        raise UsageError("--to and --json are two different forms.", "Leave one of them out.")
    for option, given in (("--time", time), ("--beside", beside)):
        if given is not None and not verify:
            raise UsageError(f"{option} {given}: nothing is measured without --verify.", "Leave it out, or verify.")
    from ortune.apply.messages import load_of

    load = load_of(clients, rate, sessions)
    record, path = find_record(configs, model, load, pick, any_host=any_host)
    if to:
        export(record, path, model, to, None if output == "-" else output)
    elif output:
        raise UsageError(f"-o {output}: there is nothing to write without --to.", "ortune apply --list shows targets.")
    elif verify:
        verify_here(record, model, inputs, beside, options.parse_time_s(time), seed, json=json, quiet=quiet)
    else:
        try_out(record, model, inputs, any_host=any_host, json=json, quiet=quiet)


def split_files(files: list[str]) -> tuple[list[str], str | None]:
    """Return the records and the model, which comes last and is no JSON file.

    Raises:
        UsageError: There is no record.
    """
    from ortune.record.files import STANDARD_STREAM

    if not files:
        raise UsageError("There is no CONFIG.", "Pass a record that a search wrote: ortune apply tuned.json.")
    for name in files[1:]:
        if not Path(name).exists() and shutil.which(name):
            raise UsageError(
                f"{name} is a command.", f"It goes behind two dashes: ortune apply {files[0]} -- {name} ..."
            )
    if len(files) > 1 and files[-1] != STANDARD_STREAM and Path(files[-1]).suffix.lower() != ".json":
        return files[:-1], files[-1]
    if Path(files[-1]).suffix.lower() in {".onnx", ".ort"}:
        raise UsageError(f"{files[-1]} is a model, and there is no CONFIG.", f"Write: ortune apply CONFIG {files[-1]}.")
    return files, None


def find_record(
    configs: list[str], model: str | None, load: Load | None, pick: int | None, *, any_host: bool
) -> tuple[Record, str]:
    """Return the record for this model, host and load, or the one that comes closest, and its file.

    Raises:
        RecordError: No record is for the model, or there are records for several models and none is named.
    """
    from ortune.record.select import Wanted, read_sourced, select_record

    # The path may be the one on another host, where what is exported will be used.
    present = model if model is not None and Path(model).is_file() else None
    choice = select_record(read_sourced(configs), Wanted(load=load, pick=pick, any_host=any_host), present)
    return choice.record, choice.path


def try_out(record: Record, model: str | None, inputs: str | None, *, any_host: bool, json: bool, quiet: bool) -> None:
    """Create the session, run it, and show what took effect and the code."""
    from ortune.apply.check import run_once
    from ortune.export import render

    path = model or record.model.path
    run = run_once(record, path, inputs)
    snippet = render("python", record, path).text
    if json:
        answer = {"fits": run.fits, "config": record.config, "run": run, "snippet": snippet}
        options.print_json(answer)
    elif not quiet:
        from ortune.console.apply import show_apply
        from ortune.console.widgets import make_console

        show_apply(make_console(), record, run, snippet)
    if not (run.works if any_host else run.fits):
        raise typer.Exit(ExitCode.FAILED)


def export(record: Record, source: str, model: str | None, target: str, output: str | None) -> None:
    """Write the config for another system, and tell what that cannot express."""
    from ortune.console.apply import show_export
    from ortune.console.widgets import make_console
    from ortune.export import export as write

    done = write(target, record, model or record.model.path, source, None if output is None else Path(output))
    if output is None:
        sys.stdout.write(done.text)
    show_export(make_console(stderr=True), done, output)


def verify_here(
    record: Record,
    model: str | None,
    inputs: str | None,
    beside: str | None,
    time_s: float | None,
    seed: int,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Fight the duel with the default here, and tell whether the recorded gain holds."""
    from ortune.apply.verify import prepare_verification, verify
    from ortune.console.progress import ComparisonProgress
    from ortune.console.verify import show_plan, show_verification
    from ortune.console.widgets import make_console

    console = make_console(stderr=json)
    setup = prepare_verification(record, model or record.model.path, inputs=inputs, beside=beside, seed=seed)
    if not quiet:
        show_plan(console, record, setup)
    with ComparisonProgress(console, quiet=quiet) as progress:
        verification = verify(record, setup, progress, budget_s=time_s)
    if json:
        options.print_json(verification)
    if not quiet:
        show_verification(console, verification)
    code = {"holds": ExitCode.DONE, "does_not_hold": ExitCode.FAILED, "inconclusive": ExitCode.INCONCLUSIVE}
    if verification.answer != "holds":
        raise typer.Exit(code[verification.answer])


def show_targets(*, json: bool) -> None:
    """Print the targets of --to."""
    from ortune.export import TARGETS

    if json:
        targets = [{"name": target.name, "summary": target.summary} for target in TARGETS.values()]
        options.print_json(targets)
        return
    from ortune.console.apply import show_target_list
    from ortune.console.widgets import make_console

    show_target_list(make_console(), TARGETS.values())
