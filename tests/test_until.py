"""Searches that end before their time: because little is left to gain, or because the user interrupts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ortune
from ortune import Progress, Record
from tests.conftest import TINY_CNN
from tests.simulated import Effect, Scenario, simulate

ONE_THREAD = {"intra_op_num_threads": 1}

ALIKE = Scenario(effects=(Effect(cpus=1.8), Effect(settings=ONE_THREAD, cpus=1.0)))

ONE_THREAD_WINS = Scenario(effects=(Effect(cpus=1.8), Effect(settings=ONE_THREAD, factor=0.8, cpus=1.0)))


def search(folder: Path, scenario: Scenario, **options: Any) -> Record:
    with simulate(scenario):
        return ortune.search(TINY_CNN, output=folder / "tuned.json", budget="60s", history=False, **options)


def interrupt(condition: Callable[[Progress], bool]) -> Callable[[Progress], None]:
    """Return an observer that interrupts the search at the first report that meets a condition."""

    def observe(report: Progress) -> None:
        if condition(report):
            raise KeyboardInterrupt

    return observe


def find_spent_s(record: Record) -> float:
    return sum(stage.wall_s for stage in record.search.stages)


class TestUntil:
    def test_what_is_left_to_gain_shrinks(self, tmp_path: Path) -> None:
        reports: list[Progress] = []
        search(tmp_path, ALIKE, progress=reports.append)
        left = [report.gain_left for report in reports if report.gain_left is not None]
        assert left[-1] < 0.05 < left[0]
        assert all(report.gain_left is None for report in reports if report.stage != "screening")

    @pytest.mark.parametrize(("scenario", "verdict"), [(ALIKE, "nothing_found"), (ONE_THREAD_WINS, "faster")])
    def test_it_ends_screening(self, scenario: Scenario, verdict: str, tmp_path: Path) -> None:
        record, whole = (search(tmp_path, scenario, until=until) for until in ("10%", None))
        assert "gain 10% more than the best one so far" in record.search.ended_early
        assert "racing" not in {stage.stage for stage in record.search.stages}
        assert record.evidence.verdict == verdict
        assert record.config.settings == (ONE_THREAD if verdict == "faster" else {})
        assert find_spent_s(record) < find_spent_s(whole)

    def test_a_share_that_is_not_reached_changes_nothing(self, tmp_path: Path) -> None:
        record, whole = (search(tmp_path, ONE_THREAD_WINS, until=until) for until in (0, None))
        assert record.evidence == whole.evidence

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"until": "5"}, "must be a share from 0 to 1"),
            ({"until": "5%", "pareto": "p50,cpu"}, "needs a single objective and the adaptive strategy"),
            ({"until": "5%", "strategy": "tpe"}, "needs a single objective and the adaptive strategy"),
        ],
    )
    def test_what_is_refused(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(ortune.UsageError, match=message):
            ortune.search(TINY_CNN, **options)  # type: ignore[arg-type]


class TestInterrupt:
    def test_a_gain_that_is_proven_is_the_answer(self, tmp_path: Path) -> None:
        """The interval was shown after each launch, so that its confidence is higher than usual."""
        late = interrupt(lambda report: report.stage == "confirmation" and report.share > 0.8)
        record = search(tmp_path, ONE_THREAD_WINS, progress=late)
        assert record.search.interrupted
        assert record.evidence.verdict == "faster"
        assert record.config.settings == ONE_THREAD
        speedup = record.evidence.speedup
        assert speedup is not None
        assert speedup.confidence == 0.999
        assert speedup.n_launches >= 5
        assert speedup.low <= 1.25 <= speedup.high
        assert record.evidence.best_so_far is None

    def test_fewer_launches_than_a_proof_needs_prove_nothing(self, tmp_path: Path) -> None:
        early = interrupt(lambda report: report.stage == "confirmation" and report.share > 0.05)
        record = search(tmp_path, ONE_THREAD_WINS, progress=early)
        assert record.search.interrupted
        assert record.evidence.verdict == "inconclusive"
        assert record.config.settings == {}
        assert record.evidence.reason == "the search was interrupted before anything was proven"
        assert record.evidence.best_so_far is not None

    def test_a_pool_that_fits_a_container_may_be_proven_first(self, tmp_path: Path) -> None:
        scenario = Scenario(quota=1.0, effects=(Effect(cpus=1.8), Effect(settings=ONE_THREAD, factor=0.7, cpus=1.0)))
        record = search(tmp_path, scenario, progress=interrupt(lambda report: report.stage == "screening"))
        assert record.search.interrupted
        assert record.evidence.verdict == "faster"
        assert record.config.settings == ONE_THREAD

    def test_a_small_bound_is_the_answer(self, tmp_path: Path) -> None:
        record = search(tmp_path, ALIKE, progress=interrupt(lambda report: (report.gain_left or 1) < 0.05))
        assert record.search.interrupted
        assert record.evidence.verdict == "nothing_found"
        assert record.config.settings == {}
        assert "and none is likely to gain more than" in record.evidence.reason
        assert record.evidence.most_gain is not None
        assert 0 < record.evidence.most_gain < 0.1

    def test_a_large_bound_is_none(self, tmp_path: Path) -> None:
        record = search(tmp_path, ALIKE, progress=interrupt(lambda report: report.gain_left is not None))
        assert record.evidence.verdict == "inconclusive"

    def test_who_waits_for_a_good_interval_is_rarely_wrong(self, tmp_path: Path) -> None:
        is_good = interrupt(
            lambda report: report.stage == "confirmation" and report.speedup is not None and report.speedup.low > 1
        )
        noisy = {"block_noise": 0.05, "launch_noise": 0.02}
        scenarios = [Scenario(effects=ALIKE.effects, seed=seed, **noisy) for seed in range(10)]  # type: ignore[arg-type]
        verdicts = [
            search(tmp_path, scenario, restart=True, progress=is_good).evidence.verdict for scenario in scenarios
        ]
        assert verdicts.count("faster") == 0
