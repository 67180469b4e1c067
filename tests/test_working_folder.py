"""The folder that ortune runs in may be the checkout of a pull request: Python imports nothing from there."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ortune import UsageError
from ortune.gates.sides import check_python
from ortune.interpreter import LEAVE_FOLDER, PYTHON
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.environments import OLDER, Environment, find_python

MODULES = ("json", "pip", "venv", "sysconfig", "subprocess", "msgspec", "numpy", "onnx", "ortune")
PACKAGES = ("onnxruntime", "psutil")

STARTS = {"ortune.interpreter"}
"""Modules that may name the interpreter."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with modules that leave a trace where they are imported."""
    found = tmp_path / "checkout"
    found.mkdir()
    code = f"open({str(tmp_path / 'traces')!r}, 'a').write(__spec__.name + ' ')\nraise ImportError('planted')\n"
    for name in MODULES:
        (found / f"{name}.py").write_text(code)
    for name in PACKAGES:
        (found / name).mkdir()
        (found / name / "__init__.py").write_text(code)
    return found


def traces(folder: Path) -> str:
    """Return the names of the modules that were imported from the folder."""
    path = folder.parent / "traces"
    return path.read_text() if path.exists() else ""


@pytest.mark.long
class TestProcesses:
    def test_modules_leave_a_trace(self, folder: Path) -> None:
        """Without the option. Otherwise, the other tests would show nothing."""
        subprocess.run([sys.executable, "-c", "import json"], cwd=folder, capture_output=True, check=False)
        subprocess.run([sys.executable, "-m", "pip", "--version"], cwd=folder, capture_output=True, check=False)
        assert traces(folder) == "json pip "

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("doctor", TINY_CNN), 0),
            (("host",), 0),
            (("profile", TINY_CNN, "--runs", "20"), 0),
            (("inspect", "--", sys.executable, "-P", "-c", "pass"), 1),
            (("search", "--budget", "1s", "-o", "tuned.json", "--", sys.executable, "-P", "-c", "pass"), 2),
            (("apply", "--to", "ort", ROOT / "examples" / "tuned.json", TINY_CNN, "-o", "saved.ort"), 2),
        ],
        ids=lambda value: value[0] if isinstance(value, tuple) else None,
    )
    def test_commands(self, arguments: tuple[object, ...], code: int, folder: Path) -> None:
        """They start workers, probes, parsers, supervisors and background loads."""
        done = run_ortune(*arguments, cwd=folder)
        assert traces(folder) == ""
        assert "planted" not in done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr

    def test_sides_of_a_gate(self, folder: Path) -> None:
        """Both have a Python of their own, which is probed first, and a background load."""
        options = ("--base-python", sys.executable, "--head-python", sys.executable, "--beside", "sleep 100")
        done = run_ortune("gate", TINY_CNN, TINY_CNN, *options, "--budget", "1s", "--busy", "-q", cwd=folder)
        assert traces(folder) == ""
        assert done.returncode in {0, 3}, done.stderr

    @pytest.mark.parametrize("version", [*OLDER, "3.10"])
    def test_an_interpreter_that_is_too_old(self, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It does not know the option."""
        monkeypatch.chdir(folder)
        with pytest.raises(UsageError) as caught:
            check_python(find_python(version), "head_python")
        assert traces(folder) == ""
        is_known = version.startswith("3")
        assert (f"this is Python {version}" in caught.value.message) == is_known

    def test_an_interpreter_without_the_option(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This one, behind a script that refuses the option like Python 3.10."""
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\n[ "$1" = -P ] && exit 2\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        monkeypatch.chdir(folder)
        check_python(str(python), "head_python")
        assert traces(folder) == ""

    def test_enable(self, folder: Path, tmp_path: Path) -> None:
        """Its child process must import what programs import, but not from here."""
        environment = Environment(tmp_path / "venv", packages=True)
        environment.need_no_sitecustomize()
        done = subprocess.run(
            [environment.python, "-P", "-m", "ortune.enable"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert traces(folder) == ""
        assert done.returncode == 0, done.stderr


# The code.


WORDS_OF_STARTS = ("executable", "'-m'", '"-m"', "'-c'", '"-c"')
"""One of them is in each module that starts Python."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of ortune that may start Python, by name."""
    for path in sorted((ROOT / "ortune").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        code = path.read_text()
        if any(word in code for word in WORDS_OF_STARTS):
            yield name, ast.parse(code)


def is_isolated(command: ast.List | ast.Tuple) -> bool:
    """Return whether a command that starts Python begins like all others, or leaves the folder in its code."""
    return ast.unparse(command.elts[0]) == "*PYTHON" or any("LEAVE_FOLDER" in ast.unparse(elt) for elt in command.elts)


def find_starts(tree: ast.Module) -> list[str]:
    """Return the places of a module that start Python in another way than `ortune.interpreter` says."""
    in_messages = {id(part.value) for part in ast.walk(tree) if isinstance(part, ast.FormattedValue)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"executable", "_base_executable"}:
            if ast.unparse(node.value) == "sys" and id(node) not in in_messages:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.List | ast.Tuple):
            words = {elt.value for elt in node.elts if isinstance(elt, ast.Constant)}
            if words & {"-m", "-c"} and not is_isolated(node):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_every_start_of_python_is_isolated() -> None:
    faults = {name: found for name, tree in modules() if name not in STARTS and (found := find_starts(tree))}
    assert faults == {}


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("run([sys.executable, '-m', 'x'])", True),
        ("run([sys.executable, 'x.py'])", True),
        ("command = ('python', '-c', CODE)", True),
        ("run([program, '-c', CODE])", True),
        ("run([*PYTHON, '-m', 'x'])", False),
        ("run([program, '-c', LEAVE_FOLDER + CODE])", False),
        ("print(f'{sys.executable} belongs to the operating system')", False),
    ],
)
def test_other_starts_are_found(code: str, is_found: bool) -> None:
    assert bool(find_starts(ast.parse(code))) == is_found


def test_what_commands_begin_with(folder: Path) -> None:
    code = f"import sys; print('' in sys.path, sys.path[0] == {str(folder)!r})"
    for command in ([*PYTHON, "-c", code], [sys.executable, "-c", LEAVE_FOLDER + code]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout == "False False\n"


# The files for CI.


def scripts() -> dict[str, list[str]]:
    """Return the scripts of the action and of the ready-made jobs, line by line."""
    found = {}
    for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]:
        found[step["id"]] = step["run"].splitlines()
    for step in yaml.safe_load((ROOT / "docs" / "ci" / "github.yml").read_text())["jobs"]["gate"]["steps"]:
        found.setdefault("workflow", []).extend(step.get("run", "").splitlines())
    job = yaml.safe_load((ROOT / "docs" / "ci" / "gitlab.yml").read_text())["performance"]
    found["gitlab"] = [*job["before_script"], *job["script"]]
    return found


PYTHON_WORD = re.compile(r"(?:^|[\s(])(?:\"\$bin/)?(?:[\w./-]*/)?python3?\"?(?= )(.*)")
"""Python at the start of a command, and its arguments."""


def test_files_for_ci_start_python_isolated() -> None:
    starts = [found for lines in scripts().values() for line in lines if (found := PYTHON_WORD.search(line))]
    assert len(starts) == 6
    for found in starts:
        assert found[1].startswith(" -I "), found[0]


@pytest.mark.parametrize("runtime", ["cpu", "none"])
def test_the_action_starts_every_python_isolated(runtime: str, folder: Path, tmp_path: Path) -> None:
    """Its script runs with a Python that notes its arguments, and that makes no environment and installs nothing."""
    log, programs, temp = tmp_path / "log", tmp_path / "bin", tmp_path / "temp"
    programs.mkdir()
    temp.mkdir()
    python = programs / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'echo "$PYTHONPATH:$*" >> {shlex.quote(str(log))}\n'
        'case "$3" in\n'
        'venv) mkdir -p "$5/bin" && cp "$0" "$5/bin/python" ;;\n'
        "pip) ;;\n"
        f"*) echo {shlex.quote(str(temp))} ;;\n"
        "esac\n"
    )
    python.chmod(0o755)
    environment = {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": str(folder),
        "RUNTIME": runtime,
        "RUNNER_TEMP": str(temp),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    script = "\n".join(scripts()["install"])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = log.read_text().splitlines()
    assert len(lines) == {"cpu": 3, "none": 5}[runtime]
    assert all(line.startswith(":-I ") for line in lines), lines


@pytest.mark.parametrize("module", ["pip", "venv"])
def test_what_the_option_of_the_action_does(module: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-I", "-m", module, "--help"], cwd=folder, capture_output=True, check=True)
    assert traces(folder) == ""


def test_the_action_runs_the_gate_without_folders_of_the_job(tmp_path: Path) -> None:
    program = tmp_path / "ortune"
    program.write_text('#!/bin/sh\necho "[$PYTHONPATH] $*"\n')
    program.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": "src",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "ARGS": "a.onnx b.onnx",
        "BIN": str(tmp_path),
    }
    subprocess.run(["bash", "-eo", "pipefail", "-c", "\n".join(scripts()["gate"])], env=environment, check=True)
    (line,) = (tmp_path / "ortune.json").read_text().splitlines()
    assert line.startswith("[] gate ") and line.endswith(" a.onnx b.onnx")
