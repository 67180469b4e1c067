"""The logic of the search, on simulated measurements."""

from __future__ import annotations

import errno
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import optuna
import pytest

from ortune import BackgroundLoadError, Config, Goal, HostError, Load, MeasureError, Objective, Progress, UsageError
from ortune.knobs import DEFAULT, SearchSpace, SpaceOptions, build_space, ids
from ortune.measure.block_plan import Pace
from ortune.measure.block_runner import BlockRunner
from ortune.measure.calibrate import Calibration
from ortune.measure.comparison import Stage
from ortune.measure.open import start_comparison
from ortune.measure.paired_run import PairedRun
from ortune.record.trials import Trial, summarize_trials
from ortune.tuning.board import Board
from ortune.tuning.conclude import call_confirmed, count_tried
from ortune.tuning.confirmation import start_run
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.tuning.pareto import find_front, find_knee
from ortune.tuning.plan import SearchPlan, reserve_confirmation, resize_confirmation, split_budget, warn_of_small_budget
from ortune.tuning.results import CandidateResult
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.attempts import Attempts
from ortune.workload import make_goal, make_load, parse_limit
from tests.conftest import long_params
from tests.records import ONE_THREAD
from tests.simulated import SimulatedExecutor, is_one_thread, make_host, make_model

P50 = Goal()
LEVEL = ids.GRAPH_OPTIMIZATION_LEVEL

NOTHING_BETTER = {"default_is_best", "nothing_found"}
"""Verdicts of searches whose best candidate is not better than the baseline."""


def one_thread_wins(config: Config) -> float:
    """One thread is a quarter faster, a lower level slower. Nothing else makes a difference."""
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
    seconds: float | None = 60,
    n_trials: int | None = None,
    seed: int = 0,
    n_cores: int = 2,
    study: Path | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    goal: Goal = P50,
    check: Callable[[], None] = lambda: None,
    only: tuple[str, ...] = (),
    space: SearchSpace | None = None,
) -> Outcome:
    (first,) = executor.launch([DEFAULT], deadline_s=1)
    assert not isinstance(first, Failure)
    outcome = run_search(
        space or build_space(make_host(n_cores), make_model(), SpaceOptions(only=only)),
        start_comparison(
            executor, first, goal, first_launch_s=executor.now_s(), seed=seed, free_bytes=8_000_000_000, check=check
        ),
        SearchSettings(budget_s=seconds, n_trials=n_trials, study_path=study),
        observe,
    )
    assert not executor.live, "candidates are still live"
    return outcome


def test_finds_the_fastest_and_claims_its_true_gain() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins))
    assert outcome.evidence.verdict == "faster"
    assert outcome.config.session_options["intra_op_num_threads"] == 1
    assert "graph_optimization_level" not in outcome.config.session_options
    assert outcome.evidence.speedup is not None
    assert outcome.evidence.speedup.low <= 1.25 <= outcome.evidence.speedup.high
    assert outcome.evidence.speedup.n_pairs >= 60
    assert outcome.evidence.speedup.n_launches >= 5
    assert outcome.evidence.winner is not None
    assert outcome.evidence.baseline is not None
    assert outcome.evidence.winner.p50_ns < outcome.evidence.baseline.p50_ns


@pytest.mark.parametrize("seed", [0, 1, *long_params(2, 3, 4)])
def test_recommends_the_baseline_when_nothing_beats_it(seed: int) -> None:
    outcome = search(SimulatedExecutor(all_alike, seed=seed), seed=seed)
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert outcome.config == DEFAULT
    assert outcome.evidence.speedup is not None
    # A confirmation that ends early ends with what is low by chance.
    assert outcome.evidence.speedup.low <= 1 <= 1.01 * outcome.evidence.speedup.high


@pytest.mark.long
def test_false_claims_are_rare() -> None:
    """Of 30 searches where all candidates are alike, a 95 % interval lets 0.75 claim a gain on average."""
    claims = sum(
        search(SimulatedExecutor(all_alike, seed=seed, block_sigma=0.03, launch_sigma=0.01), seed=seed).evidence.verdict
        == "faster"
        for seed in range(30)
    )
    assert claims <= 3


@pytest.mark.parametrize("n_trials", [1, 2])
def test_a_crash_of_a_single_candidate_may_be_its_own_fault(n_trials: int) -> None:
    """A short search on a busy host tries only one. If several crash, and nothing else works, the host is to blame."""

    def fail(config: Config) -> Failure | None:
        return None if config == DEFAULT else Failure(kind="crash", stage="load", message="ended by SIGSEGV")

    executor = SimulatedExecutor(all_alike, fails_to_launch=fail)
    if n_trials == 1:
        outcome = search(executor, n_trials=1)
        assert outcome.fault is None
        assert outcome.config == DEFAULT
        assert [trial.failure.kind for trial in outcome.trials if trial.failure] == ["crash"]
        assert outcome.evidence.verdict in NOTHING_BETTER
    else:
        fault = search(executor, n_trials=2).fault
        assert isinstance(fault, MeasureError)
        assert "each of the 2 candidates ended suddenly" in str(fault)


def test_slow_candidates_leave_time_for_others() -> None:
    """One thread takes 6 s instead of 150 ms. Its first call shows that, and it is dropped after one block."""

    def latency(config: Config) -> float:
        return 6e9 if config.session_options.get("intra_op_num_threads") == 1 else 150e6

    def check(config: Config) -> None:
        executor.time_s += latency(config) / 1e9

    executor = SimulatedExecutor(latency, fails_to_launch=check)
    outcome = search(executor)
    slow = [trial for trial in outcome.trials if trial.config.session_options.get("intra_op_num_threads") == 1]
    assert slow
    assert all(trial.n_blocks == 1 for trial in slow)
    assert all(trial.speedups and trial.speedups[0] == pytest.approx(1 / 40, rel=0.1) for trial in slow)
    assert executor.time_s < 66


@pytest.mark.parametrize("load_s", [1.0, 8.0])
def test_a_budget_without_time_for_a_confirmation(load_s: float) -> None:
    def load(config: Config) -> None:
        executor.time_s += load_s

    executor = SimulatedExecutor(lambda config: 5e8, fails_to_launch=load)
    reports: list[Progress] = []
    outcome = search(executor, seconds=load_s + 2, observe=reports.append)
    assert outcome.evidence.verdict == "inconclusive"
    assert [report.done for report in reports if report.stage == "confirmation"][-1:] in ([], [0])


def test_a_confirmation_that_proves_nothing_shows_what_took_effect() -> None:
    def load(config: Config) -> None:
        executor.time_s += 1.0

    executor = SimulatedExecutor(lambda config: 5e8, fails_to_launch=load)
    outcome = search(executor, seconds=8)
    assert outcome.evidence.speedup is None
    assert outcome.evidence.verdict == "inconclusive"
    default, candidate = outcome.sessions
    assert default.config == DEFAULT
    assert candidate.config != DEFAULT


