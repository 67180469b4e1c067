"""Installation, for real: into new virtual environments, with packages from PyPI.

Run it with `nox -s install`, or `pytest -m install`. It downloads 0.5 GB, half of it for
onnxruntime-gpu, so it is not among the ordinary tests. CI runs it without onnxruntime-gpu (`-k "not gpu"`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from ortune.gates.reporters.history import append_history
from tests.applying import PROGRAM, write_tuned
from tests.conftest import ROOT, TINY_CNN
from tests.gate_results import make_results

pytestmark = [pytest.mark.install, pytest.mark.timeout(1200)]

VARIABLES = ("PYTHONPATH", "VIRTUAL_ENV", "ORTUNE_CONFIG", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS")
"""Variables of the tests' environment that do not apply to others."""


class Environment:
    """A new virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run([sys.executable, "-m", "venv", str(folder)])
        self.python = folder / "bin" / "python"
        (self.site_packages,) = folder.glob("lib/python*/site-packages")

    def pip(self, *arguments: object) -> None:
        run([str(self.python), "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)])

    def ortune(self, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run the command, which may fail."""
        return run([str(self.folder / "bin" / "ortune"), *map(str, arguments)], cwd=cwd, check=False)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of each installed file, without what Python and pip write when they run."""
        return {
            path.relative_to(self.site_packages).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.site_packages.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }


def run(command: Sequence[str], *, check: bool = True, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the tests' environment, and show its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"NO_COLOR": "1", "COLUMNS": "200", **how.pop("env", {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **how)
    assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.parametrize(
    ("package", "provider"),
    [("onnxruntime-openvino", "OpenVINOExecutionProvider"), ("onnxruntime-gpu", "CUDAExecutionProvider")],
)
def test_an_installed_onnxruntime_stays_as_it_is(package: str, provider: str, wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", package)
    before = environment.digests()
    own = [name for name in before if name.startswith(("onnxruntime/", f"{package.replace('-', '_')}-"))]
    assert len(own) > 100
    environment.pip("install", wheel)
    after = environment.digests()
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    print(f"{package}: {len(own)} files of the package and {len(before)} in all, {len(changed)} changed by ortune")
    print(f"  digest of its digests before  {digest_of(before, own)}")
    print(f"  digest of its digests after   {digest_of(after, own)}")
    assert changed == []
    environment.pip("check")

    host = json.loads(environment.ortune("host", "--json", cwd=tmp_path).stdout)
    assert [entry["name"] for entry in host["packages"]] == [package]
    assert host["runtime"]["onnxruntime"] == host["packages"][0]["version"]
    assert provider in host["runtime"]["providers"]
    done = environment.ortune("bench", TINY_CNN, "--set", "intra_op_num_threads=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    # Another package of onnxruntime overwrites it: the comparison of digests notices that, and ortune reports it.
    environment.pip("install", f"{wheel}[cpu]")
    overwritten = environment.digests()
    n_changed = sum(overwritten.get(name) != before[name] for name in own)
    print(f"  changed by onnxruntime        {n_changed}")
    assert n_changed > 0
    assert f"onnxruntime and {package} overwrite each other" in environment.ortune("host", cwd=tmp_path).stdout
    doctor = environment.ortune("doctor", TINY_CNN, cwd=tmp_path)
    assert doctor.returncode == 1
    assert f"pip uninstall onnxruntime {package}" in doctor.stdout

    # Uninstalling one breaks the other. The hint repairs it.
    environment.pip("uninstall", "--yes", "onnxruntime")
    broken = environment.ortune("bench", TINY_CNN, cwd=tmp_path)
    assert broken.returncode == 2
    hint = f"pip install --force-reinstall --no-deps {package}"
    assert hint in broken.stderr
    environment.pip(*hint.split()[1:])
    repaired = environment.digests()
    assert [name for name in own if "dist-info" not in name and repaired.get(name) != before[name]] == []


def digest_of(digests: Mapping[str, str], names: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{name} {digests.get(name)}\n" for name in names).encode()).hexdigest()


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with ortune and without onnxruntime."""
    environment = Environment(tmp_path_factory.mktemp("bare") / "venv")
    environment.pip("install", wheel)
    assert not (environment.site_packages / "onnxruntime").exists()
    return environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a record, a history and a file that is not a model."""
    write_tuned(tmp_path)
    append_history(tmp_path / "history.jsonl", make_results())
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    (tmp_path / "ortune.toml").write_text('[gate.g]\nbase = "broken.onnx"\nhead = "broken.onnx"\n')
    return tmp_path


class TestWithoutOnnxruntime:
    @pytest.mark.parametrize(
        "command",
        [
            "search broken.onnx",
            "bench broken.onnx",
            "gate broken.onnx broken.onnx",
            "gate --all",
            "profile broken.onnx",
            "doctor broken.onnx",
            "apply tuned.json",
            "apply tuned.json broken.onnx",
            "apply tuned.json --verify",
            f"apply tuned.json {TINY_CNN} --to ort -o optimized.onnx",
        ],
    )
    def test_commands_that_need_it(self, command: str, bare: Environment, folder: Path) -> None:
        """They say so before they read the model, which is not one."""
        before = sorted(path.name for path in folder.iterdir())
        done = bare.ortune(*command.split(), cwd=folder)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "onnxruntime is not installed." in done.stdout + done.stderr
        assert "pip install 'ortune[cpu]'" in done.stdout + done.stderr
        assert "ortune[gpu] (NVIDIA)" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(path.name for path in folder.iterdir()) == before

    @pytest.mark.parametrize(
        ("command", "shown"),
        [
            ("--help", "search"),
            ("--version", "ortune "),
            ("search --help", "--budget"),
            ("apply --help", "--verify"),
            ("knobs", "intra_op_num_threads"),
            ("knobs intra_op_num_threads", "intra_op_num_threads"),
            (f"space {TINY_CNN}", "distinct candidates"),
            ("host", "pip install 'ortune[cpu]'"),
            ("host --json", '"runtime": null'),
            ("apply --list", "triton"),
            ("apply tuned.json --to python", "intra_op_num_threads"),
            ("apply tuned.json --to triton", "intra_op_thread_count"),
            ("merge tuned.json tuned.json -o merged.json", "merged.json"),
        ],
    )
    def test_commands_that_do_not(self, command: str, shown: str, bare: Environment, folder: Path) -> None:
        done = bare.ortune(*command.split(), cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert shown in done.stdout

    def test_a_report_shows_the_history_and_says_what_is_missing(self, bare: Environment, folder: Path) -> None:
        done = bare.ortune("report", "history.jsonl", cwd=folder)
        assert done.returncode == 2
        assert "gate" in done.stdout
        assert "pip install 'ortune[report]'" in done.stderr

    def test_space_says_what_is_missing(self, bare: Environment, folder: Path) -> None:
        assert "onnxruntime is not installed" in bare.ortune("space", TINY_CNN, cwd=folder).stderr
        done = bare.ortune("space", TINY_CNN, "--provider", "cuda", cwd=folder)
        assert done.returncode == 2
        assert "onnxruntime is not installed" in done.stderr

    def test_a_program_of_another_environment_gets_tuned_options(self, bare: Environment, folder: Path) -> None:
        done = bare.ortune("apply", "tuned.json", "--", sys.executable, PROGRAM, TINY_CNN, "by_path", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["intra"] == 1

    @pytest.mark.parametrize(
        "call",
        [
            "search('broken.onnx')",
            "bench('broken.onnx')",
            "gate('broken.onnx', 'broken.onnx')",
            "verify('tuned.json')",
            "create_session('broken.onnx', 'tuned.json')",
            "session_options('tuned.json')",
            "run_options('tuned.json')",
        ],
    )
    def test_python_functions_that_need_it(self, call: str, bare: Environment, folder: Path) -> None:
        code = f"import ortune\ntry:\n    ortune.{call}\nexcept ortune.HostError as error:\n    print(error)"
        done = run([str(bare.python), "-c", code], cwd=folder)
        message, hint = done.stdout.splitlines()
        assert message == "onnxruntime is not installed."
        assert "pip install 'ortune[cpu]'" in hint

    def test_python_functions_that_do_not(self, bare: Environment, folder: Path) -> None:
        code = "import ortune; ortune.install('tuned.json'); print(ortune.read_record('tuned.json').schema)"
        assert run([str(bare.python), "-c", code], cwd=folder).stdout.strip().isdigit()

    def test_the_hint_repairs_it(self, wheel: Path, tmp_path: Path) -> None:
        """ortune is not on PyPI: pip must take the installed one, and add only onnxruntime."""
        environment = Environment(tmp_path / "venv")
        environment.pip("install", wheel)
        before = environment.digests()
        environment.pip("install", "ortune[cpu]")
        after = environment.digests()
        assert [name for name, digest in before.items() if after.get(name) != digest] == []
        done = environment.ortune("bench", TINY_CNN, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def run_step(step: Mapping[str, Any], context: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Run the script of a step of the action as GitHub does, and return its outputs."""
    output = Path(env["RUNNER_TEMP"]) / "output"
    output.write_text("")
    own = {name: context[value.removeprefix("${{ ").removesuffix(" }}")] for name, value in step["env"].items()}
    done = run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={**env, **own, "GITHUB_OUTPUT": str(output)},
        cwd=env["RUNNER_TEMP"],
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split("=", 1) for line in output.read_text().splitlines())


