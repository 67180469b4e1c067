"""Every command in the documentation runs, or is listed in docs/commands.toml with the reason why tests do not run it.

Commands that measure a model do so on a simulated host. The others run as they are, with an example model and program.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest

from docs.commands import Command, check_call, find_calls, find_commands, find_pages, read_rules
from ortune import Speedup, UsageError
from ortune.planning.files import write_plan
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.environments import write_command
from tests.metrics import make_rollout, write_metrics
from tests.plans import DEPLOYMENTS, make_plan
from tests.records import ONE_THREAD, make_local_record, write
from tests.test_host_plan_apply import make_host_plan

RULES = read_rules()
COMMANDS = {page.relative_to(ROOT).as_posix(): [*find_commands(page, RULES)] for page in find_pages()}


def choose_commands(name: Callable[[str], str]) -> dict[str, list[Command]]:
    """Return the commands to run, by page: of commands with the same name, the first."""
    chosen: dict[str, list[Command]] = {}
    seen: set[str] = set()
    for page, commands in COMMANDS.items():
        for command in commands:
            if command.rule is None and name(command.text) not in seen:
                seen.add(name(command.text))
                chosen.setdefault(page, []).append(command)
    return chosen


def name_kind(text: str) -> str:
    """Return a command without what hardly changes how it runs: which model and record, how many, how it is shown."""
    kind = re.sub(r"\S+\.onnx\b", "MODEL", text)
    kind = re.sub(r"(?<=apply )\S+\.json(?= )|\b(old|new|tuned)\.json\b", "RECORD", kind)
    kind = re.sub(r" -o \S+| --explain\b| --json\b| --budget \S+", "", kind)
    return re.sub(r"\d+", "N", kind)


ALL = choose_commands(str)

SHOWN_BY_GOLDENS = ("ortune plan model.onnx --slo",)
"""Starts of commands that take many seconds. Of each, a golden runs one."""

RUN = {
    page: [command for command in commands if not command.text.startswith(SHOWN_BY_GOLDENS)]
    for page, commands in choose_commands(name_kind).items()
}

FASTER = {"profile": ("--runs", "20"), "search": ("--trials", "8")}
"""Options that tests add to commands, to searches on a simulated host only."""

SHORTER = {"examples/two_processes.py": ("--seconds", "0.1")}
"""Options that tests add to programs, which would run for seconds."""

MEASURING = ("search", "bench", "gate", "plan", "apply")
"""Commands that run on a simulated host, unless they run a program."""

MODELS = (
    "model.onnx",
    "main/model.onnx",
    "base/model.onnx",
    "head/model.onnx",
    "models/tiny_cnn.onnx",
    "squeezenet.onnx",
    "a.onnx",
    "b.onnx",
    "encoder.onnx",
)

RECORDS = (
    "tuned",
    "old",
    "new",
    "laptop",
    "server",
    "server-8-clients",
    "container",
    "bundle",
    "python.ortune",
    "run",
    "model.ortune",
    "tiny_cnn.ortune",
)
"""Records that commands read. Some commands write one of them."""

GAIN = Speedup(estimate=1.9, low=1.8, high=2.0, confidence=0.95, n_pairs=64, n_launches=8)

GATES = """
[gate]
budget = "20s"
[gate.detector]
base = "main/model.onnx"
head = "model.onnx"
"""

PROGRAM = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
for _ in range(3):
    session.run(None, {"image": numpy.ones((1, 3, 32, 32), numpy.float32)})
"""


@pytest.fixture
def folder(shared_folder: Path, tmp_path: Path) -> Path:
    """A folder of its own for each test, with the files that the commands of the documentation name."""
    return shutil.copytree(shared_folder, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder for tests that change nothing. It takes seconds to make."""
    folder = tmp_path_factory.mktemp("documented")
    # Records and plans name their models relative to the folder.
    with contextlib.chdir(folder):
        fill(Path())
    return folder


def fill(folder: Path) -> None:
    """Write the files that the commands of the documentation name."""
    for name in MODELS:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(TINY_CNN, folder / name)
    record = make_local_record(folder / "model.onnx", ONE_THREAD)
    # The gain of one thread on the simulated host is 2.
    evidence = msgspec.structs.replace(record.evidence, speedup=GAIN)
    for name in RECORDS:
        write(msgspec.structs.replace(record, evidence=evidence), folder / f"{name}.json")
    for name in ("main", "base", "head"):
        shutil.copy(folder / "tuned.json", folder / name / "tuned.json")
    for name in ("app.py", "server.py"):
        (folder / name).write_text(PROGRAM)
    plan = make_plan(DEPLOYMENTS["processes"], folder / "model.onnx")
    write_plan(plan, folder / "plan.json")
    other = onnx.load(folder / "b.onnx")
    other.doc_string = "another model"
    onnx.save(other, folder / "b.onnx")
    write_plan(make_host_plan([folder / "a.onnx", folder / "b.onnx"]), folder / "host.json")
    write_metrics(folder / "metrics", *make_rollout(0.8, luck=0.01))
    (folder / "lengths.txt").write_text("8\n29\n256\n")
    for place in (folder, folder / "base"):
        (place / "ortune.toml").write_text(GATES)
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "new" / "bin").mkdir(parents=True)
    write_command(folder / "new" / "bin" / "python")


@pytest.mark.parametrize("page", RUN)
def test_commands_run(page: str, folder: Path) -> None:
    """One of each kind: all others are checked to be legal."""
    check_commands(page, RUN[page], folder)


@pytest.mark.long
@pytest.mark.parametrize("page", ALL)
def test_all_commands_run(page: str, folder: Path) -> None:
    check_commands(page, ALL[page], folder)


def check_commands(page: str, commands: list[Command], folder: Path) -> None:
    """Run commands in the order of the page: one may need the files of an earlier one."""
    for command in commands:
        done = run(command, folder)
        assert done.returncode == 0, f"{page}: {command.text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def run(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command.text)
    for program, options in SHORTER.items():
        words += options if program in words else ()
    if words[0] == "ortune":
        simulate = words[1] in MEASURING and "--" not in words
        faster = FASTER.get(words[1], ()) if simulate or words[1] not in MEASURING else ()
        return run_ortune(*words[1:], *faster, cwd=folder, simulate=simulate)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("page", COMMANDS)
def test_commands_are_legal(page: str, shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are not run."""
    monkeypatch.chdir(shared_folder)
    for command in COMMANDS[page]:
        for call in find_calls(command.text):
            try:
                check_call(call)
            except UsageError as error:
                pytest.fail(f"{page}, line {command.line}: {command.text}\n{error}")


@pytest.mark.parametrize(
    "text",
    [
        "ortune find model.onnx",
        "ortune search model.onnx --client 4",
        "docker run image ortune search model.onnx --budget soon",
        "ortune search --url http://127.0.0.1/ --rates 5/s -- python app.py",
        "ortune apply tuned.json --explains -- python app.py",
        "ortune-apply tuned.json --verify-all -- python app.py",
        "ortune gate --all --only",
    ],
)
def test_what_is_not_legal_is_noticed(text: str) -> None:
    (call,) = find_calls(text)
    with pytest.raises(UsageError):
        check_call(call)


def test_every_rule_is_needed() -> None:
    used = {command.rule for commands in COMMANDS.values() for command in commands}
    assert [rule.start for rule in RULES["not_run"] if rule not in used] == []
    pages = "\n".join(page.read_text() for page in find_pages())
    assert [rule.start for rule in RULES["output"] if not re.search(rf"^ *{rule.start}", pages, re.MULTILINE)] == []