@pytest.mark.parametrize("seed", [0, *long_params(1, 2)])
def test_how_calls_begin_after_a_resume_is_no_gain(seed: int) -> None:
    """An allocator with large pages made the first calls of each block faster, and no others: 1.02x was claimed."""
    executor = SimulatedExecutor(
        lambda config: 4.2e6,
        cold=lambda config: (1.5, 1.3, 1.05) if is_one_thread(config) else (1.75, 1.65, 1.15, 1.02),
        block_sigma=0.005,
        launch_sigma=0.001,
        seed=seed,
    )
    outcome = search(executor, seconds=120, goal=Goal(objectives=("mean",)), seed=seed)
    assert outcome.evidence.verdict in NOTHING_BETTER


@pytest.mark.parametrize(
    ("call_ns", "load_s", "budget_s"),
    [(20e6, 4.0, 60), (20e6, 1.0, 60), (150e6, 0.0, 60), (1e9, 0.0, 60), (5e6, 0.5, 10)],
)
def test_a_budget_is_kept_within_a_tenth(call_ns: float, load_s: float, budget_s: float) -> None:
    """Models that are slow to load or to run get smaller batches and no racing. They took up to 100 s of 60 s."""

    def load(config: Config) -> None:
        executor.time_s += call_ns / 1e9 + load_s

    notes: list[str] = []
    executor = SimulatedExecutor(lambda config: call_ns, fails_to_launch=load)
    outcome = search(executor, seconds=budget_s, observe=lambda progress: notes.extend(progress.notes))
    assert executor.time_s < 1.1 * budget_s
    can_prove = outcome.evidence.speedup is not None and outcome.evidence.speedup.n_launches >= 5
    assert can_prove == (not any("too small to prove anything" in note for note in notes))


@pytest.mark.parametrize("load_s", [2.0, 3.0])
def test_a_budget_is_kept_if_launches_become_slower(load_s: float) -> None:
    """After the first seconds, loading takes twice as long, as in a container whose memory is full."""

    def load(config: Config) -> None:
        executor.time_s += load_s if executor.time_s < 15 else 2 * load_s

    executor = SimulatedExecutor(lambda config: 80e6, fails_to_launch=load)
    outcome = search(executor, seconds=60)
    assert executor.time_s < 66
    assert outcome.evidence.speedup


def test_a_budget_is_kept_if_the_host_becomes_busy() -> None:
    """A program that takes 3 s to start makes calls of half a second, which soon take five times as long."""

    def load(config: Config) -> None:
        executor.time_s += 3

    def slow_down(config: Config) -> float:
        return 5.0 if executor.time_s > 5 else 1.0

    executor = SimulatedExecutor(lambda config: 5e8, fails_to_launch=load, contended_share=1.0, contention=slow_down)
    outcome = search(executor, seconds=25)
    assert outcome.evidence.verdict == "inconclusive"
    # What began in time, two launches and a round, goes on to its end.
    assert executor.time_s < 25 + 2 * 3 + 2 * 2.5


def test_a_ranking_that_flips_under_contention_is_judged_on_quiet_blocks() -> None:
    """Quiet, the default is better; under contention one thread is. A third of the blocks is contended."""

    def latency(config: Config) -> float:
        return 6e6 if config.session_options.get("intra_op_num_threads") == 1 else 5e6

    def contention(config: Config) -> float:
        return 1.5 if config.session_options.get("intra_op_num_threads") == 1 else 4.0

    executor = SimulatedExecutor(latency, contended_share=0.3, contention=contention, seed=1)
    outcome = search(executor, seconds=120)
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert outcome.config == DEFAULT
    assert outcome.evidence.noise.regime == "quiet"
    assert outcome.evidence.noise.n_contended > 0
    assert outcome.evidence.noise.n_repeated > 0


def test_on_a_host_that_is_always_busy_the_claim_is_marked() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins, contended_share=1.0))
    assert outcome.evidence.noise.regime == "contended"
    assert outcome.evidence.verdict == "faster"
    # Patience ends: a host that is never quiet does not stop the search.
    assert outcome.evidence.noise.n_repeated < 0.35 * outcome.evidence.noise.n_blocks


def test_the_budget_is_kept() -> None:
    executor = SimulatedExecutor(one_thread_wins)
    search(executor, seconds=30)
    assert executor.time_s < 36


def test_a_budget_that_is_too_small_is_inconclusive() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=1)
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.config == DEFAULT
    assert "budget" in outcome.evidence.reason


def test_trials_limit_screening() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), n_trials=6)
    assert len(outcome.trials) == 7  # and the default


def test_no_candidate_is_screened_twice() -> None:
    outcome = search(SimulatedExecutor(all_alike), seconds=60)
    keys = [trial.config.key for trial in outcome.trials]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("latency", "confidence"), [(all_alike, 0.99), (one_thread_wins, 0.95)])
def test_a_confirmation_that_ends_early_has_the_interval_by_which_it_ended(
    latency: Callable[[Config], float], confidence: float
) -> None:
    """What ends early is low by chance more often than not, so that the usual interval would be too narrow."""
    outcome = search(SimulatedExecutor(latency))
    assert outcome.evidence.speedup
    assert outcome.evidence.speedup.confidence == confidence
    assert (outcome.evidence.verdict == "faster") == (confidence == 0.95)


def test_a_small_space_is_exhausted_and_ends_early() -> None:
    executor = SimulatedExecutor(all_alike)
    outcome = search(executor, seconds=3600, n_cores=1)
    assert len(outcome.trials) == outcome.n_candidates
    assert outcome.evidence.verdict == "default_is_best"
    assert executor.time_s < 300


def test_failures_are_values() -> None:
    broken = Failure(kind="crash", stage="load", message="ended by SIGSEGV")

    def fails(config: Config) -> Failure | None:
        return broken if config.session_config.get("session.dynamic_block_base") else None

    notes: list[str] = []
    outcome = search(
        SimulatedExecutor(one_thread_wins, fails_to_launch=fails),
        observe=lambda progress: notes.extend(progress.notes),
    )
    assert outcome.evidence.verdict == "faster"
    failed = [trial for trial in outcome.trials if trial.failure]
    assert failed
    assert all("session.dynamic_block_base" in trial.config.session_config for trial in failed)
    assert any("SIGSEGV" in note for note in notes)


def test_candidates_for_which_there_was_no_time_were_not_tried() -> None:
    """Compiling the model for the others had taken all the time that it may take."""
    skipped = Failure(kind="timeout", stage="skipped", message="compiling other candidates took 30 min")
    launched: set[str] = set()

    def fails(config: Config) -> Failure | None:
        if not config.is_default and len(launched) < 4:
            launched.add(config.key)
        return None if config.is_default or config.key in launched else skipped

    outcome = search(SimulatedExecutor(all_alike, fails_to_launch=fails), seconds=3600, n_cores=1)
    assert outcome.evidence.verdict == "nothing_found"
    assert f"4 of {outcome.n_candidates - 1} candidates were tried" in outcome.evidence.reason
    assert summarize_trials(outcome.trials).n_tried == 4
    assert summarize_trials(outcome.trials).failed == {}


def test_when_every_candidate_fails_nothing_is_found() -> None:
    broken = Failure(kind="exception", stage="load", message="no")
    outcome = search(
        SimulatedExecutor(all_alike, fails_to_launch=lambda config: None if config.is_default else broken), seconds=20
    )
    assert outcome.evidence.verdict == "nothing_found"
    assert outcome.config == DEFAULT
    assert outcome.evidence.speedup is None


