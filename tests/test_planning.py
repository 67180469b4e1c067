"""Plans of deployments: which are tried, how the best is found on simulated hosts, and one real run."""

from __future__ import annotations

import errno
import functools
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

import ortune
from ortune import (
    BackgroundLoadError,
    Config,
    Deployment,
    Goal,
    HostError,
    Limit,
    Load,
    Plan,
    RecordError,
    Tolerance,
    UsageError,
    Workload,
    read_plan,
)
from ortune.console.plan import find_warnings, format_capacity, show_plan
from ortune.host import HostClass, place_processes
from ortune.host.topology import Quota
from ortune.knobs import DEFAULT
from ortune.measure.block_plan import RunPlan
from ortune.measure.block_runner import BlockRunner
from ortune.measure.open import OpenComparison, start_comparison
from ortune.measure.paired_run import PairedRun, Side
from ortune.model.identity import ModelIdentity
from ortune.options import make_request
from ortune.planning.capacity import estimate_utilization, find_launch_error, predict_capacity
from ortune.planning.choose import add_cost, correct_predictions, explain_choice, find_best, rank_rows
from ortune.planning.deployment import Batching
from ortune.planning.files import decode_plan, encode_plan
from ortune.planning.measured_capacity import FEWEST_RATE_MEASUREMENTS
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.memory import MemoryNeeds
from ortune.planning.options import PlanOptions
from ortune.planning.prepare import prepare_plan
from ortune.planning.proof import mark_proven
from ortune.planning.result import PLAN_SCHEMA, AtRate, Estimate, PlannedDeployment
from ortune.planning.run import PlanOutcome, _Planning, run_stages
from ortune.planning.screening import screen_deployments
from ortune.planning.space import make_deployment_space
from ortune.queueing.theory import ConstantQueue, find_known_capacity
from ortune.requests import PlanRequest
from ortune.worker import BlockPlan, Failure
from ortune.worker.open_loop import draw_arrivals
from ortune.workload import parse_limit
from tests.budgets import scale_budget
from tests.conftest import TINY_CNN, long_params, run_ortune
from tests.plans import make_estimate, make_row
from tests.simulated import RUNTIME, SimulatedExecutor, make_host

MS = 1_000_000
THREADS = "intra_op_num_threads"
SPINNING = "session.intra_op.allow_spinning"
ONE_THREAD = Config(session_options={THREADS: 1})


def threads_of(config: Config, n_cores: int) -> int:
    return int(config.session_options.get(THREADS, n_cores))


def scale_badly(n_cores: int) -> Callable[[Config, Load], float]:
    """Return durations of calls where a process with one thread for each core is best: threads bring little."""

    def latency(config: Config, load: Load) -> float:
        threads = threads_of(config, n_cores)
        call_ns = 10e6 * (0.5 + 0.5 / threads)
        overload = max(load.n_callers * threads / n_cores, 1.0)
        # Callers of one process wait for each other.
        return float(call_ns * overload * (1.3 * load.clients if load.clients > 1 else 1))

    return latency


def open_simulated(executor: SimulatedExecutor, *, free_bytes: int | None = 8_000_000_000) -> OpenComparison:
    (first,) = executor.launch([DEFAULT], deadline_s=9)
    assert not isinstance(first, Failure)
    goal = Goal(objectives=("throughput",))
    return start_comparison(executor, first, goal, first_launch_s=0.2, free_bytes=free_bytes)


def plan_simulated(
    executor: SimulatedExecutor, n_cores: int = 2, *, free_bytes: int | None = 8_000_000_000, **options: Any
) -> PlanOutcome:
    space = make_deployment_space(make_host(n_cores), DEFAULT)
    outcome = run_stages(space, open_simulated(executor, free_bytes=free_bytes), PlanOptions(**options))
    assert not executor.live
    return outcome


@functools.cache
def plan_with_enough_time() -> tuple[PlanOutcome, int]:
    """Return the outcome where there is time to measure capacities, and the number of blocks."""
    executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2))
    outcome = plan_simulated(executor, slo=parse_limit("p99<50ms"), budget_s=500.0)
    return outcome, executor.n_blocks


def choose(outcome: PlanOutcome) -> Deployment:
    return outcome.rows[outcome.recommended].deployment


def sizes(deployments: Sequence[Deployment], n_default: int) -> set[tuple[int, int, int]]:
    return {(deployment.processes, deployment.n_threads or n_default, deployment.clients) for deployment in deployments}


class TestSpace:
    def test_two_cores(self) -> None:
        space = make_deployment_space(make_host(2), DEFAULT)
        first = sizes(space.list_first(), 2)
        assert {(1, 1, 2), (2, 1, 1), (2, 2, 1), (1, 2, 2)} <= first
        assert (1, 2, 1) not in first
        variants = space.list_variants(space.find_shape(Deployment(processes=2)))
        assert any(variant.config.session_config == {SPINNING: "0"} for variant in variants)
        assert not any(variant.placement for variant in variants)  # two threads each on one core
        variants = space.list_variants(space.find_shape(Deployment(processes=2, config=ONE_THREAD)))
        assert [variant.cpus for variant in variants if variant.placement] == [((0,), (1,))]

    def test_96_cores_in_four_nodes(self) -> None:
        space = make_deployment_space(make_host(96, n_nodes=4), DEFAULT)
        assert {1, 2, 4, 48, 64} <= {*space.first_counts, 64}
        first = sizes(space.list_first(), 96)
        assert {(4, 24, 1), (2, 48, 1), (1, 1, 96), (48, 2, 1), (2, 96, 1)} <= first
        assert len(first) < 30
        near = sizes(space.list_sizes(space.find_shape(space.default), 2.0), 96)
        assert {(2, 48, 1), (1, 48, 1)} <= near

    @pytest.mark.parametrize(("n_cores", "n_nodes"), [(1, 1), (2, 1), (6, 1), (96, 4)])
    def test_all_are_distinct_and_bounded(self, n_cores: int, n_nodes: int) -> None:
        space = make_deployment_space(make_host(n_cores, n_nodes=n_nodes), DEFAULT)
        found = space.list_first()
        for deployment in found[:5]:
            found += space.list_sizes(space.find_shape(deployment), 1.5) + space.list_variants(
                space.find_shape(deployment)
            )
        assert all(deployment.key != space.default.key for deployment in found)
        for deployment in found:
            assert deployment.processes <= 64
            threads = deployment.n_threads or n_cores
            assert deployment.processes * threads <= 2 * n_cores or deployment.processes <= 2
            # The way there and back leads to the same deployment.
            assert space.make(space.find_shape(deployment)).key == deployment.key

    def test_a_quota_counts_as_cores(self) -> None:
        host = make_host(8)
        limits = msgspec.structs.replace(host.limits, quota=Quota(cpus=1.5, where="/"))
        space = make_deployment_space(msgspec.structs.replace(host, limits=limits), DEFAULT)
        assert (space.n_cores, space.units) == (2, ())
        assert (2, 1, 1) in sizes(space.list_first(), 8)

    def test_what_the_user_wants(self) -> None:
        host = make_host(4)
        given = make_deployment_space(host, DEFAULT, processes=[1, 3])
        assert {deployment.processes for deployment in given.list_first()} == {1, 3}
        near = given.list_sizes(given.find_shape(given.default), 2.0)
        assert {deployment.processes for deployment in near} == {1, 3}
        fixed = make_deployment_space(host, ONE_THREAD, fix={THREADS: 1})
        assert {threads_of(deployment.config, 4) for deployment in fixed.list_first()} == {1}
        tuned = make_deployment_space(host, DEFAULT, tune={THREADS: [1, 4]})
        assert {threads_of(deployment.config, 4) for deployment in tuned.list_first()} == {1, 4}
        larger = make_deployment_space(make_host(16), DEFAULT, tune={THREADS: [4, 8]})
        near = larger.list_sizes(larger.find_shape(larger.default), 2.0)
        assert {threads_of(deployment.config, 16) for deployment in [*larger.list_first(), *near]} == {4, 8, 16}
        only = make_deployment_space(host, DEFAULT, only=[THREADS])
        assert only.settings == ()
        # More processes, or more threads, than there would be without the user's number.
        many = make_deployment_space(make_host(2), DEFAULT, processes=[1, 8])
        assert (8, 1, 1) in sizes(many.list_first(), 2)
        assert (8, 2, 1) not in sizes(many.list_first(), 2)
        long_pool = make_deployment_space(make_host(2), DEFAULT, tune={THREADS: [8]})
        assert (1, 8, 1) in sizes(long_pool.list_first(), 2)
        other = make_deployment_space(host, DEFAULT, tune={"execution_mode": ["ORT_PARALLEL"]})
        assert ("execution_mode", "ORT_PARALLEL") in other.settings

    def test_no_pinning_on_macos(self) -> None:
        host = msgspec.structs.replace(make_host(4), system="Darwin")
        space = make_deployment_space(host, DEFAULT)
        variants = space.list_variants(space.find_shape(Deployment(processes=2)))
        assert variants
        assert not any(variant.pinned for variant in variants)


