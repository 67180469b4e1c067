"""`ortune fleet deploy`: the files run the command on nodes, word for word, and hold no credentials.

In `tests/consumers/test_deploy.py`, the schemas of Kubernetes and shellcheck check them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortune import UsageError
from ortune.cli.node_command import FORMS, read_node_command
from ortune.fleet.deploy import WRITERS, Task, write_task
from ortune.fleet.deploy.labels import CPU_MODEL_LABEL, find_labels
from ortune.fleet.deploy.shell import RUN_IN_CONTAINER
from ortune.fleet_options import RUNS, TARGETS, has_password, parse_labels, parse_volumes
from ortune.host import HostClass
from ortune.sanitize import LOG_COMMAND
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.environments import write_script
from tests.hostile import FRAGMENTS, TEXTS
from tests.hosts import HOSTS, list_files, read_files
from tests.records import ELSEWHERE, ONE_THREAD, make_record, write

GOLDEN = ROOT / "tests" / "data" / "deploy"

CASES = {
    "job": (
        "--target",
        "kubernetes-job",
        "--nodes",
        "8",
        "--cpus",
        "4",
        "--memory",
        "8Gi",
        "--volume",
        "models:/models:ro",
        "--image",
        "registry.example.com/ortune:1",
        "--host-class",
        "RECORD",
        "--node-selector",
        "node.kubernetes.io/instance-type=c7i.4xlarge",
        "--",
        "/models/model.onnx",
        "--clients",
        "4",
        "--budget",
        "20m",
    ),
    "job-grpc": (
        "--target",
        "kubernetes-job",
        "--nodes",
        "2",
        "--cpus",
        "1",
        "--memory",
        "1Gi",
        "--name",
        "a",
        "--deadline",
        "2h",
        "--storage",
        "grpc://proxy:13000",
        "--",
        "model.onnx",
    ),
    "daemonset": (
        "--target",
        "kubernetes-daemonset",
        "--cpus",
        "4",
        "--memory",
        "8Gi",
        "--secret",
        "mine",
        "--volume",
        "shared:/shared",
        "--",
        "/shared/tuned.json",
        "/shared/model.onnx",
    ),
    "slurm": (
        "--target",
        "slurm",
        "--nodes",
        "8",
        "--cpus",
        "16",
        "--constraint",
        "[zen4|zen5]",
        "--storage-file",
        "/home/me/storage url.txt",
        "--",
        "my model's.onnx",
        "--limit",
        "p99<20ms",
    ),
    "slurm-verify": (
        "--target",
        "slurm",
        "--run",
        "verify",
        "--nodes",
        "2",
        "--storage",
        "grpc://proxy:13000",
        "--",
        "tuned.json",
        "model.onnx",
        "--budget",
        "5m",
    ),
    "ssh": ("--target", "ssh", "--storage-file", "/home/me/storage.txt", "--", "my model's.onnx", "--clients", "4"),
}
"""Arguments of `ortune fleet deploy`. RECORD stands for a record of the host class `KNOWN`."""


@functools.cache
def describe(name: str) -> HostClass:
    """Return the class of a host in `tests/data/hosts`."""
    with tempfile.TemporaryDirectory() as folder:
        return HostClass.of(read_files(Path(folder), list_files(HOSTS[name]), HOSTS[name].machine))


KNOWN = describe("zen4-guest")


def deploy(*arguments: str, cwd: Path, returncode: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `ortune fleet deploy`."""
    if "RECORD" in arguments:
        record = make_record(TINY_CNN, ONE_THREAD, here=False)
        write(msgspec.structs.replace(record, host=KNOWN), cwd / "RECORD")
    done = run_ortune("fleet", "deploy", *arguments, cwd=cwd, columns=300)
    assert done.returncode == returncode, done.stderr
    assert "Traceback" not in done.stderr
    return done