def test_where_there_is_nothing_to_try_the_default_is_not_called_best() -> None:
    outcome = search(SimulatedExecutor(all_alike), space=SearchSpace(dimensions=(), n_default_threads=2))
    assert outcome.evidence.verdict == "nothing_found"
    assert outcome.evidence.reason == "there is nothing else to try on this host"


def test_a_finalist_that_fails_is_replaced_by_the_next() -> None:
    """The best candidate cannot be launched any more in confirmation. The next best is proven instead."""
    launched: list[Config] = []

    def count(config: Config) -> None:
        launched.append(config)

    first = search(SimulatedExecutor(one_thread_wins, fails_to_launch=count), seconds=120)
    assert first.evidence.speedup
    n_before = launched.count(first.config) - first.evidence.speedup.n_launches
    launched.clear()

    def fails(config: Config) -> Failure | None:
        launched.append(config)
        if config == first.config and launched.count(config) > n_before:
            return Failure(kind="out_of_memory", stage="load", message="bad_alloc")
        return None

    executor = SimulatedExecutor(one_thread_wins, fails_to_launch=fails)
    outcome = search(executor, seconds=120)
    (failed,) = (trial for trial in outcome.trials if trial.failure)
    assert (failed.config, failed.stage) == (first.config, "confirmation")
    assert outcome.evidence.verdict == "faster"
    assert outcome.config != first.config
    assert outcome.config.session_options["intra_op_num_threads"] == 1


def test_a_candidate_that_fails_in_racing_is_recorded_so() -> None:
    first = search(SimulatedExecutor(one_thread_wins))
    (number,) = (trial.number for trial in first.trials if trial.config == ONE_THREAD)
    n_screened = len(
        {
            trial_round.launch
            for trial_round in first.rounds
            if trial_round.stage == "screening" and number in trial_round.values
        }
    )
    executor = SimulatedExecutor(one_thread_wins)

    def fails(config: Config) -> Failure | None:
        if config == ONE_THREAD and executor.launched.count(ONE_THREAD) > n_screened:
            return Failure(kind="crash", stage="load", message="ended by SIGSEGV")
        return None

    executor.fails_to_launch = fails
    (failed,) = (trial for trial in search(executor).trials if trial.failure)
    assert (failed.config, failed.stage) == (ONE_THREAD, "racing")


def test_a_baseline_that_crashes_is_an_error() -> None:
    with pytest.raises(MeasureError, match="The baseline worked at first"):
        search(SimulatedExecutor(all_alike, dies_when_measured=[DEFAULT]))


SUDDEN = [
    Failure(kind="crash", stage="load", message="ended by SIGSEGV"),
    Failure(kind="exit", stage="load", message="the process exited with status 7"),
    Failure(kind="timeout", stage="load", message="no reply within 9 s"),
]


def test_workers_that_end_now_and_then_change_nothing() -> None:
    """A fifth of all launches fails, those of the baseline too."""
    rng = np.random.default_rng(3)

    def fails(config: Config) -> Failure | None:
        return SUDDEN[rng.integers(3)] if executor.launched[1:] and rng.random() < 0.2 else None

    executor = SimulatedExecutor(one_thread_wins, fails_to_launch=fails)
    outcome = search(executor)
    assert outcome.evidence.verdict == "faster"
    assert outcome.config.session_options["intra_op_num_threads"] == 1
    assert outcome.evidence.noise.n_relaunched > 20


def test_a_baseline_that_fails_for_good_ends_the_search_and_keeps_the_best_so_far() -> None:
    def fails(config: Config) -> Failure | None:
        return SUDDEN[0] if config == DEFAULT and executor.n_blocks > 100 else None

    executor = SimulatedExecutor(one_thread_wins, fails_to_launch=fails)
    outcome = search(executor)
    assert isinstance(outcome.fault, MeasureError)
    assert "The baseline worked at first and then failed" in outcome.fault.message
    assert outcome.interrupted
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.evidence.best_so_far is not None


def test_a_lack_of_space_ends_the_search_and_keeps_the_best_so_far() -> None:
    def fails(config: Config) -> Failure | None:
        if executor.n_blocks > 150:
            raise OSError(errno.ENOSPC, "No space left on device", "/tmp/run")
        return None

    executor = SimulatedExecutor(one_thread_wins, fails_to_launch=fails)
    outcome = search(executor)
    assert isinstance(outcome.fault, HostError)
    assert "No space left on device" in outcome.fault.message
    assert outcome.interrupted
    assert outcome.evidence.best_so_far is not None


def test_where_all_workers_end_the_default_is_not_called_best() -> None:
    executor = SimulatedExecutor(all_alike, fails_to_launch=lambda config: None if config.is_default else SUDDEN[0])
    outcome = search(executor, seconds=20)
    assert isinstance(outcome.fault, MeasureError)
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.evidence.noise.n_relaunched


def test_a_candidate_that_ends_again_and_again_is_given_up() -> None:
    """It works for one block of each launch."""
    attempts, n_launches = Attempts(), 0
    while not n_launches or attempts.may_launch_again(SUDDEN[0]):
        attempts.add_launch()
        attempts.add_block()
        n_launches += 1
    assert 1 < n_launches < 10


def test_lack_of_memory_is_sudden_only_if_a_candidate_has_worked() -> None:
    attempts, lacking = Attempts(), Failure(kind="out_of_memory", stage="load", message="bad_alloc")
    attempts.add_launch()
    assert not attempts.may_launch_again(lacking)
    attempts.add_block()
    assert attempts.may_launch_again(lacking)


@pytest.mark.parametrize("block", [30, 150, 180])
def test_an_interrupt_keeps_the_best_so_far_and_marks_it(block: int) -> None:
    outcome = search(SimulatedExecutor(one_thread_wins, interrupt_at=block))
    assert outcome.interrupted
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.config == DEFAULT
    assert outcome.evidence.best_so_far is not None
    assert outcome.evidence.best_so_far.config.session_options["intra_op_num_threads"] == 1


def test_what_was_not_measured_was_not_tried() -> None:
    own = Failure(kind="exception", stage="run", message="")
    sudden = Failure(kind="crash", stage="run", message="")
    tried = [
        Trial(number=number, stage="screening", n_blocks=n_blocks, failure=failure)
        for number, (n_blocks, failure) in enumerate([(9, None), (2, None), (0, None), (0, own), (0, sudden)])
    ]
    assert [failure.is_of_candidate for failure in (own, sudden)] == [True, False]
    assert count_tried(tried) == (2, 1)


@pytest.mark.parametrize("n_blocks", [0, 1, 5])
@pytest.mark.parametrize("goal", [Goal(), Goal(objectives=("p50", "cpu"))], ids=lambda goal: ",".join(goal.objectives))
def test_an_interrupt_in_the_first_launch_of_confirmation_keeps_what_was_measured_before(
    monkeypatch: pytest.MonkeyPatch, n_blocks: int, goal: Goal
) -> None:
    before: list[tuple[Config, Stage, float | None]] = []

    def start(state: Board, finalists: Sequence[CandidateResult]) -> PairedRun:
        before.extend((finalist.candidate.config, finalist.stage, finalist.log_ratio) for finalist in finalists)
        executor.interrupt_at = executor.n_blocks + n_blocks
        return start_run(state, finalists)

    monkeypatch.setattr("ortune.tuning.confirmation.start_run", start)
    monkeypatch.setattr("ortune.tuning.front.start_run", start)
    executor = SimulatedExecutor(one_thread_wins)
    outcome = search(executor, goal=goal)
    assert outcome.interrupted
    assert outcome.evidence.best_so_far is not None
    found = {trial.config.key: trial for trial in outcome.trials}
    for config, stage, log_ratio in before:
        assert log_ratio is not None
        assert found[config.key].stage == stage != "screening"
        assert (found[config.key].speedups or (0,))[0] == round(math.exp(-log_ratio), 4)
    assert found[outcome.evidence.best_so_far.config.key].stage in {stage for _, stage, _ in before} | {"racing"}


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, second = (msgspec.json.encode(search(SimulatedExecutor(one_thread_wins), seconds=40)) for _ in range(2))
    assert first == second


