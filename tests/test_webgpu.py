"""The WebGPU provider of onnxruntime-webgpu, on any Vulkan driver.

`nox -s webgpu` runs these tests with SwiftShader, a driver that computes on the CPU. There, the first call of a process
takes seconds, in which shaders are compiled.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ortune.apply.plan import make_rule
from ortune.compare.open import start_comparison
from ortune.export import render
from ortune.knobs import CPU, DEFAULT, Config, SpaceOptions, build_space
from ortune.knobs.config import CAPTURES, ENTRY_PREFIXES, ModelSettings
from ortune.knobs.providers import PROVIDERS, chain_of
from ortune.model import read_model
from ortune.record.files import read_record, read_trials
from ortune.record.schema import Tried
from ortune.tuning.stages import SearchSettings, run_search
from ortune.worker import Failure
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.runtime import find_provider_fault, read_installed_runtime
from ortune.workload import Goal, InputOptions, Tolerance, make_feed
from tests.applying import run as run_program
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record, write
from tests.simulation import SimulatedExecutor, make_host, make_model

WEBGPU = "WebGpuExecutionProvider"
RUNTIME = read_installed_runtime()
IS_THERE = RUNTIME is not None and WEBGPU in RUNTIME.providers
needs_webgpu = pytest.mark.skipif(
    not IS_THERE or bool(find_provider_fault(Config(providers=chain_of(WEBGPU)))),
    reason="needs onnxruntime-webgpu and a Vulkan driver",
)

BOTH = pytest.mark.parametrize(("model", "on_cpu"), [(TINY_CNN, 0), (TINY_ENCODER, 1)])
"""Two models, and the number of nodes that WebGPU leaves to the CPU without 64-bit integers."""


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
        graphs = {each.captured_graph.option for each in PROVIDERS.values() if each.captured_graph}
        assert graphs <= CAPTURES

    @pytest.mark.parametrize("providers", [(CPU, WEBGPU), (WEBGPU,), (WEBGPU, CPU)])
    def test_one_session_is_live_at_a_time(self, providers: tuple[str, ...]) -> None:
        most = [0]

        class Counting(SimulatedExecutor):
            def launch(self, configs: Any, *, deadline_s: float) -> Any:
                answers = super().launch(configs, deadline_s=deadline_s)
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

    @BOTH
    def test_a_search_across_the_cpu_and_webgpu(self, model: Path, on_cpu: int, tmp_path: Path) -> None:
        only = [f"--only={name}" for name in ("providers", "io_binding", "webgpu.enableGraphCapture")]
        options = ("--provider=cpu,webgpu", "--no-history", "--budget=20s", "-o", "r.json")
        done = run_ortune("search", model, *only, *options, cwd=tmp_path)
        assert done.returncode in {0, 3}, done.stderr
        trials = read_trials(tmp_path / "r.json").trials
        tried = [trial for trial in trials if trial.config.provider == WEBGPU]
        assert any(trial.speedups for trial in tried), [trial.failure for trial in tried]
        for trial in tried:
            # On a busy host, compiling shaders on the CPU takes longer than a first run may.
            if trial.failure and trial.failure.kind != "timeout":
                # Replays of the encoder's graph end the process after some calls: a fault of onnxruntime-webgpu 1.27.
                assert (trial.failure.kind, model) == ("crash", TINY_ENCODER), trial
                assert trial.config.settings["webgpu.enableGraphCapture"] == "1"
        assert read_record(tmp_path / "r.json").search.tried.providers == (WEBGPU,)
        assert run_ortune("apply", "r.json", model, cwd=tmp_path).returncode == 0

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
