"""Results as Markdown, for the summary page of a CI run."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gates.reporters.messages import (
    SIGNS,
    describe_allowed,
    describe_cost,
    describe_interval,
    describe_sides,
)
from ortune.gates.results import GateError, GateResult
from ortune.sanitize import escape_markdown

TITLE = "### ortune gate"


def render_markdown(results: Sequence[GateResult | GateError]) -> str:
    """Return a page with a table, one row per objective of each gate, and notes."""
    lines = [
        TITLE,
        "",
        "| gate | | head vs. base | 99% interval | allowed | paired blocks |",
        "|---|---|---|---|---|---|",
        *(row for result in results for row in _make_rows(result)),
        "",
        *(f"- {note}" for note in _make_notes(results)),
        "",
    ]
    return "\n".join(lines)


def _make_rows(result: GateResult | GateError) -> list[str]:
    head = (escape_markdown(result.name), f"{SIGNS[result.decision]} {result.decision}")
    if isinstance(result, GateError) or not result.findings:
        return [f"| {' | '.join(head)} | | | | |"]
    rows = []
    for number, finding in enumerate(result.findings):
        estimate, _, interval = describe_interval(finding.slowdown).partition(" ")
        figures = (
            f"{describe_cost(finding.objective)} {estimate}",
            interval,
            describe_allowed(finding.allowed).removeprefix("+"),
        )
        rows.append(f"| {' | '.join((*(('', '') if number else head), *figures, str(result.pairs)))} |")
    return rows


def _make_notes(results: Sequence[GateResult | GateError]) -> list[str]:
    notes = []
    for result in results:
        name = escape_markdown(result.name)
        if isinstance(result, GateResult):
            base, head = describe_sides(result)
            notes.append(f"**{name}**: base {escape_markdown(base)}; head {escape_markdown(head)}.")
            notes += [f"{name}: {escape_markdown(note)}" for note in result.notes]
        notes.append(f"{SIGNS[result.decision]} {name}: {escape_markdown(result.reason)}")
    measured = [result for result in results if isinstance(result, GateResult)]
    if measured:
        host = measured[0].host
        how = "one after the other" if any(result.noise.one_at_a_time for result in measured) else "interleaved"
        notes.append(
            "Percentages are the cost of head relative to base; above 0% is worse. Both sides were measured "
            f"{how} on {escape_markdown(host.cpu_name)}, {host.n_usable} CPUs."
        )
    notes.extend(
        f"{escape_markdown(result.name)}: base vs. a second copy of itself {describe_interval(result.self_check)}."
        for result in measured
        if result.self_check
    )
    return notes
