"""Shows a profile: the slowest operators and nodes, for one config or two."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.widgets import format_count, format_duration, format_number, make_table
from ortune.knobs import describe
from ortune.knobs.config import CUDA_BASED
from ortune.numbers import format_ratio
from ortune.profile.run import ConfigProfile, Profile
from ortune.profile.trace import Breakdown, TimeShare

MAX_OPS = 15
MAX_NODES = 8

SHARE_BAR_WIDTH = 10

NAME_WIDTH = 36


def show_profile(console: Console, profile: Profile) -> None:
    """Print a profile."""
    inputs = ", ".join(f"{name} {data}" for name, data in profile.inputs.items())
    console.print(
        Text.assemble((Path(profile.model).name, "bold"), "  ", (inputs, "dim"), overflow="ellipsis", no_wrap=True)
    )
    if profile.n_sizes > 1:
        note = f"The record has {profile.n_sizes} sizes of the inputs. This is the first one; --dim selects another."
        console.print(Text(note, "yellow"))
    for found in profile.configs:
        _show_config(console, found)
    console.print()
    breakdowns = {found.name: found.breakdown for found in profile.configs if found.breakdown}
    console.print(make_ops_table(breakdowns))
    console.print()
    name = next(iter(breakdowns))
    console.print(make_nodes_table(breakdowns[name], name))
    console.print()
    console.print(
        Text(
            "All times are medians over runs. Profiling adds time, mostly around small operators, and counts whole "
            "microseconds: compare shares, not times. To measure a config, use `ortune bench`.",
            "dim",
        )
    )
    if any(found.config.provider in CUDA_BASED for found in profile.configs):
        note = (
            "On a GPU, the time of an operator is the time to launch its kernels or to wait for earlier kernels, not "
            "their run time. Captured graphs are turned off for profiling."
        )
        console.print(Text(note, "dim"))
    for found in profile.configs:
        if found.trace:
            console.print(Text.assemble(("trace  ", "cyan"), found.trace), soft_wrap=True)
    console.print(Text("Open traces in https://ui.perfetto.dev or chrome://tracing.", "dim"))


def _show_config(console: Console, found: ConfigProfile) -> None:
    settings = Text("" if found.config.is_default else describe(found.config), "dim")
    name = (f"  {found.name:<8}", "cyan")
    if found.failure:
        failure = found.failure
        console.print(Text.assemble(name, settings))
        console.print(Text(f"  {found.name} failed: {failure.title}: {failure.message}", "red"))
        return
    assert found.breakdown is not None
    times = found.breakdown
    console.print(
        Text.assemble(
            name,
            f"{format_duration(times.run_ns)} per run: {format_duration(times.inside_ns)} in operators, ",
            f"{format_duration(times.outside_ns)} outside  ",
            (format_count(times.n_runs, "run"), "dim"),
        )
    )
    if settings:
        console.print(Text.assemble(" " * 10, settings))


def make_ops_table(breakdowns: dict[str, Breakdown]) -> Table:
    """Return a table of the operators, the slowest first, with the time of each config."""
    table = make_table()
    table.add_column("operator", no_wrap=True)
    with_provider = len({share.provider for found in breakdowns.values() for share in found.ops}) > 1
    if with_provider:
        table.add_column("provider", no_wrap=True, style="dim")
    table.add_column("calls", justify="right", no_wrap=True)
    for name in breakdowns:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("share", justify="right", no_wrap=True)
    table.add_column("/".join(breakdowns) if len(breakdowns) > 1 else "", no_wrap=True)
    rows = _merge(list(breakdowns.values()))
    for key, shares in rows[:MAX_OPS]:
        table.add_row(*_make_cells(key, shares, with_provider), _make_last_cell(shares))
    rest = rows[MAX_OPS:]
    if rest:
        sums: list[TimeShare | None] = [_sum([shares[index] for _, shares in rest]) for index in range(len(breakdowns))]
        cells = _make_cells((f"{len(rest)} others", ""), sums, with_provider)
        table.add_row(*cells, _make_last_cell(sums), style="dim")
    return table


Key = tuple[str, str]
Row = tuple[Key, list[TimeShare | None]]


def _merge(breakdowns: list[Breakdown]) -> list[Row]:
    """Return the times of each operator and provider in each breakdown; None if it is not in a breakdown."""
    tables = [{(share.op, share.provider): share for share in found.ops} for found in breakdowns]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows: list[Row] = [(key, [table.get(key) for table in tables]) for key in keys]
    return sorted(rows, key=lambda row: -max(share.ns if share else 0 for share in row[1]))


def _sum(shares: list[TimeShare | None]) -> TimeShare:
    present = [share for share in shares if share]
    return TimeShare(
        name="",
        op="",
        provider="",
        ns=sum(share.ns for share in present),
        share=sum(share.share for share in present),
        calls=sum(share.calls for share in present),
    )


def _make_cells(key: Key, shares: list[TimeShare | None], with_provider: bool) -> list[str]:
    calls = "→".join(dict.fromkeys(_format_calls(share.calls) for share in shares if share))
    cells = [key[0], *([key[1]] if with_provider else []), calls]
    for share in shares:
        cells += [format_duration(share.ns), f"{share.share:.1%}"] if share else ["", ""]
    return cells


def _format_calls(calls: float) -> str:
    return f"{calls:.0f}" if calls == int(calls) else format_number(calls)


def _make_last_cell(shares: list[TimeShare | None]) -> Text:
    """Return a bar for the share of one config, or the ratio of two."""
    first = shares[0]
    if len(shares) == 1:
        return Text("━" * round(SHARE_BAR_WIDTH * first.share) if first else "", "cyan")
    second = shares[1]
    if first is None or second is None or not first.ns or not second.ns:
        return Text()
    value = first.ns / second.ns
    if value > 1.05:
        style = "green"
    elif value < 0.95:
        style = "yellow"
    else:
        style = "dim"
    return Text(format_ratio(value), style)


def make_nodes_table(breakdown: Breakdown, name: str) -> Table:
    """Return a table of the slowest nodes of one config."""
    table = make_table()
    table.add_column("node", no_wrap=True)
    table.add_column("operator", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column(name, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for node in breakdown.nodes[:MAX_NODES]:
        short = node.name if len(node.name) <= NAME_WIDTH else f"…{node.name[1 - NAME_WIDTH :]}"
        table.add_row(
            short or Text("unnamed", "dim"),
            node.op,
            _format_calls(node.calls),
            format_duration(node.ns),
            f"{node.share:.1%}",
        )
    return table