class TestScreening:
    def test_the_optimum_of_a_smooth_surface(self) -> None:
        space = make_deployment_space(make_host(48, n_nodes=4), DEFAULT)
        tried: list[Deployment] = []

        def score(deployment: Deployment) -> float:
            threads = deployment.n_threads or 48
            far = math.log(deployment.processes / 11) ** 2 + math.log(threads / 4) ** 2
            return 1 - 0.2 * far - (deployment.clients > 1) - (deployment.config.session_config != {})

        def measure(deployments: Sequence[Deployment]) -> list[float | None]:
            tried.extend(deployments)
            return [score(deployment) for deployment in deployments]

        ranked = screen_deployments(space, measure)
        assert len(tried) == len({deployment.key for deployment in tried}) <= 60
        best = ranked[0][0]
        assert abs(best.processes - 11) <= 1
        assert abs(best.n_threads - 4) <= 1

    def test_it_ends_when_the_time_is_over(self) -> None:
        space = make_deployment_space(make_host(8), DEFAULT)
        n_calls = 0

        def measure(deployments: Sequence[Deployment]) -> list[float | None]:
            nonlocal n_calls
            n_calls += 1
            return [None] * len(deployments)

        ranked = screen_deployments(space, measure, has_time=lambda: n_calls < 1)
        assert n_calls == 1
        assert [deployment for deployment, _ in ranked] == [space.default]


