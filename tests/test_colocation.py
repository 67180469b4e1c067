"""Several models on one host: how they share its cores, on simulated hosts, and a joint run of real workers."""

from __future__ import annotations

import errno
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

import ortune
from ortune import (
    Config,
    Deployment,
    HostError,
    HostPlan,
    InputsError,
    Load,
    MeasureError,
    RecordError,
    Tolerance,
    UsageError,
    Workload,
    read_host_plan,
    read_plan,
)
from ortune.cli.plan_several import NAME, find_models, route_several
from ortune.console.host_plan import show_host_plan
from ortune.console.widgets import format_cpus
from ortune.host import Host, HostClass, ProcessPlacement, Quota
from ortune.host.placement import pack_processes
from ortune.knobs import DEFAULT
from ortune.measure.block_runner import BlockRunner
from ortune.measure.interval import Interval
from ortune.measure.judge import TargetVerdict
from ortune.model import InputInfo
from ortune.model.identity import ModelIdentity
from ortune.options import make_request
from ortune.planning.capacity import make_rate_model
from ortune.planning.colocation import measured_scale, measuring, run
from ortune.planning.colocation.choose import choose_sharing, correct_predictions
from ortune.planning.colocation.files import decode_host_plan
from ortune.planning.colocation.predict import Predictor
from ortune.planning.colocation.prepare import (
    HostPlanOptions,
    PreparedHostPlan,
    assign_targets,
    choose_inputs,
    name_models,
)
from ortune.planning.colocation.result import (
    HOST_PLAN_SCHEMA,
    ModelResult,
    PlannedModel,
    PlannedSharing,
    RejectedSharing,
)
from ortune.planning.colocation.run import ColocationOutcome, judge, run_stages
from ortune.planning.colocation.scale_models import find_core_queue, make_scale_models
from ortune.planning.colocation.search import SharingSearch
from ortune.planning.colocation.sharing import Demand, Kind, Sharing
from ortune.planning.colocation.timings import ModelTimings, Size, Timing, divide_cores, list_first_sizes
from ortune.planning.files import encode_plan
from ortune.planning.result import DOES_NOT_FIT, Estimate
from ortune.planning.space import make_deployment_space
from ortune.queueing.queue_model import Queue
from ortune.queueing.rate_model import RateModel
from ortune.queueing.services import make_services, resample
from ortune.queueing.shared_cores import SharedService, simulate_shared_cores
from ortune.queueing.simulation import simulate
from ortune.requests import HostPlanRequest
from ortune.worker import Block, BlockPlan, Failure, Memory, SessionInfo
from ortune.worker.colocated import ColocatedBlock, find_workers, join_blocks
from ortune.workload import InputOptions, parse_limit
from tests.conftest import TINY_CNN, TINY_ENCODER, long_params, run_ortune
from tests.simulated import RUNTIME, SimulatedExecutor, SimulatedLive, make_host, make_model

