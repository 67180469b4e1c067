"""How the results of gates are put into words, the same in every form."""

from __future__ import annotations

from ortune.gate.play import describe_interval, percent
from ortune.gate.values import Finding, GateError, GateResult
from ortune.knobs import describe

SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "error": "💥"}


def decision_of(result: GateResult | GateError) -> str:
    """Return "pass", "fail", "inconclusive" or "error"."""
    return "error" if isinstance(result, GateError) else result.decision


def reason_of(result: GateResult | GateError) -> str:
    """Return why, a sentence."""
    return f"{result.message} {result.cure}".strip() if isinstance(result, GateError) else result.reason


def describe_finding(finding: Finding) -> str:
    """Return a finding, as `p50 +1.2% [-0.3%, +2.8%], allowed +3%`."""
    allowed = percent(finding.allowed)
    return f"{finding.objective} {describe_interval(finding.slowdown)}, allowed {'+' * (finding.allowed >= 1)}{allowed}"


def describe_sides(result: GateResult) -> tuple[str, str]:
    """Return what both sides are: as they were named, with what else differs."""
    texts = []
    for side in (result.base, result.head):
        parts = [side.text]
        if not side.config.is_default:
            parts.append(describe(side.config))
        if result.base.runtime.onnxruntime != result.head.runtime.onnxruntime:
            parts.append(f"onnxruntime {side.runtime.onnxruntime}")
        texts.append(", ".join(parts))
    return texts[0], texts[1]


def summary_line(result: GateResult | GateError) -> str:
    """Return one line for all of it."""
    if isinstance(result, GateError):
        return f"{result.name}: error: {reason_of(result)}"
    findings = "; ".join(map(describe_finding, result.findings))
    return f"{result.name}: {result.decision}: {findings}; {result.reason}"
