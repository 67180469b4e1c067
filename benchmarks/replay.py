"""An executor that draws blocks from a landscape instead of measuring them, on a simulated clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.landscape import Landscape
from ortune.knobs import DEFAULT, Config
from ortune.knobs.ids import INTRA_OP_NUM_THREADS
from ortune.measure.open import OpenComparison, start_comparison
from ortune.worker.block import Block, BlockPlan, Memory
from ortune.worker.failure import Failure
from ortune.worker.interfaces import LiveCandidate
from ortune.worker.session_info import Runtime, SessionInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIPE_S = 0.002
"""Time of a block in addition to its calls: to resume the worker, to answer, to suspend it."""

FAILED_LOAD_S = 1.0

LAUNCH_DEADLINE_S = 60.0

MEMORY = Memory(steady_bytes=60_000_000, peak_bytes=80_000_000)
"""Memory of a worker, which landscapes do not contain."""

RUNTIME = Runtime(onnxruntime="replay", providers=("CPUExecutionProvider",), python="", ortune="")


class Spells:
    """Periods in which something happens, such as that the host is busy. They and those between are exponential.

    Args:
        share: Share of the time.
        mean_s: Mean duration.
        rng: Source of randomness.
    """

    def __init__(self, share: float, mean_s: float, rng: np.random.Generator) -> None:
        self._share, self._mean_s, self._rng = share, mean_s, rng
        self._is_on = bool(rng.random() < share)
        self._ends_s = self._draw_s()

    def is_on(self, time_s: float) -> bool:
        """Return whether it happens at a time. Times must not decrease between calls."""
        while time_s >= self._ends_s:
            self._is_on = not self._is_on
            self._ends_s += self._draw_s()
        return self._is_on

    def _draw_s(self) -> float:
        if self._share <= 0:
            return math.inf
        mean_s = self._mean_s if self._is_on else self._mean_s * (1 - self._share) / self._share
        return float(self._rng.exponential(mean_s))


class ReplayExecutor:
    """Launches candidates of a landscape.

    Args:
        landscape: The landscape.
        seed: Random seed of launches, noise, busy periods, and the position in the drift at which the search starts.

    Attributes:
        runtime: Versions of the software.
    """

    def __init__(self, landscape: Landscape, *, seed: int = 0) -> None:
        self.landscape = landscape
        self.runtime = RUNTIME
        self.rng = np.random.default_rng(seed)
        self._numbers = landscape.space.numbers
        self._time_s = 0.0
        self._is_first = True
        cost_s = math.exp(landscape.log_costs[0]) / 1e9
        self._call_s = (
            1e9 * cost_s * landscape.goal.load.clients if landscape.goal.objective == "throughput" else cost_s
        )
        self._busy = Spells(landscape.contended_share, landscape.spell_s, self.rng)
        phases = landscape.phases
        self._phase_rng = np.random.default_rng([seed, 2])
        self._phases: Spells | None = None
        if phases and phases.mean_s is not None:
            self._phases = Spells(phases.share, phases.mean_s, self._phase_rng)
        self._drift_from_s = float(self.rng.random()) * len(landscape.drift) * landscape.drift_step_s
        self._speed_rng = np.random.default_rng([seed, 1])
        self._deviations = [sigma * float(self._speed_rng.standard_normal()) for sigma, _ in landscape.speeds]
        self._speed_at_s = 0.0

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return self._time_s

    def spend(self, duration_s: float) -> None:
        """Advance the clock."""
        self._time_s += duration_s

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch candidates. They fail if the landscape does not contain them, or if they failed in the recording."""
        landscape = self.landscape
        if self._is_first:
            # The reference makes another call, to see whether outputs are the same in each run.
            self.spend(self._call_s)
            self._is_first = False
        self.spend(landscape.start_s + landscape.launch_s * len(configs))
        answers: list[LiveCandidate | Failure] = []
        for config in configs:
            number = self._numbers.get(config.key)
            if number is None or math.isnan(landscape.log_costs[number]):
                self.spend(min(FAILED_LOAD_S, deadline_s))
                unknown = Failure(kind="exception", stage="load", message="the landscape does not contain this config")
                answers.append(landscape.failures.get(number, unknown) if number is not None else unknown)
            else:
                answers.append(ReplayLive(self, config, number))
        return answers

    def is_busy(self) -> bool:
        """Return whether the host is busy now."""
        return self._busy.is_on(self._time_s)

    def find_wait(self, config: Config) -> float:
        """Return by how much a candidate is slower now because its threads wait for each other, in log-cost."""
        phases = self.landscape.phases
        if not phases or not self._phases or config.session_options.get(INTRA_OP_NUM_THREADS) == 1:
            return 0.0
        return math.log(phases.factor) if self._phases.is_on(self._time_s) else 0.0

    def draw_wait(self, config: Config) -> float:
        """Return by how much all calls of a launch are slower for this reason, in log-cost."""
        phases = self.landscape.phases
        if not phases or self._phases or config.session_options.get(INTRA_OP_NUM_THREADS) == 1:
            return 0.0
        return math.log(phases.factor) if self._phase_rng.random() < phases.share else 0.0

    def drift(self) -> float:
        """Return the current drift, which is common to all candidates, in log-cost."""
        series = self.landscape.drift
        if len(series) == 0:
            return 0.0
        # Forward, then backward, so that there is no jump that was not recorded.
        position = int((self._drift_from_s + self._time_s) / self.landscape.drift_step_s) % (2 * len(series))
        return float(series[min(position, 2 * len(series) - 1 - position)])

    def find_speed(self) -> float:
        """Return by how much the host is slower now than usual, for all candidates, in log-cost.

        Nearby times have nearby speeds: these are Ornstein-Uhlenbeck processes.
        """
        elapsed_s, self._speed_at_s = self._time_s - self._speed_at_s, self._time_s
        for place, (sigma, tau_s) in enumerate(self.landscape.speeds):
            left = math.exp(-elapsed_s / tau_s)
            new = sigma * math.sqrt(1 - left**2) * float(self._speed_rng.standard_normal())
            self._deviations[place] = left * self._deviations[place] + new
        return sum(self._deviations)


