"""Worker processes: measuring, suspending, checks, and all kinds of failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from ortune import Config, HostError, InputsError, Load, ModelError, Record, Tolerance
from ortune.knobs import DEFAULT
from ortune.model import read_model
from ortune.record.files import read_trials
from ortune.record.schema import RECORD_SCHEMA
from ortune.replaceable import replaced
from ortune.requests import SearchRequest
from ortune.tuning.prepare import prepare
from ortune.tuning.search import search
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, cpu, filled_memory, protocol, readback
from ortune.worker.cpu import (
    CpuUse,
    ThreadTime,
    busy_ns,
    find_longest_wait,
    read_memory,
    read_sizes,
    read_stat,
    read_thread_times,
    tick_ns,
)
from ortune.worker.executor import WORKER_COMMAND, ProcessExecutor, launch_reference, open_workers
from ortune.worker.graphs import digest_graphs
from ortune.worker.memory_plan import MemoryPlan
from ortune.worker.process import WorkerProcess
from ortune.worker.readback import find_unpinned, read_pool
from ortune.worker.session_info import PoolThread
from ortune.workload import InputOptions, make_feed, make_load
from tests.budgets import scale_budget
from tests.conftest import FAULTY_WORKER, TINY_CNN, TINY_ENCODER
from tests.simulated.children import ForkedProcess, NewProcess

PLAN = BlockPlan(duration_ns=20_000_000, lead_in_ns=2_000_000, min_calls=3, deadline_s=30)
USABLE = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0,)

pytestmark = pytest.mark.usefixtures("forked_children", "models_read_here", "no_workers_left")


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


def launch(executor: ProcessExecutor, config: Config, deadline_s: float = 60) -> LiveCandidate | Failure:
    (result,) = executor.launch([config], deadline_s=deadline_s)
    return result


def require_worker(result: LiveCandidate | Failure) -> WorkerProcess:
    assert isinstance(result, WorkerProcess), result
    return result


def test_workers_share_the_memory() -> None:
    plan = MemoryPlan(10_000)
    assert [plan.find_limit(n_new) for n_new in (1, 2, 4)] == [10_000, 10_000, 10_000]
    plan.usual_bytes = 3000
    # Each may take what the others leave, but never less than its part.
    assert [plan.find_limit(n_new) for n_new in (1, 2, 3, 4)] == [10_000, 7000, 4000, 2500]
    plan.add("a worker")
    assert [plan.find_limit(n_new) for n_new in (1, 2)] == [7000, 4000]
    with plan.expect(3):
        assert [plan.find_limit(n_new) for n_new in (1, 2, 3)] == [4000, 4000, 2500]
    assert plan.find_limit(1) == 7000
    plan.remove("a worker")
    plan.remove("a worker")
    assert [plan.find_limit(n_new) for n_new in (1, 4)] == [10_000, 2500]
    assert MemoryPlan(None).find_limit(9) is None


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    with make_executor() as made:
        yield made


@pytest.fixture(scope="module")
def faulty_executor() -> Iterator[ProcessExecutor]:
    with make_executor(FAULTY_WORKER, memory_limit_bytes=600_000_000) as made:
        yield made


@pytest.fixture(scope="module")
def worker(executor: ProcessExecutor) -> WorkerProcess:
    """A worker with the default config, which the tests of this module share."""
    return require_worker(launch(executor, DEFAULT))


def wait_for_status(pid: int, wanted: set[str]) -> None:
    """Wait until a process has one of these states. Signals are delivered with a delay."""
    status = ""
    for _ in range(200):
        try:
            status = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            status = "gone"
        if status in wanted:
            return
        time.sleep(0.05)
    pytest.fail(f"the status of the worker is {status}, not one of {wanted}")


def test_names_of_processes_that_are_cut_within_a_character(tmp_path: Path) -> None:
    """Linux keeps 15 bytes of a name, as they are."""
    name = "нагрузка.sh".encode()[:15]
    (tmp_path / "stat").write_bytes(b"42 (" + name + b") S 1 42")
    assert read_stat(tmp_path) == ["S", "1", "42"]
    (tmp_path / "status").write_bytes(b"Name:\t" + name + b"\nVmHWM:\t  12 kB\n")
    assert read_sizes(str(tmp_path / "status")) == {"VmHWM": 12 * 1024}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_forked_children_are_like_started_ones(tmp_path: Path) -> None:
    """What other tests have in place of processes that Python starts."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys\n"
        "own = [sys.argv, os.getcwd(), os.environ.get('OWN'), 'ORTUNE_TEST_RUN' in os.environ, sys.stdin.read()]\n"
        "place = [os.getpgid(0) == os.getpid(), os.getppid(), sorted(os.sched_getaffinity(0)), __name__]\n"
        "print(json.dumps([own, place]), flush=True)\n"
        "os.kill(os.getpid(), 15)\n"
    )
    found = []
    for start in (ForkedProcess, NewProcess):
        with start(
            [sys.executable, "-P", str(program), "one", "two"],
            cwd=tmp_path,
            env={"OWN": "value"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            text=True,
        ) as process:
            stdout, _ = process.communicate("input", timeout=60)
            found.append((process.returncode, json.loads(stdout)))
    assert found[0] == found[1]
    returncode, (own, place) = found[0]
    assert returncode == -signal.SIGTERM
    assert own == [[str(program), "one", "two"], str(tmp_path), "value", False, "input"]
    assert place == [True, os.getpid(), list(USABLE), "__main__"]


def test_block_contains_all_calls(worker: WorkerProcess) -> None:
    block = worker.measure(PLAN)
    assert isinstance(block, Block)
    assert block.samples_ns.dtype == np.int64
    assert len(block.samples_ns) >= PLAN.min_calls
    assert block.samples_ns.sum() == block.wall_ns
    assert block.wall_ns >= PLAN.duration_ns
    assert block.lead_in_ns >= PLAN.lead_in_ns
    assert block.cpu_ns > 0
    assert block.foreign_share is not None
    assert 10_000_000 < block.memory.steady_bytes <= block.memory.peak_bytes < 1_000_000_000


@pytest.mark.parametrize(
    "load", [make_load(clients=3), make_load(rate_per_s=200), make_load(rate_per_s=200, clients=2)]
)
def test_block_under_each_load(worker: WorkerProcess, load: Load) -> None:
    block = worker.measure(msgspec.structs.replace(PLAN, load=load, duration_ns=100_000_000))
    assert isinstance(block, Block)
    assert len(block.samples_ns) > 0
    assert block.n_calls > 0
    assert block.wall_ns > 0
    assert block.service_ns > 0
    assert (block.cpu_between_ns is None) == (load.scenario != "server")


def test_same_seed_gives_same_traffic(worker: WorkerProcess) -> None:
    plan = msgspec.structs.replace(PLAN, load=make_load(rate_per_s=300), duration_ns=100_000_000)

    def count(seed: int) -> int:
        block = worker.measure(msgspec.structs.replace(plan, seed=seed))
        assert isinstance(block, Block)
        return len(block.samples_ns)

    # Requests that arrive near the ends of the window may be served outside of it, and a busy host serves many late.
    assert any(abs(count(1) - count(1)) <= 3 for _ in range(5))
    assert len({count(seed) for seed in (1, 2, 3, 4)}) > 1


def test_session_creation_is_measured(executor: ProcessExecutor) -> None:
    worker = require_worker(launch(executor, DEFAULT))
    blocks = [worker.measure(msgspec.structs.replace(PLAN, creations_ns=20_000_000)) for _ in range(2)]
    worker.close()
    for block in blocks:
        assert isinstance(block, Block)
        assert block.creations_ns is not None
        assert len(block.creations_ns) >= 2
    # The extra sessions do not count as memory of the candidate.
    assert blocks[0].memory == blocks[1].memory  # type: ignore[union-attr]


def test_each_call_has_its_case() -> None:
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


def test_workers_are_suspended_between_blocks(executor: ProcessExecutor) -> None:
    workers = [require_worker(result) for result in executor.launch([DEFAULT, DEFAULT], deadline_s=60)]
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


@pytest.mark.usefixtures("started_children")
def test_settings_are_read_back(executor: ProcessExecutor) -> None:
    config = Config(
        session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 3},
        session_config={"session.intra_op.allow_spinning": "0"},
    )
    worker = require_worker(launch(executor, config))
    worker.close()
    assert worker.session_info.settings == config.settings
    assert worker.session_info.providers == ("CPUExecutionProvider",)
    assert worker.session_info.max_error is not None
    assert worker.session_info.max_error < 1e-4


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
def test_cpus_of_pool_threads_are_read_back(executor: ProcessExecutor) -> None:
    if len(USABLE) < 2:
        pytest.skip("one usable CPU")
    for number in USABLE[:2]:
        config = Config(
            session_options={"intra_op_num_threads": 2},
            session_config={"session.intra_op_thread_affinities": str(number + 1)},
        )
        worker = require_worker(launch(executor, config))
        worker.close()
        assert [thread.cpus for thread in worker.session_info.threads] == [(number,)]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