class TestStages:
    def test_the_best_deployment_is_recommended(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2))
        outcome = plan_simulated(executor)
        chosen = choose(outcome)
        assert (chosen.processes, chosen.n_threads, chosen.clients) == (2, 1, 1)
        row = outcome.rows[outcome.recommended]
        assert row.is_proven
        assert row.ratio
        # Two calls of 10 ms at a time, instead of one of 7.5 ms.
        assert row.ratio.low < 1.5 < (row.ratio.high or 0)
        assert row.memory_bytes == 2 * outcome.rows[0].memory_bytes
        assert row.throughput.estimate == pytest.approx(200, rel=0.1)
        assert find_best(outcome.rows)["memory"] != outcome.recommended

    def test_the_default_is_recommended_if_nothing_is_better(self) -> None:
        def latency(config: Config, load: Load) -> float:
            is_default = config == DEFAULT and load.n_callers == 1
            return 10e6 * load.n_callers * (1 if is_default else 1.05)

        outcome = plan_simulated(SimulatedExecutor(lambda config: 1, latency_under=latency))
        assert choose(outcome) == Deployment()
        assert "no deployment is proven" in outcome.reason
        assert len(outcome.rows) > 1

    def test_equal_deployments_are_not_called_better(self) -> None:
        def latency(config: Config, load: Load) -> float:
            return 10e6 * load.n_callers

        n_wrong = 0
        for seed in range(10):
            executor = SimulatedExecutor(lambda config: 1, latency_under=latency, seed=seed, block_sigma=0.02)
            n_wrong += plan_simulated(executor).recommended != 0
        assert n_wrong <= 1

    def test_a_failing_deployment_does_not_end_it(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2), dies_when_measured=[ONE_THREAD])
        outcome = plan_simulated(executor)
        problems = [screened for screened in outcome.screened if screened.problem]
        assert problems
        assert all("SIGSEGV" in problem.problem for problem in problems if problem.deployment.config == ONE_THREAD)
        assert choose(outcome).config != ONE_THREAD

    def test_what_does_not_fit_is_named_and_not_measured(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(8), peak_bytes=lambda config: 1e9)
        outcome = plan_simulated(executor, 8, free_bytes=5_500_000_000)
        unfit = [screened for screened in outcome.screened if screened.problem == "does not fit into memory"]
        assert unfit
        assert all(screened.deployment.processes > 4 and screened.ratio is None for screened in unfit)
        assert choose(outcome).processes == 4
        assert len(executor.live) == 0

    def test_memory_grows_with_the_items_of_a_call(self) -> None:
        def peak_bytes(config: Config) -> float:
            return 0.4e9 + 0.3e9 * config.batch

        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2), peak_bytes=peak_bytes)
        # A share of 0.8 of it may be used.
        opened = open_simulated(executor, free_bytes=5_500_000_000)
        runner = DeploymentRunner(opened, Deployment())
        batches = [Deployment(config=Config(batch=size)) for size in (16, 8, 1, 2)]
        two = Deployment(processes=2, config=Config(batch=8))
        found = runner.screen([*batches, two])
        assert [bool(screened) for screened in found] == [False, True, True, True, False]
        assert set(runner.unfit) == {batches[0].key, two.key}
        # As far as the first launch shows, all of the memory belongs to the item. A single process is tried.
        fresh = DeploymentRunner(opened, Deployment())
        assert fresh.fits(batches[1])
        assert not fresh.fits(msgspec.structs.replace(batches[1], processes=2))

    def test_one_at_a_time_where_two_do_not_fit(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2), peak_bytes=lambda config: 1e9)
        outcome = plan_simulated(executor, free_bytes=2_600_000_000)
        assert choose(outcome).processes == 2
        assert executor.most_live == 2  # the sides, of which one may have two processes, are live in turn

    def test_the_target_excludes_long_calls(self) -> None:
        """Eight processes with one thread have the highest throughput, but their calls take too long."""

        def latency(config: Config, load: Load) -> float:
            threads = threads_of(config, 8)
            return float(40e6 / threads**0.8 * max(load.n_callers * threads / 8, 1.0))

        executor = SimulatedExecutor(lambda config: 1, latency_under=latency, launch_s=0.01)
        free = plan_simulated(executor, 8)
        assert choose(free).n_callers == 8
        executor = SimulatedExecutor(lambda config: 1, latency_under=latency, launch_s=0.01)
        within = plan_simulated(executor, 8, slo=parse_limit("p99<30ms"), budget_s=60.0)
        row = within.rows[within.recommended]
        assert row.p99_ns < 30 * MS
        assert row.capacity
        assert 0 < row.capacity.estimate < row.throughput.estimate

    def test_with_a_target_deployments_are_compared_with_the_capacity_of_the_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Close to the target, no deployment can take as many requests as the throughput of the default."""
        scores: list[tuple[Deployment, float]] = []

        def keep(*arguments: Any, **options: Any) -> list[tuple[Deployment, float]]:
            scores[:] = screen_deployments(*arguments, **options)
            return scores

        monkeypatch.setattr("ortune.planning.run.screen_deployments", keep)
        self.plan_slow_calls(0.5, "p90<25ms")
        best, best_score = scores[0]
        assert (best.processes, best.n_threads) == (2, 1)
        assert best_score > 0.1
        assert [score for deployment, score in scores if deployment.key == Deployment().key] == [0.0]

    def test_the_capacity_is_measured_within_the_budget(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2), launch_s=0.01)
        slo = parse_limit("p99<50ms")
        outcome = plan_simulated(executor, slo=slo, budget_s=3000.0, rate_per_s=400.0, price_per_hour=0.2)
        row = outcome.rows[outcome.recommended]
        assert row.capacity
        assert row.predicted_capacity
        assert row.capacity.source == "measured"
        assert row.predicted_capacity.source == "predicted"
        assert row.is_proven
        # Its two processes share a queue on the simulated host.
        queue = find_known_capacity(ConstantQueue, 2, 0.99, 5.0) * 200
        assert row.capacity.estimate == pytest.approx(queue, rel=0.12)
        assert row.replicas == math.ceil(400 / 0.8 / row.capacity.estimate)
        assert row.price_of_million == pytest.approx(0.2 * row.replicas / (400 * 3600) * 1e6)
        assert row.at_rate
        assert row.at_rate.source == "measured"
        assert row.at_rate.rate_per_s == pytest.approx(400 / row.replicas)
        assert row.at_rate.p99_low_ns is not None
        assert row.at_rate.p99_low_ns <= row.at_rate.p99_ns < slo.bound
        assert row.predicted_at_rate
        assert row.predicted_at_rate.source == "predicted"
        assert row.at_rate.target
        assert row.at_rate.target.estimate == row.at_rate.p99_ns
        # Others are predicted.
        assert {other.at_rate.source for other in outcome.rows if other.at_rate and other != row} <= {"predicted"}
        assert outcome.rows[0].capacity
        assert outcome.rows[0].capacity.source == "measured"

    @staticmethod
    def plan_slow_calls(slowness: float, target: str, **options: Any) -> tuple[PlanOutcome, float]:
        """Return the outcome for calls that take so many times 10 ms, and how long it took."""
        known = scale_badly(2)
        executor = SimulatedExecutor(
            lambda config: 1, latency_under=lambda config, load: slowness * known(config, load), launch_s=0.2
        )
        outcome = plan_simulated(executor, slo=parse_limit(target), **options)
        return outcome, executor.time_s

    def test_the_usual_budget_is_extended_to_measure_the_capacities_of_slow_models(self) -> None:
        outcome, spent_s = self.plan_slow_calls(6, "p90<300ms")
        assert 0 < outcome.extension_s <= 240
        assert 240 < spent_s < 500
        for place in {0, outcome.recommended}:
            found = outcome.rows[place].capacity
            assert found
            assert found.source == "measured"

    def test_it_is_extended_again_if_capacities_are_lower_than_expected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The capacity of the default would not be known well enough to prove anything."""

        def extend_too_little(self: _Planning, rows: Sequence[PlannedDeployment], slo: Limit) -> None:
            self.extension_s = 30.0

        monkeypatch.setattr(_Planning, "extend_budget", extend_too_little)
        outcome, spent_s = self.plan_slow_calls(6, "p90<300ms")
        assert 30 < outcome.extension_s <= 240
        assert spent_s < 500
        default = outcome.rows[0].capacity
        assert default and default.n_measurements
        assert default.source == "measured"
        assert default.n_measurements >= FEWEST_RATE_MEASUREMENTS

    def test_the_usual_budget_is_almost_enough_for_quick_calls(self) -> None:
        """Their capacities are measured for as long as it takes to see slow periods of the host."""
        outcome, spent_s = self.plan_slow_calls(0.5, "p90<25ms")
        assert outcome.extension_s < 30
        assert spent_s < 275

    def test_the_usual_budget_is_not_extended_in_vain(self) -> None:
        outcome, spent_s = self.plan_slow_calls(100, "p99<9s")
        assert outcome.extension_s == 0
        assert spent_s < 260
        assert {row.capacity.source for row in outcome.rows if row.capacity} == {"predicted"}

    def test_a_budget_is_kept(self) -> None:
        """Confirmation ends earlier, so that there is time for capacities."""
        outcome, spent_s = self.plan_slow_calls(6, "p90<300ms", budget_s=240.0)
        assert outcome.extension_s == 0
        assert spent_s < 260
        found = outcome.rows[outcome.recommended].capacity
        assert found
        assert found.source == "measured"

    def test_more_requests_than_can_be_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("run", "measured_capacity"):
            monkeypatch.setattr(f"ortune.planning.{module}.HIGHEST_RATE_PER_S", 1e3)
        outcome, _ = self.plan_slow_calls(1e-3, "p99<50us", budget_s=20.0)
        assert outcome.rows[outcome.recommended].capacity

    def test_blocks_of_a_busy_host_count_where_requests_arrive(self) -> None:
        """What disturbs them makes requests late. In comparisons, such blocks are repeated."""
        opened = open_simulated(SimulatedExecutor(lambda config: 1e6, contended_share=0.5))
        runner = DeploymentRunner(opened, Deployment())
        blocks, _ = runner.run_at_rate(Deployment(), 100.0, "p90", 1.0)
        assert 0 < sum(block.contended for block in blocks) < len(blocks)
        assert opened.runner.describe_noise(contended=False).n_repeated == 0
        runner.confirm([Deployment()], runner.plan_confirmation([Deployment()], 30.0), lambda done, total: None)
        assert opened.runner.describe_noise(contended=False).n_repeated > 0

    @pytest.mark.parametrize(("rate_per_s", "processes"), [(0.2, 4), (0.05, 1), (0.5, 8), (0.2, 2), (1.0, 1)])
    def test_no_more_requests_arrive_than_a_low_rate_says(self, rate_per_s: float, processes: int) -> None:
        """A block of a process without a request must be rare, since it is left out."""
        runner = DeploymentRunner(open_simulated(SimulatedExecutor(lambda config: 1e6)), Deployment())
        deployment = Deployment(processes=processes)
        blocks, load = runner.run_at_rate(deployment, rate_per_s, "p99")
        window_ns = min(block.wall_ns for block in blocks)
        assert runner.find_rate_time_s(deployment, rate_per_s, "p99") > len(blocks) * window_ns / 1e9
        of_process = load.of_process
        n_requests = sum(len(draw_arrivals(of_process, 0, window_ns, seed)) for seed in range(2000))
        assert n_requests / (2000 * window_ns / 1e9) == pytest.approx(rate_per_s / processes, rel=0.04)

    def test_what_takes_too_long_at_a_low_rate_stays_predicted(self) -> None:
        """Six requests of each process in a block take so long that no measurement fits into the budget."""
        outcome, spent_s = self.plan_slow_calls(400, "p99<60s", rate_per_s=0.1, budget_s=600.0)
        assert spent_s < 660
        assert {row.capacity.source for row in outcome.rows if row.capacity} == {"predicted"}
        assert {row.at_rate.source for row in outcome.rows if row.at_rate} == {"predicted"}

    def test_a_target_that_nothing_keeps(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2))
        outcome = plan_simulated(executor, slo=parse_limit("p99<1ms"), rate_per_s=10.0, budget_s=60.0)
        assert outcome.recommended == 0
        assert outcome.reason == "no deployment was found to meet the target"
        assert outcome.rows[0].replicas is None

    def test_a_budget_that_is_too_small(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2))
        with pytest.raises(UsageError, match="too short to compare deployments") as caught:
            plan_simulated(executor, budget_s=2.0)
        assert caught.value.option == "budget"

    def test_a_deployment_that_fails_where_requests_arrive_is_not_recommended(self) -> None:
        slo = parse_limit("p99<50ms")
        best = choose(plan_with_enough_time()[0])
        assert best.config != DEFAULT
        executor = SimulatedExecutor(
            lambda config: 1,
            latency_under=scale_badly(2),
            fails_at_a_rate=lambda config: config.session_options == best.config.session_options,
        )
        outcome = plan_simulated(executor, slo=slo)
        assert best.key not in {row.deployment.key for row in outcome.rows}
        (failed,) = [screened for screened in outcome.screened if screened.deployment.key == best.key]
        assert "requests arrived at a rate: " in failed.problem and "SIGSEGV" in failed.problem
        assert failed.ratio and failed.ratio > 1
        assert outcome.problem == ""
        # Time is left for others.
        assert choose(outcome).config.session_options != best.config.session_options

    @pytest.mark.parametrize("fails", ["best", "default"])
    def test_a_deployment_that_fails_at_the_requested_rate_is_not_recommended(self, fails: str) -> None:
        """Without a target, no capacity was measured before."""
        works = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2))
        best = choose(plan_simulated(works, rate_per_s=50.0))
        executor = SimulatedExecutor(
            lambda config: 1,
            latency_under=scale_badly(2),
            fails_at_a_rate=lambda config: config == DEFAULT or fails == "best",
        )
        outcome = plan_simulated(executor, rate_per_s=50.0)
        assert (outcome.problem != "") == (fails == "best")
        if fails == "best":
            assert choose(outcome) == Deployment()
            assert best.key in {
                screened.deployment.key for screened in outcome.screened if "arrived at a rate" in screened.problem
            }
        else:
            assert choose(outcome).key == best.key

    def test_a_background_load_that_ends_is_the_reason_why_nothing_is_measured(self) -> None:
        latency = scale_badly(2)

        def end_at_a_rate(config: Config, load: Load) -> float:
            if load.rate_per_s:
                raise BackgroundLoadError("The background load ended: exit status 1.")
            return latency(config, load)

        executor = SimulatedExecutor(lambda config: 1, latency_under=end_at_a_rate)
        outcome = plan_simulated(executor, slo=parse_limit("p99<50ms"), rate_per_s=50.0)
        assert outcome.problem == "The background load ended: exit status 1."
        assert len(outcome.rows) > 1
        assert {row.capacity.source for row in outcome.rows if row.capacity} == {"predicted"}

    @pytest.mark.parametrize(
        ("error", "message", "slo"),
        [
            (OSError(errno.ENOSPC, "No space left", "/tmp/x"), "Cannot write a temporary file /tmp/x: No", "p99<50ms"),
            (HostError("Cannot start a worker."), "Cannot start a worker.", ""),
            (MemoryError(), "There is not enough memory.", ""),
        ],
    )
    def test_what_the_host_lacks_at_the_end_costs_no_plan(self, error: Exception, message: str, slo: str) -> None:
        """The deployments that were confirmed are in it."""
        latency = scale_badly(2)

        def end_at_a_rate(config: Config, load: Load) -> float:
            if load.rate_per_s:
                raise error
            return latency(config, load)

        executor = SimulatedExecutor(lambda config: 1, latency_under=end_at_a_rate)
        outcome = plan_simulated(executor, slo=parse_limit(slo) if slo else None, rate_per_s=50.0)
        assert outcome.problem.startswith(message)
        assert choose(outcome).config != DEFAULT

    def test_a_bug_is_no_problem_of_the_plan(self) -> None:
        latency = scale_badly(2)

        def fail_at_a_rate(config: Config, load: Load) -> float:
            return latency(config, load) / (0 if load.rate_per_s else 1)

        with pytest.raises(ZeroDivisionError):
            plan_simulated(SimulatedExecutor(lambda config: 1, latency_under=fail_at_a_rate), rate_per_s=50.0)

    def test_the_default_that_fails_is_the_reason_why_nothing_else_is_measured(self) -> None:
        executor = SimulatedExecutor(
            lambda config: 1, latency_under=scale_badly(2), fails_at_a_rate=lambda config: config == DEFAULT
        )
        outcome = plan_simulated(executor, slo=parse_limit("p99<50ms"))
        assert "SIGSEGV" in outcome.problem
        assert outcome.rows[0].deployment == Deployment()

    def test_an_interrupt(self) -> None:
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2), interrupt_at=20)
        with pytest.raises(KeyboardInterrupt):
            plan_simulated(executor)
        assert not executor.live
        # In the last stage, the plan is made of what was confirmed.
        complete, n_blocks = plan_with_enough_time()
        executor = SimulatedExecutor(lambda config: 1, latency_under=scale_badly(2), interrupt_at=n_blocks - 3)
        outcome = plan_simulated(executor, slo=parse_limit("p99<50ms"), budget_s=500.0)
        assert outcome.interrupted
        assert len(outcome.rows) > 1
        # What was measured until then counts.
        n_measured = [sum(row.predicted_capacity is not None for row in result.rows) for result in (complete, outcome)]
        assert n_measured == [2, 1]


