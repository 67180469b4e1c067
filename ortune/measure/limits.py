"""Judges limits and request rates, for one side of a comparison."""

from __future__ import annotations

import math

from ortune.measure.comparison import LimitCheck, Summary
from ortune.measure.judge import KEPT, Ends, Kept, find_deciding, judge_utilization
from ortune.workload import Goal, Limit, Load


def judge_limit(limit: Limit, found: Ends) -> Kept:
    """Return whether a figure stays within a limit: "yes" or "no" if its whole interval does, or none of it."""
    n_broken = sum(limit.excess(math.inf if end is None else end) > 0 for end in (found.low, found.high))
    kept: tuple[Kept, ...] = ("yes", "unsure", "no")
    return kept[n_broken]


def name_limits(checks: tuple[LimitCheck, ...], *kept: str) -> str:
    """Return the limits with one of these results, separated by commas."""
    return ", ".join(check.limit for check in checks if check.kept in kept)


def kept_all(checks: tuple[LimitCheck, ...]) -> Kept:
    """Return "yes" if all limits are kept, "no" if one is broken, else "unsure"."""
    return find_deciding((check.kept for check in checks), KEPT)


def served_all(summary: Summary) -> Kept:
    """Return "yes" if requests are served as fast as they arrive, "no" if they are not, else "unsure"."""
    if summary.utilization is None:
        return "yes"
    return judge_utilization(
        summary.utilization_low or summary.utilization, summary.utilization_high or summary.utilization
    )


def keeps_and_serves_all(summary: Summary, checks: tuple[LimitCheck, ...]) -> Kept:
    """Return "yes" if a side stays within all limits and serves all requests, "no" if it does not, else "unsure"."""
    return find_deciding((kept_all(checks), served_all(summary)), KEPT)


def worst_excess(goal: Goal, checks: tuple[LimitCheck, ...]) -> float:
    """Return the largest excess over a limit, as a log-ratio; minus infinity without limits."""
    excesses = (limit.excess(check.value) for limit, check in zip(goal.limits, checks, strict=True))
    return max(excesses, default=-math.inf)


def is_overloaded(summary: Summary) -> bool:
    """Return whether requests arrive faster than they are served: the whole interval of the utilization is above 1."""
    return served_all(summary) == "no"


def may_be_overloaded(summary: Summary) -> bool:
    """Return whether requests may arrive faster than they are served."""
    return served_all(summary) != "yes"


def capacity_per_s(summary: Summary, load: Load) -> float:
    """Return how many requests per second could be served with all callers busy all the time."""
    assert load.rate_per_s and summary.utilization
    return load.rate_per_s / summary.utilization
