"""`ortune profile`: show where the time of a run goes, by operator."""

from __future__ import annotations

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode
from ortune.options import make_request
from ortune.requests import JsonOptions, ProfileOptions


@command(ProfileOptions, JsonOptions)
def profile(values: Values, output: JsonOptions) -> None:
    """Show which operators of MODEL take the time, with ONNX Runtime's default and with CONFIG."""
    from ortune.profile.run import ProfileRequest
    from ortune.profile.run import profile as run
    from ortune.record.files import read_record

    options = make_request(ProfileOptions, values, "cli")
    found = run(
        ProfileRequest(
            model=options.model,
            record=read_record(options.config) if options.config is not None else None,
            runs=options.runs,
            folder=options.output,
            inputs=options.input_options,
        )
    )
    if output.json:
        print_json(found)
    else:
        from ortune.console.profile import show_profile
        from ortune.console.widgets import make_console

        show_profile(make_console(), found)
    if any(each.failure for each in found.configs):
        raise typer.Exit(ExitCode.FAILED)
