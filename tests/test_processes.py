"""Loads of several processes: how they agree on a window, what a group measures, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from benchmarks.simulated_clock import SimulatedClock
from ortune import Config, Goal, Load, Record, Tolerance, UsageError, read_record
from ortune.errors import spell_as_flag
from ortune.measure.block_runner import BlockRunner
from ortune.measure.compute_figures import compute_figure, compute_worst_percentile
from ortune.measure.open import check_processes, open_comparison, prepare_comparison
from ortune.model import read_model
from ortune.record.files import encode_record
from ortune.record.journal import Measured, pack_block
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, cpu, protocol
from ortune.worker.block import GpuState, Memory
from ortune.worker.candidate_session import plan_of_process
from ortune.worker.executor import WORKER_COMMAND, ProcessExecutor, launch_reference
from ortune.worker.group import WorkerGroup, merge_blocks
from ortune.worker.load_generator import generate_load
from ortune.worker.memory_plan import MemoryPlan
from ortune.worker.open_loop import draw_arrivals
from ortune.worker.process import WorkerProcess
from ortune.worker.window import Window
from ortune.workload import InputOptions, make_feed, make_load
from tests.conftest import FAULTY_WORKER, TINY_CNN, run_ortune
from tests.records import make_local_record, write
from tests.simulated import make_host
from tests.test_cli import FAST
from tests.test_worker import PLAN, USABLE, ScriptedWorker, block_base, launch, level, wait_for_status
from tests.test_worker import SimulatedClock as WorkerClock

MS = 1_000_000
TWO = make_load(processes=2)
ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})


class SimulatedExchange:
    """Exchanges numbers between threads that stand for processes, on a simulated clock."""

    def __init__(self, clock: SimulatedClock, n_processes: int) -> None:
        self.clock = clock
        self.steps: list[dict[int, int]] = []
        self.n_processes = n_processes
        self.lock = threading.Lock()

    def of(self, number: int) -> Callable[[int], Sequence[int]]:
        step = -1

        def exchange(value: int) -> Sequence[int]:
            nonlocal step
            step += 1
            with self.lock:
                if len(self.steps) == step:
                    self.steps.append({})
                self.steps[step][number] = value
            while len(self.steps[step]) < self.n_processes:
                self.clock.sleep_ns(MS // 20)
            return tuple(self.steps[step][index] for index in range(self.n_processes))

        return exchange


def generate_together(
    load: Load, services_ms: Sequence[float], *, late_ms: Sequence[float] = (0, 0), **fields: Any
) -> list[Window[int]]:
    """Return the window of each of two processes, whose calls take so long, on one simulated clock."""
    clock = SimulatedClock()
    exchange = SimulatedExchange(clock, len(services_ms))
    windows: dict[int, Window[int]] = {}
    plan = BlockPlan(
        **{"duration_ns": 1000 * MS, "lead_in_ns": 100 * MS, "min_calls": 2, "deadline_s": 10, "load": load, **fields}
    )
    ids = tuple(range(len(services_ms)))

    def process(number: int) -> Callable[[], None]:
        def run() -> None:
            clock.sleep_ns(int(late_ms[number] * MS))
            windows[number] = generate_load(
                lambda sample: clock.sleep_ns(int(services_ms[number] * MS)),
                [0],
                plan_of_process(protocol.MeasureRequest(plan=plan, group=ids, number=number)),
                clock.now_ns,
                clock,
                exchange=exchange.of(number),
            )

        return run

    for join in [clock.start(process(number)) for number in ids]:
        join()
    return [windows[number] for number in ids]


class TestWindow:
    def test_processes_that_start_late_have_the_same_window(self) -> None:
        one, other = generate_together(TWO, [7, 11], late_ms=[0, 500])
        assert one.wall_ns == other.wall_ns == pytest.approx(1002 * MS, abs=MS)
        assert one.before == 0
        assert other.before == 500 * MS
        assert one.after == other.after  # both read when the window ends
        for window, service_ms in ((one, 7), (other, 11)):
            assert window.n_calls == pytest.approx(window.wall_ns / (service_ms * MS))
            assert set(window.latencies_ns.tolist()) == {service_ms * MS}
            assert window.cpu_ns == window.wall_ns

    def test_clients_of_each_process_are_its_own(self) -> None:
        for window in generate_together(make_load(clients=3, processes=2), [10, 10]):
            assert window.n_calls == pytest.approx(3 * window.wall_ns / (10 * MS))

    def test_the_window_lasts_until_the_slowest_has_its_calls(self) -> None:
        fast, slow = generate_together(TWO, [10, 3000])
        assert fast.wall_ns == slow.wall_ns > 6000 * MS
        assert len(slow.latencies_ns) == 2
        assert len(fast.latencies_ns) > 500

    def test_the_block_of_all_ends_with_a_hopeless_call_of_one(self) -> None:
        fast, slow = generate_together(TWO, [10, 3000], give_up_ns=2000 * MS)
        assert fast.wall_ns == slow.wall_ns < 3200 * MS
        assert slow.latencies_ns.tolist() == [3000 * MS]

    def test_requests_at_equal_intervals_come_to_each_in_turn(self) -> None:
        load = make_load(processes=2, rate_per_s=20, arrivals="periodic")
        windows = generate_together(load, [30, 30])
        for window in windows:
            assert set(window.latencies_ns.tolist()) == {30 * MS}
            assert window.n_calls == pytest.approx(10, abs=0.7)
        assert windows[0].wall_ns == windows[1].wall_ns == 1000 * MS

    def test_a_queue_waits_for_the_warm_up_of_all(self) -> None:
        load = make_load(processes=2, rate_per_s=20)
        windows = generate_together(load, [10, 80], longest_warm_up_ns=5000 * MS)
        assert windows[0].lead_in_ns == pytest.approx(windows[1].lead_in_ns, rel=0.05)
        assert windows[0].lead_in_ns > 300 * MS

    def test_each_process_has_traffic_of_its_own(self) -> None:
        plan = BlockPlan(
            load=make_load(processes=2, rate_per_s=100), duration_ns=1, lead_in_ns=0, min_calls=1, deadline_s=1, seed=5
        )
        first, second = (
            plan_of_process(protocol.MeasureRequest(plan=plan, group=(1, 2), number=number)) for number in (0, 1)
        )
        assert first.seed == plan.seed != second.seed
        counts = np.array(
            [
                [
                    len(draw_arrivals(process_plan.load, 0, 1000 * MS, process_plan.seed + step))
                    for process_plan in (first, second)
                ]
                for step in range(200)
            ]
        )
        assert counts.mean(axis=0) == pytest.approx([50, 50], abs=2)
        assert abs(np.corrcoef(counts.T)[0, 1]) < 0.25


def make_block(samples: list[int], **fields: Any) -> Block:
    values: dict[str, Any] = {
        "n_calls": float(len(samples)),
        "wall_ns": 1000,
        "service_ns": float(np.mean(samples)),
        "cpu_ns": 500,
        "memory": Memory(steady_bytes=10, peak_bytes=20),
        "foreign_share": None,
        "contended": False,
        **fields,
    }
    return Block(samples_ns=np.array(samples, dtype=np.int64), **values)


class TestMergedBlocks:
    def test_calls_and_resources_are_sums(self) -> None:
        merged = merge_blocks(
            [
                make_block([10, 10, 40], foreign_share=0.01, contended=True, cpu_between_ns=2.0, lead_in_ns=3),
                make_block(
                    [100],
                    frequency_hz=2e9,
                    memory=Memory(steady_bytes=1, peak_bytes=2),
                    cpu_between_ns=6.0,
                    lead_in_ns=5,
                ),
            ]
        )
        assert merged.samples_ns.tolist() == [10, 10, 40, 100]
        assert merged.processes is not None
        assert merged.processes.tolist() == [0, 0, 0, 1]
        assert (merged.n_calls, merged.wall_ns, merged.cpu_ns, merged.lead_in_ns) == (4, 1000, 1000, 5)
        assert merged.memory == Memory(steady_bytes=11, peak_bytes=22)
        assert merged.service_ns == pytest.approx(40)
        assert merged.cpu_between_ns == pytest.approx(3)
        assert (merged.foreign_share, merged.contended, merged.frequency_hz) == (0.01, True, 2e9)
        assert compute_figure("throughput", [merged]) == pytest.approx(4e6)
        assert compute_figure("cpu", [merged]) == pytest.approx(250)
        assert compute_figure("p99", [merged]) == 100

    def test_windows_that_differ_add_up_to_the_same_throughput(self) -> None:
        blocks = [make_block([10] * 50, wall_ns=500), make_block([10] * 30, wall_ns=600)]
        merged = merge_blocks(blocks)
        throughput = sum(compute_figure("throughput", [block]) for block in blocks)
        assert compute_figure("throughput", [merged]) == pytest.approx(throughput)

    def test_items_are_counted(self) -> None:
        merged = merge_blocks([make_block([10], batch=4), make_block([10], batch=4)])
        assert merged.n_items == 8

    def test_cases_and_creations_of_all_are_kept(self) -> None:
        merged = merge_blocks(
            [
                make_block([1, 2], cases=np.array([0, 1]), creations_ns=np.array([5, 6])),
                make_block([3], cases=np.array([1]), creations_ns=np.array([7])),
            ]
        )
        assert merged.cases is not None
        assert merged.cases.tolist() == [0, 1, 1]
        assert merged.creations_ns is not None
        assert merged.creations_ns.tolist() == [5, 6, 7]

    def test_a_gpu_is_shared(self) -> None:
        states = [
            GpuState(used_bytes=10, clock_mhz=5, free_bytes=70, free_before_bytes=100),
            GpuState(used_bytes=10, clock_mhz=5, free_bytes=60, free_before_bytes=90, slowdowns=("hot",)),
        ]
        merged = merge_blocks([make_block([1], gpu=state) for state in states]).gpu
        assert merged is not None
        assert (merged.used_bytes, merged.free_bytes, merged.free_before_bytes) == (20, 60, 100)
        assert merged.slowdowns == ("hot",)

    def test_the_worst_process_is_found(self) -> None:
        fast, slow = make_block([10, 20, 30]), make_block([50, 60, 900])
        # In the second launch, another process is the slowest.
        launches = [[merge_blocks([fast, slow])] * 2, [merge_blocks([slow, fast])]]
        assert compute_worst_percentile(launches, 50) == 60
        assert compute_worst_percentile(launches, 99) == 900
        assert compute_worst_percentile([[make_block([10])]], 50) is None

    def test_a_process_without_a_case_is_compared_by_the_others(self) -> None:
        one = make_block([10, 40], cases=np.array([0, 1]))
        other = make_block([90], cases=np.array([1]))
        assert compute_worst_percentile([[merge_blocks([one, other])]], 50) == 90

    def test_a_journal_keeps_which_process_served_a_call(self) -> None:
        block = merge_blocks([make_block([10, 20]), make_block([50])])
        line = Measured(launch=0, position=0, plan=PLAN, block=pack_block(block), at_s=1.0)
        back = line.unpack()
        assert isinstance(back, Block)
        assert back.processes is not None
        assert back.processes.tolist() == [0, 0, 1]
        short = msgspec.structs.replace(block, processes=np.array([0]))
        with pytest.raises(ValueError, match="no worker sends"):
            msgspec.structs.replace(line, block=pack_block(short)).unpack()


def test_memory_is_divided_among_all_processes() -> None:
    plan = MemoryPlan(12_000)
    assert plan.find_limit(3) == 12_000
    plan.usual_bytes = 1000
    assert [plan.find_limit(n_new) for n_new in (3, 6, 12)] == [10_000, 7000, 1000]
    for name in ("a", "b", "c"):
        plan.add(name)
    assert plan.find_limit(3) == 7000
    with plan.expect(9):
        assert plan.find_limit(3) == 4000


@pytest.mark.parametrize(
    ("load", "n_cores", "system", "message"),
    [
        (make_load(processes=9), 2, "Linux", "--processes 9: more than 4 processes for each of the 2 usable CPUs."),
        (
            make_load(processes=3, pinned=True),
            2,
            "Linux",
            "3 processes cannot have CPUs of their own on 2 usable cores.",
        ),
        (make_load(processes=2, pinned=True), 4, "Darwin", "macOS cannot pin processes to CPUs."),
        (make_load(processes=8), 2, "Linux", ""),
        (make_load(processes=2, pinned=True), 2, "Linux", ""),
    ],
)
def test_a_host_has_room_for_so_many_processes(load: Load, n_cores: int, system: str, message: str) -> None:
    host = msgspec.structs.replace(make_host(n_cores), system=system)
    if not message:
        check_processes(load, host)
        return
    with pytest.raises(UsageError) as caught:
        check_processes(load, host)
    assert caught.value.render(spell_as_flag)[0] == message


def make_executor(command: Sequence[str] = WORKER_COMMAND, **options: Any) -> ProcessExecutor:
    model = read_model(TINY_CNN)
    feed = make_feed(model, InputOptions())
    return ProcessExecutor(model, feed, Tolerance(), usable=USABLE, n_processes=2, command=command, **options)


@pytest.fixture(scope="class")
def executor() -> Iterator[ProcessExecutor]:
    with make_executor() as made:
        model = read_model(TINY_CNN)
        launch_reference(made, model, make_feed(model, InputOptions())).close()
        yield made


@pytest.fixture(scope="class")
def faulty_executor() -> Iterator[ProcessExecutor]:
    with make_executor(FAULTY_WORKER, memory_limit_bytes=1_500_000_000) as made:
        model = read_model(TINY_CNN)
        launch_reference(made, model, make_feed(model, InputOptions())).close()
        yield made


def require_group(result: LiveCandidate | Failure) -> WorkerGroup:
    assert isinstance(result, WorkerGroup), result
    return result


def has_ended(worker: WorkerProcess) -> bool:
    return not psutil.pid_exists(worker.pid) or psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("forked_children", "no_workers_left")
class TestWorkers:
    @pytest.mark.parametrize(
        "load",
        [
            TWO,
            make_load(clients=2, processes=2),
            make_load(processes=2, rate_per_s=200),
            make_load(processes=2, rate_per_s=200, arrivals="periodic"),
        ],
        ids=str,
    )
    def test_a_block_holds_the_calls_of_both(self, executor: ProcessExecutor, load: Load) -> None:
        group = require_group(launch(executor, ONE_THREAD))
        try:
            plan = msgspec.structs.replace(PLAN, load=load, duration_ns=100 * MS)
            for _ in range(2):
                block = group.measure(plan)
                assert isinstance(block, Block)
                assert block.processes is not None
                assert set(block.processes.tolist()) == {0, 1}
                assert len(block.processes) == len(block.samples_ns)
                assert block.wall_ns > 0
                assert block.n_calls > 2
                assert block.cpu_ns > 0
                # Two processes with Python and ONNX Runtime in each.
                assert block.memory.steady_bytes > 60_000_000
                assert (block.cpu_between_ns is None) == (load.scenario != "server")
        finally:
            group.close()

    def test_groups_are_suspended_and_resumed_as_one(self, executor: ProcessExecutor) -> None:
        groups = [require_group(candidate) for candidate in executor.launch([Config(), ONE_THREAD], deadline_s=60)]
        try:
            for worker in (worker for group in groups for worker in group.workers):
                wait_for_status(worker.pid, {psutil.STATUS_STOPPED})
            for measured, other in (groups, groups[::-1]):
                before = [sum(psutil.Process(worker.pid).cpu_times()[:2]) for worker in other.workers]
                assert isinstance(measured.measure(PLAN), Block)
                for group in groups:
                    for worker in group.workers:
                        wait_for_status(worker.pid, {psutil.STATUS_STOPPED})
                assert [sum(psutil.Process(worker.pid).cpu_times()[:2]) for worker in other.workers] == before
        finally:
            for group in groups:
                group.close()
        assert all(has_ended(worker) for group in groups for worker in group.workers)

    def test_if_one_process_dies_the_group_fails(self, executor: ProcessExecutor) -> None:
        group = require_group(launch(executor, Config()))
        os.kill(group.workers[1].pid, signal.SIGKILL)
        failure = group.measure(PLAN)
        assert failure == Failure(kind="crash", stage="measure", message="one of 2 processes: ended by SIGKILL")
        assert group.measure(PLAN) == failure
        assert all(has_ended(worker) for worker in group.workers)

    def test_a_group_whose_process_died_is_launched_again(self, executor: ProcessExecutor) -> None:
        runner = BlockRunner(executor, np.random.default_rng(1))
        (live,) = runner.launch([Config()])
        assert not isinstance(live, Failure)
        try:
            assert isinstance(live.measure(PLAN), Block)
            os.kill(require_group(live._live).workers[0].pid, signal.SIGKILL)
            assert isinstance(live.measure(PLAN), Block)
            assert runner.n_launched_again == 1
        finally:
            live.close()

    @pytest.mark.parametrize(
        ("config", "kind"),
        [(level("ORT_DISABLE_ALL"), "crash"), (block_base("4"), "wrong_output")],
        ids=["crash", "outputs"],
    )
    def test_a_group_that_fails_to_load_is_a_value(
        self, faulty_executor: ProcessExecutor, config: Config, kind: str
    ) -> None:
        failure, works = faulty_executor.launch([config, Config()], deadline_s=60)
        assert isinstance(failure, Failure)
        assert failure.kind == kind
        assert failure.message.startswith("one of 2 processes: ")
        assert isinstance(require_group(works).measure(PLAN), Block)
        works.close()  # type: ignore[union-attr]

    def test_an_exit_in_a_block_does_not_wait_for_the_deadline(self, faulty_executor: ProcessExecutor) -> None:
        group = require_group(launch(faulty_executor, block_base("8")))
        failure = group.measure(msgspec.structs.replace(PLAN, deadline_s=3600))
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.stage) == ("exit", "measure")

    def test_a_process_that_does_not_answer_is_a_timeout(self, tmp_path: Path) -> None:
        """The second process of the group hangs in its first block, while the first one waits for it."""
        program = tmp_path / "worker.py"
        program.write_text(
            "import time\n"
            "from ortune.worker.candidate_session import CandidateSession\n"
            "from ortune.worker.main import main\n"
            "class Session(CandidateSession):\n"
            "    def measure(self, request):\n"
            "        if request.number:\n"
            "            time.sleep(3600)\n"
            "        return super().measure(request)\n"
            "main(Session)\n"
        )
        with make_executor((sys.executable, "-P", str(program))) as executor:
            group = require_group(launch(executor, Config()))
            failure = group.measure(msgspec.structs.replace(PLAN, deadline_s=1))
        assert failure == Failure(kind="timeout", stage="measure", message="one of 2 processes: no reply within 1 s")

    @pytest.mark.skipif(sys.platform != "linux" or len(USABLE) < 2, reason="needs Linux and two CPUs")
    def test_pinned_processes_have_cpus_of_their_own(self) -> None:
        parts = tuple((number,) for number in USABLE[:2])
        with make_executor(pinned_to=parts) as executor:
            group = require_group(launch(executor, Config(session_options={"intra_op_num_threads": 2})))
            assert [tuple(psutil.Process(worker.pid).cpu_affinity()) for worker in group.workers] == list(parts)
            for worker, part in zip(group.workers, parts, strict=True):
                assert {thread.cpus for thread in worker.session_info.threads} == {part}
            assert isinstance(group.measure(PLAN), Block)

    def test_a_comparison_launches_groups(self) -> None:
        setup = prepare_comparison(str(TINY_CNN), Goal(load=TWO, objectives=("throughput",)), InputOptions())
        with open_comparison(setup) as opened:
            assert opened.runner.memory.usual_bytes == opened.calibration.peak_bytes // 2
            (live,) = opened.runner.launch([Config()])
            assert not isinstance(live, Failure)
            assert len(require_group(live._live).workers) == 2
            live.close()


@pytest.mark.parametrize(
    ("durations_s", "failures"),
    [
        ([(9, 9), (5, 9)], {}),
        # The group has the time of one launch for each stage, as all of its workers load side by side.
        ([(9, 9), (11, 0)], {0: ("load", 10)}),
        ([(9, 6), (1, 9), (1, 99), (9, 9)], {1: ("check", 11)}),
        # The last group gets the time of a single launch: half of the deadline for two.
        ([(1, 1), (1, 1), (1, 1), (1, 99)], {1: ("check", 7)}),
        ([(1, 1), (1, 1), (99, 1), (99, 1)], {1: ("load", 7)}),
    ],
)
def test_a_group_is_given_up_as_one(
    monkeypatch: pytest.MonkeyPatch, durations_s: list[tuple[float, float]], failures: dict[int, tuple[str, float]]
) -> None:
    monkeypatch.setattr(WorkerClock, "now_s", 0.0)
    monkeypatch.setattr("ortune.worker.executor.wait", WorkerClock.wait)
    monkeypatch.setattr("ortune.worker.executor.time", WorkerClock)
    workers = [ScriptedWorker(*pair) for pair in durations_s]
    groups: list[Any] = [workers[:2], workers[2:]] if len(workers) > 2 else [workers]
    with make_executor() as executor:
        found = executor._finish_loading(groups, 10)
    failed = {number: found[group[0]] for number, group in enumerate(groups) if group[0] in found}
    assert failed == {
        number: Failure(kind="timeout", stage=stage, message=f"one of 2 processes: after {at_s:g} s")
        for number, (stage, at_s) in failures.items()
    }
    for number, group in enumerate(groups):
        # The worker that fails closes itself.
        assert [worker.is_closed for worker in group].count(True) == (number in failures)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_the_cpu_time_of_the_whole_group_is_its_own() -> None:
    """What the other process of a group uses must not count as use by others."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            before = cpu.find_process_ns(busy.pid)
            while cpu.find_process_ns(busy.pid) < before + 50 * MS:
                time.sleep(0.01)
            threads = cpu.read_thread_times((os.getpid(), busy.pid))
            assert {os.getpid(), busy.pid} <= threads.keys()
        finally:
            busy.kill()
    assert cpu.find_process_ns(busy.pid) == 0


