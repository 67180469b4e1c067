"""ORTUNE_CONFIG: `python -m ortune.enable`, and that nothing of ortune runs when Python starts without it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ortune import UsageError
from ortune import enable as command
from ortune.enable import LINES, find_path, is_own, main, make_text
from tests.applying import TUNED, write_tuned
from tests.conftest import ROOT, TINY_CNN, long_params
from tests.environments import Environment, build_wheel
from tests.records import make_record, write

READ = f"""
import onnxruntime
print(onnxruntime.InferenceSession({str(TINY_CNN)!r}).get_session_options().intra_op_num_threads)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("environment") / "venv", packages=True)
    made.need_no_sitecustomize()
    return made


@pytest.fixture
def enabled(environment: Environment) -> Environment:
    """The environment, with what the command writes."""
    (environment.site_packages / "sitecustomize.py").write_text(make_text())
    return environment


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tuned(tmp_path_factory.mktemp("records"))


class TestEnabled:
    def test_records_are_applied_where_the_variable_is_set(self, enabled: Environment, tuned: Path) -> None:
        assert enabled.run("-c", READ, ORTUNE_CONFIG=str(tuned)).stdout == "1\n"
        assert enabled.run("-c", READ).stdout == "0\n"

    def test_they_are_applied_in_child_processes(self, enabled: Environment, tuned: Path) -> None:
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {READ!r}])"
        assert enabled.run("-c", code, ORTUNE_CONFIG=str(tuned)).stdout == "1\n"

    @pytest.mark.parametrize(("flag", "is_active"), [("-I", False), ("-E", True), ("-P", True), ("-S", False)])
    def test_what_turns_it_off(self, flag: str, is_active: bool, enabled: Environment, tuned: Path) -> None:
        code = "import sys; print(hasattr(sys, '_ortune_plan'))"
        assert enabled.run(flag, "-c", code, ORTUNE_CONFIG=str(tuned)).stdout == f"{is_active}\n"

    def test_the_command_under_apply_comes_first(self, enabled: Environment, tuned: Path, tmp_path: Path) -> None:
        other = write(
            make_record(TINY_CNN, TUNED.with_setting("session_options", "intra_op_num_threads", 2)), tmp_path / "r"
        )
        done = enabled.run(
            "-m", "ortune", "apply", other, "--quiet", "--", enabled.python, "-c", READ, ORTUNE_CONFIG=str(tuned)
        )
        assert (done.stdout, done.stderr) == ("2\n", "")

    def test_a_worker_is_not_affected(self, enabled: Environment, tuned: Path) -> None:
        assert enabled.run("-c", READ, ORTUNE_CONFIG=str(tuned), ORTUNE_APPLY="off").stdout == "0\n"

    def test_install_uses_the_variable(self, enabled: Environment, tuned: Path, tmp_path: Path) -> None:
        """Also where sitecustomize has applied it already. Other records are not installed, with a warning."""
        done = enabled.run("-c", f"import ortune; ortune.install(); {READ}", ORTUNE_CONFIG=str(tuned))
        assert (done.stdout, done.stderr) == ("1\n", "")
        other = write(make_record(TINY_CNN, TUNED), tmp_path / "other.json")
        done = enabled.run("-c", f"import ortune; ortune.install({str(other)!r}); {READ}", ORTUNE_CONFIG=str(tuned))
        assert done.stdout == "1\n"
        assert "already uses the records of its environment" in done.stderr

    def test_removing_it(self, enabled: Environment, tuned: Path) -> None:
        enabled.run("-c", "pass")
        done = enabled.run("-m", "ortune.enable", "--remove")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Removed" in done.stdout
        assert list(enabled.site_packages.rglob("sitecustomize*")) == []
        assert enabled.run("-c", READ, ORTUNE_CONFIG=str(tuned)).stdout == "0\n"
        assert "There is no" in enabled.run("-m", "ortune.enable", "--remove").stdout

    def test_the_command_writes_it_and_a_second_time_changes_nothing(self, environment: Environment) -> None:
        path = environment.site_packages / "sitecustomize.py"
        path.unlink(missing_ok=True)
        for _ in range(2):
            done = environment.run("-m", "ortune.enable")
            assert done.returncode == 0, done.stderr
            assert str(path) in done.stdout
            assert path.read_text() == make_text()


