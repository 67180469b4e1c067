"""The decision rule of a gate: fail, pass or continue. Pure functions of log-ratios.

Pairs come in launches, and the memory layout of a launch affects all of its pairs, so only launches are independent.
After certain numbers of launches, the rule checks whether the whole confidence interval of the mean log-ratio lies on
one side of the allowed slowdown. Each check spends a part of the error probability, and all parts together are less
than 0.5 % on each side. The intervals therefore hold at all checks at once, with 99 % confidence.

Source: repeated confidence intervals, C. Jennison and B. W. Turnbull, "Group Sequential Methods with Applications to
Clinical Trials" (2000), chapter 9. The parts are those of the union bound (Bonferroni), which holds for any dependence
between checks. docs/gate.md lists simulated and replayed error rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ortune.gates.results import Finding
from ortune.measure.compute_figures import is_total
from ortune.measure.interval import Interval
from ortune.measure.judge import DECISIONS, Decision, compare, find_deciding
from ortune.measure.slow_launches import SLOWEST_LAUNCH
from ortune.measure.stats import TRIM, Clusters, bound_mean, t_interval, t_p_value, trimmed_mean
from ortune.workload import Objective

GATE_CONFIDENCE = 0.99

ALPHA = (1 - GATE_CONFIDENCE) / 2
"""Probability of a false failure, and of a false pass, over all checks of a gate."""

SPENT_SHARE = 0.7
"""Share of `ALPHA` that the checks spend. The rest is a reserve, because the intervals are approximate: on hosts with
two speeds, they cover somewhat less than Student's intervals of normal values do."""

CHECKS = (7, 9, 12, 16, 24, 36, 54, 80)
"""Numbers of launches after which the rule is checked. If the last one does not decide the gate, it is inconclusive."""

BOUND_CONFIDENCE = 0.99
"""Confidence of the bound with launches of head that did not occur, and are as slow as any may be. If one launch in 20
is twice as slow, a mean is 3.5 % worse, and fewer than 1 % of such gates pass; see
`python -m benchmarks.gate_errors --slow-launches`."""

LAST_CHECK_LAUNCHES = 5
"""Launches that the last check needs if the budget ends before the first one."""

FIRST_SHARE = 0.25
"""Part of what is spent that the first check spends. The others share the rest equally. On recorded noise, this takes
the fewest pairs."""

LAUNCH_TRIM = 0.125
"""Share of the launches that is dropped at each end: one of eight. On recorded noise, gates of equal models then need a
fifth fewer launches. All launches count for means, throughput and CPU time, which include what is rare."""

SAME = 0.5
"""Two copies of base may differ by this share of the allowed slowdown of head. If they differ significantly by more,
the measurement on this host is biased and decides nothing."""

Claim = TypeVar("Claim")

OverAll = Callable[[float], Interval]
"""Returns the interval of the log-ratio over all calls together, given its confidence."""


def check_alpha(number: int) -> float:
    """Return the error probability on each side that a check spends; `number` counts from 0."""
    return SPENT_SHARE * ALPHA * (FIRST_SHARE if number == 0 else (1 - FIRST_SHARE) / (len(CHECKS) - 1))


def judge_objective(
    objective: Objective,
    clusters: Clusters,
    allowed: float,
    *,
    check: int = 0,
    n_claims: int = 1,
    over_all: OverAll | None = None,
    of_head: Sequence[float] = (),
) -> Finding:
    """Return the finding that the log-ratios support for one objective.

    Args:
        objective: The objective.
        clusters: Log-ratios of costs, head to base.
        allowed: Allowed ratio of costs, head to base: 1.03 for a slowdown of 3 %.
        check: Number of the check, from 0.
        n_claims: Objectives and limits of all gates that run together. More of them require more confidence before one
            may fail (Bonferroni).
        over_all: Returns the interval over the calls of all launches together, for a percentile that the few calls of a
            launch do not have. Both intervals must then support the decision.
        of_head: Log-ratio of the cost of each process of head to that of base in the same launch, for a figure that
            contains rare slow launches. It passes only if launches that are too rare to be among these could not make
            it worse than allowed.
    """
    alpha = check_alpha(check)
    means = launch_means(clusters)
    usual = launch_interval(objective, means, alpha)
    strict = launch_interval(objective, means, alpha / n_claims)
    limit = math.log(allowed)
    p_value = t_p_value(means, limit, trim=launch_trim(objective))
    if over_all:
        of_calls = over_all(1 - 2 * alpha)
        usual = usual.include(of_calls, of_calls.estimate)
        of_calls = of_calls if n_claims == 1 else over_all(1 - 2 * alpha / n_claims)
        strict = strict.include(of_calls, of_calls.estimate)
        p_value = max(p_value, p_value_of(of_calls, limit))
    bound = None
    decision: Decision = "inconclusive"
    if compare(strict, limit) == "above":
        decision = "fail"
    elif compare(usual, limit) == "below":
        bound = bound_with_slow_launches(of_head) if of_head else None
        decision = "pass" if bound is None or bound < limit else "inconclusive"
    return Finding(
        objective=objective,
        allowed=allowed,
        slowdown=usual.exp(),
        decision=decision,
        p_value=min(p_value * ALPHA / alpha, 1.0),
        bound=None if bound is None else math.exp(bound),
    )


