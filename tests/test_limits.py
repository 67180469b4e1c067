"""Real limits: quotas, cpusets and affinity masks, made and removed by the tests where that is allowed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ortune import read_record
from ortune.host import read_host
from ortune.host.default_pool import find_default_pool
from ortune.knobs import DEFAULT, build_space
from ortune.knobs.affinity import parse_affinity
from ortune.record.files import read_trials
from tests.budgets import scale_budget
from tests.conftest import ROOT, TINY_CNN
from tests.simulated import make_host, make_model
from tests.test_worker import launch, make_executor, require_worker

V1 = Path("/sys/fs/cgroup")
AFFINITY = "session.intra_op_thread_affinities"


def writable(controller: str) -> bool:
    folder = V1 / controller
    return (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK) and os.geteuid() == 0


needs_cpu = pytest.mark.skipif(not writable("cpu"), reason="needs root and a writable cgroup v1 cpu controller")
needs_cpuset = pytest.mark.skipif(
    not writable("cpuset"), reason="needs root and a writable cgroup v1 cpuset controller"
)
needs_two_cpus = pytest.mark.skipif(len(read_host().limits.usable) < 2, reason="one usable CPU")
needs_taskset = pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")


@pytest.fixture
def cgroups() -> Iterator[list[Path]]:
    """A list of cgroup directories that are removed after the test, the last one first."""
    made: list[Path] = []
    yield made
    for path in reversed(made):
        path.rmdir()


def make_cgroup(cgroups: list[Path], controller: str, name: str, files: dict[str, str]) -> Path:
    path = V1 / controller / f"ortune-test-{os.getpid()}" / name
    path.mkdir()
    cgroups.append(path)
    for file, text in files.items():
        (path / file).write_text(text)
    return path


def run_in(cgroup: Path | None, *arguments: str, prefix: tuple[str, ...] = (), cwd: Path = ROOT) -> Any:
    """Run ortune inside a cgroup, and return the finished process."""
    join = f"echo $$ > {cgroup}/cgroup.procs && " if cgroup else ""
    command = ["sh", "-c", f'{join}exec "$@"', "sh", *prefix, sys.executable, "-P", "-m", "ortune", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=150)


READ_QUOTAS = """
import sys, msgspec
from ortune.host import read_host
for line in sys.stdin:
    print(msgspec.json.encode(read_host(memory=False).limits.quota).decode(), flush=True)
"""
"""Prints the quota of this process once for each line that it reads."""


@contextlib.contextmanager
def quota_reader(cgroup: Path) -> Iterator[Callable[[], Any]]:
    """Yield a function that returns the quota of a process inside a cgroup."""
    command = [sys.executable, "-P", "-c", READ_QUOTAS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin and process.stdout
        stdin, stdout = process.stdin, process.stdout
        (cgroup / "cgroup.procs").write_text(str(process.pid))

        def read() -> Any:
            stdin.write("\n")
            stdin.flush()
            return json.loads(stdout.readline())

        yield read


def host_in(cgroup: Path | None, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    done = run_in(cgroup, "host", "--json", prefix=prefix)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@needs_cpu
def test_nested_quotas(cgroups: list[Path]) -> None:
    """The parent's quota is tighter than the child's, so that it is the one that counts."""
    parent = make_cgroup(cgroups, "cpu", "", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"})
    child = make_cgroup(cgroups, "cpu", "child", {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "20000"})
    with quota_reader(child) as read_quota:
        assert read_quota() == {"cpus": 0.4, "where": str(child)}
        (child / "cpu.cfs_quota_us").write_text("-1")
        assert read_quota() == {"cpus": 0.5, "where": str(parent)}
        (parent / "cpu.cfs_quota_us").write_text("-1")
        assert read_quota() is None


@needs_cpu
def test_a_quota_below_the_default_threads_is_reported(cgroups: list[Path]) -> None:
    cgroup = make_cgroup(cgroups, "cpu", "", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"})
    answer = host_in(cgroup)
    if answer["default"]["n_threads"] > 1:
        assert any("quota of 1 CPU" in fault for fault in answer["default"]["faults"])
    assert answer["host_class"]["cpu_quota"] == 1.0


@needs_cpuset
@needs_two_cpus
def test_a_cpuset(cgroups: list[Path]) -> None:
    cgroup = make_cgroup(cgroups, "cpuset", "", {"cpuset.cpus": "0", "cpuset.mems": "0"})
    answer = host_in(cgroup)
    assert answer["host"]["limits"]["usable"] == [0]
    assert len(answer["host"]["topology"]["online"]) >= 2
    assert answer["default"]["outside"]
    assert answer["default"]["faults"]


@needs_taskset
@needs_two_cpus
def test_an_affinity_mask() -> None:
    last = read_host().limits.usable[-1]
    answer = host_in(None, prefix=("taskset", "-c", str(last)))
    assert answer["host"]["limits"]["usable"] == [last]


def search_and_check(done: Any, path: Path, usable: set[int]) -> None:
    """Check that no candidate was pinned outside, and that it was reported if the default was."""
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    assert "pinned to CPUs that this process may not use" in " ".join(done.stdout.split())
    record = read_record(path)
    assert record.host.n_usable == len(usable)
    trials = read_trials(path)
    assert len(trials.trials) > 1
    for trial in trials.trials:
        affinity = trial.config.session_config.get(AFFINITY)
        if affinity:
            assert {cpu for group in parse_affinity(affinity) for cpu in group} <= usable
    winner, baseline = record.evidence.winner, record.evidence.baseline
    if winner is None or baseline is None:
        return  # there was no time to prove anything
    if "intra_op_num_threads" in winner.config.session_options:
        session = trials.session_of(winner.config)
        assert session is not None
        assert {cpu for thread in session.threads for cpu in thread.cpus} <= usable
    # The baseline is ONNX Runtime's true default, also if it leaves the mask or fails to pin: a weaker baseline would
    # make gains look larger.
    assert baseline.config.is_default
    session = trials.session_of(baseline.config)
    assert session is not None
    assert len(session.threads) == len(read_host().topology.cores) - 1


@pytest.fixture
def first_cpu() -> Iterator[int]:
    """The only CPU that this thread, and processes that it starts, may use during the test."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    yield min(usable)
    os.sched_setaffinity(0, usable)


@needs_two_cpus
def test_the_default_escapes_from_an_affinity_mask(first_cpu: int) -> None:
    """The escape is real, and read back: the default's worker runs where this process may not."""
    host = read_host()
    assert host.limits.usable == (first_cpu,)
    assert "pinned to CPUs that this process may not use" in " ".join(find_default_pool(host).faults)
    with make_executor() as executor:
        worker = require_worker(launch(executor, DEFAULT))
        assert {cpu for thread in worker.session_info.threads for cpu in thread.cpus} - {first_cpu}


@needs_taskset
@needs_two_cpus
@pytest.mark.long
def test_a_comparison_says_that_the_default_escapes_from_taskset(tmp_path: Path) -> None:
    command = ("bench", str(TINY_CNN), "--budget", f"{scale_budget(6)}s", "--json")
    done = run_in(None, *command, prefix=("taskset", "-c", "0"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pinned to CPUs that this process may not use" in " ".join(done.stderr.split())
    (row,) = json.loads(done.stdout)["rows"]
    assert {cpu for thread in row["session"]["threads"] for cpu in thread["cpus"]} - {0}


@needs_cpuset
@needs_two_cpus
@pytest.mark.long
def test_a_search_in_a_cpuset_stays_inside(tmp_path: Path, cgroups: list[Path]) -> None:
    cgroup = make_cgroup(cgroups, "cpuset", "", {"cpuset.cpus": "0", "cpuset.mems": "0"})
    budget = f"{scale_budget(15)}s"
    done = run_in(cgroup, "search", str(TINY_CNN), "-o", "c.json", "--budget", budget, "--trials", "2", cwd=tmp_path)
    search_and_check(done, tmp_path / "c.json", {0})


def test_the_default_pool_of_a_host_that_is_all_ours_fits() -> None:
    pool = find_default_pool(make_host(4))
    assert pool.n_threads == 4
    assert pool.pinned == ((1,), (2,), (3,))
    assert pool.faults == ()


def test_a_space_under_a_mask_offers_nothing_outside() -> None:
    usable = (2, 3, 6, 7)
    space = build_space(make_host(8, usable=usable), make_model())
    counts = set()
    for candidate in space.candidates:
        counts.add(candidate.config.session_options.get("intra_op_num_threads"))
        affinity = candidate.config.session_config.get(AFFINITY)
        if affinity:
            assert {cpu for group in parse_affinity(affinity) for cpu in group} <= set(usable)
    assert counts == {None, 1, 2, 3, 4}