def test_ineffective_pinning_is_a_failure(executor: ProcessExecutor) -> None:
    """With a CPU that does not exist, onnxruntime only logs an error, and the thread may run anywhere."""
    config = Config(
        session_options={"intra_op_num_threads": 2}, session_config={"session.intra_op_thread_affinities": "999"}
    )
    result = launch(executor, config)
    assert isinstance(result, Failure)
    assert result.kind == "not_applied"
    assert "999" not in result.message or "998" in result.message


def test_rejected_option_is_a_failure(executor: ProcessExecutor) -> None:
    result = launch(executor, block_base("abc"))
    assert isinstance(result, Failure)
    assert result.kind == "exception"
    result = launch(executor, Config(session_options={"no_such_option": 1}))
    assert isinstance(result, Failure)
    assert "no_such_option" in result.message


def test_environment_is_passed_to_the_worker(executor: ProcessExecutor) -> None:
    """An invalid value of ORT_INTRA_OP_NUM_THREADS makes onnxruntime raise an exception."""
    result = launch(executor, Config(environment={"ORT_INTRA_OP_NUM_THREADS": "junk"}))
    assert isinstance(result, Failure)
    assert "ORT_INTRA_OP_NUM_THREADS" in result.message


def test_the_baseline_is_the_default_of_onnxruntime(executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the environment of the user says about it."""
    monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", "junk")
    live = launch(executor, DEFAULT)
    assert not isinstance(live, Failure), live
    live.close()


@pytest.mark.usefixtures("started_children")
@pytest.mark.parametrize(
    ("of_user", "of_config", "found"), [(None, None, None), ("2", None, "2"), (None, "1", "1"), ("2", "1", "1")]
)
def test_sessions_have_the_blas_threads_of_the_user(
    of_user: str | None, of_config: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only NumPy starts none: a library of custom operators has as many as in the user's program."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if of_user:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", of_user)
    program = tmp_path / "worker.py"
    program.write_text(
        "import os\n"
        "at_start = os.environ.get('OPENBLAS_NUM_THREADS')\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "class Session(CandidateSession):\n"
        "    def load(self):\n"
        "        if self.request.is_reference:\n"
        "            return super().load()\n"
        "        raise RuntimeError(f\"{at_start} for NumPy, then {os.environ.get('OPENBLAS_NUM_THREADS')}\")\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        environment = {"OPENBLAS_NUM_THREADS": of_config} if of_config else {}
        result = launch(executor, Config(environment=environment))
    assert isinstance(result, Failure)
    assert result.message == f"{found or '01'} for NumPy, then {found}"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (level("ORT_DISABLE_ALL"), "crash"),
        (level("ORT_ENABLE_BASIC"), "timeout"),
        (level("ORT_ENABLE_EXTENDED"), "exit"),
        (level("ORT_ENABLE_LAYOUT"), "out_of_memory"),
        (block_base("4"), "wrong_output"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_failure_is_a_value(faulty_executor: ProcessExecutor, config: Config, kind: str) -> None:
    result = launch(faulty_executor, config, deadline_s=1 if kind == "timeout" else 60)
    assert isinstance(result, Failure)
    assert result.kind == kind
    assert result.message


@pytest.mark.parametrize(
    ("method", "stage", "message"),
    [
        ("load", "load", "the session was not created within 1 s"),
        ("check", "check", "its first run did not end within 1 s"),
    ],
)
def test_a_slow_load_and_a_first_run_that_hangs_are_told_apart(
    tmp_path: Path, method: str, stage: str, message: str
) -> None:
    """Only the stage that hangs is waited for in vain: the other one has all the time that it needs."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import time\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "class Session(CandidateSession):\n"
        f"    def {method}(self, *arguments):\n"
        "        if not self.request.is_reference:\n"
        "            time.sleep(3600)\n"
        f"        return super().{method}(*arguments)\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        worker = executor._start(DEFAULT, None, is_reference=False)
        assert isinstance(worker, WorkerProcess)
        if stage == "check":
            assert worker.stage == "load"
            assert worker.finish_stage(60) is None
        assert worker.stage == stage
        failure = worker.finish_stage(1)
    assert failure == Failure(kind="timeout", stage=stage, message=message)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process without activity count as one that hangs after half a second."""
    monkeypatch.setattr("ortune.worker.executor.LOOK_S", 0.1)
    monkeypatch.setattr("ortune.worker.executor.MOST_IDLE_S", 0.5)
    monkeypatch.setattr("ortune.worker.process.MOST_IDLE_S", 0.5)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("load", "while the session was created, it did nothing for"),
        ("check", "in its first run, it did nothing for"),
    ],
)
def test_a_worker_that_does_nothing_is_given_up_long_before_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, message: str
) -> None:
    impatient(monkeypatch)
    program = tmp_path / "worker.py"
    program.write_text(
        "import time\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "class Session(CandidateSession):\n"
        f"    def {method}(self, *arguments):\n"
        "        if not self.request.is_reference:\n"
        "            time.sleep(3600)\n"
        f"        return super().{method}(*arguments)\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        failure = launch(executor, DEFAULT, deadline_s=900)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.stage) == ("timeout", method)
    assert failure.message.startswith(message)


def test_a_provider_that_does_nothing_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message does not say that it needs more time."""
    impatient(monkeypatch)
    options = {"trt_builder_optimization_level": "5"}
    with make_executor(FAULTY_WORKER) as executor:
        failure = launch(executor, Config(providers=(("TensorrtExecutionProvider", options),)))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.stage) == ("timeout", "load")
    assert failure.message.startswith("TensorrtExecutionProvider did not compile the model: while the session was")


