"""Execution providers in exports: the names and options that each target accepts, from its source or from its library.

In `tests/consumers/`, the C++ code of each provider is compiled and run.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime
import pytest
from packaging.version import Version

from ortune.export import Export, render
from ortune.export.provider_names import BY_NAME, STRUCTURES, WITHOUT_OPTIONS, is_plugin
from ortune.knobs import Config
from ortune.knobs.config import CPU
from ortune.knobs.providers import PROVIDERS
from ortune.record.schema import Record
from tests.conftest import ROOT, TINY_CNN
from tests.records import make_record

pytestmark = pytest.mark.usefixtures("models_read_here")

PLUGIN = "Plugin.Execution-Provider"
"""A provider that only a plugin can have."""

NAMES = sorted({*PROVIDERS, *onnxruntime.get_all_providers(), *BY_NAME, *STRUCTURES, *WITHOUT_OPTIONS, PLUGIN} - {CPU})
"""All providers that ortune or ONNX Runtime knows, and one that only a plugin can have."""


def record_for(*providers: tuple[str, dict[str, str]], **settings: Any) -> Record:
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


class TestNamesOfTheLibrary:
    """The names are compared with those that the installed onnxruntime accepts."""

    def test_it_refuses_other_names(self, append: Callable[[str], str]) -> None:
        """This shows that the error tells names that it knows from those that it does not know."""
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
    @pytest.mark.slow
    def test_it_compiles(self, tmp_path: Path) -> None:
        """Types are checked against declarations of the functions that the code calls."""
        code = (ROOT / "tests" / "data" / "ort_declarations.h").read_text()
        for number, name in enumerate(NAMES):
            for options in ({}, {"device_id": "1"}):
                text = export_for("cpp", name, options).text.replace("#include <onnxruntime_cxx_api.h>", "")
                code += f"void make_{number}_{len(options)}() {{\n{text}}}\n"
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