def test_sides_have_loads_of_their_own() -> None:
    loads: dict[int, set[Load]] = {1: set(), 2: set()}

    def latency(config: Config, load: Load) -> float:
        loads[2 if config == ONE_THREAD else 1].add(load)
        return 1e6

    executor = SimulatedExecutor(lambda config: 1, latency_under=latency)
    two = Load(scenario="multi-client", processes=2)
    sides = [Side(name="default", config=DEFAULT), Side(name="two", config=ONE_THREAD, load=two)]
    run = PairedRun(sides, Load())
    block = BlockPlan(duration_ns=20 * MS, lead_in_ns=0, min_calls=2, deadline_s=9)
    run.measure(
        BlockRunner(executor, np.random.default_rng(0)), RunPlan(block=block, launches=2, rounds=2), end_s=math.inf
    )
    assert loads == {1: {Load()}, 2: {two}}
    assert run.load_of(0) == Load()
    assert run.load_of(1) == run.in_one_regime().load_of(1) == two


class TestPredictions:
    @pytest.mark.parametrize("clients", [1, 4])
    def test_constant_calls(self, clients: int) -> None:
        deployment = Deployment(clients=clients)
        samples = np.full(100, 10 * MS)
        slo = parse_limit("p99<50ms")
        known = find_known_capacity(ConstantQueue, clients, 0.99, 5.0)
        assert estimate_utilization(deployment, samples, slo) == pytest.approx(known, rel=0.1)
        predicted = predict_capacity(deployment, samples, slo, seed=0)
        assert predicted.estimate == pytest.approx(known * clients * 100, rel=0.03)

    def test_processes_have_queues_of_their_own(self) -> None:
        samples = np.full(100, 10 * MS)
        slo = parse_limit("p99<50ms")
        one = predict_capacity(Deployment(), samples, slo, seed=0).estimate
        two = predict_capacity(Deployment(processes=2), samples, slo, seed=0).estimate
        assert two == pytest.approx(2 * one, rel=0.03)

    def test_the_interval_covers_how_launches_differ(self) -> None:
        """The few long calls decide on p99, and some launches have more of them."""
        slo, rng = parse_limit("p99<50ms"), np.random.default_rng(0)
        deployment = Deployment()

        def make_launches(shares: Sequence[float]) -> list[NDArray[np.int64]]:
            return [np.where(rng.random(2000) < share, 40 * MS, 10 * MS) for share in shares]

        alike = find_launch_error(deployment, make_launches([0.01] * 6), slo)
        different = find_launch_error(deployment, make_launches([0.0, 0.0, 0.04, 0.0, 0.03, 0.0]), slo)
        assert alike < 0.15 < 0.3 < different
        assert find_launch_error(deployment, make_launches([0.01]), slo) == math.inf
        assert find_launch_error(deployment, [np.full(100, 10 * MS)] * 3, slo) == pytest.approx(0)
        # Whether the target can be kept at all depends on the launch.
        some = [np.full(100, 10 * MS), np.full(100, 10 * MS), np.full(100, 60 * MS)]
        assert find_launch_error(deployment, some, parse_limit("p50<12ms")) == math.inf
        estimate = predict_capacity(deployment, np.concatenate(some), parse_limit("p99<90ms"), seed=0, error=math.inf)
        assert (estimate.low, estimate.high) == (0, None)

    def test_calls_that_take_too_long(self) -> None:
        samples = np.full(100, 60 * MS)
        assert estimate_utilization(Deployment(), samples, parse_limit("p99<50ms")) == 0
        assert predict_capacity(Deployment(), samples, parse_limit("p99<50ms"), seed=0).estimate == 0


