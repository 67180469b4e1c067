"""`ortune doctor`: diagnose what slows a model down, and suggest fixes."""

from __future__ import annotations

from typing import Annotated

import typer

from ortune.cli import options
from ortune.errors import ExitCode, spell_as_flag


def doctor(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME,...",
            help="Execution providers that the model is meant for, such as cuda.",
            show_default="those that work here",
        ),
    ] = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    inputs: options.Inputs = None,
    json: options.Json = False,
) -> None:
    """Diagnose what slows MODEL down and suggest fixes."""
    from ortune.doctor.examine import DoctorRequest, examine

    request = DoctorRequest(
        model=model,
        providers=tuple(name for text in provider or () for name in text.split(",")),
        inputs=options.parse_inputs(dim, shape, inputs, seed=0),
    )
    diagnosis = examine(request).render(spell_as_flag)
    if json:
        options.print_json(diagnosis)
    else:
        from ortune.console.doctor import show_diagnosis
        from ortune.console.widgets import make_console

        show_diagnosis(make_console(), diagnosis)
    if diagnosis.has_problem:
        raise typer.Exit(ExitCode.FAILED)