def test_progress_never_goes_backwards() -> None:
    reports: list[Progress] = []
    search(SimulatedExecutor(one_thread_wins), observe=reports.append)
    assert list(dict.fromkeys(report.stage for report in reports)) == ["screening", "racing", "confirmation"]
    for stage in ("screening", "racing", "confirmation"):
        done = [report.done for report in reports if report.stage == stage]
        assert done == sorted(done)
        shares = [report.share for report in reports if report.stage == stage]
        assert shares[0] == 0
        assert max(shares) <= 1
    assert reports[-1].done == reports[-1].total
    assert {report.total for report in reports if report.stage == "racing"} == {None}


@pytest.mark.parametrize(
    ("latency", "options"),
    [
        (one_thread_wins, {}),
        (one_thread_wins, {"seconds": 20}),
        (one_thread_wins, {"n_trials": 4}),
        (one_thread_wins, {"goal": Goal(objectives=("p50", "cpu"))}),
        (all_alike, {"seconds": 20}),
        pytest.param(all_alike, {"seconds": 120}, marks=pytest.mark.long),
        (all_alike, {"n_trials": 4}),
    ],
)
def test_the_time_left_is_true(latency: Callable[[Config], float], options: dict[str, Any]) -> None:
    """After the first third, it is true within 30 %, or a bound if the search may end early; never too short."""
    executor = SimulatedExecutor(latency)
    reports: list[tuple[float, Progress]] = []
    search(executor, observe=lambda report: reports.append((executor.now_s(), report)), **options)
    end_s = executor.now_s()
    for now_s, report in reports:
        real_s = end_s - now_s
        assert report.left_s > real_s - 0.05 * end_s
        # Only the end of a search without a gain is not known.
        if now_s > end_s / 3 and not report.may_end_early and latency is not all_alike:
            assert report.left_s == pytest.approx(real_s, rel=0.3, abs=1.0)
        assert latency is all_alike or report.may_end_early == (report.stage != "confirmation")


@pytest.mark.parametrize("suffix", [".db", ".journal"])
def test_the_study_can_be_opened_later(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"study{suffix}"
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=20, n_trials=12, study=path)
    storage = (
        optuna.storages.RDBStorage(f"sqlite:///{path}")
        if suffix == ".db"
        else optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    )
    study = optuna.load_study(study_name="ortune", storage=storage)
    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    assert len({trial.user_attrs["config"] for trial in complete}) == len(outcome.trials)
    # Optuna gets log-ratios to the baseline, not times.
    assert math.exp(-study.best_value) == pytest.approx(1.25, abs=0.1)
    if suffix == ".db":
        storage.engine.dispose()


def test_a_study_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        search(SimulatedExecutor(all_alike), study=path)
    assert path.read_text() == "precious"


def test_a_study_of_unknown_kind_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.xml"):
        search(SimulatedExecutor(all_alike), study=tmp_path / "study.xml")


def latency_of_one_thread(factor: float) -> Callable[[Config], float]:
    """One thread takes `factor` times as long as all others."""
    return lambda config: 5e6 * (factor if config.session_options.get("intra_op_num_threads") == 1 else 1)


def cpu_of_one_thread(share: float) -> Callable[[Config], float]:
    return lambda config: share if config.session_options.get("intra_op_num_threads") == 1 else 1.0


def goal(
    load: Load = P50.load,
    objective: Objective | None = None,
    pareto: tuple[Objective, ...] = (),
    limits: tuple[str, ...] = (),
) -> Goal:
    return make_goal(load, objective, pareto, tuple(map(parse_limit, limits)))


def test_without_a_budget_a_search_takes_what_it_needs() -> None:
    assert search(SimulatedExecutor(all_alike), seconds=None).budget_s == 60
    slow = search(SimulatedExecutor(lambda config: 3e9), seconds=None)
    assert slow.budget_s > 60
    assert slow.evidence.speedup is not None
    assert slow.evidence.speedup.n_launches >= 5
    tail = search(SimulatedExecutor(all_alike), seconds=None, goal=goal(make_load(rate_per_s=50)))
    assert 120 < tail.budget_s < 600
    assert tail.evidence.baseline is not None
    assert tail.evidence.baseline.n_calls >= 1522


def test_throughput_of_several_callers() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), goal=goal(make_load(clients=4)))
    assert outcome.evidence.verdict == "faster"
    assert outcome.evidence.speedup is not None
    assert outcome.evidence.speedup.low <= 1.25 <= outcome.evidence.speedup.high
    assert outcome.evidence.winner is not None
    assert outcome.evidence.winner.calls_per_s == pytest.approx(4e9 / 4e6, rel=0.15)
    assert outcome.evidence.winner.utilization is None


def test_latency_at_a_rate_counts_the_queue() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=200, goal=goal(make_load(rate_per_s=100)))
    assert outcome.evidence.verdict == "faster"
    assert outcome.evidence.baseline is not None
    assert outcome.evidence.baseline.utilization == pytest.approx(0.5, rel=0.15)
    # At half load a queue with equal services has a tail of some services' length.
    assert outcome.evidence.baseline.p99_ns > 1.5 * outcome.evidence.baseline.p50_ns


def test_more_requests_than_can_be_served_is_overload() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=60, goal=goal(make_load(rate_per_s=400)))
    assert outcome.evidence.verdict == "overload"
    assert outcome.config == DEFAULT
    assert "of 400 requests per second" in outcome.evidence.reason


def test_a_baseline_that_is_overloaded_alone_is_reported() -> None:
    outcome = search(SimulatedExecutor(latency_of_one_thread(0.6)), goal=goal(make_load(rate_per_s=240)))
    assert outcome.evidence.verdict == "faster"
    assert "queue grows without bound" in outcome.evidence.reason


def test_cpu_time_within_a_limit_on_latency() -> None:
    """One thread takes a quarter of the CPU time and 1.2 times as long."""
    executor = SimulatedExecutor(latency_of_one_thread(1.2), cpu=cpu_of_one_thread(0.25))
    wide = search(executor, goal=goal(objective="cpu", limits=("p50<1.3x",)))
    assert wide.evidence.verdict == "faster"
    assert wide.config.session_options["intra_op_num_threads"] == 1
    assert wide.evidence.speedup is not None
    assert wide.evidence.speedup.estimate == pytest.approx(1 / (0.25 * 1.2), rel=0.05)
    assert [check.kept for check in wide.evidence.limits] == ["yes"]
    executor = SimulatedExecutor(latency_of_one_thread(1.2), cpu=cpu_of_one_thread(0.25))
    narrow = search(executor, goal=goal(objective="cpu", limits=("p50<1.1x",)))
    # Nothing else takes less CPU time, and what breaks the limit is no winner.
    assert narrow.evidence.verdict in NOTHING_BETTER
    assert narrow.config == DEFAULT


