"""`ortune fleet`: commands for many processes and hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode, UsageError
from ortune.fleet_options import FleetCompareRequest, FleetSendRequest
from ortune.options import make_request
from ortune.requests import JsonOptions

if TYPE_CHECKING:
    from ortune.storage import Location


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
    if request.folder is not None:
        metrics = read_metrics(request.folder)
    else:
        from ortune.fleet.shared_metrics import read_shared_metrics

        metrics = read_shared_metrics(find_metrics_storage(request.storage))
    comparison = compare_arms(
        metrics,
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


def find_metrics_storage(given: str | None) -> Location:
    """Return the storage that holds the metrics.

    Raises:
        UsageError: There is none, so that a folder is missing.
    """
    from ortune.storage.location import find_location

    location = find_location(given)
    if location is None:
        raise UsageError("No metrics are given.", "Name the folder of `ortune apply --metrics`, or {storage=URL}.")
    return location


@command(FleetSendRequest)
def send(values: Values) -> None:
    """Copy the metrics of canaries on this host to a storage, where `ortune fleet compare` finds those of all hosts."""
    from ortune.console.fleet_status import show_sent
    from ortune.console.widgets import make_console, show_warning
    from ortune.fleet.shared_metrics import MetricsSender
    from ortune.storage import StorageError
    from ortune.storage.location import require_location

    request = make_request(FleetSendRequest, values, "cli")
    location = require_location(request.storage)
    sender = MetricsSender(request.folder, location)
    console = make_console(stderr=True)

    def send_new() -> None:
        show_sent(console, sender.send(), location.title, quiet=request.quiet)

    if request.every is None:
        send_new()
        return
    try:
        while True:
            try:
                send_new()
            except StorageError as error:
                show_warning(console, error.message)
            time.sleep(request.every)
    except KeyboardInterrupt:
        # What processes wrote when they ended, shortly before.
        send_new()
