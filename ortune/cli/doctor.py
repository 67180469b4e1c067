"""`ortune doctor`: diagnose what slows a model down."""

from __future__ import annotations

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode, spell_as_flag
from ortune.options import make_request
from ortune.requests import DoctorRequest, JsonOptions


@command(DoctorRequest, JsonOptions, has_steps=True)
def doctor(values: Values, output: JsonOptions) -> None:
    """Diagnose what slows MODEL down in ONNX Runtime, and suggest fixes."""
    from ortune.doctor.examine import examine

    diagnosis = examine(make_request(DoctorRequest, values, "cli")).render(spell_as_flag)
    if output.json:
        print_json(diagnosis)
    else:
        from ortune.console.doctor import show_diagnosis
        from ortune.console.widgets import make_console

        show_diagnosis(make_console(), diagnosis)
    if diagnosis.has_problem:
        raise typer.Exit(ExitCode.FAILED)