def test_a_baseline_that_exceeds_a_limit_is_replaced_by_a_config_that_keeps_to_it() -> None:
    executor = SimulatedExecutor(latency_of_one_thread(1.1), peak_bytes=lambda c: 60e6 if c == ONE_THREAD else 90e6)
    outcome = search(executor, seconds=200, goal=goal(limits=("memory<70MB",)))
    assert outcome.evidence.verdict == "within_limits"
    assert outcome.config == ONE_THREAD
    assert outcome.evidence.speedup is not None
    assert outcome.evidence.speedup.high < 1
    assert [check.kept for check in outcome.evidence.baseline_limits] == ["no"]


def test_a_limit_that_nothing_keeps_names_what_came_closest() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), goal=goal(limits=("p50<3ms", "memory<1GB")))
    assert outcome.evidence.verdict == "infeasible"
    assert outcome.config == DEFAULT
    assert outcome.evidence.closest is not None
    assert outcome.evidence.closest.config.session_options["intra_op_num_threads"] == 1
    assert [(check.limit, check.kept) for check in outcome.evidence.closest.limits] == [
        ("p50<3ms", "no"),
        ("memory<1GB", "yes"),
    ]
    assert "p50<3ms" in outcome.evidence.reason


def test_a_slower_config_within_the_limits_that_was_not_confirmed_is_an_answer_too() -> None:
    """A lower level alone takes little more memory than allowed. No optimization takes little, and longer."""

    def bytes_of(config: Config) -> float:
        level = config.session_options.get(LEVEL)
        if level == "ORT_ENABLE_BASIC" and len(config.settings) == 1:
            return 103e6
        return 80e6 if level == "ORT_DISABLE_ALL" else 130e6

    factors = {"ORT_ENABLE_BASIC": 0.8, "ORT_DISABLE_ALL": 1.4}
    executor = SimulatedExecutor(
        lambda config: 5e6 * factors.get(str(config.session_options.get(LEVEL)), 1.0), peak_bytes=bytes_of
    )
    outcome = search(executor, seconds=11, goal=goal(limits=("memory<100MB",)))
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.evidence.reason == (
        "the best candidate exceeds memory<100MB, and there was no time to try the next one"
    )


def test_a_front_is_infeasible_only_if_no_other_candidate_seems_to_stay_within_the_limits() -> None:
    """Many take little more memory than allowed. No optimization takes little, and is worse in both objectives."""
    factors = {"ORT_ENABLE_BASIC": 0.8, "ORT_ENABLE_EXTENDED": 0.7, "ORT_DISABLE_ALL": 1.4}
    executor = SimulatedExecutor(
        lambda config: 5e6 * factors.get(str(config.session_options.get(LEVEL)), 1.0),
        peak_bytes=lambda config: 80e6 if config.session_options.get(LEVEL) == "ORT_DISABLE_ALL" else 103e6,
    )
    outcome = search(executor, seconds=20, goal=goal(pareto=("p50", "cpu"), limits=("memory<100MB",)))
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.evidence.reason == (
        "no candidate in confirmation stays within all limits, but others that seem to were not confirmed: use a "
        "larger budget"
    )


def test_constraints_reach_optuna(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    executor = SimulatedExecutor(one_thread_wins)
    search(executor, seconds=20, n_trials=12, study=path, goal=goal(limits=("p50<4.5ms",)))
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    trials = optuna.load_study(study_name="ortune", storage=storage).get_trials()
    feasible = {trial.constraints["p50<4.5ms"] <= 0 for trial in trials if trial.constraints}
    assert feasible == {True, False}
    storage.engine.dispose()


def test_a_percentile_on_few_calls_proves_large_differences_alone() -> None:
    notes: list[str] = []
    small = search(
        SimulatedExecutor(one_thread_wins),
        seconds=20,
        goal=goal(objective="p99"),
        observe=lambda progress: notes.extend(progress.notes),
    )
    assert any("p99 needs 1522 calls of each side" in note and "a budget of" in note for note in notes)
    assert small.evidence.baseline is not None
    assert small.evidence.baseline.n_calls < 1522
    large = search(SimulatedExecutor(latency_of_one_thread(0.2)), seconds=20, goal=goal(objective="p99"))
    assert large.evidence.verdict == "faster"


def test_a_front_has_the_configs_that_no_other_dominates() -> None:
    """One thread takes half the CPU time and twice as long; a lower level costs in both."""

    def latency(config: Config) -> float:
        level = 1.3 if "graph_optimization_level" in config.session_options else 1.0
        return latency_of_one_thread(1.6)(config) * level

    executor = SimulatedExecutor(latency, cpu=cpu_of_one_thread(0.25))
    outcome = search(executor, seconds=60, goal=goal(pareto=("p50", "cpu")))
    assert outcome.evidence.verdict == "trade_off"
    configs = [point.summary.config for point in outcome.evidence.front]
    assert configs[0] == DEFAULT
    assert configs[-1].session_options["intra_op_num_threads"] == 1
    assert not any("graph_optimization_level" in config.session_options for config in configs)
    # 1.6 times the latency for 2.5 times less CPU time is worth it.
    (knee,) = (point for point in outcome.evidence.front if point.recommended)
    assert outcome.config == knee.summary.config == configs[-1]
    assert knee.speedups["cpu"].estimate == pytest.approx(2.5, rel=0.03)
    assert knee.speedups["p50"].estimate == pytest.approx(1 / 1.6, rel=0.03)


def test_a_front_on_few_calls_names_them() -> None:
    """All candidates take a third of the time."""
    executor = SimulatedExecutor(lambda config: 5e6 if config.is_default else 1.5e6)
    outcome = search(executor, seconds=20, goal=goal(pareto=("p99", "cpu")), only=("intra_op_num_threads",))
    assert outcome.evidence.verdict == "trade_off"
    assert len(outcome.evidence.front) == 1
    n_calls = min(point.summary.n_calls for point in outcome.evidence.front)
    assert n_calls < 1522
    assert outcome.evidence.reason.startswith(
        "this config is better than the baseline in at least one objective, and worse in none; p99 needs 1522 calls of "
        "each side, and there were "
    )


def test_a_baseline_that_cannot_serve_all_requests_exceeds_no_limit() -> None:
    executor = SimulatedExecutor(latency_of_one_thread(0.4))
    both = goal(Load(scenario="server", rate_per_s=250), pareto=("p50", "cpu"))
    outcome = search(executor, seconds=40, goal=both, only=("intra_op_num_threads",))
    assert outcome.evidence.verdict == "trade_off"
    assert outcome.evidence.reason == "the baseline cannot serve all requests, and these configs can"


def test_what_is_ruled_out_is_so_for_the_last_candidate_that_was_confirmed() -> None:
    """Of two that were confirmed one after the other, the figures are those of the second."""
    outcome = search(SimulatedExecutor(all_alike), seconds=20, only=(LEVEL,))
    assert ": the confirmed one gains" in outcome.evidence.reason or "confirmed one is not" in outcome.evidence.reason
    baseline, *others = outcome.trials
    confirmed = tuple(msgspec.structs.replace(trial, stage="confirmation") for trial in others[:2])
    twice = msgspec.structs.replace(outcome, trials=(baseline, *confirmed, *others[2:]))
    assert call_confirmed(twice) == "the last one that was confirmed"
    alone = msgspec.structs.replace(outcome, trials=(baseline, confirmed[0]), n_candidates=2)
    assert call_confirmed(alone) == "it"


def test_candidates_of_a_front_that_fail_in_confirmation_were_confirmed_too() -> None:
    """All are compared in one run. The one that is left is neither the only one nor the last one."""
    stages: list[str] = []

    def dies(config: Config) -> bool:
        is_left = config.is_default or config.session_options.get(LEVEL) == "ORT_ENABLE_BASIC"
        return not is_left and stages[-1:] == ["confirmation"]

    factors = {"ORT_ENABLE_BASIC": 1.05, "ORT_ENABLE_EXTENDED": 1.1, "ORT_DISABLE_ALL": 1.15}
    executor = SimulatedExecutor(
        lambda config: 5e6 * factors.get(str(config.session_options.get(LEVEL)), 1.0), is_deadly=dies
    )
    outcome = search(
        executor,
        seconds=20,
        goal=goal(pareto=("p50", "cpu")),
        only=(LEVEL,),
        observe=lambda progress: stages.append(progress.stage),
    )
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert ": none of the confirmed ones is significantly better in any objective" in outcome.evidence.reason


def test_only_racing_is_compared_with_the_confirmation() -> None:
    """The figures that screening has of a candidate are of a few blocks."""
    outcomes = [
        search(SimulatedExecutor(one_thread_wins), seconds=20, n_trials=n_trials, only=("intra_op_num_threads",))
        for n_trials in (1, None)
    ]
    for outcome, is_raced in zip(outcomes, (False, True), strict=True):
        assert outcome.evidence.speedup is not None
        assert any(stage.stage == "racing" for stage in outcome.stages) == is_raced
        assert (outcome.evidence.noise.drift is not None) == is_raced


def test_a_confirmation_of_a_single_launch_says_so() -> None:
    """Not only its budget may be to blame: on a busy host, launches do not count."""
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=1.0, only=("intra_op_num_threads",))
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.evidence.reason == (
        "fewer than two launches of the confirmation count, so it proves nothing: use a larger budget or a quieter host"
    )


