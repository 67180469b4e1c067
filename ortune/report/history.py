"""The page about a history of gates."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

import msgspec

from ortune.console.widgets import format_count, format_duration
from ortune.errors import UsageError
from ortune.gates.reporters.history import HistoryEntry
from ortune.gates.reporters.messages import describe_allowed, describe_cost, describe_interval
from ortune.gates.trends import Change, find_changes
from ortune.report.blocks import Block, Cell, Chart, Page, Section, Table, Text, Tone
from ortune.report.charts.gates import GateMark, draw_gates
from ortune.report.charts.style import is_drawable

TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "unsure", "error": "bad"}


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


def make_page(entries: Sequence[HistoryEntry], name: str) -> Page:
    """Return the page about a history.

    Args:
        entries: The gates; at least one.
        name: Name of the file.
    """
    last = {entry.name: entry for entry in sorted(entries, key=lambda entry: to_utc(entry.time))}
    bad = [entry for entry in last.values() if entry.decision in {"fail", "error"}]
    unsure = [entry for entry in last.values() if entry.decision == "inconclusive"]
    if bad:
        verdict, tone = f"Failing: {', '.join(entry.name for entry in bad)}", TONES["fail"]
    elif unsure:
        verdict, tone = f"Inconclusive: {', '.join(entry.name for entry in unsure)}", TONES["inconclusive"]
    else:
        verdict, tone = "The gate passes" if len(last) == 1 else f"All {len(last)} gates pass", TONES["pass"]
    counts = Counter(entry.decision for entry in entries)
    lead = (
        f"{format_count(len(entries), 'run')} of {format_count(len(last), 'gate')}: "
        + ", ".join(f"{count} {decision}" for decision, count in counts.items())
        + ".",
    )
    sections = [Section(title=gate, blocks=show_gate(gate, number, entries)) for number, gate in enumerate(last, 1)]
    sections.append(Section(title="All runs", blocks=(tabulate_entries(entries),)))
    return Page(title=f"{name}: gates", verdict=verdict, tone=tone, lead=lead, sections=tuple(sections))


def show_gate(gate: str, number: int, entries: Sequence[HistoryEntry]) -> tuple[Block, ...]:
    """Return the charts of a gate, one for each objective."""
    own = [entry for entry in entries if entry.name == gate]
    own.sort(key=lambda entry: to_utc(entry.time))
    objectives = list(dict.fromkeys(objective for entry in own for objective in entry.slowdowns))
    blocks: list[Block] = []
    for objective in objectives:
        measured = [entry for entry in own if objective in entry.slowdowns]
        allowed = measured[-1].allowed[objective]
        is_same = len({entry.allowed[objective] for entry in measured}) == 1
        of_run = "" if is_same else " in the latest run"
        marks = [
            GateMark(
                time=to_utc(entry.time),
                slowdown=entry.slowdowns[objective],
                decision=entry.decision,
                head=entry.head,
            )
            for entry in measured
        ]
        changes = [change for change in find_levels(measured, objective) if change.holds]
        blocks.append(
            Chart(
                name=f"gate-{number}-{objective}" if objective.isidentifier() else f"gate-{number}-{len(blocks) + 1}",
                title=describe_cost(objective),
                spec=draw_gates(marks, allowed, [marks[change.first].time for change in changes]),
                note="Cost of head relative to base with its interval. Dashed: allowed "
                f"{describe_allowed(allowed)}{of_run}.",
            )
        )
        blocks += [describe_change(change, measured) for change in changes]
    if not objectives:
        blocks.append(Text(text=f"No run of it has figures. {own[-1].reason}", tone="unsure"))
    return tuple(blocks)


def describe_change(change: Change, entries: Sequence[HistoryEntry]) -> Text:
    """Return a change of level in words."""
    first, found = (entries[place] for place in (change.first, change.found))
    times = [entry.time[:16].replace("T", " ") for entry in (first, found)]
    head = f" ({first.head})" if first.head else ""
    return Text(
        text=f"The level changed by {100 * (change.ratio - 1):+.1f}% with the run of {times[0]}{head}. "
        f"It was found with the run of {times[1]}.",
        tone="bad" if change.ratio > 1 else "good",
    )


def find_levels(entries: Sequence[HistoryEntry], objective: str) -> tuple[Change, ...]:
    """Return the changes of level of a gate in one objective, in the order of their runs.

    Runs with another base, on another class of host or under another load have another level, whatever head is. Each
    such series is tested alone, without runs that could decide nothing. A series in which a slowdown is not a ratio has
    no changes.
    """
    series: dict[tuple[str, ...], list[int]] = {}
    for place, entry in enumerate(entries):
        if not entry.is_void:
            series.setdefault(entry.conditions, []).append(place)
    changes: list[Change] = []
    for places in series.values():
        values = [entries[place].slowdowns[objective].estimate for place in places]
        if all(map(is_drawable, values)):
            changes += [
                msgspec.structs.replace(change, first=places[change.first], found=places[change.found])
                for change in find_changes(values)
            ]
    return tuple(sorted(changes, key=lambda change: change.first))


def to_utc(time: str) -> str:
    """Return a time in UTC, which sorts as text. Times without a zone are taken as UTC."""
    parsed = datetime.datetime.fromisoformat(time)
    if parsed.tzinfo is not None:
        try:
            parsed = parsed.astimezone(datetime.UTC)
        except OverflowError:
            parsed = parsed.replace(tzinfo=None)
    return parsed.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def tabulate_entries(entries: Sequence[HistoryEntry]) -> Table:
    """Return a table of all runs, the latest first."""
    rows = []
    for entry in sorted(entries, key=lambda entry: to_utc(entry.time), reverse=True):
        figures = "; ".join(
            f"{describe_cost(objective)} {describe_interval(interval)}"
            for objective, interval in entry.slowdowns.items()
        )
        at_s = datetime.datetime.fromisoformat(to_utc(entry.time)).timestamp()
        rows.append(
            (
                Cell(entry.time[:16].replace("T", " "), key=at_s),
                Cell(entry.name),
                Cell(entry.decision, tone=TONES.get(entry.decision, "bad")),
                Cell(figures or entry.reason),
                Cell(entry.head),
                Cell(entry.onnxruntime),
                Cell(format_duration(1e9 * entry.wall_s) if entry.wall_s else "", key=entry.wall_s),
            )
        )
    return Table(
        columns=("time", "gate", "decision", "head vs. base", "head", "onnxruntime", "duration"),
        rows=tuple(rows),
        numeric=(6,),
        sortable=True,
    )