def make_example() -> Plan:
    capacity = make_estimate(90.0)
    return Plan(
        rows=(
            make_row(Deployment(), 139, capacity=make_estimate(70.0, source="predicted")),
            make_row(
                Deployment(processes=2, config=ONE_THREAD),
                246,
                ratio=make_estimate(1.77),
                capacity=capacity,
                predicted_capacity=make_estimate(95.0, source="predicted"),
                is_proven=True,
                replicas=3,
                at_rate=AtRate(rate_per_s=200 / 3, p50_ns=8e6, p99_ns=31e6, utilization=0.54, source="predicted"),
                price_of_million=0.71,
            ),
            make_row(Deployment(clients=2, config=ONE_THREAD), 240, ratio=make_estimate(1.7), capacity=capacity),
        ),
        recommended=1,
        reason="it increases the throughput",
        best={"throughput": 1, "memory": 0, "cpu": 1},
        slo=parse_limit("p99<50ms"),
        rate_per_s=200.0,
        headroom=0.2,
        price_per_hour=0.17,
        budget_s=60,
        spent_s=59.5,
        started="2026-11-22T10:00:00+00:00",
        workload=Workload(load=Load(), objectives=("throughput",), n_samples=1, inputs={}, tolerance=Tolerance()),
        model=ModelIdentity(path="model.onnx", digest="sha256:0", files=()),
        host=HostClass.of(make_host(2)),
        runtime=RUNTIME,
        noise=open_simulated(SimulatedExecutor(lambda config: 1e6)).runner.describe_noise(contended=False),
    )


AT_RATE = {"rate_per_s": 10.0, "p50_ns": 1.0, "p99_ns": 2.0, "utilization": 0.5, "source": "predicted"}


class TestWarnings:
    def test_a_failure_is_the_reason(self) -> None:
        plan = make_example()
        predicted = make_estimate(190.0, source="predicted")
        rows = (plan.rows[0], msgspec.structs.replace(plan.rows[1], capacity=predicted), plan.rows[2])
        (budget,) = find_warnings(msgspec.structs.replace(plan, rows=rows))
        assert "The budget was too small" in budget
        (failed,) = find_warnings(msgspec.structs.replace(plan, rows=rows, problem="It ended (exit): killed."))
        assert failed.startswith(
            "The measurement with arriving requests failed: It ended (exit): killed. Figures that were"
        )

    def test_a_rate_that_keeps_callers_busy(self) -> None:
        plan = make_example()
        assert not find_warnings(plan)
        rows = (plan.rows[0], msgspec.structs.replace(plan.rows[1], at_rate=None), plan.rows[2])
        (found,) = find_warnings(msgspec.structs.replace(plan, rows=rows))
        assert "busy almost all the time" in found


@pytest.mark.parametrize(("replicas", "why"), [(3, "needs no more replicas"), (None, "needs no more memory")])
def test_why_the_default_is_recommended_although_others_take_more(replicas: int | None, why: str) -> None:
    rows = [make_row(Deployment(), 139, replicas=replicas), make_row(Deployment(clients=2), 140, is_proven=True)]
    assert why in explain_choice(rows, 0, has_target=False)


