"""Exports of plans for BentoML: the service that is started has the processes, callers, settings and CPUs."""

from __future__ import annotations

import io
import itertools
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortune import Config
from ortune.export import render
from ortune.host import read_host
from ortune.planning.pick import pick_deployment
from tests.conftest import TINY_CNN
from tests.consumers.running import need, program
from tests.consumers.test_programs import READY_S, free_port, serving
from tests.plans import DEPLOYMENTS, make_plan
from tests.records import make_record

pytestmark = pytest.mark.consumers

IMAGE = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)

WATCH = """

import json
import os
import threading
import time

own = create_session


class Watched:
    def __init__(self):
        self.session, self.lock, self.running = own(), threading.Lock(), 0

    def get_outputs(self):
        return self.session.get_outputs()

    def run(self, *arguments):
        with self.lock:
            self.running += 1
            running = self.running
        time.sleep(0.05)
        outputs = self.session.run(*arguments)
        options = self.session.get_session_options()
        try:
            spinning = options.get_session_config_entry("session.intra_op.allow_spinning")
        except RuntimeError:
            spinning = None
        answer = {
            "pid": os.getpid(),
            "running": running,
            "cpus": sorted(os.sched_getaffinity(0)),
            "intra_op_num_threads": options.intra_op_num_threads,
            "spinning": spinning,
            "variable": os.environ.get("OMP_PLACES"),
        }
        with self.lock:
            self.running -= 1
        with open(os.environ["LOG"], "a") as log:
            log.write(json.dumps(answer) + "\\n")
        return outputs


create_session = Watched
"""
"""Added to the module: sessions note what each call finds."""


def ask(port: int) -> Any:
    file = io.BytesIO()
    np.savez(file, image=IMAGE)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predict", file.getvalue(), {"Content-Type": "application/octet-stream"}
    )
    with (
        urllib.request.urlopen(request, timeout=READY_S) as answer,
        np.load(io.BytesIO(answer.read())) as arrays,
    ):
        return arrays["probabilities"]


def serve(text: str, n_processes: int, callers: int, folder: Path) -> list[dict[str, Any]]:
    """Start a service, and return what its calls found until each process has answered, one with all of its callers."""
    need("bentoml")
    (folder / "service.py").write_text(text + WATCH)
    port, log = free_port(), folder / "log"
    command = [program("bentoml"), "serve", "service:Model", f"--port={port}", f"--working-dir={folder}"]
    expected = onnxruntime.InferenceSession(str(TINY_CNN), providers=["CPUExecutionProvider"]).run(
        None, {"image": IMAGE}
    )
    calls: list[dict[str, Any]] = []
    with (
        serving(command, port, folder / "output", LOG=str(log), BENTOML_DO_NOT_TRACK="True"),
        ThreadPoolExecutor(8 * n_processes) as pool,
    ):
        for _ in range(20):
            try:
                answers = list(pool.map(ask, [port] * (16 * n_processes)))
            except urllib.error.URLError as error:
                pytest.fail(f"{error}: {(folder / 'output').read_text()[-4000:]}")
            for answer in answers:
                np.testing.assert_allclose(answer, expected[0], atol=1e-5)
            calls = [json.loads(line) for line in log.read_text().splitlines()]
            if (
                len({call["pid"] for call in calls}) == n_processes
                and max(call["running"] for call in calls) >= callers
            ):
                break
    return calls


@pytest.mark.parametrize("case", ["processes", "callers", "default", "pinned"])
def test_the_service_has_the_deployment(case: str, tmp_path: Path) -> None:
    deployment = DEPLOYMENTS[case]
    usable = {cpu for core in read_host(memory=False).usable_cores for cpu in core}
    if not usable.issuperset(itertools.chain(*deployment.cpus)):
        pytest.skip("this process may not use these CPUs")
    picked = pick_deployment(make_plan(deployment, replicas=1))
    written = render("bentoml", picked.record, str(TINY_CNN), "plan.json", None, picked)
    assert not written.unsupported
    calls = serve(written.text, deployment.processes, deployment.clients, tmp_path)
    assert len({call["pid"] for call in calls}) == deployment.processes
    assert max(call["running"] for call in calls) == deployment.clients
    config = deployment.config
    assert {call["intra_op_num_threads"] for call in calls} == {config.session_options.get("intra_op_num_threads", 0)}
    assert {call["spinning"] for call in calls} == {config.session_config.get("session.intra_op.allow_spinning")}
    if deployment.pinned:
        found = {call["pid"]: call["cpus"] for call in calls}
        assert sorted(found.values()) == sorted(map(list, deployment.cpus))


def test_environment_variables(tmp_path: Path) -> None:
    record = make_record(TINY_CNN, Config(environment={"OMP_PLACES": 'a "b"'}))
    calls = serve(render("bentoml", record, str(TINY_CNN)).text, 1, 1, tmp_path)
    assert {call["variable"] for call in calls} == {'a "b"'}
