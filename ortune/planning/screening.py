"""Screening: which deployments are measured, given how good those before them were.

Throughput as a function of processes and threads has one region that is best on most hosts, with steps where a process
no longer fits into a part of the host. The search therefore begins with numbers that divide the host in natural ways,
and then changes the best deployment in ever smaller steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ortune.planning.deployment import Deployment
from ortune.planning.space import DeploymentSpace, Shape

Measure = Callable[[Sequence[Deployment]], Sequence[float | None]]
"""Measures deployments, and returns the score of each, as a log-ratio to the default: larger is better. None for those
that failed or were not measured."""

MOST_SCREENED = 60
"""Deployments that are measured at most, without the default."""

FACTORS = (2.0, 1.5, 1.25, 1.1, 1.0)
"""By which numbers of processes and threads are changed. With 1, they change by one."""

LEAST_STEP_GAIN = 0.003
"""Gain of the best deployment, as a log-ratio, that is worth another step of the same size."""

N_LEADING_DEPLOYMENTS = 2
"""The best deployments whose callers and settings are changed."""


def screen_deployments(
    space: DeploymentSpace,
    measure: Measure,
    *,
    most: int = MOST_SCREENED,
    has_time: Callable[[], bool] = lambda: True,
) -> list[tuple[Deployment, float]]:
    """Return the deployments that were measured with their scores, the best first.

    Args:
        space: What is worth trying.
        measure: Measures deployments.
        most: Deployments that are measured at most.
        has_time: Whether there is time to measure more.
    """
    return _Screening(space, measure, most, has_time).run()


class _Screening:
    def __init__(self, space: DeploymentSpace, measure: Measure, most: int, has_time: Callable[[], bool]) -> None:
        self.space = space
        self.measure = measure
        self.most = most
        self.has_time = has_time
        # The default has been measured along with all others.
        self.known: dict[str, tuple[Deployment, float | None]] = {space.default.key: (space.default, 0.0)}

    def run(self) -> list[tuple[Deployment, float]]:
        """Measure what comes first, then sizes, then variants of the best, and then sizes of the best variant."""
        self.try_all(self.space.list_first())
        self.refine_sizes(FACTORS)
        before = self.best[0]
        while self.try_all([variant for leader in self.leaders for variant in self.space.list_variants(leader)]):
            pass
        if self.best[0] != before:
            self.refine_sizes(FACTORS[-2:])
        return self.ranked

    @property
    def ranked(self) -> list[tuple[Deployment, float]]:
        """What did not fail, the best first."""
        worked = [(deployment, score) for deployment, score in self.known.values() if score is not None]
        return sorted(worked, key=lambda scored: -scored[1])

    @property
    def leaders(self) -> list[Shape]:
        """The best deployments, as points of the space."""
        return [self.space.find_shape(deployment) for deployment, _ in self.ranked[:N_LEADING_DEPLOYMENTS]]

    @property
    def best(self) -> tuple[Deployment, float]:
        """The best deployment and its score."""
        return self.ranked[0]

    def refine_sizes(self, factors: Sequence[float]) -> None:
        """Change the numbers of processes and threads of the best deployment in ever smaller steps."""
        for factor in factors:
            while True:
                before = self.best[1]
                if not self.try_all(self.space.list_sizes(self.space.find_shape(self.best[0]), factor)):
                    break
                if self.best[1] < before + LEAST_STEP_GAIN:
                    break

    def try_all(self, deployments: Sequence[Deployment]) -> bool:
        """Measure those that were not measured before, and return whether there were any."""
        new = [candidate for candidate in deployments if candidate.key not in self.known]
        new = new[: max(self.most - len(self.known) + 1, 0)]
        if not new or not self.has_time():
            return False
        for deployment, score in zip(new, self.measure(new), strict=True):
            usable = score is not None and not math.isnan(score)
            self.known[deployment.key] = (deployment, score if usable else None)
        return True
