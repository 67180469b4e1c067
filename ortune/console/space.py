"""Prints the search space and why each value is tried, for `ortune space`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ortune.console.header import add_inputs, show_guesses
from ortune.console.widgets import format_count, make_grid
from ortune.errors import spell_as_flag, spell_options
from ortune.knobs import SearchSpace, describe, ids
from ortune.workload import Feed

DIMENSION_INDENT = 2
MIN_LABEL_WIDTH = 20

MOST_LISTED_VALUES = 8
"""Maximum number of values between choices that are listed."""


def show_space(
    console: Console, space: SearchSpace, listed: SearchSpace, faults: Mapping[str, str], feed: Feed
) -> None:
    """Print a search space.

    Args:
        console: Where to print.
        space: The search space.
        listed: The same before candidates that are the same program were merged.
        faults: Why execution providers do not work here, by name.
        feed: What the model would be measured with.
    """
    grid = make_grid()
    add_inputs(grid, feed)
    console.print(grid)
    show_guesses(console, feed)
    console.print()
    base = space.base
    if any(dimension.name == ids.BATCH for dimension in space.dimensions):
        base = msgspec.structs.replace(base, batch=1)
    if not base.is_default:
        text = Text.assemble(("fixed  ", "bold"), (describe(base), "cyan"))
        console.print(text.append("  in every candidate and in the baseline", "dim"))
        console.print()
    for dimension in space.dimensions:
        if len(dimension.choices) < 2:
            continue
        console.print(Text(dimension.name, "bold"))
        _show_indented(console, spell_options(dimension.knob.summary, spell_as_flag), "dim")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="cyan", min_width=MIN_LABEL_WIDTH)
        table.add_column(overflow="fold")
        for choice in dimension.choices[1:]:
            table.add_row(Text(choice.label), Text(choice.why))
        if dimension.between:
            labels = [choice.label for choice in dimension.between]
            values = (
                ", ".join(labels)
                if len(labels) <= MOST_LISTED_VALUES
                else f"{len(labels)} from {labels[0]} to {labels[-1]}"
            )
            table.add_row(Text("between these"), Text(f"{values}: next to the best candidates"))
        console.print(Padding(table, (0, 0, 0, DIMENSION_INDENT), expand=False))
    console.print()
    if space.rules:
        console.print(Text("tried first", "bold"))
        for rule in space.rules:
            _show_indented(console, space.select(rule.labels).label, "cyan")
            _show_indented(console, rule.why, indent=2 * DIMENSION_INDENT)
        console.print()
    for name, why in [*((skipped.knob.id, skipped.why) for skipped in space.skipped), *faults.items()]:
        console.print(Text.assemble(("not tried  ", "dim"), f"{name}: {why}"))
    _show_twins(console, space)
    n_candidates = format_count(len(space.candidates), "distinct candidate")
    merged = f"; {len(listed.candidates)} before those that are the same program were merged" if space.twins else ""
    console.print(Text.assemble((n_candidates, "bold"), f", including the baseline{merged}"))


def _show_twins(console: Console, space: SearchSpace) -> None:
    """Print which settings are the same program as others."""
    for twin in space.twins:
        if len(twin.variant.chosen) == 1:
            same = f"{twin.variant.label}: the same optimized graph as {twin.same_as.label}"
            console.print(Text.assemble(("merged  ", "dim"), same))
    if n_combined := sum(len(twin.variant.chosen) > 1 for twin in space.twins):
        combined = format_count(n_combined, "combination") + " of settings of the graph: the same graphs as others"
        console.print(Text.assemble(("merged  ", "dim"), combined))


def _show_indented(console: Console, text: str, style: str = "", indent: int = DIMENSION_INDENT) -> None:
    console.print(Padding(Text(text, style), (0, 0, 0, indent), expand=False))