def read_golden(case: str) -> str:
    """Return what a case prints, as `test_golden` checks it."""
    return (GOLDEN / f"{case}.txt").read_text()


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = deploy(*CASES[case], cwd=tmp_path).stdout
    path = GOLDEN / f"{case}.txt"
    if request.config.getoption("--golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


# Programs that stand for ortune, srun and ssh.

ORTUNE = """import json, os, sys
variables = {name: text for name, text in os.environ.items() if name.startswith("ORTUNE_")}
with open(os.environ["CALLS"], "a") as file:
    print(json.dumps([sys.argv[1:], variables]), file=file)
sys.exit(int(os.environ.get("CODE", "0")))
"""

SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ "$2" != unreachable ] || exit 255
# sshd gives the command to a shell, and passes on none of the variables of the client.
exec env -i PATH="$PATH" CALLS="$CALLS" CODE="$CODE" sh -c "$3"
"""

Call = tuple[list[str], dict[str, str]]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs that stand for ortune and for what starts it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_script(folder / "ortune", ORTUNE)
    for name, text in (("srun", SRUN), ("ssh", SSH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("ORTUNE_STORAGE", "postgresql://of:whoever@starts/it")
    monkeypatch.setenv("CODE", "0")
    for name in ("ORTUNE_TEST_RUN", "ORTUNE_HISTORY", "ORTUNE_PARENT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_on_nodes(target: str, text: str, folder: Path, **variables: str) -> tuple[int, list[Call]]:
    """Run a file as its target does, on one or two nodes.

    Returns:
        The exit code, and the arguments and the variables of each call of ortune.
    """
    script = folder / "script"
    script.write_text(text)
    env = {**os.environ, **variables}
    if target == "slurm":
        command = ["bash", str(script)]
        env |= {"SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "node7"}
    elif target == "ssh":
        command = ["bash", str(script), "me@one", "two"]
    else:
        container = read_container(text)
        command = [expand(word) for word in (*container["command"], *container["args"])]
        del env["ORTUNE_STORAGE"]
        env |= {variable["name"]: expand(variable.get("value", "node7")) for variable in container["env"]}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    calls = folder / "calls"
    found = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
    calls.unlink(missing_ok=True)
    return done.returncode, found


def read_container(text: str) -> dict[str, Any]:
    """Return the container that runs the command."""
    spec = yaml.safe_load(text)["spec"]["template"]["spec"]
    (found,) = spec.get("initContainers") or spec["containers"]
    return dict(found)


def expand(text: str) -> str:
    """Return a text as Kubernetes expands it where no other variable exists."""
    return re.sub(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))", lambda found: "$" if found[1] == "$" else found[0], text)


def find_remote(text: str) -> str:
    """Return the command that a script sends to each host."""
    (word,) = shlex.split(text.partition("\nremote=")[2].partition("\nhosts=")[0])
    return word


def make_task(target: str, words: Sequence[str], **changes: Any) -> Task:
    where = {"storage_file": "/etc/hostname"} if target in {"slurm", "ssh"} else {"secret": "s"}
    fields = {"name": "a", "command": ("ortune", "search"), "n_nodes": 2, "cpus": 2, "memory": "1Gi", **where}
    return Task(**{**fields, "arguments": words, **changes})


HOSTILE = (
    "a b",
    "it's",
    '"',
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME",
    "$$",
    "a;b",
    "*",
    "#",
    "!",
    "\\",
    "~",
    "é 漢",
)


class TestOnNodes:
    @pytest.mark.parametrize("target", TARGETS)
    def test_the_command_gets_each_word(self, target: str, nodes: Path) -> None:
        words = (*HOSTILE, *(() if target in {"slurm", "ssh"} else ("a\nb", "\t", "\x1b[31m", "\u202e")))
        text = write_task(target, make_task(target, words, record=words[2]))
        code, calls = run_on_nodes(target, text, nodes)
        assert code == 0
        assert len(calls) == (2 if target == "ssh" else 1)
        for arguments, _ in calls:
            name, output, *others = arguments
            assert (name, others) == ("search", [*words])
            assert output.startswith("--output=")
        assert not (nodes / "pwned").exists()

    @pytest.mark.parametrize("target", TARGETS)
    def test_the_storage_comes_from_a_file(self, target: str, nodes: Path) -> None:
        """Even if whoever starts it has another one in the environment."""
        _, calls = run_on_nodes(target, write_task(target, make_task(target, ["m"])), nodes)
        for _, variables in calls:
            expected = {"ORTUNE_STORAGE_FILE": "/etc/hostname"}
            if target.startswith("kubernetes"):
                expected = {"ORTUNE_STORAGE_FILE": "/etc/ortune/storage/url"}
            if target != "ssh":
                expected["ORTUNE_NODE"] = "node7"
            assert variables == expected

    @pytest.mark.parametrize("target", TARGETS)
    def test_a_storage_without_a_password(self, target: str, nodes: Path) -> None:
        url = "grpc://proxy:13000/$(HOME)"
        text = write_task(target, make_task(target, ["m"], storage=url, storage_file="", secret=""))
        _, calls = run_on_nodes(target, text, nodes)
        for _, variables in calls:
            assert variables["ORTUNE_STORAGE"] == url
            assert "ORTUNE_STORAGE_FILE" not in variables

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 0), (2, 2), (3, 0), (130, 130)])
    def test_results_are_no_failures(self, target: str, code: int, expected: int, nodes: Path) -> None:
        text = write_task(target, make_task(target, ["m"]))
        found, calls = run_on_nodes(target, text, nodes, CODE=str(code))
        assert calls
        assert found == (int(expected != 0) if target == "ssh" else expected)

    @pytest.mark.parametrize("target", ["slurm", "ssh"])
    def test_a_missing_file_of_the_storage(self, target: str, nodes: Path) -> None:
        code, calls = run_on_nodes(target, write_task(target, make_task(target, ["m"], storage_file="/nowhere")), nodes)
        assert code in {1, 2}
        assert calls == []

    def test_hosts_over_ssh(self, nodes: Path) -> None:
        script = nodes / "script"
        script.write_text(write_task("ssh", make_task("ssh", ["m"], record="m")))
        done = subprocess.run(
            ["bash", script, "one", "unreachable"], cwd=nodes, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stdout == "one: exit code 0\nunreachable: exit code 255\n"
        assert {path.name for path in nodes.glob("a-*.log")} == {"a-one.log", "a-unreachable.log"}
        ((arguments, _),) = (json.loads(line) for line in (nodes / "calls").read_text().splitlines())
        assert arguments == ["search", f"--output=m.{os.uname().nodename}.ortune.json", "m"]
        assert subprocess.run(["bash", script], capture_output=True, check=False).returncode == 2

    @pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
    def test_a_pod_that_is_stopped_ends_ortune(self, shell: str) -> None:
        """ortune ends after SIGTERM, and its exit code is kept."""
        if not shutil.which(shell):
            pytest.skip(f"{shell} is not installed")
        code = (
            "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(77)); "
            "print('ready', flush=True); time.sleep(100)"
        )
        command = [*((shell, "sh") if shell == "busybox" else (shell,)), "-c", RUN_IN_CONTAINER, "ortune"]
        process = subprocess.Popen([*command, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() in {77, 128 + signal.SIGTERM}
        assert process.stdout.read() == ""  # ends when ortune has ended
        process.stdout.close()


class TestFiles:
    @pytest.mark.parametrize("target", ["kubernetes-job", "kubernetes-daemonset"])
    @settings(max_examples=25)
    @given(words=st.lists(TEXTS, min_size=1, max_size=4), url=TEXTS)
    @example(words=["".join(FRAGMENTS), "\n".join(FRAGMENTS)], url=" ".join(FRAGMENTS))
    def test_words_in_yaml(self, target: str, words: list[str], url: str) -> None:
        storage = f"grpc://{url}"
        container = read_container(write_task(target, make_task(target, words, storage=storage)))
        assert [expand(word) for word in container["args"]] == ["ortune", "search", *words]
        assert [expand(word) for word in container["command"]] == ["sh", "-c", RUN_IN_CONTAINER, "ortune"]
        assert expand(container["env"][1]["value"]) == storage

    @pytest.mark.parametrize("target", ["slurm", "ssh"])
    @given(word=TEXTS)
    @example(word="\n#SBATCH --nodes=100")
    @example(word="'; touch pwned; '")
    @example(word="it's ##[error]x ###vso[task.complete]y")
    def test_words_in_shells(self, target: str, word: str) -> None:
        """They are lines of one command, or refused."""
        if not word.isprintable():
            with pytest.raises(UsageError, match="not printable"):
                write_task(target, make_task(target, [word]))
            return
        text = write_task(target, make_task(target, [word]))
        assert not LOG_COMMAND.search(text)
        harmless = write_task(target, make_task(target, ["MARK"]))
        if target == "ssh":
            text, harmless = (find_remote(script) for script in (text, harmless))
        lines = zip(text.splitlines(), harmless.splitlines(), strict=True)
        ((line, other),) = ((one, other) for one, other in lines if one != other)
        assert shlex.split(line) == [word if part == "MARK" else part for part in shlex.split(other)]

    @pytest.mark.parametrize("target", TARGETS)
    def test_bytes_that_are_no_text(self, target: str) -> None:
        with pytest.raises(UsageError, match="bytes that are not text"):
            write_task(target, make_task(target, ["a\udc80"]))

    def test_directives_of_slurm_come_before_the_first_command(self) -> None:
        lines = read_golden("slurm").splitlines()
        first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
        assert [n for n, line in enumerate(lines) if line.startswith("#SBATCH")] == [*range(4, first - 1)]
        for line in lines[4 : first - 1]:
            assert re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line)

    def test_pods_have_the_class_guaranteed(self) -> None:
        for case in ("job", "daemonset"):
            spec = yaml.safe_load(read_golden(case))["spec"]["template"]["spec"]
            for container in (*spec["containers"], *spec.get("initContainers", ())):
                assert container["resources"]["requests"] == container["resources"]["limits"]
            assert read_container(read_golden(case))["resources"]["limits"]["cpu"] == "4"

    def test_the_deadline_follows_from_the_budget(self) -> None:
        for case, expected in (("job", 2 * 1200 + 900), ("job-grpc", 7200)):
            pod = yaml.safe_load(read_golden(case))["spec"]["template"]["spec"]
            assert pod["activeDeadlineSeconds"] == expected
        assert "#SBATCH --time=60\n" in read_golden("slurm")
        assert "#SBATCH --time=25\n" in read_golden("slurm-verify")

    def test_the_quota_of_the_host_class(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, ONE_THREAD, here=False)
        write(msgspec.structs.replace(record, host=msgspec.structs.replace(KNOWN, cpu_quota=3.0)), tmp_path / "r.json")
        options = ("--target", "kubernetes-daemonset", "--memory", "1Gi", "--host-class", "r.json")
        text = deploy(*options, "--", "r.json", cwd=tmp_path).stdout
        assert read_container(text)["resources"]["limits"]["cpu"] == "3"

    def test_an_existing_file_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "job.sh"
        deploy("-o", "job.sh", *CASES["slurm"], cwd=tmp_path)
        assert path.read_text() == read_golden("slurm")
        path.write_text("mine")
        assert "already exists" in deploy("-o", "job.sh", *CASES["slurm"], cwd=tmp_path, returncode=2).stderr
        assert path.read_text() == "mine"


class TestLabels:
    """Node Feature Discovery's labels, for hosts that are described in `tests/data/hosts`."""

    @pytest.mark.parametrize(
        ("name", "model"),
        [
            ("zen4-guest", ("AMD", "25", "17")),
            ("zen5-guest", ("AMD", "26", "2")),
            ("icelake", ("Intel", "6", "106")),
            ("cascadelake", ("Intel", "6", "85")),
        ],
    )
    def test_x86(self, name: str, model: tuple[str, str, str]) -> None:
        found = find_labels(describe(name))
        values = tuple(found.labels[f"{CPU_MODEL_LABEL}.{key}"] for key in ("vendor_id", "family", "id"))
        assert values == model
        assert found.labels["kubernetes.io/arch"] == "amd64"
        assert any("Cascade Lake" in note for note in found.notes) == (name == "cascadelake")

    @pytest.mark.parametrize("name", ["graviton3", "rk3588"])
    def test_arm(self, name: str) -> None:
        found = find_labels(describe(name))
        assert found.labels == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}
        assert any("no label" in note for note in found.notes)

    def test_unknown_cpus(self) -> None:
        assert find_labels(ELSEWHERE).labels == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        hostile = msgspec.structs.replace(
            KNOWN,
            machine="x: y\n",
            cpu=msgspec.structs.replace(KNOWN.cpu, family='25"\nx: y'),  # type: ignore[type-var]
        )
        assert find_labels(hostile).labels == {"kubernetes.io/os": "linux"}

    def test_nodes_run_linux(self) -> None:
        with pytest.raises(UsageError, match="do not run Linux"):
            find_labels(msgspec.structs.replace(KNOWN, system="Darwin"))

    def test_given_labels_win(self, tmp_path: Path) -> None:
        options = [*CASES["job"]]
        options[options.index("node.kubernetes.io/instance-type=c7i.4xlarge")] = f"{CPU_MODEL_LABEL}.id=18"
        spec = yaml.safe_load(deploy(*options, cwd=tmp_path).stdout)["spec"]["template"]["spec"]
        assert spec["nodeSelector"][f"{CPU_MODEL_LABEL}.id"] == "18"


