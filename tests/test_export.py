"""`ortune apply --to TARGET`: the output, the settings that are not supported, and the output when it is read back.

In `tests/consumers/`, the systems that the exports are for read them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import onnx
import pytest
import yaml

from ortune import Config, ModelError, Record, UsageError
from ortune.export import TARGETS, export, find_target, render
from ortune.export.pending_settings import PendingSettings
from ortune.export.save import SavedModel, SaveRequest
from ortune.export.serving import count_cpus
from ortune.export.target import Job
from ortune.host.allocators import SONAMES
from ortune.knobs import CPU, DEFAULT, KNOBS, ThreadPool
from ortune.knobs.providers import chain_of
from ortune.record import files
from ortune.record.schema import FrontPoint, Tried
from ortune.record.select import Sourced, merge
from ortune.workload import make_load
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.records import ELSEWHERE, make_record, write

pytestmark = pytest.mark.usefixtures("forked_children", "models_read_here")

GOLDEN = ROOT / "tests" / "data" / "exports"

TEXTS = [name for name, target in TARGETS.items() if not target.binary]

FULL = Config(
    session_options={
        "intra_op_num_threads": 2,
        "inter_op_num_threads": 3,
        "execution_mode": "ORT_PARALLEL",
        "graph_optimization_level": "ORT_ENABLE_EXTENDED",
        "enable_mem_pattern": False,
        "enable_cpu_mem_arena": False,
        "execution_order": "PRIORITY_BASED",
        "use_deterministic_compute": True,
    },
    session_config={
        "session.intra_op.allow_spinning": "0",
        "session.intra_op_thread_affinities": "2",
        "session.dynamic_block_base": "4",
        "session.use_device_allocator_for_initializers": "1",
    },
    run_options={"only_execute_path_to_fetches": True},
    run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    environment={"OMP_NUM_THREADS": "2"},
    allocator="mimalloc",
    io_binding=True,
)

CONFIGS = {
    "full": FULL,
    "cuda": Config(
        session_options={"intra_op_num_threads": 1, "graph_optimization_level": "ORT_ENABLE_LAYOUT"},
        providers=(
            ("TensorrtExecutionProvider", {"trt_fp16_enable": "True", "device_id": "1"}),
            ("CUDAExecutionProvider", {"device_id": "1", "cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "0"}),
            ("CPUExecutionProvider", {}),
        ),
    ),
    "openvino": Config(
        providers=(
            ("OpenVINOExecutionProvider", {"device_type": "CPU", "num_streams": "2"}),
            ("CPUExecutionProvider", {}),
        )
    ),
    "pool": Config(
        session_config={"session.intra_op.allow_spinning": "0"},
        per_session=({"session.dynamic_block_base": "4"}, {"session.dynamic_block_base": "8"}),
        global_thread_pool=ThreadPool(intra_op_num_threads=2, inter_op_num_threads=1),
    ),
    "default": DEFAULT,
}


def record_of(config: Config) -> Record:
    """Return a record that does not depend on the host."""
    record = make_record(TINY_CNN, config, load=make_load(clients=2), here=False)
    return msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, path="models/tiny_cnn.onnx"))


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("name", TEXTS)
def test_output(name: str, case: str, request: pytest.FixtureRequest) -> None:
    """After a change, write the golden files with `pytest tests/test_export.py --golden`, and read the difference."""
    done = render(name, record_of(CONFIGS[case]), "models/tiny_cnn.onnx", "tuned.json")
    path = GOLDEN / f"{case}.{name}.txt"
    text = done.text + "".join(f"unsupported: {line}\n" for line in done.unsupported)
    if request.config.getoption("--golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def settable() -> list[Config]:
    """Return one config for each setting of the catalogue."""
    configs = []
    for knob in KNOBS.values():
        if not knob.is_settable or knob.where == "config":
            continue
        others = [choice for choice in knob.values or () if str(choice) != str(knob.default)]
        value: int | str = others[0] if others else "3"
        if knob.kind == "integer":
            value = 3
        if knob.kind == "boolean":
            value = knob.default in {False, "0", ""}
            value = value if knob.is_attribute else int(value)
        config = DEFAULT
        if knob.provider:
            config = msgspec.structs.replace(config, providers=chain_of(knob.provider))
        text = value if knob.where in {"session_options", "run_options"} else str(value)
        configs.append(config.with_setting(knob.where, knob.name, text, knob.provider))
    return configs


APPLIED = {"gunicorn", "uvicorn", "compose", "systemd"}
"""Targets whose commands apply the record with `ortune apply`, instead of writing its settings."""


@pytest.mark.parametrize("name", sorted(APPLIED))
def test_commands_that_apply_the_record(name: str) -> None:
    """Only what the program itself must do is reported."""
    done = render(name, record_of(FULL), "m.onnx", "my tuned.json")
    assert re.search(r"ortune.apply", done.text)
    assert "my tuned.json" in done.text
    reported = {line.split("=")[0] for line in done.unsupported}
    assert {"io_binding"} <= reported <= {"io_binding", "callers"}


@pytest.mark.parametrize("name", [target_name for target_name in TEXTS if target_name not in APPLIED])
def test_every_setting_is_written_or_reported(name: str) -> None:
    """Each setting of the catalogue changes the output, or is reported as not supported."""
    record = record_of(DEFAULT)
    configs = settable()
    assert len(configs) > 150
    for config in configs:
        base = msgspec.structs.replace(DEFAULT, providers=tuple((provider, {}) for provider, _ in config.providers))
        plain = render(name, msgspec.structs.replace(record, config=base), "m.onnx")
        done = render(name, msgspec.structs.replace(record, config=config), "m.onnx")
        unsupported = set(done.unsupported) - set(plain.unsupported)
        # If the format has comments, the output lists them too.
        if TARGETS[name].comment:
            assert all(line in done.text for line in done.unsupported)
        setting = sorted(set(config.settings) - set(base.settings)) or sorted(config.settings)
        assert unsupported or without_notes(done.text) != without_notes(plain.text), (name, setting, done.text)


def without_notes(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*(#|//|<!--) ( |Not supported)", line))


# Read back: the output holds the settings of the config.

LEVELS = {0: "ORT_DISABLE_ALL", 1: "ORT_ENABLE_BASIC", 2: "ORT_ENABLE_EXTENDED", 3: "ORT_ENABLE_LAYOUT"}


def text_of(name: str, config: Config, **kwargs: Any) -> str:
    return render(name, record_of(config), str(TINY_CNN), **kwargs).text


def read_python(text: str) -> dict[str, Any]:
    """Execute it, and read the options of the live session."""
    names: dict[str, Any] = {"inputs": {}}
    code = text.split("binding = ")[0]
    exec(code, names)  # the code of the export is under test
    read = names["session"].get_session_options()
    found: dict[str, Any] = {}
    for name in FULL.session_options:
        value = getattr(read, name)
        found[name] = getattr(value, "name", value)
    for name in FULL.session_config:
        found[name] = read.get_session_config_entry(name)
    options = names["run_options"]
    found["only_execute_path_to_fetches"] = options.only_execute_path_to_fetches
    found["memory.enable_memory_arena_shrinkage"] = options.get_run_config_entry("memory.enable_memory_arena_shrinkage")
    return found


def read_javascript(text: str) -> dict[str, Any]:
    options = json.loads(re.split(r"const (?:session_)?options = ", text)[1].split(";\n")[0])
    found = {
        "intra_op_num_threads": options["intraOpNumThreads"],
        "inter_op_num_threads": options["interOpNumThreads"],
        "execution_mode": {"parallel": "ORT_PARALLEL"}[options["executionMode"]],
        "graph_optimization_level": {"extended": "ORT_ENABLE_EXTENDED"}[options["graphOptimizationLevel"]],
        "enable_cpu_mem_arena": options["enableCpuMemArena"],
        "enable_mem_pattern": options["enableMemPattern"],
    }

    def flatten(value: Any, prefix: str) -> None:
        for key, entry in value.items():
            if isinstance(entry, dict):
                flatten(entry, f"{prefix}{key}.")
            else:
                found[prefix + key] = entry

    flatten(options["extra"], "")
    return found


def read_onnxruntime_web(text: str) -> dict[str, Any]:
    options = json.loads(text.split("const options = ")[1].split(";\n")[0])
    threads = re.search(r"ort\.env\.wasm\.numThreads = (\d+);", text)
    assert threads
    assert options["executionProviders"] == ["wasm"]
    return {
        "intra_op_num_threads": int(threads[1]),
        "graph_optimization_level": {"extended": "ORT_ENABLE_EXTENDED"}[options["graphOptimizationLevel"]],
        "enable_cpu_mem_arena": options["enableCpuMemArena"],
        "enable_mem_pattern": options["enableMemPattern"],
        "session.use_device_allocator_for_initializers": options["extra"]["session"][
            "use_device_allocator_for_initializers"
        ],
    }


def read_triton(text: str) -> dict[str, Any]:
    pairs = dict(re.findall(r'key: "([^"]+)" value: \{ string_value: "([^"]+)" \}', text))
    level = re.search(r"level: (-?\d)", text)
    assert level
    return {
        "intra_op_num_threads": int(pairs["intra_op_thread_count"]),
        "inter_op_num_threads": int(pairs["inter_op_thread_count"]),
        "execution_mode": {"1": "ORT_PARALLEL", "0": "ORT_SEQUENTIAL"}[pairs["execution_mode"]],
        "enable_cpu_mem_arena": pairs["enable_mem_arena"] == "1",
        "enable_mem_pattern": pairs["enable_mem_pattern"] == "1",
        "graph_optimization_level": {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}[
            int(level[1])
        ],
        "session.use_device_allocator_for_initializers": pairs["session.use_device_allocator_for_initializers"],
        "memory.enable_memory_arena_shrinkage": pairs["memory.enable_memory_arena_shrinkage"],
    }


def read_genai(text: str) -> dict[str, Any]:
    part = json.loads(text)["model"]["decoder"]
    options = dict(part["session_options"])
    assert options.pop("provider_options") == []
    return {**options, **part["run_options"]}


def read_sherpa_onnx(text: str) -> dict[str, Any]:
    lines = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    threads = re.search(r"In the program: num_threads=(\d+)", text)
    assert threads
    found: dict[str, Any] = {
        "intra_op_num_threads": int(threads[1]),
        "graph_optimization_level": LEVELS[int(lines.pop("GraphOptimizationLevel"))],
        "enable_mem_pattern": lines.pop("EnableMemPattern") == "1",
        "enable_cpu_mem_arena": lines.pop("EnableCpuMemArena") == "1",
    }
    return found | {name.removeprefix("SessionConfig."): value for name, value in lines.items()}


def read_rapidocr(text: str) -> dict[str, Any]:
    part = yaml.safe_load(text)["EngineConfig"]["onnxruntime"]
    return {name: part[name] for name in ("intra_op_num_threads", "inter_op_num_threads", "enable_cpu_mem_arena")}


DJL_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "interOpNumThreads": ("inter_op_num_threads", int),
    "intraOpNumThreads": ("intra_op_num_threads", int),
    "executionMode": ("execution_mode", {"SEQUENTIAL": "ORT_SEQUENTIAL", "PARALLEL": "ORT_PARALLEL"}.__getitem__),
    "optLevel": (
        "graph_optimization_level",
        {
            "NO_OPT": "ORT_DISABLE_ALL",
            "BASIC_OPT": "ORT_ENABLE_BASIC",
            "EXTENDED_OPT": "ORT_ENABLE_EXTENDED",
            "ALL_OPT": "ORT_ENABLE_ALL",
        }.__getitem__,
    ),
    "ortDevice": ("device", {name: name for name in ("TensorRT", "ROCM", "CoreML")}.__getitem__),
}
"""By option of DJL: what it sets, and how its values are read. DJL ignores other options and fails with other values.

