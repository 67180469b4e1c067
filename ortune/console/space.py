"""What `ortune space` shows: every choice, and why it is tried."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ortune.console.text import plural
from ortune.knobs import SearchSpace, describe


def show_space(console: Console, space: SearchSpace, faults: Mapping[str, str]) -> None:
    """Print the dimensions, the knobs that are left out, and the providers that do not work."""
    if not space.base.is_default:
        console.print(f"[bold]in every candidate[/]  [cyan]{escape(describe(space.base))}[/]\n")
    for dimension in space.dimensions:
        if len(dimension.choices) < 2:
            continue
        console.print(f"[bold]{dimension.name}[/]  [dim]{escape(dimension.knob.summary)}[/]")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="cyan", min_width=22)
        table.add_column(overflow="fold")
        for choice in dimension.choices[1:]:
            table.add_row(f"  {escape(choice.label)}", escape(choice.why))
        console.print(table)
    if space.rules:
        console.print("[bold]tried first[/]")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", min_width=22)
        table.add_column(overflow="fold")
        for rule in space.rules:
            table.add_row(f"  {escape(space.select(rule.labels).label)}", escape(rule.why))
        console.print(table)
    console.print()
    for skipped in space.skipped:
        console.print(f"[dim]not tried[/]  {skipped.knob.id}: {escape(skipped.why)}")
    for name, fault in faults.items():
        console.print(f"[dim]not tried[/]  {name}: {escape(fault)}")
    n_candidates = len(space.candidates)
    console.print(f"[bold]{plural(n_candidates, 'distinct candidate')}[/], the default among them")
