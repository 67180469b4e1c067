"""Execution providers in exports: the names and options that each target accepts, from its source or from its library.

In `tests/consumers/`, the C++ code of each provider is compiled and run.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import onnxruntime
import pytest
import yaml
from packaging.version import Version

from ortune import Config, Export, Record
from ortune.export import TARGETS, export, render
from ortune.export.provider_names import BY_NAME, STRUCTURES, WITHOUT_OPTIONS, is_plugin
from ortune.export.rust import STRUCTURES as STRUCTURES_IN_RUST
from ortune.knobs import KNOBS
from ortune.knobs.config import CAPTURES, CPU, DeviceType, Plugin, PluginPackage, Provider, alias_of
from ortune.knobs.providers import PROVIDERS
from ortune.record.schema import Tried
from tests.conftest import ROOT, TINY_CNN
from tests.records import make_record
from tests.test_export import APPLIED, settable

pytestmark = pytest.mark.usefixtures("models_read_here")

PLUGIN = "AcmeExecutionProvider"
"""A provider that only a plugin can have."""

NAMES = sorted({*PROVIDERS, *onnxruntime.get_all_providers(), *BY_NAME, *STRUCTURES, *WITHOUT_OPTIONS, PLUGIN} - {CPU})
"""All providers that ortune or ONNX Runtime knows, and one that only a plugin can have."""


def record_for(*providers: Provider, **settings: Any) -> Record:
    """Return a record that does not depend on the host."""
    config = Config(providers=(*providers, (CPU, {})), **settings)
    record = make_record(TINY_CNN, config, here=False)
    return msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, path="models/tiny_cnn.onnx"))


def export_for(target: str, name: str, options: dict[str, str] | None = None, **settings: Any) -> Export:
    """Return an export of a config with this provider and the CPU provider."""
    return render(target, record_for((name, options or {}), **settings), "m.onnx")


# ONNX Runtime's C API.


class ApiBase(ctypes.Structure):
    """OrtApiBase of onnxruntime_c_api.h."""

    _fields_ = (
        ("get_api", ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)),
        ("get_version", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    )


GET_ERROR_MESSAGE, CREATE_SESSION_OPTIONS, APPEND_EXECUTION_PROVIDER = 2, 10, 216
"""Places of functions in OrtApi, which never change: new functions are added at its end."""


@pytest.fixture(scope="module")
def append() -> Callable[[str], str]:
    """Return a function that adds a provider by name, and returns the error; empty if there is none."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    found = [*folder.glob("libonnxruntime.so*"), *folder.glob("libonnxruntime.*dylib"), *folder.glob("onnxruntime.dll")]
    if not found:
        pytest.skip("this onnxruntime has no shared library")
    library = ctypes.CDLL(str(found[0]))
    library.OrtGetApiBase.restype = ctypes.POINTER(ApiBase)
    table = library.OrtGetApiBase().contents.get_api(20)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    create = ctypes.CFUNCTYPE(pointer, ctypes.POINTER(pointer))(table[CREATE_SESSION_OPTIONS])
    add = ctypes.CFUNCTYPE(pointer, pointer, text, pointer, pointer, ctypes.c_size_t)(table[APPEND_EXECUTION_PROVIDER])
    read = ctypes.CFUNCTYPE(text, pointer)(table[GET_ERROR_MESSAGE])

    def call(name: str) -> str:
        options = ctypes.c_void_p()
        assert create(ctypes.byref(options)) is None
        status = add(options, name.encode(), None, None, 0)
        return read(status).decode() if status else ""

    return call


def plugin_of(package: PluginPackage, device_type: DeviceType = "", vendor: str = "") -> Plugin:
    return Plugin(package=package, device_type=device_type, vendor=vendor)


