"""`ortune profile`: show the time of each operator and node in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortune.cli import options
from ortune.errors import ExitCode


def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]", help="A record of a search, to compare with the default.", show_default=False
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="N", help="Runs of each config.", show_default="about 3 s"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Folder for the traces. It must be new, empty, or contain an earlier profile, which is replaced.",
            show_default="MODEL.profile",
        ),
    ] = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Show the time of each operator in MODEL, with ONNX Runtime's default and with CONFIG."""
    from ortune.profile.run import ProfileRequest
    from ortune.profile.run import profile as run
    from ortune.record.files import read_record

    found = run(
        ProfileRequest(
            model=model,
            record=read_record(config) if config is not None else None,
            runs=runs,
            folder=output,
            inputs=options.parse_inputs(dim, shape, inputs, seed),
        )
    )
    if json:
        options.print_json(found)
    else:
        from ortune.console.profile import show_profile
        from ortune.console.widgets import make_console

        show_profile(make_console(), found)
    if any(each.failure for each in found.configs):
        raise typer.Exit(ExitCode.FAILED)
