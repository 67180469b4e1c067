"""Judges a confirmation: the verdict of a search, and the reason for it."""

from __future__ import annotations

from ortune.compare.comparison import Comparison, Row, Speedup
from ortune.compare.limits import capacity_per_s, is_overloaded, kept_all, may_be_overloaded, name_limits
from ortune.record.schema import Verdict
from ortune.workload import Goal

NEGLIGIBLE_GAIN = 0.02
"""Largest gain that does not justify a setting. If the interval excludes a larger gain, recommend the baseline."""


def judge_confirmation(goal: Goal, comparison: Comparison, *, others_left: bool = False) -> tuple[Verdict, str]:
    """Return the verdict on a candidate that was compared with the baseline, and the reason.

    Args:
        goal: What the search is for.
        comparison: The baseline and the candidate. Both have figures.
        others_left: Whether other candidates seem better than the baseline and within the limits, but were not tried.
    """
    baseline, candidate = comparison.rows
    assert candidate.speedup and candidate.summary and baseline.summary
    if is_overloaded(candidate.summary):
        return judge_overload(goal, baseline, candidate)
    if (found := judge_limits(baseline, candidate, others_left=others_left)) is not None:
        return found
    if not candidate.enough_calls:
        n_calls = min(candidate.summary.n_calls, baseline.summary.n_calls)
        return "inconclusive", (
            f"{goal.objective} needs {comparison.calls_needed} calls of each side, the confirmation had {n_calls}, and "
            "the two sides differ too little for that: use a larger budget or a lower percentile"
        )
    verdict, reason = judge_interval(candidate.speedup)
    if verdict == "default_is_best" and kept_all(baseline.limits) != "yes":
        broken = name_limits(baseline.limits, "no", "unsure")
        return "inconclusive", f"no candidate is better than the baseline, which may exceed {broken}"
    if verdict == "faster" and kept_all(candidate.limits) != "yes":
        unsure = name_limits(candidate.limits, "no", "unsure")
        return "inconclusive", f"it is uncertain whether the best candidate stays within {unsure}: use a larger budget"
    if verdict == "faster" and may_be_overloaded(candidate.summary):
        return "inconclusive", (
            "it is uncertain whether the best candidate can serve all requests: they take "
            f"{candidate.summary.utilization_low or 0:.0%} to {candidate.summary.utilization_high or 1:.0%} of the "
            "callers' time"
        )
    if verdict == "faster" and is_overloaded(baseline.summary):
        return verdict, (
            f"the baseline can serve only {capacity_per_s(baseline.summary, goal.load):.3g} of "
            f"{goal.load.rate_per_s:g} requests per second: its queue grows without bound, so the speedup depends on "
            "the duration of the measurement"
        )
    return verdict, reason


def judge_overload(goal: Goal, baseline: Row, candidate: Row) -> tuple[Verdict, str]:
    """Return the verdict if the candidate cannot serve all requests."""
    assert candidate.summary and baseline.summary
    served = f"{capacity_per_s(candidate.summary, goal.load):.3g} of {goal.load.rate_per_s:g} requests per second"
    if is_overloaded(baseline.summary):
        return "overload", (
            f"the baseline can serve {capacity_per_s(baseline.summary, goal.load):.3g}, and the best candidate "
            f"{served}: the queue grows without bound"
        )
    return "default_is_best", f"the best candidate can serve only {served}"


def judge_limits(baseline: Row, candidate: Row, *, others_left: bool) -> tuple[Verdict, str] | None:
    """Return the verdict that follows from the limits, or None if they are not decisive."""
    kept_by_candidate, kept_by_baseline = kept_all(candidate.limits), kept_all(baseline.limits)
    broken, broken_by_baseline = name_limits(candidate.limits, "no"), name_limits(baseline.limits, "no")
    if kept_by_candidate == "no":
        if others_left:
            return "inconclusive", f"the best candidate exceeds {broken}, and there was no time to try the next one"
        if kept_by_baseline == "yes":
            return "default_is_best", f"the best candidate exceeds {broken}"
        if kept_by_baseline == "no":
            return "infeasible", f"the best candidate exceeds {broken}, and the baseline {broken_by_baseline}"
    if kept_by_candidate == "yes" and kept_by_baseline == "no":
        return "within_limits", f"the baseline exceeds {broken_by_baseline}, and this config stays within all limits"
    return None


def judge_interval(speedup: Speedup) -> tuple[Verdict, str]:
    """Return the verdict that the interval of a speedup supports, and the reason."""
    if speedup.low > 1:
        return "faster", "the whole confidence interval lies above 1"
    if speedup.high < 1 + NEGLIGIBLE_GAIN:
        return "default_is_best", f"the best candidate gains less than {NEGLIGIBLE_GAIN:.0%}, if anything"
    return (
        "inconclusive",
        "the confidence interval includes both no gain and a relevant gain: use a larger budget or a quieter host",
    )
