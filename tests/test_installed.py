"""The installed onnxruntime: which package it is from, and what happens if there is none, or more than one."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ortune
from ortune import HostError
from ortune.apply.fit import find_mismatches
from ortune.console.host import show_host
from ortune.doctor.checks.loading import check_package
from ortune.doctor.facts import ModelFacts
from ortune.gates.sides import make_side, read_side
from ortune.host import read_host
from ortune.host.conditions import read_conditions
from ortune.host.default_pool import find_default_pool
from ortune.knobs import CPU, DEFAULT
from ortune.model.graph import read_graph
from ortune.worker import Runtime, installed
from ortune.worker.devices import Devices
from ortune.worker.installed import (
    RuntimePackage,
    find_installed_version,
    find_runtime_packages,
    is_installed,
    name_package,
    require_runtime,
)
from tests.conftest import TINY_CNN
from tests.records import make_record

RUNTIME_FILES = ("onnxruntime/__init__.py", "onnxruntime/capi/_pybind_state.py")
GPU = RuntimePackage("onnxruntime-gpu", "1.31.1")
OPENVINO = RuntimePackage("onnxruntime-openvino", "1.24.1")


class Environment:
    """A folder that packages are installed to, as pip does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, version: str, *files: str, records_files: bool = True) -> Path:
        """Create the files and the metadata of a package, and return the folder with the metadata."""
        for file in files:
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text("\n".join(sorted({file.split("/")[0] for file in files})) + "\n")
        if records_files:
            (info / "RECORD").write_text("".join(f"{file},sha256=0,0\n" for file in files))
        importlib.invalidate_caches()  # the time stamp of the folder may be the same as before
        installed._find_packages.cache_clear()  # for the same reason
        return info


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment without packages, which this process finds instead of its own."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    importlib.invalidate_caches()
    return Environment(folder)


