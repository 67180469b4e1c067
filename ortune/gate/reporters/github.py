"""Results as annotations of GitHub Actions, which are lines on stdout.

Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gate.reporters.messages import decision_of, describe_finding, reason_of
from ortune.gate.results import GateError, GateResult

KINDS = {"fail": "error", "error": "error", "inconclusive": "warning", "pass": "notice"}


def annotate(results: Sequence[GateResult | GateError]) -> str:
    """Return a line for each gate."""
    lines = []
    for result in results:
        text = reason_of(result)
        if isinstance(result, GateResult):
            text = ". ".join(filter(None, ("; ".join(map(describe_finding, result.findings)), text)))
        kind = KINDS[decision_of(result)]
        lines.append(f"::{kind} title={_property(f'ortune gate: {result.name}')}::{_data(text)}")
    return "\n".join(lines) + "\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
