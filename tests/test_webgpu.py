"""The WebGPU provider of onnxruntime-webgpu, on any Vulkan driver.

`nox -s webgpu` runs these tests with SwiftShader, a driver that computes on the CPU. There, the first call of a process
takes seconds, in which shaders are compiled.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortune import Config, Goal, Record, Tolerance, read_record
from ortune.apply.plan import make_rule
from ortune.export import render
from ortune.knobs import CPU, DEFAULT, SpaceOptions, build_space
from ortune.knobs.config import CAPTURES, ENTRY_PREFIXES, ModelSettings
from ortune.knobs.providers import PROVIDERS, chain_of
from ortune.measure.open import start_comparison
from ortune.model import read_model
from ortune.record.files import read_trials
from ortune.record.schema import Tried
from ortune.record.trials import Trials
from ortune.tuning.job import SearchSettings, run_search
from ortune.worker import Failure
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.failure import find_cause, make_failure
from ortune.worker.process import WorkerProcess
from ortune.worker.runtime import find_provider_fault, read_installed_runtime
from ortune.workload import InputOptions, make_feed
from tests.applying import run as run_program
from tests.budgets import scale_budget
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune, start_fork_server
from tests.records import make_record, write
from tests.simulated import SimulatedExecutor, make_host, make_model

WEBGPU = "WebGpuExecutionProvider"
RUNTIME = read_installed_runtime()
IS_THERE = RUNTIME is not None and WEBGPU in RUNTIME.providers
FAULT = (
    find_provider_fault(Config(providers=chain_of(WEBGPU))) if IS_THERE else "the package onnxruntime-webgpu is missing"
)
needs_webgpu = pytest.mark.skipif(bool(FAULT), reason=f"needs WebGPU: {FAULT}")

DRIVER = "libvk_swiftshader.so"
"""The library of SwiftShader, which is mapped into processes that use it."""

needs_swiftshader = pytest.mark.skipif(
    bool(FAULT) or "swiftshader" not in os.environ.get("VK_DRIVER_FILES", ""),
    reason=FAULT or "needs the driver SwiftShader; see .ci/with-swiftshader",
)

BOTH = pytest.mark.parametrize(
    ("model", "on_cpu"), [pytest.param(TINY_CNN, 0, marks=pytest.mark.long), (TINY_ENCODER, 1)]
)
"""Two models, and the number of nodes that WebGPU leaves to the CPU without 64-bit integers."""


CAPTURED = ("--only=providers", "--fix=io_binding=true", "--fix=webgpu.enableGraphCapture=1")
"""Options of a search whose only candidate with WebGPU has IO binding and a captured graph."""


def on_webgpu(*, io_binding: bool = False, **options: str) -> Config:
    return Config(providers=((WEBGPU, options), (CPU, {})), io_binding=io_binding)


class TestConfig:
    def test_options_become_entries_of_the_session(self) -> None:
        """The wheel accepts options with the provider's name, and ignores them."""
        config = on_webgpu(preferredLayout="NCHW")
        assert config.provider_entries == {"ep.webgpuexecutionprovider.preferredLayout": "NCHW"}
        export = render("python", make_record(TINY_CNN, config), "m.onnx", "r.json")
        assert 'add_session_config_entry("ep.webgpuexecutionprovider.preferredLayout", "NCHW")' in export.text
        assert set(ENTRY_PREFIXES) <= set(PROVIDERS)

    @pytest.mark.parametrize("target", ["optimum", "sentence-transformers", "ray-serve", "bentoml"])
    def test_python_of_other_packages_has_the_entries(self, target: str) -> None:
        export = render(target, make_record(TINY_CNN, on_webgpu(preferredLayout="NCHW")), "m/m.onnx", "r.json")
        call = 'options.add_session_config_entry("ep.webgpuexecutionprovider.preferredLayout", "NCHW")'
        assert export.text.count(call) == 1
        assert not any("preferredLayout" in line for line in export.unsupported)

    def test_fastembed_has_no_entries(self) -> None:
        export = render("fastembed", make_record(TINY_CNN, on_webgpu(preferredLayout="NCHW")), "m.onnx", "r.json")
        assert 'providers=["WebGpuExecutionProvider", "CPUExecutionProvider"]' in export.text
        assert [line.split(" (")[0] for line in export.unsupported] == ["webgpu.preferredLayout=NCHW"]

    def test_exported_code_binds_values_as_they_were_measured(self) -> None:
        """Bound to the CPU, outputs would be copied in each call, and OrtValue cannot be made on the GPU."""
        code = render("python", make_record(TINY_CNN, on_webgpu(io_binding=True)), "m.onnx", "r.json").text
        assert 'binding.bind_output(output.name, "gpu")' in code
        assert "binding.bind_cpu_input(name, array)" in code
        assert "OrtValue" not in code

    def test_programs_get_no_captured_graph(self) -> None:
        """A replay reads the inputs of the first call, unless they stay in buffers on the device."""
        config = on_webgpu(enableGraphCapture="1", preferredLayout="NCHW", io_binding=True)
        rule = make_rule("r.json", "m.onnx", (), config, Tried(), onnxruntime="1.27")
        assert rule["captures"] == ["webgpu.enableGraphCapture"]
        assert rule["entries"] == {"ep.webgpuexecutionprovider.preferredLayout": "NCHW"}
        assert rule["config"]["providers"][0] == (WEBGPU, {"preferredLayout": "NCHW"})
        assert DEFAULT.without_captures() is DEFAULT

    def test_programs_get_no_capture_by_an_entry(self) -> None:
        dml, webgpu = "ep.dml.enable_graph_capture", "ep.webgpuexecutionprovider.enableGraphCapture"
        config = Config(
            providers=(("ROCMExecutionProvider", {"enable_hip_graph": "1"}), (CPU, {})),
            session_config={dml: "1", webgpu: "1", "session.set_denormal_as_zero": "1"},
            per_session=({dml: "1", "session.intra_op.allow_spinning": "0"}, {dml: "1"}),
            models={"m": ModelSettings(session_config={dml: "1"})},
        )
        rule = make_rule("r.json", "m.onnx", (), config, Tried(), onnxruntime="1.27")
        assert rule["captures"] == sorted(
            ["rocm.enable_hip_graph", dml, webgpu, f"{dml} of session 1", f"{dml} of session 2", f"m: {dml}"]
        )
        assert rule["config"]["providers"][0] == ("ROCMExecutionProvider", {})
        assert rule["config"]["session_config"] == {"session.set_denormal_as_zero": "1"}
        assert rule["config"]["per_session"] == ({"session.intra_op.allow_spinning": "0"}, {})
        assert rule["config"]["models"] == {"m": {"session_options": {}, "session_config": {}}}

    def test_each_captured_graph_is_known_to_them(self) -> None:
        graphs = {provider.captured_graph.option for provider in PROVIDERS.values() if provider.captured_graph}
        assert graphs <= CAPTURES

    @pytest.mark.parametrize("providers", [(CPU, WEBGPU), (WEBGPU,), (WEBGPU, CPU)])
    def test_one_session_is_live_at_a_time(self, providers: tuple[str, ...]) -> None:
        most = [0]

        class Counting(SimulatedExecutor):
            def launch(self, configs: Any, *, deadline_s: float, independent: bool = True) -> Any:
                answers = super().launch(configs, deadline_s=deadline_s, independent=independent)
                most.append(sum(live.config.provider == WEBGPU for live in self.live))
                return answers

        space = build_space(make_host(2), make_model(), SpaceOptions(providers=providers))
        assert set(space.providers) == set(providers)
        # The provider's best candidate wins, so that the confirmation has it on one side or on both.
        executor = Counting(lambda config: 1e6 - 1e5 * (config.provider == WEBGPU) - 1e5 * config.io_binding)
        (first,) = executor.launch([space.base], deadline_s=1)
        assert not isinstance(first, Failure)
        opened = start_comparison(executor, first, Goal(), first_launch_s=executor.now_s(), free_bytes=8_000_000_000)
        outcome = run_search(space, opened, SearchSettings(budget_s=60.0))
        assert outcome.config.provider == WEBGPU
        assert max(most) == 1


