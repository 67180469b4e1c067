from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
from hypothesis import settings

from ortune import steps
from ortune.replaceable import replaced
from tests.servers import (
    grpc_proxy,
    mariadb,
    mariadb_database,
    mariadb_of_session,
    postgres,
    postgres_database,
    postgres_of_session,
)

if TYPE_CHECKING:
    from tests.simulated import Scenario

__all__ = [
    "grpc_proxy",
    "mariadb",
    "mariadb_database",
    "mariadb_of_session",
    "postgres",
    "postgres_database",
    "postgres_of_session",
]

# No test fails because it was slow: hosts are noisy.
# Examples are the same in each run. `pytest --hypothesis-profile=random` draws others.
settings.register_profile("ortune", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("random", settings.get_profile("ortune"), derandomize=False)
settings.load_profile("ortune")

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models"
TINY_CNN = MODELS / "tiny_cnn.onnx"
TINY_ENCODER = MODELS / "tiny_encoder.onnx"
FAULTY_WORKER = (sys.executable, "-P", str(Path(__file__).parent / "faulty_worker.py"))
FORKED_CHILD = "forked child"
"""Name of the forks of `tests/simulated/child_server.py`."""


@functools.cache
def start_fork_server() -> subprocess.Popen[str]:
    """Start the process that runs the command line in forks, once for each process of pytest. It ends with pytest."""
    server = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).parent / "fork_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(stop_fork_server, server)
    return server


def stop_fork_server(server: subprocess.Popen[str]) -> None:
    """End the process. It may be called more than once."""
    with server:
        server.kill()