MS = 1_000_000
THREADS = "intra_op_num_threads"
SPINNING = "session.intra_op.allow_spinning"
MEGABYTE = 1_000_000


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulated model behaves.

    Attributes:
        call_ms: Duration of a call with one thread.
        serial: Part of it that more threads do not shorten.
        spin: How much slower calls are in processes that share cores while their threads spin.
        bytes: Memory of a process.
    """

    call_ms: float
    serial: float = 1.0
    spin: float = 1.0
    bytes: int = 50 * MEGABYTE

    def find_service_ns(self, threads: int) -> float:
        return self.call_ms * MS * (self.serial + (1 - self.serial) / threads)


class SimulatedHost:
    """A host without processes, whose models compete for cores as in the simulation of shared cores."""

    def __init__(
        self, behaviors: Sequence[Behavior], host: Host, *, fails: Sequence[Kind] = (), ends_once: bool = False
    ):
        self.behaviors = behaviors
        self.n_cores = len(host.usable_cores)
        self.executor = SimulatedExecutor(lambda config: 1e6)
        self.runner = BlockRunner(self.executor, np.random.default_rng(0))
        self.launch_s = 0.2
        self.fails = fails
        self.ends_once = ends_once
        self.launched: list[Sharing] = []
        self.alone: list[tuple[int, Deployment]] = []
        self.live: set[int] = set()
        self.most_live = 0

    def measure_alone(self, number: int, deployments: Sequence[Deployment]) -> list[Timing | None]:
        self.executor.time_s += 0.5 * len(deployments)
        self.alone += [(number, deployment) for deployment in deployments]
        return [self.time_alone(number, deployment) for deployment in deployments]

    def time_alone(self, number: int, deployment: Deployment) -> Timing:
        behavior = self.behaviors[number]
        threads = deployment.n_threads or self.n_cores
        service_ns = behavior.find_service_ns(threads)
        slow = max(deployment.processes * threads / self.n_cores, 1.0)
        return Timing(
            samples_ns=np.full(20, int(service_ns * slow)),
            cpu_ns_per_call=service_ns * threads,
            peak_bytes=behavior.bytes * deployment.processes,
        )

    def launch(self, sharing: Sharing, loads: Sequence[Load]) -> SimulatedSharing | Failure:
        self.executor.time_s += 0.3
        self.launched.append(sharing)
        if sharing.kind in self.fails:
            return Failure(kind="exception", stage="load", message="broken")
        number = len(self.launched)
        self.live.add(number)
        self.most_live = max(self.most_live, len(self.live))
        return SimulatedSharing(self, sharing, loads, number)


class SimulatedSharing:
    """A sharing on a simulated host, the number of whose launch stands for its processes."""

    def __init__(self, host: SimulatedHost, sharing: Sharing, loads: Sequence[Load], number: int) -> None:
        self.host = host
        self.number = number
        self.sharing = sharing
        self.loads = tuple(loads)
        self.config = sharing.deployments[0].config
        self.session_info = SessionInfo(load_ns=1, providers=("CPUExecutionProvider",))

    def close(self) -> None:
        self.host.live.discard(self.number)

    def measure(self, plan: BlockPlan) -> ColocatedBlock | Failure:
        host = self.host
        if host.ends_once or self.number not in host.live:
            host.ends_once = False
            return Failure(kind="exit", stage="measure", message="killed")
        host.executor.time_s += plan.duration_ns / 1e9
        services = []
        for behavior, deployment, load in zip(host.behaviors, self.sharing.deployments, self.loads, strict=True):
            threads = deployment.n_threads or host.n_cores
            spins = threads > 1 and SPINNING not in deployment.config.session_config and not deployment.placement
            service_ns = behavior.find_service_ns(threads) * (behavior.spin if spins else 1)
            services.append(
                SharedService(
                    rate_per_s=load.rate_per_s or 1.0,
                    services=resample([service_ns]),
                    cores_per_call=float(threads),
                    processes=deployment.processes,
                    clients=deployment.clients,
                )
            )
        found = simulate_shared_cores(services, host.n_cores, n_requests=200, most_requests=1500, seed=plan.seed)
        parts = []
        for behavior, deployment, result, service in zip(
            host.behaviors, self.sharing.deployments, found, services, strict=True
        ):
            n_servers = service.processes * service.clients
            parts.append(
                make_block(
                    result.latencies_ns.astype(np.int64),
                    plan.duration_ns,
                    service_ns=result.utilization * n_servers / service.rate_per_s * 1e9,
                    rate_per_s=service.rate_per_s,
                    cpu_ns=service.rate_per_s * plan.duration_ns / 1e9 * service.services.mean_ns,
                    n_bytes=behavior.bytes * deployment.processes,
                )
            )
        return join_blocks(parts)


def make_block(
    samples_ns: Any, wall_ns: int, *, service_ns: float, rate_per_s: float, cpu_ns: float, n_bytes: int
) -> Block:
    return Block(
        samples_ns=samples_ns,
        n_calls=rate_per_s * wall_ns / 1e9,
        wall_ns=wall_ns,
        service_ns=service_ns,
        cpu_ns=int(cpu_ns),
        memory=Memory(steady_bytes=n_bytes, peak_bytes=n_bytes),
        foreign_share=0.0,
        contended=False,
    )


def plan_simulated(
    behaviors: Sequence[Behavior],
    demands: Sequence[tuple[float, str]],
    n_cores: int = 4,
    *,
    free_bytes: int | None = 8_000 * MEGABYTE,
    fails: Sequence[Kind] = (),
    ends_once: bool = False,
    n_nodes: int = 1,
    observe: Callable[[SimulatedHost, str, int], None] = lambda host, stage, done: None,
    **options: Any,
) -> tuple[ColocationOutcome, SimulatedHost]:
    host = make_host(n_cores, n_nodes=n_nodes)
    shared = SimulatedHost(behaviors, host, fails=fails, ends_once=ends_once)
    prepared = PreparedHostPlan(
        setups=(),
        spaces=tuple(make_deployment_space(host, DEFAULT) for _ in behaviors),
        demands=tuple(
            Demand(name=f"m{number}", rate_per_s=rate, slo=parse_limit(slo) if slo else None)
            for number, (rate, slo) in enumerate(demands)
        ),
        options=HostPlanOptions(**options),
    )
    outcome = run_stages(
        prepared,
        shared,
        free_bytes,
        shared.runner.now_s(),
        lambda stage, done, total: observe(shared, stage, done),
    )
    assert not shared.live
    return outcome, shared


def find_row(outcome: ColocationOutcome, kind: Kind) -> PlannedSharing:
    return next(row for row in outcome.rows if row.kind == kind)


class TestSharedCores:
    """The simulation of several services on the cores of one host."""

    def test_alone_it_is_a_queue(self) -> None:
        services = make_services(10 * MS, "exponential")
        service = SharedService(rate_per_s=140, services=services, cores_per_call=1.0, processes=2, clients=1)
        (found,) = simulate_shared_cores([service], 8, n_requests=60_000, most_requests=60_000)
        expected = (
            simulate(Queue(services=services, processes=2, dispatch="random"), 140, seed=1).percentile(50).estimate
        )
        assert np.median(found.latencies_ns) == pytest.approx(expected, rel=0.05)
        assert found.utilization == pytest.approx(0.7, rel=0.03)

    def test_a_shared_core_is_processor_sharing(self) -> None:
        """An M/D/1 queue with processor sharing has the mean s / (1 - u), whatever the distribution is."""
        services = [
            SharedService(rate_per_s=20, services=make_services(10 * MS), cores_per_call=1.0, processes=1, clients=200)
            for _ in range(3)
        ]
        found = simulate_shared_cores(services, 1, n_requests=20_000, most_requests=60_000)
        for result in found:
            assert result.latencies_ns.mean() == pytest.approx(10 * MS / (1 - 0.6), rel=0.05)

    def test_enough_cores_are_no_competition(self) -> None:
        services = [
            SharedService(rate_per_s=10, services=make_services(10 * MS), cores_per_call=2.0, processes=1, clients=1)
        ] * 2
        for result in simulate_shared_cores(services, 4, n_requests=100):
            assert result.latencies_ns.min() == pytest.approx(10 * MS)


class TestScaleModels:
    """What is expected of each model at a scale."""

    @staticmethod
    def make_timing(call_ms: float) -> Timing:
        rng = np.random.default_rng(0)
        samples_ns = (call_ms * MS * np.exp(rng.normal(0, 0.1, 300))).astype(np.int64)
        return Timing(samples_ns=samples_ns, cpu_ns_per_call=call_ms * MS, peak_bytes=1)

    def make_models(
        self, kind: Kind, targets: Sequence[str], n_cores: int, rates: Sequence[float] = (100, 10)
    ) -> list[RateModel]:
        demands = tuple(
            Demand(name=f"m{number}", rate_per_s=rate, slo=parse_limit(target) if target else None)
            for number, (rate, target) in enumerate(zip(rates, targets, strict=True))
        )
        sharing = Sharing(kind=kind, deployments=(Deployment(clients=2), Deployment()))
        timings = [self.make_timing(8), self.make_timing(30)]
        return make_scale_models(Predictor(demands=demands, n_cores=n_cores), sharing, timings)

    @pytest.mark.parametrize("kind", ["divided", "unpinned"])
    def test_with_enough_cores_a_model_is_a_queue(self, kind: Kind) -> None:
        targets, deployments = ["p90<24ms", "p90<90ms"], [Deployment(clients=2), Deployment()]
        models = self.make_models(kind, targets, 16)
        for model, deployment, target, rate, call_ms in zip(
            models, deployments, targets, (100, 10), (8, 30), strict=True
        ):
            samples_ns = self.make_timing(call_ms).samples_ns
            alone = make_rate_model(deployment, samples_ns, parse_limit(target), seed=0)
            assert model.find_capacity(1.0) == pytest.approx(alone.find_capacity(1.0) / rate, rel=0.04)
            for name, rel in (("find_relaxation_ns", 0.2), ("find_inflation", 0.25)):
                expected = getattr(alone, name)(1.5 * rate, 1.0)
                assert getattr(model, name)(1.5, 1.0) == pytest.approx(expected, rel=rel)

    def test_models_that_share_cores_are_slower_and_their_queues_last_longer(self) -> None:
        """At the same rates, far from those at which callers are always busy."""
        apart = self.make_models("unpinned", ["p90<24ms", "p90<90ms"], 16)
        together = self.make_models("unpinned", ["p90<24ms", "p90<90ms"], 1)
        for one, other in zip(apart, together, strict=True):
            assert other.expect(0.6, 1.0) > 2 * one.expect(0.6, 1.0)
            assert other.find_relaxation_ns(0.6, 1.0) > one.find_relaxation_ns(0.6, 1.0)

    def test_a_model_may_get_more_requests_than_another_can_serve(self) -> None:
        """The callers of the other are then always busy, with a core each."""
        first, second = self.make_models("unpinned", ["p90<24ms", "p90<90ms"], 3)
        assert second.highest_per_s == pytest.approx(1e9 / (10 * 30 * MS), rel=0.03)
        assert first.highest_per_s == pytest.approx(2e9 / (100 * 8 * MS), rel=0.03)
        (first, _) = self.make_models("unpinned", ["p90<24ms", "p90<90ms"], 2, rates=(100, 50))
        assert first.highest_per_s == pytest.approx(1e9 / (100 * 8 * MS), rel=0.03)

    @pytest.mark.parametrize("kind", ["divided", "unpinned"])
    def test_without_a_target_the_callers_may_be_busy_almost_always(self, kind: Kind) -> None:
        first, second = self.make_models(kind, ["", ""], 16)
        assert second.find_capacity(1.0) == pytest.approx(0.98 * 1e9 / (10 * 30 * MS), rel=0.03)
        assert first.find_capacity(1.0) == pytest.approx(0.98 * 2e9 / (100 * 8 * MS), rel=0.03)

    def test_of_a_model_with_few_requests_no_rare_latencies_are_known(self) -> None:
        (_, rare) = self.make_models("unpinned", ["p90<24ms", "p99<90ms"], 16, rates=(1000, 0.1))
        assert rare.expect(0.01, 1.0) > 1 / 1000

    def test_models_that_need_almost_no_cpu_time(self) -> None:
        demand = Demand(name="a", rate_per_s=10)
        timing = Timing(samples_ns=np.full(5, 10 * MS), cpu_ns_per_call=0.0, peak_bytes=1)
        found = find_core_queue([demand, demand], [timing, timing], 1.0, 4)
        assert found.relaxation_ns < 10


class TestDivision:
    def make_timings(self, call_ms: float, threads: Sequence[int] = (1, 2, 4)) -> ModelTimings:
        timings = ModelTimings()
        behavior = Behavior(call_ms=call_ms, serial=0.2)
        for thread in threads:
            service_ns = behavior.find_service_ns(thread)
            timings.measured[Size(1, thread)] = Timing(
                samples_ns=np.full(10, int(service_ns)), cpu_ns_per_call=service_ns * thread, peak_bytes=10
            )
        return timings

    @pytest.mark.parametrize("n_cores", [2, 5, 8, 13])
    @pytest.mark.parametrize("rates", [(10.0, 10.0), (50.0, 3.0)])
    def test_it_is_the_best_of_all(self, n_cores: int, rates: tuple[float, float]) -> None:
        timings = [self.make_timings(10), self.make_timings(30)]
        slos = [parse_limit("p99<40ms"), None]
        demands = list(zip(rates, slos, strict=True))
        found = divide_cores(timings, demands, n_cores, most_processes=64)
        options = [
            [(size, known.find_capacity(size, slo) / rate) for size in known.list_sizes(n_cores, 64)]
            for known, (rate, slo) in zip(timings, demands, strict=True)
        ]
        best = max(
            min(one[1], other[1])
            for one in options[0]
            for other in options[1]
            if one[0].n_cores + other[0].n_cores <= n_cores
        )
        assert found
        sizes, scale = found
        assert scale == pytest.approx(best)
        assert sum(size.n_cores for size in sizes) <= n_cores

    def test_memory_bounds_the_processes(self) -> None:
        timings = [self.make_timings(10), self.make_timings(10)]
        demands = [(10.0, None), (10.0, None)]
        unlimited = divide_cores(timings, demands, 8, most_processes=64)
        limited = divide_cores(timings, demands, 8, most_processes=64, most_bytes=30)
        assert unlimited
        assert limited
        assert sum(size.processes for size in unlimited[0]) > 3
        assert sum(size.processes for size in limited[0]) <= 3
        assert limited[1] < unlimited[1]
        assert divide_cores(timings, demands, 8, most_processes=64, most_bytes=15) is None

    def test_too_few_cores_or_too_long_calls(self) -> None:
        timings = [self.make_timings(10)] * 3
        assert divide_cores(timings, [(1.0, None)] * 3, 2, most_processes=64) is None
        slow = [(1.0, parse_limit("p99<1ms"))] * 3
        assert divide_cores(timings, slow, 8, most_processes=64) is None

    def test_first_sizes(self) -> None:
        assert list_first_sizes(2, 2, 64) == [Size(1, 1), Size(1, 2), Size(2, 1)]
        counts = (1, 2, 4, 7, 8)
        assert set(list_first_sizes(8, 2, 64)) == {Size(1, n) for n in counts} | {Size(n, 1) for n in counts}
        assert max(list_first_sizes(96, 2, 64)).processes == 64


def test_processes_of_several_sizes_stay_within_nodes() -> None:
    host = make_host(16, n_nodes=4, domains_per_node=2)
    assert pack_processes(host, [1, 4, 2]) == ((6,), (0, 1, 2, 3), (4, 5))
    assert pack_processes(host, [3, 3, 3, 3]) == ((0, 1, 2), (4, 5, 6), (8, 9, 10), (12, 13, 14))
    assert pack_processes(host, [10, 6]) == (tuple(range(10)), tuple(range(10, 16)))
    assert pack_processes(host, [16, 1]) is None


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of the scale are less precise, and take a tenth of the time."""
    monkeypatch.setattr("ortune.planning.colocation.scale_models.TAIL_REQUESTS", 10_000)