class TestNamesOfTheLibrary:
    """The names are compared with those that the installed onnxruntime accepts."""

    def test_it_refuses_other_names(self, append: Callable[[str], str]) -> None:
        """This shows that the error distinguishes names that it knows from those that it does not know."""
        for name in ("Xnnpack", "Dml", "WebGpu", "Azure", "nonsense"):
            assert append(name).startswith("Unknown provider name")

    @pytest.mark.parametrize("name", BY_NAME)
    def test_it_knows_each_name(self, name: str, append: Callable[[str], str]) -> None:
        error = append(BY_NAME[name])
        assert not error or "execution provider is not supported in this build" in error

    @pytest.mark.skipif(Version(onnxruntime.__version__) < Version("1.32"), reason="1.32 changed the names")
    def test_its_own_list_is_the_table(self, append: Callable[[str], str]) -> None:
        pairs = re.findall(r"'(\w+)'/'(\w+)'", append("nonsense"))
        assert {full: name for name, full in pairs} == {**BY_NAME, CPU: "CPU"}

    @pytest.mark.skipif(Version(onnxruntime.__version__) < Version("1.32"), reason="it was built in before 1.32")
    def test_tensorrt_rtx_is_a_plugin(self, append: Callable[[str], str]) -> None:
        assert is_plugin("NvTensorRTRTXExecutionProvider")
        assert "RegisterExecutionProviderLibrary" in append("NvTensorRtRtx")

    def test_each_provider_of_the_library_is_in_a_table(self) -> None:
        known = {*onnxruntime.get_all_providers()} - {CPU, "NvTensorRTRTXExecutionProvider"}
        assert not {name for name in known if is_plugin(name)}


