"""The distribution ortune-apply: which modules it has, and that it applies records where ortune is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ortune
from ortune import Config
from ortune.apply.inside.finder import STATE
from tests.applying import PROGRAM
from tests.archives import extract_files
from tests.conftest import ROOT, TINY_CNN, TINY_ENCODER
from tests.environments import Environment, build, build_wheel
from tests.records import ONE_THREAD, make_record, write
from tests.test_layers import MODULES

DISTRIBUTION = ROOT / "ortune" / "apply" / "distribution"
BUNDLED = ROOT / "docs" / "transcript" / "tuned.json"
"""The record that the README shows."""

TUNER = {"ortune", "numpy", "onnx", "optuna", "platformdirs", "psutil", "rich", "scipy", "typer"}
"""What a production image need not have. onnxruntime itself needs numpy."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DISTRIBUTION / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


modules: Any = load("modules")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as the build makes it."""
    folder = tmp_path_factory.mktemp("copied")
    modules.copy_package(folder / "ortune_apply")
    return folder


class TestModules:
    def test_only_msgspec_and_onnxruntime_are_needed(self) -> None:
        found = modules.third_party(modules.find_closure(), sys.stdlib_module_names)
        # psutil is only used where the system itself does not report the number of cores, and pynvml for records whose
        # config uses an NVIDIA GPU. Without it, it is not known which GPU there is.
        assert found == {
            "msgspec": found["msgspec"],
            "onnxruntime": {
                "ortune.apply.inside.hook",
                "ortune.apply.inside.settings",
                "ortune.worker.plugins",
                "ortune.worker.session",
            },
            "psutil": {"ortune.host.read"},
            "pynvml": {"ortune.worker.gpu"},
        }
        project = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text())["project"]
        assert [re.split(r"[>=]", requirement)[0] for requirement in project["dependencies"]] == ["msgspec", "psutil"]
        assert project["dependencies"][1].endswith("; sys_platform == 'win32'")
        ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(project["dependencies"]) >= {our for our in ours["dependencies"] if our.startswith("msgspec")}
        assert project["requires-python"] == ours["requires-python"]

    def test_nothing_of_the_tuner_is_among_them(self) -> None:
        packages = {name.split(".")[1] for name in modules.find_closure() if "." in name}
        assert not packages & {"api", "cli", "console", "doctor", "export", "gates", "profile", "requests", "tuning"}

    def test_the_modules_that_run_are_among_them(self, tmp_path: Path) -> None:
        """Those that Python imports while the command runs, as a check of the computation."""
        record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        command = ["apply", record, "--explain", "--", sys.executable, "-X", "importtime", "-c", "import onnxruntime"]
        done = subprocess.run(
            [sys.executable, "-P", "-X", "importtime", "-m", "ortune", *map(str, command)],
            capture_output=True,
            text=True,
            check=True,
        )
        ran = set(re.findall(r"\| +(ortune[.\w]*)$", done.stderr, re.MULTILINE))
        assert "ortune.record.select" in ran
        assert ran <= modules.find_closure().keys()

    def test_names_that_packages_import_on_first_use(self, tmp_path: Path) -> None:
        """The module that defines the name counts, and no others that the package could import."""
        package = tmp_path / "package"
        package.mkdir()
        path = package / "__init__.py"
        path.write_text(
            "if TYPE_CHECKING:\n    from ortune.a import A\n    from ortune.b import B\nelse:\n    import c\n"
        )
        assert modules.lazy_exports(path) == {"A": "ortune.a", "B": "ortune.b"}
        assert modules.imports_of(path) == [("c", "")]

    def test_imports_are_renamed(self) -> None:
        text = textwrap.dedent(
            '''
            """Of ortune.errors."""
            from ortune.errors import (
                OrtuneError,  # ortune.errors
            )
            def ü(): from ortune import errors; return "ü", "ortune.errors", "ortune", "ortune.errors.x"
            import ortuned
            '''
        )
        renamed = text.replace("from ortune.", "from ortune_apply.").replace("from ortune ", "from ortune_apply ")
        assert modules.rename(text, {"ortune", "ortune.errors"}) == renamed.replace(
            '"ortune.errors", ', '"ortune_apply.errors", '
        )
        with pytest.raises(ValueError, match="line 1: write `from ortune import"):
            modules.rename("import ortune.errors", {"ortune.errors"})

    def test_data_of_modules_is_copied(self) -> None:
        closure = {**modules.find_closure(), "ortune.knobs.data_files": MODULES["ortune.knobs.data_files"]}
        files = modules.list_files(closure)
        assert set((ROOT / "ortune" / "knobs" / "data").rglob("*.toml")) <= set(files)
        assert ROOT / "ortune" / "knobs" / "data" / "legal.json" in files
        assert ROOT / "ortune" / "apply" / "inside" / "startup" / "sitecustomize.py" in files

    def test_no_other_module_reads_files_of_the_package(self) -> None:
        """A module that reads other files by path needs an entry in FILES."""
        reads = {name for name, path in modules.find_closure().items() if "__file__" in path.read_text()}
        assert reads <= {*modules.FILES, "ortune.apply.exec", "ortune.enable"}

    def test_the_version_is_that_of_ortune(self) -> None:
        assert modules.read_version() == ortune.__version__

    def test_the_license_is_that_of_ortune(self) -> None:
        assert (DISTRIBUTION / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()

    def test_without_the_tuner(self, copied: Path, tmp_path: Path) -> None:
        """All modules can be imported, and a record can be read, selected and applied."""
        record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        code = f"""
        import importlib, pkgutil, sys
        class Nowhere:
            def find_spec(self, name, path=None, target=None):
                top = name.split(".")[0]
                if top in {TUNER!r} and not (top == "numpy" and "onnxruntime" in sys.modules):
                    raise ImportError(name)
        sys.meta_path.insert(0, Nowhere())
        sys.path.insert(0, {str(copied)!r})
        import ortune_apply
        assert not {{"msgspec", "onnxruntime"}} & set(sys.modules)
        for module in pkgutil.walk_packages(ortune_apply.__path__, "ortune_apply."):
            importlib.import_module(module.name)
        for name in ortune_apply.__all__:
            assert name == "__version__" or getattr(ortune_apply, name)
        assert "onnxruntime" not in sys.modules
        model, tuned = {str(TINY_CNN)!r}, {str(record)!r}
        for path in (tuned, *{[str(file) for file in sorted((ROOT / "tests" / "data").glob("*.json"))]!r}):
            ortune_apply.read_record(path)
        ortune_apply.install(tuned)
        import onnxruntime
        print(onnxruntime.InferenceSession(model).get_session_options().intra_op_num_threads)
        print(ortune_apply.create_session(model, tuned).get_session_options().intra_op_num_threads)
        print(ortune_apply.session_options(tuned).intra_op_num_threads, ortune_apply.run_options(tuned))
        """
        done = subprocess.run(
            [sys.executable, "-I", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == ["1", "1", "1", "None"], done.stderr

    def test_both_packages_in_one_process(self, copied: Path, tmp_path: Path) -> None:
        """Sessions are changed once."""
        record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        code = f"""
        import sys, warnings
        sys.path.insert(0, {str(copied)!r})
        import ortune, ortune_apply
        ortune.install({str(record)!r})
        try:
            ortune_apply.install({str(record)!r})
        except ortune_apply.UsageError as error:
            print(error.hint)
        """
        done = subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
        )
        assert done.stdout == "Call ortune_apply.install once, with all records.\n", done.stderr


class TestCommand:
    def run(self, copied: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "ortune_apply", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(copied), **environment},
        )

    def test_a_program(self, copied: Path, tmp_path: Path) -> None:
        record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        done = self.run(
            copied,
            record,
            "-q",
            "--",
            sys.executable,
            PROGRAM,
            TINY_CNN,
            "by_path",
            "spawned",
            "shared",
            OTHER_MODEL=str(TINY_ENCODER),
        )
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["intra"] for line in done.stdout.splitlines()] == [1, 1, 2]
        assert done.stderr == ""

    def test_its_exit_code(self, copied: Path, tmp_path: Path) -> None:
        record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        assert self.run(copied, record, "--", sys.executable, "-c", "exit(5)").returncode == 5

    def test_help(self, copied: Path) -> None:
        done = self.run(copied, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith("usage: ortune-apply CONFIG... [OPTION...] -- COMMAND\n")
        assert "--keep-explicit" in done.stdout
        assert self.run(copied).returncode == 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["r.json", "python"], "There is no command after --."),
            (["--", "true"], "There is no CONFIG.\nWrite: ortune-apply tuned.json -- python app.py."),
            (["missing.json", "--", "true"], "There is no file missing.json."),
            (
                ["missing.json", "--pick", "0", "--", "true"],
                "--pick 0: must be at least 1, and not one of",
            ),
            (["missing.json", "--nonsense", "--", "true"], "ortune-apply ... -- COMMAND: unrecognized arguments"),
        ],
    )
    def test_errors(self, arguments: list[str], message: str, copied: Path) -> None:
        done = self.run(copied, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {message}")
        assert "Traceback" not in done.stderr

    def test_a_newer_record(self, copied: Path, tmp_path: Path) -> None:
        (tmp_path / "r.json").write_text('{"schema": 99}')
        done = self.run(copied, tmp_path / "r.json", "--", "true")
        assert "Install a newer version of ortune-apply." in done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    build(DISTRIBUTION, folder, "wheel", "sdist")
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the built wheel and onnxruntime."""
    made = Environment(tmp_path_factory.mktemp("environment") / "venv")
    made.install(wheel, "onnxruntime")
    return made


