"""A plugin of pytest that writes which functions each test calls: `pytest -p tests.reach --reach reach.jsonl`.

It sees calls in the process of pytest and in the commands that `run_ortune` runs, not in other child processes. Each
line of the file has the id of a test and the functions, as `ortune/FILE.py:LINE`. `benchmarks/mutation.py` runs the
tests that reach a change. It needs Python 3.12, whose sys.monitoring sees a function's first call at hardly any cost.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

VARIABLE = "ORTUNE_TEST_REACH"
"""Environment variable with the path of the file, which commands inherit."""

MONITORING: Any = getattr(sys, "monitoring", None)
"""What Python 3.12 and later have."""

PACKAGE = f"{Path(__file__).parent.parent / 'ortune'}{os.sep}"


class Recorder:
    """Notes the functions of the package that are called."""

    def __init__(self) -> None:
        self.codes: set[tuple[str, int]] = set()

    def __call__(self, code: CodeType, offset: int) -> object:
        """Note a call. Further calls of the function are not reported."""
        if code.co_filename.startswith(PACKAGE):
            self.codes.add((code.co_filename, code.co_firstlineno))
        return MONITORING.DISABLE

    def start(self) -> None:
        """Begin with no functions."""
        self.codes.clear()
        MONITORING.use_tool_id(MONITORING.COVERAGE_ID, "ortune")
        MONITORING.register_callback(MONITORING.COVERAGE_ID, MONITORING.events.PY_START, self)
        MONITORING.set_events(MONITORING.COVERAGE_ID, MONITORING.events.PY_START)
        MONITORING.restart_events()

    def stop(self) -> None:
        """Note nothing more."""
        MONITORING.set_events(MONITORING.COVERAGE_ID, MONITORING.events.NO_EVENTS)
        MONITORING.free_tool_id(MONITORING.COVERAGE_ID)

    def write(self, test: str) -> None:
        """Append what was called to the file."""
        names = sorted(f"ortune/{name.removeprefix(PACKAGE)}:{line}" for name, line in self.codes)
        text = json.dumps({"test": test, "functions": names}) + "\n"
        # One call of the system for each line: other processes append to the same file.
        descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def record_command() -> None:
    """Note what this process calls until it ends, if the test that runs it is recorded."""
    if VARIABLE not in os.environ:
        return
    import atexit

    recorder = Recorder()
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]

    def finish() -> None:
        recorder.stop()
        recorder.write(test)

    atexit.register(finish)
    recorder.start()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach", type=Path, help="Write which functions each test calls to this file.")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("reach"):
        os.environ[VARIABLE] = str(path.resolve())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if VARIABLE not in os.environ:
        return (yield)
    recorder = Recorder()
    recorder.start()
    try:
        return (yield)
    finally:
        recorder.stop()
        recorder.write(item.nodeid)
