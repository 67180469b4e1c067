"""`ortune plan MODEL=RATE MODEL=RATE`: find how several models share a host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import write_found
from ortune.errors import ExitCode
from ortune.options import make_request, options_of
from ortune.requests import ConsoleOptions, HostPlanRequest, PlanRequest

NAME = "plan MODEL=RATE"
"""Name in Typer of `ortune plan` with several models. `route_several` puts it in place of the other."""

RATE = re.compile(r".+=\s*[\d.]+\s*(/\s*\w+)?\s*")


def route_several(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a process, with the name of another command if they name several models to plan for."""
    if list(arguments[1:2]) != ["plan"]:
        return list(arguments)
    models = find_models(arguments[2:])
    has_rate = any(RATE.fullmatch(model) and not Path(model).is_file() for model in models)
    return [arguments[0], NAME, *arguments[2:]] if has_rate or len(models) > 1 else list(arguments)


def find_models(words: Sequence[str]) -> list[str]:
    """Return the words of `ortune plan` that are neither options nor their values."""
    takes_value: dict[str, bool] = {}
    for request in (PlanRequest, HostPlanRequest, ConsoleOptions):
        for declaration in options_of(request).values():
            takes_value |= dict.fromkeys(
                (declaration.flag, *declaration.option.flags), not declaration.option.is_switch
            )
    found: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            return [*found, *words[position:]]
        if not word.startswith("-") or word == "-":
            found.append(word)
        elif takes_value.get(word, False):
            position += 1
        elif not word.startswith("--"):
            # Several short options in one word, such as -qo: the value of the last one may be the next word.
            valued = next((place for place, letter in enumerate(word[1:], 1) if takes_value.get(f"-{letter}")), 0)
            position += valued == len(word) - 1 and valued > 0
    return found


@command(HostPlanRequest, ConsoleOptions, has_steps=True)
def plan_several(values: Values, console_options: ConsoleOptions) -> None:
    """Find how several models should share this host, each with the requests that it must serve.

    The plan says which way to share the cores meets all targets, measured with all models under load at the same time.
    """
    from ortune.console.host_plan import show_host_plan, show_host_plan_header
    from ortune.console.plan import PlanProgress
    from ortune.console.widgets import make_console
    from ortune.limited import STANDARD_STREAM
    from ortune.planning.colocation.prepare import prepare_host_plan
    from ortune.planning.colocation.run import make_host_plan

    request = make_request(HostPlanRequest, values, "cli")
    prepared = prepare_host_plan(request)
    to_stdout = console_options.json or str(request.output) == STANDARD_STREAM
    console = make_console(stderr=to_stdout)
    if not console_options.quiet:
        show_host_plan_header(console, prepared)
    with PlanProgress(console, quiet=console_options.quiet) as progress:
        found = make_host_plan(prepared, progress)
    fault = write_found(found, request.output, to_stdout=to_stdout)
    if not console_options.quiet:
        show_host_plan(console, found, None if fault else request.output)
    if fault:
        raise fault
    if found.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if found.recommended is None:
        raise typer.Exit(ExitCode.FAILED)