def run_ortune(
    *arguments: object,
    cwd: Path,
    timeout: int = 150,
    columns: int = 100,
    environment: Mapping[str, str | None] | None = None,
    simulate: bool | Scenario = False,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a child process.

    Args:
        arguments: Its arguments.
        cwd: Its working directory.
        timeout: When it is killed, in seconds.
        columns: Width of its terminal.
        environment: Variables to change; None removes one.
        simulate: Whether its measurements are simulated, so that budgets take no time; or the host that is simulated.
    """
    command = [sys.executable, "-P", "-m", "ortune", *map(str, arguments)]
    changed = {"COLUMNS": str(columns), "NO_COLOR": "1", **(environment or {})}
    return run_in_fork(command, command[4:], cwd=cwd, timeout=timeout, environment=changed, simulate=simulate)


def run_program(
    code: str, *arguments: str, cwd: Path, timeout: int = 150, simulate: bool | Scenario = False
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child process that has imported ortune already. The arguments are as for `run_ortune`."""
    command = [sys.executable, "-c", code, *arguments]
    return run_in_fork(command, arguments, code=code, cwd=cwd, timeout=timeout, environment={}, simulate=simulate)


def run_in_fork(
    command: Sequence[str],
    arguments: Sequence[str],
    *,
    code: str = "",
    cwd: Path,
    timeout: int,
    environment: Mapping[str, str | None],
    simulate: bool | Scenario,
) -> subprocess.CompletedProcess[str]:
    """Run a command as a fork of a process that has imported ortune already, where there is fork.

    Args:
        command: What runs elsewhere.
        arguments: The arguments, without the program.
        code: Python code to run; empty for ortune.
        cwd: Its working directory.
        timeout: When it is killed, in seconds.
        environment: Variables to change; None removes one.
        simulate: Whether its measurements are simulated, or the host that is simulated.
    """
    from tests.simulated import Scenario

    chosen = Scenario(is_here=True) if simulate is True else simulate
    scenario = msgspec.to_builtins(chosen) if chosen else None
    env = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    if sys.platform != "linux":
        if simulate:
            pytest.skip("simulated hosts of commands need fork")
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False, env=env)
    server = start_fork_server()
    if server.poll() is not None:
        start_fork_server.cache_clear()
        server = start_fork_server()
    assert server.stdin and server.stdout
    request = {"arguments": arguments, "code": code, "cwd": str(cwd), "env": env, "timeout_s": timeout}
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        request |= {"scenario": scenario, "stdout": str(stdout), "stderr": str(stderr)}
        try:
            print(json.dumps(request), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
        except BaseException:
            stop_fork_server(server)  # the next command must not get the answer to this one
            raise
        if status == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(command, timeout, stdout.read_bytes(), stderr.read_bytes())
        return subprocess.CompletedProcess(command, status, stdout.read_text(), stderr.read_text())


# Processes of tests share compiled modules, also where the environment says that Python writes none: to compile all
# that one process imports takes seconds.
if "ORTUNE_MUTATION_TASKS" not in os.environ:  # where each module is changed, and changed back, within a second
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
# Workers inherit it, which distinguishes them from the workers of another test run.
os.environ["ORTUNE_TEST_RUN"] = str(os.getpid())
# Do not read or change the history of the user's searches, and what else is remembered of the user.
os.environ["ORTUNE_HISTORY"] = "off"
STATE_FOLDER = tempfile.TemporaryDirectory(prefix="ortune-tests-")
os.environ["XDG_STATE_HOME"] = STATE_FOLDER.name
# Commands of tests and of the documentation find `python` and `ortune`, as in an active environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
# What the user has set for ortune, for terminals and for services of CI changes no test.
for variable in (
    "ORTUNE_CANARY",
    "ORTUNE_CONFIG",
    "ORTUNE_METRICS",
    "ORTUNE_NODE",
    "ORTUNE_STORAGE",
    "ORTUNE_STORAGE_FILE",
    "FORCE_COLOR",
    "NO_COLOR",
    "PY_COLORS",
    "GITHUB_ACTIONS",
    "GITHUB_STEP_SUMMARY",
):
    os.environ.pop(variable, None)
# One thread of BLAS, in all processes: the matrices are small, and threads that wait for work keep a CPU busy.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

SLOW = Path(__file__).parent / "slow.txt"
"""The functions whose tests are slow. `pytest -p tests.costs --slow` writes it."""

OPT_IN_MARKERS = ("consumers", "install", "long", "ray", "servers", "zoo")
"""Markers of tests that run only if the option `-m` names the marker."""


def long_params(*values: object) -> list[Any]:
    """Return values of a parameter with which the test suite leaves a test out."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def name_function(test: str) -> str:
    """Return the name of the function of a test, without its parameters."""
    return test.partition("[")[0]


WORKERS = {"ortune.worker.main", "ortune.worker.template"}
"""The modules that workers run as."""


def worker_processes() -> list[psutil.Process]:
    """Return all workers that this test run started, even if their parent has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            is_fork = process.name() == FORKED_CHILD
            if not is_fork and not any(part in WORKERS or "faulty_worker" in part for part in command):
                continue
            if process.environ().get("ORTUNE_TEST_RUN") == os.environ["ORTUNE_TEST_RUN"]:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def models_read_here() -> Iterator[None]:
    """Read models in this process, not in a child, which takes half a second."""
    from ortune.model.child import read_in_child
    from tests.simulated.reading import read_here

    with replaced({read_in_child: read_here}):
        yield


@pytest.fixture(scope="module")
def forked_children() -> Iterator[None]:
    """Let workers be forks of a process that has imported all that they import, which takes a third of a second."""
    from tests.simulated.children import fork_children

    with fork_children():
        yield


@pytest.fixture
def started_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of a test be started as those of users, although others of its module are forks."""
    from tests.simulated.children import NewProcess

    monkeypatch.setattr(subprocess, "Popen", NewProcess)


@pytest.fixture(autouse=True)
def no_observers_left() -> Iterator[None]:
    """Check that no display of the test observes steps of later tests."""
    yield
    left = [*steps._observers]
    steps._observers.clear()
    steps.end_steps()
    assert left == []


@pytest.fixture
def no_workers_left() -> Iterator[None]:
    """Check that all workers that the test starts have ended when it ends."""
    before = {process.pid for process in worker_processes()}
    yield
    assert [process for process in worker_processes() if process.pid not in before] == []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="Write the golden files of the exports.")
    parser.addoption("--no-skips", action="store_true", help="A test that would be skipped fails, with the reason.")


def _fail_skipped(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Make the report of a skip that of a failure, if skips are not allowed."""
    if report.skipped and not hasattr(report, "wasxfail") and config.getoption("no_skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"--no-skips: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_skipped(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_skipped(report, collector.config)
    return report


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of all collections of garbage, which would go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before the option `-m` selects tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, and deselect those with an opt-in marker that the option `-m` does not name."""
    slow = frozenset(SLOW.read_text().splitlines())
    for item in items:
        if name_function(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)
    hidden = {marker for marker in OPT_IN_MARKERS if marker not in config.option.markexpr}
    kept: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        is_hidden = any(mark.name in hidden for mark in item.iter_markers())
        (deselected if is_hidden else kept).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept
