"""`ortune space`: show what a search would try, and why."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ortune.cli import options


def space(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    json: options.Json = False,
) -> None:
    """Show what a search of MODEL would try on this host, and why."""
    from ortune.host import read_host
    from ortune.knobs import build_space
    from ortune.model import read_model

    found = build_space(read_host(), read_model(model))
    if json:
        import msgspec

        data = {
            "dimensions": found.dimensions,
            "rules": found.rules,
            "skipped": found.skipped,
            "candidates": found.candidates,
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(data, enc_hook=sorted), indent=2) + b"\n")
        return
    from ortune.console.search import make_console
    from ortune.console.space import show_space

    show_space(make_console(), found)