Source: engines/onnxruntime/onnxruntime-engine/src/main/java/ai/djl/onnxruntime/engine/OrtModel.java of
https://github.com/deepjavalibrary/djl 0.37, and the enums ExecutionMode and OptLevel of ONNX Runtime 1.21 for Java.
"""


def read_djl(text: str) -> dict[str, Any]:
    engine, *lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert engine == "engine=OnnxRuntime"
    found = {}
    for line in lines:
        key, value = line.split("=")
        name, read = DJL_OPTIONS[key.removeprefix("option.")]
        assert key.startswith("option.")
        found[name] = read(value)
    return found


def read_vespa(text: str) -> dict[str, Any]:
    root = ElementTree.fromstring(text)
    found = [
        {
            "intra_op_num_threads": int(part.findtext(f"{start}intraop-threads", "")),
            "inter_op_num_threads": int(part.findtext(f"{start}interop-threads", "")),
            "execution_mode": f"ORT_{part.findtext(f'{start}execution-mode', '').upper()}",
        }
        for path, start in (("component", "onnx-"), ("model-evaluation/onnx/models/model", ""))
        if (part := root.find(path)) is not None
    ]
    assert found[0] == found[1]
    assert root.findtext("component/onnx-gpu-device") == "-1"
    return found[0]


def read_fastembed(text: str) -> dict[str, Any]:
    class TextEmbedding:
        def __init__(self, name: str, **arguments: Any) -> None:
            self.arguments = arguments

    names: dict[str, Any] = {"TextEmbedding": TextEmbedding}
    exec(text.replace("from fastembed import", "# "), names)  # the code of the export is under test
    arguments = names["model"].arguments
    assert arguments["providers"] == ["CPUExecutionProvider"]
    return {
        "intra_op_num_threads": arguments["threads"],
        "enable_cpu_mem_arena": arguments["enable_cpu_mem_arena"],
    }


def read_environment(text: str) -> dict[str, Any]:
    """Let a shell read it."""
    done = subprocess.run(["sh", "-c", text + "\nenv"], capture_output=True, text=True, check=True)
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return read_variables(variables)


def read_kubernetes(text: str) -> dict[str, Any]:
    part = yaml.safe_load(text)
    # No limit of memory, which would end a program that needs more than its session.
    assert part["resources"]["limits"] == {"cpu": part["resources"]["requests"]["cpu"]}
    return read_variables({variable["name"]: variable["value"] for variable in part["env"]})


def read_variables(variables: dict[str, str]) -> dict[str, Any]:
    return {
        "intra_op_num_threads": int(variables["ORT_INTRA_OP_NUM_THREADS"]),
        "inter_op_num_threads": int(variables["ORT_INTER_OP_NUM_THREADS"]),
        "OMP_NUM_THREADS": variables["OMP_NUM_THREADS"],
        "allocator": {soname: name for name, soname in SONAMES.items()}[variables["LD_PRELOAD"]],
    }


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "python": read_python,
    "javascript": read_javascript,
    "onnxruntime-web": read_onnxruntime_web,
    "transformers-js": read_javascript,
    "triton": read_triton,
    "genai": read_genai,
    "sherpa-onnx": read_sherpa_onnx,
    "rapidocr": read_rapidocr,
    "fastembed": read_fastembed,
    "vespa": read_vespa,
    "djl": read_djl,
    "environment": read_environment,
    "kubernetes": read_kubernetes,
}


@pytest.mark.parametrize("name", READERS)
def test_read_back(name: str) -> None:
    """The settings that are read and those that are reported as not supported are together the whole config."""
    done = render(name, record_of(FULL), str(TINY_CNN))
    found = READERS[name](done.text)
    assert found
    for setting, value in found.items():
        assert value == FULL.settings[setting], setting
    unsupported = {line.split("=")[0] for line in done.unsupported}
    comments = {"OMP_NUM_THREADS", "allocator"}
    elsewhere = {"python": {*comments, "io_binding"}, "javascript": comments, "transformers-js": comments}
    assert set(found) | unsupported | elsewhere.get(name, set()) == set(FULL.settings)
    assert not set(found) & unsupported


NAMES = {
    "cpp": {
        "SetIntraOpNumThreads SetInterOpNumThreads SetExecutionMode SetGraphOptimizationLevel DisableCpuMemArena",
        "DisableMemPattern AddConfigEntry SetDeterministicCompute DisablePerSessionThreads Update",
        "AppendExecutionProvider_CUDA_V2 AppendExecutionProvider_TensorRT_V2 AppendExecutionProvider_OpenVINO_V2",
        "SetGlobalIntraOpNumThreads SetGlobalInterOpNumThreads",
    },
    "csharp": {
        "IntraOpNumThreads InterOpNumThreads ExecutionMode GraphOptimizationLevel EnableCpuMemArena",
        "EnableMemoryPattern AddSessionConfigEntry AddRunConfigEntry DisablePerSessionThreads UpdateOptions",
        "AppendExecutionProvider_CUDA AppendExecutionProvider_Tensorrt AppendExecutionProvider",
        "CreateIoBinding CreateInstanceWithOptions",
    },
    "aspose": {
        "IntraOpNumThreads InterOpNumThreads ExecutionMode GraphOptimizationLevel EnableCpuMemArena",
        "EnableMemoryPattern OnnxRuntimeSessionOptions ExecutionModeOnnx GraphOptimizationLevelOnnx",
    },
    "java": {
        "setIntraOpNumThreads setInterOpNumThreads setExecutionMode setOptimizationLevel setCPUArenaAllocator",
        "setMemoryPatternOptimization addConfigEntry addRunConfigEntry setDeterministicCompute createSession",
        "disablePerSessionThreads setGlobalIntraOpNumThreads setGlobalInterOpNumThreads getEnvironment add addCUDA",
        "addTensorrt addOpenVINO",
    },
    "rust": {
        "with_intra_threads with_inter_threads with_parallel_execution with_optimization_level with_memory_pattern",
        "with_intra_op_spinning with_dynamic_block_base with_config_entry with_deterministic_compute",
        "with_execution_providers with_arena_allocator with_arbitrary_config with_global_thread_pool",
        "commit_from_file commit add_config_entry build error_on_failure",
    },
    "swift": {
        "setIntraOpNumThreads setGraphOptimizationLevel setOptimizedModelFilePath setLogID setLogSeverityLevel",
        "addConfigEntry appendExecutionProvider appendCoreMLExecutionProvider",
    },
}
"""Names of the API of each language, from its documentation: the code may call only these."""


class TestCode:
    """Code that these tests do not run: each name that it calls is a name of the API."""

    @pytest.mark.parametrize("case", CONFIGS)
    @pytest.mark.parametrize("name", NAMES)
    def test_names(self, name: str, case: str) -> None:
        known = {word for line in NAMES[name] for word in line.split()}
        code = "\n".join(
            line.split("  // ")[0]
            for line in text_of(name, CONFIGS[case]).splitlines()
            if not line.strip().startswith("//")
        )
        if name == "aspose":
            called = set(re.findall(r"\.OCR\.(\w+)", code)) | set(re.findall(r"Options\.(\w+) =", code))
        else:
            # Methods and properties of objects. Types and enums start with a capital letter after :: or a type's name.
            called = set(
                re.findall(r"(?:^|\s)(?:options|run_options|runOptions|session|cuda|tensorrt|threads)\.(\w+)", code)
            )
            called |= set(re.findall(r"^\s*\.(\w+)\(", code, re.MULTILINE))
        assert called <= known, called - known

    @pytest.mark.parametrize("case", CONFIGS)
    def test_brackets_are_balanced(self, case: str) -> None:
        for name in ("cpp", "csharp", "java", "rust", "swift", "javascript", "onnxruntime-web", "transformers-js"):
            text = re.sub(r'"[^"]*"', '""', text_of(name, CONFIGS[case]))
            for opening, closing in ("()", "{}", "[]"):
                assert text.count(opening) == text.count(closing), (name, opening)

    @pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
    def test_javascript_parses(self, tmp_path: Path) -> None:
        for case, config in CONFIGS.items():
            path = tmp_path / f"{case}.js"
            path.write_text(text_of("javascript", config))
            subprocess.run(["node", "--check", str(path)], check=True, timeout=60)

    @pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
    def test_cpp_compiles(self, tmp_path: Path) -> None:
        """Syntax and argument types are checked against declarations of the functions that the code calls."""
        for case, config in CONFIGS.items():
            code = text_of("cpp", config).replace("#include <onnxruntime_cxx_api.h>", "")
            source = tmp_path / f"{case}.cpp"
            source.write_text(
                (ROOT / "tests" / "data" / "ort_declarations.h").read_text() + "int main() {\n" + code + "}\n"
            )
            subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "-Wall", str(source)], check=True, timeout=120)


class TestBrowsers:
    def test_options_of_webgpu(self) -> None:
        own = {"preferredLayout": "NHWC", "storageBufferCacheMode": "simple", "dawnProcTable": "1"}
        done = render("onnxruntime-web", record_of(Config(providers=(("WebGpuExecutionProvider", own),))), "m.onnx")
        options = json.loads(done.text.split("const options = ")[1].split(";\n")[0])
        del own["dawnProcTable"]
        assert options["executionProviders"] == [{"name": "webgpu", **own}]
        assert [line.split("=")[0] for line in done.unsupported] == ["webgpu.dawnProcTable"]

    @pytest.mark.parametrize(("threads", "isolated"), [(None, True), (1, False), (2, True)])
    def test_one_thread_needs_no_isolation(self, threads: int | None, isolated: bool) -> None:
        config = Config(session_options={"intra_op_num_threads": threads} if threads else {})
        text = text_of("onnxruntime-web", config)
        assert ("Cross-Origin-Embedder-Policy: require-corp" in text) == isolated
        assert ("numThreads" in text) == (threads is not None)

    def test_the_device_of_a_pipeline(self) -> None:
        text = text_of("transformers-js", Config(providers=chain_of("WebGpuExecutionProvider")))
        assert 'device: "webgpu"' in text
        assert "device:" not in text_of("transformers-js", DEFAULT)


class TestVespa:
    def test_counts_that_were_not_tuned(self) -> None:
        """Vespa's default is not that of ONNX Runtime."""
        record = record_of(Config(session_options={"execution_mode": "ORT_PARALLEL"}))
        found = read_vespa(render("vespa", record, "m.onnx").text)
        n_cores = record.host.n_usable_cores
        assert found == {
            "execution_mode": "ORT_PARALLEL",
            "intra_op_num_threads": n_cores,
            "inter_op_num_threads": n_cores,
        }

    @pytest.mark.parametrize(("device", "found"), [("1", "1"), ("0", "0"), ("<x/>", "0")])
    def test_the_gpu(self, device: str, found: str) -> None:
        config = Config(providers=(("CUDAExecutionProvider", {"device_id": device}),))
        done = render("vespa", record_of(config), "m.onnx")
        assert ElementTree.fromstring(done.text).findtext("component/onnx-gpu-device") == found
        assert bool(done.unsupported) == (device != found)


