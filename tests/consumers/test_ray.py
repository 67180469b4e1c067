"""Exports of plans for Ray Serve: its own classes have the numbers, and the application answers requests.

Ray and its dependencies take 500 MB, so that these tests run on request only: `nox -s ray`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortune.export import render
from tests.conftest import TINY_ENCODER
from tests.consumers.running import need, program
from tests.consumers.test_programs import READY_S, free_port, serving
from tests.plans import DEPLOYMENTS, pick

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

TEXTS = [
    {"input_ids": (np.arange(8) + number)[None], "attention_mask": np.ones((1, 8), np.int64)} for number in range(8)
]
"""Inputs of requests."""


def write(case: str, folder: Path) -> Path:
    picked = pick(DEPLOYMENTS[case], replicas=1)
    path = folder / "ray_serve.py"
    path.write_text(render("ray-serve", picked.record, str(TINY_ENCODER), "plan.json", None, picked).text)
    return path


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"ray_serve_{path.parent.name}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def encode(inputs: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **inputs)
    return file.getvalue()


def decode(body: bytes) -> Any:
    with np.load(io.BytesIO(body)) as arrays:
        (output,) = arrays.values()
    return output


class Request:
    """The part of a request that the application reads."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self._body = encode(inputs)

    async def body(self) -> bytes:
        return self._body


def expected() -> list[Any]:
    session = onnxruntime.InferenceSession(TINY_ENCODER, providers=["CPUExecutionProvider"])
    return [session.run(None, inputs)[0] for inputs in TEXTS]


@pytest.mark.parametrize("case", DEPLOYMENTS)
def test_the_deployment_has_the_numbers(case: str, tmp_path: Path) -> None:
    need("ray.serve")
    model, deployment = load(write(case, tmp_path)).Model, DEPLOYMENTS[case]
    assert model.num_replicas == deployment.processes
    max_batch = deployment.batching.max_batch if deployment.batching else 1
    assert model.max_ongoing_requests == deployment.clients * max_batch
    # All replicas fit on the host.
    assert 0 < model.ray_actor_options["num_cpus"] * deployment.processes <= (pick(deployment).record.host.n_usable)


@pytest.mark.parametrize("case", ["processes", "batch"])
def test_it_answers_in_the_local_testing_mode(case: str, tmp_path: Path) -> None:
    need("ray.serve")
    from ray import serve

    module, deployment = load(write(case, tmp_path)), DEPLOYMENTS[case]
    handle = serve.run(module.app, _local_testing_mode=True)
    answers = [handle.remote(Request(inputs)) for inputs in TEXTS]
    for answer, wanted in zip(answers, expected(), strict=True):
        np.testing.assert_allclose(decode(answer.result().body), wanted, atol=1e-5)
    assert module.create_session().get_session_options().intra_op_num_threads == 1
    assert deployment.config.session_options["intra_op_num_threads"] == 1


def test_requests_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that arrive together become few calls. Ray looks for the replica, which there is none of here."""
    need("ray.serve")
    from ray.serve import batching

    monkeypatch.setattr(batching._BatchQueue, "_warn_if_max_batch_size_exceeds_max_ongoing_requests", lambda self: None)
    module = load(write("batching", tmp_path))
    calls: list[int] = []

    async def ask() -> list[Any]:
        model = module.Model.func_or_class()
        own = model.call

        async def call(inputs: Any) -> Any:
            calls.append(len(inputs["input_ids"]))
            return await own(inputs)

        model.call = call
        return await asyncio.gather(*(model(Request(inputs)) for inputs in TEXTS))

    answers = asyncio.run(ask())
    assert sum(calls) == len(TEXTS)
    assert len(calls) < len(TEXTS)
    for answer, wanted in zip(answers, expected(), strict=True):
        np.testing.assert_allclose(decode(answer.body), wanted, atol=1e-5)


def ask(port: int, inputs: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=encode(inputs))
    with urllib.request.urlopen(request, timeout=READY_S) as answer:
        return decode(answer.read())


@pytest.mark.parametrize("case", ["processes", "batching"])
def test_it_serves_http(case: str, tmp_path: Path) -> None:
    """`serve run`, as the export says: each replica is a process."""
    need("ray.serve")
    write(case, tmp_path)
    port = free_port()
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"http_options: {{host: 127.0.0.1, port: {port}}}\n"
        "applications: [{name: model, route_prefix: /, import_path: 'ray_serve:app'}]\n"
    )
    command = [program("serve"), "run", f"--app-dir={tmp_path}", str(config)]
    with serving(command, port, tmp_path / "output", PYTHONPATH=str(tmp_path), RAY_ENABLE_UV_RUN_RUNTIME_ENV="0"):
        deadline = time.monotonic() + 2 * READY_S
        while True:
            try:
                ask(port, TEXTS[0])
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "output").read_text()[-4000:]
                time.sleep(0.5)
        with ThreadPoolExecutor(len(TEXTS)) as pool:
            answers = list(pool.map(lambda inputs: ask(port, inputs), TEXTS))
    for answer, wanted in zip(answers, expected(), strict=True):
        np.testing.assert_allclose(answer, wanted, atol=1e-5)
