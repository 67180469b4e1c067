"""`ortune report`: draws a history of gates."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from ortune.errors import UsageError
from ortune.gate.reporters.history import Entry
from ortune.gate.reporters.messages import cost_of

SUFFIXES = (".svg", ".png", ".pdf")

HALF_A_DAY = datetime.timedelta(hours=12)

COLOURS = {"pass": "tab:green", "fail": "tab:red", "inconclusive": "tab:orange"}


def choose_entries(entries: Sequence[Entry], names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries of some gates, or all if none is named.

    Raises:
        UsageError: There are none of a name.
    """
    known = list(dict.fromkeys(entry.name for entry in entries))
    for name in names:
        if name not in known:
            raise UsageError(f"--only {name}: the history has no such gate; it has {', '.join(known)}.")
    return tuple(entry for entry in entries if not names or entry.name in names)


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Draw slowdowns with their intervals over time: a panel for each gate and objective.

    Raises:
        UsageError: The file's kind is not known, it cannot be written, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"-o {path}: this is none of {', '.join(SUFFIXES)}.", "Name such a file.")
    if not path.parent.is_dir():
        raise UsageError(f"Cannot write {path}: there is no folder {path.parent}.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "Drawing needs matplotlib, which is not installed.", "pip install 'ortune[report]', or leave -o out."
        ) from None
    panels = list(dict.fromkeys((entry.name, objective) for entry in entries for objective in entry.slowdowns))
    if not panels:
        raise UsageError("There is nothing to draw: no gate of the history was measured.")
    figure = Figure(figsize=(8, 0.6 + 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axis, (name, objective) in zip(axes, panels, strict=True):
        shown = [entry for entry in entries if entry.name == name and objective in entry.slowdowns]
        for entry in shown:
            interval = entry.slowdowns[objective]
            time = datetime.datetime.fromisoformat(entry.time)
            low, middle, high = (100 * (each - 1) for each in (interval.low, interval.estimate, interval.high))
            colour = COLOURS.get(entry.decision, "gray")
            axis.errorbar([time], [middle], yerr=[[middle - low], [high - middle]], fmt="o", color=colour, capsize=3)
        allowed = 100 * (shown[-1].allowed[objective] - 1)
        axis.axhline(allowed, color="gray", linestyle="--", linewidth=1)
        axis.annotate(
            f"allowed {allowed:+.3g} %",
            (0.005, allowed),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
        )
        times = [datetime.datetime.fromisoformat(entry.time) for entry in shown]
        if len(set(times)) == 1:
            # Around a single point in time, matplotlib shows years.
            axis.set_xlim(times[0] - HALF_A_DAY, times[0] + HALF_A_DAY)
        axis.axhline(0, color="black", linewidth=0.5)
        axis.set_title(f"{name}: {cost_of(objective)}", fontsize=10, loc="left")
        axis.set_ylabel("head against base, %")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