class TestMemoryNeeds:
    def test_one_size(self) -> None:
        needs = MemoryNeeds(limit_bytes=1000)
        needs.add(Deployment(processes=2), 200)
        assert needs.predict(Deployment()) == 100
        assert needs.predict(Deployment(processes=3, clients=2)) == 600
        assert needs.fit([Deployment(processes=10)])
        assert not needs.fit([Deployment(processes=10), Deployment()])

    def test_two_sizes(self) -> None:
        needs = MemoryNeeds(limit_bytes=1000)
        for n_items, peak_bytes in ((1, 100), (4, 160)):
            needs.add(Deployment(config=Config(batch=n_items)), peak_bytes)
        assert needs.predict(Deployment(clients=2)) == 160
        assert needs.predict(Deployment(clients=2, config=Config(batch=4))) == 240

    def test_a_larger_size_that_took_less(self) -> None:
        needs = MemoryNeeds(limit_bytes=1000)
        for n_items, peak_bytes in ((1, 100), (2, 90)):
            needs.add(Deployment(clients=n_items), peak_bytes)
        assert needs.predict(Deployment(clients=2)) == 100
        assert needs.predict(Deployment(clients=8)) == 100

    def test_nothing_is_known(self) -> None:
        assert MemoryNeeds(limit_bytes=1000).fit([Deployment(processes=64)])
        needs = MemoryNeeds(limit_bytes=None, most_processes=2)
        assert needs.fit([Deployment(processes=2)])
        assert not needs.fit([Deployment(processes=2), Deployment()])


class TestChoice:
    def test_fewest_replicas_first(self) -> None:
        rows = [
            make_row(Deployment(), 100, replicas=3),
            make_row(Deployment(processes=2), 150, replicas=2, is_proven=True),
            make_row(Deployment(processes=4), 160, replicas=2, is_proven=True),
            make_row(Deployment(processes=8), 900, replicas=1),
        ]
        assert rank_rows(rows) == [2, 1, 0]

    def test_what_was_measured_is_not_displaced_by_what_the_same_model_predicts(self) -> None:
        """Its prediction was too high by a third."""
        predicted = Estimate(estimate=150, low=140, high=160, confidence=0.95, source="predicted")
        measured = msgspec.structs.replace(predicted, estimate=100, low=95, high=105, source="measured")
        for per_s, expected in ((140, 1), (160, 2)):
            rows = [
                make_row(Deployment(), 50),
                make_row(Deployment(processes=2), 100, is_proven=True),
                make_row(Deployment(processes=4), per_s, is_proven=True),
            ]
            rows[0] = msgspec.structs.replace(rows[0], capacity=msgspec.structs.replace(predicted, estimate=50, low=45))
            rows[1] = msgspec.structs.replace(rows[1], capacity=measured, predicted_capacity=predicted)
            rows[2] = msgspec.structs.replace(rows[2], capacity=msgspec.structs.replace(predicted, estimate=per_s))
            assert rank_rows(rows)[0] == 2
            corrected = correct_predictions(rows)
            assert rank_rows(corrected)[0] == expected
            assert corrected[0] == rows[0]
        # A capacity of 0 says only that it is below the lowest rate that was measured.
        none = msgspec.structs.replace(predicted, estimate=0, low=0, source="measured")
        rows[0] = msgspec.structs.replace(rows[0], capacity=none, predicted_capacity=predicted)
        rows[1] = msgspec.structs.replace(rows[1], predicted_capacity=None)
        assert correct_predictions(rows) == rows

    def test_the_least_memory_of_equal_ones(self) -> None:
        rows = [
            make_row(Deployment(), 100),
            make_row(Deployment(processes=8), 201, is_proven=True),
            make_row(Deployment(clients=8), 200, is_proven=True),
        ]
        assert rank_rows(rows)[0] == 2


class TestProof:
    """With a target, the capacity counts: whether it is measured, and whether predictions are supported."""

    def is_proven(self, own: Estimate, default: Estimate, ratio: Estimate | None = None) -> bool:
        rows = [
            make_row(Deployment(), 100, capacity=default),
            make_row(Deployment(processes=2), 150, capacity=own, ratio=ratio, is_proven=True),
        ]
        return mark_proven(rows)[1].is_proven

    def test_both_are_measured(self) -> None:
        assert self.is_proven(make_estimate(100), make_estimate(70))
        assert not self.is_proven(make_estimate(100), make_estimate(95))
        assert self.is_proven(make_estimate(100), make_estimate(0, low=0.0, high=20.0))
        assert not self.is_proven(make_estimate(100), make_estimate(0, low=0.0, high=97.0))
        assert not self.is_proven(make_estimate(100, low=0.0), make_estimate(0, low=0.0, high=1.0))

    def test_nothing_is_known_of_the_default(self) -> None:
        unknown = make_estimate(0, low=0.0, high=None)
        assert not self.is_proven(make_estimate(100), unknown)
        predicted = make_estimate(100, source="predicted")
        assert not self.is_proven(predicted, unknown)
        ratio = make_estimate(1.5)
        assert not self.is_proven(predicted, make_estimate(0, low=0.0, high=120.0), ratio)

    def test_a_target_that_is_kept_at_any_rate(self) -> None:
        """The throughput of the default, of 100, bounds its capacity."""
        assert self.is_proven(make_estimate(150), make_estimate(97, high=None))
        assert not self.is_proven(make_estimate(105), make_estimate(97, high=None))

    @pytest.mark.parametrize("source", ["measured", "predicted"])
    def test_predictions_need_a_proven_throughput(self, source: str) -> None:
        own, default = make_estimate(100, source=source), make_estimate(70, source="predicted")
        assert self.is_proven(own, default, make_estimate(1.4))
        assert not self.is_proven(own, default, make_estimate(1.4, low=0.9))
        assert not self.is_proven(own, default)
        assert not self.is_proven(make_estimate(70, source=source), default, make_estimate(1.4))

    def test_a_default_that_is_predicted_to_keep_no_target(self) -> None:
        """Seen on a busy host: a prediction of 3.1/s [1.0, 9.7], with a throughput of 1.63x [0.53, 5.05]."""
        own = make_estimate(3.1, low=1.0, high=9.7, source="predicted")
        default = make_estimate(0.0, low=0.0, high=0.2, source="predicted")
        assert not self.is_proven(own, default, make_estimate(1.63, low=0.53, high=5.05))
        assert self.is_proven(own, default, make_estimate(1.63))

    def test_predictions_are_named(self) -> None:
        rows = [
            make_row(Deployment(), 100, capacity=make_estimate(70)),
            make_row(Deployment(processes=2), 150, capacity=make_estimate(105), is_proven=True),
        ]
        measured = explain_choice(rows, 1, has_target=True)
        assert measured == "it increases the rate within the target to 1.50 times that of the default deployment"
        rows[0] = msgspec.structs.replace(rows[0], capacity=make_estimate(70, source="predicted"))
        assert explain_choice(rows, 1, has_target=True) == f"{measured}, as predicted from the durations of calls"


