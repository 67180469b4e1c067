"""Texts about the results of gates, the same in every format."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gates.decision import count_needed_launches
from ortune.gates.results import LARGEST_ALLOWED_SLOWDOWN, Finding, GateResult
from ortune.knobs import describe
from ortune.measure.interval import Interval
from ortune.measure.slow_launches import SLOWEST_LAUNCH
from ortune.numbers import NO_UPPER_BOUND, format_digits, is_unbounded
from ortune.workload import FIGURES, is_figure

SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "error": "💥"}
"""Sign of each decision."""


def percent(ratio: float) -> str:
    """Return how far a ratio is above 1, such as `3%`."""
    return f"{format_digits(100 * (ratio - 1))}%"


def describe_failure(allowed: float) -> str:
    """Return why a head fails: it is slower than allowed, or not as much faster as required."""
    return f"worse by more than {percent(allowed)}" if allowed >= 1 else f"less than {1 / allowed:.3g}x as good"


def describe_failures(findings: Sequence[Finding]) -> str:
    """Return why a head fails in some objectives, such as `p50 is worse by more than 3%`."""
    return "; ".join(f"{finding.objective} is {describe_failure(finding.allowed)}" for finding in findings)


def describe_undecided(findings: Sequence[Finding], n_claims: int) -> str:
    """Return why some objectives are undecided, as a clause.

    Args:
        findings: Their results.
        n_claims: Objectives and limits of all gates that run together.
    """
    parts = []
    for finding in findings:
        if finding.may_have_slow_launches:
            parts.append(
                f"{finding.objective} may be worse by {percent(finding.bound or 1)} if rare launches of head are "
                f"{SLOWEST_LAUNCH:g}x as slow: to exclude that takes at least {count_needed_launches(finding)} of them"
            )
    unclear = ", ".join(
        finding.objective for finding in findings if not finding.is_above and not finding.may_have_slow_launches
    )
    if unclear:
        parts.append(f"the confidence interval of {unclear} includes the allowed slowdown")
    if above := ", ".join(finding.objective for finding in findings if finding.is_above):
        parts.append(
            f"the confidence interval of {above} is above the allowed slowdown, but the wider one that {n_claims} "
            "objectives and limits need together includes it"
        )
    return "; ".join(parts)


def describe_interval(interval: Interval) -> str:
    """Return a slowdown in percent, such as `+1.2% [-0.3%, +2.8%]`, or with `no upper bound` for the largest ends."""
    low, high = f"{100 * (interval.low - 1):+.1f}%", f"{100 * (interval.high - 1):+.1f}%"
    if is_unbounded(interval.low, interval.high):
        high = NO_UPPER_BOUND
    return f"{100 * (interval.estimate - 1):+.1f}% [{low}, {high}]"


def describe_allowed(allowed: float) -> str:
    """Return the allowed slowdown, such as `+3%`, or the required gain, such as `-48%`."""
    if allowed >= 1 + LARGEST_ALLOWED_SLOWDOWN:
        return "any"
    return f"{'+' * (allowed >= 1)}{percent(allowed)}"


def describe_cost(objective: str) -> str:
    """Return the name of the cost that is compared; lower is better."""
    is_inverse = is_figure(objective) and FIGURES[objective].larger_is_better
    return f"1/{objective}" if is_inverse else objective


def describe_finding(finding: Finding) -> str:
    """Return a finding, such as `p50 +1.2% [-0.3%, +2.8%], allowed +3%`."""
    interval = describe_interval(finding.slowdown)
    return f"{describe_cost(finding.objective)} {interval}, allowed {describe_allowed(finding.allowed)}"


def describe_sides(result: GateResult) -> tuple[str, str]:
    """Return base and head as the user named them, each with its settings and, if they differ, its onnxruntime."""
    texts = []
    for side in (result.base, result.head):
        parts = [side.text]
        if not side.config.is_default:
            parts.append(describe(side.config))
        if result.base.runtime.onnxruntime != result.head.runtime.onnxruntime:
            parts.append(f"onnxruntime {side.runtime.onnxruntime}")
        texts.append(", ".join(parts))
    return texts[0], texts[1]