def copy_repository(folder: Path) -> Path:
    """Return a copy of the files that git tracks, as a checkout has them."""
    names = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("runtime", ["cpu", "none"])
def test_the_action_installs_its_own_code(runtime: str, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    checkout = copy_repository(tmp_path / "action")
    version = checkout / "ortune" / "__init__.py"
    version.write_text(version.read_text().replace('__version__ = "', '__version__ = "7.7.'))
    job = Environment(tmp_path / "job")
    job.pip("install", "onnxruntime==1.30.0")
    before = job.digests()
    temp = tmp_path / "temp"
    temp.mkdir()
    env = {"RUNNER_TEMP": str(temp), "GITHUB_ACTION_PATH": str(checkout)}
    env["PATH"] = os.pathsep.join([str(job.folder / "bin"), os.environ["PATH"]])
    args = f"{TINY_CNN} {TINY_CNN} --budget 20s --inconclusive pass"
    context = {"inputs.runtime": runtime, "inputs.args": args}
    for step in action["runs"]["steps"]:
        outputs = run_step(step, context, env)
        context |= {f"steps.{step['id']}.outputs.{name}": value for name, value in outputs.items()}
    (result,) = json.loads(Path(context["steps.gate.outputs.json"]).read_text())
    locked = (ROOT / "requirements" / "cpu.txt").read_text()
    assert result["decision"] in {"pass", "inconclusive"}
    assert result["base"]["runtime"]["ortune"].startswith("7.7.")
    if runtime == "cpu":
        assert f"onnxruntime=={result['base']['runtime']['onnxruntime']} " in locked
    else:
        assert result["base"]["runtime"]["onnxruntime"] == "1.30.0"
    assert Path(context["steps.gate.outputs.junit"]).is_file()
    assert job.digests() == before


def test_the_job_for_gitlab(tmp_path: Path) -> None:
    """It runs in a clone whose origin has the base, and installs ortune from a commit of a repository."""
    job = yaml.safe_load((ROOT / "docs" / "ci" / "gitlab.yml").read_text())["performance"]
    source = copy_repository(tmp_path / "repository")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]
    for folder in (source, project := tmp_path / "origin"):
        folder.mkdir(exist_ok=True)
        if folder is project:
            shutil.copy(TINY_CNN, project / "model.onnx")
            record = json.loads(write_tuned(tmp_path).read_text())
            (project / "tuned.json").write_bytes(msgspec.json.encode(record))
        for command in (["init", "--quiet"], ["add", "--all", "--force"], ["commit", "--quiet", "--message=x"]):
            run([*git, *command], cwd=folder)
    builds = tmp_path / "builds" / "project"
    run([*git, "clone", "--quiet", str(project), str(builds)])
    commit = run(["git", "rev-parse", "HEAD"], cwd=source).stdout.strip()
    script = "\n".join([*job["before_script"], *job["script"]]).replace("--inconclusive", "--budget 20s --inconclusive")
    variables = {"ORTUNE_URL": source.as_uri(), "ORTUNE_COMMIT": commit, "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    variables |= {"CI_PROJECT_NAME": builds.name, "CI_PROJECT_DIR": str(builds)}
    done = run(["bash", "-eo", "pipefail", "-c", script], cwd=builds, env=variables, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads((builds / "gate.json").read_text())
    assert result["decision"] in {"pass", "inconclusive"}
    assert (builds / "gate.xml").is_file()
    assert (builds / "gate.md").is_file()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of pipx and uv."""
    environment = Environment(tmp_path_factory.mktemp("tools") / "venv")
    environment.pip("install", "pipx", "uv")
    return environment.folder / "bin"


class TestTools:
    """The commands of docs/install.md for tools that install into environments of their own."""

    def test_pipx(self, tools: Path, tmp_path: Path) -> None:
        names = {"PIPX_HOME": "home", "PIPX_BIN_DIR": "bin", "PIPX_MAN_DIR": "man"}
        variables = {name: str(tmp_path / folder) for name, folder in names.items()}
        run([str(tools / "pipx"), "install", f"{ROOT}[cpu]"], env=variables, cwd=tmp_path)
        assert run([str(tmp_path / "bin" / "ortune"), "host"]).stdout
        assert (tmp_path / "man" / "man1" / "ortune.1").read_text() == (ROOT / "docs/man/ortune.1").read_text()

    def test_uv_tool(self, tools: Path, tmp_path: Path) -> None:
        names = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin"}
        variables = {name: str(tmp_path / folder) for name, folder in names.items()}
        run([str(tools / "uv"), "tool", "install", f"{ROOT}[cpu]"], env=variables, cwd=tmp_path)
        assert run([str(tmp_path / "bin" / "ortune"), "host"]).stdout
        done = run([str(tools / "uvx"), "--from", f"{ROOT}[cpu]", "ortune", "--version"], env=variables, cwd=tmp_path)
        assert done.stdout.startswith("ortune ")

    def test_uv_project(self, tools: Path, tmp_path: Path) -> None:
        uv = str(tools / "uv")
        run([uv, "init", "--bare", "--python", sys.executable, "program"], cwd=tmp_path)
        folder = tmp_path / "program"
        shutil.copy(TINY_CNN, folder / "model.onnx")
        run([uv, "add", "onnxruntime"], cwd=folder)
        run([uv, "add", "--dev", str(ROOT)], cwd=folder)
        done = run([uv, "run", "ortune", "bench", "model.onnx"], cwd=folder, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
