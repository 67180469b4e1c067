"""`ortune plan`: find how to deploy a model."""

from __future__ import annotations

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import write_found
from ortune.errors import ExitCode
from ortune.options import make_request
from ortune.requests import ConsoleOptions, PlanRequest


@command(PlanRequest, ConsoleOptions, has_steps=True)
def plan(values: Values, console_options: ConsoleOptions) -> None:
    """Find how to deploy MODEL on this host: processes, threads and callers of each, and settings.

    The plan says how many requests each deployment can take within a target for the latency, and what it needs.

    For several models on one host, give the rate of each: ortune plan a.onnx=50/s b.onnx=10/s.
    """
    from ortune.console.plan import PlanProgress, show_plan, show_plan_header
    from ortune.console.widgets import make_console
    from ortune.limited import STANDARD_STREAM
    from ortune.planning.prepare import prepare_plan
    from ortune.planning.run import plan_deployment

    request = make_request(PlanRequest, values, "cli")
    prepared = prepare_plan(request)
    to_stdout = console_options.json or str(request.output) == STANDARD_STREAM
    console = make_console(stderr=to_stdout)
    if not console_options.quiet:
        show_plan_header(console, prepared)
    with PlanProgress(console, quiet=console_options.quiet) as progress:
        found = plan_deployment(prepared, progress)
    fault = write_found(found, request.output, to_stdout=to_stdout)
    if not console_options.quiet:
        show_plan(console, found, None if fault else request.output)
    if fault:
        raise fault
    if found.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not found.meets_target:
        raise typer.Exit(ExitCode.FAILED)
