"""Workers: real processes that are measured, suspended, and that fail in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from ortune.errors import InputsError
from ortune.knobs import DEFAULT, Config
from ortune.model import read_model
from ortune.record.schema import SCHEMA
from ortune.tuning.request import SearchRequest, prepare, search
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, cpu, readback
from ortune.worker.cpu import busy_ns, foreign_share, read_memory, tick_ns
from ortune.worker.executor import WORKER_COMMAND, ProcessExecutor, launch_reference
from ortune.worker.process import WorkerProcess
from ortune.worker.readback import find_unpinned, read_pool
from ortune.worker.session_info import PoolThread
from ortune.workload import InputOptions, Load, Tolerance, make_feed, make_load
from tests.conftest import FAULTY_WORKER, ROOT, TINY_CNN, TINY_ENCODER

PLAN = BlockPlan(duration_ns=20_000_000, lead_in_ns=2_000_000, min_calls=3, deadline_s=30)
USABLE = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0,)

pytestmark = pytest.mark.usefixtures("no_workers_left")


def level(name: str) -> Config:
    return Config(session_options={"graph_optimization_level": name})


def block_base(value: str) -> Config:
    return Config(session_config={"session.dynamic_block_base": value})


def make_executor(command: tuple[str, ...] | None = None, memory_limit_bytes: int | None = None) -> ProcessExecutor:
    model = read_model(TINY_CNN)
    feed = make_feed(model, InputOptions())
    executor = ProcessExecutor(
        model,
        feed,
        Tolerance(),
        usable=USABLE,
        memory_limit_bytes=memory_limit_bytes,
        command=command or WORKER_COMMAND,
    )
    launch_reference(executor, model, feed).close()
    return executor


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    with make_executor() as made:
        yield made


@pytest.fixture(scope="module")
def faulty() -> Iterator[ProcessExecutor]:
    with make_executor(FAULTY_WORKER, memory_limit_bytes=1_500_000_000) as made:
        yield made


def launch(executor: ProcessExecutor, config: Config, deadline_s: float = 60) -> LiveCandidate | Failure:
    (answer,) = executor.launch([config], deadline_s=deadline_s)
    return answer


def must_live(answer: LiveCandidate | Failure) -> WorkerProcess:
    assert isinstance(answer, WorkerProcess), answer
    return answer


def wait_for_status(pid: int, wanted: set[str]) -> None:
    """Wait until the process has one of these states: a signal is delivered when it is delivered."""
    status = ""
    for _ in range(200):
        try:
            status = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            status = "gone"
        if status in wanted:
            return
        time.sleep(0.05)
    pytest.fail(f"the worker is {status}, and should be {wanted}")


def test_a_block_holds_every_call(executor: ProcessExecutor) -> None:
    worker = must_live(launch(executor, DEFAULT))
    block = worker.measure(PLAN)
    worker.close()
    assert isinstance(block, Block)
    assert len(block.samples_ns) >= PLAN.min_calls
    assert block.samples_ns.sum() == block.wall_ns
    assert block.wall_ns >= PLAN.duration_ns
    assert block.lead_in_ns >= PLAN.lead_in_ns
    assert block.cpu_ns > 0
    assert block.foreign_share is not None


@pytest.mark.parametrize("load", [make_load(clients=3), make_load(rate=200), make_load(rate=200, clients=2)])
def test_a_block_under_any_load(executor: ProcessExecutor, load: Load) -> None:
    worker = must_live(launch(executor, DEFAULT))
    block = worker.measure(msgspec.structs.replace(PLAN, load=load, duration_ns=100_000_000))
    worker.close()
    assert isinstance(block, Block)
    assert len(block.samples_ns) > 0
    assert block.n_calls > 0
    assert block.wall_ns > 0
    assert block.service_ns > 0
    assert (block.cpu_between_ns is None) == (load.scenario != "server")


def test_the_same_seed_is_the_same_traffic(executor: ProcessExecutor) -> None:
    worker = must_live(launch(executor, DEFAULT))
    plan = msgspec.structs.replace(PLAN, load=make_load(rate=300), duration_ns=100_000_000)
    counts = []
    for seed in (1, 1, 2, 3, 4):
        block = worker.measure(msgspec.structs.replace(plan, seed=seed))
        assert isinstance(block, Block)
        counts.append(len(block.samples_ns))
    worker.close()
    assert counts[0] == counts[1]
    assert len(set(counts)) > 1


def test_creating_sessions_is_measured(executor: ProcessExecutor) -> None:
    worker = must_live(launch(executor, DEFAULT))
    blocks = [worker.measure(msgspec.structs.replace(PLAN, creations_ns=20_000_000)) for _ in range(2)]
    worker.close()
    for block in blocks:
        assert isinstance(block, Block)
        assert block.creations_ns is not None
        assert len(block.creations_ns) >= 2
    # Further sessions are not counted as memory of the first.
    assert blocks[0].memory == blocks[1].memory  # type: ignore[union-attr]


def test_samples_of_several_cases_are_told_apart() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(dims={"batch": (1, 8), "sequence": (16,)}))
    assert feed.n_cases == 2
    with ProcessExecutor(model, feed, Tolerance(), usable=USABLE) as executor:
        live = launch_reference(executor, model, feed)
        block = live.measure(msgspec.structs.replace(PLAN, min_calls=10))
    assert isinstance(block, Block)
    assert block.cases is not None
    assert set(block.cases.tolist()) == {0, 1}
    assert len(block.cases) == len(block.samples_ns)


def test_workers_are_suspended_while_they_are_not_measured(executor: ProcessExecutor) -> None:
    workers = [must_live(answer) for answer in executor.launch([DEFAULT, DEFAULT], deadline_s=60)]
    try:
        processes = [psutil.Process(worker.pid) for worker in workers]
        workers[0].measure(PLAN)
        for process in processes:
            wait_for_status(process.pid, {psutil.STATUS_STOPPED})
        before = [sum(process.cpu_times()[:2]) for process in processes]
        workers[1].measure(PLAN)
        after = [sum(process.cpu_times()[:2]) for process in processes]
        assert after[0] == before[0]
        assert after[1] >= before[1]
    finally:
        for worker in workers:
            worker.close()


def test_settings_are_read_back(executor: ProcessExecutor) -> None:
    config = Config(
        session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 3},
        session_config={"session.intra_op.allow_spinning": "0"},
    )
    worker = must_live(launch(executor, config))
    worker.close()
    assert worker.session_info.settings == config.settings
    assert worker.session_info.providers == ("CPUExecutionProvider",)
    assert worker.session_info.max_error is not None
    assert worker.session_info.max_error < 1e-4


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
def test_pool_threads_are_read_back(executor: ProcessExecutor) -> None:
    if len(USABLE) < 2:
        pytest.skip("one usable CPU")
    for number in USABLE[:2]:
        config = Config(
            session_options={"intra_op_num_threads": 2},
            session_config={"session.intra_op_thread_affinities": str(number + 1)},
        )
        worker = must_live(launch(executor, config))
        worker.close()
        assert [thread.cpus for thread in worker.session_info.threads] == [(number,)]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
def test_pinning_that_does_not_take_effect_is_a_failure(executor: ProcessExecutor) -> None:
    """A CPU that the machine does not have: onnxruntime only logs it, and the thread runs anywhere."""
    config = Config(
        session_options={"intra_op_num_threads": 2}, session_config={"session.intra_op_thread_affinities": "999"}
    )
    answer = launch(executor, config)
    assert isinstance(answer, Failure)
    assert answer.kind == "not_applied"
    assert "999" not in answer.message or "998" in answer.message


def test_an_option_that_onnxruntime_refuses_is_a_failure(executor: ProcessExecutor) -> None:
    answer = launch(executor, block_base("abc"))
    assert isinstance(answer, Failure)
    assert answer.kind == "exception"
    answer = launch(executor, Config(session_options={"no_such_option": 1}))
    assert isinstance(answer, Failure)
    assert "no_such_option" in answer.message


def test_environment_reaches_the_worker(executor: ProcessExecutor) -> None:
    """Junk in ORT_INTRA_OP_NUM_THREADS makes onnxruntime raise, which shows that it got there."""
    answer = launch(executor, Config(environment={"ORT_INTRA_OP_NUM_THREADS": "junk"}))
    assert isinstance(answer, Failure)
    assert "ORT_INTRA_OP_NUM_THREADS" in answer.message


def test_memory_is_told(executor: ProcessExecutor) -> None:
    worker = must_live(launch(executor, DEFAULT))
    block = worker.measure(PLAN)
    worker.close()
    assert isinstance(block, Block)
    memory = block.memory
    assert 10_000_000 < memory.steady_bytes <= memory.peak_bytes < 1_000_000_000


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (level("ORT_DISABLE_ALL"), "crash"),
        (level("ORT_ENABLE_BASIC"), "timeout"),
        (level("ORT_ENABLE_EXTENDED"), "exit"),
        (level("ORT_ENABLE_LAYOUT"), "out_of_memory"),
        (block_base("4"), "wrong_output"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_every_way_to_fail_is_a_value(faulty: ProcessExecutor, config: Config, kind: str) -> None:
    answer = launch(faulty, config, deadline_s=4 if kind == "timeout" else 60)
    assert isinstance(answer, Failure)
    assert answer.kind == kind
    assert answer.message


def test_garbage_on_stdout_does_not_matter(faulty: ProcessExecutor) -> None:
    worker = must_live(launch(faulty, block_base("2")))
    assert isinstance(worker.measure(PLAN), Block)
    worker.close()


def test_dying_while_measured_is_a_value(faulty: ProcessExecutor) -> None:
    worker = must_live(launch(faulty, block_base("8")))
    answer = worker.measure(PLAN)
    assert isinstance(answer, Failure)
    assert (answer.kind, answer.stage) == ("exit", "measure")
    assert worker.measure(PLAN) == answer
    worker.close()


def test_being_killed_from_outside_is_a_value(executor: ProcessExecutor) -> None:
    worker = must_live(launch(executor, DEFAULT))
    os.kill(worker.pid, signal.SIGKILL)
    answer = worker.measure(PLAN)
    assert isinstance(answer, Failure)
    assert answer.kind == "out_of_memory"
    assert "SIGKILL" in answer.message


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_workers_die_with_a_parent_that_is_killed() -> None:
    code = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.test_worker import make_executor
from ortune.knobs import DEFAULT
executor = make_executor()
(worker,) = executor.launch([DEFAULT], deadline_s=60)
print(worker.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            wait_for_status(pid, {psutil.STATUS_STOPPED})
        finally:
            parent.kill()
    # It is init's child now, so that it cannot be waited for.
    wait_for_status(pid, {"gone", psutil.STATUS_ZOMBIE})


def test_a_search_survives_all_of_it_and_names_it(tmp_path: Path) -> None:
    request = SearchRequest(
        model=str(TINY_CNN),
        output=tmp_path / "c.json",
        budget_s=40,
        n_trials=14,
        only=("graph_optimization_level", "session.dynamic_block_base"),
        worker_command=FAULTY_WORKER,
        memory_limit_bytes=1_500_000_000,
    )
    record = search(prepare(request)).record
    failures = {
        next(iter(trial.config.settings.values())): trial.failure.kind
        for trial in record.search.trials
        if trial.failure and len(trial.config.settings) == 1
    }
    assert failures["ORT_DISABLE_ALL"] == "crash"
    assert failures["ORT_ENABLE_BASIC"] == "timeout"
    assert failures["ORT_ENABLE_EXTENDED"] == "exit"
    assert failures["ORT_ENABLE_LAYOUT"] == "out_of_memory"
    assert failures["4"] == "wrong_output"
    assert failures["8"] == "exit"
    assert "2" not in failures
    assert record.evidence.output_check.rejected >= 1
    assert record.evidence.speedup is not None
    assert json.loads((tmp_path / "c.json").read_text())["schema"] == SCHEMA


def test_inputs_that_do_not_run_are_explained() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(shapes={"attention_mask": (1, 5)}))
    with (
        ProcessExecutor(model, feed, Tolerance(), usable=USABLE) as executor,
        pytest.raises(InputsError, match="does not run on these inputs") as caught,
    ):
        launch_reference(executor, model, feed)
    assert "attention_mask: int64[1,5]" in caught.value.message
    assert "--dim" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat")
def test_busy_time_of_cpus_is_read() -> None:
    cpus = frozenset(USABLE)
    before = busy_ns(cpus)
    end = time.process_time_ns() + 100_000_000
    while time.process_time_ns() < end:
        pass
    after = busy_ns(cpus)
    assert before is not None
    assert after is not None
    assert after - before >= 100_000_000 - 2 * tick_ns()


def test_foreign_share() -> None:
    assert foreign_share(0, 100_000_000, 2) == (0.0, False)
    assert foreign_share(100_000_000, 100_000_000, 2) == (0.5, True)
    share, contended = foreign_share(-5_000_000, 100_000_000, 2)
    assert share < 0
    assert not contended


def test_own_memory() -> None:
    assert read_memory().steady_bytes > 1_000_000


def test_samples_are_a_numpy_array(executor: ProcessExecutor) -> None:
    worker = must_live(launch(executor, DEFAULT))
    block = worker.measure(PLAN)
    worker.close()
    assert isinstance(block, Block)
    assert block.samples_ns.dtype == np.int64


def test_threads_that_pin_themselves_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = iter([(0, 1), (0, 1), (1,)])
    monkeypatch.setattr(cpu, "read_threads", lambda ids: (PoolThread(cpus=next(late)),))
    config = Config(session_config={"session.intra_op_thread_affinities": "2"})
    assert read_pool(frozenset({7}), config, 1) == (PoolThread(cpus=(1,)),)


def test_threads_that_never_pin_themselves_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "PINNING_S", 0.02)
    monkeypatch.setattr(cpu, "read_threads", lambda ids: (PoolThread(cpus=(0, 1)),))
    config = Config(session_config={"session.intra_op_thread_affinities": "2"})
    threads = read_pool(frozenset({7}), config, 1)
    assert "pinned to CPUs [(1,)], counted from 0, but may run on [(0, 1)]" in find_unpinned(config, threads, 1)
