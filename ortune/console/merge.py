"""What `ortune merge` prints: the records of a bundle, and those that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ortune.console.widgets import format_count, make_table, show_note
from ortune.knobs import describe
from ortune.record.schema import Bundle
from ortune.record.select import Sourced


def show_bundle(console: Console, bundle: Bundle, dropped: Sequence[Sourced], path: Path) -> None:
    """Print what is in a bundle, and what was left out.

    Args:
        console: Where to print.
        bundle: The bundle.
        dropped: Records that are not in it.
        path: Where it was written.
    """
    table = make_table()
    for column in ("model", "host", "load", "config"):
        table.add_column(column, overflow="fold")
    for record in bundle.records:
        host = record.host
        quota = f", quota {host.cpu_quota:g}" if host.cpu_quota else ""
        table.add_row(
            Path(record.model.path).name,
            f"{host.cpu_name}, {host.n_usable} of {host.n_logical} CPUs{quota}",
            str(record.workload.load),
            describe(record.config),
        )
    console.print(table)
    console.print()
    for sourced in dropped:
        why = (
            "the same record was given twice"
            if sourced.record in bundle.records
            else "another record of an equal search is later, or has more evidence"
        )
        show_note(console, "skipped", f"{sourced.source}: {why}")
    show_note(console, "written", f"{path}, {format_count(len(bundle.records), 'record')}", "green")
