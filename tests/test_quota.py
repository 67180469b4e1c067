"""Hosts whose CPU quota is smaller than ONNX Runtime's default pool: what is optimized, and what is answered first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from ortune import Config, Goal, Progress
from ortune.host import Host
from ortune.host.default_pool import find_default_pool
from ortune.host.topology import Quota
from ortune.knobs import DEFAULT, SearchSpace, SpaceOptions, build_space
from ortune.measure.calibrate import runs_at_two_speeds
from ortune.measure.open import fit_objective
from ortune.requests import ProgramSearchRequest
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.worker import Block, Failure, LiveCandidate, Memory
from ortune.workload import make_goal, make_load
from ortune.workload.goal import AT_TWO_SPEEDS, FEW_RUNS, UNDER_QUOTA
from tests.records import ONE_THREAD
from tests.simulated import SimulatedExecutor, is_one_thread, make_host, make_model, open_simulated

POOL = ("intra_op_num_threads", "session.intra_op.allow_spinning")
"""The knobs of the thread pool. A space of these alone takes little time to build."""

MEAN = Goal(objectives=("mean",))


def make_container(cpus: float, n_cores: int = 2) -> Host:
    host = make_host(n_cores)
    quota = Quota(cpus=cpus, where="/sys/fs/cgroup/cpu/container")
    return msgspec.structs.replace(host, limits=msgspec.structs.replace(host.limits, quota=quota))


def one_thread_wins(config: Config) -> float:
    return 7e6 if is_one_thread(config) else 10e6


def only_the_pool_wins(config: Config) -> float:
    return 7e6 if config == ONE_THREAD else 10e6


def search(
    latency: Callable[[Config], float],
    *,
    seconds: float = 60,
    cpus: float = 1.0,
    goal: Goal = MEAN,
    space: SearchSpace | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    executor: SimulatedExecutor | None = None,
) -> Outcome:
    executor = executor or SimulatedExecutor(latency)
    opened = open_simulated(executor, goal, quota=True)
    space = space or build_space(make_container(cpus), make_model(), SpaceOptions())
    outcome = run_search(space, opened, SearchSettings(budget_s=seconds), observe)
    assert not executor.live, "candidates are still live"
    return outcome


class TestObjective:
    """What is optimized if the user does not say so."""

    def test_complete_runs_of_a_program_say_why_it_is_the_mean(self) -> None:
        goal = ProgramSearchRequest(command=("python", "app.py")).goal
        assert (goal.objectives, goal.why) == (("mean",), FEW_RUNS)
        assert goal.on_host(throttled=True) == goal
        named = ProgramSearchRequest(command=("python", "app.py"), objective="cpu").goal
        assert (named.objectives, named.why) == (("cpu",), "")
        assert ProgramSearchRequest(command=("python", "app.py"), call="app:run").goal.objectives == ("p50",)

    def test_it_fits_the_load(self) -> None:
        assert make_goal(make_load()).objectives == ("p50",)
        assert make_goal(make_load(clients=2)).objectives == ("throughput",)
        assert make_goal(make_load(), batches=(1, 8)).objectives == ("throughput",)
        assert make_goal(make_load(rate_per_s=50)).objectives == ("p99",)
        assert all(make_goal(make_load(clients=n)).why for n in (1, 2))

    def test_the_mean_takes_the_place_of_the_median_alone(self) -> None:
        goal = make_goal(make_load()).with_mean(UNDER_QUOTA)
        assert (goal.objectives, goal.why) == (("mean",), UNDER_QUOTA)
        for kept in (make_goal(make_load(), "p50"), make_goal(make_load(clients=2)), make_goal(make_load(), "p99")):
            assert kept.with_mean(UNDER_QUOTA) == kept

    @pytest.mark.parametrize(("cpus", "throttled"), [(0.5, True), (1.5, True), (2.0, False), (4.0, False)])
    def test_a_quota_of_all_cpus_throttles_nothing(self, cpus: float, throttled: bool) -> None:
        assert make_container(cpus).limits.throttled == throttled
        assert not make_host().limits.throttled

    @pytest.mark.parametrize(
        ("slow_share", "factor", "found"), [(0.2, 8.0, True), (0.2, 1.5, False), (0.02, 8.0, False), (0.0, 1.0, False)]
    )
    def test_calls_at_two_speeds_are_noticed(self, slow_share: float, factor: float, found: bool) -> None:
        rng = np.random.default_rng(0)
        levels = np.where(np.arange(50) < slow_share * 50, factor, 1.0)
        samples = (5e6 * levels * np.exp(rng.normal(0, 0.03, 50))).astype(np.int64)
        block = Block(
            samples_ns=samples,
            n_calls=50,
            wall_ns=int(samples.sum()),
            service_ns=float(samples.mean()),
            cpu_ns=int(samples.sum()),
            memory=Memory(steady_bytes=1, peak_bytes=1),
            foreign_share=0.0,
            contended=False,
        )
        assert runs_at_two_speeds(block) == found

    def test_two_speeds_change_an_objective_that_the_user_did_not_name(self) -> None:
        opened = open_simulated(SimulatedExecutor(one_thread_wins), make_goal(make_load()))
        assert fit_objective(opened).goal.objective == "p50"
        calibration = msgspec.structs.replace(opened.calibration, has_two_speeds=True)
        goal = fit_objective(msgspec.structs.replace(opened, calibration=calibration)).goal
        assert (goal.objective, goal.why) == ("mean", AT_TWO_SPEEDS)


class TestFitting:
    """The thread pool that fits the host is compared with the default first."""

    @pytest.mark.parametrize(
        ("cpus", "n_cores", "n_threads", "spins"),
        [(0.5, 2, 1, True), (1.25, 2, 1, True), (1.5, 2, None, False), (2.5, 8, 2, True), (3.9, 8, 4, False)],
    )
    def test_what_fits(self, cpus: float, n_cores: int, n_threads: int | None, spins: bool) -> None:
        host = make_container(cpus, n_cores)
        fitting = build_space(host, make_model(), SpaceOptions(only=POOL)).fitting
        assert fitting
        assert fitting.config.session_options.get("intra_op_num_threads") == n_threads
        assert ("session.intra_op.allow_spinning" in fitting.config.session_config) == (not spins)

    @pytest.mark.parametrize("cpus", [8.0, 16.0])
    def test_the_default_may_fit(self, cpus: float) -> None:
        host = make_container(cpus, 8)
        assert not find_default_pool(host).faults
        assert build_space(host, make_model(), SpaceOptions(only=POOL)).fitting is None

    def test_nothing_fits_better_if_the_user_fixes_the_threads(self) -> None:
        options = SpaceOptions(fix={"intra_op_num_threads": 2})
        assert build_space(make_container(1.0), make_model(), options).fitting is None

    @pytest.mark.parametrize(
        ("n_cores", "clients", "processes", "n_threads"), [(2, 2, 1, 1), (8, 8, 1, 1), (8, 4, 2, 1), (8, 4, 1, None)]
    )
    def test_what_fits_concurrent_callers(
        self, n_cores: int, clients: int, processes: int, n_threads: int | None
    ) -> None:
        options = SpaceOptions(figures=("throughput",), clients=clients, processes=processes, only=POOL)
        fitting = build_space(make_host(n_cores), make_model(), options).fitting
        assert (fitting.config.session_options["intra_op_num_threads"] if fitting else None) == n_threads

    @pytest.mark.parametrize(("clients", "sessions", "n_threads"), [(1, 1, 10), (2, 1, 9), (4, 2, 4), (12, 1, 1)])
    def test_callers_share_what_the_process_may_use(self, clients: int, sessions: int, n_threads: int) -> None:
        options = SpaceOptions(figures=("throughput",), clients=clients, sessions=sessions, only=POOL)
        fitting = build_space(make_container(10.0, 12), make_model(), options).fitting
        assert fitting
        assert fitting.config.session_options["intra_op_num_threads"] == n_threads

    def test_callers_at_a_rate_do_not_keep_the_cores_busy(self) -> None:
        options = SpaceOptions(figures=("p99",), clients=2, has_rate=True)
        assert build_space(make_host(), make_model(), options).fitting is None

    def test_long_calls_of_two_callers_get_the_launches_of_a_proof(self) -> None:
        """A minute has time for few launches of a model with calls of 100 ms."""
        space = build_space(make_host(), make_model(), SpaceOptions(figures=("throughput",), clients=2))

        def latency(config: Config) -> float:
            return 80e6 if is_one_thread(config) else 100e6

        for seed in range(3):
            executor = SimulatedExecutor(latency, seed=seed, block_sigma=0.05, launch_sigma=0.05, launch_s=0.8)
            outcome = search(latency, goal=make_goal(make_load(clients=2)), space=space, executor=executor)
            assert outcome.evidence.verdict == "faster"
            assert outcome.evidence.speedup
            assert outcome.evidence.speedup.n_launches >= 5
            assert is_one_thread(outcome.config)

    def test_it_is_answered_first(self) -> None:
        reports: list[Progress] = []
        outcome = search(one_thread_wins, observe=reports.append)
        assert list(dict.fromkeys(report.stage for report in reports))[:2] == ["fitting", "screening"]
        (note,) = [note for report in reports for note in report.notes if "Other candidates follow" in note]
        assert note.startswith("intra threads=1 against the default: 1.4")
        (fitting,) = [stage for stage in outcome.stages if stage.stage == "fitting"]
        assert fitting.wall_s < 15
        assert all(report.left_s > 20 for report in reports if report.stage == "fitting")
        assert outcome.evidence.verdict == "faster"
        assert is_one_thread(outcome.config)

    def test_its_launches_count_in_its_confirmation(self) -> None:
        outcome = search(only_the_pool_wins)
        assert outcome.config == ONE_THREAD
        assert outcome.evidence.speedup
        counted = {
            trial_round.launch for trial_round in outcome.rounds if trial_round.stage in {"fitting", "confirmation"}
        }
        confirmed = {trial_round.launch for trial_round in outcome.rounds if trial_round.stage == "confirmation"}
        assert outcome.evidence.speedup.n_launches == len(counted) > len(confirmed) > 0

    @pytest.mark.parametrize(("level", "expected"), [(7e6, ONE_THREAD), (12e6, DEFAULT)])
    def test_it_is_all_that_a_short_search_measures(self, level: float, expected: Config) -> None:
        reports: list[Progress] = []
        executor = SimulatedExecutor(lambda config: level if is_one_thread(config) else 10e6, launch_s=1.5)
        outcome = search(one_thread_wins, seconds=26, executor=executor, observe=reports.append)
        assert {report.stage for report in reports} == {"confirmation"}
        assert outcome.config == expected
        assert len(outcome.trials) == 2
        assert outcome.evidence.verdict == ("faster" if expected == ONE_THREAD else "nothing_found")

    def test_nothing_else_is_measured_if_it_takes_all_of_the_time(self) -> None:
        """Launches may take much longer than the first one, as the quota of the first one was not used up."""

        class Slower(SimulatedExecutor):
            def launch(
                self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
            ) -> list[LiveCandidate | Failure]:
                self.launch_s = 20.0 if len(self.launched) > 2 else 0.5
                return super().launch(configs, deadline_s=deadline_s, independent=independent)

        outcome = search(only_the_pool_wins, seconds=40, executor=Slower(only_the_pool_wins))
        assert "fitting" in {stage.stage for stage in outcome.stages}
        assert "screening" not in {stage.stage for stage in outcome.stages}
        # Fewer launches than a proof needs have taken all of the time.
        assert (outcome.evidence.verdict, outcome.config) == ("inconclusive", DEFAULT)
        assert "launches of each config count, where a proof needs 5" in outcome.evidence.reason

    def test_it_is_the_answer_where_nothing_else_is_proven(self) -> None:
        outcome = search(only_the_pool_wins, seconds=25)
        assert (outcome.evidence.verdict, outcome.config) == ("faster", ONE_THREAD)

    def test_a_better_candidate_is_the_answer(self) -> None:
        def latency(config: Config) -> float:
            level = 7e6 if is_one_thread(config) else 10e6
            return level * (0.6 if "graph_optimization_level" in config.session_options else 1.0)

        outcome = search(latency, seconds=120)
        assert outcome.evidence.verdict == "faster"
        assert "graph_optimization_level" in outcome.config.session_options

    def test_a_pool_that_is_not_better_is_not_the_answer(self) -> None:
        outcome = search(lambda config: 12e6 if is_one_thread(config) else 10e6)
        assert outcome.config == DEFAULT

    def test_a_pool_that_fails_does_not_end_the_search(self) -> None:
        def fail(config: Config) -> Failure | None:
            return Failure(kind="exception", stage="load", message="no") if is_one_thread(config) else None

        outcome = search(one_thread_wins, executor=SimulatedExecutor(one_thread_wins, fails_to_launch=fail))
        assert outcome.config == DEFAULT
        assert any(trial.failure for trial in outcome.trials)
