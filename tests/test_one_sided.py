"""What happens to one side only, or only sometimes: slow launches of a config, and a host that is busy now and then."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ortune
from ortune import Record
from ortune.measure.slow_launches import limit_slow_launches
from tests.conftest import TINY_CNN, long_params, run_ortune
from tests.simulated import Effect, Scenario, simulate

ONE_THREAD = {"intra_op_num_threads": 1}
EXTENDED: dict[str, int | str] = {"graph_optimization_level": "ORT_ENABLE_EXTENDED"}


def search(folder: Path, scenario: Scenario, **options: Any) -> Record:
    with simulate(scenario):
        return ortune.search(TINY_CNN, output=folder / "tuned.json", budget="60s", history=False, **options)


def make_scenario(*, slow_share: float = 0.0, slow_default: float = 0.0, **changes: Any) -> Scenario:
    """Return a host on which one thread is twice as fast as the default, and slow in a share of its launches."""
    effects = (
        Effect(cpus=1.8, slow_launches=slow_default),
        Effect(settings=ONE_THREAD, factor=0.5, cpus=1.0, slow_launches=slow_share - slow_default),
    )
    return Scenario(effects=effects, **changes)


@pytest.mark.parametrize("phase_s", [(3.0, 12.0), (5.0, 15.0)])
@pytest.mark.parametrize("seed", [0, *long_params(1, 2, 3)])
def test_a_phase_in_which_several_threads_are_slow_does_not_decide(
    phase_s: tuple[float, float], seed: int, tmp_path: Path
) -> None:
    """One thread, which is slower than the default as a rule, seems to be the best of all beside it then."""
    effects = (
        Effect(cpus=1.8, phase_factor=2.7, phase_s=phase_s),
        Effect(settings=ONE_THREAD, factor=1.1, cpus=1.0, phase_factor=1 / 2.7, phase_s=phase_s),
        Effect(settings=EXTENDED, factor=0.8),
    )
    record = search(tmp_path, Scenario(effects=effects, seed=seed), seed=seed)
    assert record.evidence.verdict == "faster"
    assert record.config.settings == EXTENDED


def search_after_slow_phase(folder: Path, *, end_s: float, n_cores: int, seed: int) -> Record:
    """One thread is useful in a phase in which several threads are slow, and wins the race in it."""
    phase_s = (0.0, end_s)
    effects = (
        Effect(cpus=1.8, phase_factor=2.7, phase_s=phase_s),
        Effect(settings=ONE_THREAD, factor=1.2, cpus=1.0, phase_factor=1 / 2.7, phase_s=phase_s),
        Effect(settings=EXTENDED, factor=0.8),
    )
    record = search(folder, Scenario(effects=effects, seed=seed, n_cores=n_cores), seed=seed)
    assert record.evidence.verdict == "faster"
    return record


@pytest.mark.parametrize("seed", range(3))
def test_cheaper_calls_do_not_keep_a_setting_that_makes_them_slower(seed: int, tmp_path: Path) -> None:
    record = search_after_slow_phase(tmp_path, end_s=14.5, n_cores=4, seed=seed)
    assert "racing" in {stage.stage for stage in record.search.stages}
    assert record.config.settings == EXTENDED
    assert record.evidence.dropped["intra_op_num_threads"].high < 1


@pytest.mark.parametrize("seed", [0, *long_params(1, 4, 5)])
def test_a_second_candidate_that_is_confirmed_is_pruned_as_well(seed: int, tmp_path: Path) -> None:
    """The phase ends after pruning, so that the confirmation shows that the first candidate gains nothing."""
    record = search_after_slow_phase(tmp_path, end_s=16.0, n_cores=2, seed=seed)
    stages = [stage.stage for stage in record.search.stages]
    assert stages[-4:] == ["pruning", "confirmation", "pruning", "confirmation"]
    assert record.config.settings == EXTENDED


def search_beside_slow_phase(folder: Path, *, phase_s: tuple[float, float], seed: int, factor: float = 0.8) -> Record:
    """In the phase, one level gains twice as much as before it."""
    effects = (
        Effect(cpus=1.8, phase_factor=2.7, phase_s=phase_s),
        Effect(settings=ONE_THREAD, factor=1.3, cpus=1.0, phase_factor=1 / 2.7, phase_s=phase_s),
        Effect(settings=EXTENDED, factor=factor, phase_factor=0.5, phase_s=phase_s),
    )
    return search(folder, Scenario(effects=effects, seed=seed), seed=seed)


@pytest.mark.parametrize("seed", [0, 1, *long_params(2, 3, 4, 5)])
def test_a_gain_in_a_slow_phase_is_not_taken_for_that_before(seed: int, tmp_path: Path) -> None:
    speedup = search_beside_slow_phase(tmp_path, phase_s=(20.0, 1e9), seed=seed).evidence.speedup
    assert speedup
    assert speedup.low < 1 / 0.8 < speedup.high
    assert speedup.slowdown == pytest.approx(2.7, rel=0.2)


@pytest.mark.parametrize("seed", [0, 1, *long_params(2, 3, 4, 5)])
def test_a_confirmation_waits_for_the_end_of_a_slow_phase(seed: int, tmp_path: Path) -> None:
    record = search_beside_slow_phase(tmp_path, phase_s=(24.0, 48.0), seed=seed)
    speedup = record.evidence.speedup
    assert record.evidence.verdict == "faster"
    assert speedup
    assert speedup.low < 1 / 0.8 < speedup.high < 1.5
    assert speedup.slowdown is None
    assert speedup.n_slow_baselines


def test_a_gain_that_only_a_slow_phase_has_is_not_proven(tmp_path: Path) -> None:
    record = search_beside_slow_phase(tmp_path, phase_s=(20.0, 1e9), seed=0, factor=0.95)
    assert record.evidence.verdict == "inconclusive"
    assert "the baseline took 2.6 times as long as in earlier launches of this search" in record.evidence.reason


def bench(scenario: Scenario) -> ortune.BenchResult:
    with simulate(scenario):
        return ortune.bench(TINY_CNN, set="intra_op_num_threads=1", budget="60s")


def test_slow_launches_are_counted_and_said() -> None:
    speedup = bench(make_scenario(slow_share=0.3, seed=1)).rows[1].speedup
    assert speedup
    assert 0 < speedup.n_slow_launches < speedup.n_launches
    assert "launches were at least 1.5x as slow as usual" in speedup.slow_launches
    # Where none was seen, it says how rare they may be.
    usual = bench(make_scenario()).rows[1].speedup
    assert usual
    assert usual.n_slow_launches == 0
    assert usual.slow_launches.startswith("launches 1.5x as slow, if rarer than 1 in")


def test_slow_launches_of_the_default_are_not_those_of_the_config(tmp_path: Path) -> None:
    scenario = make_scenario(slow_default=0.3)
    speedup = bench(scenario).rows[1].speedup
    assert speedup
    assert speedup.n_slow_launches == 0
    assert 0 < speedup.n_slow_baselines < speedup.n_shown
    command = ("bench", TINY_CNN, "--set", "intra_op_num_threads=1", "--budget", "60s")
    shown = run_ortune(*command, cwd=tmp_path, simulate=scenario).stdout
    assert f"launches left out, as the baseline was slow: {speedup.n_slow_baselines}" in " ".join(shown.split())


@pytest.mark.parametrize(("n_slow", "is_proof"), [(1, False), (2, True)])
def test_launches_beside_a_slow_default_show_that_a_config_is_not_slow(n_slow: int, is_proof: bool) -> None:
    speedup = bench(make_scenario()).rows[1].speedup
    assert speedup
    few = msgspec.structs.replace(speedup, n_launches=3, n_slow_baselines=n_slow)
    assert few.has_enough_launches is is_proof
    assert not msgspec.structs.replace(few, n_launches=2, n_slow_baselines=9).has_enough_launches


@pytest.mark.parametrize("busy", [0.0, 0.3])
def test_a_limit_in_ms_holds_for_all_calls(busy: float, tmp_path: Path) -> None:
    record = search(
        tmp_path, make_scenario(contended_share=busy, contention=8.0, call_ms=5.0), limit="p99<10ms", seed=1
    )
    (check,) = record.evidence.limits
    # Of the calls of one thread, those beside other processes take 20 ms instead of 2.5 ms.
    assert (check.value > 10e6) is (busy > 0)
    assert record.evidence.noise.n_repeated == 0
    assert (record.evidence.verdict == "faster") is not (busy > 0)


def test_rounds_that_are_left_out_are_said_where_all_calls_matter(tmp_path: Path) -> None:
    sentence = "not count in the ratios, because of CPU use by other processes"
    for limits in (["--limit", "p99<50ms"], []):
        done = run_ortune(
            *("search", TINY_CNN, "-o", "tuned.json", "--budget", "60s", "--no-history", *limits),
            cwd=tmp_path,
            simulate=make_scenario(contended_share=0.2),
        )
        assert (sentence in " ".join(done.stdout.split())) is bool(limits)


RACING_S = (14.0, 22.0)
"""When the race of these searches takes place, in seconds since the start."""


def list_stages(record: Record) -> list[str]:
    return [stage.stage for stage in record.search.stages]


def test_a_race_on_a_busy_host_is_run_again(tmp_path: Path) -> None:
    assert list_stages(search(tmp_path, make_scenario())).count("racing") == 1
    record = search(tmp_path, make_scenario(busy_s=RACING_S), restart=True)
    assert list_stages(record).count("racing") == 2
    assert record.evidence.noise.chosen_in is None


def test_a_race_ends_when_no_candidate_is_better_by_more_than_is_negligible(tmp_path: Path) -> None:
    """All candidates with one thread are equally fast, so that no number of launches would drop them."""

    def count_launches(launch_noise: float) -> int:
        search(tmp_path, make_scenario(launch_noise=launch_noise), restart=True)
        lines = gzip.decompress((tmp_path / "tuned.trials.jsonl.gz").read_bytes()).splitlines()
        rounds = [row for row in map(json.loads, lines) if row.get("stage") == "racing" and "launch" in row]
        return len({row["launch"] for row in rounds})

    assert count_launches(0.005) < count_launches(0.01) < count_launches(0.03)


def test_a_winner_that_was_chosen_in_another_regime_is_said_to_be(tmp_path: Path) -> None:
    busy = make_scenario(busy_s=(RACING_S[1], 90.0))
    record = search(tmp_path, busy)
    assert (record.evidence.noise.chosen_in, record.evidence.noise.regime) == ("quiet", "contended")
    done = run_ortune(
        *("search", TINY_CNN, "-o", "again.json", "--budget", "60s", "--no-history"), cwd=tmp_path, simulate=busy
    )
    assert "did not use the CPUs, and confirmed while they did. Another one" in " ".join(done.stdout.split())


def test_a_slow_launch_of_the_side_never_counts_as_a_fast_one() -> None:
    own, default = [False] * 4 + [True] * 2 + [False] * 2, [False] * 6 + [True] * 2
    ratios = [[0.0], [0.0], [0.0], [0.0], [-1.1], [-1.2], [1.1], [1.1]]
    counted = [ratio for (ratio,) in limit_slow_launches(ratios, own, default)]
    # As many of both sides do not count.
    assert counted == [0.0] * 4
    further = limit_slow_launches(ratios, [*own[:3], True, *own[4:]], default)
    assert max(ratio for (ratio,) in further) == 0.0
    # A slow launch that only the side has counts as one that is at most twice as slow.
    own, default = [False] * 4 + [True], [False] * 5
    assert limit_slow_launches([*ratios[:4], [-2.0]], own, default)[-1] == pytest.approx([-math.log(2)])
    assert limit_slow_launches([*ratios[:4], [-0.5]], own, default)[-1] == [-0.5]


def test_more_launches_follow_if_slow_ones_keep_a_gain_from_being_proven(tmp_path: Path) -> None:
    """Both sides have as many slow launches, but in few launches, one may have more of them by chance."""
    scenario = make_scenario(slow_share=0.15, slow_default=0.15, seed=5)
    effects = (scenario.effects[0], msgspec.structs.replace(scenario.effects[1], factor=0.85))
    speedups = []
    for seed in range(14, 22):
        record = search(tmp_path, msgspec.structs.replace(scenario, effects=effects, seed=seed), restart=True)
        if record.evidence.speedup:
            speedups.append(record.evidence.speedup)
    assert any(speedup.confidence == 0.98 for speedup in speedups)
    # They end when the budget does.
    assert any(speedup.n_launches > 24 for speedup in speedups)
    assert all(speedup.low < 1 / 0.85 for speedup in speedups)
