"""Hosts of many CPU generations, from the descriptions in `tests/data/hosts`."""

from __future__ import annotations

import platform
import tomllib
from pathlib import Path
from unittest import mock

import msgspec

from ortune.host import Host, read_host
from tests.conftest import ROOT

FOLDER = ROOT / "tests" / "data" / "hosts"


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPUs of one kind. Hardware threads of a core have adjacent numbers.

    Attributes:
        n_cpus: Number of CPUs.
        threads_per_core: Hardware threads of each core.
        l1d: Size of the L1 data cache, as in sysfs.
        l2: Size of the L2 cache.
        l3: Size of an L3 cache; None where sysfs lists none.
        cpu_capacity: Relative capacity; None on x86.
        cpuinfo: Excerpt of /proc/cpuinfo for one CPU, without its number.
    """

    n_cpus: int
    threads_per_core: int
    l1d: str
    l2: str
    l3: str | None = None
    cpu_capacity: int | None = None
    cpuinfo: str


class Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host.

    Attributes:
        description: What it is.
        name: Name of its class.
        machine: Architecture.
        n_packages: Packages, all of the same size.
        n_numa_nodes: NUMA nodes, all of the same size.
        n_l3_caches: L3 caches, all of the same size.
        kinds: Its CPUs.
        files: Other files.
    """

    description: str
    name: str
    machine: str
    n_packages: int
    n_numa_nodes: int
    n_l3_caches: int
    kinds: tuple[Kind, ...]
    files: dict[str, str] = {}


CPUS = "sys/devices/system/cpu"

HOSTS = {
    path.stem: msgspec.convert(tomllib.loads(path.read_text()), Described) for path in sorted(FOLDER.glob("*.toml"))
}


def list_files(host: Described, *, allowed: str = "", quota: str = "") -> dict[str, str]:
    """Return the files of /proc and /sys: those of the first CPU of each core, package and cache.

    Args:
        host: The host.
        allowed: The CPUs that the process may use, in the format of the kernel; all by default.
        quota: Content of `cpu.max`; none by default.
    """
    cpuinfo: list[str] = []
    files = dict(host.files)
    n_cpus = sum(kind.n_cpus for kind in host.kinds)
    for cpu in range(0, n_cpus, n_cpus // host.n_packages):
        files[f"{CPUS}/cpu{cpu}/topology/package_cpus_list"] = format_range(cpu, n_cpus // host.n_packages)
    for kind in host.kinds:
        first = len(cpuinfo)
        cpus = range(first, first + kind.n_cpus)
        cpuinfo += [f"processor\t: {cpu}\n{kind.cpuinfo}" for cpu in cpus]
        for cpu in cpus[:: kind.threads_per_core]:
            files[f"{CPUS}/cpu{cpu}/topology/core_cpus_list"] = format_range(cpu, kind.threads_per_core)
        for cpu in cpus if kind.cpu_capacity else ():
            files[f"{CPUS}/cpu{cpu}/cpu_capacity"] = str(kind.cpu_capacity)
        n_sharing = n_cpus // host.n_l3_caches if host.n_l3_caches else kind.n_cpus
        for cpu in {first, *(cpu for cpu in cpus if not cpu % n_sharing)}:
            caches = [("1", "Data", kind.l1d), ("1", "Instruction", "192K"), ("2", "Unified", kind.l2)]
            caches += [("3", "Unified", kind.l3)] if kind.l3 else []
            for index, values in enumerate(caches):
                cache = f"{CPUS}/cpu{cpu}/cache/index{index}"
                files |= {
                    f"{cache}/{name}": value for name, value in zip(("level", "type", "size"), values, strict=True)
                }
                if values[0] == "3":
                    files[f"{cache}/shared_cpu_list"] = format_range(cpu - cpu % n_sharing, n_sharing)
    size = n_cpus // host.n_numa_nodes
    for node in range(host.n_numa_nodes):
        files[f"sys/devices/system/node/node{node}/cpulist"] = format_range(node * size, size)
    files |= {
        f"{CPUS}/online": format_range(0, n_cpus),
        "proc/cpuinfo": "\n".join(cpuinfo),
        "proc/self/status": f"Cpus_allowed_list:\t{allowed or format_range(0, n_cpus)}",
        "proc/self/cgroup": "0::/pod",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
    }
    if quota:
        files["sys/fs/cgroup/pod/cpu.max"] = quota
    return {name: f"{text}\n" for name, text in files.items()}


def format_range(first: int, size: int) -> str:
    """Return a range of CPUs in the format of the kernel."""
    return f"{first}-{first + size - 1}"


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder, and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def read_files(root: Path, files: dict[str, str], machine: str = "x86_64") -> Host:
    """Write the files of a host to an empty folder, and read the host."""
    write_files(root, files)
    with mock.patch.object(platform, "machine", return_value=machine):
        return read_host(root, memory=False)
