"""`ortune apply`: put a record to use, after checking that it fits."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ortune.cli import options
from ortune.errors import ExitCode


def apply(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A record that a search wrote.", show_default=False)],
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model.", show_default="the record's")
    ] = None,
    inputs: options.Inputs = None,
    pick: Annotated[
        int | None,
        typer.Option(
            "--pick", metavar="N", help="Take point N of the record's front.", show_default="the recommended one"
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Check that CONFIG fits this host, this onnxruntime and MODEL, run it, and print the code to use it."""
    from ortune.apply.snippet import python_snippet
    from ortune.apply.trial_run import run_once
    from ortune.record import pick_point, read_record

    record = read_record(config)
    if pick is not None:
        record = pick_point(record, pick)
    path = model or record.model.path
    run = run_once(record, path, inputs)
    snippet = python_snippet(record.config, path)
    if json:
        import msgspec

        answer = {"fits": run.fits, "config": record.config, "run": run, "snippet": snippet}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n")
    else:
        from ortune.console.apply import show_apply
        from ortune.console.search import make_console

        show_apply(make_console(), record, run, snippet)
    if not run.fits:
        raise typer.Exit(ExitCode.NO)
