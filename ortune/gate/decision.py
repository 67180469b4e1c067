"""The rule: when a gate fails, passes, or goes on. Pure functions of log-ratios.

Pairs come in launches, which share their luck with memory layout, so that the launches are what varies independently. A
look after each of them asks whether the whole 99 % interval of the mean log-ratio lies on one side of what is allowed.
Looking again and again makes errors more likely than one look does; the interval is that wide for it: simulated and
replayed error rates are in docs/gate.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ortune.compare.interval import Interval
from ortune.compare.stats import TRIM, clustered_interval, trimmed_mean
from ortune.gate.results import Decision, Finding
from ortune.workload import Objective

CONFIDENCE = 0.99

FEWEST_LAUNCHES = 5
PAIRS_PER_LAUNCH = 4
FEWEST_PAIRS = 20
MOST_PAIRS = 120
"""Pairs at the first look and at the last; more do not help where these did not."""

SAME = 0.5
"""Two copies of base may differ by this part of what head may differ by; beyond it, and beyond doubt, the measurement
itself is biased here, and decides nothing."""

Clusters = Sequence[Sequence[float]]
"""Log-ratios of costs, head to base: a sequence for each launch."""


def find(objective: Objective, clusters: Clusters, allowed: float, *, confidence: float, seed: int = 0) -> Finding:
    """Return what the log-ratios say about one objective.

    Args:
        objective: Which.
        clusters: Log-ratios of costs, head to base.
        allowed: How many times as costly head may be: 1.03 for 3 %.
        confidence: Of the interval that a failure must clear; a pass must clear the usual one.
        seed: Seed of resampling.
    """
    usual = clustered_interval(clusters, confidence=CONFIDENCE, trim=TRIM, seed=seed)
    strict = usual if confidence == CONFIDENCE else clustered_interval(clusters, confidence=confidence, seed=seed)
    limit = math.log(allowed)
    decision: Decision = "inconclusive"
    if strict.low > limit:
        decision = "fail"
    elif usual.high < limit:
        decision = "pass"
    return Finding(
        objective=objective,
        allowed=allowed,
        slowdown=usual.exp(),
        decision=decision,
        p_value=p_value(clusters, limit),
    )


def p_value(clusters: Clusters, limit: float) -> float:
    """Return the probability of a mean this far above the limit, or farther, if it were at the limit (Student)."""
    from scipy.special import stdtr

    means = np.array([trimmed_mean(cluster, TRIM) for cluster in clusters if len(cluster)])
    if len(means) < 2:
        return 1.0
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    distance = float(means.mean()) - limit
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(1 - stdtr(len(means) - 1, distance / error))


def self_check(clusters: Clusters, *, seed: int = 0) -> Interval:
    """Return the interval of base's copy against base, as a ratio."""
    return clustered_interval(clusters, confidence=CONFIDENCE, trim=TRIM, seed=seed).exp()


def is_biased(check: Interval, allowed: float) -> bool:
    """Return whether two copies of base differ beyond doubt, and by too much for what is to be told."""
    off = max(math.log(check.low), -math.log(check.high))  # how far the whole interval lies from no difference
    return off > 0 and abs(math.log(check.estimate)) > SAME * abs(math.log(allowed))


def overall(findings: Sequence[Finding]) -> Decision:
    """Return the decision on all objectives: one failure fails, and all must pass to pass."""
    decisions = {finding.decision for finding in findings}
    return "fail" if "fail" in decisions else "inconclusive" if "inconclusive" in decisions else "pass"


def strict_confidence(n_gates: int) -> float:
    """Return the confidence at which one of several gates may fail before all of them are done (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / n_gates


def holm(p_values: Mapping[str, float], alpha: float = (1 - CONFIDENCE) / 2) -> frozenset[str]:
    """Return which of several gates fail, with the chance of any false alarm kept to that of one gate.

    Args:
        p_values: By gate, the smallest over its objectives.
        alpha: The chance of a false alarm; by default that of one side of the interval.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    failing: list[str] = []
    for rank, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        if p_values[name] > alpha / (len(p_values) - rank):
            break
        failing.append(name)
    return frozenset(failing)