def test_a_search_of_several_processes(tmp_path: Path) -> None:
    options = ("-o", "c.json", "--processes", "2")
    done = run_ortune("search", TINY_CNN, *options, *FAST, cwd=tmp_path, simulate=True)
    assert done.returncode in {0, 3}, done.stderr
    assert "2 processes with one client each, back to back" in done.stdout
    assert "p99, worst process" in done.stdout
    record = read_record(tmp_path / "c.json")
    assert record.workload.load == TWO
    assert record.evidence.baseline is not None
    assert record.evidence.baseline.worst_p99_ns is not None
    assert msgspec.json.decode(encode_record(record), type=Record) == record


def test_a_gate_of_several_processes(tmp_path: Path) -> None:
    options = ("--processes", "2", "--budget", "60s", "--busy", "--max-slowdown", "300%", "--json")
    done = run_ortune("gate", TINY_CNN, TINY_CNN, *options, cwd=tmp_path, simulate=True)
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    assert "worst p99" in " ".join(done.stderr.split())
    (result,) = json.loads(done.stdout)
    for side in ("base", "head"):
        assert result[side]["summary"]["worst_p99_ns"] > 0


def test_a_verification_of_several_processes(tmp_path: Path) -> None:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    record = msgspec.structs.replace(
        record,
        workload=msgspec.structs.replace(record.workload, load=TWO, objectives=("throughput",)),
        evidence=msgspec.structs.replace(record.evidence, objective="throughput"),
    )
    write(record, tmp_path / "r.json")
    options = ("--verify", "--budget", "6s", "--json", "-q")
    done = run_ortune("apply", "r.json", TINY_CNN, *options, cwd=tmp_path, simulate=True)
    assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
    rows = json.loads(done.stdout)["comparison"]["rows"]
    assert [row["summary"]["worst_p99_ns"] > 0 for row in rows] == [True, True]


def test_too_many_processes_for_this_host_get_a_message(tmp_path: Path) -> None:
    if 4 * len(USABLE) >= 64:
        pytest.skip("this host has room for all")
    done = run_ortune("bench", TINY_CNN, "--set", "intra_op_num_threads=1", "--processes", "64", cwd=tmp_path)
    assert done.returncode == 2
    assert "--processes 64: more than 4 processes for each of the" in done.stderr