class TestFaults:
    """A fault in ORTUNE_CONFIG does not stop the program. It is found when the program imports onnxruntime."""

    @pytest.fixture
    def stub(self, tmp_path: Path) -> Path:
        """A folder with an onnxruntime that takes no time to import."""
        package = tmp_path / "stub" / "onnxruntime"
        (package / "capi").mkdir(parents=True)
        (package / "__init__.py").write_text("from onnxruntime.capi import onnxruntime_inference_collection\n")
        (package / "capi" / "__init__.py").touch()
        (package / "capi" / "onnxruntime_inference_collection.py").write_text("class InferenceSession: ...\n")
        return tmp_path / "stub"

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("missing.json", "There is no file missing.json"),
            ("-", "- is not a file"),
            (".", ". is not a file"),
            ("broken.json", "is not JSON"),
            (f"broken.json{os.pathsep}missing.json", "is not JSON"),
            ("{budget=1}", "There is no file"),
        ],
    )
    def test_a_variable_without_a_record(self, value: str, message: str, enabled: Environment, stub: Path) -> None:
        (enabled.python.parent / "broken.json").write_text("{")
        done = enabled.run("-c", "import onnxruntime; print('runs')", ORTUNE_CONFIG=value, PYTHONPATH=str(stub))
        assert (done.returncode, done.stdout) == (0, "runs\n")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_not_read(self, enabled: Environment, tmp_path: Path, stub: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        code = "import onnxruntime; print('runs')"
        done = enabled.run("-c", code, ORTUNE_CONFIG=str(tmp_path / "pipe"), PYTHONPATH=str(stub))
        assert (done.returncode, done.stdout) == (0, "runs\n")
        assert "is not a file" in done.stderr

    def test_stdin_is_the_programs(self, enabled: Environment, stub: Path) -> None:
        code = "import sys, onnxruntime; print(sys.stdin.read())"
        done = subprocess.run(
            [enabled.python, "-c", code],
            input="text",
            capture_output=True,
            text=True,
            env={**os.environ, "ORTUNE_CONFIG": "-", "PYTHONPATH": str(stub)},
            check=False,
        )
        assert done.stdout == "text\n"

    def test_another_class_of_host(self, enabled: Environment, tmp_path: Path) -> None:
        record = write(make_record(TINY_CNN, TUNED, here=False), tmp_path / "r.json")
        done = enabled.run("-c", READ, ORTUNE_CONFIG=str(record))
        assert done.stdout == "0\n"
        assert "is not used: tuned on another class of host" in done.stderr

    @pytest.mark.parametrize("stderr", ["open", "closed"])
    def test_an_environment_from_which_ortune_was_removed(
        self, stderr: str, environment: Environment, tuned: Path, tmp_path: Path
    ) -> None:
        bare = Environment(tmp_path / "venv")
        (bare.site_packages / "sitecustomize.py").write_text(make_text())
        close = "2>&-" if stderr == "closed" else ""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            ["sh", "-c", f"{bare.python} -c 'print(1)' {close}"],
            capture_output=True,
            text=True,
            env={**inherited, "ORTUNE_CONFIG": str(tuned)},
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "1\n")
        expected = "ortune: ORTUNE_CONFIG has no effect: No module named 'ortune'\n"
        assert done.stderr == (expected if stderr == "open" else "")