class TestCapturedGraphs:
    """A replay computes with the inputs in the buffers of the first call. Python code with CUDA keeps them there."""

    @pytest.mark.parametrize("target", [name for name, known_target in TARGETS.items() if not known_target.binary])
    @pytest.mark.parametrize("option", sorted(CAPTURES))
    def test_no_target_writes_them(self, target: str, option: str) -> None:
        providers = [knob.provider for knob in KNOBS.values() if knob.name == option and knob.provider]
        for provider in providers or ["CUDAExecutionProvider"]:
            if (target, provider, option) == ("python", "CUDAExecutionProvider", "enable_cuda_graph"):
                continue
            done = export_for(target, provider, {option: "1", "other": "2"}, io_binding=True)
            setting = f"{alias_of(provider)}.{option}=1 ("
            assert option not in "\n".join(line for line in done.text.splitlines() if setting not in line)
            (line,) = [entry for entry in done.unsupported if entry.startswith(setting)]
            assert "buffers of the first call" in line

    CUDA_GRAPH: ClassVar = {"enable_cuda_graph": "1", "prefer_nhwc": "1"}

    @pytest.mark.parametrize(
        ("target", "options", "settings"),
        [
            ("python", CUDA_GRAPH, {}),  # without IO binding, inputs are copied to other buffers in each call
            ("python", CUDA_GRAPH | {"enable_cuda_graph": "yes"}, {"io_binding": True}),
            ("cpp", CUDA_GRAPH, {"io_binding": True}),
        ],
    )
    def test_others_leave_it_out(self, target: str, options: dict[str, str], settings: dict[str, Any]) -> None:
        done = export_for(target, "CUDAExecutionProvider", options, **settings)
        assert [line.split("=")[0] for line in done.unsupported if "captur" in line or "replay" in line]
        assert "prefer_nhwc" in done.text

    def move_to_cpu(self, code: str) -> str:
        """Return the same code for the CPU, where each call reads the same buffers, too."""
        code = re.sub(r"providers=\[.*?\n    \]", 'providers=["CPUExecutionProvider"]', code, flags=re.DOTALL)
        return code.replace('"cuda"', '"cpu"').replace('"m.onnx"', repr(str(TINY_CNN)))

    def test_python_code_captures_with_cuda(self) -> None:
        done = export_for("python", "CUDAExecutionProvider", self.CUDA_GRAPH, io_binding=True)
        assert not done.unsupported
        assert '"enable_cuda_graph": "1", "prefer_nhwc": "1"' in done.text
        code = self.move_to_cpu(done.text)
        rng = np.random.default_rng(0)
        first, second = (rng.random((1, 3, 32, 32), np.float32) for _ in range(2))
        # On the CPU, a buffer is the memory of the first array.
        scope: dict[str, Any] = {"inputs": {"image": first.copy()}}
        exec(code, scope)
        plain = onnxruntime.InferenceSession(str(TINY_CNN), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(scope["outputs"], plain.run(None, {"image": first}), rtol=1e-5)
        for given in (second, first, np.asfortranarray(second)):
            np.testing.assert_allclose(scope["run"]({"image": given}), plain.run(None, {"image": given}), rtol=1e-5)
        # ONNX Runtime does not check the inputs of a replay.
        for wrong in (
            {"image": np.concatenate([first, second])},
            {"image": second.astype(np.float64)},
            {},
            {"image": second, "other": second},
        ):
            with pytest.raises(ValueError, match=r"inputs are .* instead of \{'image'"):
                scope["run"](wrong)
        np.testing.assert_allclose(scope["run"]({"image": second}), plain.run(None, {"image": second}), rtol=1e-5)

    def test_a_first_call_that_fails_changes_nothing(self) -> None:
        done = export_for("python", "CUDAExecutionProvider", self.CUDA_GRAPH, io_binding=True)
        code = self.move_to_cpu(done.text).replace("outputs = run(inputs)\n", "")
        scope: dict[str, Any] = {}
        exec(code, scope)
        with pytest.raises(Exception, match="image"):
            scope["run"]({"image": np.zeros((1, 3, 8), np.float32)})
        image = np.random.default_rng(0).random((1, 3, 32, 32), np.float32)
        plain = onnxruntime.InferenceSession(str(TINY_CNN), providers=["CPUExecutionProvider"])
        expected = plain.run(None, {"image": image})
        np.testing.assert_allclose(scope["run"]({"image": image.copy()}), expected, rtol=1e-5)

    def test_batches_get_run_options(self) -> None:
        config = Config(batch=8, run_config={"disable_synchronize_execution_providers": "1"})
        text = render("python", make_record(TINY_CNN, config, here=False), "m.onnx").text
        assert "outputs = session.run(None, inputs, run_options)  # " in text

    def test_with_batches_and_another_gpu(self) -> None:
        options = self.CUDA_GRAPH | {"device_id": "1"}
        done = export_for("python", "CUDAExecutionProvider", options, io_binding=True, batch=8)
        assert "session.run(" not in done.text  # it would capture a call with other buffers
        assert "np.concatenate" in done.text
        assert done.text.count('"cuda", 1)') == 2
        bound = export_for("python", "CUDAExecutionProvider", {"device_id": "1"}, io_binding=True).text
        assert bound.count('"cuda", 1)') == 2


REGISTERING = {"python", "cpp", "csharp", "java", "kotlin", "ray-serve", "bentoml"}
"""Targets whose code registers the libraries of plugin packages."""

PLUGINS = {
    "OpenVINOExecutionProvider": plugin_of("onnxruntime-ep-openvino", "gpu", "Intel"),
    "WebGpuExecutionProvider": plugin_of("onnxruntime-ep-webgpu"),
    "NvTensorRTRTXExecutionProvider": plugin_of("onnxruntime-ep-nv-tensorrt-rtx"),
}
"""Providers of plugin packages. ONNX Runtime has others of the same names."""


class TestPlugins:
    @pytest.mark.parametrize("name", PLUGINS)
    @pytest.mark.parametrize("target", [name for name, known_target in TARGETS.items() if not known_target.binary])
    def test_no_target_writes_another_provider_of_this_name(self, target: str, name: str) -> None:
        done = export_for(target, name, {"device_id": "1"}, plugins={name: PLUGINS[name]})
        alias, package = alias_of(name), PLUGINS[name].package
        if target in REGISTERING:
            assert not [line for line in done.unsupported if line.startswith((alias, "providers"))]
            assert package in done.text
            assert re.search(r"register_?execution_?provider_?library", done.text, re.IGNORECASE)
        elif target not in APPLIED:
            lines = dict(line.split("=", 1) for line in done.unsupported)
            assert {"providers", f"{alias}.plugin", f"{alias}.device_id"} <= set(lines)
            settings = "\n".join(line for line in done.text.splitlines() if line.lstrip()[:1] not in "#/<")
            assert alias.replace("_", "") not in settings.lower().replace("_", "")

    @pytest.mark.parametrize("target", ["python", "cpp", "csharp", "java", "kotlin"])
    def test_the_name_of_a_vendor_is_no_code(self, target: str) -> None:
        name = "OpenVINOExecutionProvider"
        plugin = plugin_of("onnxruntime-ep-openvino", vendor='A"); stop($b, "??/')
        text = export_for(target, name, plugins={name: plugin}).text
        assert 'A\\"); stop(' in text or 'a\\"); stop(' in text
        assert '"A"' not in text
        assert ("(\\$b" in text) == (target == "kotlin")
        assert ("?\\?/" in text) == (target == "cpp")

    @pytest.mark.parametrize(
        ("target", "conditions"),
        [
            ("python", ('device.device.type.name == "GPU"', 'device.device.vendor.lower() == "intel"')),
            ("cpp", ("device.Device().Type() == OrtHardwareDeviceType_GPU", 'const std::string vendor = "Intel";')),
            ("csharp", ("device.HardwareDevice.Type == OrtHardwareDeviceType.GPU", '.Vendor.Equals("Intel", ')),
            ("java", ("device.getDevice().getType() == OrtHardwareDevice", '.getVendor().equalsIgnoreCase("Intel")')),
            ("kotlin", ("device.getDevice().getType() == OrtHardwareDevice", '.getVendor().equals("Intel", ')),
        ],
    )
    def test_the_device_is_the_one_that_was_measured(self, target: str, conditions: tuple[str, ...]) -> None:
        name = "OpenVINOExecutionProvider"
        text = export_for(target, name, plugins={name: PLUGINS[name]}).text
        assert all(condition in text for condition in conditions)


class TestCpp:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_provider_has_its_call(self, name: str) -> None:
        done = export_for("cpp", name)
        named = re.findall(r'AppendExecutionProvider\("(\w+)"', done.text)
        own = re.findall(r"AppendExecutionProvider_(\w+)\(", done.text)
        if name in WITHOUT_OPTIONS:
            assert not named and not own
            assert any("no function" in line for line in done.unsupported)
            return
        assert not done.unsupported
        if name in STRUCTURES or name == "OpenVINOExecutionProvider":
            assert len(own) == 1 and not named
        elif is_plugin(name):
            assert own == ["V2"] and f'RegisterExecutionProviderLibrary("{name}"' in done.text
        else:
            assert named == [BY_NAME[name]] and not own

    @pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
    def test_it_compiles(self, tmp_path: Path) -> None:
        """Types are checked against declarations of the functions that the code calls."""
        code = (ROOT / "tests" / "data" / "ort_declarations.h").read_text()
        for number, name in enumerate(NAMES):
            for options in ({}, {"device_id": "1"}):
                text = export_for("cpp", name, options).text.replace("#include <onnxruntime_cxx_api.h>", "")
                code += f"void make_{number}_{len(options)}() {{\n{text}}}\n"
        text = export_for(
            "cpp",
            "OpenVINOExecutionProvider",
            plugins={"OpenVINOExecutionProvider": PLUGINS["OpenVINOExecutionProvider"]},
        ).text
        code += "\n".join(re.findall(r"#include <a.*|#include <cc.*", text)) + "\n"
        code += f"void make_plugin() {{\n{re.sub('#include.*', '', text)}}}\n"
        (tmp_path / "all.cpp").write_text(code)
        command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", str(tmp_path / "all.cpp")]
        subprocess.run(command, check=True, timeout=120)


CSHARP_METHODS = {
    "CUDAExecutionProvider": "AppendExecutionProvider_CUDA",
    "DmlExecutionProvider": "AppendExecutionProvider_DML",
    "ROCMExecutionProvider": "AppendExecutionProvider_ROCm",
    "TensorrtExecutionProvider": "AppendExecutionProvider_Tensorrt",
}
"""Methods of SessionOptions for one provider that take all that ortune writes.

Source: csharp/src/Microsoft.ML.OnnxRuntime/SessionOptions.shared.cs of onnxruntime 1.29.
"""

WITHOUT_CSHARP = {*WITHOUT_OPTIONS, "CANNExecutionProvider", "DnnlExecutionProvider"}
"""Providers whose options no method takes."""


class TestCSharp:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_provider_has_its_method(self, name: str) -> None:
        done = export_for("csharp", name)
        if name in WITHOUT_CSHARP:
            assert any("no method" in line for line in done.unsupported)
            assert "AppendExecutionProvider" not in done.text
            return
        assert not done.unsupported
        if name in CSHARP_METHODS:
            assert f"options.{CSHARP_METHODS[name]}(" in done.text
        elif is_plugin(name):
            assert "options.AppendExecutionProvider(\n    OrtEnv.Instance()," in done.text
        else:
            assert f'options.AppendExecutionProvider("{BY_NAME[name]}", new Dictionary' in done.text

    def test_options_of_directml(self) -> None:
        """Its own method takes only the device."""
        assert (
            "options.AppendExecutionProvider_DML(1);"
            in export_for("csharp", "DmlExecutionProvider", {"device_id": "1"}).text
        )
        done = export_for(
            "csharp", "DmlExecutionProvider", {"device_id": "1", "performance_preference": "minimum_power"}
        )
        assert 'AppendExecutionProvider("DML", new Dictionary<string, string> { ["device_id"] = "1", [' in done.text

    def test_all_options_of_openvino_are_written(self) -> None:
        done = export_for("csharp", "OpenVINOExecutionProvider", {"device_type": "CPU", "num_streams": "2"})
        assert not done.unsupported and '["num_streams"] = "2"' in done.text


class TestJavaScript:
    """Source: js/node/src/session_options_helper.cc of onnxruntime."""

    @pytest.mark.parametrize("target", ["javascript", "transformers-js"])
    @pytest.mark.parametrize(
        ("name", "options", "expected"),
        [
            ("CUDAExecutionProvider", {"device_id": "1"}, {"name": "cuda", "deviceId": 1}),
            (
                "WebGpuExecutionProvider",
                {"preferredLayout": "NCHW", "enableRobustness": "0", "forceCpuNodeNames": "a\nb"},
                {
                    "name": "webgpu",
                    "preferredLayout": "NCHW",
                    "enableRobustness": False,
                    "forceCpuNodeNames": ["a", "b"],
                },
            ),
            (
                "QNNExecutionProvider",
                {"backend_type": "htp", "enable_htp_fp16_precision": "1"},
                {"name": "qnn", "backendType": "htp", "enableFp16Precision": True},
            ),
        ],
    )
    def test_options_of_providers(
        self, target: str, name: str, options: dict[str, str], expected: dict[str, Any]
    ) -> None:
        done = export_for(target, name, options)
        (text,) = re.findall(r"^const \w*options = (\{.*?^\});", done.text, re.MULTILINE | re.DOTALL)
        assert json.loads(text)["executionProviders"][0] == expected
        assert not done.unsupported

    @pytest.mark.parametrize(
        ("name", "option", "value"),
        [
            ("WebGpuExecutionProvider", "deviceId", "1"),
            ("WebGpuExecutionProvider", "enableRobustness", "maybe"),
            ("CoreMLExecutionProvider", "device_id", "1"),
            ("QNNExecutionProvider", "device_id", "1"),
        ],
    )
    def test_other_options_are_reported(self, name: str, option: str, value: str) -> None:
        """With another option of WebGPU, onnxruntime-node would throw an error."""
        done = export_for("javascript", name, {option: value})
        assert [line.split(" (")[0] for line in done.unsupported] == [f"{alias_of(name)}.{option}={value}"]
        assert '"name"' not in done.text


JAVA = {
    "CUDAExecutionProvider": "addCUDA",
    "CoreMLExecutionProvider": "addCoreML",
    "DmlExecutionProvider": "addDirectML",
    "OpenVINOExecutionProvider": "addOpenVINO",
    "QNNExecutionProvider": "addQnn",
    "ROCMExecutionProvider": "addROCM",
    "TensorrtExecutionProvider": "addTensorrt",
    "WebGpuExecutionProvider": "addWebGPU",
    "XnnpackExecutionProvider": "addXnnpack",
}
"""Methods of SessionOptions that add a provider.

Source: java/src/main/java/ai/onnxruntime/OrtSession.java of onnxruntime 1.29.
"""


class TestJava:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_provider_has_its_method(self, name: str) -> None:
        done = export_for("java", name)
        used = set(re.findall(r"options\.(add\w+)\(", done.text))
        expected = set()
        if name in JAVA:
            expected = {JAVA[name]}
        elif is_plugin(name):
            expected = {"addExecutionProvider"}
        assert used == expected
        assert bool(done.unsupported) == (not used)

    def test_only_the_device_of_directml_is_written(self) -> None:
        options = {"device_id": "2", "performance_preference": "minimum_power"}
        done = export_for("java", "DmlExecutionProvider", options)
        assert "options.addDirectML(2);" in done.text
        assert [line.split("=")[0] for line in done.unsupported] == ["dml.performance_preference"]


TRITON_TENSORRT = {
    "precision_mode",
    "max_workspace_size_bytes",
    "int8_calibration_table_name",
    "int8_use_native_calibration_table",
    "trt_auxiliary_streams",
    "trt_build_heuristics_enable",
    "trt_builder_optimization_level",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_core",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_ep_context_embed_mode",
    "trt_ep_context_file_path",
    "trt_extra_plugin_lib_paths",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_layer_norm_fp32_fallback",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_profile_max_shapes",
    "trt_profile_min_shapes",
    "trt_profile_opt_shapes",
    "trt_sparsity_enable",
    "trt_tactic_sources",
    "trt_timing_cache_enable",
    "trt_timing_cache_path",
}
"""Parameters of the accelerator `tensorrt`. Any other is an error.

Source: src/onnxruntime.cc of https://github.com/triton-inference-server/onnxruntime_backend, commit 00fd3e8.
"""


def read_triton(text: str) -> tuple[dict[str, dict[str, str]], dict[str, str], str]:
    """Return the parameters of each accelerator, those of the model, and the instance group."""
    accelerators: dict[str, dict[str, str]] = {}
    kind = ""
    for line in text.splitlines():
        if found := re.match(r" +(\w+)_execution_accelerator: \[", line):
            kind = found[1]
        elif found := re.match(r' +name: "(\w+)"', line):
            own = accelerators.setdefault(f"{kind} {found[1]}", {})
        elif found := re.match(r' +parameters { key: "(\w+)" value: "(.*)" }', line):
            own[found[1]] = found[2]
    parameters = dict(re.findall(r'^parameters { key: "(.+?)" value: { string_value: "(.*)" } }', text, re.MULTILINE))
    (group,) = re.findall(r"^instance_group { (.*) }", text, re.MULTILINE)
    return accelerators, parameters, group


class TestTriton:
    def test_every_option_of_tensorrt_is_accepted_or_reported(self) -> None:
        """The model of a config with another parameter does not load."""
        name, written = "TensorrtExecutionProvider", set()
        for options in (dict(config.providers)[name] for config in settable() if name in dict(config.providers)):
            done = export_for("triton", name, options)
            parameters = read_triton(done.text)[0]["gpu tensorrt"]
            assert set(parameters) <= TRITON_TENSORRT, options
            assert done.unsupported or parameters != {"precision_mode": "FP32"} or "device_id" in options, options
            written |= set(parameters)
        assert written == TRITON_TENSORRT - CAPTURES

    @pytest.mark.parametrize(
        ("options", "mode", "reported"),
        [
            ({}, "FP32", set()),
            ({"trt_fp16_enable": "True"}, "FP16", set()),
            ({"trt_fp16_enable": "False"}, "FP32", set()),
            ({"trt_bf16_enable": "true"}, "BF16", set()),
            ({"trt_int8_enable": "1", "trt_fp16_enable": "1"}, "INT8", {"tensorrt.trt_fp16_enable=1"}),
            ({"trt_fp16_enable": "maybe"}, "FP32", {"tensorrt.trt_fp16_enable=maybe"}),
        ],
    )
    def test_precision(self, options: dict[str, str], mode: str, reported: set[str]) -> None:
        done = export_for("triton", "TensorrtExecutionProvider", options)
        assert read_triton(done.text)[0] == {"gpu tensorrt": {"precision_mode": mode}}
        assert {line.split(" (")[0] for line in done.unsupported} == reported

    def test_values_that_do_not_parse_are_reported(self) -> None:
        bad = {"trt_max_workspace_size": "1GB", "trt_engine_cache_enable": "yes", "trt_min_subgraph_size": "few"}
        done = export_for("triton", "TensorrtExecutionProvider", bad)
        assert read_triton(done.text)[0] == {"gpu tensorrt": {"precision_mode": "FP32"}}
        assert len(done.unsupported) == 3

    def test_the_device_is_that_of_the_instances(self) -> None:
        """`device_id` is no parameter of an accelerator."""
        trt = ("TensorrtExecutionProvider", {"device_id": "2", "trt_fp16_enable": "True"})
        cuda = ("CUDAExecutionProvider", {"device_id": "2", "use_tf32": "0"})
        done = render("triton", record_for(trt, cuda), "m.onnx")
        accelerators, _, group = read_triton(done.text)
        assert accelerators == {"gpu tensorrt": {"precision_mode": "FP16"}, "gpu cuda": {"use_tf32": "0"}}
        assert group == "kind: KIND_GPU gpus: [2]"
        assert not done.unsupported
        cuda[1]["device_id"] = "3"
        done = render("triton", record_for(trt, cuda), "m.onnx")
        assert [line.split(" (")[0] for line in done.unsupported] == ["cuda.device_id=3"]

    def test_a_config_for_the_cpu_does_not_run_on_a_gpu(self) -> None:
        assert read_triton(render("triton", record_for(), "m.onnx").text)[2] == "kind: KIND_CPU"

    def test_options_of_cuda_that_the_accelerator_does_not_keep(self) -> None:
        """Triton replaces four options of the accelerator, unless they are parameters of the model, two as numbers."""
        options = {
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
            "gpu_mem_limit": "1000000000",
            "do_copy_in_default_stream": "1",
        }
        accelerators, parameters, _ = read_triton(export_for("triton", "CUDAExecutionProvider", options).text)
        assert not accelerators
        assert parameters == {**options, "cudnn_conv_algo_search": "1", "arena_extend_strategy": "1"}
        done = export_for("triton", "CUDAExecutionProvider", {"cudnn_conv_algo_search": "FAST"})
        assert "FAST" in done.unsupported[0] and not read_triton(done.text)[1]

    def test_openvino(self) -> None:
        """It is an accelerator for the CPU, without parameters."""
        done = export_for("triton", "OpenVINOExecutionProvider", {"device_type": "CPU", "num_streams": "2"})
        accelerators, _, group = read_triton(done.text)
        assert (accelerators, group) == ({"cpu openvino": {}}, "kind: KIND_CPU")
        assert [line.split(" (")[0] for line in done.unsupported] == ["openvino.num_streams=2"]
        done = export_for("triton", "OpenVINOExecutionProvider", {"device_type": "GPU"})
        assert not read_triton(done.text)[0]
        assert any(line.startswith("providers=openvino") for line in done.unsupported)

    @pytest.mark.parametrize("name", NAMES)
    def test_other_providers_are_reported(self, name: str) -> None:
        done = export_for("triton", name)
        assert set(read_triton(done.text)[0]) <= {"gpu tensorrt", "cpu openvino"}
        supported = name in {"TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider"}
        assert bool(done.unsupported) != supported


RAPIDOCR = {
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
    "CoreMLExecutionProvider": "coreml",
}
"""Providers, with the word for them in `use_...` and `..._ep_cfg`.

Source: rapidocr/inference_engine/onnxruntime/provider_config.py of the package rapidocr 3.10.
"""


class TestRapidOCR:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_provider_has_its_keys(self, name: str) -> None:
        done = export_for("rapidocr", name, {"device_id": "1", "mode": "fast"})
        part = yaml.safe_load(done.text)["EngineConfig"]["onnxruntime"]
        used = {key for key, value in part.items() if key.startswith("use_") and value}
        if name in RAPIDOCR:
            assert used == {f"use_{RAPIDOCR[name]}"}
            assert part[f"{RAPIDOCR[name]}_ep_cfg"] == {"device_id": 1, "mode": "fast"}
            assert not done.unsupported
        else:
            assert not used
            assert done.unsupported

    def test_variables_are_not_written(self) -> None:
        """RapidOCR replaces them when it reads the file."""
        done = export_for("rapidocr", "CUDAExecutionProvider", {"gpu_mem_limit": "${oc.env:HOME}", "device_id": "0"})
        assert yaml.safe_load(done.text)["EngineConfig"]["onnxruntime"]["cuda_ep_cfg"] == {"device_id": 0}
        assert "gpu_mem_limit" in done.unsupported[0]


class TestOptimum:
    """In `tests/consumers/`, the arguments are compared with the source of Optimum."""

    @pytest.mark.parametrize(
        ("name", "io_binding", "expected"),
        [
            (CPU, False, None),
            (CPU, True, True),
            # Optimum uses IO binding with CUDA unless it is turned off.
            ("CUDAExecutionProvider", False, False),
            ("CUDAExecutionProvider", True, True),
            ("OpenVINOExecutionProvider", False, None),
        ],
    )
    def test_io_binding(self, name: str, io_binding: bool, expected: bool | None) -> None:
        providers: tuple[Provider, ...] = () if name == CPU else ((name, {}),)
        done = render("optimum", record_for(*providers, io_binding=io_binding), "m.onnx")
        found = re.search(r"use_io_binding=(\w+)", done.text)
        assert (found and found[1]) == (None if expected is None else str(expected))
        assert not done.unsupported

    def test_several_providers_keep_their_options(self) -> None:
        record = record_for(
            ("TensorrtExecutionProvider", {"device_id": "1"}), ("CUDAExecutionProvider", {"device_id": "1"})
        )
        done = render("optimum", record, "m.onnx")
        assert not done.unsupported
        assert 'provider_options=[{"device_id": "1"}, {"device_id": "1"}, {}]' in done.text


GENAI = {
    **BY_NAME,
    "AMDGPUExecutionProvider": "AMDGPU",
    "CUDAExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "NvTensorRtRtx",
}
"""Names in `provider_options`: those of its own table, and those that it passes on to ONNX Runtime.

Source: src/models/session_options.cpp of https://github.com/microsoft/onnxruntime-genai, commit a0c04eb.
"""


class TestGenai:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_provider_has_its_name(self, name: str) -> None:
        done = export_for("genai", name, {"device_id": "1"})
        written = json.loads(done.text)["model"]["decoder"]["session_options"]["provider_options"]
        assert written == ([{GENAI[name]: {"device_id": "1"}}] if name in GENAI else [])
        assert bool(done.unsupported) == (name not in GENAI)

    @pytest.mark.parametrize(
        ("before", "providers", "tried", "after"),
        [
            # The option that the config does not set keeps its value, and so does an object that is no option.
            (
                [{"cuda": {"enable_cuda_graph": "0", "device_id": "1", "device_filtering_options": {"x": 1}}}],
                [("CUDAExecutionProvider", {"device_id": "0"})],
                (),
                [{"cuda": {"enable_cuda_graph": "0", "device_id": "0", "device_filtering_options": {"x": 1}}}],
            ),
            # Names are compared as onnxruntime-genai does, and stay as they are.
            (
                [{"qnn": {"backend_type": "htp"}, "WebGPU": {"a": "b"}}],
                [("QNNExecutionProvider", {"vtcm_mb": "8"})],
                (),
                [{"qnn": {"backend_type": "htp", "vtcm_mb": "8"}}, {"WebGPU": {"a": "b"}}],
            ),
            # A provider that lost in the search is removed.
            ([{"OpenVINO": {}}, {"DML": {}}], [], ("OpenVINOExecutionProvider",), [{"DML": {}}]),
            ([{"cuda": {"a": "b"}}], [], (), [{"cuda": {"a": "b"}}]),
            (None, [("DmlExecutionProvider", {})], (), [{"DML": {}}]),
        ],
    )
    def test_provider_options_are_merged(
        self, before: Any, providers: Any, tried: tuple[str, ...], after: Any, tmp_path: Path
    ) -> None:
        record = record_for(*providers)
        search = msgspec.structs.replace(record.search, tried=Tried(providers=tried))
        path = tmp_path / "genai_config.json"
        path.write_text(json.dumps({"model": {"decoder": {"session_options": {"provider_options": before}}}}))
        done = export("genai", msgspec.structs.replace(record, search=search), "m.onnx", "r.json", path)
        assert json.loads(path.read_text())["model"]["decoder"]["session_options"]["provider_options"] == after
        # A provider that stays keeps a config for the CPU from running there.
        assert bool(done.unsupported) == (not providers and bool(after))


RUST = {
    "Azure",
    "CANN",
    "CUDA",
    "CoreML",
    "NVRTX",
    "OneDNN",
    "OpenVINO",
    "QNN",
    "ROCm",
    "TensorRT",
    "Vitis",
    "WASM",
    "WebGPU",
    "WebNN",
    "XNNPACK",
}
"""Types of `ort::ep` that implement ArbitrarilyConfigurableExecutionProvider, which has `with_arbitrary_config`.

Source: `impl_ep!(arbitrary; ...)` in src/ep of https://github.com/pykeio/ort, 2.0.0-rc.13 (commit 78de6d9).
"""


class TestRust:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_provider_has_its_type(self, name: str) -> None:
        done = export_for("rust", name, {"device_id": "1"})
        types = re.findall(r"ep::(\w+)::default", done.text)
        assert bool(types) != bool(done.unsupported)
        assert set(types) <= RUST
        assert types == [] or '.with_arbitrary_config("device_id", "1")' in done.text

    def test_each_type_is_used_once(self) -> None:
        assert sorted(STRUCTURES_IN_RUST.values()) == sorted(RUST - {"WASM"})
