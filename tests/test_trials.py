"""The search's logic, on simulated measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import optuna
import pytest

from ortune.errors import MeasureError, UsageError
from ortune.knobs import DEFAULT, Config, build_space
from ortune.measure import Failure, Live
from ortune.trials import Budget, Outcome, Progress, run_search
from tests.simulation import SimulatedExecutor, make_host, make_model

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})


def one_thread_wins(config: Config) -> float:
    """One thread is a quarter faster, a lower level slower; all else makes no difference."""
    latency = 5e6
    if config.session_options.get("intra_op_num_threads") == 1:
        latency *= 0.8
    if "graph_optimization_level" in config.session_options:
        latency *= 1.15
    return latency


def all_alike(config: Config) -> float:
    return 5e6


def search(
    executor: SimulatedExecutor,
    *,
    seconds: float = 60,
    n_trials: int | None = None,
    seed: int = 0,
    n_cores: int = 2,
    study: Path | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    (first,) = executor.launch([DEFAULT], deadline_s=1)
    assert not isinstance(first, Failure)
    live: Live = first
    outcome = run_search(
        build_space(make_host(n_cores), make_model()),
        executor,
        Budget(seconds=seconds, n_trials=n_trials),
        seed=seed,
        free_bytes=8_000_000_000,
        study_path=study,
        observe=observe,
        first=live,
        start_s=0.0,
    )
    assert not executor.live, "candidates were left alive"
    return outcome


def test_finds_the_fastest_and_claims_its_true_gain() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins))
    assert outcome.verdict == "faster"
    assert outcome.config.session_options["intra_op_num_threads"] == 1
    assert "graph_optimization_level" not in outcome.config.session_options
    assert outcome.speedup is not None
    assert outcome.speedup.low <= 1.25 <= outcome.speedup.high
    assert outcome.speedup.pairs >= 60
    assert outcome.speedup.restarts >= 5
    assert outcome.winner is not None
    assert outcome.baseline is not None
    assert outcome.winner.p50_ns < outcome.baseline.p50_ns


@pytest.mark.parametrize("seed", range(5))
def test_recommends_the_default_when_nothing_beats_it(seed: int) -> None:
    outcome = search(SimulatedExecutor(all_alike, seed=seed), seed=seed)
    assert outcome.config == DEFAULT
    assert outcome.verdict in {"default_is_best", "inconclusive"}


def test_false_claims_are_rare() -> None:
    """Of 60 searches where all candidates are alike, a 95 % interval lets 1.5 claim a gain on average."""
    claims = sum(
        search(SimulatedExecutor(all_alike, seed=seed, block_sigma=0.03, launch_sigma=0.01), seed=seed).verdict
        == "faster"
        for seed in range(60)
    )
    assert claims <= 5


def test_a_ranking_that_flips_under_contention_is_judged_on_quiet_blocks() -> None:
    """Quiet, the default is better; under contention one thread is. A third of the blocks is contended."""

    def latency(config: Config) -> float:
        return 6e6 if config.session_options.get("intra_op_num_threads") == 1 else 5e6

    def contention(config: Config) -> float:
        return 1.5 if config.session_options.get("intra_op_num_threads") == 1 else 4.0

    outcome = search(SimulatedExecutor(latency, contended_share=0.3, contention=contention))
    assert outcome.config.session_options.get("intra_op_num_threads") != 1
    assert outcome.noise.regime == "quiet"
    assert outcome.noise.contended > 0
    assert outcome.noise.repeated > 0


def test_on_a_host_that_is_always_busy_the_claim_is_marked() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins, contended_share=1.0))
    assert outcome.noise.regime == "contended"
    assert outcome.verdict == "faster"
    # Patience ends: a host that is never quiet does not stop the search.
    assert outcome.noise.repeated < 0.35 * outcome.noise.blocks


def test_the_budget_is_kept() -> None:
    executor = SimulatedExecutor(one_thread_wins)
    search(executor, seconds=30)
    assert executor.time_s < 36


def test_a_budget_that_is_too_small_is_inconclusive() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=1)
    assert outcome.verdict == "inconclusive"
    assert outcome.config == DEFAULT
    assert "budget" in outcome.reason


def test_trials_limit_the_screen() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), n_trials=6)
    assert len(outcome.trials) == 7  # and the default


def test_no_candidate_is_screened_twice() -> None:
    outcome = search(SimulatedExecutor(all_alike), seconds=200)
    keys = [trial.config.key for trial in outcome.trials]
    assert len(keys) == len(set(keys))


def test_a_small_space_is_exhausted_and_ends_early() -> None:
    executor = SimulatedExecutor(all_alike)
    outcome = search(executor, seconds=3600, n_cores=1)
    assert len(outcome.trials) == outcome.n_candidates
    assert executor.time_s < 3000


def test_failures_are_values() -> None:
    broken = Failure(kind="crash", stage="load", message="ended by SIGSEGV")

    def fails(config: Config) -> Failure | None:
        return broken if config.session_config.get("session.dynamic_block_base") else None

    notes: list[str] = []
    outcome = search(
        SimulatedExecutor(one_thread_wins, fails_to_launch=fails),
        observe=lambda progress: notes.extend(progress.notes),
    )
    assert outcome.verdict == "faster"
    failed = [trial for trial in outcome.trials if trial.failure]
    assert failed
    assert all("session.dynamic_block_base" in trial.config.session_config for trial in failed)
    assert any("SIGSEGV" in note for note in notes)


def test_when_every_candidate_fails_the_default_is_best() -> None:
    broken = Failure(kind="exception", stage="load", message="no")
    outcome = search(
        SimulatedExecutor(all_alike, fails_to_launch=lambda config: None if config.is_default else broken), seconds=20
    )
    assert outcome.verdict == "default_is_best"
    assert outcome.config == DEFAULT
    assert outcome.speedup is None


def test_a_winner_that_dies_in_the_end_is_replaced() -> None:
    """The best candidate dies whenever it is measured in the duel; the next best is proven instead."""
    executor = SimulatedExecutor(one_thread_wins)
    n_launches = 0

    def fails(config: Config) -> Failure | None:
        nonlocal n_launches
        if config == ONE_THREAD:
            n_launches += 1
            if n_launches > 2:  # screen and race
                return Failure(kind="out_of_memory", stage="load", message="bad_alloc")
        return None

    executor.fails_to_launch = fails
    outcome = search(executor, seconds=120)
    assert outcome.config != ONE_THREAD


def test_the_default_dying_is_an_error() -> None:
    with pytest.raises(MeasureError, match="default"):
        search(SimulatedExecutor(all_alike, dies_when_measured=[DEFAULT]))


@pytest.mark.parametrize("block", [30, 150, 330])
def test_an_interrupt_keeps_the_best_so_far_and_marks_it(block: int) -> None:
    outcome = search(SimulatedExecutor(one_thread_wins, interrupt_at=block))
    assert outcome.interrupted
    assert outcome.verdict == "inconclusive"
    assert outcome.config == DEFAULT
    assert outcome.best_so_far is not None
    assert outcome.best_so_far.config.session_options["intra_op_num_threads"] == 1
    assert outcome.best_so_far.proven is False


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, second = (msgspec.json.encode(search(SimulatedExecutor(one_thread_wins), seconds=40)) for _ in range(2))
    assert first == second


def test_progress_is_told_and_never_goes_backwards() -> None:
    reports: list[Progress] = []
    search(SimulatedExecutor(one_thread_wins), observe=reports.append)
    assert list(dict.fromkeys(report.stage for report in reports)) == ["screen", "race", "duel"]
    for stage in ("screen", "race", "duel"):
        done = [report.done for report in reports if report.stage == stage]
        assert done == sorted(done)
    assert reports[-1].done == reports[-1].total


@pytest.mark.parametrize("suffix", [".db", ".journal"])
def test_the_study_can_be_opened_later(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"study{suffix}"
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=20, study=path)
    storage = (
        optuna.storages.RDBStorage(f"sqlite:///{path}")
        if suffix == ".db"
        else optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    )
    study = optuna.load_study(study_name="ortune", storage=storage)
    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    assert len({trial.user_attrs["config"] for trial in complete}) == len(outcome.trials)
    # What Optuna is told are log-ratios to the default, not times.
    assert math.exp(-study.best_value) == pytest.approx(1.25, abs=0.1)
    if suffix == ".db":
        storage.engine.dispose()


def test_a_study_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        search(SimulatedExecutor(all_alike), study=path)
    assert path.read_text() == "precious"


def test_a_study_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.xml"):
        search(SimulatedExecutor(all_alike), study=tmp_path / "study.xml")
