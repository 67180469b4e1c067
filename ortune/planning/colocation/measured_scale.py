"""Measures by how much the rates of all models can be multiplied before a target is missed, in fresh launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ortune.errors import MeasureError
from ortune.planning.capacity import describe_capacity
from ortune.planning.colocation import measuring
from ortune.planning.colocation.measuring import LiveSharing, SharedHost, Together
from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.result import Estimate
from ortune.queueing.live_capacity import RELAXATIONS, find_joint_capacity
from ortune.queueing.rate_model import Observation, RateModel
from ortune.worker.group import merge_services

LOWEST_SHARE, HIGHEST_SHARE = 0.25, 1.1
"""Where a measured scale is searched: from this part of the predicted one to this part of that at which a model would
always be busy if its calls stayed as long as they were."""

FEWEST_MEASUREMENTS, MOST_MEASUREMENTS = 4, 16
"""Measurements at one scale each, at least and at most."""

FEWEST_REQUESTS = 200
"""Requests of each model in a measurement, if there is time for them."""

FEWEST_BLOCKS, MOST_BLOCKS = 2, 40
"""Blocks of a measurement."""


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
        self.highest = HIGHEST_SHARE * scale / busiest
        self.lowest = LOWEST_SHARE * min(max(predicted.estimate, scale), self.highest)
        self.start = min(max(predicted.estimate, self.lowest), self.highest)

    def find_time_s(self, scale: float, slowdown: float = 1.0) -> float:
        """Return how long a measurement at a scale takes, about."""
        block_s = measuring.find_block_s(measuring.plan_block([self._sharing], self._demands, scale))
        return measuring.find_launch_s(self._host, self._sharing) + self._count_blocks(scale, slowdown) * block_s

    def fit_into(self, time_s: float) -> bool:
        """Make measurements so short that the fewest fit into a time. Return whether they do."""
        for share in (1.0, 1 / 2, 1 / 4):
            self._share = share
            if FEWEST_MEASUREMENTS * self.find_time_s(self.start) <= time_s:
                return True
        return False

    def run(self, end_s: float, observe: Callable[[int], None]) -> Estimate | None:
        """Measure until the scale is known well enough, or there is no time for more.

        Args:
            end_s: When the last measurement ends, on the clock of the host's runner.
            observe: Called with the number of measurements, before the first and after each.

        Returns:
            The scale; None if nothing could be measured, or so little that it adds nothing to the prediction.
        """
        n_done = 0
        observe(n_done)

        def measure(scale: float, slowdown: float) -> list[Observation] | None:
            nonlocal n_done
            if n_done and self._host.runner.now_s() + self.find_time_s(scale, slowdown) > end_s:
                return None
            try:
                found = self._measure(scale, slowdown)
            except MeasureError:
                if not n_done:
                    raise
                return None
            n_done += 1
            observe(n_done)
            return found

        try:
            found, observed = find_joint_capacity(
                measure,
                self._models,
                lowest_per_s=self.lowest,
                highest_per_s=self.highest,
                start_per_s=self.start,
                most_measurements=MOST_MEASUREMENTS,
            )
        except MeasureError:
            return None
        interval = found.rate_per_s
        is_as_predicted = interval.low <= self._predicted.estimate <= interval.high
        if len(observed) < FEWEST_MEASUREMENTS and found.bound == "latency" and is_as_predicted:
            return None
        return describe_capacity(found, "measured", n_measurements=len(observed))

    def _measure(self, scale: float, slowdown: float) -> list[Observation]:
        """Return what is seen of each model in a fresh launch.

        Raises:
            MeasureError: A process fails.
        """
        together = Together(sharing=self._sharing, streams=[])
        plan = measuring.plan_block([self._sharing], self._demands, scale)
        lives: dict[int, LiveSharing] = {}
        try:
            for _ in range(self._count_blocks(scale, slowdown)):
                traffic = self._host.runner.draw_traffic(plan)
                measuring.measure_one(self._host, together, lives, 0, self._demands, scale, traffic)
        finally:
            for each in lives.values():
                each.close()
        if together.failure:
            raise MeasureError(together.failure.message)
        loads = self._sharing.loads_at(self._demands, scale)
        found = []
        for number, (model, load) in enumerate(zip(self._models, loads, strict=True)):
            blocks = [block.parts[number] for stream in together.streams for block in stream]
            latencies_ns = np.concatenate([block.samples_ns for block in blocks])
            # The durations of calls depend on what the other models do, and therefore on the scale.
            utilization = load.utilization(merge_services(blocks)[0])
            found.append(model.observe(scale, latencies_ns, None, utilization))
        return found

    def _count_blocks(self, scale: float, slowdown: float) -> int:
        """Return the blocks of a measurement, which last for some relaxation times of all queues."""
        block_s = measuring.find_block_s(measuring.plan_block([self._sharing], self._demands, scale))
        relaxation_s = max(model.find_relaxation_ns(scale, slowdown) for model in self._models) / 1e9
        requests_s = max(FEWEST_REQUESTS / (each.rate_per_s * scale) for each in self._demands)
        duration_s = self._share * max(RELAXATIONS * relaxation_s, requests_s)
        return min(max(math.ceil(duration_s / block_s), FEWEST_BLOCKS), MOST_BLOCKS)
