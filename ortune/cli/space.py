"""`ortune space`: show what a search would try, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from ortune.cli import options


def space(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    clients: options.Clients = None,
    sessions: options.Sessions = None,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    objective: options.Objective = None,
    provider: options.Providers = "auto",
    tune: options.Tune = None,
    fix: options.Fix = None,
    only: options.Only = None,
    allow_approximate: options.Approximate = False,
    json: options.Json = False,
) -> None:
    """Show what a search of MODEL would try on this host, and why."""
    from ortune.host import read_host
    from ortune.knobs import build_space
    from ortune.knobs.parse_knobs import parse_fix, parse_only, parse_tune
    from ortune.model import read_model
    from ortune.tuning.prepare import SearchRequest, choose_providers, make_space_options
    from ortune.workload import make_goal, make_load

    request = SearchRequest(
        model=model,
        goal=make_goal(make_load(clients, rate, arrivals, sessions), objective),
        tune=parse_tune(tune or [], approximate=allow_approximate),
        fix=parse_fix(fix or [], approximate=allow_approximate),
        only=parse_only(only or []),
        approximate=allow_approximate,
    )
    info = read_model(model)
    providers, faults = choose_providers(options.parse_providers(provider))
    found = build_space(read_host(), info, make_space_options(request, providers))
    if json:
        data = {
            "dimensions": found.dimensions,
            "rules": found.rules,
            "skipped": found.skipped,
            "faults": faults,
            "candidates": found.candidates,
        }
        options.print_json(data, enc_hook=sorted)
        return
    from ortune.console.space import show_space
    from ortune.console.widgets import make_console

    show_space(make_console(), found, faults)
