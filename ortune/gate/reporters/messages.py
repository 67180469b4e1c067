"""How the results of gates are put into words, the same in every form."""

from __future__ import annotations

from ortune.compare.interval import Interval
from ortune.gate.results import Finding, GateError, GateResult
from ortune.knobs import describe

SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "error": "💥"}


def decision_of(result: GateResult | GateError) -> str:
    """Return "pass", "fail", "inconclusive" or "error"."""
    return "error" if isinstance(result, GateError) else result.decision


def reason_of(result: GateResult | GateError) -> str:
    """Return why, a sentence."""
    return f"{result.message} {result.hint}".strip() if isinstance(result, GateError) else result.reason


def percent(ratio: float) -> str:
    """Return how far a ratio lies above 1, such as 3%."""
    return f"{100 * (ratio - 1):.3g}%"


def describe_failure(allowed: float) -> str:
    """Return what head is that fails: worse by more than it may be, or not as much better as it must be."""
    return f"worse by more than {percent(allowed)}" if allowed >= 1 else f"less than {1 / allowed:.3g}x as good"


def describe_interval(interval: Interval) -> str:
    """Return a slowdown for people, such as `+1.2% [-0.3%, +2.8%]`."""
    low, high = f"{100 * (interval.low - 1):+.1f}%", f"{100 * (interval.high - 1):+.1f}%"
    return f"{100 * (interval.estimate - 1):+.1f}% [{low}, {high}]"


def describe_allowed(allowed: float) -> str:
    """Return how much worse head may be, or how much better it must be, such as +3% or -48%."""
    return f"{'+' * (allowed >= 1)}{percent(allowed)}"


def cost_of(objective: str) -> str:
    """Return the name of what is compared, of which less is better."""
    return f"1/{objective}" if objective == "throughput" else objective


def describe_finding(finding: Finding) -> str:
    """Return a finding, as `p50 +1.2% [-0.3%, +2.8%], allowed +3%`."""
    interval = describe_interval(finding.slowdown)
    return f"{cost_of(finding.objective)} {interval}, allowed {describe_allowed(finding.allowed)}"


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