class Evaluator:
    """The parameters of OnnxruntimeEvaluator that a target may use, with the session that it creates.

    Source: yobx/reference/onnxruntime_evaluator.py of https://github.com/xadupre/yet-another-onnx-builder.
    """

    def __init__(
        self,
        proto: str,
        session_options: Any = None,
        providers: str | list[str] | None = None,
        nvtx: bool = False,
        enable_profiling: bool = False,
        graph_optimization_level: Any = None,
        log_severity_level: int | None = None,
        log_verbosity_level: int | None = None,
        optimized_model_filepath: str | None = None,
        disable_aot_function_inlining: bool | None = None,
        use_training_api: bool = False,
        verbose: int = 0,
        local_functions: dict[tuple[str, str], Any] | None = None,
        ir_version: int = 10,
        opsets: int | dict[str, int] | None = None,
        whole: bool = False,
    ) -> None:
        import onnxruntime

        assert whole
        self.session = onnxruntime.InferenceSession(proto, session_options, providers=["CPUExecutionProvider"])


class TestYobx:
    def test_the_code_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """yobx is not on PyPI: a class with its parameters takes its place."""
        for name in ("yobx", "yobx.reference"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setattr(sys.modules["yobx.reference"], "OnnxruntimeEvaluator", Evaluator, raising=False)
        names: dict[str, Any] = {}
        done = render("yobx", record_of(FULL), str(TINY_CNN))
        exec(done.text, names)  # the code of the export is under test
        read = names["evaluator"].session.get_session_options()
        for name in ("intra_op_num_threads", "enable_mem_pattern", "use_deterministic_compute"):
            assert getattr(read, name) == FULL.session_options[name]
        for name, value in FULL.session_config.items():
            assert read.get_session_config_entry(name) == value


class TestUnusualTexts:
    def test_python_is_valid_for_any_model_path(self) -> None:
        record = record_of(FULL)
        for path in ('q"t.onnx', "m\\n.onnx", "m.onnx\nimport os; os.abort()\n#", "modèle 😀.onnx"):
            odd = msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, path=path))
            for target in ("python", "yobx", "optimum", "sentence-transformers"):
                text = render(target, odd, path).text
                compile(text, target, "exec")
                assert "\nimport os" not in text
                if target == "python":
                    assert json.dumps(path, ensure_ascii=False) in text

    @pytest.mark.parametrize(
        "document",
        [
            {"model": {"decoder": []}},
            {"model": {"decoder": {"session_options": 3}}},
            {"model": {"decoder": {"run_options": 7}}},
            {"model": {"decoder": {"session_options": {"provider_options": {"cuda": {}}}}}},
            {"model": {"decoder": {"session_options": {"provider_options": ["cuda"]}}}},
            {"model": {"decoder": {"session_options": {"provider_options": [{"cuda": 1}]}}}},
            {"model": 1},
        ],
    )
    def test_an_invalid_genai_config(self, document: Any, tmp_path: Path) -> None:
        path = tmp_path / "genai_config.json"
        path.write_text(json.dumps(document))
        with pytest.raises(UsageError, match=r"is not an? "):
            export("genai", record_of(FULL), str(TINY_CNN), "r.json", path)
        assert json.loads(path.read_text()) == document

    def test_a_genai_config_with_null(self, tmp_path: Path) -> None:
        path = tmp_path / "genai_config.json"
        path.write_text('{"model": {"decoder": {"session_options": null}}}')
        export("genai", record_of(FULL), str(TINY_CNN), "r.json", path)
        assert json.loads(path.read_text())["model"]["decoder"]["session_options"]

    def test_memory_is_from_the_selected_point(self) -> None:
        record = record_of(FULL)
        small = record.evidence.winner or record.evidence.baseline
        assert small
        large = msgspec.structs.replace(small, config=FULL, peak_bytes=4_000_000_000)
        point = FrontPoint(summary=large, speedups={}, limits=(), recommended=True)
        evidence = msgspec.structs.replace(record.evidence, winner=None, front=(point,))
        text = render("kubernetes", msgspec.structs.replace(record, evidence=evidence), "m.onnx").text
        (amount,) = {int(size) for size in re.findall(r"memory: (\d+)Mi", text)}
        assert amount > 3800

    def test_a_bundle_is_the_source_of_its_records(self, tmp_path: Path) -> None:
        bundle, _ = merge([Sourced(record=record_of(config), source="") for config in (FULL, DEFAULT)])
        path = tmp_path / "b.json"
        two = msgspec.structs.replace(bundle.records[0], host=ELSEWHERE)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(bundle, records=(*bundle.records, two))))
        done = run_ortune("apply", path, TINY_CNN, "--to", "environment", cwd=tmp_path)
        assert f"# ENV ORTUNE_CONFIG={path}\n" in done.stdout, done.stderr


