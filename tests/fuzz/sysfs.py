"""Trees of sysfs and procfs: hosts."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import msgspec

from tests.archives import extract_files
from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.target import DATA, Target, find_folder
from tests.hosts import HOSTS, list_files
from tests.simulated import make_model

SEPARATOR = b"\xfe\xff"
"""Separates paths and contents of a tree."""


def pack_tree(tree: Mapping[str, bytes]) -> bytes:
    return SEPARATOR.join(part for name, content in tree.items() for part in (name.encode(), content))


def unpack_tree(data: bytes) -> dict[str, bytes]:
    parts = data.split(SEPARATOR)
    found = {}
    for name, content in zip(parts[::2], parts[1::2], strict=False):
        text = name.decode("utf-8", "replace").replace("\0", "")
        names = [part[:100] for part in text.split("/") if part not in {"", ".", ".."}][:30]
        if names and len("/".join(names)) < 1000:
            found["/".join(names)] = content
    return found


MORE_CPUS = re.compile(r"/cpu(?:[4-9]|[1-9]\d+)/")
"""CPUs of which files are left out: small trees are written faster."""


SMALL = [host for host in HOSTS.values() if sum(kind.n_cpus for kind in host.kinds) <= 16]
"""Hosts of several CPU generations."""


@functools.cache
def sysfs_seeds() -> tuple[bytes, ...]:
    """Return the files of the dumps in `tests/data/topology` that are read, and trees with cgroups."""
    found = []
    for archive in sorted((DATA / "topology").glob("*.tar.bz2")):
        with tempfile.TemporaryDirectory() as folder:
            extract_files(archive, Path(folder))
            root = min((path.parent for path in Path(folder).rglob("sys")), key=lambda path: len(path.parts))
            files = {name: content for name, content in read_files(root) if not MORE_CPUS.search(name)}
            found.append(pack_tree(files))
    host = {
        "sys/devices/system/cpu/online": b"0-3\n",
        "sys/devices/cpu_atom/cpus": b"2-3",
        "sys/devices/cpu_core/cpus": b"0-1",
        "sys/devices/system/cpu/smt/active": b"1",
        "proc/self/status": b"Cpus_allowed_list:\t0-2\n",
        "proc/cpuinfo": b"model name\t: Some CPU\nflags\t: sse hypervisor\n",
        "proc/loadavg": b"0.5 0.1 0.1 1/100 1",
        "proc/stat": b"cpu 1 2 3 4 5 6 7 8 9 10\n",
    }
    for number in range(4):
        cpu = f"sys/devices/system/cpu/cpu{number}"
        host |= {f"{cpu}/topology/core_cpus_list": f"{number - number % 2}-{number - number % 2 + 1}".encode()}
        host |= {f"{cpu}/cpu_capacity": b"1024", f"{cpu}/cpufreq/scaling_governor": b"powersave"}
        host |= {f"{cpu}/cache/index3/level": b"3", f"{cpu}/cache/index3/shared_cpu_list": b"0-3"}
    new = {
        "proc/self/cgroup": b"0::/a/b\n",
        "proc/self/mountinfo": b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/a/b/cpu.max": b"150000 100000",
        "sys/fs/cgroup/a/memory.max": b"1000000000",
        "sys/fs/cgroup/a/memory.current": b"1000",
        "sys/fs/cgroup/a/memory.stat": b"active_file 10\ninactive_file 5\n",
    }
    old = {
        "proc/self/cgroup": b"4:memory:/x\n3:cpu,cpuacct:/x\n2:cpuset:/\n",
        "proc/self/mountinfo": b"31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        b"32 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": b"50000",
        "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": b"100000",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": b"9223372036854771712",
        "sys/fs/cgroup/memory/x/memory.usage_in_bytes": b"1000",
    }
    generations = (pack_tree({name: text.encode() for name, text in list_files(host).items()}) for host in SMALL)
    cgroups = (host | new, host | old, new | old, host | new)
    return (*found, *generations, *map(pack_tree, cgroups))


def read_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files that are read from a dump of a host."""
    from ortune.host import linux

    opened: dict[Path, None] = {}
    read = linux.read_text

    def note(path: Path) -> str:
        opened[path] = None
        return read(path)

    with contextlib.ExitStack() as patches:
        for module in ("linux", "cpuinfo", "conditions"):
            patches.enter_context(mock.patch(f"ortune.host.{module}.read_text", note))
        read_tree(root)
    for path in opened:
        if path.is_file():
            yield str(path.relative_to(root)), path.read_bytes()