class TestCredentials:
    URL = "postgresql://u:12/hunter22@h/d"

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://u:hunter22@h/d",
            "postgresql://u:12/hunter22@h/d",
            "postgresql+psycopg://u:hunter22@h/d",
            "mysql://:hunter22@h",
            "postgresql://h/d?user=u&password=hunter22",
            "postgresql:///d?host=h&PASSWORD=hunter22",
            "postgresql://u:hunter22@h:5432,u:hunter22@i/d",
            "postgresql://u@h/d?sslpassword=hunter22",
            "mysql://u@h/d?passphrase=hunter22",
        ],
    )
    def test_a_password_is_refused_and_not_shown(self, url: str, tmp_path: Path) -> None:
        self.check_refused(("--storage", url, "--", "m.onnx"), tmp_path)

    @pytest.mark.parametrize("after", [("m.onnx", "--storage", URL), ("m.onnx", f"--storage={URL}"), (URL,)])
    def test_a_password_in_the_command_is_refused(self, after: tuple[str, ...], tmp_path: Path) -> None:
        self.check_refused(("--storage-file", "x", "--", *after), tmp_path)

    def check_refused(self, arguments: tuple[str, ...], folder: Path) -> None:
        done = deploy("--target", "slurm", "--nodes", "2", *arguments, cwd=folder, returncode=2)
        assert "password" in done.stderr
        assert "hunter22" not in done.stdout + done.stderr

    @pytest.mark.parametrize(
        "text", ["grpc://h:13000", "postgresql://u@h:5432/d", "postgresql://h:5432/d", "p99<20ms", "/a:b@c"]
    )
    def test_what_is_no_password(self, text: str) -> None:
        assert not has_password(text)


