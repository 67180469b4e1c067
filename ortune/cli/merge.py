"""`ortune merge`: several records in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortune.cli import options


def merge(
    configs: Annotated[
        list[str],
        typer.Argument(metavar="CONFIG", help="Records or bundles; - for stdin.", show_default=False),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to write the bundle; - for stdout.", show_default=False
        ),
    ],
    quiet: options.Quiet = False,
) -> None:
    """Put records for several hosts, loads and models into one file, from which `ortune apply` picks the right one."""
    from ortune.record.files import STANDARD_STREAM, check_writable, encode_record, is_record, write_atomically
    from ortune.record.select import merge as run
    from ortune.record.select import read_sourced

    path = Path(output)
    records = read_sourced(configs)
    check_writable(path, may_replace=is_record)
    bundle, dropped = run(records)
    write_atomically(path, encode_record(bundle))
    if not quiet:
        from ortune.console.merge import show_bundle
        from ortune.console.widgets import make_console

        show_bundle(make_console(stderr=output == STANDARD_STREAM), bundle, dropped, path)
