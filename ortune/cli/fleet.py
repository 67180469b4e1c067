"""`ortune fleet`: commands for many processes and hosts."""

from __future__ import annotations

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode
from ortune.fleet_options import FleetCompareRequest
from ortune.options import make_request
from ortune.requests import JsonOptions


@command(FleetCompareRequest, JsonOptions)
def compare(values: Values, output: JsonOptions) -> None:
    """Compare the canaries of a rollout with the other processes: is the config better in production?

    Exit code 0 if it is, or if a slowdown beyond --max-slowdown is excluded; 1 if it is proven worse; 3 otherwise.
    """
    from ortune.console.fleet import show_fleet_comparison
    from ortune.console.widgets import make_console
    from ortune.fleet.canary_metrics import read_metrics
    from ortune.fleet.compare import compare_arms

    request = make_request(FleetCompareRequest, values, "cli")
    comparison = compare_arms(
        read_metrics(request.folder),
        request.metric,
        config=request.config,
        confidence=request.confidence,
        max_slowdown=request.max_slowdown,
    )
    if output.json:
        print_json(comparison)
    else:
        show_fleet_comparison(make_console(), comparison)
    codes = {"worse": ExitCode.FAILED, "inconclusive": ExitCode.INCONCLUSIVE}
    if comparison.verdict in codes:
        raise typer.Exit(codes[comparison.verdict])
