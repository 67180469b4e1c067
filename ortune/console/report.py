"""What `ortune report` prints: the gates of a history over time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.text import Text

from ortune.console.gate import STYLES
from ortune.console.widgets import make_table
from ortune.gates.reporters.history import HistoryEntry
from ortune.gates.reporters.messages import describe_cost, describe_interval

WIDE_FOR_NAMES = 100
"""Minimum number of columns to show how head was named."""


def show_history(console: Console, entries: Sequence[HistoryEntry]) -> None:
    """Print the gates of a history."""
    table = make_table()
    columns = ["time", "gate", "decision", "head vs. base"]
    columns += ["head"] if console.width >= WIDE_FOR_NAMES else []
    for column in columns:
        table.add_column(column, overflow="fold")
    for entry in entries:
        lines = [
            Text(f"{describe_cost(name)} {describe_interval(interval)}") for name, interval in entry.slowdowns.items()
        ]
        table.add_row(
            entry.time[:16].replace("T", " "),
            entry.name,
            Text(entry.decision, STYLES.get(entry.decision, "red")),
            Group(*lines) if lines else entry.reason,
            *([entry.head] if console.width >= WIDE_FOR_NAMES else []),
        )
    console.print(table)
