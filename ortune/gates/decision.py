"""The decision rule of a gate: fail, pass or continue. Pure functions of log-ratios.

Pairs come in launches, and the memory layout of a launch affects all of its pairs, so only launches are independent.
After each launch, the rule checks whether the whole 99 % interval of the mean log-ratio lies on one side of the allowed
slowdown. Repeated checks make errors more likely than a single check does, so the interval is that wide. docs/gate.md
lists simulated and replayed error rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ortune.compare.interval import Interval
from ortune.compare.stats import TRIM, clustered_interval, trimmed_mean
from ortune.gates.results import Decision, Finding
from ortune.workload import Objective

GATE_CONFIDENCE = 0.99

MIN_LAUNCHES = 5
MIN_PAIRS = 20
MAX_PAIRS = 120
"""Pairs at the first and at the last check. If these do not decide the gate, more pairs would not either."""

SAME = 0.5
"""Two copies of base may differ by this share of the allowed slowdown of head. If they differ significantly by more,
the measurement on this host is biased and decides nothing."""

Clusters = Sequence[Sequence[float]]
"""Log-ratios of costs, head to base: a sequence for each launch."""


def judge_objective(
    objective: Objective, clusters: Clusters, allowed: float, *, confidence: float = GATE_CONFIDENCE, seed: int = 0
) -> Finding:
    """Return the finding that the log-ratios support for one objective.

    Args:
        objective: The objective.
        clusters: Log-ratios of costs, head to base.
        allowed: Allowed ratio of costs, head to base: 1.03 for a slowdown of 3 %.
        confidence: Confidence of the interval that must lie above `allowed` for a failure. For a pass, it is always
            `GATE_CONFIDENCE`.
        seed: Random seed of the resampling.
    """
    usual = clustered_interval(clusters, confidence=GATE_CONFIDENCE, trim=TRIM, seed=seed)
    strict = usual if confidence == GATE_CONFIDENCE else clustered_interval(clusters, confidence=confidence, seed=seed)
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
        p_value=compute_p_value(clusters, limit),
    )


def compute_p_value(clusters: Clusters, limit: float) -> float:
    """Return the probability of a mean at least this far above the limit if the true mean is the limit (Student)."""
    from scipy.special import stdtr

    means = np.array([trimmed_mean(cluster, TRIM) for cluster in clusters if len(cluster)])
    if len(means) < 2:
        return 1.0
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    distance = float(means.mean()) - limit
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(1 - stdtr(len(means) - 1, distance / error))


def compare_copies(clusters: Clusters, *, seed: int = 0) -> Interval:
    """Return the interval of the ratio of base's copy to base."""
    return clustered_interval(clusters, confidence=GATE_CONFIDENCE, trim=TRIM, seed=seed).exp()


def is_biased(self_check: Interval, allowed: float) -> bool:
    """Return whether two copies of base differ significantly, and by too much for this allowed slowdown."""
    off = max(math.log(self_check.low), -math.log(self_check.high))  # distance of the whole interval from 1
    return off > 0 and abs(math.log(self_check.estimate)) > SAME * abs(math.log(allowed))


def combine_decisions(findings: Sequence[Finding]) -> Decision:
    """Return the decision on all objectives: one failure fails the gate, and all must pass for it to pass."""
    decisions = {finding.decision for finding in findings}
    return "fail" if "fail" in decisions else "inconclusive" if "inconclusive" in decisions else "pass"


def strict_confidence(n_gates: int) -> float:
    """Return the confidence with which one of several gates may fail before all of them are done (Bonferroni)."""
    return 1 - (1 - GATE_CONFIDENCE) / n_gates


def holm(p_values: Mapping[str, float], alpha: float = (1 - GATE_CONFIDENCE) / 2) -> frozenset[str]:
    """Return which of several gates fail, keeping the probability of any false alarm at that of a single gate.

    Args:
        p_values: For each gate, the smallest p-value over its objectives.
        alpha: Probability of a false alarm; by default that of one side of the interval.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    failing: list[str] = []
    for rank, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        if p_values[name] > alpha / (len(p_values) - rank):
            break
        failing.append(name)
    return frozenset(failing)
