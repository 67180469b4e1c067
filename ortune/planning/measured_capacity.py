"""Measures the capacity of a deployment: requests arrive near the rate where it is expected, in fresh launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ortune.planning.capacity import describe_capacity
from ortune.planning.deployment import Deployment
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.result import Estimate, PlannedDeployment
from ortune.queueing.capacity import Capacity
from ortune.queueing.live_capacity import MEASUREMENT_RELAXATIONS, find_live_capacity
from ortune.queueing.rate_model import RateMeasurement, RateModel, find_factors
from ortune.worker.group import merge_services
from ortune.worker.open_loop import WARM_UP_RELAXATIONS
from ortune.workload import Limit
from ortune.workload.load import HIGHEST_RATE_PER_S

LOWEST_RATE_SHARE = 0.02
HIGHEST_RATE_SHARE = 0.97
"""Where a measured capacity is searched: from this part of the predicted one to this part of the throughput at full
load. Low rates take so long to measure that there is rarely time for the lowest."""

FEWEST_RATE_MEASUREMENTS = 4
MOST_RATE_MEASUREMENTS = 20
"""Measurements at single rates that a measured capacity takes at least and at most."""

LEAST_S = 5.0
"""How long a measurement lasts at least, if there is time. Shared hosts are slow for some seconds now and then. Shorter
measurements would see little of the queues that grow meanwhile."""

Found = TypeVar("Found")
Slowdown = TypeVar("Slowdown")
"""What a measurement returns, and the slowdown for which it is made: a number, or several."""


class CapacityMeasurement:
    """The measurement of the capacity of one deployment.

    Args:
        runner: Measures deployments.
        row: The deployment, with its predicted capacity.
        model: What is expected at each rate.
        limit: The limit.

    Attributes:
        row: The deployment.
        model: What is expected at each rate.
        limit: The limit.
    """

    def __init__(self, runner: DeploymentRunner, row: PlannedDeployment, model: RateModel, limit: Limit) -> None:
        assert row.capacity
        self._runner = runner
        self.row = row
        self.model = model
        self.limit = limit
        self._predicted = row.capacity
        self._share = 1.0

    @property
    def start_per_s(self) -> float:
        """The first rate."""
        return min(self._predicted.estimate or self.row.throughput.estimate / 2, self.highest_per_s)

    @property
    def highest_per_s(self) -> float:
        """The highest rate."""
        possible_per_s = HIGHEST_RATE_PER_S * self._deployment.config.batch
        return min(HIGHEST_RATE_SHARE * self.row.throughput.estimate, possible_per_s)

    def find_time_s(self, rate_per_s: float, slowdown: float = 1.0) -> float:
        """Return how long a measurement at a rate takes, about."""
        relaxation_s = self.model.find_relaxation_ns(rate_per_s, slowdown) / 1e9
        return self._runner.find_rate_time_s(
            self._deployment,
            rate_per_s,
            self.limit.figure,
            least_s=self._find_least_s(relaxation_s),
            warm_up_s=WARM_UP_RELAXATIONS * relaxation_s,
        )

    def fit_into(self, time_s: float) -> bool:
        """Make measurements so short that the fewest fit into a time. Return whether they do."""
        for self._share in (1.0, 0.5, 0.25):
            if FEWEST_RATE_MEASUREMENTS * self.find_time_s(self.start_per_s) <= time_s:
                return True
        return False

    def run(self, end_s: float, observe: Callable[[int], None]) -> Estimate | None:
        """Measure until the capacity is known well enough, or there is no time for more.

        Args:
            end_s: When the last measurement ends, on the clock of the runner.
            observe: Called with the number of measurements, after each.

        Returns:
            The capacity; None if there were so few measurements that they add nothing to the prediction.

        Raises:
            MeasureError: The deployment fails, or the background load ends.
        """
        found = find_live_capacity(
            measure_in_time(self.measure, self.find_time_s, self._runner.now_s, end_s, observe),
            self.model,
            lowest_per_s=LOWEST_RATE_SHARE * self.start_per_s,
            highest_per_s=self.highest_per_s,
            start_per_s=self.start_per_s,
            most_measurements=MOST_RATE_MEASUREMENTS,
        )
        return describe_measured(found, self._predicted)

    def measure(self, rate_per_s: float, slowdown: float) -> RateMeasurement:
        """Return how many requests exceed the limit, or the mean latency, in a fresh launch."""
        relaxation_s = self.model.find_relaxation_ns(rate_per_s, slowdown) / 1e9
        least_s = self._find_least_s(relaxation_s)
        blocks, _ = self._runner.run_at_rate(self._deployment, rate_per_s, self.limit.figure, least_s)
        latencies_ns = np.concatenate([block.samples_ns for block in blocks])
        if self._deployment.batching:
            return self.model.observe(rate_per_s, latencies_ns, None)
        factors = find_factors(
            [block.service_ns for block in blocks],
            [block.service_sd_ns for block in blocks],
            [len(block.samples_ns) for block in blocks],
        )
        return self.model.observe(rate_per_s, latencies_ns, merge_services(blocks)[0], factors=factors)

    def _find_least_s(self, relaxation_s: float) -> float:
        """Return how long a measurement lasts at least, given the relaxation time of the queue."""
        return self._share * max(MEASUREMENT_RELAXATIONS * relaxation_s, LEAST_S)

    @property
    def _deployment(self) -> Deployment:
        return self.row.deployment


def measure_in_time(
    measure: Callable[[float, Slowdown], Found],
    find_time_s: Callable[[float, Slowdown], float],
    now_s: Callable[[], float],
    end_s: float,
    observe: Callable[[int], None],
) -> Callable[[float, Slowdown], Found | None]:
    """Return a function that measures as long as there is time, and then returns None. It always measures once.

    Args:
        measure: Measures at a rate, for a slowdown.
        find_time_s: Returns how long that takes, about.
        now_s: Returns the time.
        end_s: When the last measurement ends.
        observe: Called with the number of measurements, after each.
    """
    n_done = 0

    def measure_or_end(rate_per_s: float, slowdown: Slowdown) -> Found | None:
        nonlocal n_done
        if n_done and now_s() + find_time_s(rate_per_s, slowdown) > end_s:
            return None
        found = measure(rate_per_s, slowdown)
        n_done += 1
        observe(n_done)
        return found

    return measure_or_end


def describe_measured(found: Capacity, predicted: Estimate) -> Estimate | None:
    """Return a measured capacity; None if few measurements were made, and they agree with the prediction."""
    rate = found.rate_per_s
    is_as_predicted = found.bound == "latency" and rate.low <= predicted.estimate <= rate.high
    is_enough = found.n_measurements >= FEWEST_RATE_MEASUREMENTS
    return describe_capacity(found, "measured") if is_enough or not is_as_predicted else None