def test_a_worker_that_computes_for_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    program = tmp_path / "worker.py"
    program.write_text(
        "import subprocess, sys, time\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "COMPUTE = 'import time; end = time.process_time() + 0.7\\nwhile time.process_time() < end: pass'\n"
        "class Session(CandidateSession):\n"
        "    def load(self):\n"
        "        if not self.request.is_reference:\n"
        "            exec(COMPUTE)\n"
        "        return super().load()\n"
        "    def check(self, *arguments):\n"
        "        if not self.request.is_reference:\n"
        "            subprocess.run([sys.executable, '-S', '-c', COMPUTE], check=True)\n"
        "        return super().check(*arguments)\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        require_worker(launch(executor, DEFAULT, deadline_s=900))


def test_half_of_a_message_is_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.worker.protocol.REST_S", 0.2)
    program = tmp_path / "worker.py"
    program.write_text(
        "import os, struct, sys, time\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "class Session(CandidateSession):\n"
        "    def load(self):\n"
        "        if not self.request.is_reference:\n"
        "            os.write(int(sys.argv[-1]), struct.pack('!i', 1000) + b'half')\n"
        "            time.sleep(3600)\n"
        "        return super().load()\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        failure = launch(executor, DEFAULT, deadline_s=900)
    assert isinstance(failure, Failure)
    assert failure.kind == "exit"
    assert failure.message.endswith("its end did not arrive within 0 s")


class ScriptedWorker:
    """A worker whose stages take a known time, on a simulated clock."""

    config = DEFAULT
    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def __init__(self, *durations_s: float) -> None:
        self.pipe = self  # what a simulated `wait` is given and returns
        self.durations_s = list(durations_s)
        self.end_s = self.durations_s.pop(0)
        self.stage = "load"
        self.is_loaded = False

    def finish_stage(self, left_s: float, *, deadline_s: float) -> Failure | None:
        if SimulatedClock.now_s < self.end_s:
            return Failure(kind="timeout", stage=self.stage, message=f"after {SimulatedClock.now_s:g} s")
        self.is_loaded = not self.durations_s
        if self.durations_s:
            self.stage = "check"
            self.end_s = SimulatedClock.now_s + self.durations_s.pop(0)
        return None


class SimulatedClock:
    now_s = 0.0

    @classmethod
    def monotonic(cls) -> float:
        return cls.now_s

    @classmethod
    def wait(cls, workers: list[ScriptedWorker], timeout_s: float) -> list[ScriptedWorker]:
        cls.now_s = min([cls.now_s + timeout_s, *(worker.end_s for worker in workers)])
        return [worker for worker in workers if worker.end_s <= cls.now_s]


@pytest.mark.parametrize(
    ("durations_s", "failures"),
    [
        ([(9, 9)], {}),
        ([(11, 0)], {0: ("load", 10)}),
        ([(9, 11)], {0: ("check", 19)}),
        ([(1, 99), (9, 6)], {0: ("check", 11)}),
        ([(9, 9), (10, 10)], {}),
        # Of several, the last one that hangs gets the time of one: half of the deadline for two.
        ([(1, 1), (99, 1)], {1: ("load", 7)}),
        ([(1, 1), (1, 99)], {1: ("check", 7)}),
        ([(1, 1), (6, 4)], {}),
    ],
)
def test_each_stage_of_a_launch_has_its_own_deadline(
    monkeypatch: pytest.MonkeyPatch, durations_s: list[tuple[float, float]], failures: dict[int, tuple[str, float]]
) -> None:
    monkeypatch.setattr(SimulatedClock, "now_s", 0.0)
    monkeypatch.setattr("ortune.worker.executor.wait", SimulatedClock.wait)
    monkeypatch.setattr("ortune.worker.executor.time", SimulatedClock)
    model = read_model(TINY_CNN)
    with ProcessExecutor(model, make_feed(model, InputOptions()), Tolerance(), usable=USABLE) as executor:
        workers = [ScriptedWorker(*pair) for pair in durations_s]
        found = executor._finish_loading([[worker] for worker in workers], 10)  # type: ignore[list-item]
    assert {workers.index(worker): failure for worker, failure in found.items()} == {  # type: ignore[arg-type]
        position: Failure(kind="timeout", stage=stage, message=f"after {at_s:g} s")
        for position, (stage, at_s) in failures.items()
    }


def test_a_crash_in_the_first_run_is_one_of_the_check(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(
        "import os\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "class Session(CandidateSession):\n"
        "    def check(self, session_info):\n"
        "        if not self.request.is_reference:\n"
        "            os.kill(os.getpid(), 11)\n"
        "        return super().check(session_info)\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        failure = launch(executor, DEFAULT)
    assert failure == Failure(kind="crash", stage="check", message="ended by SIGSEGV")


@pytest.mark.parametrize(("stage", "verb"), [("load", "load"), ("check", "run")])
def test_the_error_names_the_stage_in_which_the_baseline_hangs(stage: str, verb: str) -> None:
    class Hanging(ProcessExecutor):
        def launch(
            self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
        ) -> list[LiveCandidate | Failure]:
            return [Failure(kind="timeout", stage=stage, message="a reason")]

    model = read_model(TINY_CNN)
    feed = make_feed(model, InputOptions())
    with Hanging(model, feed, Tolerance(), usable=USABLE) as executor, pytest.raises(ModelError) as caught:
        launch_reference(executor, model, feed)
    assert caught.value.render()[0] == f"ONNX Runtime cannot {verb} {TINY_CNN} (timeout): a reason"


@pytest.mark.parametrize("replies", [["CreatedReply()", "CreatedReply()"], ["FailureReply(None)"]])
def test_replies_in_the_wrong_stage_are_refused(tmp_path: Path, replies: list[str]) -> None:
    program = tmp_path / "worker.py"
    program.write_text(
        "import sys, time\n"
        "from ortune.worker import protocol\n"
        "pipe = protocol.connect(sys.argv[-1])\n"
        "pipe.recv_bytes()\n"
        + "".join(f"pipe.send_bytes(protocol.encode(protocol.{reply}))\n" for reply in replies)
        + "time.sleep(3600)\n"
    )
    model = read_model(TINY_CNN)
    command = (sys.executable, "-P", str(program))
    with ProcessExecutor(model, make_feed(model, InputOptions()), Tolerance(), usable=USABLE, command=command) as made:
        failure = launch(made, DEFAULT)
    assert isinstance(failure, Failure)
    assert failure.kind == "exit"
    assert failure.message.startswith("the worker was ended, as it sent an invalid message")


def test_output_on_stdout_is_ignored(faulty_executor: ProcessExecutor) -> None:
    worker = require_worker(launch(faulty_executor, block_base("2")))
    assert isinstance(worker.measure(PLAN), Block)
    worker.close()


def test_exit_during_a_block_is_a_value(faulty_executor: ProcessExecutor) -> None:
    worker = require_worker(launch(faulty_executor, block_base("8")))
    plan = msgspec.structs.replace(PLAN, min_calls=50)  # it exits in its 21st call
    result = worker.measure(plan)
    assert isinstance(result, Failure)
    assert (result.kind, result.stage) == ("exit", "measure")
    assert worker.measure(plan) == result
    worker.close()


def test_kill_by_another_process_is_a_value(executor: ProcessExecutor) -> None:
    worker = require_worker(launch(executor, DEFAULT))
    os.kill(worker.pid, signal.SIGKILL)
    result = worker.measure(PLAN)
    assert isinstance(result, Failure)
    assert (result.kind, result.message) == ("crash", "ended by SIGKILL")  # the cause is not guessed


def test_a_reply_that_does_not_fit_into_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of a long block, where memory is limited. The process would end without a reason."""
    encode = protocol.encode

    def run_out(reply: object) -> bytes:
        if isinstance(reply, protocol.FailureReply):
            return encode(reply)
        raise MemoryError

    monkeypatch.setattr(protocol, "encode", run_out)
    reply = protocol.decode_reply(protocol.encode_reply(protocol.CreatedReply(), "measure"))
    assert isinstance(reply, protocol.FailureReply)
    assert (reply.failure.kind, reply.failure.stage) == ("out_of_memory", "measure")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\x00\x00", TimeoutError),
        (b"\x00\x00\x00\x09half", TimeoutError),
        (b"\x7f\xff\xff\xffx", ValueError),
        (b"\xff\xff\xff\xff" + b"\xff" * 8, ValueError),
        (b"garbage on the pipe", ValueError),
    ],
)
def test_half_a_message_is_not_waited_for(sent: bytes, error: type[Exception]) -> None:
    here, there = Pipe()
    with here, there:
        os.write(there.fileno(), sent)
        with pytest.raises(error):
            protocol.receive(here, 0.01)


@pytest.mark.parametrize("n_bytes", [0, 5, 100_000])
def test_whole_messages_arrive(n_bytes: int) -> None:
    here, there = Pipe()
    with here, there:
        there.send_bytes(b"x" * n_bytes)
        assert protocol.receive(here, 5) == b"x" * n_bytes
        there.close()
        with pytest.raises(EOFError):
            protocol.receive(here, 5)


def test_files_that_something_removes_are_not_the_fault_of_candidates() -> None:
    with make_executor() as executor:
        executor._feed_path.unlink()
        with pytest.raises(HostError, match=r"feed\.npz is missing: something removed"):
            launch(executor, DEFAULT)


def test_the_baseline_is_launched_again_at_first(tmp_path: Path) -> None:
    """Its first worker dies after it has begun to write the reference."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ortune.worker.candidate_session import CandidateSession\n"
        "from ortune.worker.main import main\n"
        "class Session(CandidateSession):\n"
        "    def check(self, session_info):\n"
        f"        first = Path({str(tmp_path / 'first')!r})\n"
        "        if not first.exists():\n"
        "            first.touch()\n"
        "            Path(self.request.reference_path).write_bytes(b'half')\n"
        "            os.kill(os.getpid(), 9)\n"
        "        return super().check(session_info)\n"
        "main(Session)\n"
    )
    with make_executor((sys.executable, "-P", str(program))) as executor:
        assert isinstance(require_worker(launch(executor, DEFAULT)).measure(PLAN), Block)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The pipe and the signal for groups whose parent has ended would not end one that computes and ignores signals."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import signal, time\n"
        "from ortune.worker import main\n"
        "def serve(connection, make):\n"
        "    connection.send_bytes(b'ready')\n"
        "    time.sleep(3600)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "main.serve = serve\n"
        "main.main()\n"
    )
    code = f"""
import sys, time
from pathlib import Path
from ortune.knobs import DEFAULT
from ortune.worker import protocol
from ortune.worker.child_process import make_environment
from ortune.worker.process import WorkerProcess
folder = Path({str(tmp_path)!r})
command = (sys.executable, "-P", {str(program)!r})
worker = WorkerProcess(DEFAULT, command, folder / "log", environment=make_environment(folder), on_close=print)
protocol.receive(worker.pipe, 60)
worker.suspend()
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
    # It is not a child of this process, which therefore cannot wait for it.
    wait_for_status(pid, {"gone", psutil.STATUS_ZOMBIE})


WITH_VARIABLE = Config(environment={"MALLOC_ARENA_MAX": "2"})
SEVERAL = [DEFAULT, level("ORT_ENABLE_BASIC"), Config(session_options={"intra_op_num_threads": 1})]


def launch_copies(executor: ProcessExecutor, configs: Sequence[Config] = SEVERAL) -> list[WorkerProcess]:
    return [require_worker(answer) for answer in executor.launch(configs, deadline_s=60, independent=False)]


def list_programs(workers: Sequence[WorkerProcess]) -> set[str]:
    """Return the modules that workers run as, and close them."""
    found = set()
    for worker in workers:
        command = psutil.Process(worker.pid).cmdline()
        found.add(next(part for part in command if part.startswith("ortune.worker.")))
        worker.close()
    return found


WITHOUT_COPIES = """
import os
from ortune.worker import template

fork = os.fork

def fork_once():
    child = fork()
    if child == 0:
        os.fork = refuse
    return child

def refuse():
    raise OSError

os.fork = fork_once
template.main()
"""
"""A template whose children cannot make the copy."""

COPIED, STARTED = {"ortune.worker.template"}, {"ortune.worker.main"}


@pytest.mark.skipif(sys.platform != "linux", reason="copies need Linux")
@pytest.mark.usefixtures("started_children")
class TestCopies:
    """Workers that are copies of a process that has imported what they import."""

    def test_they_are_children_like_others(self, executor: ProcessExecutor) -> None:
        workers = launch_copies(executor)
        pids = {worker.pid for worker in workers}
        for worker in workers:
            wait_for_status(worker.pid, {psutil.STATUS_STOPPED})
        assert all(os.getpgid(pid) == pid for pid in pids)
        # The process that they are copies of has ended.
        named = {child.pid for child in psutil.Process().children() if COPIED & set(child.cmdline())}
        assert named == pids
        for worker in workers:
            assert isinstance(worker.measure(PLAN), Block)
            worker.close()
            assert not psutil.pid_exists(worker.pid)

    def test_which_launches_have_them(self, executor: ProcessExecutor) -> None:
        assert list_programs(launch_copies(executor)) == COPIED
        # What is started on its own has no advantage over what is a copy.
        assert list_programs(launch_copies(executor, [*SEVERAL, WITH_VARIABLE])) == STARTED
        assert list_programs(launch_copies(executor, SEVERAL[:2])) == STARTED
        independent = [require_worker(answer) for answer in executor.launch(SEVERAL, deadline_s=60)]
        assert list_programs(independent) == STARTED

    def test_why_one_ended_is_known(self, executor: ProcessExecutor) -> None:
        workers = launch_copies(executor)
        os.kill(workers[0].pid, signal.SIGKILL)
        result = workers[0].measure(PLAN)
        assert isinstance(result, Failure)
        assert (result.kind, result.message) == ("crash", "ended by SIGKILL")
        assert list_programs(workers[1:]) == COPIED

    @pytest.mark.parametrize("code", ["raise SystemExit(1)", WITHOUT_COPIES], ids=["ends", "cannot be copied"])
    def test_without_that_process_they_are_started(self, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
        def start(command: list[str], **options: object) -> object:
            if COPIED & set(command):
                command = [sys.executable, "-c", code, command[-1]]
            return NewProcess(command, **options)  # type: ignore[call-overload]

        with make_executor() as executor:
            monkeypatch.setattr(subprocess, "Popen", start)
            assert list_programs(launch_copies(executor)) == STARTED

    def test_a_process_that_cannot_be_started_is_not_missed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        n_tries = 0

        def start(command: list[str], **options: object) -> object:
            nonlocal n_tries
            if COPIED & set(command):
                n_tries += 1
                raise OSError
            return NewProcess(command, **options)  # type: ignore[call-overload]

        with make_executor() as executor:
            monkeypatch.setattr(subprocess, "Popen", start)
            for _ in range(2):
                assert list_programs(launch_copies(executor)) == STARTED
        assert n_tries == 1

    def test_a_process_with_threads_is_not_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A copy would lack them, and wait for a lock that one of them holds."""
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        with make_executor() as executor:
            assert list_programs(launch_copies(executor)) == STARTED

    def test_they_end_when_their_parent_is_killed(self, tmp_path: Path) -> None:
        code = (
            "import time\n"
            "from tests.test_worker import launch_copies, make_executor\n"
            "print(*[worker.pid for worker in launch_copies(make_executor())], flush=True)\n"
            "time.sleep(600)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        ) as parent:
            try:
                assert parent.stdout is not None
                pids = [int(pid) for pid in parent.stdout.readline().split()]
                for pid in pids:
                    wait_for_status(pid, {psutil.STATUS_STOPPED})
            finally:
                parent.kill()
        assert len(pids) == len(SEVERAL)
        for pid in pids:
            wait_for_status(pid, {"gone", psutil.STATUS_ZOMBIE})


def search_with_faulty_worker(folder: Path, knob: str, budget_s: float) -> tuple[Record, dict[object, str]]:
    """Return the record of a search over the values of one knob, and the kind of failure of each value."""
    request = SearchRequest(
        model=str(TINY_CNN),
        output=folder / "c.json",
        budget=budget_s,
        trials=8,
        only=(knob,),
        worker_command=FAULTY_WORKER,
        memory_limit_bytes=1_500_000_000,
    )
    # On some CPUs, levels whose workers fail have the same optimized graph as others.
    with replaced({digest_graphs: lambda model, configs: ("",) * len(configs)}):
        prepared = prepare(request)
    record = search(prepared).record
    failed = [trial for trial in read_trials(folder / "c.json").trials if trial.failure]
    return record, {trial.config.settings[knob]: trial.failure.kind for trial in failed if trial.failure}


@pytest.mark.long
def test_where_one_session_fits_a_search_has_one_worker_at_a_time(tmp_path: Path) -> None:
    n_live: list[int] = []

    class Watched(ProcessExecutor):
        def launch(
            self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
        ) -> list[LiveCandidate | Failure]:
            answers = super().launch(configs, deadline_s=deadline_s, independent=independent)
            n_live.append(len(self._live))
            return answers

    # A worker takes about 70 MB. Its own limit is larger than what is free here: the free memory is not the true one.
    request = SearchRequest(
        model=str(TINY_CNN),
        output=tmp_path / "c.json",
        budget=scale_budget(10),
        trials=1,
        only=("intra_op_num_threads",),
        memory_limit_bytes=1_500_000_000,
    )
    prepared = prepare(request)
    limits = msgspec.structs.replace(prepared.host.limits, memory_bytes=120_000_000)
    prepared = msgspec.structs.replace(prepared, host=msgspec.structs.replace(prepared.host, limits=limits))
    with replaced({open_workers: Watched}):
        record = search(prepared).record
    assert record.evidence.noise.one_at_a_time
    assert record.search.n_tried == 1
    assert not record.search.failed
    # Calibration and a pair in screening. A busy host has no time for more.
    assert len(n_live) >= 3
    assert set(n_live) == {1}


@pytest.mark.long
def test_search_continues_after_failures_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One of them hangs, and all are given as much time.
    monkeypatch.setattr("ortune.measure.calibrate.LEAST_LOAD_DEADLINE_S", 3.0)
    monkeypatch.setattr("ortune.measure.calibrate.LOAD_DEADLINE_FACTOR", 4)
    _, failures = search_with_faulty_worker(tmp_path, "graph_optimization_level", scale_budget(30))
    assert failures == {
        "ORT_DISABLE_ALL": "crash",
        "ORT_ENABLE_BASIC": "timeout",
        "ORT_ENABLE_EXTENDED": "exit",
        "ORT_ENABLE_LAYOUT": "out_of_memory",
    }
    assert json.loads((tmp_path / "c.json").read_text())["schema"] == RECORD_SCHEMA


@pytest.mark.long
def test_search_continues_after_failures_to_check_and_measure(tmp_path: Path) -> None:
    record, failures = search_with_faulty_worker(tmp_path, "session.dynamic_block_base", scale_budget(20))
    assert failures == {"4": "wrong_output", "8": "exit"}
    assert record.evidence.output_check.n_rejected == 1
    assert record.evidence.speedup is not None


def test_error_describes_inputs_that_do_not_run() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(shapes={"attention_mask": (1, 5), "input_ids": (1, 7)}))
    with (
        ProcessExecutor(model, feed, Tolerance(), usable=USABLE) as executor,
        pytest.raises(InputsError, match="does not run on these inputs") as caught,
    ):
        launch_reference(executor, model, feed)
    message = caught.value.render()[0]
    assert "attention_mask: int64[1,5]" in message
    assert "{dim}" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat")
def test_busy_time_of_cpus() -> None:
    cpus = frozenset(USABLE)
    before = busy_ns(cpus)
    end = time.process_time_ns() + 100_000_000
    while time.process_time_ns() < end:
        pass
    after = busy_ns(cpus)
    assert before is not None
    assert after is not None
    assert after - before >= 100_000_000 - 2 * tick_ns()


BLOCK_NS = 1_000_000_000


def test_other_processes_spoil_a_block() -> None:
    quiet = CpuUse(wall_ns=BLOCK_NS, n_cpus=2, n_cores=2, own_ns=2 * BLOCK_NS, foreign_ns=0)
    assert (quiet.foreign_share, quiet.contended) == (0.0, False)
    busy = quiet._replace(foreign_ns=BLOCK_NS)
    assert (busy.foreign_share, busy.contended) == (0.5, True)
    negative = quiet._replace(foreign_ns=-5_000_000)
    assert negative.foreign_share < 0
    assert not negative.contended


class TestManyCpus:
    """A host with 96 CPUs, on which four processes use one each: 4 % of its capacity."""

    HOGS = CpuUse(wall_ns=BLOCK_NS, n_cpus=96, n_cores=96, own_ns=0, foreign_ns=4 * BLOCK_NS)

    def wait(self, n_threads: int, n_delayed: int) -> int:
        """Return the longest wait of a worker, some threads of which share a CPU with another process."""
        before = {number: ThreadTime(0, 0) for number in range(n_threads)}
        half = ThreadTime(BLOCK_NS // 2, BLOCK_NS // 2)
        after = {number: half if number < n_delayed else ThreadTime(BLOCK_NS, 0) for number in range(n_threads)}
        return find_longest_wait(before, after, BLOCK_NS, 96)

    def test_threads_that_wait_are_disturbed(self) -> None:
        use = self.HOGS._replace(own_ns=94 * BLOCK_NS, longest_wait_ns=self.wait(96, 4))
        assert use.foreign_share == pytest.approx(4 / 96)
        assert use.contended

    def test_threads_with_a_cpu_of_their_own_are_not(self) -> None:
        assert not self.HOGS._replace(own_ns=8 * BLOCK_NS, longest_wait_ns=self.wait(8, 0)).contended

    def test_threads_that_share_a_core_are_disturbed(self) -> None:
        two_per_core = self.HOGS._replace(n_cores=48, own_ns=48 * BLOCK_NS)
        assert two_per_core.contended
        assert not two_per_core._replace(own_ns=40 * BLOCK_NS).contended

    def test_threads_that_delay_each_other_are_not_disturbed_by_others(self) -> None:
        assert self.wait(97, 97) == 0
        assert not self.HOGS._replace(own_ns=92 * BLOCK_NS, longest_wait_ns=self.wait(97, 97)).contended

    def test_a_little_use_by_others_is_harmless(self) -> None:
        use = self.HOGS._replace(foreign_ns=BLOCK_NS // 25, own_ns=96 * BLOCK_NS, longest_wait_ns=self.wait(96, 4))
        assert not use.contended


@pytest.mark.skipif(not read_thread_times(), reason="the kernel does not report the waiting time of threads")
def test_waiting_for_a_cpu_is_seen() -> None:
    code = "import os, time\nos.sched_setaffinity(0, {%d})\nwhile time.process_time() < 20: pass"
    usable = os.sched_getaffinity(0)
    number = min(usable)
    hog = subprocess.Popen([sys.executable, "-c", code % number])
    try:
        os.sched_setaffinity(0, {number})
        before, start = read_thread_times(), time.perf_counter_ns()
        longest_ns = 0
        while not longest_ns and time.perf_counter_ns() - start < 20 * 10**9:
            for _ in range(10**6):
                pass
            wall_ns = time.perf_counter_ns() - start
            wait_ns = find_longest_wait(before, read_thread_times(), wall_ns, len(usable))
            longest_ns = wait_ns if wait_ns > 0.2 * wall_ns else 0
        assert longest_ns
    finally:
        os.sched_setaffinity(0, usable)
        hog.kill()
        hog.wait()


def test_memory_of_this_process() -> None:
    assert read_memory().steady_bytes > 1_000_000


def test_threads_may_pin_themselves_late(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = iter([(0, 1), (0, 1), (1,)])
    monkeypatch.setattr(cpu, "read_threads", lambda ids: (PoolThread(cpus=next(masks)),))
    config = Config(session_config={"session.intra_op_thread_affinities": "2"})
    assert read_pool(frozenset({7}), config, 1) == (PoolThread(cpus=(1,)),)


def test_unpinned_threads_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "LONGEST_PINNING_S", 0.02)
    monkeypatch.setattr(cpu, "read_threads", lambda ids: (PoolThread(cpus=(0, 1)),))
    config = Config(session_config={"session.intra_op_thread_affinities": "2"})
    threads = read_pool(frozenset({7}), config, 1)
    assert "pinned to CPUs [(1,)], counted from 0, but may run on [(0, 1)]" in find_unpinned(config, threads, 1)


def make_samples(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    return [{"x": np.zeros((1, length)), "mask": np.ones(length)} for length in lengths]


@pytest.mark.parametrize("n_callers", [1, 3])
def test_each_caller_makes_the_same_calls_with_each_shape(n_callers: int) -> None:
    calls: Counter[tuple[int, int]] = Counter()

    together = threading.Barrier(n_callers)

    def call(sample: dict[str, np.ndarray]) -> None:
        together.wait(60)
        calls[threading.get_ident(), len(sample["mask"])] += 1

    memory = filled_memory.fill_memory(call, make_samples([4, 2, 4, 3, 2]), n_callers)
    assert memory.peak_bytes >= memory.steady_bytes > 0
    assert sorted(length for _, length in calls) == sorted([2, 3, 4] * n_callers)
    assert set(calls.values()) == {filled_memory.PASSES_OF_SHAPES}


def test_what_a_call_raises_is_raised() -> None:
    def call(sample: object) -> None:
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        filled_memory.fill_memory(call, make_samples([1]), 2)


def test_shapes_are_in_the_order_of_the_samples_and_spread_over_their_sizes() -> None:
    assert [len(sample["mask"]) for sample in filled_memory.choose_shapes(make_samples([5, 1, 5, 9]))] == [5, 1, 9]
    lengths = [int(length) for length in np.random.default_rng(0).permutation(np.arange(1, 1001))]
    chosen = [len(sample["mask"]) for sample in filled_memory.choose_shapes(make_samples(lengths))]
    assert len(chosen) == filled_memory.MOST_SHAPES
    assert chosen == [length for length in lengths if length in chosen]
    assert {1, 1000} <= set(chosen)
    assert max(np.diff(sorted(chosen))) <= 17


def test_blocks_of_a_launch_have_the_memory_after_its_first_calls() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(dims={"batch": (1,), "sequence": (300, 8, 600)}))
    plan = BlockPlan(duration_ns=1_000_000, lead_in_ns=0, min_calls=1, deadline_s=60)
    with ProcessExecutor(model, feed, Tolerance(), usable=USABLE, memory_callers=1) as executor:
        launch_reference(executor, model, feed).close()
        (live,) = executor.launch([DEFAULT], deadline_s=60)
        assert not isinstance(live, Failure)
        # The last one has seen more than the first.
        blocks = [live.measure(plan) for _ in range(3)]
    memories = [block.memory for block in blocks if isinstance(block, Block)]
    assert len(memories) == 3
    assert memories[0] == memories[1] == memories[2]
    assert memories[0].peak_bytes >= memories[0].steady_bytes > 20_000_000
