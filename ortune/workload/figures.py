"""Figures of a config under a load, which can be objectives and limits.

`FIGURES` has a row for each. Whatever lists figures reads the rows: options and their help, completion, records, tables
on the screen and in reports, sentences about gains, the documentation. How a figure that is no percentile is computed
from blocks is in `ortune.measure.compute_figures`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from ortune.errors import UsageError

PERCENTILE = r"p[5-9][0-9](\.[0-9]{0,2}[1-9])?"
"""Names of percentiles: from p50 to p99.999, each with one spelling."""

Unit = Literal["ns", "bytes", "per_s", "number"]

TableName = Literal["search", "program", "bench", "gate", "fleet"]
"""Tables of figures: that of a search, which is on the screen and in reports, and those of other commands."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a config under a load.

    Attributes:
        name: Its name in options.
        title: Its name in tables with a row for each figure.
        title_of_items: The same, where it refers to the items of calls; empty if only `per call` changes in the title.
        heading: Its name in tables with a column for each figure; empty if it is the name in options.
        unit: Unit of its values.
        percentile: For percentiles of latency: which one, between 0 and 100.
        is_latency: Whether it is about the latency of calls.
        is_total: Whether it is a total divided by another one: all calls count, also the rare slow ones.
        larger_is_better: Whether larger values are better.
        only_of: What alone has it: "models" or "programs"; empty if both have it.
        field: Field of `Summary` that holds it; empty if it is among the `others` there.
        tables: Tables that always have it. Others have it if it is an objective or a limit.
        gain: What the ratio to a baseline means, as the start of a sentence that ends with the baseline's name. Empty
            for latencies.
        saving: What a gain means to readers who do not know the terms, as the start of a sentence; empty if calls take
            less time, and if larger values are better.
        meaning: What it is, for the documentation.
        meaning_of_items: What it refers to if calls have several items, for the documentation.
    """

    name: str
    title: str
    title_of_items: str = ""
    heading: str = ""
    unit: Unit = "ns"
    percentile: float | None = None
    is_latency: bool = False
    is_total: bool = False
    larger_is_better: bool = False
    only_of: Literal["", "models", "programs"] = ""
    field: str = ""
    tables: frozenset[TableName] = frozenset()
    gain: str = ""
    saving: str = ""
    meaning: str
    meaning_of_items: str = "the same"

    @property
    def is_speed(self) -> bool:
        """Whether it is about how fast calls are: a latency or a throughput."""
        return self.is_latency or self.unit == "per_s"

    def name_row(self, unit: str = "call") -> str:
        """Return its name in a table with a row for each figure.

        Args:
            unit: What it refers to, such as a call, an item or a request.
        """
        if unit == "item" and self.title_of_items:
            return self.title_of_items
        return self.title.replace("per call", f"per {unit}")

    @property
    def name_column(self) -> str:
        """Its name in a table with a column for each figure."""
        return self.heading or self.name


def make_percentile(point: float, field: str = "", tables: frozenset[TableName] = frozenset()) -> Figure:
    """Return the row of a percentile of latency."""
    typical = "{ratio} as fast as"
    return Figure(
        name=f"p{point:g}",
        title=f"p{point:g} latency",
        percentile=point,
        is_latency=True,
        field=field,
        tables=tables,
        gain=typical if point == 50 else "",
        saving="" if point == 50 else f"The time that {point:g}% of the calls do not exceed is {{share}}% less",
        meaning="latency",
        meaning_of_items="per call",
    )


class FigureTable(dict[str, Figure]):
    """The rows by name. A percentile that has none, such as p99.9, gets one where it is looked up."""

    def __missing__(self, name: str) -> Figure:
        if not re.fullmatch(PERCENTILE, name):
            raise KeyError(name)
        return make_percentile(float(name[1:]))


LOCAL_TABLES: frozenset[TableName] = frozenset({"search", "program", "bench", "gate"})
"""Tables about what was measured on a host."""

ALL_TABLES: frozenset[TableName] = LOCAL_TABLES | {"fleet"}

FIGURES = FigureTable(
    (figure.name, figure)
    for figure in (
        make_percentile(50, "p50_ns", ALL_TABLES),
        make_percentile(90, "p90_ns", frozenset({"search", "program"})),
        make_percentile(95, "p95_ns"),
        make_percentile(99, "p99_ns", ALL_TABLES),
        Figure(
            name="mean",
            title="mean latency",
            is_latency=True,
            is_total=True,
            field="mean_ns",
            tables=frozenset({"search", "program", "fleet"}),
            meaning="latency",
            meaning_of_items="per call",
        ),
        Figure(
            name="throughput",
            title="throughput",
            title_of_items="items",
            unit="per_s",
            is_total=True,
            larger_is_better=True,
            field="calls_per_s",
            tables=LOCAL_TABLES,
            gain="{ratio} the throughput of",
            meaning="calls per second, summed over all clients and processes",
            meaning_of_items="items per second",
        ),
        Figure(
            name="cpu",
            title="CPU time per call",
            heading="CPU",
            is_total=True,
            field="cpu_ns_per_call",
            tables=ALL_TABLES,
            gain="{ratio} less CPU time per {unit} than",
            saving="Each call uses {share}% less CPU time",
            meaning="CPU time of the whole process, or of all processes, per call, including threads that spin between "
            "calls",
            meaning_of_items="per item",
        ),
        Figure(
            name="memory",
            title="peak memory",
            unit="bytes",
            field="peak_bytes",
            tables=LOCAL_TABLES,
            gain="{ratio} less memory than",
            saving="The model needs {share}% less memory",
            meaning="peak resident memory of the process, or of all processes",
        ),
        Figure(
            name="load-time",
            title="session creation",
            heading="creation",
            only_of="models",
            field="load_ns",
            tables=frozenset({"search", "gate"}),
            gain="{ratio} as fast to create as",
            saving="The model loads in {share}% less time",
            meaning="time to create the session",
        ),
        Figure(
            name="metric",
            title="metric",
            unit="number",
            only_of="programs",
            field="metric",
            gain="{ratio} lower metric than",
            meaning="number that a program prints, where a smaller one is better",
        ),
        Figure(
            name="score",
            title="score",
            unit="number",
            only_of="programs",
            larger_is_better=True,
            field="metric",
            gain="{ratio} the score of",
            meaning="number that a program prints, where a larger one is better",
        ),
    )
)
"""The rows, in the order of tables."""

OF_PROGRAMS = frozenset(figure.name for figure in FIGURES.values() if figure.only_of == "programs")
"""Figures that only programs have."""

OTHER_NAMES = "|".join(figure.name for figure in FIGURES.values() if figure.percentile is None)

# Without the last part, a name with a line break after it would match, too.
Objective = Annotated[str, msgspec.Meta(pattern=rf"^({PERCENTILE}|{OTHER_NAMES})$(?!\n)")]
"""The name of a figure, which a search can optimize: one of `FIGURES`, or another percentile."""


def is_figure(name: str) -> bool:
    """Return whether a figure has this name."""
    return name in FIGURES or re.fullmatch(PERCENTILE, name) is not None


def list_figures_of_models() -> list[Figure]:
    """Return the figures that a model can be optimized for."""
    return [figure for figure in FIGURES.values() if figure.name not in OF_PROGRAMS]


def list_names(figures: Iterable[Figure]) -> list[str]:
    """Return the names of figures for users to choose from, with the hint that there are other percentiles."""
    rows = list(figures)
    percentiles = [figure.name for figure in rows if figure.percentile is not None]
    others = [figure.name for figure in rows if figure.percentile is None]
    return [*percentiles, "another percentile such as p99.9", *others]


def parse_objective(name: str) -> Objective:
    """Return the objective of that name.

    Raises:
        UsageError: There is none.
    """
    if not is_figure(name):
        *names, last = list_names(list_figures_of_models())
        raise UsageError(f"{name}: is not a figure.", f"Choose one of {', '.join(names)} or {last}.")
    return name


def list_figures(table: TableName, named: Iterable[str]) -> list[Figure]:
    """Return the figures of a table: those that it always has, and those that the user named.

    Percentiles come first, in ascending order. Others that are there because they were named are next.

    Args:
        table: The table.
        named: Names of objectives, and of figures with limits.
    """
    places = {name: place for place, name in enumerate(FIGURES)}

    def find_place(figure: Figure) -> tuple[int, float]:
        if figure.percentile is not None:
            return 0, figure.percentile
        return 2 if table in figure.tables else 1, places[figure.name]

    usual = [name for name, figure in FIGURES.items() if table in figure.tables]
    return sorted((FIGURES[name] for name in {*usual, *named}), key=find_place)