class TestFailures:
    """Messages of Dawn, word for word."""

    MISSING = "WebGPU validation failed. [Invalid Buffer (unlabeled)] is invalid due to a previous error.\n - While ..."
    LOG = (
        "2026-11-24 06:21:46.763768324 [E:onnxruntime:Default, webgpu_context.cc:99 operator()] "
        "WebGPU device error(3): vkAllocateMemory failed with VK_ERROR_OUT_OF_DEVICE_MEMORY",
        "- While calling [Device].CreateBuffer([BufferDescriptor]).",
    )

    def test_a_buffer_beyond_the_limit(self) -> None:
        message = "WebGPU validation failed. Buffer size (1258291200) exceeds the max buffer size limit (1073741824)."
        assert make_failure(RuntimeError(message), "check").kind == "out_of_memory"

    def test_the_cause_of_an_error_that_follows_is_in_the_log(self) -> None:
        follows = make_failure(RuntimeError(self.MISSING), "check")
        assert follows.kind == "exception"
        found = find_cause(follows, self.LOG)
        assert (found.kind, found.stage) == ("out_of_memory", "check")
        assert found.message == "WebGPU device error(3): vkAllocateMemory failed with VK_ERROR_OUT_OF_DEVICE_MEMORY"

    def test_other_errors_are_not_explained_by_the_log(self) -> None:
        other = make_failure(RuntimeError("WebGPU validation failed. Invalid preferred layout: sideways"), "load")
        assert find_cause(other, self.LOG) == other
        follows = make_failure(RuntimeError(self.MISSING), "check")
        assert find_cause(follows, self.LOG[1:]) == follows


