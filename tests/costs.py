"""A plugin of pytest that writes what each test costs: `pytest -p tests.costs --costs costs.json`.

The file has the seconds of wall time and of CPU time of each test, those of its child processes included, and the sums.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

STARTS = pytest.StashKey[tuple[float, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="Write what each test costs to this file, as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostWriter(config.getoption("costs")))


def read_cpu_s() -> float:
    """Return the CPU time of this process and of its children so far, in seconds."""
    process = psutil.Process()
    used_s = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


@pytest.hookimpl(tryfirst=True)  # also for tests that are skipped by their marks
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[STARTS] = time.monotonic(), read_cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        begin_s, begin_cpu_s = item.stash[STARTS]
        cost = {"wall_s": time.monotonic() - begin_s, "cpu_s": read_cpu_s() - begin_cpu_s}
        report.user_properties.append(("cost", cost))
    return report


class CostWriter:
    """Collects the costs of all tests, and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.costs: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cost in report.user_properties:
            if name == "cost" and isinstance(cost, dict):
                self.costs[report.nodeid] = cost

    def pytest_sessionfinish(self) -> None:
        sums = {name: sum(cost[name] for cost in self.costs.values()) for name in ("wall_s", "cpu_s")}
        content = {"n_tests": len(self.costs), **sums, "tests": self.costs}
        self.path.write_text(json.dumps(content, indent=1) + "\n")