class TestOptions:
    SLURM = ("--target", "slurm", "--nodes", "2", "--storage-file", "x")
    JOB = ("--target", "kubernetes-job", "--nodes", "2", "--cpus", "2", "--memory", "1Gi")

    def test_the_declarations_name_what_there_is(self) -> None:
        assert set(TARGETS) == set(WRITERS)
        assert set(RUNS) == set(FORMS)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((*SLURM, "--", "m.onnx", "--client", "4"), "Did you mean --clients?"),
            ((*SLURM, "--", "m.onnx", "--clients", "no"), "--clients no: is not a whole number"),
            ((*SLURM, "--", "m.onnx", "--clients"), "requires an argument"),
            ((*SLURM, "--", "--clients", "4"), "Missing argument"),
            ((*SLURM, "--", "m.onnx", "--resume"), "--resume must not follow --"),
            ((*SLURM, "--", "m.onnx", "-o", "x.json"), "--output must not follow --"),
            ((*SLURM, "--", "m.onnx", "--tune", "intra_threads=1"), "there is no such knob"),
            ((*SLURM, "--", "--clients", "2", "--", "python", "app.py"), "second --"),
            ((*SLURM, "--run", "verify", "--", "r.json", "--buget", "5m"), "Did you mean --budget?"),
            ((*SLURM, "m.onnx", "--clients", "4"), "--clients: ortune fleet deploy has no such option"),
            ((*SLURM, "--memory", "1Gi", "--", "m.onnx"), "--memory has no effect for slurm"),
            ((*SLURM, "--storage", "grpc://h:1", "--", "m.onnx"), "contradict each other"),
            ((*SLURM[:4], "--storage", "nowhere", "--", "m.onnx"), "neither a URL nor the path of a journal"),
            (("--target", "slurm", "--nodes", "2", "--", "m.onnx"), "--storage-file is missing"),
            (("--target", "slurm", "--storage-file", "x", "--", "m.onnx"), "--nodes is missing"),
            (("--target", "ssh", "--storage-file", "x", "--nodes", "2", "--", "m.onnx"), "--nodes has no effect"),
            (("--target", "helm", "--", "m.onnx"), "helm: is not one of the choices"),
            ((*JOB[:4], "--memory", "1Gi", "--", "m.onnx"), "--cpus is missing"),
            ((*JOB[:6], "--", "m.onnx"), "--memory is missing"),
            ((*JOB, "--storage-file", "x", "--", "m.onnx"), "--storage-file has no effect"),
            ((*JOB, "--cpus", "1.5", "--", "m.onnx"), "1.5: is not a whole number"),
            ((*JOB, "--memory", "1GB", "--", "m.onnx"), "1GB: is not an amount of memory"),
            ((*JOB, "--name", "A_b", "--", "m.onnx"), "A_b: is not a name"),
            ((*JOB, "--name", "a" * 53, "--", "m.onnx"), "is not a name of at most 52"),
            ((*JOB, "--image", "a b", "--", "m.onnx"), "a b: is not the name of an image"),
            ((*JOB, "--secret", "a: b", "--", "m.onnx"), "a: b: is not a name"),
            ((*JOB, "--volume", "models", "--", "m.onnx"), "is not a claim and an absolute path"),
            ((*JOB, "--node-selector", "a b=c", "--", "m.onnx"), "is not a label"),
            ((*JOB, "--host-class", "nowhere.json", "--", "m.onnx"), "nowhere.json"),
            ((*SLURM, "--constraint", "a b", "--", "m.onnx"), "is not a list of features"),
        ],
    )
    def test_mistakes(self, arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
        done = deploy(*arguments, cwd=tmp_path, returncode=2)
        assert message in done.stderr
        assert done.stdout == ""

    def test_help_of_the_command(self, tmp_path: Path) -> None:
        assert "Usage: ortune search" in deploy(*self.SLURM, "--", "--help", cwd=tmp_path).stdout

    def test_an_unknown_command_of_the_group(self, tmp_path: Path) -> None:
        done = run_ortune("fleet", "deploi", cwd=tmp_path)
        assert done.returncode == 2
        assert "Did you mean fleet deploy?" in done.stderr

    def test_a_model_whose_name_begins_with_a_hyphen(self) -> None:
        assert read_node_command("search", ["--", "-m.onnx"]).request.model == "-m.onnx"

    def test_volumes_and_labels(self) -> None:
        assert parse_volumes(["a:/b:ro", "c:/d"]) == (("a", "/b", True), ("c", "/d", False))
        assert parse_labels(["a/b=", "c=d"]) == {"a/b": "", "c": "d"}
        for text in ("a:/b:rw", "a:b", ":/b", "a:/b\n"):
            with pytest.raises(UsageError):
                parse_volumes([text])
