"""Launches in which one side alone is slow, although all launches of it are alike.

They are rare, and far off: by a factor of 2 to 20. A mean, a throughput or a tail contains them. A median is that of
usual calls, in usual launches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ortune.measure.comparison import SLOW_LAUNCH
from ortune.measure.stats import Clusters

SLOWEST_LAUNCH = 2.0
"""How many times as slow as usual a launch counts at most in a median, and one may be that is too rare to occur."""

USUAL_CONFIDENCE = 0.95
"""Probability with which no more launches are slow than is usual."""


class SlowCount(NamedTuple):
    """How many of the default's launches were slow.

    Attributes:
        n_slow: Number of slow ones.
        n_launches: Number of all.
    """

    n_slow: int = 0
    n_launches: int = 0

    def bound(self, n_launches: int) -> int:
        """Return how many of some further launches may be slow if these are slow as often."""
        from scipy.special import bdtr

        if not self.n_slow:
            return 0
        share = self.n_slow / self.n_launches
        return next(n for n in range(n_launches + 1) if bdtr(n, n_launches, share) >= USUAL_CONFIDENCE)


NO_SLOW_ONES = SlowCount()


def find_usual(log_costs: Sequence[float]) -> float:
    """Return the logarithm of the cost of a usual launch. It is not the median, as half of the launches may be slow."""
    return sorted(log_costs)[(len(log_costs) - 1) // 4]


def find_slow_launches(log_costs: Sequence[float], log_ratios: Sequence[float]) -> list[bool]:
    """Return for each launch whether a side was slow, and the other side was not slow as well.

    Args:
        log_costs: For each launch, the logarithm of the cost of the side.
        log_ratios: The same of its ratio to the cost of the other side.
    """
    usual_cost, usual_ratio = find_usual(log_costs), find_usual(log_ratios)
    excesses = (min(cost - usual_cost, ratio - usual_ratio) for cost, ratio in zip(log_costs, log_ratios, strict=True))
    return [excess >= math.log(SLOW_LAUNCH) for excess in excesses]


def limit_slow_launches(
    clusters: Clusters, own: Sequence[bool], default: Sequence[bool], before: SlowCount = NO_SLOW_ONES
) -> list[list[float]]:
    """Return the log-ratios of the launches that count for a figure of usual calls.

    Slow launches of the default do not count, so that they do not speak for the side. As many slow launches of the side
    do not count either: both sides have them. If the default was slow before, as many do not count as it may have in so
    many launches. Any further ones count as at most twice as slow as usual.

    Args:
        clusters: The log-ratios of each launch, above 0 if the side is better.
        own: Whether the side was slow in it.
        default: Whether the default was.
        before: How often the default was slow before these launches.
    """
    means = [statistics.fmean(cluster) for cluster in clusters]
    slow = sorted((place for place, is_slow in enumerate(own) if is_slow), key=lambda place: means[place])
    n_of_default = sum(default)
    known = SlowCount(before.n_slow + n_of_default, before.n_launches + len(means))
    n_of_both = max(n_of_default, known.bound(len(means)) if before.n_slow else 0)
    left_out = {*slow[:n_of_both], *(place for place, is_slow in enumerate(default) if is_slow)}
    counted = [mean for place, mean in enumerate(means) if place not in left_out]
    if not counted:
        return []
    lowest = -find_usual([-mean for mean in counted]) - math.log(SLOWEST_LAUNCH)
    limited = set(slow[n_of_both:])
    return [
        [value + (max(lowest - means[place], 0.0) if place in limited else 0.0) for value in cluster]
        for place, cluster in enumerate(clusters)
        if place not in left_out
    ]