def bound_with_slow_launches(log_ratios: Sequence[float]) -> float:
    """Return the upper bound of the mean log-ratio if some launches are slow that are too rare to have occurred."""
    slowest = statistics.median(log_ratios) + math.log(SLOWEST_LAUNCH)
    return bound_mean(log_ratios, slowest, BOUND_CONFIDENCE)


def count_needed_launches(finding: Finding) -> int:
    """Return how many processes of head, none of them slow, show that slow ones cannot make it worse than allowed.

    Args:
        finding: A finding whose estimate is below what is allowed.
    """
    distance = math.log(finding.allowed / finding.slowdown.estimate)
    share = min(distance / math.log(SLOWEST_LAUNCH), 0.99)
    return math.ceil(math.log(1 - BOUND_CONFIDENCE) / math.log1p(-share))


def p_value_of(interval: Interval, limit: float) -> float:
    """Return the probability of an estimate at least this far above the limit if the true value is the limit.

    The distribution is taken to be normal, and as wide as the lower half of the interval.
    """
    from scipy.special import ndtr, ndtri

    half = interval.estimate - interval.low
    if not 0 < half < math.inf:
        return 1.0
    return float(ndtr((limit - interval.estimate) / half * ndtri((1 + interval.confidence) / 2)))


def launch_interval(objective: Objective, means: Sequence[float], alpha: float) -> Interval:
    """Return the interval of the mean log-ratio over launches.

    Args:
        objective: The objective.
        means: The mean log-ratio of each launch.
        alpha: Error probability on each side, in this check.

    Returns:
        The interval, with the confidence that the intervals of all checks have together.
    """
    interval = t_interval(means, 1 - 2 * alpha, trim=launch_trim(objective))
    return Interval(estimate=interval.estimate, low=interval.low, high=interval.high, confidence=GATE_CONFIDENCE)


def launch_trim(objective: Objective) -> float:
    """Return the share of the launches that is dropped at each end."""
    return 0.0 if is_total(objective) else LAUNCH_TRIM


def launch_means(clusters: Clusters) -> list[float]:
    """Return the trimmed mean of each launch."""
    return [trimmed_mean(cluster, TRIM) for cluster in clusters if len(cluster)]


def compare_copies(objective: Objective, clusters: Clusters, *, check: int = 0) -> Interval:
    """Return the interval of the ratio of base's copy to base."""
    return launch_interval(objective, launch_means(clusters), check_alpha(check)).exp()


def is_biased(self_check: Interval, allowed: float) -> bool:
    """Return whether two copies of base differ significantly, and by too much for this allowed slowdown."""
    return compare(self_check, 1) != "unclear" and abs(math.log(self_check.estimate)) > SAME * abs(math.log(allowed))


def combine_decisions(findings: Sequence[Finding]) -> Decision:
    """Return the decision on all objectives: one failure fails the gate, and all must pass for it to pass."""
    return find_deciding((finding.decision for finding in findings), DECISIONS)


def holm(p_values: Mapping[Claim, float], alpha: float = ALPHA) -> frozenset[Claim]:
    """Return which claims of several gates fail, keeping the probability of any false alarm at that of a single one.

    Args:
        p_values: The p-value of each claim, which must hold for any number of checks, as those of findings do.
        alpha: Probability of a false alarm; by default that of one side of the interval.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    failing: list[Claim] = []
    for rank, name in enumerate(sorted(p_values, key=lambda claim: p_values[claim])):
        if p_values[name] > alpha / (len(p_values) - rank):
            break
        failing.append(name)
    return frozenset(failing)