class TestFiles:
    def test_genai_is_merged(self, tmp_path: Path) -> None:
        path = tmp_path / "genai_config.json"
        before = {
            "model": {
                "type": "phi3",
                "decoder": {
                    "filename": "other.onnx",
                    "session_options": {"log_id": "x", "intra_op_num_threads": 9, "provider_options": [{"cuda": {}}]},
                },
                "vision": {"filename": "tiny_cnn.onnx", "session_options": {"log_id": "y"}},
            },
            "search": {"max_length": 9},
        }
        path.write_text(json.dumps(before))
        export("genai", record_of(FULL), str(TINY_CNN), "r.json", path)
        after = json.loads(path.read_text())
        assert after["search"] == before["search"]
        assert after["model"]["decoder"] == before["model"]["decoder"]  # type: ignore[index]
        options = after["model"]["vision"]["session_options"]
        assert (options["log_id"], options["intra_op_num_threads"]) == ("y", 2)
        export("genai", record_of(DEFAULT), "other.onnx", "r.json", path)
        # Options that the search did not try stay, and so do providers.
        assert json.loads(path.read_text())["model"]["decoder"]["session_options"] == {
            "log_id": "x",
            "intra_op_num_threads": 9,
            "provider_options": [{"cuda": {}}],
        }

    def test_genai_gets_the_default_thread_count_of_onnxruntime(self, tmp_path: Path) -> None:
        """Without the option, onnxruntime-genai sets a count of its own."""
        path = tmp_path / "genai_config.json"
        record = record_of(DEFAULT)
        tried = msgspec.structs.replace(record.search, tried=Tried(session_options=("intra_op_num_threads",)))
        for existing, used, count in (
            ({}, record, 0),
            ({"intra_op_num_threads": 9}, record, 9),
            ({"intra_op_num_threads": 9}, msgspec.structs.replace(record, search=tried), 0),
        ):
            path.write_text(json.dumps({"model": {"decoder": {"session_options": existing}}}))
            export("genai", used, str(TINY_CNN), "r.json", path)
            options = json.loads(path.read_text())["model"]["decoder"]["session_options"]
            assert options == {"intra_op_num_threads": count, "provider_options": []}

    @pytest.mark.parametrize("content", ["{", "[]", '{"model": 3}'])
    def test_other_json_is_not_changed(self, content: str, tmp_path: Path) -> None:
        path = tmp_path / "genai_config.json"
        path.write_text(content)
        with pytest.raises(UsageError, match="genai_config"):
            export("genai", record_of(FULL), str(TINY_CNN), "r.json", path)
        assert path.read_text() == content

    def test_a_record_is_not_changed(self, tmp_path: Path) -> None:
        path = write(record_of(FULL), tmp_path / "r.json")
        content = path.read_bytes()
        with pytest.raises(UsageError, match="not a genai_config"):
            export("genai", record_of(FULL), str(TINY_CNN), "r.json", path)
        assert path.read_bytes() == content

    def test_embedded(self, tmp_path: Path) -> None:
        output = tmp_path / "tuned.onnx"
        done = export("embedded", record_of(FULL), str(TINY_CNN), "r.json", output)
        code = (
            "import onnxruntime as o, sys; s = o.InferenceSession(sys.argv[1]).get_session_options();"
            "print(s.intra_op_num_threads, s.inter_op_num_threads, s.execution_mode.name);"
            "print(s.graph_optimization_level.name)"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, str(output)],
            env={**os.environ, "ORT_LOAD_CONFIG_FROM_MODEL": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.split() == ["2", "3", "ORT_PARALLEL", "ORT_ENABLE_EXTENDED"]
        assert any("allow_spinning" in line for line in done.unsupported)
        assert "replace all SessionOptions" in done.text
        # An export of the copy replaces the entry.
        again = tmp_path / "again.onnx"
        export("embedded", record_of(DEFAULT), str(output), "r.json", again)
        (entry,) = onnx.load(again).metadata_props
        assert json.loads(entry.value) == {"session_options": {}}
        assert onnx.load(again).graph == onnx.load(TINY_CNN).graph

    def test_embedded_copies_external_data(self, tmp_path: Path) -> None:
        source = tmp_path / "model.onnx"
        onnx.save_model(
            onnx.load(TINY_CNN), source, save_as_external_data=True, location="weights.bin", size_threshold=0
        )
        record = make_record(source, FULL)
        (tmp_path / "out").mkdir()
        export("embedded", record, str(source), "r.json", tmp_path / "out" / "model.onnx")
        assert (tmp_path / "out" / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
        with pytest.raises(UsageError, match=r"weights.bin: this file already exists"):
            export("embedded", record, str(source), "r.json", tmp_path / "out" / "other.onnx")

    def test_embedded_leaves_nothing_if_the_model_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "model.onnx"
        onnx.save_model(
            onnx.load(TINY_CNN), source, save_as_external_data=True, location="weights.bin", size_threshold=0
        )
        copied: list[Path] = []

        def fail(path: Path, data: bytes) -> None:
            copied.extend(path.parent.iterdir())
            raise UsageError("No space left on device.")

        (tmp_path / "out").mkdir()
        record = make_record(TINY_CNN, FULL)
        with monkeypatch.context() as patched, pytest.raises(UsageError, match="No space left"):
            patched.setattr(files, "write_atomically", fail)
            export("embedded", record, str(source), "r.json", tmp_path / "out" / "model.onnx")
        assert copied == [tmp_path / "out" / "weights.bin"]
        assert list((tmp_path / "out").iterdir()) == []

    @pytest.mark.parametrize("suffix", ["onnx", "ort"])
    def test_ort(self, suffix: str, tmp_path: Path) -> None:
        import numpy as np
        import onnxruntime

        output = tmp_path / f"model.{suffix}"
        done = export("ort", record_of(FULL), str(TINY_CNN), "r.json", output)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        image = {"image": np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)}
        found = onnxruntime.InferenceSession(str(output), options).run(None, image)
        plain = onnxruntime.InferenceSession(str(TINY_CNN)).run(None, image)
        np.testing.assert_allclose(found[0], plain[0], atol=1e-5)
        assert "optimized at ORT_ENABLE_EXTENDED" in done.text
        assert "intra_op_num_threads=2" in done.unsupported
        assert "set them in the program" in done.text
        assert list(tmp_path.iterdir()) == [output]

    @pytest.mark.parametrize(
        ("name", "kept"), [("session.disable_double_qdq_remover", True), ("session.intra_op.allow_spinning", False)]
    )
    def test_ort_has_the_graph_that_was_measured(self, name: str, kept: bool, tmp_path: Path) -> None:
        """Two pairs of QuantizeLinear and DequantizeLinear, whose inner two nodes ONNX Runtime removes by default."""
        import numpy as np
        import onnxruntime

        nodes, last = [], "x"
        for pair in range(2):
            scales = [f"s{pair}", f"z{pair}"]
            nodes += [
                onnx.helper.make_node("QuantizeLinear", [last, *scales], [f"q{pair}"]),
                onnx.helper.make_node("DequantizeLinear", [f"q{pair}", *scales], [f"d{pair}"]),
            ]
            last = f"d{pair}"
        values = {"s0": np.float32(0.1), "z0": np.uint8(10), "s1": np.float32(0.07), "z1": np.uint8(20)}
        graph = onnx.helper.make_graph(
            [*nodes, onnx.helper.make_node("Exp", [last], ["y"])],
            "quantized",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
            [onnx.numpy_helper.from_array(np.array(value), name) for name, value in values.items()],
        )
        model = tmp_path / "model.onnx"
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), model)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "measured.onnx")
        options.add_session_config_entry(name, "1")
        onnxruntime.InferenceSession(str(model), options)
        done = export("ort", record_of(Config(session_config={name: "1"})), str(model), "r.json", tmp_path / "o.onnx")
        measured, saved = (
            [node.op_type for node in onnx.load(tmp_path / file).graph.node] for file in ("measured.onnx", "o.onnx")
        )
        assert saved == measured
        assert len(saved) == (5 if kept else 3)
        assert (name in str(done.unsupported)) != kept

    @pytest.mark.parametrize(
        ("config", "unsupported"),
        [
            (
                CONFIGS["openvino"],
                ("providers=openvino,cpu", "openvino.device_type=CPU", "openvino.num_streams=2"),
            ),
            (Config(providers=(("CPUExecutionProvider", {"use_arena": "0"}),)), ("cpu.use_arena=0",)),
        ],
    )
    def test_ort_stores_no_providers(
        self, config: Config, unsupported: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def save(request: SaveRequest) -> SavedModel:
            assert request.config.providers == config.providers
            Path(request.output).write_bytes(b"model")
            return SavedModel(size_bytes=5, onnxruntime="1.32.0")

        monkeypatch.setattr("ortune.export.ort.save_optimized", save)
        done = export("ort", record_of(config), str(TINY_CNN), "r.json", tmp_path / "out.onnx")
        assert done.unsupported == unsupported
        assert "set them in the program" in done.text

    def test_a_broken_model(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(b"nothing")
        for target in ("ort", "embedded"):
            with pytest.raises(ModelError, match="is not an ONNX model"):
                export(target, record_of(FULL), str(broken), "r.json", tmp_path / "out.onnx")
            assert not (tmp_path / "out.onnx").exists()
            with pytest.raises(ModelError, match="There is no file"):
                export(target, record_of(FULL), str(tmp_path / "none.onnx"), "r.json", tmp_path / "out.onnx")

    def test_an_existing_file_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "config.pbtxt"
        path.write_text("mine")
        with pytest.raises(UsageError, match="already exists"):
            export("triton", record_of(FULL), str(TINY_CNN), "r.json", path)
        assert path.read_text() == "mine"

    def test_a_binary_file_needs_a_name(self) -> None:
        with pytest.raises(UsageError, match="is a file"):
            export("ort", record_of(FULL), str(TINY_CNN), "r.json", None)

    def test_an_unknown_target(self) -> None:
        with pytest.raises(UsageError, match="to tritn: there is no such target") as caught:
            find_target("tritn")
        assert "Did you mean triton?" in caught.value.hint

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("windows-ml", "Windows ML has the APIs of ONNX Runtime. Did you mean csharp, cpp or python?"),
            ("Windows ML", "Windows ML has the APIs of ONNX Runtime. Did you mean csharp, cpp or python?"),
            ("winml", "Windows ML has the APIs of ONNX Runtime. Did you mean csharp, cpp or python?"),
            ("opensearch", "OpenSearch loads models with the Deep Java Library. Did you mean djl?"),
            ("OpenSearch", "OpenSearch loads models with the Deep Java Library. Did you mean djl?"),
        ],
    )
    def test_a_system_without_a_target_of_its_own(self, name: str, hint: str, tmp_path: Path) -> None:
        record = write(record_of(FULL), tmp_path / "r.json")
        done = run_ortune("apply", record, TINY_CNN, "--to", name, cwd=tmp_path)
        assert done.returncode == 2
        assert hint in " ".join(done.stderr.split())


