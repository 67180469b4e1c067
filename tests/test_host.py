"""Reading hosts: dumps of real and emulated machines, invalid files, and the machine that runs the tests."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.console.host import draw_machine, show_host
from ortune.console.safe_console import SafeConsole
from ortune.host import HostClass, linux, read_host
from ortune.host.conditions import read_conditions
from ortune.host.default_pool import find_default_pool
from ortune.host.linux import parse_cpu_list, parse_cpu_mask
from ortune.host.macos import build_topology, parse_sysctl
from ortune.worker.devices import Devices
from ortune.worker.exit_status import count_oom_kills
from tests.archives import extract_files
from tests.conftest import ROOT, run_ortune
from tests.hosts import write_files
from tests.simulated import Scenario, make_host

QEMU = ROOT / "tests" / "data" / "topology"
HWLOC = Path(os.environ.get("ORTUNE_TOPOLOGY_DUMPS", ROOT.parent / "shared" / "topology")) / "hwloc"
"""Dumps from the test suite of hwloc (BSD-3-Clause), which are not part of this repository."""


def read_expectations(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads((folder / "expected.json").read_text())
    except OSError:
        return {}
    return dict(document.get("snapshots", document))


def unpack(folder: Path, name: str, target: Path) -> Path:
    extract_files(folder / f"{name}.tar.bz2", target)
    roots = [path.parent for path in target.rglob("sys") if path.is_dir() and (path / "devices").is_dir()]
    return min(roots, key=lambda path: len(path.parts))


def groups(value: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(group) for group in value}


@pytest.mark.parametrize("name", read_expectations(QEMU))
def test_emulated_machines(name: str, tmp_path: Path) -> None:
    expected = read_expectations(QEMU)[name]
    host = read_host(unpack(QEMU, name, tmp_path))
    topology = host.topology
    assert list(topology.online) == expected["online"]
    assert {core.cpus for core in topology.cores} == groups(expected["cores"])
    assert set(topology.packages) == groups(expected["packages"])
    assert {str(node.id): list(node.cpus) for node in topology.numa_nodes} == expected["numa"]
    assert set(topology.l3_domains) == groups(expected["l3"])
    assert set(topology.kinds) == groups(expected["kinds"])
    assert list(host.limits.usable) == expected.get("usable", expected["online"])
    quota = host.limits.quota
    assert (quota.cpus if quota else None) == expected.get("quota")
    if quota:
        assert quota.where.startswith("/sys/fs/cgroup")


@pytest.mark.skipif(not HWLOC.is_dir(), reason=f"no dumps in {HWLOC}; set ORTUNE_TOPOLOGY_DUMPS")
@pytest.mark.parametrize("name", read_expectations(HWLOC))
def test_real_machines(name: str, tmp_path: Path) -> None:
    expected = read_expectations(HWLOC)[name]
    host = read_host(unpack(HWLOC, name, tmp_path))
    topology = host.topology
    usable = set(host.limits.usable)

    def usable_part(given: Any) -> set[tuple[int, ...]]:
        parts = (tuple(cpu for cpu in group if cpu in usable) for group in given)
        return {part for part in parts if part}

    assert list(topology.online) == expected["online_cpus"]
    assert list(host.limits.usable) == expected["usable_cpus"]
    assert set(host.usable_cores) == groups(expected["cores"])
    assert usable_part(topology.packages) == groups(expected["packages"])
    assert len(topology.packages) == expected["packages_online"]
    assert {str(node.id): list(node.cpus) for node in topology.numa_nodes} == expected["numa_online"]
    assert [node.id for node in topology.numa_nodes if not node.cpus] == expected["memory_only_nodes"]
    assert usable_part(topology.l3_domains) == groups(expected["l3"])
    assert usable_part(topology.kinds) == groups(expected["kinds"])
    assert [list(kind) for kind in topology.kinds] == expected["kinds"]
    assert {len(core) for core in host.usable_cores} == set(expected["smt"])


MAC = """hw.physicalcpu: 10
hw.logicalcpu: 10
hw.nperflevels: 2
hw.perflevel0.physicalcpu: 8
hw.perflevel0.logicalcpu: 8
hw.perflevel1.physicalcpu: 2
hw.perflevel1.logicalcpu: 2
machdep.cpu.brand_string: Apple M1 Pro
"""


def test_mac_with_two_kinds_of_cores() -> None:
    values = parse_sysctl(MAC)
    topology = build_topology(values)
    assert values["machdep.cpu.brand_string"] == "Apple M1 Pro"
    assert topology is not None
    assert len(topology.cores) == 10
    assert [len(kind) for kind in topology.kinds] == [2, 8]
    assert topology.cores[0].kind == 0
    assert topology.source == "sysctl"


def test_intel_mac_has_hardware_threads() -> None:
    topology = build_topology(parse_sysctl("hw.physicalcpu = 4\nhw.logicalcpu = 8\n"))
    assert topology is not None
    assert [len(core.cpus) for core in topology.cores] == [2, 2, 2, 2]
    assert topology.kinds == ()


@given(st.text(alphabet="hw.perflvphysicu:0123456789 \n-x", max_size=80))
def test_invalid_sysctl_output_never_raises(text: str) -> None:
    build_topology(parse_sysctl(text + "\nhw.nperflevels: 3\nhw.perflevel1.physicalcpu: 2"))
    assert build_topology(parse_sysctl(text[:0])) is None


def test_host_with_only_the_number_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.host.linux.read_topology", lambda root: None)
    host = read_host()
    assert host.topology.source == "psutil"
    assert sorted(cpu for core in host.topology.cores for cpu in core.cpus) == list(host.topology.online)
    assert draw_machine(host).children


def test_host_class_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """ortune-apply has no psutil where the system itself reports the number of cores."""
    expected = HostClass.of(read_host())
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert HostClass.of(read_host(memory=False)) == expected
    monkeypatch.setattr("ortune.host.linux.read_topology", lambda root: None)
    host = read_host(memory=False)
    assert host.limits.memory_bytes is None
    assert len(host.topology.cores) == len(host.topology.online) == os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert read_host(memory=False).limits.usable == host.topology.online


def test_host_class_of_a_mac_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("ortune.host.macos.run_sysctl", lambda: "hw.physicalcpu = 4\nhw.logicalcpu = 8\n")
    host = read_host(memory=False)
    assert (host.topology.source, len(host.topology.cores)) == ("sysctl", 4)


@pytest.mark.parametrize("name", read_expectations(QEMU))
def test_each_machine_can_be_drawn(name: str, tmp_path: Path) -> None:
    host = read_host(unpack(QEMU, name, tmp_path))
    console = SafeConsole(width=100, record=True, file=io.StringIO())
    show_host(console, host, find_default_pool(host), None, (), Devices(), read_conditions(tmp_path))
    text = console.export_text()
    for core in host.topology.cores:
        assert "[" + " ".join(map(str, core.cpus)) + "]" in text
    if host.limits.quota:
        assert f"{host.limits.quota.cpus:g} CPUs" in text


class TestPoolOfTheEnvironment:
    """`ORT_INTRA_OP_NUM_THREADS` sets the default pool of ONNX Runtime 1.29 and later."""

    def show(self, folder: Path, text: str, **host: Any) -> str:
        variables = {"ORT_INTRA_OP_NUM_THREADS": text}
        done = run_ortune("host", cwd=folder, environment=variables, simulate=Scenario(**host))
        assert not done.stderr
        return " ".join(done.stdout.split())

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("1", "one thread, no pool fits this host set by ORT_INTRA_OP_NUM_THREADS; models are measured without it"),
            ("3", "3 threads, not pinned fits this host set by ORT_INTRA_OP_NUM_THREADS"),
            ("9", "9 threads, not pinned 9 threads share 4 usable cores set by ORT_INTRA_OP_NUM_THREADS"),
            ("junk", "ORT_INTRA_OP_NUM_THREADS is not a number of threads, so ONNX Runtime creates no session"),
            ("", "4 threads: the caller's, and 3 pinned to CPUs 1-3 fits this host onnxruntime"),
            ("0", "4 threads: the caller's, and 3 pinned to CPUs 1-3 fits this host onnxruntime"),
        ],
    )
    def test_it_is_shown(self, text: str, expected: str, tmp_path: Path) -> None:
        assert expected in self.show(tmp_path, text, n_cores=4)

    def test_it_may_fit_a_quota(self, tmp_path: Path) -> None:
        assert "use up the quota" in self.show(tmp_path, "8", n_cores=8, quota=2.0)
        assert "2 threads, not pinned fits this host" in self.show(tmp_path, "2", n_cores=8, quota=2.0)


def test_this_machine() -> None:
    host = read_host()
    assert len(host.topology.online) == psutil.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert set(host.limits.usable) == os.sched_getaffinity(0)
    assert 1 <= len(host.usable_cores) <= len(host.limits.usable)
    assert host.limits.memory_bytes is not None


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0\0\n", (0,)),
        ("0-7:2/4", (0, 1, 4, 5)),
        ("", ()),
        ("junk", ()),
        ("3-1", ()),
        ("0-99999999999", ()),
        ("1,x,2", (1, 2)),
        ("0-7:0/0", ()),
    ],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("f", (0, 1, 2, 3)), ("1,00000000", (32,)), ("00000000,00000003\n", (0, 1)), ("", ()), ("xyz", ()), ("1,,1", ())],
)
def test_cpu_masks(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_mask(text) == cpus


@given(st.text(max_size=60))
def test_parsers_never_raise(text: str) -> None:
    assert all(cpu >= 0 for cpu in parse_cpu_list(text) + parse_cpu_mask(text))


PATHS = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/offline",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings",
    "sys/devices/system/cpu/cpu0/cache/index3/level",
    "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list",
    "sys/devices/system/cpu/cpu1/topology/package_cpus_list",
    "sys/devices/system/cpu/cpu1/cpu_capacity",
    "sys/devices/system/cpu/cpu77/topology/core_cpus_list",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node9/cpulist",
    "sys/devices/cpu_atom/cpus",
    "sys/devices/cpu_core/cpus",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/a/cpu.max",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/status",
    "proc/cpuinfo",
]

CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"0-1",
            b"0-3\n",
            b"",
            b"\0\0\0",
            b"99999999999999999999",
            b"-1",
            b"max 100000",
            b"50000 100000",
            b"0 0",
            b"3",
            b"0::/a\n1:cpu:/\n",
            b"0::/../../..",
            b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            b"31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
            b"Cpus_allowed_list:\t0-1\n",
        ]
    ),
)


@given(st.dictionaries(st.sampled_from(PATHS), CONTENTS, max_size=len(PATHS)))
def test_invalid_files_never_raise(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    host = read_host(root)
    online = set(host.topology.online)
    assert online
    assert set(host.limits.usable) <= online
    assert host.limits.usable
    cpus = [cpu for core in host.topology.cores for cpu in core.cpus]
    assert sorted(cpus) == sorted(online)
    for groups_of in (host.topology.packages, host.topology.l3_domains, host.topology.kinds):
        members = [cpu for group in groups_of for cpu in group]
        assert len(members) == len(set(members))
        assert set(members) <= online
    if host.limits.quota:
        assert host.limits.quota.cpus > 0


def test_host_classes() -> None:
    small, large = HostClass.of(make_host(2)), HostClass.of(make_host(4))
    assert small == HostClass.of(make_host(2))
    assert small.id != large.id
    assert small.differences(large)["n_cores"] == (2, 4)
    assert small.differences(small) == {}


class TestOomKills:
    """What another container or program of the host lost is not blamed on a candidate."""

    OF_HOST: ClassVar = {"proc/vmstat": "nr_free_pages 1\noom_kill 40\n"}

    def test_version_2_counts_those_of_the_cgroup(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "0::/pod/app\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/pod/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
        }
        # The memory controller is not enabled for the innermost cgroup.
        assert count_oom_kills(write_files(tmp_path, {**self.OF_HOST, **files})) == 2

    def test_version_1_counts_those_of_the_cgroup(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "4:memory:/pod\n",
            "proc/self/mountinfo": "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            "sys/fs/cgroup/memory/pod/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
        }
        assert count_oom_kills(write_files(tmp_path, {**self.OF_HOST, **files})) == 7

    def test_without_a_cgroup_those_of_the_host_count(self, tmp_path: Path) -> None:
        assert count_oom_kills(write_files(tmp_path, self.OF_HOST)) == 40
        assert count_oom_kills(tmp_path / "none") is None


class TestMemoryLimit:
    """Of the cgroup, in both versions of the hierarchy."""

    def v2(self, root: Path, **files: str) -> Path:
        mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        own = {f"sys/fs/cgroup/pod/{name.replace('_', '.')}": text for name, text in files.items()}
        return write_files(root, {"proc/self/cgroup": "0::/pod\n", "proc/self/mountinfo": mount, **own})

    def test_none(self, tmp_path: Path) -> None:
        assert linux.read_memory_limit_bytes(self.v2(tmp_path, memory_max="max\n", memory_current="5\n")) is None

    def test_the_page_cache_is_free(self, tmp_path: Path) -> None:
        """Also its active part, where the kernel keeps a model that was read twice."""
        root = self.v2(
            tmp_path,
            memory_max=f"{12 * 10**9}\n",
            memory_current=f"{9 * 10**9}\n",
            memory_stat=f"anon {10**9}\nfile {8 * 10**9}\ninactive_file {7 * 10**9}\nactive_file {10**9}\n",
        )
        assert linux.read_memory_limit_bytes(root) == 11 * 10**9

    def test_version_1(self, tmp_path: Path) -> None:
        mount = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        folder = "sys/fs/cgroup/memory/pod"
        root = write_files(
            tmp_path,
            {
                "proc/self/cgroup": "4:memory:/pod\n",
                "proc/self/mountinfo": mount,
                f"{folder}/memory.limit_in_bytes": "1000\n",
                f"{folder}/memory.usage_in_bytes": "800\n",
                f"{folder}/memory.stat": "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 50\n",
            },
        )
        assert linux.read_memory_limit_bytes(root) == 750