@pytest.mark.usefixtures("few_requests")
class TestStages:
    FAST = Behavior(call_ms=2, spin=3.0)
    SLOW = Behavior(call_ms=40, serial=0.1, spin=3.0)

    def test_a_better_sharing_is_found_and_measured(self) -> None:
        """With the defaults, both models use all cores, and their threads spin."""
        outcome, host = plan_simulated([self.FAST, self.SLOW], [(100, "p99<25ms"), (20, "p99<200ms")])
        default = outcome.rows[0]
        assert default.kind == "default"
        assert default.verdict != "kept"
        assert outcome.recommended
        chosen = outcome.rows[outcome.recommended]
        assert chosen.verdict == "kept"
        assert all(model.latency_ns and model.latency_ns.high for model in chosen.models)
        assert chosen.scale
        assert chosen.scale.source == "measured"
        assert chosen.predicted_scale
        assert chosen.scale.estimate > 1
        assert outcome.measured_scale == 1
        assert "the default deployment of each model does not" in outcome.reason
        assert {sharing.kind for sharing in host.launched} == {"default", "unpinned", "divided"}

    def test_divided_cores_are_disjoint(self) -> None:
        demands = [(100, "p99<25ms"), (20, "p99<200ms")]
        outcome, _ = plan_simulated([self.FAST, self.SLOW], demands, 16, n_nodes=4, budget_s=75)
        divided = find_row(outcome, "divided")
        cpus = [cpu for model in divided.models for own in model.deployment.cpus for cpu in own]
        assert len(cpus) == len(set(cpus)) <= 16
        for model in divided.models:
            assert model.deployment.placement
            assert model.deployment.placement.nodes_each == 1
            assert all(len(own) == model.deployment.n_threads for own in model.deployment.cpus)

    def test_the_default_is_recommended_if_it_is_enough(self) -> None:
        outcome, _ = plan_simulated([Behavior(call_ms=2), Behavior(call_ms=3)], [(5, "p99<50ms"), (5, "p99<50ms")])
        assert outcome.recommended == 0
        assert "the default deployment of each model meets all targets" in outcome.reason

    @pytest.mark.long
    def test_rates_that_need_several_hosts(self) -> None:
        """Two models that need 4 and 4.8 cores at least, on a host with four."""
        demands = [(2000, "p99<25ms"), (120, "p99<200ms")]
        outcome, _ = plan_simulated([self.FAST, self.SLOW], demands, price_per_hour=0.5)
        assert outcome.measured_scale < 1
        assert outcome.recommended is not None
        chosen = outcome.rows[outcome.recommended]
        assert chosen.verdict == "kept"
        assert chosen.replicas
        assert chosen.replicas >= 3
        assert chosen.price_per_hour == 0.5 * chosen.replicas
        assert "of the requested rates" in outcome.reason

    def test_targets_that_no_sharing_can_keep(self) -> None:
        outcome, _ = plan_simulated([self.FAST, self.SLOW], [(10, "p99<1ms"), (1, "p99<200ms")])
        assert outcome.recommended is None
        assert "no way to share this host meets all targets" in outcome.reason
        assert all(row.replicas is None or row.replicas > 1 for row in outcome.rows)

    def test_without_targets_requests_are_served_as_they_arrive(self) -> None:
        outcome, _ = plan_simulated([self.FAST, self.SLOW], [(100, ""), (20, "")])
        assert outcome.recommended is not None
        chosen = outcome.rows[outcome.recommended]
        assert chosen.verdict == "kept"
        assert {model.figure for model in chosen.models} == {"p99"}
        assert find_row(outcome, "default").verdict == "broken"

    def test_what_does_not_fit_into_memory_is_named_and_not_launched(self) -> None:
        large = [msgspec.structs.replace(behavior, bytes=900 * MEGABYTE) for behavior in (self.FAST, self.SLOW)]
        demands = [(100, "p99<25ms"), (60, "p99<200ms")]
        outcome, host = plan_simulated(large, demands, 8, free_bytes=4_000 * MEGABYTE, budget_s=25)
        unfit = [rejection for rejection in outcome.rejected if rejection.problem == DOES_NOT_FIT]
        assert unfit
        for rejection in unfit:
            assert sum(deployment.processes for deployment in rejection.deployments) > 3
            assert rejection.deployments not in [sharing.deployments for sharing in host.launched]
        assert all(row.memory_bytes <= 3_200 * MEGABYTE for row in outcome.rows)
        assert host.most_live == 1  # two sharings would not fit side by side

    def test_models_that_do_not_fit_at_all(self) -> None:
        large = [msgspec.structs.replace(behavior, bytes=900 * MEGABYTE) for behavior in (self.FAST, self.SLOW)]
        with pytest.raises(MeasureError, match="do not fit into memory together"):
            plan_simulated(large, [(100, "p99<25ms"), (20, "p99<200ms")], free_bytes=2_000 * MEGABYTE)

    def test_more_models_than_cores(self) -> None:
        outcome, _ = plan_simulated([self.FAST] * 3, [(20, "p99<50ms")] * 3, 2, budget_s=25)
        assert {row.kind for row in outcome.rows} <= {"default", "unpinned"}
        assert outcome.recommended is not None

    def test_a_failing_sharing_does_not_end_it(self) -> None:
        demands = [(100, "p99<25ms"), (20, "p99<200ms")]
        outcome, _ = plan_simulated([self.FAST, self.SLOW], demands, fails=["divided"], budget_s=50)
        (problem,) = outcome.rejected
        assert problem.kind == "divided"
        assert "broken" in problem.problem
        assert outcome.recommended is not None
        with pytest.raises(MeasureError, match=r"do not run together on this host: .*broken"):
            plan_simulated([self.FAST, self.SLOW], demands, fails=["default", "unpinned", "divided"], budget_s=25)

    def test_a_process_that_ends_is_launched_again(self) -> None:
        demands = [(100, "p99<25ms"), (20, "p99<200ms")]
        outcome, host = plan_simulated([self.FAST, self.SLOW], demands, ends_once=True, budget_s=25)
        assert not host.ends_once
        assert not outcome.rejected
        assert outcome.recommended

    @pytest.mark.long
    def test_a_process_that_ends_while_the_scale_is_measured(self) -> None:
        """It is launched again."""

        def end_one(host: SimulatedHost, stage: str, done: int) -> None:
            host.ends_once = host.ends_once or (stage == "scale" and done == 1)

        demands = [(100, "p99<25ms"), (20, "p99<200ms")]
        expected, undisturbed = plan_simulated([self.FAST, self.SLOW], demands)
        outcome, host = plan_simulated([self.FAST, self.SLOW], demands, observe=end_one)
        assert len(host.launched) == len(undisturbed.launched) + 1
        assert outcome.recommended
        assert outcome.recommended == expected.recommended
        scale = outcome.rows[outcome.recommended].scale
        assert scale
        assert scale.source == "measured"

    def test_what_the_host_lacks_at_the_end_costs_no_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is no fault of the sharing, which stays with a prediction."""

        def fail(*arguments: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(measured_scale.ScaleMeasurement, "run", fail)
        outcome, _ = plan_simulated([Behavior(call_ms=2), Behavior(call_ms=3)], [(5, "p99<50ms"), (5, "p99<50ms")])
        assert outcome.problem == "Cannot write a temporary file: No space left on device."
        assert not outcome.rejected
        assert outcome.recommended == 0

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), *long_params(HostError("Cannot start a worker."))])
    def test_what_was_measured_is_kept_if_lower_rates_cannot_be(
        self, error: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run._HostPlanning, "choose_scale", lambda self, proposals: 1.0)
        reports: list[tuple[str, int]] = []

        def end_the_second(host: SimulatedHost, stage: str, done: int) -> None:
            reports.append((stage, done))
            if stage == "all models" and reports.count((stage, 1)) == 2:
                raise error

        outcome, _ = plan_simulated(
            [self.FAST, self.SLOW], [(2000, "p99<25ms"), (120, "p99<200ms")], observe=end_the_second
        )
        assert reports.count(("all models", 1)) == 2
        assert outcome.measured_scale == 1
        assert outcome.rows
        assert outcome.interrupted == isinstance(error, KeyboardInterrupt)
        assert not outcome.rejected

    @pytest.mark.parametrize("all_fail", [True, *long_params(False)])
    def test_sharings_that_fail_while_their_scale_is_measured(
        self, all_fail: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are named, and the next one is measured. The last one stays, with a prediction."""
        run = measured_scale.ScaleMeasurement.run
        failed: list[Any] = []

        def fail(self: Any, *arguments: Any) -> Any:
            if all_fail or not failed:
                failed.append(self)
                raise MeasureError("a worker was killed")
            return run(self, *arguments)

        monkeypatch.setattr(measured_scale.ScaleMeasurement, "run", fail)
        outcome, _ = plan_simulated([self.FAST, self.SLOW], [(100, "p99<25ms"), (20, "p99<200ms")])
        named = [
            rejection
            for rejection in outcome.rejected
            if "multiples of the rates: a worker was killed" in rejection.problem
        ]
        assert len(named) == len(failed) - bool(outcome.problem)
        assert outcome.rows
        if all_fail:
            assert all(row.scale is None or row.scale.source == "predicted" for row in outcome.rows)
        else:
            assert outcome.problem == ""

    def test_another_sharing_is_recommended_only_after_its_scale_was_measured(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first one that is measured turns out to take less than predicted."""
        measured: list[str] = []

        def measure_scale(self: object, row: PlannedSharing, scale: float) -> PlannedSharing:
            measured.append(row.kind)
            found = make_estimate(1.01 * scale if len(measured) == 1 else 1.5 * scale)
            return msgspec.structs.replace(row, scale=found, predicted_scale=row.scale)

        monkeypatch.setattr("ortune.planning.colocation.run._HostPlanning.measure_scale", measure_scale)
        outcome, _ = plan_simulated([self.FAST, self.SLOW], [(100, "p99<25ms"), (20, "p99<200ms")])
        assert outcome.recommended is not None
        chosen = outcome.rows[outcome.recommended]
        assert len(measured) >= 2
        assert chosen.scale
        assert chosen.scale.source == "measured"

    def test_a_budget_that_is_too_small(self) -> None:
        with pytest.raises(UsageError, match="too short to measure all models together") as caught:
            plan_simulated([self.FAST, self.SLOW], [(100, "p99<25ms"), (20, "p99<200ms")], budget_s=8)
        assert "or more, or omit it." in caught.value.hint

    def test_a_rate_that_is_too_low_for_the_usual_budget(self) -> None:
        with pytest.raises(UsageError, match="too short to measure all models together") as caught:
            plan_simulated([self.FAST, self.SLOW], [(100, "p99<25ms"), (0.02, "p99<200ms")])
        assert caught.value.hint.endswith("or more.")

    def test_a_small_budget_leaves_the_scale_predicted(self) -> None:
        outcome, _ = plan_simulated([self.FAST, self.SLOW], [(100, "p99<25ms"), (20, "p99<200ms")], budget_s=25)
        assert outcome.recommended
        scale = outcome.rows[outcome.recommended].scale
        assert scale
        assert scale.source == "predicted"

    def test_the_scale_is_where_a_target_breaks(self) -> None:
        """Each model has a core of its own in effect: the known capacity of an M/D/1 queue bounds the scale."""
        outcome, _ = plan_simulated(
            [Behavior(call_ms=10), Behavior(call_ms=10)], [(20, "p99<50ms"), (40, "p99<50ms")], 2, budget_s=2000
        )
        divided = find_row(outcome, "divided")
        assert divided.scale
        capacity = simulate_known_capacity()
        assert divided.scale.estimate == pytest.approx(capacity / 40, rel=0.15)
        assert outcome.recommended is not None
        chosen = outcome.rows[outcome.recommended]
        assert chosen.scale
        assert chosen.scale.source == "measured"
        assert chosen.scale.n_measurements
        assert chosen.scale.n_measurements >= 4


def simulate_known_capacity() -> float:
    """Return the rate at which p99 of an M/D/1 queue with calls of 10 ms is 50 ms."""
    from ortune.queueing.theory import ConstantQueue, find_known_capacity

    return find_known_capacity(ConstantQueue, 1, 0.99, 5.0) * 100


def make_estimate(value: float, **fields: Any) -> Estimate:
    values = {"estimate": value, "low": 0.9 * value, "high": 1.1 * value, "confidence": 0.95, "source": "measured"}
    return Estimate(**{**values, **fields})


def make_result(deployment: Deployment, verdict: TargetVerdict = "kept", **fields: Any) -> ModelResult:
    values: dict[str, Any] = {
        "figure": "p99",
        "served_per_s": 50.0,
        "utilization": 0.4,
        "n_requests": 2000,
        "cpu_ns_per_call": 8e6,
        "memory_bytes": 100,
    }
    return ModelResult(deployment=deployment, latency_ns=make_estimate(20e6), verdict=verdict, **{**values, **fields})


def make_row(kind: Kind = "default", verdict: TargetVerdict = "kept", **fields: Any) -> PlannedSharing:
    deployment = Deployment()
    if kind == "divided":
        placement = ProcessPlacement(unit="cores", cpus=((0,),))
        deployment = Deployment(config=Config(session_options={THREADS: 1}), placement=placement)
    values: dict[str, Any] = {"cpu_cores": 1.2, "memory_bytes": 150_000_000, "scale": make_estimate(1.5), "replicas": 1}
    models = (make_result(deployment, verdict), make_result(deployment))
    return PlannedSharing(kind=kind, models=models, **{**values, **fields})


def make_example(**fields: Any) -> HostPlan:
    demands = [
        Demand(name="a", rate_per_s=50.0, slo=parse_limit("p99<50ms")),
        Demand(name="b", rate_per_s=10.0),
    ]
    workload = Workload(load=Load(), objectives=("throughput",), n_samples=1, inputs={}, tolerance=Tolerance())
    values: dict[str, Any] = {
        "models": tuple(
            PlannedModel(
                demand=demand,
                model=ModelIdentity(path=f"{demand.name}.onnx", digest="sha256:0", files=()),
                workload=workload,
            )
            for demand in demands
        ),
        "rows": (
            make_row("default", "broken", scale=make_estimate(0.7, source="predicted"), replicas=2, price_per_hour=0.4),
            make_row("divided", predicted_scale=make_estimate(1.4, source="predicted"), price_per_hour=0.2),
        ),
        "recommended": 1,
        "reason": "it meets all targets",
        "measured_scale": 1.0,
        "rejected": (
            RejectedSharing(kind="unpinned", deployments=(Deployment(processes=9), Deployment()), problem=DOES_NOT_FIT),
        ),
        "headroom": 0.2,
        "price_per_hour": 0.2,
        "n_cores": 2,
        "budget_s": 60.0,
        "spent_s": 55.0,
        "started": "2026-11-23T10:00:00+00:00",
        "host": HostClass.of(make_host(2)),
        "runtime": RUNTIME,
        "noise": BlockRunner(SimulatedExecutor(lambda config: 1e6), np.random.default_rng(0)).describe_noise(
            contended=False
        ),
    }
    return HostPlan(**{**values, **fields})


class TestChoice:
    def test_fewest_hosts_then_the_default_then_the_largest_scale(self) -> None:
        rows = [make_row(replicas=2), make_row("unpinned"), make_row("divided", scale=make_estimate(2.0))]
        assert choose_sharing(rows, 1.0)[0] == 2
        rows[0] = make_row()
        assert choose_sharing(rows, 1.0)[0] == 0
        rows[0] = make_row(verdict="broken")
        place, reason = choose_sharing(rows, 0.5)
        assert place == 2
        assert reason == (
            "it meets all targets at 0.5 of the requested rates; the default deployment of each model does not"
        )

    def test_the_least_memory_of_equal_ones(self) -> None:
        rows = [make_row("divided", memory_bytes=300, scale=make_estimate(2.0)), make_row("unpinned", memory_bytes=200)]
        assert choose_sharing(rows, 1.0)[0] == 0
        rows[1] = make_row("unpinned", memory_bytes=200, scale=make_estimate(1.995))
        assert choose_sharing(rows, 1.0) == (1, "it meets all targets at the requested rates")

    def test_what_is_not_proven(self) -> None:
        rows = [make_row(verdict="broken"), make_row("divided", "unclear")]
        place, reason = choose_sharing(rows, 1.0)
        assert place == 1
        assert "seems to meet" in reason
        above = (make_result(Deployment(), "unclear", is_above_target=True), make_result(Deployment()))
        rows[1] = msgspec.structs.replace(rows[1], models=above)
        assert choose_sharing(rows, 1.0)[0] is None

    @pytest.mark.parametrize(
        ("values", "verdict"),
        [
            ((40, 30, 45), "kept"),
            ((40, 30, 60), "unclear"),
            ((60, 55, 80), "broken"),
            ((math.inf, math.inf, math.inf), "broken"),
            ((40, 30, math.inf), "unclear"),
        ],
    )
    def test_verdicts(self, values: tuple[float, float, float], verdict: str) -> None:
        estimate, low, high = (value * MS for value in values)
        interval = Interval(estimate=estimate, low=low, high=high, confidence=0.95)
        demand = Demand(name="a", rate_per_s=1, slo=parse_limit("p99<50ms"))
        assert judge(interval, self.make_utilization(0.5, 0.2), demand) == verdict

    @pytest.mark.parametrize(
        ("utilization", "half", "latency_ms", "verdict"),
        [
            (0.5, 0.2, 40, "kept"),
            (0.95, 0.1, 40, "unclear"),
            (0.99, math.inf, 40, "unclear"),
            (1.0, 0.1, math.inf, "broken"),
        ],
    )
    def test_without_a_target_requests_must_be_served_as_they_arrive(
        self, utilization: float, half: float, latency_ms: float, verdict: str
    ) -> None:
        latency = Interval(estimate=latency_ms * MS, low=0.0, high=math.inf, confidence=0.95)
        demand = Demand(name="a", rate_per_s=1)
        assert judge(latency, self.make_utilization(utilization, half), demand) == verdict

    def make_utilization(self, estimate: float, half: float) -> Interval:
        return Interval(estimate=estimate, low=estimate - half, high=estimate + half, confidence=0.95)

    def test_what_was_measured_is_not_displaced_by_what_the_same_model_predicts(self) -> None:
        """Its predictions were too high by a third."""
        measured = make_row("divided", scale=make_estimate(1.0), predicted_scale=make_estimate(1.5, source="predicted"))
        for scale, expected in ((1.4, 0), (1.6, 1)):
            rows = [measured, make_row("unpinned", scale=make_estimate(scale, source="predicted"))]
            assert choose_sharing(rows, 0.5)[0] == 1
            assert choose_sharing(correct_predictions(rows, 0.5), 0.5)[0] == expected
        # It was measured to keep the targets at 1.5 times the rates.
        rows = [measured, make_row("unpinned", scale=make_estimate(1.6, source="predicted"))]
        (_, kept) = correct_predictions(rows, 1.5)
        assert kept.scale
        assert kept.scale.estimate == 1.5
        # A scale of 0 says only that it is below the lowest one that was measured.
        rows[0] = msgspec.structs.replace(measured, scale=make_estimate(0.0))
        assert correct_predictions(rows, 0.5)[1] == rows[1]

    def test_blocks_are_so_long_that_each_process_gets_several_requests(self) -> None:
        """A block of a process without a request must be rare, since it is left out."""
        demands = [Demand(name="a", rate_per_s=500), Demand(name="b", rate_per_s=0.02)]
        sharing = Sharing(kind="unpinned", deployments=(Deployment(), Deployment(processes=2)))
        assert measuring.plan_block([sharing], demands, 1.0).duration_ns >= 400e9
        assert measuring.plan_block([sharing], [demands[0], demands[0]], 1.0).duration_ns < 1e9

    def test_a_quota_below_the_cores_bounds_predictions(self) -> None:
        host = make_host(4)
        limits = msgspec.structs.replace(host.limits, quota=Quota(cpus=1.5, where="test"))
        space = make_deployment_space(msgspec.structs.replace(host, limits=limits), DEFAULT)
        demands = [Demand(name="a", rate_per_s=1), Demand(name="b", rate_per_s=1)]
        search = SharingSearch([space, space], demands, lambda number, sizes: [None for _ in sizes])
        assert search.n_cores == 2
        assert search.predictor.n_cores == 1.5


class TestDocument:
    def test_round_trip(self, tmp_path: Path) -> None:
        plan = make_example()
        path = tmp_path / "plan.json"
        path.write_bytes(encode_plan(plan))
        assert ortune.read_host_plan(path) == plan
        assert json.loads(path.read_text())["schema"] == HOST_PLAN_SCHEMA
        assert plan.choice
        assert plan.choice.models[0].deployment.cpus == ((0,),)
        with pytest.raises(RecordError, match="is not a plan"):
            read_plan(path)

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (
                ("schema",),
                HOST_PLAN_SCHEMA + 1,
                f"has schema {HOST_PLAN_SCHEMA + 1}, and this version of ortune reads schema {HOST_PLAN_SCHEMA}",
            ),
            (("schema",), 0, "plan.json has schema 0, and this"),
            (("schema",), None, "has no number as its schema"),
            (("recommended",), 2, "recommends another one"),
            (("recommended",), -1, "recommends another one"),
            (("command",), "rm -rf /", "unknown field `command`"),
            (("rows",), [], "has 0 rows"),
            (("models",), [], "has 0 models"),
            (("rows", 1, "models"), [], "another number of models"),
            (("rejected", 0, "deployments"), [], "another number of models"),
            (("measured_scale",), 0, "must be positive"),
            (("started",), "", "Invalid isoformat"),
            (("seed",), -1, "below 0"),
            (("headroom",), 1.5, "headroom"),
            (("headroom",), -1e308, "headroom"),
            (("models", 0, "demand", "rate_per_s"), -1, "must be positive"),
            (("rows", 0, "replicas"), -3, "replicas"),
            (("rows", 0, "price_per_hour"), 1e300, "figures"),
            (("rows", 0, "models", 0, "cpu_ns_per_call"), -1, "figures"),
            (("rows", 1, "scale", "estimate"), -1, "must be finite"),
            (("rows", 1, "models", 0, "deployment", "processes"), 3, "with the CPUs of 1"),
            (("rows", 1, "models", 0, "deployment", "placement", "cpus"), [[]], "must have CPUs"),
            (("rows", 1, "models", 0, "deployment", "placement", "cpus"), [["/bin/sh"]], "is not a plan"),
            (("rows", 1, "models", 0, "deployment", "config", "session_options"), {THREADS: -5}, "must not set"),
            (("rows", 1, "models", 1, "deployment", "config", "session_options"), {"\x1b[31mx": "y"}, "must not set"),
            (("rejected", 0, "deployments", 1, "config"), {"session_options": {THREADS: -5}}, "must not set"),
        ],
    )
    def test_hostile_documents(self, place: tuple[Any, ...], value: Any, message: str) -> None:
        document = json.loads(encode_plan(make_example()))
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with pytest.raises(RecordError, match=message) as caught:
            decode_host_plan(json.dumps(document).encode(), "plan.json")
        assert "\x1b" not in str(caught.value)

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"schema": true}', b"null"])
    def test_other_files(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        path.write_bytes(data)
        with pytest.raises(RecordError, match="is not a plan"):
            read_host_plan(path)


@pytest.mark.parametrize("width", [45, 80, 200])
def test_the_output_fits(width: int) -> None:
    for plan, words in (
        (make_example(), "recommended: cores divided among the models"),
        (make_example(recommended=None, measured_scale=0.5), "recommended: none"),
        (make_example(interrupted=True), "was interrupted before the factor"),
        (make_example(problem="It ended."), "the rates can be multiplied could not be measured: It ended."),
    ):
        console = Console(width=width, record=True, file=io.StringIO())
        show_host_plan(console, plan, Path("plan.json"))
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        assert words in " ".join(text.split())
        assert "does not fit into memory" in " ".join(text.split())


def test_large_prices_have_no_exponent() -> None:
    plan = make_example()
    rows = [msgspec.structs.replace(row, price_per_hour=1574.3) for row in plan.rows]
    console = Console(width=200, record=True, file=io.StringIO())
    show_host_plan(console, msgspec.structs.replace(plan, rows=tuple(rows)), None)
    text = console.export_text()
    assert " 1574" in text and "e+0" not in text


def test_cpus_are_shown_as_ranges() -> None:
    assert format_cpus((0, 1, 2, 5, 8, 9)) == "0-2,5,8-9"


class TestOptions:
    @pytest.mark.parametrize(
        ("models", "expected"),
        [
            (["a.onnx=50/s", "b.onnx=30/min"], (("a.onnx", 50.0), ("b.onnx", 0.5))),
            (["x=y/a=b.onnx=50/s", "c.onnx=2"], (("x=y/a=b.onnx", 50.0), ("c.onnx", 2.0))),
            ({"a=1/s": "50/s", Path("b.onnx"): 10}, (("a=1/s", 50.0), ("b.onnx", 10.0))),
        ],
    )
    def test_models_and_rates(self, models: Any, expected: tuple[tuple[str, float], ...]) -> None:
        assert make_request(HostPlanRequest, {"models": models}).models == expected

    @pytest.mark.parametrize(
        ("models", "message"),
        [
            (["a.onnx=50/s", "b.onnx"], "b.onnx: has no rate, which each of several models needs."),
            (["a.onnx=50/s", "b.onnx=fast"], "b.onnx=fast: is not a rate of requests."),
            (["a.onnx=50/s", "b.onnx=3/x"], "b.onnx=3/x: is not a rate of requests."),
            (["a.onnx=50/s", "b.onnx=0/s"], "b.onnx=0/s: is not a rate of requests."),
            (["a.onnx=50/s", "b.onnx=1/h"], "b.onnx=1/h: too few requests to measure"),
            (["a.onnx=50/s", "=5/s"], "=5/s: has no rate"),
            (["a.onnx=50/s"], "a.onnx=50/s: is a single model."),
            (["a.onnx=50/s", "a.onnx=5/s"], "a.onnx: is given twice."),
            ([f"{n}.onnx=1/s" for n in range(65)], "65 models: must be 2 to 64."),
            (3, "must be a text or a list of texts"),
        ],
    )
    def test_models_that_are_refused(self, models: Any, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            make_request(HostPlanRequest, {"models": models})
        assert message in caught.value.message

    def test_a_file_whose_name_looks_like_a_model_with_a_rate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("a.onnx=5").write_bytes(b"")
        with pytest.raises(UsageError, match="It is the name of a file") as caught:
            make_request(HostPlanRequest, {"models": ["a.onnx=5", "b.onnx=1/s"]})
        assert caught.value.hint == "Write a.onnx=5=50/s."
        assert make_request(HostPlanRequest, {"models": ["a.onnx=5=7/s", "b.onnx=1/s"]}).models[0] == ("a.onnx=5", 7.0)
        assert route_several(["ortune", "plan", "a.onnx=5"])[1] == "plan"

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("p99<50ms", [("", "p99<50ms")]),
            ("a=p99<50ms", [("a", "p99<50ms")]),
            ("a=b.onnx=p99<=50ms", [("a=b.onnx", "p99<=50ms")]),
            (["mean<5ms", "a=p50<1ms"], [("", "mean<5ms"), ("a", "p50<1ms")]),
            ({"a": "p99<5ms"}, [("a", "p99<5ms")]),
            (parse_limit("p99<5ms"), [("", "p99<5ms")]),
        ],
    )
    def test_targets(self, given: Any, expected: list[tuple[str, str]]) -> None:
        request = make_request(HostPlanRequest, {"models": ["a.onnx=1/s", "b.onnx=1/s"], "slo": given})
        assert [(name, limit.text) for name, limit in request.slo] == expected

    @pytest.mark.parametrize("given", ["a=fast", "a=p99<1.3x", "a=memory<1GB", "=p99<5ms", "<", ""])
    def test_targets_that_are_refused(self, given: str) -> None:
        with pytest.raises(UsageError):
            make_request(HostPlanRequest, {"models": ["a.onnx=1/s", "b.onnx=1/s"], "slo": given})

    def test_targets_belong_to_models(self) -> None:
        paths, names = ["x/a.onnx", "y/a.onnx", "b.onnx"], ["x/a", "y/a", "b"]
        common, own = parse_limit("p99<50ms"), parse_limit("p50<5ms")
        assert name_models(paths) == names
        assert name_models(["x/a.onnx", "b.onnx"]) == ["a", "b"]
        assert name_models(["x/model.onnx", "y/model.onnx"]) == ["x", "y"]
        assert name_models(["model.onnx", "y/model.onnx"]) == ["model", "y/model"]
        assert name_models(["a.onnx", "a.ort"]) == ["a.onnx", "a.ort"]
        for path in (".", "/", "./", ""):
            with pytest.raises(UsageError, match="is a folder" if path else "is empty"):
                name_models([path, "a.onnx"])
        assert assign_targets([("", common), ("x/a", own)], paths, names) == [own, common, common]
        assert assign_targets([("b.onnx", own)], paths, names) == [None, None, own]
        for given, message in (
            ([("a.onnx", own)], "names more than one of the models"),
            ([("c", own)], "names none of the models"),
            ([("b", own), ("b.onnx", own)], "has two targets"),
            ([("", own), ("", common)], "two targets for all models"),
        ):
            with pytest.raises(UsageError, match=message):
                assign_targets(given, paths, names)

    def test_sizes_belong_to_the_models_that_have_them(self) -> None:
        one = make_model(inputs=(InputInfo(name="x", dtype="float32", shape=("batch", 3)),))
        other = make_model(inputs=(InputInfo(name="ids", dtype="int64", shape=("batch", "sequence")),))
        options = InputOptions(dims={"batch": (1,), "sequence": (16,)}, shapes={"ids": (1, 16)})
        first, second = choose_inputs([one, other], options)
        assert (dict(first.dims), dict(first.shapes)) == ({"batch": (1,)}, {})
        assert (set(second.dims), set(second.shapes)) == ({"batch", "sequence"}, {"ids"})
        with pytest.raises(InputsError, match="length: no model has a dimension of that name"):
            choose_inputs([one, other], InputOptions(dims={"length": (1,)}))
        with pytest.raises(InputsError, match="y: no model has an input of that name"):
            choose_inputs([one, other], InputOptions(shapes={"y": (1,)}))

    @pytest.mark.parametrize(
        ("words", "models", "is_several"),
        [
            ("a.onnx", ["a.onnx"], False),
            ("a=b.onnx --dim batch=4", ["a=b.onnx"], False),
            ("--slo p99<5ms a.onnx --rate 5/s -o x=5/s", ["a.onnx"], False),
            ("a.onnx=5/s", ["a.onnx=5/s"], True),
            ("a.onnx=5/s b.onnx=3 --json", ["a.onnx=5/s", "b.onnx=3"], True),
            ("--quiet a.onnx b.onnx", ["a.onnx", "b.onnx"], True),
            ("a.onnx -qo plan.json", ["a.onnx"], False),
            ("a.onnx -qoplan.json", ["a.onnx"], False),
            ("--budget=5m -- -a.onnx=5/s b.onnx=3/s", ["-a.onnx=5/s", "b.onnx=3/s"], True),
        ],
    )
    def test_which_command_it_is(self, words: str, models: list[str], *, is_several: bool) -> None:
        assert find_models(words.split()) == models
        routed = route_several(["ortune", "plan", *words.split()])
        assert routed[1] == (NAME if is_several else "plan")
        assert route_several(["ortune", "search", *words.split()])[1] == "search"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((f"{TINY_CNN}=5/s",), "is a single model"),
            ((f"{TINY_CNN}=5/s", TINY_ENCODER), "has no rate"),
            ((f"{TINY_CNN}=5/s", "none.onnx=5/s"), "none.onnx"),
            ((".=5/s", f"{TINY_CNN}=3/s"), ".: is a folder, and not a model"),
            ((f"{TINY_CNN}=5/s", f"{TINY_ENCODER}=5/s", "--slo", "c=p99<5ms"), "c names none of the models"),
            ((f"{TINY_CNN}=5/s", f"{TINY_ENCODER}=5/s", "--inputs", "x.npz"), "No such option"),
            ((f"{TINY_CNN}=5/s", f"{TINY_ENCODER}=5/s", "--dim", "nothing=5"), "no model has a dimension"),
        ],
    )
    def test_messages_on_the_command_line(self, arguments: tuple[Any, ...], message: str, tmp_path: Path) -> None:
        done = run_ortune("plan", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_what_is_not_a_worker_cannot_be_measured_together() -> None:
    with pytest.raises(TypeError, match="has no worker processes"):
        find_workers(SimulatedLive(SimulatedExecutor(lambda config: 1), DEFAULT))


@pytest.mark.usefixtures("no_workers_left")
@pytest.mark.long
def test_two_real_models_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real workers of both models serve their requests at the same time, in interleaved blocks of several sharings."""
    # The budget is never used up, however busy the host is.
    for name, value in {"FEWEST_COLOCATED_ROUNDS": 2, "MOST_COLOCATED_ROUNDS": 2}.items():
        monkeypatch.setattr(measuring, name, value)
    monkeypatch.setattr(run, "N_FINALISTS", 1)
    for name, value in {"FEWEST_RATE_MEASUREMENTS": 2, "MOST_SCALE_MEASUREMENTS": 2, "MOST_SCALE_BLOCKS": 2}.items():
        monkeypatch.setattr(measured_scale, name, value)
    stages = []
    plan = ortune.plan_host(
        {str(TINY_CNN): "200/s", str(TINY_ENCODER): "150/s"},
        slo=["p99<900ms", "tiny_cnn=p50<800ms"],
        dim={"sequence": 16},
        price=0.2,
        budget=900,
        output=tmp_path / "plan.json",
        progress=lambda stage, done, total: stages.append(stage),
    )
    assert read_host_plan(tmp_path / "plan.json") == plan
    assert {"launch", "screening", "all models"} <= set(stages)
    assert plan.recommended is None or "scale" in stages
    assert [model.demand.name for model in plan.models] == ["tiny_cnn", "tiny_encoder"]
    assert [model.demand.figure for model in plan.models] == ["p50", "p99"]
    assert [row.kind for row in plan.rows][:1] == ["default"]
    assert len(plan.rows) > 1
    for row in plan.rows:
        assert row.cpu_cores > 0
        for model in row.models:
            assert model.n_requests > 20
            assert model.deployment.processes * 5_000_000 < row.memory_bytes
    assert any(model.deployment.config != DEFAULT for model in plan.rows[1].models)
