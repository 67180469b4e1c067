"""Paired runs: the order of launches and rounds, failures, regimes, and how a comparison is opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from ortune import Config, Goal, Load, MeasureError, Objective
from ortune.measure.bench import compare
from ortune.measure.block_plan import (
    MOST_LAUNCHES_BY_NOISE,
    MOST_USUAL_LAUNCHES,
    Pace,
    RunPlan,
    measure_pace,
    paired_run_s,
    plan_late_rounds,
    plan_launches,
    plan_paired_run,
)
from ortune.measure.block_runner import BlockRunner, FreshCandidate, Round
from ortune.measure.evaluate import check_limit, compute_speedup, find_side_at_two_speeds
from ortune.measure.frequencies import find_different_frequencies
from ortune.measure.memory import count_fitting, count_on_gpu
from ortune.measure.open import OpenComparison, open_comparison, prepare_comparison, start_comparison
from ortune.measure.paired_run import Order, PairedRun, Side, alternate, shuffle
from ortune.worker import Block, BlockPlan, Failure, Memory, protocol
from ortune.worker.attempts import MAX_FIRST_FAILURES
from ortune.worker.process import WorkerProcess
from ortune.workload import InputOptions, parse_limit
from tests.conftest import TINY_CNN
from tests.records import ONE_THREAD
from tests.simulated import SimulatedExecutor

TWO_THREADS = Config(session_options={"intra_op_num_threads": 2})

BLOCK = BlockPlan(duration_ns=50_000_000, lead_in_ns=5_000_000, min_calls=2, deadline_s=60)
BROKEN = Failure(kind="out_of_memory", stage="load", message="bad_alloc")


def make_sides(*configs: Config, is_required: bool = False) -> list[Side]:
    return [
        Side(name=f"side {position}", config=config, is_required=is_required) for position, config in enumerate(configs)
    ]


def measure(
    executor: SimulatedExecutor,
    sides: Sequence[Side],
    *,
    launches: int = 3,
    rounds: int = 4,
    order: Order = shuffle,
    executors: Sequence[SimulatedExecutor] | None = None,
) -> PairedRun:
    run = PairedRun(sides, Load(), executors=executors)
    runner = BlockRunner(executor, np.random.default_rng(0))
    run.measure(runner, RunPlan(block=BLOCK, launches=launches, rounds=rounds), end_s=1e9, order=order)
    assert not executor.live, "candidates are still live"
    return run


def orders_of(run: PairedRun) -> list[list[list[int]]]:
    """Return the order of each round, by launch."""
    return [[list(measured_round.blocks) for measured_round in launch] for launch in run.launches]


@pytest.mark.parametrize("objective", ["p50", "load-time"])
def test_sessions_are_created_in_blocks_for_an_objective_or_a_limit(objective: Objective) -> None:
    """Those that are created while others are would seem to be several times as slow."""
    (live,) = SimulatedExecutor(lambda config: 1e6).launch([Config()], deadline_s=1)
    assert not isinstance(live, Failure)
    block = live.measure(BLOCK)
    assert not isinstance(block, Failure)
    limits = () if objective == "load-time" else (parse_limit("load-time<50ms"),)
    goal = Goal(objectives=(objective,), limits=limits)
    assert measure_pace(block, goal, n_cases=1, quota=False, load_ns=30_000_000).creations_ns == 90_000_000


def test_each_side_is_the_first_to_start_in_turn() -> None:
    executor = SimulatedExecutor(lambda config: 1e6)
    measure(executor, make_sides(Config(), ONE_THREAD, TWO_THREADS))
    first, second, third = (executor.launched[start : start + 3] for start in (0, 3, 6))
    assert first == [Config(), ONE_THREAD, TWO_THREADS]
    assert second == [ONE_THREAD, TWO_THREADS, Config()]
    assert third == [TWO_THREADS, Config(), ONE_THREAD]


def test_every_second_round_has_the_reverse_order() -> None:
    run = measure(SimulatedExecutor(lambda config: 1e6), make_sides(Config(), ONE_THREAD, TWO_THREADS), rounds=6)
    for orders in orders_of(run):
        assert orders[1::2] == [order[::-1] for order in orders[::2]]
    assert len({tuple(order) for orders in orders_of(run) for order in orders[::2]}) > 2


def test_a_fixed_order_alternates_between_launches() -> None:
    run = measure(SimulatedExecutor(lambda config: 1e6), make_sides(Config(), ONE_THREAD, TWO_THREADS), order=alternate)
    down, up = [2, 1, 0], [0, 1, 2]
    assert orders_of(run) == [[down, up, down, up], [up, down, up, down], [down, up, down, up]]


def test_sides_are_launched_together_unless_load_times_are_compared() -> None:
    class Counting(SimulatedExecutor):
        groups: list[int]

        def launch(self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True) -> list[Any]:
            self.groups.append(len(configs))
            self.deadline_s = deadline_s
            return super().launch(configs, deadline_s=deadline_s, independent=independent)

    for creations_ns, groups in ((0, [3, 3]), (50_000_000, [1] * 6)):
        executor = Counting(lambda config: 1e6)
        executor.groups = []
        run = PairedRun(make_sides(Config(), ONE_THREAD, TWO_THREADS), Load())
        runner = BlockRunner(executor, np.random.default_rng(0))
        runner.load_deadline_s = 10
        block = msgspec.structs.replace(BLOCK, creations_ns=creations_ns)
        run.measure(runner, RunPlan(block=block, launches=2, rounds=2), end_s=1e9)
        assert executor.groups == groups
        # Side by side, each may take as long as all of them one after the other.
        assert executor.deadline_s == 10 * groups[-1]


def test_a_required_side_that_fails_leaves_no_other_side_live() -> None:
    executor = SimulatedExecutor(
        lambda config: 1e6, fails_to_launch=lambda config: BROKEN if config == Config() else None
    )
    with pytest.raises(MeasureError, match="bad_alloc"):
        measure(executor, make_sides(Config(), ONE_THREAD))
    assert not executor.live


def test_each_side_is_launched_by_its_executor() -> None:
    base, head = (SimulatedExecutor(lambda config: 1e6) for _ in range(2))
    measure(base, make_sides(Config(), ONE_THREAD, Config()), launches=1, executors=(base, head, base))
    assert base.launched == [Config(), Config()]
    assert head.launched == [ONE_THREAD]


def test_a_side_that_fails_is_dropped() -> None:
    executor = SimulatedExecutor(lambda config: 1e6, dies_when_measured=[ONE_THREAD])
    run = measure(executor, make_sides(Config(), ONE_THREAD, TWO_THREADS))
    assert list(run.failures) == [1]
    assert run.n_rounds == 12
    assert executor.launched.count(ONE_THREAD) == MAX_FIRST_FAILURES


def test_it_ends_when_only_the_baseline_is_left() -> None:
    executor = SimulatedExecutor(lambda config: 1e6, fails_to_launch=lambda c: BROKEN if c == ONE_THREAD else None)
    run = measure(executor, make_sides(Config(), ONE_THREAD))
    assert run.failures == {1: BROKEN}
    assert run.n_rounds == 1


@pytest.mark.parametrize(("failing", "name"), [(Config(), "Side 0"), (ONE_THREAD, "Side 1")])
def test_a_required_side_that_fails_is_an_error(failing: Config, name: str) -> None:
    executor = SimulatedExecutor(lambda config: 1e6, dies_when_measured=[failing])
    with pytest.raises(MeasureError, match=f"{name} worked at first and then failed"):
        measure(executor, make_sides(Config(), ONE_THREAD, is_required=True))
    assert not executor.live


def test_quiet_and_contended_rounds_are_not_mixed() -> None:
    run = measure(
        SimulatedExecutor(lambda config: 1e6, contended_share=0.4), make_sides(Config(), ONE_THREAD), rounds=8
    )
    n_quiet = sum(not measured_round.contended for launch in run.launches for measured_round in launch)
    assert 12 <= n_quiet < 24
    selected = run.in_one_regime()
    assert not selected.contended
    assert selected.n_rounds == n_quiet
    assert not any(measured_round.contended for launch in selected.launches for measured_round in launch)
    assert run.n_rounds == 24


def test_on_a_busy_host_contended_rounds_count() -> None:
    run = measure(SimulatedExecutor(lambda config: 1e6, contended_share=1.0), make_sides(Config(), ONE_THREAD))
    assert run.in_one_regime().contended
    assert run.in_one_regime().n_rounds == run.n_rounds


def open_simulated(executor: SimulatedExecutor, *, n_sides: int = 2, free_bytes: int | None = None) -> OpenComparison:
    (live,) = executor.launch([Config()], deadline_s=1)
    assert not isinstance(live, Failure)
    return start_comparison(executor, live, Goal(), first_launch_s=0.2, n_sides=n_sides, free_bytes=free_bytes)


class TestMemory:
    """Sides are measured one at a time if they do not fit into 80 % of the free memory."""

    @pytest.mark.parametrize(("n_sides", "expected"), [(4, False), (5, True)])
    def test_of_the_host(self, n_sides: int, expected: bool) -> None:
        executor = SimulatedExecutor(lambda config: 1e6, peak_bytes=lambda config: 1e9)
        opened = open_simulated(executor, n_sides=n_sides, free_bytes=5_000_000_000)
        assert opened.runner.one_at_a_time is expected
        assert opened.runner.describe_noise(contended=False).one_at_a_time is expected

    @pytest.mark.parametrize("knows_gpu_use", [True, False])
    @pytest.mark.parametrize(("gpu_memory_bytes", "expected"), [(2_600_000_000, False), (2_400_000_000, True)])
    def test_of_a_gpu(self, gpu_memory_bytes: int, expected: bool, knows_gpu_use: bool) -> None:
        executor = SimulatedExecutor(
            lambda config: 1e6,
            gpu_bytes=lambda config: 1_000_000_000,
            gpu_memory_bytes=gpu_memory_bytes,
            knows_gpu_use=knows_gpu_use,
        )
        assert open_simulated(executor, free_bytes=10**12).runner.one_at_a_time is expected

    def test_one_session_fits_in_any_case(self) -> None:
        executor = SimulatedExecutor(lambda config: 1e6, peak_bytes=lambda config: 1e9)
        assert not open_simulated(executor, n_sides=1, free_bytes=10**9).runner.one_at_a_time

    def test_what_is_unknown_is_no_limit(self) -> None:
        executor = SimulatedExecutor(lambda config: 1e6, gpu_bytes=lambda config: 10**9, gpu_memory_bytes=2 * 10**9)
        opened = open_simulated(executor)
        gpu = opened.calibration.gpu
        assert opened.runner.one_at_a_time and gpu
        unknown = msgspec.structs.replace(gpu, free_before_bytes=None)
        assert count_fitting(msgspec.structs.replace(opened.calibration, gpu=unknown), None) is None
        # Others freed more memory than the session took.
        freed = msgspec.structs.replace(gpu, used_bytes=None, free_bytes=3 * 10**9)
        assert count_on_gpu([freed]) is None


class TestOneAtATime:
    def measure(
        self,
        executor: SimulatedExecutor,
        sides: Sequence[Side],
        *,
        launches: int | None = 4,
        end_s: float = 1e9,
        order: Order = shuffle,
        stop_within_launch: bool = False,
    ) -> PairedRun:
        run = PairedRun(sides, Load())
        runner = BlockRunner(executor, np.random.default_rng(0))
        runner.one_at_a_time = True
        plan = RunPlan(block=BLOCK, launches=launches, rounds=3)
        run.measure(runner, plan, end_s=end_s, order=order, stop_within_launch=stop_within_launch)
        assert not executor.live
        return run

    def executor(self, **options: Any) -> SimulatedExecutor:
        return SimulatedExecutor(lambda config: 1e6, peak_bytes=lambda config: 1e9, memory_bytes=1.5e9, **options)

    def test_never_more_than_one_is_live(self) -> None:
        executor = self.executor()
        run = self.measure(executor, make_sides(Config(), ONE_THREAD, TWO_THREADS))
        assert (executor.most_live, executor.n_starved) == (1, 0)
        assert [len(launch) for launch in run.launches] == [3, 3, 3, 3]
        assert all(len(measured_round.blocks) == 3 for launch in run.launches for measured_round in launch)
        assert [len(run.loaded[position]) for position in range(3)] == [4, 4, 4]

    def test_every_second_launch_has_the_reverse_order(self) -> None:
        executor = self.executor()
        self.measure(executor, make_sides(Config(), ONE_THREAD, TWO_THREADS), launches=8)
        orders = [executor.launched[start : start + 3] for start in range(0, 24, 3)]
        assert orders[1::2] == [order[::-1] for order in orders[::2]]
        assert len({tuple(config.key for config in order) for order in orders[::2]}) > 1
        fixed = self.executor()
        self.measure(fixed, make_sides(Config(), ONE_THREAD), order=alternate)
        there, back = [Config(), ONE_THREAD], [ONE_THREAD, Config()]
        assert fixed.launched == [*back, *there, *back, *there]

    def test_drift_cancels(self) -> None:
        """The host becomes slower by 5 % from one side to the next."""
        executor = self.executor(launch_sigma=0.0, block_sigma=0.0)
        executor.latency = lambda config: 1e6 * 1.05 ** len(executor.launched)
        run = self.measure(executor, make_sides(Config(), ONE_THREAD), launches=8)
        speedup = compute_speedup(run, 1, "mean")
        assert speedup is not None
        assert speedup.estimate == pytest.approx(1, abs=0.01)
        assert speedup.low < 0.98 and speedup.high > 1.02

    def test_a_side_that_fails_is_dropped(self) -> None:
        executor = self.executor(dies_when_measured=[ONE_THREAD])
        run = self.measure(executor, make_sides(Config(), ONE_THREAD, TWO_THREADS))
        assert list(run.failures) == [1]
        assert executor.launched.count(ONE_THREAD) == MAX_FIRST_FAILURES
        assert [len(measured_round.blocks) for launch in run.launches for measured_round in launch] == [2] * 12
        assert run.launches[0][0].failures.keys() == {1}

    def test_it_ends_when_only_the_baseline_is_left(self) -> None:
        run = self.measure(
            self.executor(fails_to_launch=lambda c: BROKEN if c == ONE_THREAD else None),
            make_sides(Config(), ONE_THREAD),
        )
        assert run.failures == {1: BROKEN}
        assert len(run.launches) == 1
        assert len(run.blocks(0)) == 3

    def test_a_required_side_that_fails_is_an_error(self) -> None:
        executor = self.executor(dies_when_measured=[ONE_THREAD])
        with pytest.raises(MeasureError, match="Side 1 worked at first and then failed"):
            self.measure(executor, make_sides(Config(), ONE_THREAD, is_required=True))
        assert not executor.live

    def test_no_launch_begins_that_would_end_too_late(self) -> None:
        executor = self.executor(launch_s=4.0)
        run = self.measure(executor, make_sides(Config(), ONE_THREAD), launches=None, end_s=40, stop_within_launch=True)
        assert len(run.launches) == 4
        assert executor.now_s() <= 40

    def test_a_contended_block_is_repeated_in_its_launch(self) -> None:
        executor = self.executor(contended_share=1.0)
        runner = BlockRunner(executor, np.random.default_rng(0))
        block = FreshCandidate(runner, ONE_THREAD).measure(BLOCK)
        assert isinstance(block, Block)
        assert executor.n_blocks == 3
        assert executor.launched == [ONE_THREAD]
        assert not executor.live
        noise = runner.describe_noise(contended=True)
        assert (noise.n_blocks, noise.n_repeated) == (3, 2)

    def test_rounds_of_fresh_candidates(self) -> None:
        executor = self.executor()
        runner = BlockRunner(executor, np.random.default_rng(0))
        lives = {position: FreshCandidate(runner, config) for position, config in enumerate((Config(), ONE_THREAD))}
        measured = next(runner.measure_rounds(lives, lambda: BLOCK))
        assert measured.blocks.keys() == measured.loads_ns.keys() == {0, 1}
        assert (executor.most_live, len(executor.launched)) == (1, 2)
        assert runner.describe_noise(contended=False).n_blocks == 2

    def test_bench(self) -> None:
        executor = self.executor(launch_s=1.0)
        executor.latency = lambda config: 1e6 if config == Config() else 8e5
        opened = open_simulated(executor, free_bytes=1_500_000_000)
        comparison = compare(opened, make_sides(Config(), ONE_THREAD), budget_s=60)
        assert (executor.most_live, executor.n_starved) == (1, 0)
        assert comparison.noise.one_at_a_time
        speedup = comparison.rows[1].speedup
        assert speedup is not None
        assert speedup.low < 1.25 < speedup.high
        assert speedup.n_launches >= 5
        assert executor.now_s() <= 66


@pytest.mark.usefixtures("no_workers_left")
def test_an_open_comparison_has_a_measured_baseline_and_one_blas_thread() -> None:
    setup = prepare_comparison(str(TINY_CNN), Goal(), InputOptions())
    np.ones((2, 2)) @ np.ones((2, 2))
    with (
        threadpool_limits(2, user_api="blas"),
        open_comparison(msgspec.structs.replace(setup, base=ONE_THREAD)) as opened,
    ):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} <= {1}
        assert opened.calibration.pace.call_ns > 0
        assert opened.runtime.onnxruntime
        assert opened.deterministic


@pytest.mark.usefixtures("no_workers_left")
@pytest.mark.long
def test_the_workers_of_two_programs_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int | None] = []
    send = WorkerProcess.send

    def note_limit(worker: WorkerProcess, request: protocol.Request) -> None:
        if isinstance(request, protocol.LoadRequest):
            limits.append(request.memory_limit_bytes)
        send(worker, request)

    monkeypatch.setattr(WorkerProcess, "send", note_limit)
    setup = prepare_comparison(str(TINY_CNN), Goal(), InputOptions())
    host_limits = msgspec.structs.replace(setup.host.limits, memory_bytes=2_000_000_000)
    host = msgspec.structs.replace(setup.host, limits=host_limits)
    with open_comparison(msgspec.structs.replace(setup, host=host, other=setup.program)) as opened:
        base, head = opened.executors
        usual_bytes = opened.calibration.peak_bytes
        limits.clear()
        run = PairedRun(make_sides(*[Config()] * 4), Load(), executors=(base, head, base, head))
        run.measure(opened.runner, RunPlan(block=BLOCK, launches=2, rounds=1), end_s=math.inf)
        # Each leaves room for the three others, no matter which executor launches it, and which is launched first.
        assert limits == [1_600_000_000 - 3 * usual_bytes] * 8
        limits.clear()
        (alone,) = opened.runner.launch([Config()], head)
        (beside,) = opened.runner.launch([Config()], base)
        assert limits == [1_600_000_000, 1_600_000_000 - usual_bytes]
        for live in (alone, beside):
            assert not isinstance(live, Failure)
            live.close()


@pytest.mark.parametrize(("name", "expected"), [("p50", 1.02), ("mean", 0.816), ("throughput", 0.816), ("cpu", 0.816)])
def test_rare_stalls_count_in_totals(name: Objective, expected: float) -> None:
    """One block of sixteen is stalled five times: a typical call is 1.02 times as fast, and all calls take longer."""
    run = PairedRun(make_sides(Config(), ONE_THREAD), Load())
    run.launches = [
        [make_round(1e6, (5e6 if step == launch else 1e6) / 1.02) for step in range(16)] for launch in range(5)
    ]
    speedup = compute_speedup(run, 1, name)
    assert speedup is not None
    assert speedup.estimate == pytest.approx(expected, rel=1e-3)


def make_round_of(*samples_ns: NDArray[np.float64]) -> Round:
    """Return a round with these latencies of its sides."""
    one = make_round(*(1.0 for _ in samples_ns))
    blocks = {
        position: msgspec.structs.replace(block, samples_ns=samples.astype(np.int64), n_calls=len(samples))
        for (position, block), samples in zip(one.blocks.items(), samples_ns, strict=True)
    }
    return Round(blocks=blocks, loads_ns=one.loads_ns, failures={}, contended=False)


def make_round(*calls_ns: float) -> Round:
    """Return a round in which each side makes ten calls of a duration."""
    blocks = {
        position: Block(
            samples_ns=np.full(10, call_ns, np.int64),
            n_calls=10,
            wall_ns=int(10 * call_ns),
            lead_in_ns=0,
            service_ns=call_ns,
            cpu_ns=int(10 * call_ns),
            memory=Memory(steady_bytes=1, peak_bytes=1),
            foreign_share=0.0,
            contended=False,
        )
        for position, call_ns in enumerate(calls_ns)
    }
    return Round(blocks=blocks, loads_ns=dict.fromkeys(blocks, 1), failures={}, contended=False)


class TestPercentilesOfFewCalls:
    """A launch has 32 calls, so that its slowest call or the one before is its p99."""

    def run(self, bulk: float, share: float, factor: float, n_launches: int = 48) -> PairedRun:
        """Return a run whose second side takes `bulk` times as long, and a share of its calls `factor` times more."""
        rng = np.random.default_rng(3)
        run = PairedRun(make_sides(Config(), ONE_THREAD), Load())
        for _ in range(n_launches):
            base = rng.lognormal(math.log(1e6), 0.03, 32)
            side = bulk * rng.lognormal(math.log(1e6), 0.03, 32) * np.where(rng.random(32) < share, factor, 1.0)
            run.launches.append([make_round_of(base, side)])
        return run

    @pytest.mark.parametrize(
        ("bulk", "share", "factor", "truth"),
        [(0.85, 0.02, 1.5, 0.84), (1.0, 0.007, 2.0, 0.99), (1.0, 0.0, 1.0, 1.0)],
        ids=["rare slow calls that p99 contains", "slow calls that are too rare", "equal sides"],
    )
    def test_a_speedup_is_not_claimed_for_the_slowest_calls(
        self, bulk: float, share: float, factor: float, truth: float
    ) -> None:
        run = self.run(bulk, share, factor)
        found = compute_speedup(run, 1, "p99")
        assert found
        assert found.estimate == pytest.approx(truth, rel=0.05)
        assert found.low <= truth <= found.high
        limit = check_limit(run, 1, parse_limit(f"p99<{1 / truth - 0.02}x"))
        assert limit.value == pytest.approx(1 / truth, rel=0.05)
        assert limit.kept != "yes"

    @pytest.mark.parametrize(("n_launches", "n_calls"), [(3, 200), (4, 100), (5, 100)])
    def test_a_limit_is_not_kept_if_its_calls_are_too_few(self, n_launches: int, n_calls: int) -> None:
        """Launches that differ are worth fewer calls. The true p99 is 100 ms, and a few launches have a lower one."""
        kept = []
        for seed in range(40):
            rng = np.random.default_rng(seed)
            run = PairedRun(make_sides(Config(), ONE_THREAD), Load())
            for _ in range(n_launches):
                calls = rng.lognormal(math.log(10e6), 0.02, n_calls)
                calls[rng.random(n_calls) < 0.011] = 100e6
                run.launches.append([make_round_of(calls, calls)])
            kept.append(check_limit(run, 1, parse_limit("p99<20ms")).kept)
        assert kept.count("yes") <= 1

    def test_with_too_few_calls_the_launches_give_the_interval(self) -> None:
        """An infinite end says nothing more than that the calls do not suffice, which is checked elsewhere."""
        found = compute_speedup(self.run(1.0, 0.0, 1.0, n_launches=4), 1, "p99")
        assert found
        assert 0.8 < found.low < 1 < found.high < 1.2


class TestTwoSpeeds:
    def run(self, factors: Sequence[float]) -> PairedRun:
        """Return a run whose second side takes a multiple of the usual time, in turn."""
        run = PairedRun(make_sides(Config(), ONE_THREAD), Load())
        rng = np.random.default_rng(0)
        for launch in range(6):
            rounds = []
            for number in range(8):
                levels = (1e6, 1e6 * factors[(launch * 8 + number) % len(factors)])
                blocks = {
                    position: Block(
                        samples_ns=np.full(8, int(level * np.exp(rng.normal(0, 0.02)))),
                        n_calls=8,
                        wall_ns=8 * int(level),
                        service_ns=level,
                        cpu_ns=8 * int(level),
                        memory=Memory(steady_bytes=1, peak_bytes=1),
                        foreign_share=0.0,
                        contended=False,
                    )
                    for position, level in enumerate(levels)
                }
                rounds.append(Round(blocks=blocks, loads_ns={0: 1, 1: 1}, failures={}, contended=False))
            run.launches.append(rounds)
        return run

    def test_they_are_found(self) -> None:
        found = find_side_at_two_speeds(self.run([1.0, 1.0, 1.0, 1.4]))
        assert found is not None
        assert found.side == "side 1"
        assert found.slow_share == pytest.approx(0.25)
        assert found.factor == pytest.approx(1.4, rel=0.03)

    def test_a_wide_spread_is_a_single_speed(self) -> None:
        factors = np.exp(np.random.default_rng(1).normal(0, 0.2, 48)).tolist()
        assert find_side_at_two_speeds(self.run(factors)) is None
        assert find_side_at_two_speeds(self.run([1.0])) is None

    def test_a_few_stalls_are_none(self) -> None:
        assert find_side_at_two_speeds(self.run([1.0] * 23 + [3.0])) is None


class TestDifferentFrequencies:
    def find(self, *rounds: Sequence[float | None]) -> dict[str, Any] | None:
        """Return what is found in two launches, whose rounds have these frequencies of the sides, in GHz."""
        run = PairedRun(make_sides(*(Config(), ONE_THREAD, TWO_THREADS)[: len(rounds[0])]), Load())
        run.launches = [[self.make_round(frequencies) for frequencies in rounds] for _ in range(2)]
        found = find_different_frequencies(run)
        return msgspec.structs.asdict(found) if found else None

    def make_round(self, frequencies: Sequence[float | None]) -> Round:
        one = make_round(*(1e6 for _ in frequencies))
        blocks = {
            position: msgspec.structs.replace(block, frequency_hz=ghz and 1e9 * ghz)
            for (position, block), ghz in zip(one.blocks.items(), frequencies, strict=True)
        }
        return Round(blocks=blocks, loads_ns=one.loads_ns, failures={}, contended=False)

    def test_the_sides_are_named(self) -> None:
        found = self.find((3.0, 2.8), (3.0, 2.9))
        assert found == {"slow": "side 1", "slow_hz": 2.85e9, "fast": "side 0", "fast_hz": 3e9}

    def test_the_largest_difference_counts(self) -> None:
        found = self.find((3.0, 2.9, 3.3), (3.0, 2.9, 3.3))
        assert found == {"slow": "side 0", "slow_hz": 3e9, "fast": "side 2", "fast_hz": 3.3e9}

    @pytest.mark.parametrize(
        "rounds",
        [
            ((3.0, 2.95), (3.0, 2.95)),  # at most 2 %
            ((3.0, 2.0), (2.0, 3.5)),  # by chance
            ((3.0, None), (None, 2.0)),  # unknown
            ((3.0,), (2.0,)),
        ],
    )
    def test_none_is_found(self, rounds: tuple[tuple[float | None, ...], ...]) -> None:
        assert self.find(*rounds) is None


def test_the_more_launches_differ_the_more_are_planned() -> None:
    pace = Pace(gap_ns=5e6, call_ns=5e6)
    plans = [plan_launches(60.0, pace, 0.4, launch_sigma=sigma, round_sigma=0.03) for sigma in (0.0, 0.01, 0.3)]
    assert [plan.launches for plan in plans] == sorted(plan.launches or 0 for plan in plans)
    assert plans[-1].launches == MOST_LAUNCHES_BY_NOISE
    assert all(paired_run_s(plan, pace, 0.4, 2) <= 60.5 for plan in plans)
    # There are 60 pairs if the time allows for them.
    assert plan_launches(20.0, pace, 0.4, launch_sigma=0.3, round_sigma=0.03).n_rounds >= 60
    short = plan_launches(8.0, pace, 0.4, launch_sigma=0.3, round_sigma=0.03)
    assert short.n_rounds < 60
    assert (short.launches or 0) >= 5
    # Launches that take long are few.
    assert (plan_launches(20.0, pace, 2.0, launch_sigma=0.3, round_sigma=0.03).launches or 0) < MOST_USUAL_LAUNCHES
    assert plan_launches(1.0, pace, 2.0, launch_sigma=0.3, round_sigma=0.03).launches == 0


@pytest.mark.parametrize("time_s", [5.0, 8.0, 20.0, 100.0])
def test_late_rounds_fit_into_the_time_of_a_run(time_s: float) -> None:
    pace = Pace(gap_ns=10e6, call_ns=10e6)
    size = (Goal(), pace, 0.1, 2)
    plan = plan_late_rounds(time_s, *size)
    assert plan.late_rounds >= 4
    assert (plan.launches or 0) >= 5
    assert paired_run_s(plan, pace, 0.1, 2) <= time_s


def test_late_rounds_take_no_calls_from_a_percentile() -> None:
    size = (Goal(objectives=("p99",)), Pace(gap_ns=10e6, call_ns=10e6), 0.1, 2)
    for time_s in (20.0, 60.0, 61.0, 62.0):
        plan = plan_late_rounds(time_s, *size)
        assert plan.n_rounds == plan_paired_run(time_s, *size).n_rounds