class TestDjl:
    """serving.properties of DJL. `read_djl` knows the names and the values of DJL's source."""

    @pytest.mark.parametrize("case", CONFIGS)
    def test_its_names_are_those_of_the_source(self, case: str) -> None:
        read_djl(text_of("djl", CONFIGS[case]))

    def test_both_thread_counts_are_written(self) -> None:
        """Older versions read the first one only together with the second one."""
        for name in ("intra_op_num_threads", "inter_op_num_threads"):
            found = read_djl(text_of("djl", Config(session_options={name: 3})))
            assert found == {"intra_op_num_threads": 0, "inter_op_num_threads": 0} | {name: 3}

    def test_what_djl_cannot_turn_off_is_reported(self) -> None:
        config = Config(session_options={"enable_mem_pattern": False, "graph_optimization_level": "ORT_ENABLE_LAYOUT"})
        done = render("djl", record_of(config), "m.onnx")
        assert read_djl(done.text) == {}
        assert done.unsupported == (
            "graph_optimization_level=ORT_ENABLE_LAYOUT (DJL does not have this level)",
            "enable_mem_pattern=False (DJL can only turn this on, which is the default)",
        )

    @pytest.mark.parametrize(
        ("providers", "device", "unsupported"),
        [
            ((("CUDAExecutionProvider", {"device_id": "1"}),), None, {"cuda.device_id=1"}),
            ((("TensorrtExecutionProvider", {}), ("CUDAExecutionProvider", {})), "TensorRT", {"providers=cuda"}),
            ((("CoreMLExecutionProvider", {}),), "CoreML", set()),
            ((("ROCMExecutionProvider", {}),), "ROCM", set()),
            ((("OpenVINOExecutionProvider", {}),), None, {"providers=openvino"}),
        ],
    )
    def test_the_device(
        self, providers: tuple[tuple[str, dict[str, str]], ...], device: str | None, unsupported: set[str]
    ) -> None:
        done = render("djl", record_of(Config(providers=(*providers, (CPU, {})))), "m.onnx")
        assert read_djl(done.text).get("device") == device
        assert {line.partition(" ")[0] for line in done.unsupported} == unsupported


