"""What `ortune profile` shows: the operators and the nodes that take the time, of one config or of two."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ortune.console.text import duration, plural, ratio, three_digits
from ortune.knobs import describe
from ortune.profile import Breakdown, Part, Profile, Side

MOST_OPS = 15
MOST_NODES = 8

BAR_WIDTH = 10

NAME_WIDTH = 36


def show_profile(console: Console, profile: Profile) -> None:
    """Print the whole page."""
    inputs = ", ".join(f"{name} {data}" for name, data in profile.inputs.items())
    console.print(
        Text.assemble((Path(profile.model).name, "bold"), "  ", (inputs, "dim"), overflow="ellipsis", no_wrap=True)
    )
    sides = [side for side in profile.sides if side.breakdown]
    for side in profile.sides:
        _show_side(console, side)
    console.print()
    breakdowns = [side.breakdown for side in sides if side.breakdown]
    names = [side.name for side in sides]
    console.print(ops_table(breakdowns, names))
    console.print()
    console.print(nodes_table(breakdowns[0], names[0]))
    console.print()
    console.print(
        Text(
            "Profiling itself takes time, most of all around small operators, and counts whole microseconds: read "
            "these as shares. What a config is worth, `ortune search` and `ortune bench` measure.",
            "dim",
        )
    )
    for side in sides:
        console.print(Text.assemble(("trace  ", "cyan"), side.trace or ""), soft_wrap=True)
    console.print(Text("Open it in https://ui.perfetto.dev or chrome://tracing.", "dim"))


def _show_side(console: Console, side: Side) -> None:
    settings = "" if side.config.is_default else f"  [dim]{escape(describe(side.config))}[/]"
    if side.failure:
        console.print(f"  [cyan]{side.name}[/]{settings}")
        console.print(
            Text(f"  {side.name} does not work: {side.failure.kind.replace('_', ' ')}: {side.failure.message}", "red")
        )
        return
    assert side.breakdown is not None
    found = side.breakdown
    console.print(
        f"  [cyan]{side.name:<8}[/]{duration(found.run_ns)} a run: {duration(found.inside_ns)} in operators, "
        f"{duration(found.outside_ns)} outside  [dim]median of {plural(found.n_runs, 'run')}[/]"
    )
    if settings:
        console.print(f"  {'':8}{settings.strip()}")


def ops_table(breakdowns: list[Breakdown], names: list[str]) -> Table:
    """Return the operators, those that take most of the default's time first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operator", no_wrap=True)
    several = len({part.provider for found in breakdowns for part in found.ops}) > 1
    if several:
        table.add_column("on", no_wrap=True, style="dim")
    table.add_column("calls", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("share", justify="right", no_wrap=True)
    table.add_column("/".join(names) if len(names) > 1 else "", no_wrap=True)
    rows = _merge(breakdowns)
    for key, parts in rows[:MOST_OPS]:
        table.add_row(*_cells(key, parts, several), _last(parts))
    rest = rows[MOST_OPS:]
    if rest:
        sums: list[Part | None] = [_sum([parts[number] for _, parts in rest]) for number in range(len(breakdowns))]
        table.add_row(*_cells((f"{len(rest)} others", ""), sums, several), _last(sums), style="dim")
    return table


Key = tuple[str, str]
Row = tuple[Key, list[Part | None]]


def _merge(breakdowns: list[Breakdown]) -> list[Row]:
    """Return the parts of each operator and provider, one for each config; None where a config has none."""
    tables = [{(part.op, part.provider): part for part in found.ops} for found in breakdowns]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows: list[Row] = [(key, [table.get(key) for table in tables]) for key in keys]
    return sorted(rows, key=lambda row: -max(part.ns if part else 0 for part in row[1]))


def _sum(parts: list[Part | None]) -> Part:
    there = [part for part in parts if part]
    return Part(
        name="",
        op="",
        provider="",
        ns=sum(part.ns for part in there),
        share=sum(part.share for part in there),
        calls=sum(part.calls for part in there),
    )


def _cells(key: Key, parts: list[Part | None], several: bool) -> list[str]:
    calls = " ".join(dict.fromkeys(_count(part.calls) for part in parts if part))
    cells = [escape(key[0]), *([key[1]] if several else []), calls.replace(" ", "→")]
    for part in parts:
        cells += [duration(part.ns), f"{part.share:.1%}"] if part else ["", ""]
    return cells


def _count(calls: float) -> str:
    return f"{calls:.0f}" if calls == int(calls) else three_digits(calls)


def _last(parts: list[Part | None]) -> str:
    """Return the ratio of two configs, or a bar for the share of one."""
    first = parts[0]
    if len(parts) == 1:
        return f"[cyan]{'━' * round(BAR_WIDTH * first.share)}[/]" if first else ""
    second = parts[1]
    if first is None or second is None or not first.ns or not second.ns:
        return ""
    value = first.ns / second.ns
    style = "green" if value > 1.05 else "yellow" if value < 0.95 else "dim"
    return f"[{style}]{ratio(value)}[/]"


def nodes_table(breakdown: Breakdown, name: str) -> Table:
    """Return the nodes that take most time."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("node", no_wrap=True)
    table.add_column("operator", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column(name, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for part in breakdown.nodes[:MOST_NODES]:
        short = part.name if len(part.name) <= NAME_WIDTH else f"…{part.name[1 - NAME_WIDTH :]}"
        table.add_row(
            escape(short) or "[dim]unnamed[/]",
            escape(part.op),
            _count(part.calls),
            duration(part.ns),
            f"{part.share:.1%}",
        )
    return table
