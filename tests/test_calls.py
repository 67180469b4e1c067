"""Calls with IO binding, several sessions, a global thread pool and a preloaded allocator, on real sessions."""

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

from ortune import Config, Tolerance
from ortune.export import render
from ortune.host.allocators import find_allocators
from ortune.knobs import CPU, DEFAULT, ThreadPool
from ortune.knobs.config import Allocator, Plugin, Provider
from ortune.model import read_model
from ortune.worker import BlockPlan, Failure
from ortune.worker.calls import make_call, to_arrays
from ortune.worker.candidate_session import CandidateSession
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.protocol import LoadRequest
from ortune.worker.session import count_nodes, make_session
from ortune.workload import InputOptions, make_feed, make_load
from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.records import make_record


def sample(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"image": rng.normal(size=(1, 3, 32, 32)).astype(np.float32)}


def run_directly(given: dict[str, Any]) -> list[Any]:
    return list(make_session(str(TINY_CNN), DEFAULT).run(None, given))


class TestIoBinding:
    def test_outputs_equal_those_of_run(self) -> None:
        session = make_session(str(TINY_CNN), DEFAULT)
        call = make_call([session], Config(io_binding=True), None)
        for seed in range(3):
            given = sample(seed)
            np.testing.assert_array_equal(to_arrays(call(given))[0], run_directly(given)[0])

    def test_shapes_of_outputs_may_change(self, tmp_path: Path) -> None:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
        graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
        call = make_call([make_session(str(path), DEFAULT)], Config(io_binding=True), None)
        outputs = [to_arrays(call({"x": np.full(n, n, np.float32)}))[0] for n in (3, 5, 2)]
        assert [output.tolist() for output in outputs] == [[6.0] * 3, [10.0] * 5, [4.0] * 2]

    def test_input_buffers_are_reused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Calls on a GPU reuse buffers; this test does the same in the memory of the CPU."""
        from ortune.worker import calls

        session = make_session(str(TINY_CNN), DEFAULT)
        bound = calls.BoundCall(
            session, [output.name for output in session.get_outputs()], Config(io_binding=True), None
        )
        for seed in range(3):
            given = sample(seed)
            bound._copy_inputs(given)
            session.run_with_iobinding(bound._binding)
            np.testing.assert_array_equal(bound._binding.copy_outputs_to_cpu()[0], run_directly(given)[0])
        assert len(bound._inputs) == 1

    def test_captured_graph_has_outputs_at_fixed_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ortune.worker import calls

        monkeypatch.setattr(calls, "DEVICES", {})
        session = make_session(str(TINY_CNN), DEFAULT)
        given = sample()
        reference = run_directly(given)
        config = Config(io_binding=True, providers=(("CUDAExecutionProvider", {"enable_cuda_graph": "1"}), (CPU, {})))
        bound = calls.BoundCall(session, [output.name for output in session.get_outputs()], config, reference)
        addresses = {bound(given)[0].data_ptr() for _ in range(3)}
        assert len(addresses) == 1

    def test_a_captured_graph_keeps_its_outputs_without_a_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The baseline has no reference. A replay fills the buffers of the first call, and none that is bound later."""
        from ortune.worker import calls

        monkeypatch.setattr(calls, "DEVICES", {})
        session = make_session(str(TINY_ENCODER), DEFAULT)
        names = [output.name for output in session.get_outputs()]
        assert any(not isinstance(size, int) for output in session.get_outputs() for size in output.shape)
        captured = Config(io_binding=True, providers=(("CUDAExecutionProvider", {"enable_cuda_graph": "1"}), (CPU, {})))
        assert calls.BoundCall(session, names, captured, None)._rebound == []
        off = Config(io_binding=True, providers=(("CUDAExecutionProvider", {"enable_cuda_graph": "0"}), (CPU, {})))
        assert calls.BoundCall(session, names, off, None)._rebound == names
        assert calls.BoundCall(session, names, Config(io_binding=True), None)._rebound == names

    def test_values_on_a_device_come_from_a_session_of_the_same_plugin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ortune.worker import calls

        made: list[Config] = []

        def make(model: bytes, config: Config) -> Any:
            made.append(config)
            return make_session(model, DEFAULT)

        monkeypatch.setattr(calls, "make_session", make)
        webgpu, plugin = "WebGpuExecutionProvider", Plugin(package="onnxruntime-ep-webgpu", device_type="gpu")
        chain: tuple[Provider, ...] = ((webgpu, {"deviceId": "1", "enableGraphCapture": "1"}), (CPU, {}))
        config = Config(io_binding=True, providers=chain, plugins={webgpu: plugin})
        given = sample()["image"]
        value, _ = calls.make_device_value(given, config, "cpu")
        np.testing.assert_array_equal(value.numpy(), given)
        assert made == [Config(providers=((webgpu, {"deviceId": "1"}),), plugins={webgpu: plugin})]


