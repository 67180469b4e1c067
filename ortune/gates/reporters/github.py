"""Results as annotations of GitHub Actions, which are lines on stdout.

Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gates.reporters.messages import describe_finding
from ortune.gates.results import GateError, GateResult
from ortune.sanitize import escape_annotation, escape_annotation_property

LEVELS = {"fail": "error", "error": "error", "inconclusive": "warning", "pass": "notice"}
"""Level of the annotation for each decision."""


def render_annotations(results: Sequence[GateResult | GateError]) -> str:
    """Return one line per gate."""
    lines = []
    for result in results:
        parts = [result.reason]
        if isinstance(result, GateResult) and result.findings:
            parts.insert(0, "; ".join(map(describe_finding, result.findings)))
        if isinstance(result, GateResult):
            parts += [note.removesuffix(".") for note in result.notes]
        title = escape_annotation_property(f"ortune gate: {result.name}")
        lines.append(f"::{LEVELS[result.decision]} title={title}::{escape_annotation('. '.join(parts))}")
    return "\n".join(lines) + "\n"
