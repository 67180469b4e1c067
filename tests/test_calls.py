"""How calls reach a session: IO binding, several sessions, a shared pool, a preloaded allocator, all for real."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortune.export import render
from ortune.host.allocators import find_allocators
from ortune.knobs import CPU, DEFAULT, Config, ThreadPool
from ortune.model import read_model
from ortune.worker import BlockPlan, Failure
from ortune.worker.calls import make_call, to_arrays
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.session import count_nodes, make_session
from ortune.workload import InputOptions, Tolerance, make_feed, make_load
from tests.conftest import TINY_CNN
from tests.records import make_record


def sample(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"image": rng.normal(size=(1, 3, 32, 32)).astype(np.float32)}


def plain(given: dict[str, Any]) -> list[Any]:
    return list(make_session(str(TINY_CNN), DEFAULT).run(None, given))


class TestBinding:
    def test_outputs_are_those_of_run(self) -> None:
        session = make_session(str(TINY_CNN), DEFAULT)
        call = make_call([session], Config(io_binding=True), None)
        for seed in range(3):
            given = sample(seed)
            np.testing.assert_array_equal(to_arrays(call(given))[0], plain(given)[0])

    def test_outputs_may_change_their_shapes(self, tmp_path: Path) -> None:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
        graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
        call = make_call([make_session(str(path), DEFAULT)], Config(io_binding=True), None)
        outputs = [to_arrays(call({"x": np.full(n, n, np.float32)}))[0] for n in (3, 5, 2)]
        assert [output.tolist() for output in outputs] == [[6.0] * 3, [10.0] * 5, [4.0] * 2]

    def test_buffers_that_are_kept_are_filled_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The way of a GPU, with buffers in the memory of the CPU."""
        from ortune.worker import calls

        session = make_session(str(TINY_CNN), DEFAULT)
        bound = calls.BoundCall(
            session, [output.name for output in session.get_outputs()], Config(io_binding=True), None
        )
        for seed in range(3):
            given = sample(seed)
            bound._fill(given)
            session.run_with_iobinding(bound._binding)
            np.testing.assert_array_equal(bound._binding.copy_outputs_to_cpu()[0], plain(given)[0])
        assert len(bound._inputs) == 1

    def test_a_captured_graph_gets_outputs_with_fixed_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ortune.worker import calls

        monkeypatch.setattr(calls, "CUDA_BASED", frozenset())
        session = make_session(str(TINY_CNN), DEFAULT)
        given = sample()
        reference = plain(given)
        config = Config(io_binding=True, providers=(("CUDAExecutionProvider", {"enable_cuda_graph": "1"}), (CPU, {})))
        bound = calls.BoundCall(session, [output.name for output in session.get_outputs()], config, reference)
        addresses = {bound(given)[0].data_ptr() for _ in range(3)}
        assert len(addresses) == 1


class TestSessions:
    def test_each_caller_has_one_of_its_own(self) -> None:
        used: list[int] = []

        class Session:
            def __init__(self, number: int) -> None:
                self.number = number

            def get_outputs(self) -> list[Any]:
                return []

            def run(self, names: Any, given: Any, options: Any) -> list[Any]:
                used.append(self.number)
                return []

        call = make_call([Session(0), Session(1)], DEFAULT, None)
        threads = [threading.Thread(target=lambda: [call({}), call({})]) for _ in range(4)]
        for thread in threads:
            thread.start()
            thread.join()
        assert used == [0, 0, 1, 1, 0, 0, 1, 1]

    def test_options_say_how_many(self) -> None:
        load = make_load(sessions=3)
        assert (load.sessions, load.clients, load.scenario) == (3, 3, "multi-client")
        assert str(load) == "3 callers on 3 sessions, back to back"
        assert make_load(clients=6, sessions=3).clients == 6


@pytest.fixture(scope="module")
def executor() -> Any:
    model = read_model(TINY_CNN)
    feed = make_feed(model, InputOptions())
    with ProcessExecutor(model, feed, Tolerance(), usable=(), n_sessions=2) as made:
        launch_reference(made, model, feed).close()
        yield made


def measured(executor: ProcessExecutor, config: Config) -> Any:
    (live,) = executor.launch([config], deadline_s=60)
    assert not isinstance(live, Failure), live
    try:
        load = make_load(clients=2, sessions=2)
        block = live.measure(BlockPlan(load=load, duration_ns=20_000_000, lead_in_ns=0, min_calls=2, deadline_s=30))
        assert not isinstance(block, Failure), block
        assert block.n_calls > 0
        return live.session_info
    finally:
        live.close()


class TestInWorkers:
    def test_sessions_with_pools_of_their_own(self, executor: ProcessExecutor) -> None:
        config = Config(session_options={"intra_op_num_threads": 3})
        assert len(measured(executor, config).threads) in {0, 4}

    def test_sessions_with_one_pool(self, executor: ProcessExecutor) -> None:
        pool = ThreadPool(intra_op_num_threads=3, inter_op_num_threads=1)
        loaded = measured(executor, Config(global_thread_pool=pool))
        # The workers of one pool, and not of two; the calling threads are those of the program.
        assert len(loaded.threads) in {0, 2}

    def test_sessions_apart(self, executor: ProcessExecutor) -> None:
        name = "session.intra_op_thread_affinities"
        config = Config(session_options={"intra_op_num_threads": 2}, per_session=({name: "1"}, {name: "2"}))
        found = sorted(thread.cpus for thread in measured(executor, config).threads)
        assert found in ([(0,), (1,)], [])

    def test_io_binding(self, executor: ProcessExecutor) -> None:
        measured(executor, Config(io_binding=True))

    def test_run_options(self, executor: ProcessExecutor) -> None:
        measured(executor, Config(run_options={"only_execute_path_to_fetches": True}))


@pytest.mark.parametrize("name", ["mimalloc", "jemalloc", "tcmalloc"])
def test_an_allocator_is_in_the_process(name: str, executor: ProcessExecutor) -> None:
    found = find_allocators()
    if name not in found:
        pytest.skip(f"{name} is not installed")
    assert measured(executor, Config(environment={"LD_PRELOAD": found[name]})).preloaded == (found[name],)


def test_a_library_that_cannot_be_preloaded_is_noticed(executor: ProcessExecutor) -> None:
    (answer,) = executor.launch([Config(environment={"LD_PRELOAD": "/nowhere/lib.so"})], deadline_s=60)
    assert isinstance(answer, Failure)
    assert answer.kind == "not_applied"
    assert "/nowhere/lib.so" in answer.message


def test_nodes_are_counted_by_provider() -> None:
    session = make_session(str(TINY_CNN), DEFAULT, record_assignment=True)
    assert count_nodes(session) == {CPU: 26}
    assert count_nodes(object()) == {}


@pytest.mark.parametrize(
    "config",
    [
        Config(io_binding=True),
        Config(global_thread_pool=ThreadPool(intra_op_num_threads=1, inter_op_num_threads=1)),
        Config(
            run_options={"only_execute_path_to_fetches": True},
            run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        ),
        Config(session_options={"execution_order": "PRIORITY_BASED", "enable_mem_pattern": False}),
    ],
)
def test_the_code_that_is_printed_runs(config: Config, tmp_path: Path) -> None:
    code = render("python", make_record(TINY_CNN, config), str(TINY_CNN)).text
    # In a process of its own: a global pool can be made once only.
    lines = "import numpy as np\ninputs = {'image': np.zeros((1, 3, 32, 32), np.float32)}\n"
    after = "" if config.io_binding else "\noutputs = session.run(None, inputs)\n"
    done = subprocess.run([sys.executable, "-c", lines + code + after], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