def test_the_speedup_of_a_rejected_candidate_is_not_that_of_the_config() -> None:
    """The search kept its baseline, which is not ONNX Runtime's default."""
    record = record_of(Config(session_options={"intra_op_num_threads": 2}))
    assert record.evidence.winner
    assert "Speedup: " in render("python", record, "m.onnx").text
    other = msgspec.structs.replace(record.evidence.winner, config=Config(session_options={"intra_op_num_threads": 1}))
    record = msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, winner=other))
    assert "Speedup: " not in render("python", record, "m.onnx").text


def parallel(**options: int) -> Config:
    return Config(session_options={"execution_mode": "ORT_PARALLEL", **options})


def with_provider(name: str, **options: str) -> Config:
    return Config(providers=((name, options), (CPU, {})), session_options={"intra_op_num_threads": 4})


class TestKubernetes:
    def test_processes_need_their_sum(self) -> None:
        record = record_of(Config(session_options={"intra_op_num_threads": 2}))
        load = msgspec.structs.replace(record.workload.load, scenario="multi-client", clients=1, processes=3)
        record = msgspec.structs.replace(
            record, workload=msgspec.structs.replace(record.workload, load=load), host=ELSEWHERE
        )
        assert count_cpus(Job(record, "m", "r.json")) == 6
        assert "for the processes that were measured only" in render("kubernetes", record, "m").text

    @pytest.mark.parametrize(
        ("config", "clients", "sessions", "quota", "cpus"),
        [
            (DEFAULT, 1, 1, None, 64),
            (Config(session_options={"intra_op_num_threads": 1}), 1, 1, None, 1),
            (Config(session_options={"intra_op_num_threads": 4}), 1, 1, None, 4),
            (Config(session_options={"intra_op_num_threads": 4}), 3, 1, None, 6),
            (Config(session_options={"intra_op_num_threads": 4}), 2, 2, None, 8),
            (Config(session_options={"intra_op_num_threads": 4}), 100, 1, None, 64),
            (Config(session_options={"intra_op_num_threads": 4}), 1, 1, 2.5, 2.5),
            (Config(global_thread_pool=ThreadPool(intra_op_num_threads=3, inter_op_num_threads=1)), 2, 2, None, 4),
            (parallel(intra_op_num_threads=1, inter_op_num_threads=4), 1, 1, None, 5),
            (parallel(intra_op_num_threads=1), 1, 1, None, 64),
            (Config(session_options={"intra_op_num_threads": 1, "inter_op_num_threads": 4}), 1, 1, None, 1),
            (
                Config(
                    providers=(("XnnpackExecutionProvider", {"intra_op_num_threads": "8"}), (CPU, {})),
                    session_options={"intra_op_num_threads": 1},
                ),
                1,
                1,
                None,
                9,
            ),
            (with_provider("XnnpackExecutionProvider"), 1, 1, None, 8),
            (with_provider("OpenVINOExecutionProvider"), 1, 1, None, 64),
            (with_provider("OpenVINOExecutionProvider", num_of_threads="6"), 1, 1, None, 10),
        ],
    )
    def test_cpus(self, config: Config, clients: int, sessions: int, quota: float | None, cpus: float) -> None:
        record = record_of(config)
        load = msgspec.structs.replace(record.workload.load, clients=clients, sessions=sessions)
        record = msgspec.structs.replace(
            record,
            workload=msgspec.structs.replace(record.workload, load=load),
            host=msgspec.structs.replace(ELSEWHERE, cpu_quota=quota),
        )
        assert count_cpus(Job(record, "m", "r.json")) == cpus
        text = f"{cpus:g}" if cpus == int(cpus) else "2500m"
        assert yaml.safe_load(render("kubernetes", record, "m").text)["resources"]["limits"]["cpu"] == text


