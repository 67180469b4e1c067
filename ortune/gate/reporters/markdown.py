"""Results as Markdown, for the summary page of a CI run."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gate.reporters.messages import (
    SIGNS,
    cost_of,
    decision_of,
    describe_interval,
    describe_sides,
    percent,
    reason_of,
)
from ortune.gate.results import GateError, GateResult

TITLE = "### ortune gate"


def markdown(results: Sequence[GateResult | GateError]) -> str:
    """Return the page: a table with a row for each objective of each gate, and what to know about them."""
    lines = [
        TITLE,
        "",
        "| gate | | head against base | 99 % interval | allowed | pairs |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for result in results:
        decision = decision_of(result)
        sign = f"{SIGNS[decision]} {decision}"
        findings = result.findings if isinstance(result, GateResult) else ()
        if not findings:
            lines.append(f"| {_cell(result.name)} | {sign} | | | | |")
        if isinstance(result, GateResult):
            for number, finding in enumerate(findings):
                estimate, _, interval = describe_interval(finding.slowdown).partition(" ")
                first = (_cell(result.name), sign) if not number else ("", "")
                figures = (f"{cost_of(finding.objective)} {estimate}", interval, percent(finding.allowed))
                lines.append(f"| {' | '.join((*first, *figures, str(result.pairs)))} |")
            base, head = describe_sides(result)
            notes.append(f"**{_cell(result.name)}**: base {_cell(base)}; head {_cell(head)}.")
        notes.append(f"{SIGNS[decision]} {_cell(result.name)}: {_cell(reason_of(result))}")
    measured = [each for each in results if isinstance(each, GateResult)]
    if measured:
        host = measured[0].host
        notes.append(
            "Costs of head over costs of base, above 0 % is worse; measured side by side on "
            f"{_cell(host.cpu_model)}, {host.n_usable} CPUs."
        )
    notes.extend(
        f"{_cell(each.name)}: base against itself {describe_interval(each.self_check)}."
        for each in measured
        if each.self_check
    )
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def _cell(text: str) -> str:
    """Return text that breaks no table."""
    return text.replace("|", "\\|").replace("\n", " ")
