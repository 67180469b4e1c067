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
from ortune.measure.interval import Interval
from ortune.measure.judge import COUNTED_LAUNCHES_OF_A_PROOF
from ortune.measure.stats import Clusters, student_interval

SLOWEST_LAUNCH = 2.0
"""How many times as slow as usual a launch counts at most in a median, and one may be that is too rare to occur."""

USUAL_CONFIDENCE = 0.95
"""Probability with which no more launches are slow than is usual."""


class EarlierLaunches(NamedTuple):
    """What launches before a comparison show of the default, and of the side that it is compared with.

    Attributes:
        n_slow: Launches in which the default was slow.
        n_launches: All launches.
        usual: Logarithm of the default's cost in a usual one; None if it is not known.
        gains: How many times better the side was in each launch in which the default was not slow, as log-ratios.
    """

    n_slow: int = 0
    n_launches: int = 0
    usual: float | None = None
    gains: tuple[float, ...] = ()

    def bound(self, n_launches: int) -> int:
        """Return how many of some further launches may be slow if these are slow as often."""
        from scipy.special import bdtr

        if not self.n_slow:
            return 0
        share = self.n_slow / self.n_launches
        return next(n for n in range(n_launches + 1) if bdtr(n, n_launches, share) >= USUAL_CONFIDENCE)

    def is_slow(self, log_cost: float) -> bool:
        """Return whether the default is slow, of which the logarithm of the cost is given, compared with these."""
        return self.usual is not None and log_cost >= self.usual + math.log(SLOW_LAUNCH)

    def find_slowdown(self, default: Sequence[float]) -> float | None:
        """Return by how much slower than in these the default is, as a log-ratio; None if enough launches are usual.

        The host is in a phase then that lasts from seconds to minutes. As another guest uses a physical CPU, threads
        wait for each other. What settings gain differs, most of all between one thread and several.

        Args:
            default: The logarithm of the default's cost in each launch.
        """
        n_usual = sum(not self.is_slow(cost) for cost in default)
        if self.usual is None or n_usual >= COUNTED_LAUNCHES_OF_A_PROOF or 2 * n_usual >= len(default):
            return None
        return statistics.median(default) - self.usual

    def include(self, interval: Interval, log_ratios: Sequence[float]) -> Interval:
        """Return an interval that includes these launches as well, and has its estimate in the middle between both.

        They are few, so that launches are taken to differ as much as later ones do. If nothing is known of the side, no
        gain is included.

        Args:
            interval: The interval of the logarithm of the speedup in later launches.
            log_ratios: The log-ratio of each of them.
        """
        gain, error = 0.0, 0.0
        if self.gains:
            gain, error = statistics.fmean(self.gains), statistics.stdev(log_ratios) / math.sqrt(len(self.gains))
        earlier = student_interval(gain, error, len(log_ratios) - 1, interval.confidence)
        return interval.include(earlier, (interval.estimate + gain) / 2)


NO_EARLIER_ONES = EarlierLaunches()


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
    clusters: Clusters, own: Sequence[bool], default: Sequence[bool], before: EarlierLaunches = NO_EARLIER_ONES
) -> list[list[float]]:
    """Return the log-ratios of the launches that count for a figure of usual calls.

    Slow launches of the default do not count, so that they do not speak for the side. As many slow launches of the side
    do not count either: both sides have them. If the default was slow before, as many do not count as it may have in so
    many launches. Any further ones count as at most twice as slow as usual.

    Args:
        clusters: The log-ratios of each launch, above 0 if the side is better.
        own: Whether the side was slow in it.
        default: Whether the default was.
        before: Launches before these.
    """
    means = [statistics.fmean(cluster) for cluster in clusters]
    slow = sorted((place for place, is_slow in enumerate(own) if is_slow), key=lambda place: means[place])
    n_of_default = sum(default)
    known = EarlierLaunches(before.n_slow + n_of_default, before.n_launches + len(means))
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
