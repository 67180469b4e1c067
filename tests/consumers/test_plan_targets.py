"""Exports of plans in the systems that they are for: servers start, and have the processes, callers, settings and CPUs.

The servers are started with the commands of the exports; only the names of programs and the application are replaced.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from ortune import Config, Deployment, Export
from ortune.export import export, render
from ortune.host import read_host
from ortune.planning.files import write_plan
from ortune.planning.pick import pick_deployment
from tests.conftest import TINY_CNN
from tests.consumers.running import need, program, run
from tests.consumers.test_programs import READY_S, ask, check_tuned, free_port, processes_of, read_log, serving, stop
from tests.environments import write_command
from tests.plans import DEPLOYMENTS, QUIET, make_plan, pick
from tests.records import ELSEWHERE

pytestmark = pytest.mark.consumers

HERE = Path(__file__).parent

CASES = ["processes", "callers", "default", "pinned"]


def write_here(target: str, case: str, folder: Path, name: str = "") -> Export:
    """Write an export of a plan for this host, and the plan, into a folder."""
    usable = {cpu for core in read_host(memory=False).usable_cores for cpu in core}
    if not usable.issuperset(itertools.chain(*DEPLOYMENTS[case].cpus)):
        pytest.skip("this process may not use these CPUs")
    plan = make_plan(DEPLOYMENTS[case], replicas=1)
    write_plan(plan, folder / "plan.json")
    picked = pick_deployment(plan)
    output = folder / name if name else None
    return export(target, picked.record, str(TINY_CNN), str(folder / "plan.json"), output, picked)


def replace_programs(command: str, log: Path, **words: str) -> list[str]:
    """Return the words of a command, which starts programs of this environment and reports the sessions."""
    found = shlex.split(command)
    place = found.index("--")
    assert found[:2] == ["ortune", "apply"]
    before = [sys.executable, "-P", "-m", "ortune", *found[1:place], "--explain-json", str(log), "--"]
    after = [program(word) if word in {"gunicorn", "uvicorn"} else words.get(word, word) for word in found[place + 1 :]]
    return before + after


def ask_all(ports: list[int], n_processes: int, callers: int) -> dict[int, dict[str, Any]]:
    """Return the last answer of each process, when all have answered and one has served as many at a time as it can."""
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + READY_S
    with ThreadPoolExecutor(8 * n_processes) as pool:
        while time.monotonic() < deadline:
            for answer in pool.map(ask, ports * (16 * n_processes)):
                found[answer["pid"]] = answer
            if len(found) >= n_processes and max(reply["most"] for reply in found.values()) >= callers:
                break
    return found


def check_answers(answers: dict[int, dict[str, Any]], deployment: Deployment, log: Path) -> None:
    """Check that the processes are those of the deployment, and have its settings."""
    assert len(answers) == deployment.processes
    config = deployment.config
    threads = config.session_options.get("intra_op_num_threads", 0)
    assert {answer["intra"] for answer in answers.values()} == {threads}
    if config.session_config:
        assert {answer["spinning"] for answer in answers.values()} == {"0"}
    # No process serves more requests at a time than the deployment has callers, and one has served as many.
    assert max(answer["most"] for answer in answers.values()) == deployment.clients
    if deployment.pinned:
        assert sorted(answer["cpus"] for answer in answers.values()) == sorted(map(list, deployment.cpus))
    sessions = [session for session in read_log(log) if session["pid"] in answers]
    assert {session["pid"] for session in sessions} == set(answers)
    for session in sessions:
        check_tuned(session, config)


class TestGunicorn:
    @pytest.mark.parametrize("case", CASES)
    def test_the_configuration(self, case: str, tmp_path: Path) -> None:
        need("gunicorn")
        done = write_here("gunicorn", case, tmp_path, "gunicorn.conf.py")
        (line,) = re.findall(r"and start: (.*)$", done.text, re.MULTILINE)
        self.check(line, case, tmp_path)

    @pytest.mark.parametrize("case", ["callers", "default"])
    def test_the_options(self, case: str, tmp_path: Path) -> None:
        """The line that needs no file has the same effect."""
        need("gunicorn")
        done = write_here("gunicorn", case, tmp_path)
        (line,) = re.findall(r"Without this file: (.*)$", done.text, re.MULTILINE)
        self.check(line, case, tmp_path)

    def check(self, line: str, case: str, folder: Path) -> None:
        port, log, deployment = free_port(), folder / "log", DEPLOYMENTS[case]
        config = {"--config=gunicorn.conf.py": f"--config={folder}/gunicorn.conf.py", "app:app": "wsgi_app:app"}
        command = replace_programs(line, log, **config)
        command += [f"--chdir={HERE}", f"--bind=127.0.0.1:{port}"]
        with serving(command, port, folder / "output", MODEL=str(TINY_CNN)) as server:
            answers = ask_all([port], deployment.processes, deployment.clients)
            # One more process starts the workers.
            assert len(processes_of(server)) == deployment.processes + 1
            check_answers(answers, deployment, log)
            stop(server)


class TestUvicorn:
    @pytest.mark.parametrize("case", CASES)
    def test_the_script(self, case: str, tmp_path: Path) -> None:
        need("uvicorn")
        done = write_here("uvicorn", case, tmp_path)
        lines = [line for line in done.text.splitlines() if line and not line.startswith("#")]
        deployment, log = DEPLOYMENTS[case], tmp_path / "log"
        ports = [free_port() for _ in range(deployment.processes if deployment.pinned else 1)]
        script = []
        for line in lines:
            command = line.removesuffix(" &")
            if not command.startswith("ortune"):
                script.append(line)
                continue
            words = replace_programs(command, log, **{"app:app": "pool_app:app"})
            words = [word for word in words if not word.startswith("--port=")]
            port = ports[len(script)] if deployment.pinned else ports[0]
            end = " &" if line.endswith(" &") else ""
            script.append(shlex.join([*words, f"--app-dir={HERE}", f"--port={port}", "--lifespan=off"]) + end)
        variables = {"MODEL": str(TINY_CNN), "CALLERS": str(deployment.clients)}
        with serving(["bash", "-c", "\n".join(script)], ports[-1], tmp_path / "output", **variables):
            answers = ask_all(ports, deployment.processes, deployment.clients)
            check_answers(answers, deployment, log)


class TestTriton:
    def parse(self, text: str) -> Any:
        need("tritonclient.grpc")
        need("grpc")
        from google.protobuf import text_format
        from tritonclient.grpc.model_config_pb2 import ModelConfig

        return text_format.Parse('name: "m"\n' + text, ModelConfig())

    @pytest.mark.parametrize("case", DEPLOYMENTS)
    def test_instances_and_batches(self, case: str) -> None:
        picked, deployment = pick(DEPLOYMENTS[case]), DEPLOYMENTS[case]
        done = render("triton", picked.record, "m.onnx", "plan.json", None, picked)
        parsed = self.parse(done.text)
        kinds = {type(parsed.instance_group[0]).Kind.Name(group.kind) for group in parsed.instance_group}
        assert kinds == {"KIND_CPU"}
        assert sum(group.count for group in parsed.instance_group) == deployment.n_callers
        policies = [group.host_policy for group in parsed.instance_group if group.host_policy]
        assert all(f"--host-policy={policy},cpu-cores=" in done.text for policy in policies)
        if deployment.pinned:
            assert len(set(policies)) == deployment.processes
        assert parsed.HasField("dynamic_batching") == bool(deployment.batching)
        if deployment.batching:
            assert parsed.max_batch_size == deployment.batching.max_batch
            assert parsed.dynamic_batching.max_queue_delay_microseconds == deployment.batching.max_delay_us
        if deployment.config.batch > 1:
            assert parsed.max_batch_size == deployment.config.batch


class TestKubernetes:
    @pytest.mark.parametrize("case", DEPLOYMENTS)
    def test_the_schemas_accept_it(self, case: str) -> None:
        """The schemas of the newest version, and of one that most clusters have."""
        need("kubernetes_validate")
        import kubernetes_validate

        picked = pick(DEPLOYMENTS[case])
        text = render("kubernetes", picked.record, "m.onnx", "plan.json", None, picked).text
        manifests = list(yaml.safe_load_all(text))
        # At the planned rate of the batches, all CPUs are busy, which does not show an overload.
        autoscalers = [] if case == "batch" else ["HorizontalPodAutoscaler"]
        assert [manifest["kind"] for manifest in manifests] == ["Deployment", "Service", *autoscalers]
        for version in (kubernetes_validate.latest_version(), "1.28"):
            for manifest in manifests:
                kubernetes_validate.validate(manifest, version, strict=True)

    def test_the_schemas_are_strict(self) -> None:
        need("kubernetes_validate")
        import kubernetes_validate

        broken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "m"}, "spec": {"port": 80}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, "1.28", strict=True)


class TestCompose:
    @pytest.mark.parametrize("case", DEPLOYMENTS)
    @pytest.mark.parametrize("quota", [None, 1.5])
    def test_the_schema_accepts_it(self, case: str, quota: float | None, tmp_path: Path) -> None:
        need("check_jsonschema")
        changes: dict[str, Any] = {}
        if quota is not None:
            changes["host"] = msgspec.structs.replace(ELSEWHERE, cpu_quota=quota)
        picked = pick(DEPLOYMENTS[case], **changes)
        path = tmp_path / "compose.yaml"
        path.write_text(render("compose", picked.record, "m.onnx", "plan.json", None, picked).text)
        done = self.check(path)
        assert done.returncode == 0, done.stdout
        path.write_text(path.read_text() + "    memory_limit: 5m\n")
        assert self.check(path).returncode == 1

    def check(self, path: Path) -> Any:
        return run([program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path])


class TestSystemd:
    @pytest.mark.parametrize("case", CASES)
    def test_systemd_accepts_it(self, case: str, tmp_path: Path) -> None:
        """`systemd-analyze verify` reports unknown settings, sections and values, and programs that are missing."""
        if not shutil.which("systemd-analyze"):
            pytest.skip("systemd-analyze is not installed")
        name = "model@.service" if DEPLOYMENTS[case].pinned else "model.service"
        done = write_here("systemd", case, tmp_path, name)
        command = write_command(tmp_path / "ortune", "-P", "-m", "ortune")
        text = done.text.replace("/srv/app/.venv/bin/ortune", str(command)).replace("/srv/app", str(tmp_path))
        assert self.check(tmp_path, name, text) == ""
        assert "Unknown key" in self.check(tmp_path, name, text.replace("MemoryLow=", "MemoryLeast="))

    def check(self, folder: Path, name: str, text: str) -> str:
        (folder / name).write_text(text)
        instance = folder / name.replace("@", "@1")
        if not instance.exists():
            instance.symlink_to(folder / name)
        done = run(["systemd-analyze", "verify", "--man=no", instance])
        return "\n".join(line for line in done.stderr.splitlines() if str(folder) in line or "model" in line)


def test_settings_differ_from_defaults() -> None:
    """Otherwise, the tests of servers would not show that settings are applied."""
    assert QUIET.session_options["intra_op_num_threads"] != Config().session_options.get("intra_op_num_threads", 0)