SYSFS_WORDS = tuple(
    text.encode()
    for text in (
        "0-3",
        "0-7:2/4",
        "0-65535",
        "0-999999",
        "ffffffff,ffffffff",
        "max 100000",
        "0 0",
        "-1",
        "0::/../..",
        "cgroup2",
        "\\040",
        "\\777",
        "\t",
        "cpu,",
        "rw,cpu",
        "Cpus_allowed_list:\t0",
        "model name\t: ",
        "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: ",
        "flags\t\t: avx hypervisor",
        "99999999K",
        "0xffffffffffffffff",
        "total_active_file 9",
        "1e9",
    )
)


def mutate_tree(data: bytes, random: Random) -> bytes:
    """Change the names and contents of some files."""
    tree = unpack_tree(data)
    names = list(tree)
    for _ in range(1 + int(random.random() * 6)):
        if not names:
            break
        name, kind = random.choice(names), random.random()
        if kind < 0.5:
            tree[name] = mutate_bytes(tree.get(name, b""), random, SYSFS_WORDS)
        elif kind < 0.65:
            tree[name] = random.choice(SYSFS_WORDS)
        elif kind < 0.75:
            tree.pop(name, None)
        elif kind < 0.9:
            number = random.choice(("0", "1", "3", "77", "9999", "65535", "99999", "x", ""))
            tree[name.translate({ord(digit): number for digit in "0123456789"})[:300]] = tree.get(name, b"")
        elif kind < 0.95:
            part = name.rpartition("/")[0]
            for path in [path for path in tree if path.startswith(part)]:
                del tree[path]
        else:
            tree[f"{name}/{random.choice(names)}"] = b""
    return pack_tree(tree)


_tree: dict[str, bytes] = {}
"""The files of the last tree."""


def write_tree(tree: dict[str, bytes]) -> Path:
    """Write a tree, of which only the differences to the last tree are written."""

    root = find_folder() / "root"
    root.mkdir(exist_ok=True)
    for name in [name for name in _tree if name not in tree]:
        with contextlib.suppress(OSError):  # a file may be where its folder was
            (root / name).unlink()
        del _tree[name]
    for name, content in tree.items():
        if _tree.get(name) == content:
            continue
        path = root / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            _tree[name] = content
        except OSError:
            continue  # a file where a folder should be
    return root


def run_sysfs(data: bytes) -> None:
    """Read a host, and use it in all ways."""
    host = read_tree(write_tree(unpack_tree(data)), show=zlib.crc32(data) % 8 == 0)
    online = set(host.topology.online)
    assert online
    assert host.limits.usable
    assert set(host.limits.usable) <= online
    assert sorted(cpu for core in host.topology.cores for cpu in core.cpus) == sorted(online)


def read_tree(root: Path, *, show: bool = True) -> Any:
    from ortune.console.host import draw_machine
    from ortune.console.safe_console import SafeConsole
    from ortune.host import HostClass, read_host
    from ortune.host.conditions import read_conditions
    from ortune.host.default_pool import find_default_pool
    from ortune.knobs import build_space

    host = read_host(root)
    read_conditions(root)
    host_class = HostClass.of(host)
    assert host_class.includes(host_class)
    assert host_class.name.isprintable()
    assert len(msgspec.json.encode(host_class)) < 4000
    find_default_pool(host)
    build_space(host, make_model())
    if show:
        SafeConsole(file=io.StringIO(), width=80).print(draw_machine(host))
    return host


SYSFS = Target(run_sysfs, sysfs_seeds, mutate_tree)
