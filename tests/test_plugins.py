"""Execution providers from plugin packages: in configs and records, in workers, and in programs.

`nox -s plugins` installs real packages. QNN's package runs models on CPUs, in a simulator, and shows how ONNX Runtime
creates sessions whose provider runs nothing.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import ortune
from ortune import Config, Record, RecordError, Tolerance, UsageError, read_record
from ortune.apply.fit import find_mismatches
from ortune.apply.inside.options_log import OptionsLog
from ortune.apply.inside.plugins import OwnDevices, PluginLibraries
from ortune.apply.inside.providers import Skip
from ortune.apply.inside.settings import TunedSession
from ortune.apply.plan import make_rule
from ortune.console.host import show_host
from ortune.console.safe_console import SafeConsole
from ortune.console.warnings import warn_idle_providers
from ortune.export import render
from ortune.host import read_host
from ortune.host.conditions import read_conditions
from ortune.host.default_pool import find_default_pool
from ortune.knobs import CPU, DEFAULT, KNOBS, SpaceOptions, build_space
from ortune.knobs.caches import list_cache_options
from ortune.knobs.config import Plugin, PluginPackage
from ortune.knobs.plugin_options import spell_for_plugins
from ortune.knobs.plugins import PLUGIN_MODULES, PLUGIN_OF
from ortune.knobs.providers import chain_of, find_provider
from ortune.knobs.titles import describe
from ortune.model import read_model
from ortune.record.files import decode_document
from ortune.record.schema import Tried
from ortune.record.trials import Trial
from ortune.worker import Failure
from ortune.worker.devices import Devices, InstalledPlugin, read_devices
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.installed import find_installed_version, name_package
from ortune.worker.plugins import Device, find_device, find_plugin_versions, find_plugins, register_plugin
from ortune.worker.providers import choose_providers, find_plugins_of
from ortune.worker.runtime import read_installed_runtime
from ortune.workload import APPROXIMATE_TOLERANCE, InputOptions, make_feed
from tests.applying import run as run_program
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record, write
from tests.simulated import RUNTIME, make_host, make_model

QNN = "QNNExecutionProvider"
QNN_PACKAGE = Plugin(package="onnxruntime-qnn")
needs_qnn = pytest.mark.skipif("onnxruntime-qnn" not in find_plugin_versions(), reason="needs onnxruntime-qnn")


def on_qnn(**options: str) -> Config:
    return Config(
        session_options={"intra_op_num_threads": 1},
        providers=((QNN, options), (CPU, {})),
        plugins={QNN: QNN_PACKAGE},
    )


class TestConfig:
    def test_a_plugin_belongs_to_a_provider_of_the_config(self) -> None:
        with pytest.raises(ValueError, match="not among the providers"):
            Config(plugins={QNN: QNN_PACKAGE})
        with pytest.raises(ValueError, match="not among the providers"):
            Config(plugins={CPU: QNN_PACKAGE})

    def test_a_package_is_the_plugin_of_its_own_provider_only(self) -> None:
        with pytest.raises(ValueError, match="onnxruntime-qnn is the plugin of QNNExecutionProvider, not of 'Web"):
            Config(providers=((WEBGPU, {}), (CPU, {})), plugins={WEBGPU: QNN_PACKAGE})

    def test_another_provider_takes_the_plugin_away(self) -> None:
        config = on_qnn(backend_type="htp")
        assert config.with_setting("config", "providers", chain_of(CPU)).plugins == {}
        assert config.with_setting("config", "providers", chain_of(QNN)).plugins == config.plugins

    def test_the_device_is_shown(self) -> None:
        plugin = Plugin(package="onnxruntime-qnn", device_type="npu", vendor="Qualcomm")
        config = msgspec.structs.replace(on_qnn(), plugins={QNN: plugin})
        assert config.settings["qnn.plugin"] == "onnxruntime-qnn npu Qualcomm"
        assert describe(config) == "qnn · intra threads=1 · npu Qualcomm".lower()
        assert describe(on_qnn()) == "qnn · intra threads=1"

    def test_each_plugin_is_found_by_its_provider(self) -> None:
        assert set(PLUGIN_OF.values()) == set(PLUGIN_MODULES) == set(get_args(PluginPackage))
        for name in PLUGIN_OF:
            assert find_provider(find_provider(name).alias).name == name

    def test_the_space_has_it_where_the_provider_is(self) -> None:
        options = SpaceOptions(providers=(CPU, QNN), plugins={QNN: QNN_PACKAGE})
        space = build_space(make_host(2), make_model(), options)
        assert space.base == DEFAULT
        assert {candidate.config.provider for candidate in space.candidates} == {CPU, QNN}
        for candidate in space.candidates:
            config = candidate.config
            assert config.plugins == ({QNN: QNN_PACKAGE} if config.provider == QNN else {})
        alone = build_space(make_host(2), make_model(), SpaceOptions(providers=(QNN,), plugins={QNN: QNN_PACKAGE}))
        assert alone.base.plugins == {QNN: QNN_PACKAGE}


OPENVINO = "OpenVINOExecutionProvider"
OPENVINO_PACKAGE = Plugin(package="onnxruntime-ep-openvino")


def on_openvino(plugin: Plugin | None = OPENVINO_PACKAGE, **options: str) -> Config:
    return Config(providers=((OPENVINO, options), (CPU, {})), plugins={OPENVINO: plugin} if plugin else {})


class TestSpelling:
    """OpenVINO's plugin reads some options of the provider as properties of its devices."""

    def spell(self, config: Config) -> dict[str, str]:
        return dict(spell_for_plugins(config).providers)[OPENVINO]

    def test_options_become_properties_of_the_devices_that_have_them(self) -> None:
        spelled = self.spell(on_openvino(cache_dir="keep", num_of_threads="2", precision="FP32"))
        assert spelled.keys() == {"load_config", "precision"}
        assert json.loads(spelled["load_config"]) == {
            "CPU": {"CACHE_DIR": "keep", "INFERENCE_NUM_THREADS": "2"},
            "GPU": {"CACHE_DIR": "keep"},
            "NPU": {"CACHE_DIR": "keep"},
        }

    def test_only_the_device_that_is_chosen_gets_them(self) -> None:
        chosen = Plugin(package="onnxruntime-ep-openvino", device_type="gpu")
        spelled = self.spell(on_openvino(chosen, cache_dir="keep", num_of_threads="2", num_streams="3"))
        assert json.loads(spelled["load_config"]) == {"GPU": {"CACHE_DIR": "keep", "NUM_STREAMS": "3"}}

    def test_own_properties_are_kept(self) -> None:
        own = json.dumps({"CPU": {"NUM_STREAMS": 1, "ENABLE_MMAP": "NO"}})
        chosen = Plugin(package="onnxruntime-ep-openvino", device_type="cpu")
        spelled = self.spell(on_openvino(chosen, load_config=own, num_streams="3", cache_dir="keep"))
        assert json.loads(spelled["load_config"]) == {
            "CPU": {"NUM_STREAMS": 1, "ENABLE_MMAP": "NO", "CACHE_DIR": "keep"}
        }

    @pytest.mark.parametrize("text", ["{", "[]", "1"])
    def test_properties_that_are_not_an_object_are_left_to_openvino(self, text: str) -> None:
        config = on_openvino(load_config=text, num_streams="3")
        assert spell_for_plugins(config) is config

    def test_all_other_configs_stay_the_same(self) -> None:
        for config in (
            DEFAULT,
            on_qnn(backend_type="htp"),
            on_openvino(),
            on_openvino(precision="FP32"),
            on_openvino(None, num_of_threads="2"),
        ):
            assert spell_for_plugins(config) is config

    def test_programs_and_exports_get_the_properties(self) -> None:
        config = on_openvino(num_streams="3")
        text = """{"CPU": {"NUM_STREAMS": "3"}, "GPU": {"NUM_STREAMS": "3"}}"""
        rule = make_rule("r.json", "m.onnx", (), config, Tried(), onnxruntime="1")
        assert dict(rule["config"]["providers"])[OPENVINO] == {"load_config": text}
        for target in ("python", "cpp", "csharp", "java", "kotlin"):
            exported = render(target, make_record(TINY_CNN, config), "m.onnx").text
            assert "load_config" in exported
            assert "num_streams" not in exported


