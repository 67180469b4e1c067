"""Judges limits and request rates, for one side of a comparison."""

from __future__ import annotations

import math

from ortune.measure.comparison import LimitCheck, Summary
from ortune.workload import Goal, Load


def name_limits(checks: tuple[LimitCheck, ...], *kept: str) -> str:
    """Return the limits with one of these results, separated by commas."""
    return ", ".join(check.limit for check in checks if check.kept in kept)


def kept_all(checks: tuple[LimitCheck, ...]) -> str:
    """Return "yes" if all limits are kept, "no" if one is broken, else "unsure"."""
    kept = {check.kept for check in checks}
    if "no" in kept:
        return "no"
    return "unsure" if "unsure" in kept else "yes"


def worst_excess(goal: Goal, checks: tuple[LimitCheck, ...]) -> float:
    """Return the largest excess over a limit, as a log-ratio; minus infinity without limits."""
    excesses = (limit.excess(check.value) for limit, check in zip(goal.limits, checks, strict=True))
    return max(excesses, default=-math.inf)


def is_overloaded(summary: Summary) -> bool:
    """Return whether requests arrive faster than they are served: the whole interval of the utilization is above 1."""
    return summary.utilization is not None and (summary.utilization_low or summary.utilization) >= 1


def may_be_overloaded(summary: Summary) -> bool:
    """Return whether requests may arrive faster than they are served."""
    return summary.utilization is not None and (summary.utilization_high or summary.utilization) >= 1


def capacity_per_s(summary: Summary, load: Load) -> float:
    """Return how many requests per second could be served with all callers busy all the time."""
    assert load.rate_per_s and summary.utilization
    return load.rate_per_s / summary.utilization