def test_a_front_of_the_baseline_alone() -> None:
    outcome = search(
        SimulatedExecutor(lambda config: 5e6 if config.is_default else 6e6), goal=goal(pareto=("p50", "cpu"))
    )
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert [point.summary.config for point in outcome.evidence.front] == [DEFAULT]


def test_a_front_within_limits() -> None:
    executor = SimulatedExecutor(latency_of_one_thread(1.6), cpu=cpu_of_one_thread(0.25))
    outcome = search(executor, seconds=60, goal=goal(pareto=("p50", "cpu"), limits=("p50<1.3x",)))
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert [point.summary.config for point in outcome.evidence.front] == [DEFAULT]
    executor = SimulatedExecutor(latency_of_one_thread(1.6), cpu=cpu_of_one_thread(0.25))
    wide = search(executor, seconds=60, goal=goal(pareto=("p50", "cpu"), limits=("p50<2x",)))
    assert wide.evidence.verdict == "trade_off"
    assert wide.config.session_options["intra_op_num_threads"] == 1


def test_a_front_where_the_baseline_exceeds_a_limit_has_configs_that_keep_to_it() -> None:
    """Though it is worse in both objectives."""
    executor = SimulatedExecutor(latency_of_one_thread(1.1), peak_bytes=lambda c: 60e6 if c == ONE_THREAD else 90e6)
    outcome = search(executor, seconds=200, goal=goal(pareto=("p50", "cpu"), limits=("memory<70MB",)))
    assert outcome.evidence.verdict == "trade_off"
    assert outcome.config == ONE_THREAD
    nothing = search(SimulatedExecutor(all_alike), goal=goal(pareto=("p50", "cpu"), limits=("memory<1MB",)))
    assert nothing.evidence.verdict == "infeasible"
    assert nothing.evidence.closest is not None
    assert nothing.config == DEFAULT


def test_a_front_without_a_proven_gain_is_inconclusive_unless_a_relevant_gain_is_excluded() -> None:
    """A lower level is 6% faster, which launches that differ by 3% hide. Where all are alike, nothing gains."""

    def latency(config: Config) -> float:
        return 5e6 / (1.06 if config.session_options.get(LEVEL) == "ORT_ENABLE_BASIC" else 1.0)

    both = goal(pareto=("p50", "cpu"))
    executor = SimulatedExecutor(latency, launch_sigma=0.03, block_sigma=0.05)
    noisy = search(executor, seconds=20, goal=both, only=(LEVEL,))
    assert noisy.evidence.verdict == "inconclusive"
    assert noisy.evidence.reason == (
        "a relevant gain in p50 or cpu is neither proven nor excluded: use a larger budget or a quieter host"
    )
    assert [point.summary.config for point in noisy.evidence.front] == [DEFAULT]
    assert noisy.config == DEFAULT
    quiet = search(SimulatedExecutor(all_alike), seconds=20, goal=both, only=(LEVEL,))
    assert quiet.evidence.verdict == "default_is_best"


def test_a_front_whose_better_config_may_exceed_a_limit_is_inconclusive() -> None:
    """A lower level takes half of the CPU time. Its latency is below the limit, but not surely."""
    executor = SimulatedExecutor(
        lambda config: 6e6 if config.session_options.get(LEVEL) == "ORT_ENABLE_BASIC" else 5e6,
        cpu=lambda config: 0.4 if config.session_options.get(LEVEL) == "ORT_ENABLE_BASIC" else 1.0,
        launch_sigma=0.02,
    )
    outcome = search(executor, goal=goal(pareto=("p50", "cpu"), limits=("p50<6.2ms",)), only=(LEVEL,))
    assert outcome.evidence.verdict == "inconclusive"
    assert outcome.evidence.reason == (
        "it is uncertain whether a config that is better than the baseline stays within p50<6.2ms: use a larger budget"
    )
    assert outcome.config == DEFAULT
    assert not any(point.recommended for point in outcome.evidence.front)
    assert [check.kept for point in outcome.evidence.front for check in point.limits] == ["yes", "unsure"]


@pytest.mark.long
def test_false_claims_of_fronts_are_rare() -> None:
    verdicts = [
        search(
            SimulatedExecutor(all_alike, seed=seed, block_sigma=0.03, launch_sigma=0.01),
            seed=seed,
            goal=goal(pareto=("p50", "cpu")),
        ).evidence.verdict
        for seed in range(16)
    ]
    assert verdicts.count("trade_off") <= 2


def test_the_usual_budget_of_a_front_has_time_for_the_calls_that_a_percentile_needs() -> None:
    executor = SimulatedExecutor(latency_of_one_thread(1.6), cpu=cpu_of_one_thread(0.25))
    outcome = search(executor, seconds=None, goal=goal(make_load(rate_per_s=50), pareto=("p99", "cpu")))
    assert outcome.evidence.verdict == "trade_off"
    assert all(point.summary.n_calls >= 1522 for point in outcome.evidence.front)