class TestSessions:
    def test_each_thread_has_its_session(self) -> None:
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

    def test_number_of_sessions_is_part_of_the_load(self) -> None:
        load = make_load(sessions=3)
        assert (load.sessions, load.clients, load.scenario) == (3, 3, "multi-client")
        assert str(load) == "3 clients on 3 sessions, back to back"
        assert make_load(clients=6, sessions=3).clients == 6


@pytest.fixture(scope="module")
def executor() -> Any:
    model = read_model(TINY_CNN)
    feed = make_feed(model, InputOptions())
    with ProcessExecutor(model, feed, Tolerance(), usable=(), n_sessions=2) as made:
        launch_reference(made, model, feed).close()
        yield made


def measure(executor: ProcessExecutor, config: Config) -> Any:
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
    def test_sessions_with_separate_pools(self, executor: ProcessExecutor) -> None:
        config = Config(session_options={"intra_op_num_threads": 3})
        assert len(measure(executor, config).threads) in {0, 4}

    def test_sessions_with_global_pool(self, executor: ProcessExecutor) -> None:
        pool = ThreadPool(intra_op_num_threads=3, inter_op_num_threads=1)
        session_info = measure(executor, Config(global_thread_pool=pool))
        # Two threads and the caller's make a pool of three. Two pools would have four threads.
        assert len(session_info.threads) in {0, 2}

    def test_sessions_pinned_to_different_cpus(self, executor: ProcessExecutor) -> None:
        name = "session.intra_op_thread_affinities"
        config = Config(session_options={"intra_op_num_threads": 2}, per_session=({name: "1"}, {name: "2"}))
        found = sorted(thread.cpus for thread in measure(executor, config).threads)
        assert found in ([(0,), (1,)], [])

    def test_io_binding(self, executor: ProcessExecutor) -> None:
        measure(executor, Config(io_binding=True))

    def test_run_options(self, executor: ProcessExecutor) -> None:
        measure(executor, Config(run_options={"only_execute_path_to_fetches": True}))


@pytest.mark.parametrize("name", ["mimalloc", "jemalloc", "tcmalloc"])
def test_preloaded_allocator_is_mapped(name: Allocator, executor: ProcessExecutor) -> None:
    found = find_allocators()
    if name not in found:
        pytest.skip(f"{name} is not installed")
    assert [Path(path) for path in measure(executor, Config(allocator=name)).preloaded] == [Path(found[name]).resolve()]


def test_missing_allocator_is_a_failure(executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.host.allocators.find_allocators", dict)
    (result,) = executor.launch([Config(allocator="mimalloc")], deadline_s=60)
    assert isinstance(result, Failure)
    assert result.kind == "not_applied"
    assert "mimalloc" in result.message


def test_nodes_of_each_provider_are_counted() -> None:
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
def test_exported_python_code_runs(config: Config, tmp_path: Path) -> None:
    code = render("python", make_record(TINY_CNN, config), str(TINY_CNN)).text
    # A process can set up a global pool only once, so that each config needs its own process.
    lines = "import numpy as np\ninputs = {'image': np.zeros((1, 3, 32, 32), np.float32)}\n"
    after = "" if config.io_binding else "\noutputs = session.run(None, inputs)\n"
    done = subprocess.run([sys.executable, "-c", lines + code + after], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_session_creations_are_timed_with_the_entries_of_each_session(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(per_session=({"session.intra_op.allow_spinning": "0"}, {"session.intra_op.allow_spinning": "1"}))
    created: list[Config] = []

    def create(path: str, config: Config) -> tuple[None, int]:
        created.append(config)
        return None, 1

    monkeypatch.setattr("ortune.worker.session.time_session_creation", create)
    request = LoadRequest(
        model_path=str(TINY_CNN),
        config=config,
        feed_path="",
        reference_path="",
        is_reference=False,
        n_sessions=2,
        tolerance=Tolerance(),
        quanta={},
        compare_values=True,
        memory_limit_bytes=None,
        usable=(0,),
        background_load=None,
    )
    session = CandidateSession(request)
    assert session.time_creations(0) == [1, 1]
    assert created == [config.of_session(0), config.of_session(1)]