class TestFind:
    def test_nothing(self, environment: Environment) -> None:
        assert find_runtime_packages() == ()
        assert find_installed_version() == ""
        assert not is_installed()

    @pytest.mark.parametrize(
        "name", ["onnxruntime", "onnxruntime-gpu", "onnxruntime-qnn", "ort-nightly", "onnxruntime_directml"]
    )
    def test_the_files_decide_whatever_the_name(self, name: str, environment: Environment) -> None:
        environment.install(name, "1.24.4", *RUNTIME_FILES)
        assert find_runtime_packages() == (RuntimePackage(name.replace("_", "-"), "1.24.4"),)
        assert find_installed_version() == "1.24.4"
        assert name_package() == name.replace("_", "-")
        require_runtime()

    @pytest.mark.parametrize(
        ("name", "version", "file"),
        [
            ("onnxruntime-qnn", "2.7.0", "onnxruntime_qnn/__init__.py"),
            ("onnxruntime-ep-openvino", "1.8.1", "onnxruntime_ep_openvino/__init__.py"),
            ("onnxruntime-genai", "0.18.0", "onnxruntime_genai/__init__.py"),
            ("onnxruntime-extensions", "0.15.2", "onnxruntime_extensions/__init__.py"),
            ("onnxruntime-tools", "1.7.0", "onnxruntime_tools/__init__.py"),
        ],
    )
    def test_plugins_and_tools_are_not_it(self, name: str, version: str, file: str, environment: Environment) -> None:
        environment.install(name, version, file)
        assert find_runtime_packages() == ()
        with pytest.raises(HostError, match="not installed"):
            require_runtime()
        environment.install("onnxruntime", "1.31.1", *RUNTIME_FILES)
        assert find_runtime_packages() == (RuntimePackage("onnxruntime", "1.31.1"),)

    def test_lists_of_files_are_read_once(self, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
        environment.install("onnxruntime", "1.31.1", *RUNTIME_FILES)
        found = find_runtime_packages()
        monkeypatch.setattr(installed, "_has_runtime", None)
        assert find_runtime_packages() == found

    def test_another_version_is_noticed(self, environment: Environment) -> None:
        info = environment.install("onnxruntime", "1.31.1", *RUNTIME_FILES)
        assert find_installed_version() == "1.31.1"
        info.rename(info.with_name("onnxruntime-1.32.0.dist-info"))
        metadata = environment.folder / "onnxruntime-1.32.0.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("1.31.1", "1.32.0"))
        os.utime(environment.folder, ns=(1, 1))  # the clock of the file system may have stood still
        importlib.invalidate_caches()
        assert find_installed_version() == "1.32.0"

    def test_a_plugin_that_adds_files_to_it_is_not_it(self, environment: Environment) -> None:
        environment.install("onnxruntime", "1.31.1", *RUNTIME_FILES)
        environment.install(
            "onnxruntime-plugin", "0.1", "onnxruntime/capi/libplugin.so", "onnxruntime_plugin/__init__.py"
        )
        assert find_installed_version() == "1.31.1"

    def test_metadata_without_a_list_of_files(self, environment: Environment) -> None:
        environment.install("onnxruntime", "1.21.0", *RUNTIME_FILES, records_files=False)
        environment.install("onnxruntime-qnn", "2.7.0", "onnxruntime_qnn/__init__.py", records_files=False)
        assert find_runtime_packages() == (RuntimePackage("onnxruntime", "1.21.0"),)

    def test_no_metadata(self, environment: Environment) -> None:
        (environment.folder / "onnxruntime").mkdir()
        (environment.folder / "onnxruntime" / "__init__.py").touch()
        assert find_runtime_packages() == ()
        assert find_installed_version() == ""
        require_runtime()

    def test_what_an_interrupted_installation_left(self, environment: Environment) -> None:
        environment.install("onnxruntime", "1.31.1", *RUNTIME_FILES)
        info = environment.install("onnxruntime-gpu", "1.31.1", *RUNTIME_FILES)
        (info / "METADATA").unlink()
        assert find_runtime_packages() == (RuntimePackage("onnxruntime", "1.31.1"),)

    def test_one_further_on_the_path_is_not_used(
        self, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a virtual environment with the packages of the system."""
        environment.install("onnxruntime-gpu", "1.31.1", *RUNTIME_FILES)
        system = Environment(tmp_path / "system")
        system.install("onnxruntime", "1.20.0", *RUNTIME_FILES)
        monkeypatch.setattr(sys, "path", [str(environment.folder), str(system.folder)])
        assert find_runtime_packages() == (GPU,)
        assert find_installed_version() == "1.31.1"


class TestSeveral:
    @pytest.fixture
    def both(self, environment: Environment) -> Environment:
        for package in (OPENVINO, GPU):
            environment.install(package.name, package.version, *RUNTIME_FILES)
        return environment

    def test_both_are_found_and_the_version_is_unknown(self, both: Environment) -> None:
        assert find_runtime_packages() == (GPU, OPENVINO)
        assert find_installed_version() == ""
        assert name_package() == "onnxruntime"

    def test_the_doctor_reports_them(self) -> None:
        facts = ModelFacts(path=str(TINY_CNN), original=read_graph(TINY_CNN), packages=(GPU, OPENVINO))
        finding = check_package(facts)
        assert finding
        assert finding.severity == "problem"
        assert finding.command == "pip uninstall onnxruntime-gpu onnxruntime-openvino"

    @pytest.mark.parametrize("package", [GPU, OPENVINO])
    def test_the_doctor_names_a_single_one(self, package: RuntimePackage) -> None:
        finding = check_package(ModelFacts(path=str(TINY_CNN), original=read_graph(TINY_CNN), packages=(package,)))
        assert finding
        assert (finding.severity, finding.what) == ("ok", f"{package.name} {package.version}")

    @pytest.mark.parametrize(
        ("packages", "shown"),
        [
            ((), "pip install 'ortune[cpu]'"),
            ((GPU,), "onnxruntime-gpu 1.31.1 cannot be imported"),
            ((GPU, OPENVINO), "pip uninstall onnxruntime-gpu onnxruntime-openvino"),
        ],
    )
    def test_the_host_shows_them(self, packages: tuple[RuntimePackage, ...], shown: str, tmp_path: Path) -> None:
        console = Console(width=100, record=True, file=io.StringIO())
        host = read_host()
        show_host(console, host, find_default_pool(host), None, packages, Devices(), read_conditions(tmp_path))
        assert shown in " ".join(console.export_text().split())

    def test_one_is_uninstalled(self, both: Environment) -> None:
        """pip then removes files that the other package owns too."""
        (both.folder / "onnxruntime" / "__init__.py").unlink()
        importlib.invalidate_caches()
        with pytest.raises(HostError, match="Files of onnxruntime-gpu are missing") as caught:
            require_runtime()
        assert "pip install --force-reinstall --no-deps onnxruntime-gpu" in caught.value.hint

    def test_one_is_uninstalled_and_nothing_is_left(self, environment: Environment) -> None:
        info = environment.install("onnxruntime", "1.31.1")
        (info / "RECORD").write_text("".join(f"{file},sha256=0,0\n" for file in RUNTIME_FILES))
        with pytest.raises(HostError, match="Files of onnxruntime are missing"):
            require_runtime()


class TestNone:
    """Whatever needs onnxruntime says so first, before it reads a model or a record."""

    @pytest.fixture(autouse=True)
    def none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installed, "is_installed", lambda: False)
        monkeypatch.setattr(installed, "find_runtime_packages", lambda: ())

    @pytest.mark.parametrize(
        "call",
        [
            lambda path: ortune.search(path),
            lambda path: ortune.bench(path),
            lambda path: ortune.verify(path),
            lambda path: ortune.create_session(path, path),
            lambda path: ortune.session_options(path),
            lambda path: ortune.run_options(path),
        ],
        ids=["search", "bench", "verify", "create_session", "session_options", "run_options"],
    )
    def test_python(self, call: Callable[[Path], Any], tmp_path: Path) -> None:
        with pytest.raises(HostError, match=r"onnxruntime is not installed\.") as caught:
            call(tmp_path / "there is no such file")
        assert "pip install 'ortune[cpu]'" in caught.value.hint
        assert "ortune[gpu] (NVIDIA)" in caught.value.hint

    def test_a_side_of_a_gate(self) -> None:
        named = read_side(str(TINY_CNN))
        with pytest.raises(HostError, match="not installed"):
            make_side("base", named, None, "base_python")


def test_the_recorded_version_is_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_runtime_packages", lambda: (GPU,))
    record = make_record(TINY_CNN, DEFAULT)
    runtime = Runtime(onnxruntime="1.19.2", providers=(CPU,), python="3.12", ortune="0.1.0")
    (mismatch,) = find_mismatches(record, read_host(), runtime)
    assert f"pip install onnxruntime-gpu=={record.runtime.onnxruntime};" in mismatch.hint
