"""Judges a confirmation: the verdict of a search, and the reason for it."""

from __future__ import annotations

import math

import msgspec

from ortune.measure.comparison import Comparison, Row, Speedup, Summary, describe_lack
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.measure.judge import (
    LAUNCHES_OF_A_PROOF,
    NEGLIGIBLE_GAIN,
    Verdict,
    compare,
    describe_few_launches,
    is_negligible,
)
from ortune.measure.limits import capacity_per_s, is_overloaded, kept_all, may_be_overloaded, name_limits
from ortune.numbers import format_digits
from ortune.workload import FIGURES, Goal

CLOSE = 0.02
"""Distance of a figure to its limit, as a log-ratio, that no reasonable budget can resolve."""

SMALL_GAIN = 0.05
LARGEST_BOUND = 0.1
"""An interval that contains 1 is an answer if it ends below the first of these, and also below the second if a gain is
not likely. The baseline is called best only if both the confirmed candidate and the untried ones gain less than the
first, the latter with a probability of 95 %."""

LARGE_GAIN = 0.5
"""A larger bound of the gain of the untried candidates says only that little is known of them."""

ENOUGH_TRIED = DEFAULT_CONFIDENCE
"""Share of the candidates that must be tried before the baseline is called best. The model that bounds the gain of the
others knows only effects of choices and of pairs of them. If a single candidate is better and nothing points to it, it
is among the candidates that were tried with a probability equal to their share."""

CONFIRMED_ONE = "the confirmed one"
"""The candidate that was confirmed, in a clause after how many were tried. It seemed to be the best one, which does not
bound what the others gain."""

LAST_CONFIRMED_ONE = "the last one that was confirmed"
"""The same, where several were confirmed one after the other. Those before it are not better, or not allowed."""

ONLY_ONE = "it"
"""The same, where there is no other candidate."""

TOO_FEW_LAUNCHES = (
    "fewer than two launches of the confirmation count, so it proves nothing: use a larger budget or a quieter host"
)

UNLESS_ALONE = "unless one of them is better than its settings suggest"

NOT_BETTER: frozenset[Verdict] = frozenset({"default_is_best", "nothing_found"})
"""Verdicts that say that what was tried is not better than the baseline, or by how much at most."""

UNCLEAR = "the confidence interval includes both no gain and a relevant gain"

TENTHS = 0.1
"""Bound of a gain that is stated in tenths of a percent, if it is smaller."""

LEAST_BOUND = 0.001
"""Smallest bound of a gain that is stated. Nothing gains less than nothing."""

LONGEST_ADVICE = 20
"""How many times the budget is advised at most."""

SECOND_CONFIDENCE = 0.99
"""Confidence of the speedup of a second candidate that is judged. It is higher than usual, because a search that may
claim two things is wrong more often than one that may claim one."""


class TimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a search, in seconds: its whole budget, and what the confirmation took of it."""

    budget_s: float
    confirmation_s: float

    def extend(self, factor: float) -> int:
        """Return the budget, in steps of ten seconds, whose confirmation takes so many times as long.

        A tenth is added to the time that is missing, because the width of the next interval is partly chance.
        """
        return 10 * math.ceil((self.budget_s + 1.1 * (factor - 1) * self.confirmation_s + 1) / 10)


def judge_confirmation(
    goal: Goal,
    comparison: Comparison,
    *,
    called: str = CONFIRMED_ONE,
    others_left: bool = False,
    spent: TimeSpent | None = None,
) -> tuple[Verdict, str]:
    """Return the verdict on a candidate that was compared with the baseline, and the reason.

    Args:
        goal: What the search is for.
        comparison: The baseline and the candidate. Both have figures.
        called: What the candidate is called in the reason for "default_is_best", a clause after how many were tried.
        others_left: Whether other candidates seem to stay within the limits, and to be better than the baseline if that
            stays within them, but were not confirmed.
        spent: Time of the search, from which the advised budget follows; None if unknown.
    """
    verdict, reason = judge_figures(goal, comparison, called, others_left=others_left, spent=spent)
    speedup = comparison.rows[1].speedup
    if verdict in {"faster", "within_limits"} and speedup and not speedup.has_enough_launches:
        return "inconclusive", explain_few_launches(speedup.n_launches, spent)
    return verdict, reason


def judge_figures(
    goal: Goal, comparison: Comparison, called: str, *, others_left: bool, spent: TimeSpent | None
) -> tuple[Verdict, str]:
    """Return the verdict that figures and intervals support, whatever number of launches they are from.

    See `judge_confirmation` for the arguments.
    """
    baseline, candidate = comparison.rows
    assert candidate.speedup and candidate.summary and baseline.summary
    if is_overloaded(candidate.summary):
        return judge_overload(goal, baseline, candidate, called=called, others_left=others_left)
    unserved = (
        "it is uncertain whether the best candidate can serve all requests: they take "
        f"{candidate.summary.utilization_low or 0:.0%} to {candidate.summary.utilization_high or 1:.0%} of the "
        "callers' time"
    )
    if (found := judge_limits(baseline, candidate, called=called, others_left=others_left)) is not None:
        if found[0] == "within_limits" and may_be_overloaded(candidate.summary):
            return "inconclusive", unserved
        return found
    is_kept = kept_all(baseline.limits) == "yes"
    verdict, reason = judge_gain(baseline, candidate, called if is_kept else "the confirmed candidate")
    if reason == UNCLEAR:
        contended = comparison.noise.regime == "contended"
        reason = f"{reason}, as {advise_gain(candidate.speedup, spent, contended=contended)}"
    verdict, reason = add_few_calls(verdict, reason, goal, comparison, spent)
    if verdict in NOT_BETTER and not is_kept:
        return "inconclusive", f"{reason}, and the baseline {describe_excess(baseline)}"
    if verdict == "faster" and kept_all(candidate.limits) != "yes":
        unsure = name_limits(candidate.limits, "unsure")
        advice = advise_budget(goal, candidate, spent)
        return "inconclusive", f"it is uncertain whether the best candidate stays within {unsure}: {advice}"
    if verdict == "faster" and may_be_overloaded(candidate.summary):
        return "inconclusive", unserved
    if verdict == "faster" and is_overloaded(baseline.summary):
        return verdict, (
            f"the baseline can serve only {describe_capacity(goal, baseline.summary)}: its queue grows without bound, "
            "so the speedup depends on the duration of the measurement"
        )
    return verdict, reason


def add_few_calls(
    verdict: Verdict, reason: str, goal: Goal, comparison: Comparison, spent: TimeSpent | None
) -> tuple[Verdict, str]:
    """Return a verdict and its reason, with what it means if a percentile rests on fewer calls than it needs."""
    candidate = comparison.rows[1]
    if (few := candidate.few_calls) is None:
        return verdict, reason
    assert candidate.speedup
    needed = describe_lack(goal.objective, comparison.calls_needed, few.n_calls)
    if compare(candidate.speedup, 1) == "unclear":
        return "inconclusive", f"{needed}: {few}: {advise_calls(comparison.calls_needed / few.n_calls, spent)}"
    if verdict == "faster":
        return verdict, f"{needed}: {few}"
    if verdict in NOT_BETTER:
        reason += f" over {few.n_calls} calls, where {goal.objective} needs {comparison.calls_needed}"
    return verdict, reason


def _bound_tried(tried_gain: float, known: str, of_others: str = "") -> tuple[Verdict, str]:
    """Return whether the baseline is best where nearly all candidates were tried.

    Args:
        tried_gain: Bound of the gain of those that were tried, but not confirmed, as a log-ratio.
        known: What is known of those that were tried.
        of_others: What is known of the others, as the end of the sentence.
    """
    gain = math.exp(tried_gain) - 1
    if gain > SMALL_GAIN:
        another = f"by the few blocks of each, another one may gain up to {round_up(gain)}"
        return "nothing_found", f"{known}; {another}: use a larger budget"
    return "default_is_best", f"{known}{of_others}"


def judge_untried(
    n_tried: int,
    n_all: int,
    unseen_gain: float | None,
    tried_gain: float = 0.0,
    *,
    ruled_out: str = "",
    all_pairs: bool = False,
    n_lost: int = 0,
) -> tuple[Verdict, str]:
    """Return whether the baseline is best if no candidate that was tried is better, and what this rests on.

    Args:
        n_tried: Candidates that were tried.
        n_all: Candidates of the space.
        unseen_gain: Bound of the gain of the others, as a log-ratio; None if unknown.
        tried_gain: Bound of the gain of those that were tried, but not confirmed, as a log-ratio.
        ruled_out: What is known of those that were tried, as a clause; empty if nothing is.
        all_pairs: Whether screening ended because all settings and pairs of settings had been tried.
        n_lost: Candidates of which nothing is known although their turn came: their processes ended suddenly, or there
            was no time to compile the model for them.
    """
    known = f": {ruled_out}" if ruled_out else ""
    if n_tried >= n_all:
        all_of_them = "the only candidate was tried" if n_all == 1 else f"all {n_all} candidates were tried"
        return _bound_tried(tried_gain, f"{all_of_them}{known}")
    tried = f"{n_tried} of {n_all} candidates were tried{known}"
    others = "the other one" if n_all - n_tried == 1 else f"the other {n_all - n_tried}"
    if n_tried + n_lost >= n_all:
        tried = f"{tried}; {others} failed for reasons that may not be their own"
        return _bound_tried(tried_gain, tried) if n_tried >= ENOUGH_TRIED * n_all else ("nothing_found", tried)
    if unseen_gain is None:
        return "nothing_found", f"{tried}; nothing is known of {others}"
    gain = math.exp(unseen_gain) - 1
    if all_pairs and (gain > SMALL_GAIN or n_tried < ENOUGH_TRIED * n_all):
        return "nothing_found", (
            f"{tried}. Each setting and each pair of settings that is not slow is among them: to try more of "
            f"{others}, use a larger budget"
        )
    if gain > LARGE_GAIN:
        return "nothing_found", f"{tried}; little is known of {others}: use a larger budget"
    if gain > SMALL_GAIN:
        return "nothing_found", f"{tried}; {others} may gain up to {round_up(gain)}: use a larger budget"
    bound = f"; {others} probably gain less than {round_up(max(gain, LEAST_BOUND), 1)}"
    if n_tried < ENOUGH_TRIED * n_all:
        return "nothing_found", f"{tried}{bound}, {UNLESS_ALONE}"
    return _bound_tried(tried_gain, tried, bound)


def format_bound(share: float) -> str:
    """Return a bound of a gain: with a decimal if it is small."""
    return round_up(share, 1 if share < TENTHS else 0)


def round_up(share: float, digits: int = 0) -> str:
    """Return a share in percent that is not below the given one: what is said to bound a gain must do so."""
    return f"{math.ceil(_in_steps(share, digits)) / 10**digits:.{digits}f}%"


def round_down(share: float, digits: int = 0) -> str:
    """Return a share in percent that is not above the given one."""
    return f"{math.floor(_in_steps(share, digits)) / 10**digits:.{digits}f}%"


def _in_steps(share: float, digits: int) -> float:
    """Return a share in steps of a percentage. Without rounding, 1.02 - 1 would be slightly more than two of them."""
    return round(share * 10.0 ** (digits + 2), 6)


def advise_budget(goal: Goal, row: Row, spent: TimeSpent | None) -> str:
    """Return the advice for limits that are undecided: how large a budget may decide all of them.

    The width of an interval is inversely proportional to the square root of the time, if there are more launches in a
    longer time. The value itself varies, too, so that the next search may still not decide it.
    """
    factor = 1.0
    for limit, check in zip(goal.limits, row.limits, strict=True):
        if check.kept != "unsure":
            continue
        excess = limit.excess(check.value)
        distance = abs(excess)
        # The end of the interval that lies beyond the limit.
        end = check.low if (excess > 0) != FIGURES[limit.figure].larger_is_better else check.high
        if distance < CLOSE:
            return f"{limit.figure} is too close to the limit to be decided, so use a different limit"
        width = math.inf if end is None or end <= 0 else abs(math.log(end / check.value))
        factor = max(factor, (width / distance) ** 2)
    if spent is None or not math.isfinite(factor):
        return "use a larger budget"
    budget_s = spent.extend(factor)
    if budget_s > LONGEST_ADVICE * spent.budget_s:
        undecided = " and ".join(check.figure for check in row.limits if check.kept == "unsure")
        return f"{undecided} would take too long to decide on this host"
    return f"use a budget of {budget_s} s, which may decide it"


def explain_few_launches(n_launches: int, spent: TimeSpent | None) -> str:
    """Return that too few launches count for a proof, and the budget that has enough.

    Args:
        n_launches: Launches that count, at least one.
        spent: Time of the search; None if unknown.
    """
    advice = "use a larger budget"
    if spent is not None:
        advice = f"use a budget of {spent.extend(LAUNCHES_OF_A_PROOF / n_launches)} s"
    return f"{describe_few_launches(n_launches)}: {advice}, or a quieter host"


def advise_calls(factor: float, spent: TimeSpent | None) -> str:
    """Return the advice for a percentile with too few calls: the budget that has enough, if it is not too large.

    Args:
        factor: How many times as many calls it needs.
        spent: Time of the search; None if unknown.
    """
    if spent is not None:
        # The share of the confirmation does not grow with the budget, and launches take a part of its time.
        budget_s = 10 * math.ceil(1.1 * factor * spent.budget_s / 10)
        if budget_s <= LONGEST_ADVICE * spent.budget_s:
            return f"use a budget of {budget_s} s, or a lower percentile"
    return "use a larger budget or a lower percentile"


def judge_overload(goal: Goal, baseline: Row, candidate: Row, *, called: str, others_left: bool) -> tuple[Verdict, str]:
    """Return the verdict if the candidate cannot serve all requests."""
    assert candidate.summary and baseline.summary
    served = describe_capacity(goal, candidate.summary)
    if is_overloaded(baseline.summary):
        capacity = format_digits(capacity_per_s(baseline.summary, goal.load))
        return "overload", (
            f"the baseline can serve {capacity}, and the confirmed candidate {served}: the queue grows without bound"
        )
    if others_left:
        return "inconclusive", (
            f"the best candidate can serve only {served}, and there was no time to try the next one"
        )
    if (kept := kept_all(baseline.limits)) != "yes":
        verdict: Verdict = "infeasible" if kept == "no" else "inconclusive"
        return verdict, f"the baseline {describe_excess(baseline)}, and the best candidate can serve only {served}"
    return "default_is_best", f"{called} can serve only {served}"


def describe_excess(row: Row) -> str:
    """Return which limits a side exceeds or, if it is not certain that it exceeds any, which it may exceed."""
    if broken := name_limits(row.limits, "no"):
        return f"exceeds {broken}"
    return f"may exceed {name_limits(row.limits, 'unsure')}"


def describe_capacity(goal: Goal, summary: Summary) -> str:
    """Return how many of the requests could be served."""
    assert goal.load.rate_per_s
    capacity = format_digits(capacity_per_s(summary, goal.load))
    return f"{capacity} of {format_digits(goal.load.rate_per_s, 6)} requests per second"


def judge_limits(baseline: Row, candidate: Row, *, called: str, others_left: bool) -> tuple[Verdict, str] | None:
    """Return the verdict that follows from the limits, or None if they are not decisive."""
    kept_by_candidate, kept_by_baseline = kept_all(candidate.limits), kept_all(baseline.limits)
    broken, broken_by_baseline = name_limits(candidate.limits, "no"), name_limits(baseline.limits, "no")
    if kept_by_candidate == "no":
        if others_left:
            return "inconclusive", f"the best candidate exceeds {broken}, and there was no time to try the next one"
        if kept_by_baseline == "yes":
            return "default_is_best", f"{called} exceeds {broken}"
        if kept_by_baseline == "no":
            return "infeasible", f"the best candidate exceeds {broken}, and the baseline {broken_by_baseline}"
        doubtful = name_limits(baseline.limits, "unsure")
        return "inconclusive", f"the best candidate exceeds {broken}, and the baseline may exceed {doubtful}"
    if kept_by_candidate == "yes" and kept_by_baseline == "no":
        return "within_limits", f"the baseline exceeds {broken_by_baseline}, and this config stays within all limits"
    return None


def judge_gain(baseline: Row, candidate: Row, called: str = CONFIRMED_ONE) -> tuple[Verdict, str]:
    """Return the verdict that the speedup of a candidate supports, and the reason.

    Where the baseline may exceed a limit, any gain justifies a config that stays within all of them.
    """
    assert candidate.speedup
    verdict, reason = judge_interval(candidate.speedup, called, any_gain=kept_all(baseline.limits) != "yes")
    if candidate.late_calls and verdict == "inconclusive":
        reason = (
            f"late calls differ from early ones: {candidate.late_calls}: use a larger budget, which has more of them"
        )
    return verdict, reason


def judge_interval(speedup: Speedup, called: str = CONFIRMED_ONE, *, any_gain: bool = False) -> tuple[Verdict, str]:
    """Return the verdict that the interval of a speedup supports, and the reason.

    An interval that contains 1 is an answer, too, if it excludes all but a small gain: the reason says which.

    Args:
        speedup: The speedup.
        called: What the candidate is called.
        any_gain: Whether a negligible gain counts, too.
    """
    most = round_up(speedup.high - 1, 1)
    if compare(speedup, 1) == "above":
        if any_gain or not is_negligible(speedup):
            return "faster", "the whole confidence interval lies above 1"
        return "default_is_best", f"{called} gains only {round_down(speedup.low - 1, 1)} to {most}"
    if speedup.high <= 1:
        return "default_is_best", f"{called} is not better than the baseline"
    if bounds_gain(speedup):
        is_small = compare(speedup, 1 + SMALL_GAIN) == "below"
        return "default_is_best" if is_small else "nothing_found", f"{called} gains at most {most}, if anything"
    return "inconclusive", UNCLEAR


def bounds_gain(speedup: Speedup) -> bool:
    """Return whether an interval that contains 1 is an answer: its end is a bound of the gain that says enough."""
    most = SMALL_GAIN if speedup.estimate > 1 + NEGLIGIBLE_GAIN else LARGEST_BOUND
    return compare(speedup, 1 + most) == "below"


def advise_gain(speedup: Speedup, spent: TimeSpent | None, *, contended: bool) -> str:
    """Return why the interval of a speedup decides nothing, and what probably helps.

    See `advise_budget` for the time that an interval takes to be narrow enough.

    Args:
        speedup: The speedup.
        spent: Time of the search; None if unknown.
        contended: Whether other processes used the CPUs.
    """
    if speedup.slowdown is not None:
        return f"{speedup.slow_phase}: search again when it is as fast as before"
    cause = "other programs used the CPUs" if contended else "the host is noisy for this budget"
    ends, estimate = speedup.log(), math.log(speedup.estimate)
    proof, bound = estimate, math.log1p(LARGEST_BOUND) - estimate
    factors = [((estimate - ends.low) / proof) ** 2] if proof > CLOSE else []
    factors += [((ends.high - estimate) / bound) ** 2] if bound > CLOSE else []
    if spent is None or not factors:
        return f"{cause}: use a larger budget or a quieter host"
    budget_s = spent.extend(min(factors))
    if budget_s > LONGEST_ADVICE * spent.budget_s:
        return f"{cause}: use a quieter host"
    return f"{cause}: use a budget of {budget_s} s, or a quieter host"
