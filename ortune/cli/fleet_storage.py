"""`ortune fleet status`, `collect` and `expire`: what a storage that several hosts share holds."""

from __future__ import annotations

from pathlib import Path

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode
from ortune.options import make_request
from ortune.requests import FleetCollectRequest, FleetExpireRequest, FleetStatusRequest


@command(FleetStatusRequest)
def status(values: Values) -> None:
    """Show what a storage holds: hosts by class, the progress of searches, and on how many hosts results hold."""
    from ortune.fleet.status import read_status
    from ortune.storage.location import require_location

    request = make_request(FleetStatusRequest, values, "cli")
    location = require_location(request.storage)
    found = read_status(location)
    if request.json:
        print_json(found)
        return
    from ortune.console.fleet_status import show_status
    from ortune.console.widgets import make_console

    show_status(make_console(), location.title, found)


@command(FleetCollectRequest)
def collect(values: Values) -> None:
    """Write the records of a storage into a bundle, with what each host showed of them."""
    from ortune.console.fleet_status import show_unread
    from ortune.console.merge import show_bundle
    from ortune.console.widgets import make_console
    from ortune.file_kinds import is_record
    from ortune.fleet.collect import list_sourced
    from ortune.fleet.proofs import read_claims
    from ortune.limited import STANDARD_STREAM
    from ortune.record.files import check_writable, encode_record, write_atomically
    from ortune.record.select import merge
    from ortune.sanitize import escape_json
    from ortune.storage.location import require_location

    request = make_request(FleetCollectRequest, values, "cli")
    path, to_stdout = Path(request.output), request.output == STANDARD_STREAM
    location = require_location(request.storage)
    check_writable(path, may_replace=is_record)
    claims, unread = read_claims(location)
    bundle, dropped = merge(list_sourced(location, claims, unread))
    document = encode_record(bundle)
    write_atomically(path, escape_json(document.decode()).encode() if to_stdout else document)
    show_unread(make_console(stderr=True), unread)
    if not request.quiet:
        show_bundle(make_console(stderr=to_stdout), bundle, dropped, path)


@command(FleetExpireRequest)
def expire(values: Values) -> None:
    """List what has expired in a storage: verifications (old, or of a host that changed) and records of old models.

    A verification has expired if the machine, the kernel or the onnxruntime of its host is no longer the same. Exit
    code 1 if something has expired.
    """
    import datetime

    from ortune.console.fleet_status import show_expired, show_unread
    from ortune.console.widgets import make_console
    from ortune.fleet.expire import digest_models, find_expired, read_facts, remove_expired
    from ortune.fleet.proofs import read_claims
    from ortune.storage.location import require_location

    request = make_request(FleetExpireRequest, values, "cli")
    location = require_location(request.storage)
    models = digest_models(request.models)
    claims, unread = read_claims(location)
    now = datetime.datetime.now(datetime.UTC)
    expired = find_expired(claims, read_facts(), models, request.older_than, now)
    if request.remove:
        remove_expired(claims, expired)
    show_unread(make_console(stderr=True), unread)
    if request.json:
        print_json(expired)
    else:
        show_expired(make_console(), expired, n_records=len(claims), removed=request.remove)
    if expired:
        raise typer.Exit(ExitCode.FAILED)