def open_replay(landscape: Landscape, *, seed: int = 0) -> OpenComparison:
    """Return a comparison on a landscape, whose baseline has been launched and measured.

    Raises:
        ValueError: Its calls wait for each other, which a replay cannot reproduce.
    """
    if landscape.has_queue:
        raise ValueError(f"{landscape.name} has requests at a rate, which cannot be replayed")
    executor = ReplayExecutor(landscape, seed=seed)
    (first,) = executor.launch([DEFAULT], deadline_s=LAUNCH_DEADLINE_S)
    assert not isinstance(first, Failure)
    return start_comparison(
        executor, first, landscape.goal, first_launch_s=executor.now_s(), seed=seed, quota=landscape.quota
    )


class ReplayLive:
    """One launch of a candidate of a landscape."""

    def __init__(self, executor: ReplayExecutor, config: Config, number: int) -> None:
        landscape = executor.landscape
        self.config = config
        self.session_info = SessionInfo(
            load_ns=int(landscape.launch_s * 1e9), providers=("CPUExecutionProvider",), max_error=0.0
        )
        self._executor = executor
        self._number = number
        self._level = float(landscape.log_costs[number]) + landscape.draw_luck(number, executor.rng)
        self._level += executor.draw_wait(config)

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Draw a block."""
        executor, landscape = self._executor, self._executor.landscape
        busy = executor.is_busy()
        pool = landscape.contended if busy else landscape.quiet
        assert pool is not None, "a landscape without contended blocks is never busy"
        row = pool.draw(self._number, executor.rng)
        cost = math.exp(
            self._level
            + executor.drift()
            + executor.find_speed()
            + executor.find_wait(self.config)
            + pool.residuals[row]
        )
        samples_ns, gap_ns = self._calls(cost, pool.profiles[row])
        n_calls = max(plan.duration_ns / gap_ns, plan.min_calls * plan.load.clients)
        wall_ns = int(n_calls * gap_ns)
        lead_in_ns = int(max(plan.lead_in_ns, samples_ns.mean())) if plan.lead_in_ns else 0
        if plan.give_up_ns is not None and samples_ns.mean() > plan.give_up_ns:
            n_calls, wall_ns, lead_in_ns = 1.0, int(samples_ns.mean()), 0
        executor.spend((wall_ns + lead_in_ns) / 1e9 + PIPE_S)
        return Block(
            samples_ns=np.maximum(samples_ns, 1).astype(np.int64),
            n_calls=n_calls,
            wall_ns=wall_ns,
            lead_in_ns=lead_in_ns,
            service_ns=float(samples_ns.mean()),
            cpu_ns=wall_ns,
            memory=MEMORY,
            foreign_share=float(pool.foreign[row]),
            contended=busy,
        )

    def _calls(self, cost: float, profile: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return latencies that have this cost, and the time between two completed calls, in ns."""
        goal = self._executor.landscape.goal
        if goal.objective == "throughput":
            gap_ns = 1e9 * cost
            return gap_ns * goal.load.clients * profile / profile.mean(), gap_ns
        samples_ns = cost * (profile / profile.mean() if goal.objective == "mean" else profile)
        return samples_ns, float(samples_ns.mean()) / goal.load.clients

    def close(self) -> None:
        """Do nothing: there is no process."""
