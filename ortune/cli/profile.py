"""`ortune profile`: show where the time of a run goes, by operator."""

from __future__ import annotations

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode
from ortune.options import make_request
from ortune.requests import JsonOptions, ProfileRequest


@command(ProfileRequest, JsonOptions, has_steps=True)
def profile(values: Values, output: JsonOptions) -> None:
    """Show which operators of MODEL take the time, with ONNX Runtime's default and with CONFIG."""
    from ortune.profile.run import profile as run

    found = run(make_request(ProfileRequest, values, "cli"))
    if output.json:
        print_json(found)
    else:
        from ortune.console.profile import show_profile
        from ortune.console.widgets import make_console

        show_profile(make_console(), found)
    if any(config.failure for config in found.configs):
        raise typer.Exit(ExitCode.FAILED)
