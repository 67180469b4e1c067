"""Results as Markdown, for the summary page of a CI run."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gate.told.words import SIGNS, decision_of, describe_interval, describe_sides, percent, reason_of
from ortune.gate.values import GateError, GateResult


def markdown(results: Sequence[GateResult | GateError]) -> str:
    """Return the page: a table with a row for each objective of each gate, and what to know about them."""
    lines = [
        "### ortune gate",
        "",
        "| gate | | head against base | 99 % interval | allowed | pairs |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for result in results:
        decision = decision_of(result)
        sign = f"{SIGNS[decision]} {decision}"
        if isinstance(result, GateError):
            lines.append(f"| {_cell(result.name)} | {sign} | | | | |")
        else:
            for number, finding in enumerate(result.findings):
                estimate, _, interval = describe_interval(finding.slowdown).partition(" ")
                lines.append(
                    f"| {_cell(result.name) if not number else ''} | {sign if not number else ''} "
                    f"| {finding.objective} {estimate} | {interval} | {percent(finding.allowed)} | {result.pairs} |"
                )
            base, head = describe_sides(result)
            notes.append(f"**{_cell(result.name)}**: base {_cell(base)}; head {_cell(head)}.")
        notes.append(f"{SIGNS[decision]} {_cell(result.name)}: {_cell(reason_of(result))}")
    host = next((each for each in results if isinstance(each, GateResult)), None)
    if host:
        notes.append(
            "Costs of head over costs of base, above 0 % is worse; measured side by side on "
            f"{_cell(host.host.cpu_model)}, {host.host.n_usable} CPUs. "
            f"Base against itself: {describe_interval(host.self_check)}."
        )
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def _cell(text: str) -> str:
    """Return text that breaks no table."""
    return text.replace("|", "\\|").replace("\n", " ")