class TestPendingSettings:
    def test_all_remain_at_first(self) -> None:
        pending = PendingSettings(CONFIGS["cuda"])
        assert [line.split("=")[0] for line in pending.remaining] == [
            "providers",
            "intra_op_num_threads",
            "graph_optimization_level",
            "tensorrt.trt_fp16_enable",
            "tensorrt.device_id",
            "cuda.device_id",
            "cuda.cudnn_conv_algo_search",
            "cuda.use_tf32",
        ]
        pending.take_providers()
        pending.take_options()
        assert pending.remaining == ()

    def test_a_setting_that_is_put_back_remains(self) -> None:
        pending = PendingSettings(FULL)
        pending.take_options()
        pending.put_back("execution_mode", "no")
        assert "execution_mode=ORT_PARALLEL (no)" in pending.remaining

    def test_a_provider_that_is_put_back_remains_with_its_options(self) -> None:
        pending = PendingSettings(CONFIGS["openvino"])
        pending.take_providers()
        pending.put_back_provider("OpenVINOExecutionProvider", "no")
        assert pending.remaining == (
            "providers=openvino (no)",
            "openvino.device_type=CPU (no)",
            "openvino.num_streams=2 (no)",
        )

    def test_only_supported_options_are_taken(self) -> None:
        pending = PendingSettings(FULL)
        assert pending.take_options({"execution_mode", "logid"}) == {"execution_mode": "ORT_PARALLEL"}
        assert "intra_op_num_threads=2" in pending.remaining
        assert not any(line.startswith("execution_mode") for line in pending.remaining)

    @pytest.mark.parametrize(
        ("options", "threads", "remaining"),
        [
            ({"intra_op_num_threads": 2, "inter_op_num_threads": 2}, 2, ()),
            ({"intra_op_num_threads": 2}, 2, ()),
            ({"intra_op_num_threads": 2, "inter_op_num_threads": 3}, 2, ("inter_op_num_threads=3 (no)",)),
            ({"inter_op_num_threads": 3}, None, ("inter_op_num_threads=3 (no)",)),
        ],
    )
    def test_a_common_thread_count(self, options: dict[str, Any], threads: int | None, remaining: Any) -> None:
        pending = PendingSettings(Config(session_options=options))
        assert pending.take_common_thread_count("no") == threads
        assert pending.remaining == remaining


