"""Execution providers: which there are, which work here, what is tried under each, and what is caught."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from ortune import Config, Goal, Record, Tolerance, UsageError, read_record
from ortune.apply.fit import find_mismatches
from ortune.console.host import show_host
from ortune.console.safe_console import SafeConsole
from ortune.console.verdict import find_config_warnings
from ortune.console.warnings import warn_tf32_differences
from ortune.host import read_host
from ortune.host.conditions import read_conditions
from ortune.host.default_pool import find_default_pool
from ortune.knobs import CPU, DEFAULT, KNOBS, SearchSpace, SpaceOptions, build_space
from ortune.knobs.config import alias_of
from ortune.knobs.parse_config import set_knob
from ortune.knobs.parse_knobs import check_fix, check_tune, split_fix, split_tune
from ortune.knobs.providers import PROVIDERS, chain_of, find_provider, multiplies_in_tf32
from ortune.measure.block_plan import GPU_LEAD_IN_NS, plan_block
from ortune.measure.open import allow_tf32, start_comparison
from ortune.measure.providers import OTHER_LOAD_DEADLINE_S, allow_for_providers
from ortune.model import read_model
from ortune.record.files import read_trials
from ortune.record.schema import Tried
from ortune.record.trials import Trial
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.plan import SCREENING_BATCH
from ortune.worker import BlockPlan, Failure, Runtime, SessionInfo
from ortune.worker.block import GpuState
from ortune.worker.devices import Devices
from ortune.worker.executor import MOST_SAMPLE_REPEATS, ProcessExecutor, launch_reference
from ortune.worker.gpu import GpuReader, find_device, find_number, list_gpus, list_visible
from ortune.worker.installed import find_installed_version
from ortune.worker.providers import choose_providers
from ortune.worker.readback import find_unapplied, is_same_value
from ortune.worker.runtime import (
    PROBE_MODEL,
    explain_provider_fault,
    find_provider_fault,
    read_installed_runtime,
)
from ortune.worker.session import make_session
from ortune.workload import QUANTIZED_TOLERANCE, TF32_TOLERANCE, InputOptions, make_feed
from ortune.workload.load import make_load
from tests.applying import run as run_program
from tests.binary_keys import (
    NOT_OPTIONS,
    OPTION_STARTS,
    find_options,
    has_option,
    is_before,
    read_provider_library,
)
from tests.conftest import FAULTY_WORKER, TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record, write
from tests.simulated import SimulatedExecutor, make_host, make_model

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
QNN = "QNNExecutionProvider"
AZURE = "AzureExecutionProvider"


RUNTIME = read_installed_runtime()
AVAILABLE = RUNTIME.providers if RUNTIME else ()
HAS_GPU = CUDA in AVAILABLE and not find_provider_fault(Config(providers=chain_of(CUDA)))
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason=f"{CUDA} does not work here")
needs_gpu_wheel = pytest.mark.skipif(CUDA not in AVAILABLE or HAS_GPU, reason="needs onnxruntime-gpu without a GPU")
needs_openvino = pytest.mark.skipif(OPENVINO not in AVAILABLE, reason="needs onnxruntime-openvino")


def names(space: SearchSpace) -> set[str]:
    return {dimension.name for dimension in space.dimensions}


class TestNames:
    @pytest.mark.parametrize("text", ["cuda", "CUDA", "CUDAExecutionProvider"])
    def test_a_provider_is_found_by_either_name(self, text: str) -> None:
        assert find_provider(text).name == CUDA

    def test_one_that_ortune_does_not_know_is_taken_by_its_full_name(self) -> None:
        other = find_provider("DnnlExecutionProvider")
        assert (other.name, other.alias) == ("DnnlExecutionProvider", "dnnl")

    def test_a_typo_gets_what_was_meant(self) -> None:
        with pytest.raises(UsageError) as caught:
            find_provider("tensort")
        assert caught.value.hint == "Did you mean tensorrt?"

    @pytest.mark.parametrize(
        ("text", "meant"),
        [
            ("directml", "dml"),
            ("npu", "openvino or qnn"),
            ("AMD", "migraphx"),
            ("apple", "coreml"),
            ("xnpack", "xnnpack"),
        ],
    )
    def test_other_names(self, text: str, meant: str) -> None:
        with pytest.raises(UsageError) as caught:
            find_provider(text)
        assert caught.value.hint == f"Did you mean {meant}?"

    def test_those_that_compile_are_known(self) -> None:
        compiling = {provider.alias for provider in PROVIDERS.values() if provider.builds}
        assert compiling >= {"tensorrt", "nv_tensorrt_rtx", "openvino", "migraphx", "qnn", "coreml", "vitisai"}
        assert not compiling & {"cpu", "cuda", "rocm", "dml", "xnnpack"}
        # QNN keeps compiled models only with session entries, which change what is loaded.
        assert {provider.alias for provider in PROVIDERS.values() if provider.builds != provider.keeps_builds} <= {
            "qnn"
        }

    def test_what_a_provider_does_not_run_falls_to_those_behind_it(self) -> None:
        assert [name for name, _ in chain_of(TENSORRT)] == [TENSORRT, CUDA, CPU]
        assert [name for name, _ in chain_of(CPU)] == [CPU]

    def test_each_has_a_package_and_options_of_its_own(self) -> None:
        for name, provider in PROVIDERS.items():
            assert provider.package
            assert alias_of(name) == provider.alias
            knobs = [knob for knob in KNOBS.values() if knob.provider == name or knob.alias == provider.alias]
            assert all(knob.provider == name and knob.alias == provider.alias for knob in knobs)
            assert bool(knobs) == (name != CPU)

    def test_what_is_said_of_options_is_true_of_options(self) -> None:
        for provider in PROVIDERS.values():
            graph = provider.captured_graph
            values = [
                (name, value)
                for suggestion in provider.suggestions
                for value in suggestion.values
                for name in [suggestion.option]
            ]
            values += [(graph.option, graph.value)] if graph else []
            values += [(name, value) for name, value in provider.cache_options("/tmp").items()]
            values += [(name, "1") for name in (provider.threads, provider.streams) if name]
            for name, value in values:
                KNOBS[f"{provider.alias}.{name}"].check(value)
            assert all(name in PROVIDERS for name in provider.fallback)


class TestUnknownProviders:
    """Options of a provider that ortune does not know."""

    NAME = "DnnlExecutionProvider"

    def check(self, *texts: str, providers: tuple[str, ...] = (NAME,)) -> dict[str, Any]:
        return dict(check_fix(split_fix(texts), providers=providers))

    @pytest.mark.parametrize("prefix", ["dnnl", "DNNL", NAME])
    def test_either_name_of_the_provider_is_a_prefix(self, prefix: str) -> None:
        assert self.check(f"{prefix}.use_arena=1") == {"DnnlExecutionProvider.use_arena": "1"}

    def test_without_the_provider_its_full_name_is_needed(self) -> None:
        assert self.check(f"{self.NAME}.use_arena=1", providers=()) == {"DnnlExecutionProvider.use_arena": "1"}
        with pytest.raises(UsageError, match=r"dnnl.use_arena: there is no such knob") as caught:
            self.check("dnnl.use_arena=1", providers=())
        assert "begin with the provider's full name: DnnlExecutionProvider.use_arena" in caught.value.hint

    @pytest.mark.parametrize("name", ["CUDAExecutionProvider", "cudaexecutionprovider", "CUDA"])
    def test_the_full_name_of_a_known_provider(self, name: str) -> None:
        assert self.check(f"{name}.device_id=1", providers=()) == {"cuda.device_id": "1"}

    @pytest.mark.parametrize(
        "text",
        [
            "cuda.no_such=1",
            "CUDAExecutionProvider.no_such=1",
            "dnnl.=1",
            "dnnl.a b=1",
            "x.y=1",
            "ExecutionProvider.x=1",
        ],
    )
    def test_mistakes(self, text: str) -> None:
        with pytest.raises(UsageError, match="there is no such knob"):
            self.check(text)

    def test_values_are_texts_without_control_characters(self) -> None:
        assert self.check("dnnl.path=a,b = c") == {"DnnlExecutionProvider.path": "a,b = c"}
        with pytest.raises(UsageError, match="not a legal value"):
            self.check("dnnl.path=a\x1bb")

    def test_candidates_have_them(self) -> None:
        options = SpaceOptions(
            providers=(CPU, self.NAME),
            fix=self.check("dnnl.use_arena=1"),
            tune=check_tune(split_tune(["dnnl.threads=2,4"]), providers=(self.NAME,)),
        )
        space = build_space(make_host(4), make_model(), options)
        assert space.base == DEFAULT
        found = {}
        for candidate in space.candidates:
            chain = dict(candidate.config.providers)
            if self.NAME in chain:
                assert chain[self.NAME]["use_arena"] == "1"
                found[chain[self.NAME].get("threads", "")] = candidate.config.settings
        assert set(found) == {"", "2", "4"}
        assert found["2"]["dnnl.use_arena"] == "1"
        assert any(self.NAME not in dict(candidate.config.providers) for candidate in space.candidates)

    def test_a_config_with_one(self) -> None:
        config = set_knob(DEFAULT, f"{self.NAME}.use_arena", "1")
        assert config.providers == ((self.NAME, {"use_arena": "1"}), (CPU, {}))

    def test_it_must_be_among_the_providers(self, tmp_path: Path) -> None:
        done = run_ortune("space", TINY_CNN, "--provider", "cpu", "--fix", f"{self.NAME}.use_arena=1", cwd=tmp_path)
        assert done.returncode == 2
        assert f"Add --provider {self.NAME}." in done.stderr

    def test_one_that_is_not_installed(self, tmp_path: Path) -> None:
        done = run_ortune("space", TINY_CNN, "--provider", self.NAME, "--fix", "dnnl.use_arena=1", cwd=tmp_path)
        assert done.returncode == 2
        assert "the installed onnxruntime does not have it; another build of onnxruntime has it." in done.stderr

    @pytest.mark.skipif(AZURE not in AVAILABLE, reason=f"needs {AZURE}, which ortune does not know")
    def test_a_search(self, tmp_path: Path) -> None:
        command = (
            "search",
            TINY_CNN,
            "--provider",
            AZURE,
            "--fix",
            "azure.option=1",
            "--budget",
            "20s",
            "-o",
            "r.json",
        )
        done = run_ortune(*command, cwd=tmp_path, simulate=True)
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / "r.json").read_text())
        assert record["base"]["providers"] == [[AZURE, {"option": "1"}], [CPU, {}]]
        # A record is data: what ortune does not know is not applied unless the user trusts it.
        done = run_ortune("apply", "r.json", TINY_CNN, cwd=tmp_path)
        assert done.returncode == 2
        assert "must not set option=1: ortune does not know this setting" in done.stderr

    @pytest.mark.skipif(AZURE not in AVAILABLE, reason=f"needs {AZURE}, which ortune does not know")
    def test_workers_get_them(self, tmp_path: Path) -> None:
        command = ("search", TINY_CNN, "--provider", AZURE, "--fix", "azure.option=1", "--budget", "20s")
        done = run_ortune(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert f"azure.option=1, do not work on this host (not applied): {AZURE} runs none of the nodes" in done.stderr


class TestSpace:
    def space(self, *providers: str, **options: Any) -> SearchSpace:
        return build_space(make_host(4), make_model(), SpaceOptions(providers=providers, **options))

    def test_each_provider_has_its_own_dimensions(self) -> None:
        space = self.space(CPU, CUDA, OPENVINO)
        for candidate in space.candidates:
            config = candidate.config
            options = dict(config.providers)[config.provider]
            options_of = {knob.alias for name in config.settings if (knob := KNOBS.get(name)) and knob.provider}
            assert options_of <= {find_provider(config.provider).alias}, config
            if config.provider != CPU:
                assert "intra_op_num_threads" not in config.session_options
            if "enable_cuda_graph" in options:
                assert config.io_binding
        assert {candidate.config.provider for candidate in space.candidates} == {CPU, CUDA, OPENVINO}
        assert space.base == DEFAULT

    def test_a_fixed_option_holds_wherever_its_provider_is(self) -> None:
        for providers in ((CPU, OPENVINO), (OPENVINO,), (OPENVINO, CPU)):
            space = self.space(*providers, fix={"openvino.precision": "ACCURACY"})
            for candidate in space.candidates:
                options = dict(candidate.config.providers)
                assert OPENVINO not in options or options[OPENVINO]["precision"] == "ACCURACY"
        space = self.space(CPU, TENSORRT, fix={"cuda.use_tf32": "0"})
        behind = [dict(c.config.providers)[CUDA] for c in space.candidates if c.config.provider == TENSORRT]
        assert behind
        assert all(options["use_tf32"] == "0" for options in behind)

    def test_each_provider_is_tried_early(self) -> None:
        assert [dict(rule.labels) for rule in self.space(CPU, CUDA, OPENVINO).rules[:2]] == [
            {"providers": "cuda"},
            {"providers": "openvino"},
        ]

    def test_without_the_cpu_its_threads_are_left_alone(self) -> None:
        space = self.space(CUDA)
        assert space.base.providers == chain_of(CUDA)
        assert all(candidate.config.provider == CUDA for candidate in space.candidates)
        assert "intra_op_num_threads" not in names(space)
        assert "cuda.cudnn_conv_algo_search" in names(space)

    def test_io_binding_is_one_choice_for_all_providers_that_gain_from_it(self) -> None:
        space = self.space(CPU, CUDA, TENSORRT)
        (binding,) = [dimension for dimension in space.dimensions if dimension.name == "io_binding"]
        assert binding.no_effect_when["providers"] == frozenset({"default"})

    @pytest.mark.parametrize(
        ("options", "flow", "why"),
        [
            ({}, True, "If, Loop or Scan"),
            ({"clients": 2}, False, "callers"),
            ({"sessions": 2}, False, "callers"),
            ({"has_rate": True}, False, "threads"),
            ({"n_cases": 2}, False, "shapes"),
        ],
    )
    def test_a_captured_graph_is_tried_only_where_it_is_possible(
        self, options: dict[str, Any], flow: bool, why: str
    ) -> None:
        model = make_model()
        model = msgspec.structs.replace(model, traits=msgspec.structs.replace(model.traits, control_flow=flow))
        assert "cuda.enable_cuda_graph" in names(self.space(CUDA))
        space = build_space(make_host(4), model, SpaceOptions(providers=(CUDA,), **options))
        assert "cuda.enable_cuda_graph" not in names(space)
        assert any(why in skipped.why for skipped in space.skipped if skipped.knob.id == "cuda.enable_cuda_graph")

    def test_convolutions_of_cuda(self) -> None:
        """What is slow or wrong in ONNX Runtime 1.31 on an H100 is tried only if it is named."""
        model = make_model()
        space = build_space(make_host(4), model, SpaceOptions(providers=(CUDA,)))
        (algorithm,) = [dimension for dimension in space.dimensions if dimension.name == "cuda.cudnn_conv_algo_search"]
        assert [choice.value for choice in algorithm.choices[1:]] == ["HEURISTIC"]
        assert "cuda.prefer_nhwc" in names(space)
        assert "cuda.fuse_conv_bias" not in names(space)
        named = SpaceOptions(providers=(CUDA,), tune={"cuda.fuse_conv_bias": ("1",)})
        assert "cuda.fuse_conv_bias" in names(build_space(make_host(4), model, named))

    def test_float32_can_be_asked_for(self) -> None:
        assert check_fix({"cuda.use_tf32": "0"}) == {"cuda.use_tf32": "0"}
        assert check_tune({"cuda.use_tf32": ("0",)}) == {"cuda.use_tf32": ("0",)}

    def test_half_precision_is_tried_only_when_it_is_allowed(self) -> None:
        assert "tensorrt.trt_fp16_enable" not in names(self.space(TENSORRT))
        assert "tensorrt.trt_fp16_enable" in names(self.space(TENSORRT, approximate=True))

    def test_openvino_gets_streams_for_several_callers(self) -> None:
        assert "openvino.num_streams" not in names(self.space(OPENVINO))
        assert "openvino.num_streams" in names(self.space(OPENVINO, clients=4))

    def test_every_value_is_a_legal_one(self) -> None:
        for name in PROVIDERS:
            for dimension in self.space(name, approximate=True, figures=("memory",), clients=1).dimensions:
                for choice in dimension.choices[1:]:
                    if dimension.knob.provider:
                        dimension.knob.check(choice.value)


class TestDetection:
    def test_the_probe_is_a_graph_of_one_node(self) -> None:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1000])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 1000])
        graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "p", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        assert onnx.load_from_string(base64.b64decode(PROBE_MODEL)) == model

    def test_the_cpu_works(self) -> None:
        assert find_provider_fault(DEFAULT) == ""

    def test_the_version_is_known_without_importing(self) -> None:
        assert RUNTIME and find_installed_version() == RUNTIME.onnxruntime
        code = (
            "import ortune.worker.installed as r, sys; r.find_installed_version(); print('onnxruntime' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"

    def test_no_library_of_a_provider_comes_into_this_process(self) -> None:
        code = "import ortune.worker.providers as t, sys; t.choose_providers(None); print('onnxruntime' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"

    def test_a_provider_that_is_not_installed_is_reported_with_its_package(self) -> None:
        missing = next(name for name in (OPENVINO, CUDA) if name not in AVAILABLE)
        with pytest.raises(UsageError, match=find_provider(missing).package.split("[")[0]):
            choose_providers([missing])

    def test_the_search_goes_on_with_the_rest(self) -> None:
        missing = next(name for name in (OPENVINO, CUDA) if name not in AVAILABLE)
        choice = choose_providers(["cpu", missing])
        assert choice.names == (CPU,)
        assert list(choice.faults) == [missing]

    @pytest.mark.parametrize(
        ("log", "why"),
        [
            (
                "\x1b[1;31m2026 [E:onnxruntime:Default, bridge_ort.cc:2458 operator()] [ONNXRuntimeError] : 1 : FAIL : "
                "Failed to load library /x/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: "
                "cannot open shared object file: No such file or directory\x1b[m",
                "the library libcublasLt.so.13 is missing",
            ),
            (
                'LoadLibrary failed: which depends on "cudnn64_9.dll" which is missing.',
                "the library cudnn64_9.dll is missing",
            ),
            (
                "[E:onnxruntime] CUDA failure 100: no CUDA-capable device is detected",
                "no CUDA-capable device is detected",
            ),
            ("", "ONNX Runtime created the session without it"),
        ],
    )
    def test_the_cause_is_found_in_the_log(self, log: str, why: str) -> None:
        assert why in explain_provider_fault(log, 3)

    def test_an_ended_process_is_reported(self) -> None:
        assert explain_provider_fault("", -11) == "the process exited with status -11"


class TestReadBack:
    def loaded(self, **given: Any) -> SessionInfo:
        return SessionInfo(load_ns=1, providers=(CUDA, CPU), **given)

    def test_a_provider_without_nodes_was_not_applied(self) -> None:
        config = Config(providers=chain_of(CUDA))
        assert find_unapplied(config, self.loaded(nodes={CUDA: 3, CPU: 2})) == ""
        assert "runs none of the nodes: 5 on CPUExecutionProvider" in find_unapplied(
            config, self.loaded(nodes={CPU: 5})
        )

    def test_a_missing_provider_is_reported(self) -> None:
        fallen = SessionInfo(load_ns=1, providers=(CPU,))
        assert f"without {CUDA}" in find_unapplied(Config(providers=chain_of(CUDA)), fallen)

    def test_an_option_without_effect_is_reported(self) -> None:
        config = Config(providers=((CUDA, {"prefer_nhwc": "1"}), (CPU, {})))
        assert find_unapplied(config, self.loaded(settings={"cuda.prefer_nhwc": "1"})) == ""
        assert "cuda.prefer_nhwc was set to '1', but is '0'" in find_unapplied(
            config, self.loaded(settings={"cuda.prefer_nhwc": "0"})
        )

    def test_booleans_are_the_same_in_any_spelling(self) -> None:
        assert is_same_value("1", "True")
        assert is_same_value("false", "0")
        assert not is_same_value("1", "0")
        assert not is_same_value(4, 2)


@pytest.mark.usefixtures("models_read_here")
@pytest.mark.usefixtures("forked_children")
class TestBuilds:
    """A provider that compiles models: simulated by a worker, which runs on the CPU in its place."""

    @contextlib.contextmanager
    def executor(self, base: Config = DEFAULT, **given: Any) -> Iterator[ProcessExecutor]:
        """Open an executor that has the outputs of a baseline."""
        model = read_model(TINY_CNN)
        feed = make_feed(model, InputOptions())
        with ProcessExecutor(model, feed, Tolerance(), usable=(), command=FAULTY_WORKER, **given) as executor:
            launch_reference(executor, model, feed, base).close()
            yield executor

    def config(self, level: str) -> Config:
        providers = chain_of(TENSORRT)
        config = Config(providers=providers)
        return config.with_setting("provider_options", "trt_builder_optimization_level", level, TENSORRT)

    def test_the_build_is_made_once_and_timed_separately(self, no_workers_left: None) -> None:
        with self.executor() as executor:
            config = self.config("3")
            (first,) = executor.launch([config], deadline_s=60)
            assert not isinstance(first, Failure), first
            built_s = first.session_info.build_s
            assert built_s is not None
            (second, default) = executor.launch([config, DEFAULT], deadline_s=60)
            assert not isinstance(second, Failure)
            assert not isinstance(default, Failure)
            assert second.session_info.build_s == built_s
            assert default.session_info.build_s is None
            # Both find the same cache, and what is written to the record knows nothing of it.
            folders = {live.session_info.settings["tensorrt.trt_engine_cache_path"] for live in (first, second)}
            assert len(folders) == 1
            assert second.config == config

    def test_a_provider_that_compiles_again_gets_no_launches_for_it(self, no_workers_left: None) -> None:
        with self.executor() as executor:
            (first,) = executor.launch([self.config("1")], deadline_s=60)
            assert not isinstance(first, Failure), first
            assert first.session_info.build_s is None
            n_launched = executor._n_launched
            (second,) = executor.launch([self.config("1")], deadline_s=60)
            assert not isinstance(second, Failure), second
            assert executor._n_launched == n_launched + 1
            assert second.session_info.build_s is None

    def test_a_build_that_takes_too_long_is_a_failure_and_not_tried_again(self, no_workers_left: None) -> None:
        with self.executor(build_deadline_s=3) as executor:
            for _ in range(2):
                answer, other = executor.launch([self.config("5"), DEFAULT], deadline_s=60)
                assert isinstance(answer, Failure)
                assert (answer.kind, answer.stage) == ("timeout", "build")
                assert f"{TENSORRT} did not compile the model within 3 s" in answer.message
                assert not isinstance(other, Failure)

    def test_a_provider_that_keeps_nothing_may_compile_in_each_launch(self, no_workers_left: None) -> None:
        slow = Config(providers=((QNN, {"htp_performance_mode": "burst"}), (CPU, {})))
        with self.executor(build_deadline_s=60) as executor:
            for _ in range(2):
                # The worker takes longer to load than other candidates may.
                (answer,) = executor.launch([slow], deadline_s=0.5)
                assert not isinstance(answer, Failure), answer
                assert answer.session_info.settings == {"qnn.htp_performance_mode": "burst"}
                assert answer.session_info.build_s is None
                answer.close()
            executor._build_deadline_s = 0.5
            (answer,) = executor.launch([slow], deadline_s=0.5)
            assert isinstance(answer, Failure)
            assert (answer.kind, answer.stage) == ("timeout", "load")

    def test_all_builds_together_have_a_limit(self, no_workers_left: None) -> None:
        with self.executor(build_deadline_s=60) as executor:
            (first,) = executor.launch([self.config("3")], deadline_s=60)
            assert not isinstance(first, Failure), first
            executor._build_deadline_s = 0.01
            (second, again) = executor.launch([self.config("4"), self.config("3")], deadline_s=60)
            assert isinstance(second, Failure)
            assert (second.kind, second.stage) == ("timeout", "skipped")
            assert "which is the limit for all" in second.message
            assert not second.is_of_candidate
            assert not second.is_sudden
            assert not isinstance(again, Failure)

    def test_outputs_that_are_wrong_in_some_calls_are_found(self) -> None:
        with self.executor() as executor:
            soon, later, never = executor.launch([self.config(level) for level in "243"], deadline_s=60)
            assert isinstance(soon, Failure)
            assert (soon.kind, soon.stage) == ("wrong_output", "check")
            assert soon.message.endswith(", in a repeated call")
            plan = BlockPlan(load=make_load(), duration_ns=20_000_000, lead_in_ns=0, min_calls=300, deadline_s=30)
            assert not isinstance(later, Failure), later
            assert not isinstance(later.measure(plan), Failure)
            found = later.measure(plan)
            assert isinstance(found, Failure)
            assert (found.kind, found.stage) == ("wrong_output", "measure")
            assert found.message.endswith(", in a repeated call")
            assert not isinstance(never, Failure), never
            assert not any(isinstance(never.measure(plan), Failure) for _ in range(2))
            later.close()
            never.close()

    def test_the_baseline_is_not_blamed_for_a_later_call(self) -> None:
        base = self.config("4")
        with self.executor(base) as executor:
            assert executor.reference.baseline_key == base.key
            (again,) = executor.launch([base], deadline_s=60)
            assert not isinstance(again, Failure), again
            assert again.session_info.deterministic
            plan = BlockPlan(load=make_load(), duration_ns=20_000_000, lead_in_ns=0, min_calls=300, deadline_s=30)
            assert not any(isinstance(again.measure(plan), Failure) for _ in range(2))
            again.close()

    def test_how_often_outputs_are_compared(self) -> None:
        with self.executor() as executor:
            config = self.config("3")
            assert executor._count_repeats(DEFAULT) == 0
            assert executor._count_repeats(config) == MOST_SAMPLE_REPEATS
            executor._nodes[config.key] = {}
            assert executor._count_repeats(config) == 1

    def test_exhausted_gpu_memory_is_reported(self) -> None:
        with self.executor() as executor:
            (answer,) = executor.launch([self.config("0")], deadline_s=60)
        assert isinstance(answer, Failure)
        assert answer.kind == "out_of_memory"


class TestTolerance:
    """Outputs may differ as much as TF32 makes them differ, if a GPU multiplies in it."""

    @pytest.mark.parametrize(
        ("providers", "fix", "expected"),
        [
            ((CPU,), {}, Tolerance()),
            ((CUDA,), {}, TF32_TOLERANCE),
            ((CPU, CUDA), {}, TF32_TOLERANCE),
            ((TENSORRT, CPU), {"cuda.use_tf32": "0"}, TF32_TOLERANCE),
            ((CUDA, CPU), {"cuda.use_tf32": "0"}, Tolerance()),
            ((OPENVINO,), {}, Tolerance()),
        ],
    )
    def test_of_a_search(self, providers: tuple[str, ...], fix: dict[str, str], expected: Tolerance) -> None:
        space = build_space(make_host(4), make_model(), SpaceOptions(providers=providers, fix=fix))
        assert space.providers == providers
        assert allow_tf32(Tolerance(), space.chains) == expected

    def test_a_larger_tolerance_stays(self) -> None:
        allowed = allow_tf32(QUANTIZED_TOLERANCE, [chain_of(CUDA)])
        assert (allowed.relative, allowed.absolute) == (TF32_TOLERANCE.relative, QUANTIZED_TOLERANCE.absolute)

    def test_the_difference_is_reported(self) -> None:
        record = make_record(TINY_CNN, Config(providers=chain_of(CUDA)))
        check = msgspec.structs.replace(record.evidence.output_check, max_error=0.0018)
        evidence = msgspec.structs.replace(record.evidence, verdict="faster", output_check=check)
        record = msgspec.structs.replace(record, evidence=evidence)
        (text,) = [config_warning for config_warning in find_config_warnings(record) if "TF32" in config_warning]
        assert "by up to 0.0018 of the largest value" in text
        of_gpu = msgspec.structs.replace(record, base=Config(providers=chain_of(CUDA)))
        assert not [config_warning for config_warning in find_config_warnings(of_gpu) if "TF32" in config_warning]


def test_rejections_because_of_tf32_are_explained() -> None:
    wrong = Failure(kind="wrong_output", stage="check", message="output y: 7 of 1000 values differ too much")
    cuda = Config(providers=chain_of(CUDA))
    exact = cuda.with_setting("provider_options", "use_tf32", "0", CUDA)
    trials = [
        Trial(number=1, config=cuda, stage="screening", failure=wrong),
        Trial(number=2, config=DEFAULT, stage="screening", failure=wrong),
        Trial(number=3, config=exact, stage="screening", failure=wrong),
        Trial(number=4, config=cuda, stage="screening", speedups=(2.0,)),
    ]
    (of_cpu,) = warn_tf32_differences(DEFAULT, trials)
    assert of_cpu.startswith("The outputs of 1 candidate differed too much. The cause may be TF32")
    assert "--fix cuda.use_tf32=0" in of_cpu
    (of_cuda,) = warn_tf32_differences(cuda, trials)
    assert of_cuda.startswith("The outputs of 2 candidates")
    assert warn_tf32_differences(DEFAULT, trials[1:]) == []
    # No option of TensorRT turns it off.
    (of_tensorrt,) = warn_tf32_differences(Config(providers=chain_of(TENSORRT)), trials[1:3])
    assert "--fix" not in of_tensorrt


IN_TF32 = "in TF32"


class TestOrder:
    """A search of several providers learns first which of them are fast, and then tries their knobs."""

    def launched(self, *providers: str, cpu_ns: float, fails: str = "") -> list[Config]:
        """Return the distinct configs with one choice alone that a search launches, in their order."""
        space = build_space(make_host(16), make_model(2), SpaceOptions(providers=providers))

        def fail(config: Config) -> Failure | None:
            failure = Failure(kind="wrong_output", stage="check", message="output y differs")
            in_float32 = fails == IN_TF32 and not multiplies_in_tf32(config.providers)
            return failure if fails and config.provider == CUDA and not in_float32 else None

        executor = SimulatedExecutor(
            lambda config: cpu_ns if config.provider == CPU else 1e6, fails_to_launch=fail, launch_s=0.5
        )
        (first,) = executor.launch([space.base], deadline_s=9)
        assert not isinstance(first, Failure)
        opened = start_comparison(executor, first, Goal(), first_launch_s=0.5, seed=0, free_bytes=8_000_000_000)
        run_search(space, opened, SearchSettings(budget_s=120))
        alone = {space.select(labels).config.key for labels in space.one_factor()} - {space.base.key}
        return list({config.key: config for config in executor.launched if config.key in alone}.values())

    @pytest.mark.parametrize(
        ("providers", "cpu_ns", "fails", "last"),
        [
            ((CUDA, CPU), 7e6, "", CPU),
            ((CPU, CUDA), 7e6, "", CPU),
            ((CPU, CUDA), 0.2e6, "", CUDA),
            ((CPU, CUDA), 7e6, "always", CUDA),
            ((CPU, CUDA), 7e6, IN_TF32, CPU),
        ],
    )
    def test_knobs_of_a_provider_that_is_far_behind_come_last(
        self, providers: tuple[str, ...], cpu_ns: float, fails: str, last: str
    ) -> None:
        configs = self.launched(*providers, cpu_ns=cpu_ns, fails=fails)
        other = next(provider for provider in providers if provider != last)
        assert configs[0].provider == providers[1]
        n_plain = 1 if providers[0] == CUDA else 2  # in float32, too
        assert configs[n_plain - 1].provider == providers[1]
        # The first batches also have what rules advise, or knobs of the baseline's provider.
        chosen = [config.provider for config in configs[n_plain + SCREENING_BATCH :]]
        assert chosen == sorted(chosen, key=(other, last).index)
        assert set(chosen) == {other, last}

    # Of two providers, the second one is tried first. If it is CUDA, float32 is second, and knobs wait for the result.
    @pytest.mark.parametrize(
        ("providers", "latest"),
        [((CUDA,), 0), ((CUDA, CPU), 1), ((CPU, CUDA), 2 + SCREENING_BATCH)],
        ids=["cuda", "both", "cpu"],
    )
    def test_a_captured_graph_is_among_the_first(self, providers: tuple[str, ...], latest: int) -> None:
        """On an H100, where launches took three seconds, a search did not reach the eighth candidate."""
        configs = self.launched(*providers, cpu_ns=7e6)
        captures = ["enable_cuda_graph" in dict(config.providers)[config.provider] for config in configs]
        assert captures.index(True) <= latest


@pytest.mark.parametrize(
    ("base", "providers", "deadline_s", "on_gpu"),
    [
        (DEFAULT, (CPU,), 9.0, False),
        (Config(providers=chain_of(CUDA)), (CUDA, CPU), 9.0, True),
        (DEFAULT, (CPU, OPENVINO), OTHER_LOAD_DEADLINE_S, False),
        (DEFAULT, (CPU, CUDA), OTHER_LOAD_DEADLINE_S, True),
        (Config(providers=chain_of(CUDA)), (CUDA, TENSORRT), OTHER_LOAD_DEADLINE_S, True),
    ],
)
def test_other_providers_have_more_time_to_load_and_gpus_a_longer_lead_in(
    base: Config, providers: tuple[str, ...], deadline_s: float, on_gpu: bool
) -> None:
    executor = SimulatedExecutor(lambda config: 2e6)
    (first,) = executor.launch([base], deadline_s=9)
    assert not isinstance(first, Failure)
    opened = start_comparison(executor, first, Goal(), first_launch_s=0.5, seed=0, free_bytes=8_000_000_000)
    opened.runner.load_deadline_s = 9.0
    allowed = allow_for_providers(opened, base, providers)
    assert allowed.runner.load_deadline_s == deadline_s
    lead_in_ns = plan_block(allowed.calibration.pace).lead_in_ns
    assert lead_in_ns == GPU_LEAD_IN_NS if on_gpu else lead_in_ns < GPU_LEAD_IN_NS / 5


def test_slow_calls_after_a_resume_are_no_gain_of_captured_graphs() -> None:
    def cold(config: Config) -> list[float]:
        return [] if config.settings.get("cuda.enable_cuda_graph") == "1" else [1.3] * 57  # 148 ms

    space = build_space(make_host(4), make_model(), SpaceOptions(providers=(CUDA,)))
    executor = SimulatedExecutor(lambda config: 2e6, cold=cold, most_calls=1000)
    (first,) = executor.launch([space.base], deadline_s=9)
    assert not isinstance(first, Failure)
    opened = start_comparison(executor, first, Goal(), first_launch_s=0.5, seed=0, free_bytes=8_000_000_000)
    evidence = run_search(space, opened, SearchSettings(budget_s=60)).evidence
    assert evidence.verdict != "faster"
    assert evidence.speedup is None or evidence.speedup.high < 1.1


class TestGpu:
    """The GPU is part of what a record is valid for."""

    def test_another_gpu_does_not_fit(self) -> None:
        def on(*gpus: str) -> Runtime:
            return Runtime(onnxruntime="1", providers=(CUDA, CPU), python="3", ortune="0", gpus=gpus, gpu_driver="580")

        one, host = Config(providers=((CUDA, {"device_id": "1"}), (CPU, {}))), read_host(memory=False)
        record = msgspec.structs.replace(make_record(TINY_CNN, one), runtime=on("T4", "H100"))
        assert not find_mismatches(record, host, on("A100", "H100"))
        assert not find_mismatches(record, host, on())
        (mismatch,) = find_mismatches(record, host, on("H100", "T4"))
        assert (mismatch.what, mismatch.recorded, mismatch.here) == ("GPU", "H100", "T4")
        of_cpu = msgspec.structs.replace(record, config=DEFAULT)
        assert not find_mismatches(of_cpu, host, on("H100", "T4"))

    def test_gpus_are_shown(self, tmp_path: Path) -> None:
        runtime = Runtime(
            onnxruntime="1.31.1",
            providers=(CUDA, CPU),
            python="3",
            ortune="0",
            gpus=("NVIDIA H100", "NVIDIA T4"),
            gpu_driver="580.1",
        )
        host = read_host()
        console = SafeConsole(width=100, record=True, file=io.StringIO())
        show_host(console, host, find_default_pool(host), runtime, (), Devices(), read_conditions(tmp_path))
        lines = [line.strip() for line in console.export_text().splitlines()]
        assert "GPU  NVIDIA H100  NVIDIA driver 580.1" in lines
        assert "NVIDIA T4" in lines


class TestPreloading:
    """onnxruntime prints to stdout which libraries of CUDA are missing."""

    def test_it_goes_to_stderr(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        import onnxruntime

        def preload() -> None:
            time.sleep(0.01)
            vars(onnxruntime).get("print", print)("Failed to load libcublas.so.13")
            print("the program's own output")

        monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
        monkeypatch.setattr("ortune.worker.session.list_built_in", lambda: [CUDA, CPU])
        failed: list[Exception] = []

        def create() -> None:
            try:
                make_session(str(TINY_CNN.with_name("missing.onnx")), Config(providers=chain_of(CUDA)))
            except Exception as error:  # noqa: BLE001
                failed.append(error)

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not any(isinstance(error, KeyError) for error in failed)
        assert len(failed) == 4
        shown = capsys.readouterr()
        assert shown.out.splitlines() == 4 * ["the program's own output"]
        assert shown.err.count("Failed to load libcublas.so.13") == 4
        assert "print" not in vars(onnxruntime)


class TestGpuReader:
    def test_without_nvml_nothing_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert GpuReader().read() is None

    def test_memory_clocks_and_slowdowns_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=5_000_000)
        other = types.SimpleNamespace(pid=1, usedGpuMemory=7)
        nvml = types.SimpleNamespace(
            NVML_CLOCK_SM=1,
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetName=lambda device: "NVIDIA T4",
            nvmlDeviceGetHandleByIndex=lambda number: number,
            nvmlDeviceGetComputeRunningProcesses=lambda device: [process, other],
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: 0x1 | 0x40,
            nvmlDeviceGetClockInfo=lambda device, kind: 1980,
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        gpu = GpuReader().read()
        assert gpu
        assert gpu.free_bytes is gpu.free_before_bytes is None
        free = iter([30_000_000, 20_000_000])
        nvml.nvmlDeviceGetMemoryInfo = lambda device: types.SimpleNamespace(free=next(free))
        gpu = GpuReader().read()
        assert gpu
        assert (gpu.free_before_bytes, gpu.free_bytes) == (30_000_000, 20_000_000)
        assert (gpu.used_bytes, gpu.clock_mhz) == (5_000_000, 1980)
        assert gpu.slowdowns == ("hardware thermal slowdown",)

    def test_a_query_that_the_gpu_lacks_hides_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: Any) -> Any:
            raise RuntimeError("Not Supported")

        nvml = types.SimpleNamespace(
            NVML_CLOCK_SM=1,
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda number: number,
            nvmlDeviceGetComputeRunningProcesses=fail,
            nvmlDeviceGetClockInfo=fail,
            nvmlDeviceGetMemoryInfo=lambda device: types.SimpleNamespace(free=7),
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        assert GpuReader().read() == GpuState(free_bytes=7, free_before_bytes=7)

    def test_the_device_is_the_one_that_the_provider_means(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvml = types.SimpleNamespace(
            nvmlDeviceGetCount=lambda: 4,
            nvmlDeviceGetHandleByIndex=lambda number: number,
            nvmlDeviceGetHandleByUUID=lambda text: text,
            nvmlDeviceGetUUID=lambda number: f"GPU-8932f93{number}-d72c",
            nvmlDeviceGetName=lambda number: "NVIDIA H100",
        )

        def find(visible: str) -> list[Any]:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            return [find_device(nvml, number) for number in range(len(list_visible(nvml)))]

        assert find("3,1,GPU-8932f932") == [3, 1, 2]
        assert find("2, 0") == [2, 0]
        # Those after an invalid number are not seen.
        assert find("1,-1,0") == [1]
        assert find("1,9,0") == [1]
        assert find("-1") == find("") == find("GPU-77") == []
        with pytest.raises(LookupError):
            find_device(nvml, 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-41b3")
        assert find_device(nvml, 0) == "MIG-41b3"
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert [find_device(nvml, number) for number in (0, 3)] == [0, 3]

    @pytest.mark.parametrize(("text", "number"), [("1", 1), ("", 0), ("x", 0), ("-1", 0), ("9" * 5000, 0)])
    def test_the_number_in_a_config(self, text: str, number: int) -> None:
        assert find_number(Config(providers=((CUDA, {"device_id": text} if text else {}), (CPU, {})))) == number

    def test_gpus_are_listed_as_providers_see_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvml = types.SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda number: number,
            nvmlDeviceGetName=lambda device: f"NVIDIA GPU {device}",
            nvmlSystemGetDriverVersion=lambda: "580.1",
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        # CUDA numbers different GPUs by their speed, unless it is set otherwise.
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        assert list_gpus() == ((), "")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert list_gpus() == ((), "")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        assert list_gpus() == (("NVIDIA GPU 0", "NVIDIA GPU 1"), "580.1")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert list_gpus() == (("NVIDIA GPU 1",), "580.1")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert list_gpus() == ((), "580.1")
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert list_gpus() == ((), "")


@needs_gpu_wheel
class TestGpuWheelWithoutGpu:
    """The wheel loads, lists its providers, and silently runs on the CPU. ortune must detect that."""

    @pytest.mark.parametrize("name", [CUDA, TENSORRT])
    def test_the_provider_is_found_not_to_work(self, name: str) -> None:
        assert find_provider_fault(Config(providers=chain_of(name)))

    def test_auto_goes_on_with_the_cpu(self) -> None:
        choice = choose_providers(None)
        assert choice.names == (CPU,)
        assert {CUDA, TENSORRT} <= set(choice.faults)

    def test_a_candidate_that_falls_back_is_a_failure(self) -> None:
        model = read_model(TINY_CNN)
        feed = make_feed(model, InputOptions())
        with ProcessExecutor(model, feed, Tolerance(), usable=()) as executor:
            launch_reference(executor, model, feed).close()
            bogus = Config(providers=((CUDA, {"no_such_option": "1"}), (CPU, {})))
            for answer in executor.launch([Config(providers=chain_of(CUDA)), bogus], deadline_s=60):
                assert isinstance(answer, Failure), answer

    def test_a_search_of_it_alone_ends_with_the_cause(self, tmp_path: Path) -> None:
        done = run_ortune("search", TINY_CNN, "--provider", "cuda", cwd=tmp_path)
        assert done.returncode == 2
        assert "is missing" in done.stderr
        assert "Traceback" not in done.stderr


class TestOptionsInLibraries:
    """The options in the catalog, compared with the library of their provider, where it is installed."""

    def read(self, alias: str) -> bytes:
        spec = importlib.util.find_spec("onnxruntime")
        assert spec and spec.origin
        library = read_provider_library(Path(spec.origin).parent, alias)
        if not library:
            pytest.skip(f"the installed onnxruntime has no library of {alias}")
        return library

    @pytest.mark.parametrize("alias", ["cuda", "tensorrt", "openvino", "migraphx"])
    def test_every_option_is_in_the_library(self, alias: str) -> None:
        library = self.read(alias)
        assert RUNTIME
        release = RUNTIME.onnxruntime
        known = [knob for knob in KNOBS.values() if knob.provider and knob.alias == alias]
        known = [knob for knob in known if not is_before(release, knob.since or release)]
        assert {knob.id for knob in known if not has_option(library, knob.name)} == set()

    @pytest.mark.parametrize("alias", list(OPTION_STARTS))
    def test_every_option_in_the_library_is_a_knob(self, alias: str) -> None:
        found = find_options(self.read(alias), alias)
        assert len(found) > 15
        assert found - {knob.name for knob in KNOBS.values() if knob.alias == alias} <= set(NOT_OPTIONS)

    def test_how_options_are_found(self) -> None:
        library = b"\0has_user_compute_stream\0trt_new_option\0the option trt_other is\0"
        assert find_options(library, "tensorrt") == {"trt_new_option"}
        assert has_option(library, "user_compute_stream")
        assert not has_option(library, "trt_other")


@needs_openvino
@pytest.mark.parametrize("model", [TINY_CNN, TINY_ENCODER])
def test_a_search_across_the_cpu_and_openvino(model: Path, tmp_path: Path) -> None:
    done = run_ortune("search", model, "--provider", "cpu,openvino", "--budget", "25s", "-o", "r.json", cwd=tmp_path)
    assert done.returncode in {0, 3}, done.stderr
    trials = read_trials(tmp_path / "r.json").trials
    tried = [trial for trial in trials if trial.config.provider == OPENVINO]
    assert any(trial.speedups for trial in tried), [trial.failure for trial in tried]
    assert read_record(tmp_path / "r.json").search.tried.providers == (OPENVINO,)
    done = run_ortune("apply", "r.json", model, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"]


@needs_openvino
def test_openvino_alone_is_searched_and_applied(tmp_path: Path) -> None:
    done = run_ortune("search", TINY_CNN, "--provider", "openvino", "--budget", "20s", "-o", "r.json", cwd=tmp_path)
    assert done.returncode in {0, 3}, done.stderr
    record = read_record(tmp_path / "r.json")
    assert record.config.provider == OPENVINO
    assert record.evidence.baseline is None or record.evidence.baseline.nodes[OPENVINO] > 0
    assert run_ortune("apply", "r.json", TINY_CNN, cwd=tmp_path).returncode == 0


@needs_openvino
class TestOpenvinoProgram:
    """A program on OpenVINO under `ortune apply`. OpenVINO writes the compiled model to the folder `cache_dir`."""

    def run(self, record: Record, tmp_path: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run the program. Return what its session has, and what --explain-json writes."""
        code = f"""
import json, onnxruntime
session = onnxruntime.InferenceSession(
    {str(TINY_CNN)!r},
    providers=[
        ("{OPENVINO}", {{"device_type": "CPU", "cache_dir": {str(tmp_path / "own")!r}}}),
        ("{CPU}", {{"use_arena": "0"}}),
    ],
)
options = session.get_session_options()
print(json.dumps({{
    "providers": session.get_providers(),
    "provider_options": sorted(session.get_provider_options()),
    "intra": options.intra_op_num_threads,
}}))
"""
        log = tmp_path / "log.jsonl"
        done = run_program(
            sys.executable,
            "-c",
            code,
            record=write(record, tmp_path / "r.json"),
            options=("--explain-json", str(log), *options),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), json.loads(log.read_text())

    def record(self, *providers: tuple[str, dict[str, str]], tried: tuple[str, ...] = ()) -> Record:
        record = make_record(TINY_CNN, Config(session_options={"intra_op_num_threads": 1}, providers=providers))
        return msgspec.structs.replace(
            record, search=msgspec.structs.replace(record.search, tried=Tried(providers=tried))
        )

    def caches(self, folder: Path) -> int:
        return len(list(folder.rglob("*.blob")))

    def test_a_record_for_the_cpu_leaves_it_alone(self, tmp_path: Path) -> None:
        found, explained = self.run(self.record((CPU, {})), tmp_path)
        assert found == {"providers": [OPENVINO, CPU], "provider_options": [CPU, OPENVINO], "intra": 0}
        assert explained["reason"] == f"the program requests {OPENVINO}, which the record does not cover"
        assert self.caches(tmp_path / "own") == 1

    def test_a_record_for_openvino_keeps_what_it_does_not_set(self, tmp_path: Path) -> None:
        found, explained = self.run(self.record((OPENVINO, {"num_streams": "1"}), (CPU, {})), tmp_path)
        assert found == {"providers": [OPENVINO, CPU], "provider_options": [CPU, OPENVINO], "intra": 1}
        assert explained["set"]["openvino.num_streams"] == "1"
        assert explained["replaced"] == {}
        assert self.caches(tmp_path / "own") == 1

    @pytest.mark.parametrize("keep", [False, True])
    def test_an_option_of_both(self, keep: bool, tmp_path: Path) -> None:
        record = self.record((OPENVINO, {"cache_dir": str(tmp_path / "tuned")}), (CPU, {}))
        _, explained = self.run(record, tmp_path, "--trust", *(["--keep-explicit"] if keep else []))
        assert explained["replaced"] == ({} if keep else {"openvino.cache_dir": str(tmp_path / "own")})
        assert (self.caches(tmp_path / "own"), self.caches(tmp_path / "tuned")) == ((1, 0) if keep else (0, 1))

    def test_a_search_that_tried_it_and_chose_the_cpu(self, tmp_path: Path) -> None:
        found, explained = self.run(self.record((CPU, {}), tried=(OPENVINO,)), tmp_path)
        assert found == {"providers": [CPU], "provider_options": [CPU], "intra": 1}
        assert explained["providers_dropped"] == [OPENVINO]
        assert explained["replaced"] == {
            "providers": f"{OPENVINO},{CPU}",
            "openvino.device_type": "CPU",
            "openvino.cache_dir": str(tmp_path / "own"),
        }
        assert self.caches(tmp_path) == 0


@needs_gpu
@pytest.mark.parametrize("model", [TINY_CNN, TINY_ENCODER])
def test_a_search_of_cuda_options(model: Path, tmp_path: Path) -> None:
    done = run_ortune("search", model, "--provider", "cuda", "--budget", "60s", "-o", "r.json", cwd=tmp_path)
    assert done.returncode in {0, 3}, done.stderr
    trials = read_trials(tmp_path / "r.json").trials
    graphs = [trial for trial in trials if trial.config.settings.get("cuda.enable_cuda_graph") == "1"]
    assert any(trial.speedups for trial in graphs), [trial.failure for trial in graphs]