class TestRefused:
    def refused(self, environment: Environment, *arguments: str, **variables: str) -> str:
        done = environment.run("-m", "ortune.enable", *arguments, **variables)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
        return done.stderr

    @pytest.fixture
    def path(self, environment: Environment) -> Path:
        path = environment.site_packages / "sitecustomize.py"
        path.unlink(missing_ok=True)
        return path

    @pytest.mark.parametrize(
        "text", ["import sys\n", f"{make_text()}import sys\n", *long_params("", "\x00\xff")], ids=ascii
    )
    def test_a_file_of_someone_else(self, text: str, environment: Environment, path: Path) -> None:
        path.write_text(text, encoding="latin-1")
        stderr = self.refused(environment)
        assert "was not written by ortune" in stderr
        assert LINES in stderr
        assert "by hand" in self.refused(environment, "--remove")
        assert path.read_text(encoding="latin-1") == text
        path.unlink()

    def test_the_lines_work_in_a_file_of_someone_else(self, environment: Environment, path: Path, tuned: Path) -> None:
        path.write_text(f"import builtins; builtins.OTHER = 1\n{LINES}")
        assert environment.run("-c", f"print(OTHER); {READ}", ORTUNE_CONFIG=str(tuned)).stdout == "1\n1\n"
        path.unlink()

    def test_a_broken_link(self, environment: Environment, path: Path, tmp_path: Path) -> None:
        path.symlink_to(tmp_path / "nowhere")
        assert "was not written by ortune" in self.refused(environment)
        path.unlink()

    def test_another_sitecustomize_that_hides_it(self, environment: Environment, path: Path, tmp_path: Path) -> None:
        """Debian's Python has one in the folder of the standard library, also for its virtual environments."""
        other = tmp_path / "sitecustomize.py"
        other.write_text("import sys; sys.stderr.write('hello\\n')\n")
        stderr = self.refused(environment, PYTHONPATH=str(tmp_path))
        assert f"Python imports {other} instead of {path}" in stderr
        assert "ortune apply CONFIG -- PROGRAM" in stderr
        assert "ortune.install()" in stderr
        assert not path.exists()

    def test_an_environment_without_ortune(self, path: Path, tmp_path: Path) -> None:
        """Python finds ortune through a variable that programs do not have."""
        bare = Environment(tmp_path / "venv")
        site = str(Path(sys.modules["msgspec"].__file__ or "").parents[1])
        code = f"import sys; sys.path += [{str(ROOT)!r}, {site!r}]; from ortune.enable import main; sys.exit(main())"
        done = bare.run("-c", code)
        assert done.returncode == 2
        assert "has no effect when Python starts (ortune: ORTUNE_CONFIG has no effect: No module named" in done.stderr
        assert f"Install ortune into this environment ({tmp_path / 'venv'})" in done.stderr
        assert not (bare.site_packages / "sitecustomize.py").exists()

    def test_a_python_of_the_operating_system(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "EXTERNALLY-MANAGED").write_text("")
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        monkeypatch.setattr(sys, "prefix", sys.base_prefix)
        assert main([]) == 2
        stderr = capsys.readouterr().err
        assert "belongs to the operating system" in stderr
        assert "Create a virtual environment" in stderr
        assert not (tmp_path / "sitecustomize.py").exists()

    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(path: Path, data: bytes) -> None:
            raise UsageError(f"Cannot write {path}: Read-only file system.")

        monkeypatch.setattr(command, "find_path", lambda: tmp_path / "sitecustomize.py")
        monkeypatch.setattr(command, "write_atomically", refuse)
        assert main([]) == 2
        stderr = capsys.readouterr().err
        assert f"error: Cannot write {tmp_path / 'sitecustomize.py'}: Read-only file system." in stderr
        assert "Run this as the owner of the environment." in stderr

    def test_a_file_that_cannot_be_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "sitecustomize.py"
        path.write_text(make_text())
        assert is_own(path)

        def refuse(path: Path) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(command, "find_path", lambda: path)
        monkeypatch.setattr(Path, "unlink", refuse)
        assert main(["--remove"]) == 2
        assert f"Cannot remove {path}: Permission denied." in capsys.readouterr().err

    def test_unknown_arguments(self, environment: Environment) -> None:
        assert "unrecognized arguments" in self.refused(environment, "tuned.json")

    def test_this_environment_is_not_touched(self) -> None:
        assert not find_path().exists()


def test_an_installation_runs_nothing_when_python_starts(tmp_path: Path) -> None:
    """A file that Python reads at its start would run in every program of the environment, even in isolated mode."""
    installed = Environment(tmp_path / "venv")
    with zipfile.ZipFile(build_wheel(ROOT, tmp_path)) as wheel:
        wheel.extractall(installed.site_packages)
        names = wheel.namelist()
    assert "ortune/enable.py" in names
    # Modules, metadata, and the manual, which goes to a folder of manuals.
    homes = ("ortune/", "ortune-*.dist-info/", "ortune-*.data/data/share/man/")
    assert [name for name in names if not any(fnmatch(name, f"{home}*") for home in homes)] == []
    assert not any(name.startswith("ortune/apply/distribution/") for name in names)
    for flag in ("-P", "-I"):
        done = installed.run(flag, "-X", "importtime", "-c", "pass", ORTUNE_CONFIG="tuned.json")
        assert "site" in done.stderr
        assert "ortune" not in done.stderr