class TestWheel:
    @pytest.mark.long
    def test_a_source_distribution_builds_the_same_wheel(self, wheel: Path, tmp_path: Path) -> None:
        (sdist,) = wheel.parent.glob("*.tar.gz")
        extract_files(sdist, tmp_path)
        again = build_wheel(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path)
        assert again.name == wheel.name == f"ortune_apply-{ortune.__version__}-py3-none-any.whl"
        contents = [
            {name: file.read(name) for name in file.namelist()} for file in map(zipfile.ZipFile, (wheel, again))
        ]
        assert contents[0] == contents[1]

    def test_the_wheel_has_the_copied_package(self, wheel: Path, copied: Path) -> None:
        with zipfile.ZipFile(wheel) as file:
            found = {name: file.read(name) for name in file.namelist() if ".dist-info/" not in name}
        assert found == {
            path.relative_to(copied).as_posix(): path.read_bytes()
            for path in copied.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }

    def test_an_editable_installation_is_refused(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", tmp_path]
        done = subprocess.run(
            [*map(str, command), "-e", str(DISTRIBUTION)], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "cannot be installed as editable" in done.stderr + done.stdout


@pytest.mark.install
class TestInstalled:
    """The built wheel, in an environment with onnxruntime and without ortune."""

    def test_the_sample_program_with_the_bundled_record(self, environment: Environment) -> None:
        ways = ("by_path", "by_bytes", "subclass", "spawned")
        options = ("--any-host", "--quiet", "--")
        plain = environment.run(PROGRAM, TINY_CNN, *ways)
        done = environment.run("-m", "ortune_apply", BUNDLED, *options, environment.python, PROGRAM, TINY_CNN, *ways)
        assert done.returncode == 0, done.stderr
        before, after = ([json.loads(line) for line in run.stdout.splitlines()] for run in (plain, done))
        assert [session["level"] for session in before] == ["ORT_ENABLE_ALL"] * len(ways)
        assert [session["level"] for session in after] == ["ORT_ENABLE_EXTENDED"] * len(ways)
        for one, other in zip(before, after, strict=True):
            assert other["output"] == pytest.approx(one["output"], abs=1e-5)

    def test_the_script(self, environment: Environment) -> None:
        script = environment.python.with_name("ortune-apply")
        assert environment.run(script, "--version").stdout == f"ortune-apply {ortune.__version__}\n"
        done = environment.run(
            script, BUNDLED, "--any-host", "-q", "--", environment.python, PROGRAM, TINY_CNN, "by_path"
        )
        assert json.loads(done.stdout)["level"] == "ORT_ENABLE_EXTENDED"

    def test_python(self, environment: Environment) -> None:
        code = f"""
        import ortune_apply
        ortune_apply.install({str(BUNDLED)!r}, any_host=True)
        import onnxruntime
        print(onnxruntime.InferenceSession({str(TINY_CNN)!r}).get_session_options().graph_optimization_level.name)
        print(ortune_apply.__version__)
        """
        done = environment.run("-c", textwrap.dedent(code))
        assert done.stdout.split() == ["ORT_ENABLE_EXTENDED", ortune.__version__], done.stderr

    def test_the_variable(self, environment: Environment, tmp_path: Path) -> None:
        environment.need_no_sitecustomize()
        record = write(make_record(TINY_CNN, Config(session_options={"intra_op_num_threads": 1})), tmp_path / "r.json")
        done = environment.run("-m", "ortune_apply.enable")
        assert done.returncode == 0, done.stderr
        for value, threads in ((str(record), 1), ("", 0)):
            done = environment.run(PROGRAM, TINY_CNN, "by_path", ORTUNE_CONFIG=value)
            assert json.loads(done.stdout)["intra"] == threads
        assert environment.run("-m", "ortune_apply.enable", "--remove").returncode == 0

    def test_nothing_else_is_installed(self, environment: Environment) -> None:
        names = {path.name.split("-")[0].lower() for path in environment.site_packages.glob("*.dist-info")}
        assert {"ortune_apply", "msgspec", "onnxruntime", "numpy"} <= names
        assert not names & (TUNER - {"numpy"})
        done = environment.run("-X", "importtime", "-c", f"import sys; print(hasattr(sys, {STATE!r}))")
        assert done.stdout == "False\n"
        assert "ortune" not in done.stderr