class TestCommand:
    def test_text_goes_to_stdout_and_notes_to_stderr(self, tmp_path: Path) -> None:
        path = write(record_of(FULL), tmp_path / "r.json")
        done = run_ortune("apply", path, "--to", "triton", cwd=tmp_path)
        assert done.returncode == 0
        assert "intra_op_thread_count" in done.stdout
        assert "not supported: session.intra_op.allow_spinning=0" in done.stderr

    def test_a_file(self, tmp_path: Path) -> None:
        path = write(record_of(FULL), tmp_path / "r.json")
        done = run_ortune("apply", path, "/models/m.onnx", "--to", "cpp", "-o", "session.cpp", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        assert '"/models/m.onnx"' in (tmp_path / "session.cpp").read_text()
        again = run_ortune("apply", path, "--to", "cpp", "-o", "session.cpp", cwd=tmp_path)
        assert again.returncode == 2
        assert "already exists" in again.stderr

    def test_targets_are_listed(self, tmp_path: Path) -> None:
        done = run_ortune("apply", "--list", cwd=tmp_path)
        assert [line.split()[0] for line in done.stdout.splitlines()[: len(TARGETS)]] == list(TARGETS)
        listed = json.loads(run_ortune("apply", "--list", "--json", cwd=tmp_path).stdout)
        assert [entry["name"] for entry in listed] == list(TARGETS)

    def test_a_typo(self, tmp_path: Path) -> None:
        path = write(record_of(FULL), tmp_path / "r.json")
        done = run_ortune("apply", path, "--to", "tritn", cwd=tmp_path)
        assert done.returncode == 2
        assert "Did you mean triton?" in done.stderr
