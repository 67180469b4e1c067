"""What a page consists of. Every text is plain text: the template escapes it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Tone = Literal["good", "bad", "unsure", "plain"]
"""How a verdict, a cell or a note is to be taken."""


class Chart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A chart.

    Attributes:
        name: Its name: that of its PNG file, and part of its id.
        title: What it shows.
        spec: Its specification in Vega-Lite, with CSS variables as colors.
        note: How to read it.
    """

    name: str
    title: str
    spec: dict[str, Any]
    note: str = ""


class Cell(msgspec.Struct, frozen=True):
    """A cell of a table.

    Attributes:
        text: What it shows.
        key: What rows are sorted by; None for its text.
        tone: How it is to be taken.
    """

    text: str
    key: float | None = None
    tone: Tone = "plain"


class Table(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A table.

    Attributes:
        columns: The headings.
        rows: The cells of each row.
        numeric: Positions of the columns with numbers.
        sortable: Whether the reader can sort and filter the rows.
        title: Its title; empty for none.
        note: How to read it.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[int, ...] = ()
    sortable: bool = False
    title: str = ""
    note: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Names with their values."""

    facts: tuple[tuple[str, str], ...]


class Code(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text to copy.

    Attributes:
        title: What it is; empty for none.
        text: The text.
        note: A line about it.
        folded: Whether it is shown only on request.
    """

    title: str = ""
    text: str
    note: str = ""
    folded: bool = False


class Text(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A paragraph."""

    text: str
    tone: Tone = "plain"


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """A logical CPU on a drawing of the host.

    Attributes:
        id: Its id.
        usable: Whether the measured processes could use it.
        n_threads: Number of pool threads that are pinned to it.
        pool_share: Share of the CPU time of all threads that those of pools spent on it, 0 to 1.
        calls_share: The same for the threads that make calls.
    """

    id: int
    usable: bool
    n_threads: int = 0
    pool_share: float = 0.0
    calls_share: float = 0.0

    @property
    def share(self) -> float:
        """Share of the CPU time of all threads that they spent on it."""
        return self.pool_share + self.calls_share


class HostMap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A drawing of the host's CPUs.

    Attributes:
        title: Whose threads it shows.
        packages: For each package: for each of its cores: its CPUs.
        note: Where the threads may run and did run.
    """

    title: str
    packages: tuple[tuple[tuple[Cpu, ...], ...], ...]
    note: str = ""

    @property
    def largest(self) -> float:
        """The largest share of CPU time of a CPU; 0 if it is unknown where threads ran."""
        return max((cpu.share for package in self.packages for core in package for cpu in core), default=0.0)


Block = Chart | Table | Facts | Code | Text | HostMap


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a page with a heading."""

    title: str
    blocks: tuple[Block, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page.

    Attributes:
        title: Its title.
        verdict: The result, in a line.
        tone: How the verdict is to be taken.
        lead: What the verdict rests on.
        sections: Its sections.
    """

    title: str
    verdict: str
    tone: Tone
    lead: tuple[str, ...] = ()
    sections: tuple[Section, ...]

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All charts, in order."""
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Chart))
