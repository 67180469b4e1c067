"""Measures by how much the rates of all models can be multiplied before a target is missed, in fresh launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ortune.errors import MeasureError
from ortune.measure.compute_figures import required_calls
from ortune.planning.colocation import measuring
from ortune.planning.colocation.measuring import SharedHost, Together
from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.measured_capacity import FEWEST_RATE_MEASUREMENTS, describe_measured, measure_in_time
from ortune.planning.result import Estimate
from ortune.queueing.live_capacity import MEASUREMENT_RELAXATIONS, find_joint_capacity
from ortune.queueing.rate_model import RateMeasurement, RateModel
from ortune.worker import BlockPlan, LiveCandidate
from ortune.worker.group import merge_services
from ortune.worker.open_loop import WARM_UP_RELAXATIONS

LOWEST_SCALE_SHARE, HIGHEST_SCALE_SHARE = 0.02, 1.1
"""Where a measured scale is searched: from this part of the predicted one to this part of that at which a model would
always be busy if its calls stayed as long as they were."""

MOST_SCALE_MEASUREMENTS = 16
"""Measurements at one scale each, at most."""

ENOUGH_REQUESTS = 400
"""Requests of each model in a measurement, if there is time for them; fewer if its percentile needs fewer."""

FEWEST_SCALE_BLOCKS, MOST_SCALE_BLOCKS = 2, 200
"""Blocks of a measurement."""

LONGEST_SCALE_WARM_UP_S = 10.0
"""How long requests arrive at most before they are measured."""


class ScaleMeasurement:
    """The measurement of the scale of one sharing.

    Args:
        host: Where the models are open.
        sharing: How they share it.
        demands: What each model must serve.
        models: What is expected of each at a scale.
        scale: The scale at which the sharing was measured.
        busiest: Share of the callers' time that calls of the busiest model took then.
        predicted: The predicted scale.
    """

    def __init__(
        self,
        host: SharedHost,
        sharing: Sharing,
        demands: Sequence[Demand],
        models: Sequence[RateModel],
        *,
        scale: float,
        busiest: float,
        predicted: Estimate,
    ) -> None:
        self._host = host
        self._sharing = sharing
        self._demands = demands
        self._models = models
        self._predicted = predicted
        self._share = 1.0
        self.highest = HIGHEST_SCALE_SHARE * scale / busiest
        self.lowest = LOWEST_SCALE_SHARE * min(max(predicted.estimate, scale), self.highest)
        self.start = min(max(predicted.estimate, self.lowest), self.highest)

    def find_time_s(self, scale: float, slowdowns: Sequence[float]) -> float:
        """Return how long a measurement at a scale takes, about."""
        block_s = measuring.find_block_s(self._plan(scale))
        warm_up_s = min(
            WARM_UP_RELAXATIONS * find_relaxation_s(self._models, scale, slowdowns), LONGEST_SCALE_WARM_UP_S
        )
        n_blocks = self._count_blocks(scale, slowdowns)
        return measuring.find_launch_s(self._host, self._sharing) + warm_up_s + n_blocks * block_s

    def fit_into(self, time_s: float) -> bool:
        """Make measurements so short that the fewest fit into a time. Return whether they do."""
        slowdowns = [1.0] * len(self._models)
        for share in (1.0, 1 / 2, 1 / 4):
            self._share = share
            if FEWEST_RATE_MEASUREMENTS * self.find_time_s(self.start, slowdowns) <= time_s:
                return True
        return False

    def count_fitting(self, time_s: float) -> int:
        """Return how many measurements fit into a time, about."""
        return min(int(time_s / self.find_time_s(self.start, [1.0] * len(self._models))), MOST_SCALE_MEASUREMENTS)

    def run(self, end_s: float, observe: Callable[[int], None]) -> Estimate | None:
        """Measure until the scale is known well enough, or there is no time for more.

        Args:
            end_s: When the last measurement ends, on the clock of the host's runner.
            observe: Called with the number of measurements, before the first and after each.

        Returns:
            The scale; None if so little could be measured that it adds nothing to the prediction.

        Raises:
            MeasureError: A process fails.
        """
        observe(0)
        found = find_joint_capacity(
            measure_in_time(self._measure, self.find_time_s, self._host.runner.now_s, end_s, observe),
            self._models,
            lowest_per_s=self.lowest,
            highest_per_s=self.highest,
            start_per_s=self.start,
            most_measurements=MOST_SCALE_MEASUREMENTS,
        )
        return describe_measured(found, self._predicted)

    def _measure(self, scale: float, slowdowns: Sequence[float]) -> list[RateMeasurement]:
        """Return what is seen of each model in a fresh launch.

        Raises:
            MeasureError: A process fails.
        """
        together = Together(sharing=self._sharing, streams=[])
        plan = self._plan(scale)
        lives: dict[int, LiveCandidate] = {}
        try:
            for _ in range(self._count_blocks(scale, slowdowns)):
                traffic = self._host.runner.draw_traffic(plan)
                measuring.measure_one(self._host, together, lives, 0, self._demands, scale, traffic)
        finally:
            for live in lives.values():
                live.close()
        if together.failure:
            raise MeasureError(together.failure.message)
        loads = self._sharing.loads_at(self._demands, scale)
        found = []
        for number, (model, load) in enumerate(zip(self._models, loads, strict=True)):
            blocks = [block.parts[number] for stream in together.streams for block in stream]
            latencies_ns = np.concatenate([block.samples_ns for block in blocks])
            service_ns, _ = merge_services(blocks)
            found.append(model.observe(scale, latencies_ns, service_ns, load.utilization(service_ns)))
        return found

    def _plan(self, scale: float) -> BlockPlan:
        return measuring.plan_block([self._sharing], self._demands, scale, longest_warm_up_s=LONGEST_SCALE_WARM_UP_S)

    def _count_blocks(self, scale: float, slowdowns: Sequence[float]) -> int:
        duration_s = self._share * find_duration_s(self._models, self._demands, scale, slowdowns)
        n_blocks = math.ceil(duration_s / measuring.find_block_s(self._plan(scale)))
        return min(max(n_blocks, FEWEST_SCALE_BLOCKS), MOST_SCALE_BLOCKS)


def find_relaxation_s(models: Sequence[RateModel], scale: float, slowdowns: Sequence[float]) -> float:
    """Return the longest relaxation time of all queues."""
    return max(
        model.find_relaxation_ns(scale, slowdown) / 1e9 for model, slowdown in zip(models, slowdowns, strict=True)
    )


def find_duration_s(
    models: Sequence[RateModel], demands: Sequence[Demand], scale: float, slowdowns: Sequence[float]
) -> float:
    """Return how long a measurement should be: some relaxation times, and enough requests of each model."""
    requests_s = max(
        min(required_calls(demand.figure), ENOUGH_REQUESTS) / (demand.rate_per_s * scale) for demand in demands
    )
    return max(MEASUREMENT_RELAXATIONS * find_relaxation_s(models, scale, slowdowns), requests_s)
