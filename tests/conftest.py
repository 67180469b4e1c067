from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# Hosts are noisy: no test fails because it was slow.
settings.register_profile("ortune", deadline=None, print_blob=True)
settings.load_profile("ortune")

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models"
TINY_CNN = MODELS / "tiny_cnn.onnx"
TINY_ENCODER = MODELS / "tiny_encoder.onnx"
FAULTY_WORKER = (sys.executable, "-P", str(Path(__file__).parent / "faulty_worker.py"))


def run_ortune(
    *arguments: object, cwd: Path, timeout: float = 150, columns: int = 100
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a user does."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "ortune", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
    )


# Workers inherit it, so that those of this run can be told from those of another.
os.environ["ORTUNE_TEST_RUN"] = str(os.getpid())
# What the user's own searches found is neither read nor added to.
os.environ["ORTUNE_HISTORY"] = "off"


def worker_processes() -> list[psutil.Process]:
    """Return all workers that this run of the tests started, even if their parent is gone."""
    found = []
    for process in psutil.process_iter():
        try:
            line, environment = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        ours = environment.get("ORTUNE_TEST_RUN") == os.environ["ORTUNE_TEST_RUN"]
        if ours and any("ortune.worker.main" in part or "faulty_worker" in part for part in line):
            found.append(process)
    return found


@pytest.fixture
def no_workers_left() -> Iterator[None]:
    """Check that the test leaves no worker behind that was not there before."""
    before = {process.pid for process in worker_processes()}
    yield
    assert [process for process in worker_processes() if process.pid not in before] == []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="Write the golden files of exports anew.")
