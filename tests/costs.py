"""A plugin of pytest that measures what each test costs, child processes included.

`pytest -p tests.costs --costs=costs.json` writes the seconds of wall time and of CPU time of each test, and the sums.
`pytest -p tests.costs --slow` writes tests/slow.txt, by which tests get the marker `slow`.
"""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from tests.conftest import SLOW, name_function

LONGEST_S = 0.03
LONGEST_SUM_S = 0.3
"""A function is slow if one of its tests takes longer than the first of these, or all together than the second."""

STARTS = pytest.StashKey[tuple[float, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="Write what each test costs to this file, as JSON.")
    parser.addoption("--slow", action="store_true", help="Write the list of slow tests.")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostWriter(config.getoption("costs"), lists_slow=config.getoption("slow")))


def read_cpu_s() -> float:
    """Return the CPU time of this process and of its children so far, in seconds."""
    process = psutil.Process()
    used_s = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
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

    def __init__(self, path: Path | None, *, lists_slow: bool) -> None:
        self.path = path
        self.lists_slow = lists_slow
        self.costs: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cost in report.user_properties:
            if name == "cost" and isinstance(cost, dict):
                self.costs[report.nodeid] = cost

    def pytest_sessionfinish(self) -> None:
        if self.path:
            sums = {name: sum(cost[name] for cost in self.costs.values()) for name in ("wall_s", "cpu_s")}
            content = {"n_tests": len(self.costs), **sums, "tests": self.costs}
            self.path.write_text(json.dumps(content, indent=1) + "\n")
        if self.lists_slow:
            SLOW.write_text("".join(f"{function}\n" for function in self.find_slow()))

    def find_slow(self) -> list[str]:
        """Return the functions whose tests are slow."""
        times_s = collections.defaultdict[str, list[float]](list)
        for test, cost in self.costs.items():
            times_s[name_function(test)].append(cost["wall_s"])
        return sorted(
            function
            for function, durations_s in times_s.items()
            if max(durations_s) > LONGEST_S or sum(durations_s) > LONGEST_SUM_S
        )
