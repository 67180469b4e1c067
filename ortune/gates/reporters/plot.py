"""A plot of a history of gates: slowdowns over time."""

from __future__ import annotations

import datetime
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortune.errors import UsageError
from ortune.gates.reporters.history import HistoryEntry
from ortune.gates.reporters.messages import describe_cost
from ortune.record.files import write_atomically
from ortune.sanitize import printable

SUFFIXES = (".svg", ".png", ".pdf")

COLORS = {"pass": "tab:green", "fail": "tab:red", "inconclusive": "tab:orange"}
"""Color of each decision."""

LONGEST_TITLE = 90
"""Length that fits above a panel."""

MARGIN = datetime.timedelta(hours=12)
"""Time around a single point; matplotlib would show years."""


def choose_entries(entries: Sequence[HistoryEntry], names: Sequence[str]) -> tuple[HistoryEntry, ...]:
    """Return the entries of the named gates, or all entries if no gate is named.

    Raises:
        UsageError: A named gate has no entry.
    """
    known = list(dict.fromkeys(entry.name for entry in entries))
    for name in names:
        if name not in known:
            raise UsageError(f"{name}: the history has no such gate. It has {', '.join(known)}.", option="only")
    return tuple(entry for entry in entries if not names or entry.name in names)


def draw_history(entries: Sequence[HistoryEntry], path: Path) -> None:
    """Draw slowdowns with their intervals over time, one panel per gate and objective.

    Raises:
        UsageError: The file's suffix is not supported, it cannot be written, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}.", option="output")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}.", option="output")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "Plots need matplotlib, which is not installed.",
            "Install it with pip install matplotlib, or leave out {output}.",
        ) from None
    panels = list(dict.fromkeys((entry.name, objective) for entry in entries for objective in entry.slowdowns))
    if not panels:
        raise UsageError("There is nothing to draw: the history has no measured gate.")
    figure = Figure(figsize=(8, 0.6 + 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axis, (name, objective) in zip(axes, panels, strict=True):
        draw_panel(axis, [entry for entry in entries if entry.name == name and objective in entry.slowdowns], objective)
        title = printable(f"{name}: {describe_cost(objective)}")
        title = title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"
        # A name is not a formula, even with a $ in it.
        axis.set_title(title, fontsize=10, loc="left", parse_math=False)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # Not every name has a glyph in matplotlib's font.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(drawn, format=path.suffix[1:].lower())
    write_atomically(path, drawn.getvalue())


def draw_panel(axis: Any, entries: Sequence[HistoryEntry], objective: str) -> None:
    """Draw one objective of one gate.

    Args:
        axis: matplotlib's axes.
        entries: Entries of the gate that have the objective; at least one.
        objective: Name of the objective.
    """
    times = [datetime.datetime.fromisoformat(entry.time) for entry in entries]
    for time, entry in zip(times, entries, strict=True):
        interval = entry.slowdowns[objective]
        low, middle, high = (100 * (each - 1) for each in (interval.low, interval.estimate, interval.high))
        color = COLORS.get(entry.decision, "gray")
        axis.errorbar([time], [middle], yerr=[[middle - low], [high - middle]], fmt="o", color=color, capsize=3)
    allowed = 100 * (entries[-1].allowed[objective] - 1)
    axis.axhline(allowed, color="gray", linestyle="--", linewidth=1)
    axis.annotate(
        f"allowed {allowed:+.3g}%",
        (0.005, allowed),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
    )
    if len(set(times)) == 1:
        axis.set_xlim(times[0] - MARGIN, times[0] + MARGIN)
    axis.axhline(0, color="black", linewidth=0.5)
    axis.set_ylabel("head vs. base, %")