class TestRecord:
    def test_it_is_written_and_read(self, tmp_path: Path) -> None:
        plugin = Plugin(package="onnxruntime-qnn", device_type="npu")
        config = msgspec.structs.replace(Config(providers=chain_of(QNN)), plugins={QNN: plugin})
        path = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        assert read_record(path).config == config
        written = json.loads(path.read_text())["config"]
        assert written["plugins"] == {QNN: {"package": "onnxruntime-qnn", "device_type": "npu"}}

    @pytest.mark.parametrize(
        ("plugin", "place"),
        [
            ({"package": "/tmp/evil.so"}, "package"),
            ({"package": "evil"}, "package"),
            ({"package": "onnxruntime_qnn"}, "package"),
            ({"package": "onnxruntime-qnn", "library": "/tmp/evil.so"}, "library"),
            ({"package": "onnxruntime-qnn", "device_type": "tpu"}, "device_type"),
            ({"package": "onnxruntime-qnn", "vendor": "a\nb"}, "vendor"),
            ({"package": "onnxruntime-qnn", "vendor": "a" * 65}, "vendor"),
            (
                {"package": "onnxruntime-ep-openvino"},
                "onnxruntime-ep-openvino is the plugin of OpenVINOExecutionProvider",
            ),
            ({}, "package"),
        ],
    )
    @pytest.mark.parametrize("trust", [False, True])
    def test_it_names_no_other_package_and_no_file(
        self, plugin: dict[str, str], place: str, trust: bool, tmp_path: Path
    ) -> None:
        path = write(make_record(TINY_CNN, Config(providers=chain_of(QNN))), tmp_path / "r.json")
        document = json.loads(path.read_text())
        document["config"]["plugins"] = {QNN: plugin}
        with pytest.raises(RecordError, match=place):
            decode_document(json.dumps(document).encode(), "r.json", trust=trust)

    def test_an_environment_without_the_package_does_not_fit(self) -> None:
        runtime = read_installed_runtime()
        assert runtime
        record = make_record(TINY_CNN, Config(providers=chain_of(QNN), plugins={QNN: QNN_PACKAGE}))
        with_plugin = msgspec.structs.replace(runtime, plugins={"onnxruntime-qnn": "2.7.0"})
        record = msgspec.structs.replace(record, runtime=with_plugin)
        host = read_host()
        assert not find_mismatches(record, host, with_plugin)
        (missing,) = find_mismatches(record, host, msgspec.structs.replace(runtime, plugins={}))
        assert missing.recorded == f"{QNN} of onnxruntime-qnn"
        assert "pip install onnxruntime-qnn" in missing.hint
        newer = msgspec.structs.replace(runtime, plugins={"onnxruntime-qnn": "3.0.0"})
        (other,) = find_mismatches(record, host, newer)
        assert (other.what, other.recorded, other.here) == ("onnxruntime-qnn", "2.7.0", "3.0.0")
        assert other.hint.startswith("Install the recorded version: pip install onnxruntime-qnn==2.7.0; or")

    @pytest.mark.parametrize("version", ["1; rm -rf ~", "1.2.3\nevil", "$(evil)", "-e.", "1" * 41, "1!evil", ""])
    def test_a_command_contains_no_other_text_of_the_record(self, version: str) -> None:
        here = msgspec.structs.replace(RUNTIME, plugins={"onnxruntime-qnn": "3.0.0"})
        there = msgspec.structs.replace(RUNTIME, onnxruntime=version, plugins={"onnxruntime-qnn": version})
        record = make_record(TINY_CNN, Config(providers=chain_of(QNN), plugins={QNN: QNN_PACKAGE}))
        record = msgspec.structs.replace(record, runtime=there)
        found = find_mismatches(record, read_host(), here)
        assert [mismatch.what for mismatch in found][-2:] == ["onnxruntime", "onnxruntime-qnn"]
        for mismatch, package in zip(found[-2:], (name_package(), "onnxruntime-qnn"), strict=True):
            assert mismatch.hint == f"Install the recorded version of {package}, or search again here."

    def test_the_path_of_a_model_is_one_argument_of_a_command(self) -> None:
        record = make_record(TINY_CNN, Config())
        model = msgspec.structs.replace(record.model, path="m.onnx; rm -rf ~")
        other = msgspec.structs.replace(record.host, machine="other")
        record = msgspec.structs.replace(record, model=model, host=other)
        (found,) = find_mismatches(record, read_host(), record.runtime)
        assert found.hint == "Search again here: ortune search 'm.onnx; rm -rf ~'."


