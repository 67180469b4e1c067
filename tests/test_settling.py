"""Calls that take longer after a resume, as on a GPU, must not decide what is faster."""

from __future__ import annotations

import numpy as np
import pytest

from ortune.compare.block_plan import Pace, plan_block
from ortune.compare.open import start_comparison
from ortune.compare.settling import LONGEST_SETTLING_NS, find_settling_ns
from ortune.knobs import Config, SpaceOptions, build_space
from ortune.knobs.config import CUDA
from ortune.tuning.outcome import Outcome
from ortune.tuning.stages import SearchSettings, run_search
from ortune.worker import Failure
from ortune.workload import Goal, make_load
from tests.simulation import SimulatedExecutor, make_host, make_model


def draw(*parts: tuple[int, float], sigma: float = 0.03) -> np.ndarray:
    """Return durations of calls: for each part, their number and their level in ms."""
    rng = np.random.default_rng(0)
    levels = np.concatenate([np.full(n, 1e6 * level) for n, level in parts])
    return (levels * np.exp(rng.normal(0, sigma, len(levels)))).astype(np.int64)


class TestSettling:
    def test_calls_that_are_alike_settle_at_once(self) -> None:
        assert find_settling_ns(draw((1000, 1.0))) == 0
        assert find_settling_ns(draw((20, 50.0))) == 0

    def test_of_few_calls_nothing_is_known(self) -> None:
        assert find_settling_ns(draw((3, 300.0))) == 0

    @pytest.mark.parametrize("level", [0.3, 2.0])
    def test_the_end_of_slow_calls_is_found(self, level: float) -> None:
        n_slow = int(120 / (1.5 * level))
        found = find_settling_ns(draw((n_slow, 1.5 * level), (int(900 / level), level)))
        assert 115e6 <= found <= 155e6

    def test_slower_calls_later_are_another_matter(self) -> None:
        assert find_settling_ns(draw((300, 1.0), (50, 2.0), (600, 1.0))) == 0

    def test_calls_that_do_not_settle_have_a_limit(self) -> None:
        assert find_settling_ns(draw((400, 1.5), (100, 1.4), (300, 1.0))) == LONGEST_SETTLING_NS

    def test_calls_of_several_cases_are_compared_by_case(self) -> None:
        cases = np.arange(400) % 2
        durations = draw((400, 4.0)) * (1 + cases)
        assert find_settling_ns(durations.astype(np.int64), cases) == 0
        slow = np.where(np.arange(400) < 20, 1.5, 1.0)
        assert find_settling_ns((durations * slow).astype(np.int64), cases) == pytest.approx(180e6, rel=0.3)

    def test_blocks_begin_after_it(self) -> None:
        pace = Pace(gap_ns=2e6, call_ns=2e6, settling_ns=150_000_000)
        assert plan_block(pace).lead_in_ns == 150_000_000
        slow = Pace(gap_ns=2e8, call_ns=2e8, settling_ns=150_000_000)
        assert plan_block(slow).lead_in_ns == 0


@pytest.mark.slow
class TestSearch:
    """Without a captured graph, the first calls take longer. Later, all calls are alike."""

    def search(self, clients: int = 1) -> Outcome:
        def cold(config: Config) -> list[float]:
            captured = config.settings.get("cuda.enable_cuda_graph") == "1"
            return [] if captured else [1.5] * 60

        space = build_space(make_host(4), make_model(), SpaceOptions(providers=(CUDA,), clients=clients))
        executor = SimulatedExecutor(lambda config: 2e6, cold=cold, most_calls=1000)
        (first,) = executor.launch([space.base], deadline_s=9)
        assert not isinstance(first, Failure)
        goal = Goal(load=make_load(clients=clients))
        opened = start_comparison(executor, first, goal, first_launch_s=0.5, seed=0, free_bytes=8_000_000_000)
        assert opened.calibration.pace.settling_ns == (0 if clients > 1 else pytest.approx(180e6, rel=0.2))
        return run_search(space, opened, SearchSettings(budget_s=60))

    def test_no_gain_is_claimed(self) -> None:
        outcome = self.search()
        assert outcome.evidence.verdict != "faster"
        assert outcome.evidence.speedup is None or outcome.evidence.speedup.high < 1.1

    def test_it_is_not_measured_for_several_callers(self) -> None:
        self.search(clients=2)
