"""The scripts in examples/ run. Those that measure do so on a simulated host."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import urllib3

from ortune import read_record
from ortune.gates.file import read_gates
from ortune.gates.prepare import make_gate
from tests.conftest import ROOT, TINY_CNN, run_program
from tests.records import ONE_THREAD, make_local_record, write

EXAMPLES = ROOT / "examples"

SIMULATED = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script, on a simulated host."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(TINY_CNN, tmp_path / "model.onnx")
    return tmp_path


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def run_simulated(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_program(SIMULATED, str(EXAMPLES / name), *arguments, cwd=cwd, simulate=True)


def test_every_example_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or not path.is_file() or f"[{path.name}]({path.name})" in page
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "compare_models.py",
        "serve_model.py",
        "tune_model.py",
        "two_clients.py",
        "two_processes.py",
    }


def test_two_clients(folder: Path) -> None:
    done = run("two_clients.py", "model.onnx", "--clients", "3", "--calls", "5", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("calls per second\n")


def test_two_processes(folder: Path) -> None:
    done = run("two_processes.py", "model.onnx", "--seconds", "0.1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("calls per second\n")


def test_tune_model(folder: Path) -> None:
    done = run_simulated("tune_model.py", "model.onnx", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "faster: " in done.stdout
    assert "inputs: ['image']" in done.stdout
    assert read_record(folder / "tuned.json").workload.load.clients == 2


def test_compare_models(folder: Path) -> None:
    done = run_simulated("compare_models.py", "model.onnx", "model.onnx", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pass: ")


def test_gates() -> None:
    assert [gate.name for gate in read_gates(str(EXAMPLES / "ortune.toml"))] == ["detector", "tuned"]


@pytest.mark.usefixtures("models_read_here")
def test_the_gate_on_a_record_requires_half_of_its_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    write(record, tmp_path / "tuned.json")
    monkeypatch.chdir(tmp_path)
    (request,) = read_gates(str(EXAMPLES / "ortune.toml"), ("tuned",))
    assert record.gain
    assert make_gate(request).slowdowns == {"p50": pytest.approx(record.gain.estimate**-0.5 - 1)}


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_serve_model(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLES / "serve_model.py"), "model.onnx", "--port", str(port), "--workers", "2"]
    with subprocess.Popen(command, cwd=folder) as server:
        try:
            wait_until(lambda: is_open(port))
            answers = {urllib3.request("GET", f"http://127.0.0.1:{port}/").data for _ in range(5)}
            assert [json.loads(answer) for answer in answers] == [[[1, 10]]]
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
    wait_until(lambda: not is_open(port))


def is_open(port: int) -> bool:
    """Return whether a process accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(is_met: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_met():
            return
        time.sleep(0.1)
    pytest.fail("nothing happened for a minute")