class TestDocument:
    def test_round_trip(self, tmp_path: Path) -> None:
        plan = make_example()
        path = tmp_path / "plan.json"
        path.write_bytes(encode_plan(plan))
        assert ortune.read_plan(path) == plan
        assert json.loads(path.read_text())["schema"] == PLAN_SCHEMA
        assert plan.choice.deployment.processes == 2

    def test_batching(self) -> None:
        batching = Batching(max_batch=8, max_delay_us=2500)
        plain, batched = Deployment(clients=2), Deployment(clients=2, batching=batching)
        assert batched.title == "1 process · 2 callers · up to 8 in a batch, delay 2.5 ms · default"
        assert len({plain.key, batched.key, Deployment(clients=2, batching=Batching(max_batch=8)).key}) == 3
        plan = make_example()
        plan = msgspec.structs.replace(plan, rows=(msgspec.structs.replace(plan.rows[0], deployment=batched),) * 2)
        assert decode_plan(encode_plan(plan)) == plan
        with pytest.raises(ValueError, match="are not put together"):
            Deployment(batching=batching, config=Config(batch=2))

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (
                ("schema",),
                PLAN_SCHEMA + 1,
                f"has schema {PLAN_SCHEMA + 1}, and this version of ortune reads schema {PLAN_SCHEMA}",
            ),
            (("schema",), 0, "plan.json has schema 0, and this"),
            (("schema",), None, "has no number as its schema"),
            (("recommended",), 3, "names others"),
            (("recommended",), -1, "names others"),
            (("best", "memory"), 7, "names others"),
            (("command",), "rm -rf /", "unknown field `command`"),
            (("rows",), [], "names others"),
            (("rows", 1, "deployment", "processes"), 1_000_000, "processes"),
            (("rows", 1, "deployment", "processes"), 0, "processes"),
            (("rows", 1, "deployment", "batching"), {"max_batch": 1}, "there must be 2 to"),
            (("rows", 1, "deployment", "batching"), {"max_batch": 10**9}, "there must be 2 to"),
            (("rows", 1, "deployment", "batching"), {"max_batch": 2, "max_delay_us": -1}, "from 0 to"),
            (("rows", 1, "deployment", "batching"), {"max_batch": 2, "max_delay_us": 1.5}, "Expected `int`"),
            (("rows", 1, "deployment", "batching"), {"max_batch": 2, "command": "ls"}, "unknown field"),
            (("rows", 1, "throughput", "estimate"), -1, "must be finite"),
            (("rows", 1, "at_rate"), {**AT_RATE, "rate_per_s": 0}, "the rate must be positive"),
            (("rows", 1, "at_rate"), {**AT_RATE, "utilization": -1}, "must be finite"),
            (("rows", 1, "predicted_at_rate"), {**AT_RATE, "p99_low_ns": -1}, "must be finite"),
            (("rows", 1, "deployment", "config", "session_options"), {"optimized_model_filepath": "/tmp/x"}, "not set"),
            (("rows", 1, "deployment", "config", "session_options"), {"\x1b[31mx": "y"}, "must not set"),
            (("rows", 1, "deployment", "config", "session_options"), {THREADS: -5}, "must not set"),
        ],
    )
    def test_hostile_documents(self, place: tuple[Any, ...], value: Any, message: str) -> None:
        document = json.loads(encode_plan(make_example()))
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with pytest.raises(RecordError, match=message) as caught:
            decode_plan(json.dumps(document).encode(), "plan.json")
        assert "\x1b" not in str(caught.value)

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"schema": true}', b"null"])
    def test_other_files(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        path.write_bytes(data)
        with pytest.raises(RecordError, match="is not a plan"):
            read_plan(path)

    def test_missing_and_large_files(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="There is no file"):
            read_plan(tmp_path / "none.json")
        large = tmp_path / "large.json"
        large.write_bytes(b" " * (5 << 20))
        with pytest.raises(RecordError, match="more than"):
            read_plan(large)


@pytest.mark.parametrize("width", [45, 80, 200])
def test_the_output_fits(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    show_plan(console, make_example(), Path("plan.json"))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "recommended: 2 processes · intra threads=1" in words
    assert "least memory" in words
    assert "never" not in words


@pytest.mark.parametrize(
    ("source", "high", "shown"),
    [("measured", 27.0, "< 27.0/s"), ("measured", None, "unknown"), ("predicted", 5.0, "~0/s [0, 5.00]")],
)
def test_a_capacity_of_zero(source: Literal["measured", "predicted"], high: float | None, shown: str) -> None:
    """Only rates that were measured are known to be too high."""
    assert format_capacity(Estimate(estimate=0, low=0, high=high, confidence=0.95, source=source)) == shown


@pytest.mark.parametrize(("target", "warns"), [("p99<50ms", True), ("p99<4ms", False)])
def test_a_larger_budget_is_advised_only_if_it_may_help(target: str, warns: bool) -> None:
    """Calls alone take 5 ms."""
    row = make_row(Deployment(), 100, capacity=make_estimate(0, low=0.0, high=27.0))
    plan = msgspec.structs.replace(
        make_example(), rows=(row,), recommended=0, best=dict.fromkeys(make_example().best, 0), slo=parse_limit(target)
    )
    assert any("larger --budget" in text for text in find_warnings(plan)) == warns


def show_latency(found: AtRate | None, **changes: Any) -> str:
    """Return what is printed of the latency of a recommended deployment, where a p99 of 30 ms had been predicted."""
    plan = msgspec.structs.replace(make_example(), **changes)
    predicted = AtRate(rate_per_s=66.0, p50_ns=9e6, p99_ns=30e6, utilization=0.5, source="predicted")
    rows = list(plan.rows)
    rows[1] = msgspec.structs.replace(rows[1], at_rate=found, predicted_at_rate=predicted)
    console = Console(width=200, record=True, file=io.StringIO())
    show_plan(console, msgspec.structs.replace(plan, rows=tuple(rows)), None)
    return " ".join(console.export_text().split())


def test_the_latency_at_the_requested_rate_is_compared_with_the_prediction() -> None:
    measured = AtRate(
        rate_per_s=66.0, p50_ns=9e6, p99_ns=40e6, p99_low_ns=35e6, p99_high_ns=45e6, utilization=0.5, source="measured"
    )
    text = show_latency(measured)
    assert "40.0 ms [35.0 ms, 45.0 ms]" in text
    assert "p99 at 66.0/s: 40.0 ms measured, 30.0 ms predicted." in text
    assert "Capacity: 90.0/s measured, 95.0/s predicted." in text
    assert "headroom" not in text
    slower = msgspec.structs.replace(measured, p99_ns=60e6, p99_low_ns=51e6, p99_high_ns=None)
    text = show_latency(slower)
    assert "60.0 ms [51.0 ms, ]" in text
    assert "At the required rate, p99<50ms was not met. Use a larger --headroom." in text
    assert "arrived faster than they were served" in show_latency(None)


def test_a_rate_that_no_number_of_hosts_can_take() -> None:
    row = add_cost(make_row(Deployment(), 1.0), 1e12, 0.2, 0.17)
    assert row.replicas is None
    assert row.price_of_million is None


def test_the_latency_at_the_requested_rate_is_that_of_the_target() -> None:
    measured = AtRate(
        rate_per_s=66.0,
        p50_ns=9e6,
        p99_ns=90e6,
        p99_low_ns=80e6,
        target=Estimate(estimate=20e6, low=18e6, high=23e6, confidence=0.95, source="measured"),
        utilization=0.5,
        source="measured",
    )
    text = show_latency(measured, slo=parse_limit("p90<25ms"))
    assert "p90 at rate" in text
    assert "20.0 ms [18.0 ms, 23.0 ms]" in text
    assert "p90 at 66.0/s: 20.0 ms measured" in text
    assert "was not met" not in text
    assert "At the required rate, p90<15ms was not met." in show_latency(measured, slo=parse_limit("p90<15ms"))


def test_large_prices_have_no_exponent() -> None:
    plan = make_example()
    rows = [msgspec.structs.replace(row, price_of_million=1574.3) for row in plan.rows]
    console = Console(width=200, record=True, file=io.StringIO())
    show_plan(console, msgspec.structs.replace(plan, rows=tuple(rows)), None)
    text = console.export_text()
    assert " 1574" in text and "e+0" not in text


def test_the_cpus_of_each_process_are_shown() -> None:
    placement = place_processes(make_host(8, n_nodes=2), 2, threads=4)
    row = make_row(Deployment(processes=2, placement=placement), 246, ratio=make_estimate(1.77), is_proven=True)
    example = make_example()
    console = Console(width=100, record=True, file=io.StringIO())
    show_plan(console, msgspec.structs.replace(example, rows=(example.rows[0], row, example.rows[2])), None)
    text = " ".join(console.export_text().split())
    assert "recommended: 2 processes · pinned apart within nodes" in text
    assert "CPUs of each process: 0-3; 4-7" in text


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"slo": "p99<1.3x"}, "must be a latency in units of time"),
            ({"slo": "memory<1GB"}, "must be a latency"),
            ({"slo": "cpu<5ms"}, "must be a latency"),
            ({"slo": ["p99<1ms", "p50<1ms"]}, "one target"),
            ({"slo": "fast"}, "is not a limit"),
            ({"headroom": "100%"}, "at most 99%"),
            ({"headroom": "99.99999%"}, "at most 99%"),
            ({"headroom": "much"}, "must be a number"),
            ({"processes": "0,1"}, "from 1 to 64"),
            ({"processes": "a"}, "whole number"),
            ({"price": "cheap"}, "must be a number"),
            ({"rate": "-3"}, "not a rate"),
            ({"provider": "cpu,cuda"}, "for one execution provider"),
        ],
    )
    def test_what_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            make_request(PlanRequest, {"model": "m.onnx", **options})

    def test_what_is_understood(self) -> None:
        given = {"slo": "p99<50ms", "headroom": "30%", "processes": "4,1", "price": "0.17/h", "rate": "120/min"}
        request = make_request(PlanRequest, {"model": "m.onnx", **given})
        assert request.slo == parse_limit("p99<50ms")
        assert (request.headroom, request.processes, request.price, request.rate) == (0.3, (1, 4), 0.17, 2.0)

    @pytest.mark.usefixtures("models_read_here")
    def test_a_knob_without_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: dict[str, Any] = {"model": str(TINY_CNN), "only": "enable_mem_pattern"}
        with pytest.raises(UsageError, match="the plan would try no values of this knob") as caught:
            prepare_plan(make_request(PlanRequest, given))
        assert caught.value.option == "only"
        monkeypatch.setattr("ortune.planning.prepare.find_installed_version", lambda: "1.15.0")
        given = {"model": str(TINY_CNN), "tune": {"session.intra_op.spin_duration_us": "100"}}
        with pytest.raises(UsageError, match=r"onnxruntime 1\.15\.0 does not support this knob"):
            prepare_plan(make_request(PlanRequest, given))

    def test_too_many_processes_for_the_host(self, tmp_path: Path) -> None:
        done = run_ortune("plan", TINY_CNN, "--processes", 64, cwd=tmp_path)
        if done.returncode == 0:  # pragma: no cover
            pytest.skip("this host has many CPUs")
        assert done.returncode == 2
        assert "--processes 64: more than 4 processes" in " ".join(done.stderr.split())

    @pytest.mark.long
    def test_a_target_that_cannot_be_met(self, tmp_path: Path) -> None:
        done = run_ortune(
            "plan", TINY_CNN, "--slo", "p99<1us", "--budget", "30s", "-o", "plan.json", cwd=tmp_path, simulate=True
        )
        assert done.returncode == 1, done.stderr
        output = " ".join(done.stdout.split())
        assert "recommended: none No deployment was found to meet the target" in output
        assert not read_plan(tmp_path / "plan.json").meets_target

    @pytest.mark.parametrize("columns", [45, *long_params(100)])
    @pytest.mark.long
    def test_a_plan_on_a_simulated_host(self, tmp_path: Path, columns: int) -> None:
        done = run_ortune(
            "plan", TINY_CNN, "--slo", "p99<4ms", "--rate", "100/s", "--price", "0.2/h", "--budget", "60s",
            "-o", "plan.json", cwd=tmp_path, columns=columns, simulate=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        plan = read_plan(tmp_path / "plan.json")
        assert plan.rate_per_s == 100
        assert plan.recommended > 0
        assert f"recommended: {plan.choice.deployment.title}" in " ".join(done.stdout.split())
        assert max(map(len, done.stdout.splitlines())) <= columns

    def test_json_on_stdout(self, tmp_path: Path) -> None:
        done = run_ortune("plan", TINY_CNN, "--json", "--quiet", "--budget", "30s", cwd=tmp_path, simulate=True)
        assert done.returncode == 0, done.stderr
        assert decode_plan(done.stdout.encode()).rows
        assert done.stderr == ""


@pytest.mark.long
def test_a_real_model_in_two_processes(tmp_path: Path) -> None:
    """Both processes run, and their memory and throughput add up."""
    stages = []
    plan = ortune.plan(
        TINY_CNN,
        processes=[1, 2],
        only=[THREADS],
        output=tmp_path / "plan.json",
        budget=scale_budget(20),
        progress=lambda stage, done, total: stages.append(stage),
    )
    assert read_plan(tmp_path / "plan.json") == plan
    assert {"screening", "confirmation"} == set(stages)
    assert plan.rows[0].deployment == Deployment()
    both = [row for row in plan.rows if row.deployment.processes == 2]
    assert both
    assert all(row.memory_bytes > 1.5 * plan.rows[0].memory_bytes for row in both)
    assert all(not screened.problem for screened in plan.screened)