def test_a_candidate_that_lacks_memory_beside_others_is_tried_alone() -> None:
    """One thread wins, but it needs so much memory that it works only beside the baseline."""
    executor = SimulatedExecutor(one_thread_wins)
    lacking = Failure(kind="out_of_memory", stage="load", message="bad_alloc")
    n_failed = 0

    def fail(config: Config) -> Failure | None:
        nonlocal n_failed
        if config.session_options.get("intra_op_num_threads") != 1 or len(executor.live) < 2:
            return None
        n_failed += 1
        return lacking

    executor.fails_to_launch = fail
    outcome = search(executor)
    assert n_failed
    assert outcome.evidence.verdict == "faster"
    assert outcome.config.session_options["intra_op_num_threads"] == 1


def test_a_candidate_that_lacks_memory_alone_is_rejected() -> None:
    lacking = Failure(kind="out_of_memory", stage="load", message="bad_alloc")
    outcome = search(
        SimulatedExecutor(one_thread_wins, fails_to_launch=lambda c: lacking if c == ONE_THREAD else None), seconds=20
    )
    assert any(trial.failure == lacking for trial in outcome.trials if trial.config == ONE_THREAD)


def test_a_front_with_nothing_to_compare() -> None:
    broken = Failure(kind="exception", stage="load", message="no")
    outcome = search(
        SimulatedExecutor(all_alike, fails_to_launch=lambda config: None if config.is_default else broken),
        seconds=20,
        goal=goal(pareto=("p50", "cpu")),
    )
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert "candidates were tried: all of them failed; nothing is known of the other" in outcome.evidence.reason


def test_a_candidate_that_cannot_serve_the_rate_does_not_win() -> None:
    """One thread takes a fraction of the CPU time, and longer for a request than requests come."""
    executor = SimulatedExecutor(
        lambda config: 25e6 if config.session_options.get("intra_op_num_threads") == 1 else 15e6,
        cpu=cpu_of_one_thread(0.1),
    )
    outcome = search(executor, seconds=120, goal=goal(make_load(rate_per_s=50), objective="cpu"))
    assert outcome.evidence.verdict in NOTHING_BETTER
    assert outcome.config == DEFAULT


def test_after_a_finalist_that_exceeds_a_limit_comes_the_next() -> None:
    """Block base 4 takes the least CPU time, but exceeds the limit from its third launch on. Base 2 comes next."""
    executor = SimulatedExecutor(all_alike)
    breaking = Config(session_config={"session.dynamic_block_base": "4"})

    def cpu(config: Config) -> float:
        if config == breaking:
            return 0.2
        return 0.4 if config == Config(session_config={"session.dynamic_block_base": "2"}) else 1.0

    def latency(config: Config) -> float:
        return 5e6 * (1.5 if config == breaking and executor.launched.count(breaking) > 2 else 1.0)

    executor.latency, executor.cpu = latency, cpu
    outcome = search(executor, seconds=200, goal=goal(objective="cpu", limits=("p50<1.3x",)))
    assert outcome.evidence.verdict == "faster"
    assert outcome.config == Config(session_config={"session.dynamic_block_base": "2"})
    confirmed = [trial.config for trial in outcome.trials if trial.stage == "confirmation" and trial.number]
    assert confirmed == [breaking, outcome.config]


class TestMemory:
    def executor(self, **options: Any) -> SimulatedExecutor:
        """Return an executor where one session fits into the 8 GB of memory."""
        return SimulatedExecutor(one_thread_wins, peak_bytes=lambda c: 5e9, memory_bytes=8e9, launch_s=2.0, **options)

    @pytest.mark.parametrize("seconds", [60, 300])
    def test_where_one_session_fits_candidates_are_measured_one_at_a_time(self, seconds: float) -> None:
        executor = self.executor()
        outcome = search(executor, seconds=seconds)
        assert (executor.most_live, executor.n_starved) == (1, 0)
        assert outcome.evidence.verdict == "faster"
        assert outcome.config.session_options["intra_op_num_threads"] == 1
        assert outcome.evidence.noise.one_at_a_time
        assert outcome.evidence.speedup is not None
        assert outcome.evidence.speedup.low < 1.25 < outcome.evidence.speedup.high
        assert executor.now_s() <= seconds
        stages = {stage.stage for stage in outcome.stages}
        assert ("racing" in stages) == (seconds == 300)

    def test_a_front_one_at_a_time(self) -> None:
        executor = self.executor(cpu=cpu_of_one_thread(0.25))
        outcome = search(executor, seconds=300, goal=goal(pareto=("p50", "cpu")))
        assert (executor.most_live, executor.n_starved) == (1, 0)
        assert outcome.config.session_options["intra_op_num_threads"] == 1
        assert executor.now_s() <= 300

    def test_a_candidate_that_needs_more_than_there_is_fails_once(self) -> None:
        """There is nothing that it could be measured without."""
        executor = self.executor()
        executor.peak_bytes = lambda config: 9e9 if config == ONE_THREAD else 5e9
        outcome = search(executor)
        (failed,) = (trial for trial in outcome.trials if trial.failure)
        assert failed.config == ONE_THREAD
        assert failed.failure and failed.failure.kind == "out_of_memory"
        assert executor.launched.count(ONE_THREAD) == 1

    @pytest.mark.parametrize("knows_gpu_use", [True, False])
    def test_sessions_that_keep_gpu_memory_are_not_too_many(self, knows_gpu_use: bool) -> None:
        """The baseline runs on the CPU. Three others fit into the GPU's memory; the first eight show that."""
        executor = SimulatedExecutor(
            one_thread_wins,
            gpu_bytes=lambda config: 0 if config == DEFAULT else 3_000_000_000,
            gpu_memory_bytes=10_000_000_000,
            knows_gpu_use=knows_gpu_use,
        )
        outcome = search(executor)
        assert executor.n_starved == 5
        assert outcome.evidence.verdict == "faster"
        assert not [trial for trial in outcome.trials if trial.failure]

    def test_where_one_session_fits_on_a_gpu_candidates_are_measured_one_at_a_time(self) -> None:
        executor = SimulatedExecutor(one_thread_wins, gpu_bytes=lambda config: 6 * 10**9, gpu_memory_bytes=10**10)
        outcome = search(executor)
        assert (executor.most_live, executor.n_starved) == (1, 0)
        assert outcome.evidence.verdict == "faster"


def test_the_baseline_is_launched_again_with_each_group_of_screening() -> None:
    executor = SimulatedExecutor(one_thread_wins)
    outcome = search(executor, seconds=30)
    groups = {round_.launch for round_ in outcome.rounds if round_.stage == "screening"}
    assert len(groups) > 3
    n_rest = sum(stage.stage != "screening" for stage in outcome.stages)
    assert n_rest == 2
    assert executor.launched.count(DEFAULT) >= len(groups) + 2


def test_leaders_are_launched_again_in_screening() -> None:
    outcome = search(SimulatedExecutor(one_thread_wins), seconds=60)
    launches = Counter(
        number
        for group in {round_.launch: round_ for round_ in outcome.rounds if round_.stage == "screening"}.values()
        for number in group.values
        if number
    )
    again = [number for number, n in launches.items() if n > 1]
    assert again
    assert all(
        outcome.trials[number].config.session_options.get("intra_op_num_threads") == 1
        for number in again
        if launches[number] > 2
    )