@needs_webgpu
class TestSessions:
    @BOTH
    def test_io_binding_and_captured_graphs(self, model: Path, on_cpu: int) -> None:
        info = read_model(model)
        feed = make_feed(info, InputOptions())
        found: list[Any] = []
        with ProcessExecutor(info, feed, Tolerance(), usable=()) as executor:
            launch_reference(executor, info, feed).close()
            for config in (
                on_webgpu(preferredLayout="NCHW"),
                on_webgpu(io_binding=True),
                on_webgpu(io_binding=True, enableGraphCapture="1"),
                on_webgpu(enableGraphCapture="1"),
                on_webgpu(preferredLayout="sideways"),
            ):
                (answer,) = executor.launch([config], deadline_s=150)
                found.append(answer)
                if not isinstance(answer, Failure):
                    answer.close()
        plain, bound, captured, alone, wrong = found
        for answer in (plain, bound, captured):
            assert not isinstance(answer, Failure), answer
            assert answer.session_info.nodes[WEBGPU] > 10
            assert answer.session_info.max_error < 1e-5
        assert plain.session_info.nodes.get(CPU, 0) == bound.session_info.nodes.get(CPU, 0) == on_cpu
        assert CPU not in captured.session_info.nodes  # a capture turns on 64-bit integers
        assert plain.session_info.settings["webgpu.preferredLayout"] == "NCHW"
        # Without IO binding, a captured graph computes something else, and ONNX Runtime does not report it.
        assert isinstance(alone, Failure)
        assert alone.kind == "wrong_output"
        # An option that took no effect would have been accepted.
        assert isinstance(wrong, Failure)
        assert "Invalid preferred layout: sideways" in wrong.message

    def test_a_record_is_verified_in_a_live_session(self, tmp_path: Path) -> None:
        config = on_webgpu(io_binding=True, enableGraphCapture="1")
        path = write(make_record(TINY_ENCODER, config), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_ENCODER, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        session = json.loads(done.stdout)["run"]["loaded"]
        assert session["providers"] == [WEBGPU, CPU]
        assert session["nodes"][WEBGPU] > 10
        assert session["settings"]["webgpu.enableGraphCapture"] == "1"

    def test_a_program_gets_the_options_but_no_captured_graph(self, tmp_path: Path) -> None:
        config = on_webgpu(io_binding=True, enableGraphCapture="1", preferredLayout="NCHW")
        code = f"""
import json, numpy, onnxruntime
feeds = [{{"image": numpy.full((1, 3, 32, 32), level, numpy.float32)}} for level in (0, 1, 2)]
session = onnxruntime.InferenceSession({str(TINY_CNN)!r})
options = session.get_session_options()
name = "ep.webgpuexecutionprovider.preferredLayout"
entries = [options.get_session_config_entry(name)] if "{WEBGPU}" in session.get_providers() else []
outputs = [session.run(None, feed)[0].tolist() for feed in feeds]
print(json.dumps([session.get_providers(), entries, outputs]))
"""
        path = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        plain = run_program(sys.executable, "-c", code)
        done = run_program(sys.executable, "-c", code, record=path, options=("--explain",))
        assert done.returncode == 0, done.stderr
        providers, entries, outputs = json.loads(done.stdout.splitlines()[-1])
        assert providers == [WEBGPU, CPU]
        assert entries == ["NCHW"]
        for ours, theirs in zip(outputs, json.loads(plain.stdout.splitlines()[-1])[2], strict=True):
            assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
        assert "webgpu.enableGraphCapture (the program would have to keep its inputs" in done.stderr


def write_chain(path: Path, *, with_shrink: bool = False) -> Path:
    """Write a model on which WebGPU is several times as fast as the CPU, even if the CPU runs its shaders.

    onnxruntime computes Asinh with the function of the C library, for one number at a time, in one thread.

    Args:
        path: The file.
        with_shrink: Whether the model also has a node that WebGPU leaves to the CPU.
    """
    names = ["Asinh"] * 4 + ["Shrink"] * with_shrink + ["Asinh"] * 4 + ["ReduceSum"]
    nodes = [helper.make_node(name, [f"x{place}"], [f"x{place + 1}"]) for place, name in enumerate(names)]
    shape, last = [1, 128, 128], f"x{len(names)}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 1, 1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def write_large(path: Path, n_mib: int) -> Path:
    """Write a model with a tensor of so many MiB, between an input and an output of one number each."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [n_mib, 1 << 18])
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["x", "shape"], ["large"]),
            helper.make_node("ReduceMax", ["large"], ["y"], keepdims=0),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [shape],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def write_weights(path: Path, n_mib: int) -> Path:
    """Write a model with weights of so many MiB, of which a call reads one row."""
    weights = numpy_helper.from_array(np.ones((n_mib, 1 << 18), np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["weights", "row"], ["y"])],
        "weights",
        [helper.make_tensor_value_info("row", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1 << 18])],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def read_peak_bytes(process: int) -> int:
    """Return the most memory that a process has had. That of SwiftShader's GPU is part of it."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


class LiveProcesses:
    """Counts the processes of a search that use the GPU, in a thread that looks several times a second.

    Attributes:
        counts: How many there were at a time.
        pids: All of them.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.pids: set[int] = set()
        self._parent = psutil.Process(start_fork_server().pid)
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_done.wait(0.05):
            found = {process.pid for process in self._parent.children(recursive=True) if uses_driver(process)}
            self.counts.append(len(found))
            self.pids |= found


def uses_driver(process: psutil.Process) -> bool:
    try:
        return DRIVER in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:  # it has ended
        return False


@needs_swiftshader
class TestSearches:
    """Searches of models on which WebGPU is the faster provider, even in software."""

    def search(self, model: Path, *options: str, budget_s: float) -> tuple[Record, Trials, LiveProcesses]:
        folder = model.parent
        budget = f"--budget={scale_budget(budget_s)}s"
        with LiveProcesses() as live:
            done = run_ortune(
                "search", model, *options, budget, "--no-history", "-o", "r.json", cwd=folder, timeout=170
            )
        assert done.returncode in {0, 3}, done.stderr
        return read_record(folder / "r.json"), read_trials(folder / "r.json"), live

    def apply(self, model: Path) -> dict[str, Any]:
        """Verify the record of the search in a live session, and return what the session is."""
        done = run_ortune("apply", "r.json", model, "--json", cwd=model.parent)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["run"]["mismatches"] == []
        session: dict[str, Any] = answer["run"]["loaded"]
        return session

    def test_a_captured_graph_against_the_cpu(self, tmp_path: Path) -> None:
        model = write_chain(tmp_path / "chain.onnx")
        record, trials, live = self.search(model, "--provider=cpu,webgpu", *CAPTURED, budget_s=15)
        captured = on_webgpu(io_binding=True, enableGraphCapture="1")
        baseline, trial = trials.trials
        assert (baseline.config, trial.config) == (Config(io_binding=True), captured)
        assert not trial.failure
        assert trial.stage == "confirmation"
        assert trial.speedups
        assert trial.n_blocks
        # Outputs were compared with those of the CPU, which are rounded differently.
        confirmed = trials.session_of(captured)
        assert confirmed
        assert confirmed.nodes == {WEBGPU: 9}
        assert confirmed.settings["webgpu.enableGraphCapture"] == "1"
        assert confirmed.deterministic
        assert confirmed.max_error is not None
        assert 0 < confirmed.max_error < 1e-4
        # The process with WebGPU is suspended while the baseline is measured, and ends before the next one starts.
        assert max(live.counts) == 1
        assert len(live.pids) >= 3
        # WebGPU is several times as fast. On a busy host, that may remain unproven.
        assert record.evidence.verdict in {"faster", "inconclusive"}
        assert record.config == (captured if record.evidence.verdict == "faster" else baseline.config)
        session = self.apply(model)
        assert session["nodes"] == (confirmed.nodes if record.config == captured else {})

    def test_io_binding_with_a_node_on_the_cpu(self, tmp_path: Path) -> None:
        model = write_chain(tmp_path / "chain.onnx", with_shrink=True)
        record, trials, live = self.search(model, "--provider=webgpu", "--only=io_binding", budget_s=25)
        baseline, trial = trials.trials
        assert (baseline.config, trial.config) == (on_webgpu(), on_webgpu(io_binding=True))
        assert not trial.failure
        assert trial.speedups
        assert trial.n_blocks
        # The node that falls back is counted in both. Copies from and to the CPU are nodes, too.
        for config in (baseline.config, trial.config):
            session_info = trials.session_of(config)
            assert session_info, record.evidence.reason
            assert session_info.nodes == {WEBGPU: 11, CPU: 1}
            assert session_info.max_error is not None
        # Each block has a process of its own, and none of them are live together.
        assert record.evidence.noise.one_at_a_time
        assert max(live.counts) == 1
        assert len(live.pids) >= 6
        session = self.apply(model)
        assert session["providers"] == [WEBGPU, CPU]
        assert session["nodes"] == {WEBGPU: 11, CPU: 1}

    def test_a_crash_of_the_provider(self, tmp_path: Path) -> None:
        """Replays of the encoder's graph end the process after some calls: a fault of onnxruntime-webgpu 1.27."""
        model = tmp_path / TINY_ENCODER.name
        model.symlink_to(TINY_ENCODER)
        record, trials, live = self.search(model, "--provider=cpu,webgpu", *CAPTURED, budget_s=10)
        (trial,) = [trial for trial in trials.trials if trial.config.provider == WEBGPU]
        assert trial.config.settings["webgpu.enableGraphCapture"] == "1"
        # On a busy host, compiling shaders on the CPU takes longer than a first run may.
        assert not trial.failure or trial.failure.kind in {"crash", "timeout"}, trial
        assert trial.failure or trial.speedups
        assert max(live.counts) == 1
        assert record.config.provider == CPU
        assert self.apply(model)["providers"] == [CPU]


@needs_swiftshader
class TestMemory:
    def test_a_tensor_that_no_buffer_can_hold(self, tmp_path: Path) -> None:
        write_large(tmp_path / "large.onnx", 1025)
        # It ends as soon as its only candidate has failed.
        options = ("--provider=cpu,webgpu", "--only=providers", "--no-history", f"--budget={scale_budget(20)}s")
        done = run_ortune("search", "large.onnx", *options, "-o", "r.json", cwd=tmp_path, timeout=170)
        assert done.returncode in {0, 3}, done.stderr
        (trial,) = [trial for trial in read_trials(tmp_path / "r.json").trials if trial.config.provider == WEBGPU]
        assert trial.failure
        assert (trial.failure.kind, trial.failure.stage) == ("out_of_memory", "check")
        assert "Buffer size (1074790400) exceeds the max buffer size limit (1073741824)" in trial.failure.message
        record = read_record(tmp_path / "r.json")
        assert record.search.failed == {"out_of_memory": 1}
        assert record.config.provider == CPU

    def test_memory_that_runs_out(self, tmp_path: Path) -> None:
        """SwiftShader's memory is that of the process, whose limit it reports as that of the GPU.

        The exception that follows is only about the buffer that is missing.
        """
        info = read_model(write_large(tmp_path / "large.onnx", 600))
        feed = make_feed(info, InputOptions())
        with ProcessExecutor(info, feed, Tolerance(), usable=()) as executor:
            launch_reference(executor, info, feed).close()
            limited = ProcessExecutor(
                info, feed, Tolerance(), usable=(), memory_limit_bytes=500_000_000, reference=executor.reference
            )
            with limited:
                failures = [limited.launch([on_webgpu(io_binding=bound)], deadline_s=150)[0] for bound in (False, True)]
        for failure in failures:
            assert isinstance(failure, Failure)
            assert (failure.kind, failure.stage) == ("out_of_memory", "check")
            assert failure.message.endswith("vkAllocateMemory failed with VK_ERROR_OUT_OF_DEVICE_MEMORY")

    def test_the_session_that_counts_nodes_needs_no_memory_beside_the_candidate(self, tmp_path: Path) -> None:
        """A candidate would fail in its first launch that works in later ones, in which nodes are known."""
        info = read_model(write_weights(tmp_path / "weights.onnx", 96))
        feed = make_feed(info, InputOptions())
        peaks = []
        with ProcessExecutor(info, feed, Tolerance(), usable=()) as executor:
            launch_reference(executor, info, feed).close()
            for _ in range(2):
                (answer,) = executor.launch([on_webgpu(enableInt64="1")], deadline_s=150)
                assert isinstance(answer, WorkerProcess), answer
                assert answer.session_info.nodes[WEBGPU] > 0
                peaks.append(read_peak_bytes(answer.pid))
                answer.close()
        assert peaks[0] < peaks[1] + (48 << 20), peaks
