"""Pieces that the output of several commands is made of: consoles, grids, tables, figures with their units."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ortune.console.safe_console import SafeConsole
from ortune.host.topology import list_ranges
from ortune.knobs import KNOBS, Config, describe
from ortune.knobs.knob import Knob
from ortune.measure.comparison import Summary
from ortune.measure.interval import format_speedup
from ortune.numbers import format_digits
from ortune.record.schema import SettingEvidence
from ortune.workload import FIGURES, Figure, is_figure

LOG_WIDTH = 200
"""Width of output that does not go to a terminal."""

MAX_WIDTH = 200
"""Width that lines do not exceed, however wide the terminal is."""

KEPT = "the previous one, which may prove more"
"""Why the copy of a replaced record was kept."""

COLUMN_GAP = 2
"""Columns of the console after each column of a table."""

NOTABLE_CPU = 1.1
"""By which factor a setting must reduce CPU time more than the objective, so that it is said."""

UNLIMITED_WIDTH = 10_000
"""Columns in which every table fits."""

WORST_P99 = "worst p99"
"""The 99th percentile of the slowest process, where there are several."""

LIMIT_STATES = {"yes": ("met", "green"), "no": ("not met", "red"), "unsure": ("uncertain", "yellow")}
"""Text and style for each value of `LimitCheck.kept`."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console of at most `MAX_WIDTH` columns on a terminal, and `LOG_WIDTH` elsewhere."""
    console = SafeConsole(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return SafeConsole(stderr=stderr, width=LOG_WIDTH)
    if console.width > MAX_WIDTH:
        return SafeConsole(stderr=stderr, width=MAX_WIDTH)
    return console


def make_grid() -> Table:
    """Return a grid of names and values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", justify="right", no_wrap=True, min_width=8)
    grid.add_column(overflow="fold")
    return grid


def make_table() -> Table:
    """Return a table without lines."""
    return Table(box=None, pad_edge=False, header_style="dim")


def make_settings_table(
    config: Config, width: int = LOG_WIDTH, contributions: Mapping[str, SettingEvidence] | None = None
) -> RenderableType:
    """Return the settings that differ from ONNX Runtime's default, as a table, or as lines where it is too wide.

    Args:
        config: The config.
        width: Columns of the console.
        contributions: What each setting contributes, by name; None or empty where that is not known.
    """
    rows = []
    for name, value in config.settings.items():
        knob = KNOBS.get(name)
        rows.append([name, format_default(knob) if knob else "not set", str(value)])
        if contributions:
            rows[-1].append(format_contribution(contributions[name]) if name in contributions else "-")
    if find_width(rows) > width:
        narrow = [[name, tuned, *rest] for name, _, tuned, *rest in rows]
        if contributions and find_width(narrow) <= width:
            return make_table_of(narrow, {"setting": "", "tuned": "bold", "contributes": ""})
        return Group(
            *(
                Group(
                    Text(name),
                    Text.assemble(
                        "  ", (tuned, "bold"), (f"  default {default}", "dim"), *(f"  {text}" for text in rest)
                    ),
                )
                for name, default, tuned, *rest in rows
            )
        )
    last = {"contributes": ""} if contributions else {}
    return make_table_of(rows, {"setting": "", "default": "dim", "tuned": "bold", **last})


def find_width(rows: Sequence[Sequence[str]]) -> int:
    """Return how many columns of the console a table of texts needs."""
    return sum(max(map(len, column)) + COLUMN_GAP for column in zip(*rows, strict=True))


def make_table_of(rows: Iterable[Sequence[str]], styles: Mapping[str, str]) -> Table:
    """Return a table of texts, given the style of each column by its heading."""
    table = make_table()
    for heading, style in styles.items():
        table.add_column(heading, style=style or None, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def format_contribution(contribution: SettingEvidence) -> str:
    """Return what a setting contributes, and the change of the CPU time of calls if it saves notably more of that."""
    saves_cpu = contribution.cpu > NOTABLE_CPU * max(contribution.estimate, 1.0)
    saved = f", CPU {1 / contribution.cpu - 1:+.0%}" if saves_cpu else ""
    return f"{format_speedup(contribution)}{saved}"


def add_note(text: str | tuple[str, str], note: str) -> Text:
    """Return a text, with its style if it has one, and a note after it; an empty note adds nothing."""
    return Text.assemble(text, ("  " if note else "", ""), (note, "dim"))


def format_default(knob: Knob) -> str:
    """Return a knob's default in words."""
    return "not set" if knob.default == "" else str(knob.default)


def show_warning(console: Console, text: str) -> None:
    """Print a warning."""
    show_note(console, "warning", text)


def show_note(console: Console, label: str, text: str, style: str = "bold yellow", *, fold: bool = True) -> None:
    """Print a text after a label, such as `written: tuned.json`.

    Args:
        console: Where to print.
        label: What kind of text it is.
        text: The text.
        style: Style of the label.
        fold: Whether to break lines at the edge of the console; not for texts that users copy.
    """
    console.print(Text.assemble((f"{label}: ", style), text), soft_wrap=not fold)


def format_reason(reason: str) -> str:
    """Return a reason as a sentence. Names of figures, such as p50, are not capitalized."""
    text = reason.rstrip(".")
    first = text.partition(" ")[0]
    return f"{text}." if is_figure(first) else f"{text[:1].upper()}{text[1:]}."


def format_baseline(base: Config, batches: Sequence[int] = ()) -> str:
    """Return the name of what candidates are compared with; its number of items in a call is the first of `batches`."""
    single = "with single items" if batches and batches[0] == 1 else ""
    if base.is_default:
        return f"ONNX Runtime's default {single}".rstrip()
    return " and ".join(part for part in (f"the default with {describe(base)}", single) if part)


def format_figure(name: str, value: float) -> str:
    """Return a figure with its unit.

    Args:
        name: Name of the figure, as in `FIGURES`.
        value: Its value, in ns, bytes or calls per second, or a number without a unit.
    """
    formats = {"ns": format_duration, "bytes": format_bytes, "per_s": format_rate, "number": format_number}
    return formats[FIGURES[name].unit](value)


def find_figure(summary: Summary, name: str) -> float:
    """Return a figure of a summary, given its name as in `FIGURES`; 0 where it is not known."""
    return float(summary.get_figure(name) or 0)


def format_figures(figure: Figure, sides: Sequence[Summary]) -> list[str]:
    """Return a figure of each side with its unit."""
    return [format_figure(figure.name, find_figure(side, figure.name)) for side in sides]


def format_duration(ns: float) -> str:
    """Return a duration with three digits, such as `12.3 ms`."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= factor:
            return f"{format_number(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


MOST_SHOWN_BYTES = 1e300
"""Records of others may hold whole numbers that no floating-point number can hold."""


def format_bytes(n_bytes: float) -> str:
    """Return a number of bytes with three digits, such as `67.9 MB`."""
    n_bytes = min(n_bytes, MOST_SHOWN_BYTES)
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{format_number(n_bytes / factor)} {unit}"
    return f"{n_bytes:.0f} B"


def format_rate(per_s: float) -> str:
    """Return a rate with three digits, such as `12.3/s`."""
    return f"{format_number(per_s)}/s"


def format_number(value: float) -> str:
    """Return a number with three digits."""
    if value < 1:
        return format_digits(value)
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPUs as ranges, such as `0-3,8`."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in list_ranges(cpus))


def format_pairs(n_pairs: int, n_launches: int) -> str:
    """Return what a comparison rests on."""
    return f"{format_count(n_pairs, 'paired block')} in {format_count(n_launches, 'launch', 'launches')}"


def format_count(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun, such as `1 core` or `2 cores`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