def install_fake(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Put a plugin package on the path of this process and its children. A real one of this name is hidden."""
    module = folder / "onnxruntime_ep_webgpu"
    module.mkdir()
    (module / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


NO_LIBRARY = "def get_library_path():\n    return __file__\n"
PRINTS_BYTES = f"import os\nfor stream in (1, 2):\n    os.write(stream, b'\\xff\\xfe')\n{NO_LIBRARY}"
WEBGPU = "WebGpuExecutionProvider"


class TestExport:
    def test_python_code_registers_the_library(self) -> None:
        plugin = Plugin(package="onnxruntime-qnn", device_type="npu", vendor="Qualcomm")
        config = msgspec.structs.replace(on_qnn(backend_type="htp"), plugins={QNN: plugin})
        export = render("python", make_record(TINY_CNN, config), "m.onnx", "r.json")
        assert not export.unsupported
        assert "import onnxruntime_qnn" in export.text
        assert 'device.device.type.name == "NPU" and device.device.vendor.lower() == "qualcomm"' in export.text
        assert "providers=" not in export.text

    def test_other_targets_report_it(self) -> None:
        export = render("go", make_record(TINY_CNN, on_qnn(backend_type="htp")), "m.onnx", "r.json")
        left = [line for line in export.unsupported if line.startswith("qnn.plugin=onnxruntime-qnn")]
        assert left
        assert "cannot register the library" in left[0]


class TestChoice:
    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (["qnn:"], "not a provider with a device"),
            (["qnn:npu:gpu"], "not a provider with a device"),
            (["qnn:AMD:Intel"], "not a provider with a device"),
            (["cuda:gpu"], "only for providers of plugin packages"),
            (["cpu:cpu"], "only for providers of plugin packages"),
            (["qnn:npu", "qnn:gpu"], "can be given once"),
            (["nonsense:gpu"], "no such execution provider"),
            ([f"qnn:npu:{'a' * 65}"], "is not the name of a vendor"),
            (["qnn:In\ttel"], "is not the name of a vendor"),
        ],
    )
    def test_a_device_that_cannot_be_meant(self, wanted: list[str], why: str) -> None:
        with pytest.raises(UsageError, match=why):
            choose_providers(wanted)

    def test_only_what_onnxruntime_lacks_comes_from_a_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install_fake(tmp_path, monkeypatch, NO_LIBRARY)
        assert find_plugins([WEBGPU, CPU], [CPU]) == {WEBGPU: Plugin(package="onnxruntime-ep-webgpu")}
        assert find_plugins([WEBGPU, CPU], [CPU, WEBGPU]) == {}

    @pytest.mark.parametrize("code", [NO_LIBRARY, PRINTS_BYTES])
    def test_a_library_that_cannot_be_loaded(self, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install_fake(tmp_path, monkeypatch, code)
        choice = choose_providers(["cpu", "webgpu"])
        assert choice.names == (CPU,)
        assert choice.plugins == {}
        assert "onnxruntime_ep_webgpu" in choice.faults[WEBGPU]
        config = find_plugins_of(Config(providers=((WEBGPU, {}), (CPU, {}))))
        assert config.plugins == {WEBGPU: Plugin(package="onnxruntime-ep-webgpu")}

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (NO_LIBRARY, "Failed to load library|file too short|invalid ELF"),
            ("import os; os.abort()", "status -6"),
            (PRINTS_BYTES, "Failed to load library|file too short|invalid ELF"),
        ],
    )
    def test_devices_are_listed_in_spite_of_it(
        self, code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install_fake(tmp_path, monkeypatch, code)
        found = read_devices()
        (plugin,) = [installed for installed in found.plugins if installed.package == "onnxruntime-ep-webgpu"]
        assert plugin.fault
        assert any(part in plugin.fault for part in why.split("|")), plugin.fault
        assert (found.devices[0].provider, found.devices[0].package) == (CPU, None)

    def test_the_host_shows_them(self, tmp_path: Path) -> None:
        devices = Devices(
            devices=(
                Device(provider=CPU, vendor="AMD", device_type="cpu"),
                Device(provider=QNN, vendor="Qualcomm", device_type="npu", package="onnxruntime-qnn"),
            ),
            plugins=(
                InstalledPlugin(package="onnxruntime-ep-mlx", version="0.31.0", provider="MLX", fault="no device"),
            ),
        )
        console, host = SafeConsole(width=120, record=True, file=io.StringIO()), read_host()
        show_host(console, host, find_default_pool(host), None, (), devices, read_conditions(tmp_path))
        text = console.export_text()
        assert "npu Qualcomm  QNNExecutionProvider of onnxruntime-qnn" in text
        assert "onnxruntime-ep-mlx 0.31.0 cannot be used: no device" in text


def make_device(name: str, kind: str = "NPU", vendor: str = "Qualcomm") -> Any:
    device = types.SimpleNamespace(type=types.SimpleNamespace(name=kind), vendor=vendor)
    return types.SimpleNamespace(ep_name=name, device=device)


class FakeOnnxruntime(types.SimpleNamespace):
    """An onnxruntime that finds a device for each library that is registered."""

    def __init__(self) -> None:
        super().__init__(__version__="0", devices=[], registered=[])

    def get_ep_devices(self) -> list[Any]:
        return list(self.devices)

    def register_execution_provider_library(self, name: str, path: str) -> None:
        if name in self.registered:
            raise RuntimeError("already registered")
        self.registered.append(name)
        self.devices += [make_device(name, "GPU"), make_device(name)]

    def unregister_execution_provider_library(self, name: str) -> None:
        self.registered.remove(name)


def forget_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a module be imported anew, and be forgotten when the test ends, also if nothing has imported it before."""
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.delitem(sys.modules, name)


class TestLibraries:
    """What a program sees of a library that the hook has registered."""

    def plugin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **device: str) -> dict[str, str]:
        install_fake(tmp_path, monkeypatch, NO_LIBRARY)
        forget_module("onnxruntime_ep_webgpu", monkeypatch)
        plugin = Plugin(package="onnxruntime-ep-webgpu", **device)  # type: ignore[arg-type]
        rule = make_rule(
            "", "", (), Config(providers=chain_of(WEBGPU), plugins={WEBGPU: plugin}), Tried(), onnxruntime=""
        )
        return dict(rule["plugins"][WEBGPU])

    def test_it_is_registered_once_and_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        libraries, fake = PluginLibraries(said.append), FakeOnnxruntime()
        libraries.patch(fake)
        plugin = self.plugin(tmp_path, monkeypatch)
        for _ in range(2):
            assert libraries.find_device(fake, WEBGPU, plugin).ep_name == WEBGPU
        path = tmp_path / "onnxruntime_ep_webgpu" / "__init__.py"
        fake.register_execution_provider_library(WEBGPU, str(path))  # the program does so, too: no error
        assert not said
        fake.register_execution_provider_library(WEBGPU, "/other.so")
        assert said == [f"the program registers /other.so as {WEBGPU}, but {path} is already registered, and is kept."]
        fake.unregister_execution_provider_library(WEBGPU)
        assert fake.registered == [WEBGPU]
        fake.register_execution_provider_library("other", "/other.so")
        fake.unregister_execution_provider_library("other")
        assert fake.registered == [WEBGPU]

    def test_that_of_the_program_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        libraries, fake = PluginLibraries(print), FakeOnnxruntime()
        libraries.patch(fake)
        fake.register_execution_provider_library(WEBGPU, "/own.so")
        assert libraries.find_device(fake, WEBGPU, self.plugin(tmp_path, monkeypatch))
        fake.unregister_execution_provider_library(WEBGPU)
        assert fake.registered == []

    def test_the_device_is_chosen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        libraries, fake = PluginLibraries(print), FakeOnnxruntime()
        libraries.patch(fake)
        plugin = self.plugin(tmp_path, monkeypatch, device_type="npu")
        assert libraries.find_device(fake, WEBGPU, plugin).device.type.name == "NPU"
        assert libraries.find_device(fake, WEBGPU, {**plugin, "vendor": "qualcomm"})
        with pytest.raises(Skip, match="finds no device npu Intel on this host"):
            libraries.find_device(fake, WEBGPU, {**plugin, "vendor": "Intel"})

    def test_what_cannot_be_loaded_leaves_the_session_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugin = self.plugin(tmp_path, monkeypatch)
        libraries, fake = PluginLibraries(print), FakeOnnxruntime()
        with pytest.raises(Skip, match="cannot load onnxruntime-ep-webgpu"):
            libraries.find_device(fake, WEBGPU, plugin)
        libraries.patch(fake)
        with pytest.raises(Skip, match="is not installed"):
            libraries.find_device(fake, WEBGPU, {**plugin, "module": "no_such_module_at_all"})
        with pytest.raises(Skip, match=r"cannot be loaded: .*nothing"):
            libraries.find_device(fake, WEBGPU, {**plugin, "function": "nothing"})

    def test_providers_of_the_call_replace_those_of_the_options(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in ONNX Runtime, where the program passes both."""

        class Options:
            def __init__(self) -> None:
                self.added: list[str] = []

            def add_session_config_entry(self, name: str, value: str) -> None:
                pass

            def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
                self.added.append(name)

            def add_provider(self, name: str, options: dict[str, str]) -> None:
                self.added.append(f"{name} {options}")

            def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
                self.added.append(f"{devices[0].ep_name} {options}")

            def has_providers(self) -> bool:
                return len(self.added) > 1

        log, libraries, fake = OptionsLog(Options), PluginLibraries(print), FakeOnnxruntime()
        libraries.patch(fake)
        fake.get_available_providers = lambda: [CPU]
        own = Options()
        own.add_free_dimension_override_by_name("n", 1)
        own.add_provider_for_devices([make_device(WEBGPU)], {"of": "program"})
        own.add_provider(CPU, {"of": "program"})
        plugin = Plugin(package="onnxruntime-ep-webgpu")
        config = Config(providers=((WEBGPU, {"of": "record"}), (CPU, {})), plugins={WEBGPU: plugin})
        self.plugin(tmp_path, monkeypatch)
        tuned = TunedSession(make_rule("", "", (), config, Tried(), onnxruntime=""), "m.onnx", {})
        arguments = {"sess_options": own, "providers": [CPU], "provider_options": None}
        tuned.set_providers(fake, arguments, log, libraries, keep=False)
        tuned.set_options(own, {}, log, keep=False)
        tuned.add_providers(log)
        assert tuned.options.added == ["n", f"{WEBGPU} {{'of': 'record'}}"]
        assert tuned.arguments == ("m.onnx", tuned.options, None, None)
        # Where it passes none, those of the options are kept.
        kept = TunedSession(make_rule("", "", (), config, Tried(), onnxruntime=""), "m.onnx", {})
        kept.set_providers(fake, {**arguments, "providers": None}, log, libraries, keep=False)
        kept.set_options(own, {}, log, keep=False)
        assert kept.options.added == own.added

    def test_the_programs_own_devices(self) -> None:
        own = OwnDevices({QNN: {"backend_type": "gpu"}}, [(QNN, {"backend_type": "htp"}), (CPU, {})])
        assert own.not_set == [
            f"backend_type=htp of {QNN} (the program selects the provider by device, with its own options)"
        ]
        with pytest.raises(Skip, match=f"selects {QNN} by device, but the record is for {CPU}"):
            OwnDevices({QNN: {}}, [(CPU, {})])


def test_a_provider_that_was_never_applied_is_named() -> None:
    idle = Failure(kind="not_applied", stage="load", message=f"{QNN} runs none of the nodes: 26 on {CPU}")
    trials = [
        Trial(number=0, stage="confirmation", speedups=(1.0,)),
        Trial(number=1, config=on_qnn(backend_type="cpu"), stage="screening", failure=idle),
        Trial(number=2, config=on_qnn(backend_type="gpu"), stage="screening", failure=idle),
    ]
    assert warn_idle_providers(trials) == [
        f"{QNN} was not applied: {QNN} runs none of the nodes: 26 on {CPU} (2 candidates)."
    ]
    worked = Trial(number=3, config=on_qnn(backend_type="htp"), stage="screening", speedups=(0.1,))
    assert warn_idle_providers([*trials, worked]) == []


class TestRegistration:
    """In a process whose program may register the library, too."""

    def register(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeOnnxruntime:
        install_fake(tmp_path, monkeypatch, NO_LIBRARY)
        forget_module("onnxruntime_ep_webgpu", monkeypatch)
        monkeypatch.setattr("ortune.worker.plugins._registered", set())
        fake = FakeOnnxruntime()
        monkeypatch.setitem(sys.modules, "onnxruntime", fake)
        return fake

    def test_it_is_registered_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = self.register(tmp_path, monkeypatch)
        for _ in range(2):
            register_plugin("onnxruntime-ep-webgpu")
        assert fake.registered == [WEBGPU]

    def test_that_of_the_program_serves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = self.register(tmp_path, monkeypatch)
        fake.register_execution_provider_library(WEBGPU, "/own.so")
        register_plugin("onnxruntime-ep-webgpu")
        assert find_device(WEBGPU, Plugin(package="onnxruntime-ep-webgpu")).ep_name == WEBGPU


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="is not installed"):
        register_plugin("onnxruntime-ep-mlx")
    with pytest.raises(UsageError, match="finds no device for NoneExecutionProvider"):
        find_device("NoneExecutionProvider", QNN_PACKAGE)


def test_a_program_without_the_package_keeps_its_options(tmp_path: Path) -> None:
    mlx = "MLXExecutionProvider"
    plugins = {mlx: Plugin(package="onnxruntime-ep-mlx")}
    config = Config(session_options={"intra_op_num_threads": 1}, providers=((mlx, {}), (CPU, {})), plugins=plugins)
    found, stderr = run_session(make_record(TINY_CNN, config), tmp_path)
    assert found == {"providers": [CPU], "intra": 0}
    assert "r.json is not used: onnxruntime-ep-mlx is not installed." in stderr


def run_session(
    record: Record, tmp_path: Path, before: str = "", arguments: str = "", after: str = "", model: Path = TINY_CNN
) -> tuple[dict[str, Any], str]:
    """Run a program that creates a session, under a record. Return what the session has, and stderr."""
    code = f"""
import json, onnxruntime
{before}
session = onnxruntime.InferenceSession({str(model)!r}{arguments})
{after}
intra = session.get_session_options().intra_op_num_threads
print(json.dumps({{"providers": session.get_providers(), "intra": intra}}))
"""
    path = write(record, tmp_path / "r.json")
    done = run_program(sys.executable, "-c", code, record=path, options=("--trust",))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


BY_DEVICE = """
import onnxruntime_qnn
onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
(device,) = [entry for entry in onnxruntime.get_ep_devices() if entry.ep_name == "QNNExecutionProvider"]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices([device], {"backend_type": "htp"})
"""


def finds_openvino() -> bool:
    """Return whether OpenVINO's plugin is installed and finds the CPU, which must be one of Intel's."""
    if "onnxruntime-ep-openvino" not in find_plugin_versions():
        return False
    return any(device.provider == OPENVINO and device.device_type == "cpu" for device in read_devices().devices)


@pytest.mark.skipif(not finds_openvino(), reason="needs onnxruntime-ep-openvino and a CPU of Intel")
class TestOpenvino:
    """OpenVINO's plugin on a CPU, whose later sessions start from the models that it compiled before."""

    CHOSEN = Plugin(package="onnxruntime-ep-openvino", device_type="cpu")

    def save(self, folder: Path) -> Path:
        config = on_openvino(self.CHOSEN, num_of_threads="1")
        record = make_record(TINY_CNN, config, cache_options=list_cache_options(config))
        # On a CPU with AMX, OpenVINO computes in bfloat16.
        workload = msgspec.structs.replace(record.workload, tolerance=APPROXIMATE_TOLERANCE)
        return write(msgspec.structs.replace(record, workload=workload), folder / "r.json")

    def list_times(self, folder: Path) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.blob")}

    def test_the_second_session_starts_from_what_the_first_one_compiled(self, tmp_path: Path) -> None:
        record = self.save(tmp_path)
        done = run_ortune("apply", record, "--warm", "--cache-dir", "keep", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads(done.stdout)
        assert (result["n_written"], result["n_files"]) == (1, 1)
        assert result["check"]["loaded"]["build_s"] is not None
        before = self.list_times(tmp_path / "keep")
        ortune.create_session(TINY_CNN, record, cache_dir=tmp_path / "keep")
        code = f"""
import onnxruntime
session = onnxruntime.InferenceSession({str(TINY_CNN)!r})
print(session.get_providers())
"""
        options = ("--cache-dir", str(tmp_path / "keep"))
        program = run_program(sys.executable, "-c", code, record=record, options=options)
        assert program.returncode == 0, program.stderr
        assert OPENVINO in program.stdout
        assert "is ignored" not in program.stderr
        assert self.list_times(tmp_path / "keep") == before

    def test_a_search_lists_the_cache_and_no_option_is_ignored(self, tmp_path: Path) -> None:
        done = run_ortune(
            "search", TINY_CNN, "--provider", "openvino:cpu", "--budget", "6s", "-o", "r.json", cwd=tmp_path
        )
        assert done.returncode in {0, 3}, done.stderr
        assert "is ignored" not in done.stdout + done.stderr
        assert read_record(tmp_path / "r.json").cache_options == ("openvino.cache_dir",)


@needs_qnn
class TestQnn:
    """QNN's package for x86: it registers a device, runs some models in a simulator, and nothing of others."""

    def test_its_device_is_listed(self, tmp_path: Path) -> None:
        done = run_ortune("host", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        (device,) = [entry for entry in found["devices"] if entry["provider"] == QNN]
        assert (device["device_type"], device["package"]) == ("cpu", "onnxruntime-qnn")
        assert found["runtime"]["plugins"]["onnxruntime-qnn"]
        assert QNN not in found["runtime"]["providers"]

    def test_it_is_found_without_being_named(self) -> None:
        """It needs an option here, without which no session can be created."""
        choice = choose_providers(None)
        assert QNN not in choice.names
        assert "Could not determine default backend path" in choice.faults[QNN]
        choice = choose_providers(None, {QNN: {"backend_type": "htp"}})
        assert QNN in choice.names
        assert choice.plugins[QNN] == QNN_PACKAGE

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match=r"has no device npu on this host\. It has cpu"):
            choose_providers(["qnn:npu"])

    def test_a_provider_that_takes_no_node_is_not_applied(self) -> None:
        """Its library for this backend is missing, and ONNX Runtime still creates the session, on the CPU."""
        for path, backend, count in ((TINY_CNN, "cpu", 26), (TINY_ENCODER, "htp", 19)):
            model = read_model(path)
            feed = make_feed(model, InputOptions())
            with ProcessExecutor(model, feed, Tolerance(), usable=()) as executor:
                launch_reference(executor, model, feed).close()
                (answer,) = executor.launch([on_qnn(backend_type=backend)], deadline_s=60)
            assert isinstance(answer, Failure)
            assert answer.kind == "not_applied"
            assert answer.message == f"{QNN} runs none of the nodes: {count} on {CPU}"

    @pytest.mark.skipif("qnn.backend_type" not in KNOBS, reason="the catalog has no options of QNN")
    def test_a_search_reports_it(self, tmp_path: Path) -> None:
        only = ("--only=providers", "--fix=qnn.backend_type=cpu", "--no-history", "--budget=10s", "-o", "r.json")
        done = run_ortune("search", TINY_CNN, "--provider=cpu,qnn", *only, cwd=tmp_path)
        assert done.returncode in {0, 3}, done.stderr
        text = " ".join(done.stdout.split())
        assert f"{QNN} was not applied: {QNN} runs none of the nodes: 26 on {CPU} (" in text

    def test_a_model_that_runs_on_it(self) -> None:
        model = read_model(TINY_CNN)
        feed = make_feed(model, InputOptions())
        with ProcessExecutor(model, feed, Tolerance(), usable=()) as executor:
            launch_reference(executor, model, feed).close()
            (live,) = executor.launch([on_qnn(backend_type="htp")], deadline_s=60)
            assert not isinstance(live, Failure), live
            assert live.session_info.nodes[QNN] > 0
            assert CPU not in live.session_info.nodes
            assert live.session_info.settings["qnn.backend_type"] == "htp"
            assert executor.runtime.plugins["onnxruntime-qnn"]
            assert executor.runtime.onnxruntime == find_installed_version()

    def test_values_are_copied_to_its_device(self) -> None:
        code = """
import msgspec, numpy, sys
from ortune.knobs import Config
from ortune.worker.calls import make_device_value
config = msgspec.json.decode(sys.argv[1], type=Config)
value, owner = make_device_value(numpy.array([1, 2, 3], numpy.float32), config, "cpu")
print(owner[1].get_providers()[0], value.numpy().tolist())
"""
        done = run_program(sys.executable, "-P", "-c", code, msgspec.json.encode(on_qnn(backend_type="htp")).decode())
        assert done.stdout.splitlines()[-1:] == [f"{QNN} [1.0, 2.0, 3.0]"], done.stderr

    def test_a_record_is_verified_in_a_live_session(self, tmp_path: Path) -> None:
        for backend, status in (("htp", 0), ("cpu", 1)):
            path = write(make_record(TINY_CNN, on_qnn(backend_type=backend)), tmp_path / f"{backend}.json")
            done = run_ortune("apply", path, TINY_CNN, "--trust", cwd=tmp_path)
            assert done.returncode == status, done.stdout + done.stderr
            assert ("runs none of the nodes" in " ".join(done.stdout.split())) == bool(status)

    def test_exported_code_runs_on_it(self, tmp_path: Path) -> None:
        export = render("python", make_record(TINY_CNN, on_qnn(backend_type="htp")), str(TINY_CNN), "r.json")
        code = f"{export.text}\nprint(session.get_providers())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str([QNN, CPU])

    def test_a_program_gets_it(self, tmp_path: Path) -> None:
        found, _ = run_session(make_record(TINY_CNN, on_qnn(backend_type="htp")), tmp_path)
        assert found == {"providers": [QNN, CPU], "intra": 1}

    @pytest.mark.parametrize(("backend", "model"), [("cpu", TINY_CNN), ("htp", TINY_ENCODER)])
    def test_a_program_does_not_get_it_where_it_takes_no_node(self, backend: str, model: Path, tmp_path: Path) -> None:
        found, stderr = run_session(make_record(model, on_qnn(backend_type=backend)), tmp_path, model=model)
        assert found == {"providers": [CPU], "intra": 0}
        assert f"r.json cannot be applied ({QNN} runs none of the nodes)" in stderr

    def test_a_program_may_register_it_later(self, tmp_path: Path) -> None:
        after = BY_DEVICE.replace("options", "others")
        found, stderr = run_session(make_record(TINY_CNN, on_qnn(backend_type="htp")), tmp_path, after=after)
        assert found == {"providers": [QNN, CPU], "intra": 1}
        assert "Traceback" not in stderr

    def test_a_session_from_python_in_a_program_that_registered_it(self, tmp_path: Path) -> None:
        path = write(make_record(TINY_CNN, on_qnn(backend_type="htp")), tmp_path / "r.json")
        code = f"""import onnxruntime
{BY_DEVICE}
import ortune
for options in ({{}}, {{"any_host": True}}):
    print(ortune.create_session({str(TINY_CNN)!r}, {str(path)!r}, trust=True, **options).get_providers())
"""
        done = run_program(sys.executable, "-P", "-c", code)
        found = [line for line in done.stdout.splitlines() if line.startswith("[")]  # the library prints, too
        assert found == [str([QNN, CPU])] * 2, done.stderr

    @pytest.mark.parametrize("name", [QNN, "my_own_name"])
    def test_a_program_may_register_it_first(self, name: str, tmp_path: Path) -> None:
        before = BY_DEVICE.partition("(device,)")[0].replace(QNN, name)
        found, stderr = run_session(make_record(TINY_CNN, on_qnn(backend_type="htp")), tmp_path, before=before)
        assert found == {"providers": [QNN, CPU], "intra": 1}, stderr

    def test_a_program_that_selects_it_keeps_its_device(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, on_qnn(backend_type="htp"))
        found, _ = run_session(record, tmp_path, before=BY_DEVICE, arguments=", options")
        assert found == {"providers": [QNN, CPU], "intra": 1}

    def test_a_program_that_also_requests_providers_gets_the_records_device(self, tmp_path: Path) -> None:
        """ONNX Runtime would have ignored the device of the program's options, which here could run nothing."""
        before = BY_DEVICE.replace('"htp"', '"cpu"')
        arguments = ", options, providers=['CPUExecutionProvider']"
        found, stderr = run_session(make_record(TINY_CNN, on_qnn(backend_type="htp")), tmp_path, before, arguments)
        assert found == {"providers": [QNN, CPU], "intra": 1}, stderr

    def test_a_record_for_the_cpu_leaves_such_a_program_alone(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config(session_options={"intra_op_num_threads": 1}))
        found, stderr = run_session(record, tmp_path, before=BY_DEVICE, arguments=", options")
        assert found == {"providers": [QNN, CPU], "intra": 0}
        assert f"r.json is not used: the program selects {QNN} by device, but the record is for {CPU}." in stderr

    def test_a_program_with_a_policy_is_left_alone(self, tmp_path: Path) -> None:
        before = (
            "options = onnxruntime.SessionOptions()\n"
            "options.set_provider_selection_policy(onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU)"
        )
        record = make_record(TINY_CNN, on_qnn(backend_type="htp"))
        found, stderr = run_session(record, tmp_path, before=before, arguments=", options")
        assert found == {"providers": [CPU], "intra": 0}
        assert "r.json is not used: the program lets ONNX Runtime select execution providers by a policy." in stderr
