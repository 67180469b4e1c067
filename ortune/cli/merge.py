"""`ortune merge`: put several records into one file."""

from __future__ import annotations

from pathlib import Path

from ortune.cli.command import Values, command
from ortune.options import make_request
from ortune.requests import MergeRequest
from ortune.sanitize import escape_json


@command(MergeRequest)
def merge(values: Values) -> None:
    """Put records for several hosts, loads and models into a bundle, from which apply chooses the right one."""
    from ortune.file_kinds import is_record
    from ortune.limited import STANDARD_STREAM
    from ortune.record.files import check_writable, encode_record, write_atomically
    from ortune.record.select import merge as run
    from ortune.record.select import read_sourced

    request = make_request(MergeRequest, values, "cli")
    path = Path(request.output)
    records = read_sourced(request.configs, trust=request.trust)
    check_writable(path, may_replace=is_record)
    bundle, dropped = run(records)
    document = encode_record(bundle)
    to_stdout = request.output == STANDARD_STREAM
    write_atomically(path, escape_json(document.decode()).encode() if to_stdout else document)
    if not request.quiet:
        from ortune.console.merge import show_bundle
        from ortune.console.widgets import make_console

        show_bundle(make_console(stderr=to_stdout), bundle, dropped, path)