class TestPlan:
    @pytest.mark.parametrize(("gain", "luck"), [(0.5, 0.02), (0.05, 0.005)])
    def test_a_proof_of_a_large_gain_needs_less_time(self, gain: float, luck: float) -> None:
        plan = self.plan(launch_s=0.2, one_at_a_time=False)
        pace = Pace(gap_ns=5e6, call_ns=5e6)
        needed_s = reserve_confirmation(plan, P50, pace, gain=gain, launch_sigma=luck, round_sigma=0.01)
        assert 5 < needed_s < 0.8 * plan.confirmation_s
        small_s = reserve_confirmation(plan, P50, pace, gain=gain / 50, launch_sigma=luck, round_sigma=0.01)
        assert small_s == plan.confirmation_s

    def test_the_time_of_a_percentile_is_not_reduced(self) -> None:
        plan = self.plan(launch_s=0.2, one_at_a_time=False)
        pace = Pace(gap_ns=5e6, call_ns=5e6)
        p99 = goal(objective="p99")
        needed_s = reserve_confirmation(plan, p99, pace, gain=0.5, launch_sigma=0.01, round_sigma=0.01)
        assert needed_s == plan.confirmation_s

    @pytest.mark.parametrize(
        ("gain", "luck", "left_s", "is_longer"),
        [
            (0.04, 0.03, 200.0, True),
            (0.04, 0.03, 30.0, True),
            (0.4, 0.01, 200.0, False),  # the planned time is enough
            (0.02, 0.2, 200.0, False),  # no number of launches is
            (0.0, 0.03, 200.0, False),
        ],
    )
    def test_a_confirmation_takes_what_is_left_if_the_gain_needs_it(
        self, gain: float, luck: float, left_s: float, is_longer: bool
    ) -> None:
        plan = self.plan(launch_s=0.2, one_at_a_time=False)
        pace = Pace(gap_ns=5e6, call_ns=5e6)
        found = resize_confirmation(plan, P50, pace, left_s, (luck, 0.01), gain)
        if is_longer:
            assert found.confirmation_s == left_s
            longer, planned = (
                size.n_rounds * size.block.duration_ns for size in (found.confirmation, plan.confirmation)
            )
            assert longer > planned
        else:
            assert found.confirmation_s == plan.confirmation_s

    @pytest.mark.parametrize("call_s", [0.2, 0.7, 2.0])
    @pytest.mark.parametrize("launch_s", [0.0, 1.4, 5.0])
    def test_an_advised_budget_is_large_enough(self, call_s: float, launch_s: float) -> None:
        pace = Pace(gap_ns=1e9 * call_s, call_ns=1e9 * call_s)
        calibration = Calibration(pace=pace, launch_s=launch_s, peak_bytes=10**9)
        left_s, advised = 60.0, [60.0]
        while warning := warn_of_small_budget(
            P50, split_budget(P50, calibration, left_s=left_s, free_bytes=None), pace
        ):
            found = re.search(r"(?:a budget of|needs) (\d+) s", warning)
            assert found
            left_s = float(found[1])
            assert left_s > advised[-1]
            advised.append(left_s)
        assert len(advised) <= 3

    def test_a_long_call_is_a_block(self) -> None:
        pace = Pace(gap_ns=1e9, call_ns=1e9)
        plan = split_budget(P50, Calibration(pace=pace, launch_s=1.3, peak_bytes=10**9), left_s=55.0, free_bytes=None)
        assert (plan.block.min_calls, plan.block.lead_in_ns, plan.block.duration_ns) == (1, 0, 1_000_000_000)
        assert (plan.screening_rounds, plan.racing_rounds, plan.confirmation.rounds) == (1, 1, 1)
        assert plan.can_prove

    def plan(
        self, *, launch_s: float, one_at_a_time: bool, left_s: float = 50.0, peak_bytes: int = 10**9
    ) -> SearchPlan:
        pace = Pace(gap_ns=5e6, call_ns=5e6)
        calibration = Calibration(pace=pace, launch_s=launch_s, peak_bytes=peak_bytes)
        return split_budget(P50, calibration, left_s=left_s, free_bytes=10**10, one_at_a_time=one_at_a_time)

    def test_each_block_costs_a_launch(self) -> None:
        together, alone = (self.plan(launch_s=3.0, one_at_a_time=one_at_a_time) for one_at_a_time in (False, True))
        # A block takes half as long as a launch, but not longer than a second.
        assert alone.block.duration_ns == 1_000_000_000
        assert (alone.screening_rounds, alone.racing_rounds) == (1, 1)
        assert alone.batch < together.batch
        assert alone.batch < self.plan(launch_s=3.0, one_at_a_time=True, left_s=200.0).batch
        assert self.plan(launch_s=0.4, one_at_a_time=True).block.duration_ns == 200_000_000
        # Pairs of the confirmation take as long as before: each side is launched once for several blocks.
        assert alone.confirmation == together.confirmation

    def test_how_many_are_live(self) -> None:
        assert self.plan(launch_s=1, one_at_a_time=False).max_live == 6
        assert self.plan(launch_s=1, one_at_a_time=False, peak_bytes=4 * 10**9).max_live == 2
        assert self.plan(launch_s=1, one_at_a_time=True, peak_bytes=8 * 10**9).max_live > 9


def test_a_background_load_that_ends_keeps_the_best_so_far() -> None:
    executor = SimulatedExecutor(one_thread_wins)

    def check() -> None:
        if executor.n_blocks > 150:
            raise BackgroundLoadError("it ended")

    outcome = search(executor, check=check)
    assert outcome.interrupted
    assert outcome.evidence.reason == "it ended"
    assert outcome.evidence.best_so_far is not None
    assert outcome.evidence.best_so_far.config.session_options["intra_op_num_threads"] == 1


def test_candidates_of_a_round_get_the_same_traffic_and_rounds_differ() -> None:
    executor = SimulatedExecutor(all_alike)
    lives = [live for live in executor.launch([DEFAULT, ONE_THREAD], deadline_s=1) if not isinstance(live, Failure)]
    seen: list[int] = []

    class Recorder:
        config, session_info = DEFAULT, lives[0].session_info

        def measure(self, plan: BlockPlan) -> Block | Failure:
            seen.append(plan.seed)
            return lives[0].measure(plan)

        def close(self) -> None: ...

    runner = BlockRunner(executor, np.random.default_rng(0))
    plan = BlockPlan(duration_ns=10**8, lead_in_ns=0, min_calls=1, deadline_s=1)
    for _ in zip(range(2), runner.measure_rounds({0: Recorder(), 1: Recorder()}, lambda: plan), strict=False):
        pass
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_pareto_fronts() -> None:
    vectors = [(0.0, 0.0), (-0.5, 0.4), (0.3, -0.9), (0.1, 0.1), (-0.5, 0.405)]
    assert find_front(vectors) == [1, 0, 2]
    assert find_knee([vectors[position] for position in find_front(vectors)]) == 2
    assert find_front([(0.0, 0.0), (0.0, 0.0)]) == [0]
    # 0.1 % less of one is not worth 30 % more of the other.
    assert find_front([(0.0, 0.0), (0.3, -0.001)]) == [0]
