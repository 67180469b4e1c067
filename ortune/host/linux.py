"""Reads a Linux host from sysfs, procfs and cgroup files.

All functions take a `root`, so that they can also read a dump of another host. Files that are missing, empty or invalid
make the result less detailed; they never raise an exception.

Source: the kernel's documentation (Documentation/ABI/stable/sysfs-devices-system-cpu, admin-guide/cputopology,
admin-guide/cgroup-v1 and cgroup-v2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ortune.host.topology import Core, Cpus, NumaNode, Quota, Topology
from ortune.limited import read_limited

MAX_CPU_ID = 1 << 14
"""Larger ids are invalid. The limit of the kernel (NR_CPUS) is 8192."""

MOST_SYSTEM_FILE_BYTES = 16 << 20
"""Largest size of a file that is read. /proc/cpuinfo of 8192 CPUs has 12 MB."""


def parse_cpu_list(text: str) -> Cpus:
    """Parse the kernel's list format, `0-3,8,10-11`, with the strided form `0-7:2/4`.

    Ids are sorted. Invalid parts are ignored.
    """
    cpus: set[int] = set()
    for part in text.replace("\0", "").strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6})/(\d{1,6}))?)?\s*", part)
        if not match:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= MAX_CPU_ID:
            continue
        used, group = int(match[3] or 1), int(match[4] or 1)
        if used < 1 or group < used:
            continue
        cpus.update(cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
    return tuple(sorted(cpus))


def parse_cpu_mask(text: str) -> Cpus:
    """Parse the kernel's mask format: comma-separated 32-bit hexadecimal words, most significant first."""
    words = text.replace("\0", "").strip().split(",")
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words) or len(words) > MAX_CPU_ID // 32:
        return ()
    bits = int("".join(word.rjust(8, "0") for word in words), 16)
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def read_text(path: Path) -> str:
    """Return the text of a file without NUL bytes, or "" if it cannot be read."""
    try:
        return read_limited(path, MOST_SYSTEM_FILE_BYTES).replace(b"\0", b"").decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


def _read_cpus(directory: Path, *names: str) -> Cpus:
    """Return the first non-empty CPU set among these files.

    The file NAME_list is in list format. If it is missing or truncated, the file NAME in mask format is read.
    """
    for name in names:
        cpus = parse_cpu_list(read_text(directory / f"{name}_list"))
        if not cpus:
            cpus = parse_cpu_mask(read_text(directory / name))
        if cpus:
            return cpus
    return ()


def _read_int(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def find_numbered(directory: Path, prefix: str) -> dict[int, Path]:
    """Return the entries of a directory whose names are `prefix` and a number, by number."""
    found = {}
    try:
        entries = sorted(directory.iterdir())
    except (OSError, ValueError):
        return {}
    for entry in entries:
        match = re.fullmatch(re.escape(prefix) + r"(\d{1,5})", entry.name)
        if match:
            found[int(match[1])] = entry
    return dict(sorted(found.items()))


def _group(cpus: Iterable[int], members: dict[int, Cpus], online: set[int]) -> tuple[Cpus, ...]:
    """Return disjoint groups of online CPUs, ordered by their first CPU.

    Args:
        cpus: CPUs to group.
        members: For each CPU, the members of its group. A CPU that is in several groups stays in the first.
        online: Online CPUs. Others are removed from the groups.
    """
    groups: list[Cpus] = []
    seen: set[int] = set()
    for cpu in sorted(cpus):
        if cpu in seen:
            continue
        group = {member for member in (cpu, *members.get(cpu, ())) if member in online and member not in seen}
        seen |= group
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def read_topology(root: Path) -> Topology | None:
    """Return the topology, or None if sysfs lists no CPU."""
    base = root / "sys/devices/system/cpu"
    directories = find_numbered(base, "cpu")
    offline = set(parse_cpu_list(read_text(base / "offline")))
    online = set(parse_cpu_list(read_text(base / "online")))
    if not online:
        # Kernels before 2.6.26 have no `online` file. An offline CPU has no topology directory.
        online = {cpu for cpu, path in directories.items() if (path / "topology").is_dir()} - offline
    if not online:
        online = set(directories) - offline
    if not online:
        return None
    siblings = {cpu: path / "topology" for cpu, path in directories.items() if cpu in online}
    core_groups = _group(
        online,
        {cpu: _read_cpus(path, "core_cpus", "thread_siblings") for cpu, path in siblings.items()},
        online,
    )
    packages = _group(
        online,
        {cpu: _read_cpus(path, "package_cpus", "core_siblings") for cpu, path in siblings.items()},
        online,
    )
    package_of = {cpu: position for position, package in enumerate(packages) for cpu in package}
    kinds = _read_kinds(root, online)
    kind_of = {cpu: position for position, kind in enumerate(kinds) for cpu in kind}
    return Topology(
        online=tuple(sorted(online)),
        cores=tuple(
            Core(cpus=group, package=package_of[group[0]], kind=kind_of.get(group[0])) for group in core_groups
        ),
        packages=packages,
        numa_nodes=_read_numa_nodes(root, online),
        l3_domains=_read_l3_domains(directories, online),
        kinds=kinds,
        source="sysfs",
    )


def _read_numa_nodes(root: Path, online: set[int]) -> tuple[NumaNode, ...]:
    nodes = []
    for number, path in find_numbered(root / "sys/devices/system/node", "node").items():
        cpus = parse_cpu_list(read_text(path / "cpulist")) or parse_cpu_mask(read_text(path / "cpumap"))
        nodes.append(NumaNode(id=number, cpus=tuple(cpu for cpu in cpus if cpu in online)))
    if not any(node.cpus for node in nodes):
        return (NumaNode(id=0, cpus=tuple(sorted(online))),)
    return tuple(nodes)


def _read_l3_domains(directories: dict[int, Path], online: set[int]) -> tuple[Cpus, ...]:
    shared: dict[int, Cpus] = {}
    for cpu in sorted(online & set(directories)):
        for index in find_numbered(directories[cpu] / "cache", "index").values():
            if _read_int(index / "level") == 3:
                shared[cpu] = _read_cpus(index, "shared_cpu") or parse_cpu_mask(read_text(index / "shared_cpu_map"))
    return _group(shared, shared, online)


def _read_kinds(root: Path, online: set[int]) -> tuple[Cpus, ...]:
    """Return the CPUs of each kind of core, from slowest to fastest, or nothing if all cores are of one kind.

    `cpuinfo_max_freq` cannot be used, because it differs between cores of one kind: favored cores have a higher one.
    """
    devices = root / "sys/devices"
    atoms = set(parse_cpu_list(read_text(devices / "cpu_atom/cpus"))) & online
    cores = set(parse_cpu_list(read_text(devices / "cpu_core/cpus"))) & online
    if atoms and cores and not atoms & cores:
        return (tuple(sorted(atoms)), tuple(sorted(cores)))
    for name in ("cpu_capacity", "cpufreq/base_frequency"):
        values = {cpu: _read_int(devices / f"system/cpu/cpu{cpu}" / name) for cpu in sorted(online)}
        known = {cpu: value for cpu, value in values.items() if value and value > 0}
        if len(known) == len(online):
            kinds = _cluster(known)
            return kinds if len(kinds) > 1 else ()
    return ()


def _cluster(values: dict[int, int], tolerance: float = 0.1) -> tuple[Cpus, ...]:
    """Return groups of CPUs with similar values, in ascending order.

    Args:
        values: Value of each CPU.
        tolerance: Largest relative difference from the lowest value of a group.
    """
    groups: list[list[int]] = []
    least = 0
    for cpu, value in sorted(values.items(), key=lambda item: (item[1], item[0])):
        if not groups or value > least * (1 + tolerance):
            groups.append([])
            least = value
        groups[-1].append(cpu)
    return tuple(tuple(sorted(group)) for group in groups)


def read_allowed_cpus(root: Path) -> Cpus:
    """Return the affinity mask of this process, or its cpuset if there is no mask, or nothing.

    The mask is always within the cpuset. Some systems and dumps have no mask.
    """
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", read_text(root / "proc/self/status"), re.MULTILINE)
    if match:
        return parse_cpu_list(match[1])
    for controller, name in (("", "cpuset.cpus.effective"), ("cpuset", "cpuset.effective_cpus")):
        for directory in cgroup_directories(root, controller)[:1]:
            cpus = parse_cpu_list(read_text(directory / name))
            if cpus:
                return cpus
    return ()


class Mount(NamedTuple):
    """A mount.

    Attributes:
        root: Directory of the file system that is mounted.
        point: Where it is mounted.
        kind: Type of the file system.
        options: Mount options.
    """

    root: str
    point: str
    kind: str
    options: list[str]


def read_mounts(root: Path) -> list[Mount]:
    """Return the mounts of this process from mountinfo, or from the older and less detailed `/proc/mounts`."""
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) >= 5 and len(rest) >= 3:
            mounts.append(Mount(_unescape(fields[3]), _unescape(fields[4]), rest[0], rest[2].split(",")))
    if mounts:
        return mounts
    for line in read_text(root / "proc/mounts").splitlines():
        fields = line.split()
        if len(fields) >= 4:
            mounts.append(Mount("/", _unescape(fields[1]), fields[2], fields[3].split(",")))
    return mounts


def read_cgroup(root: Path, controller: str) -> str | None:
    """Return the path of this process in the hierarchy of a cgroup controller, or in the v2 hierarchy for ""."""
    lines = read_text(root / "proc/self/cgroup").splitlines()
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if (controller in controllers.split(",")) if controller else (number == "0" and not controllers):
            return name
    if not lines and controller in {"", "cpuset"}:
        return read_text(root / "proc/self/cpuset") or None
    return None


def cgroup_directories(root: Path, controller: str) -> list[Path]:
    """Return the directories of this process's cgroup for `controller`, from the leaf up to the mount.

    Args:
        root: Folder that contains `/proc` and `/sys`.
        controller: Name of a v1 controller, or "" for the v2 hierarchy.
    """
    path = read_cgroup(root, controller)
    if path is None:
        return []
    for mount in read_mounts(root):
        if mount.kind != ("cgroup" if controller else "cgroup2"):
            continue
        if controller and controller not in mount.options:
            continue
        point = root / mount.point.lstrip("/")
        # In a container, only a subtree of the hierarchy may be mounted.
        relative = _relative_to_mount(path, mount.root)
        leaf = point / relative if relative is not None else point
        return [leaf, *(parent for parent in leaf.parents if parent == point or point in parent.parents)]
    return []


def _unescape(text: str) -> str:
    """Replace the octal escapes of mountinfo. A space is written as a backslash and 040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _relative_to_mount(path: str, mount_root: str) -> str | None:
    """Return a path relative to the root of a mount, or None if it is outside of the mount."""
    pure = PurePosixPath(path)
    if ".." in pure.parts or "\0" in path:
        return None
    try:
        return str(pure.relative_to(mount_root))
    except ValueError:
        return None


def read_quota(root: Path) -> Quota | None:
    """Return the smallest CPU quota of this process's cgroups and their ancestors, v1 and v2."""
    quotas = []
    for directory in cgroup_directories(root, ""):
        fields = read_text(directory / "cpu.max").split()
        if len(fields) == 2 and all(re.fullmatch(r"\d{1,15}", field) for field in fields):
            quotas.append((int(fields[0]), int(fields[1]), directory))
    for directory in cgroup_directories(root, "cpu"):
        runtime = _read_int(directory / "cpu.cfs_quota_us")
        period = _read_int(directory / "cpu.cfs_period_us")
        if runtime is not None and period is not None:
            quotas.append((runtime, period, directory))
    found = [
        Quota(cpus=runtime / period, where=_strip_root(directory, root))
        for runtime, period, directory in quotas
        if runtime > 0 and period > 0
    ]
    return min(found, key=lambda quota: quota.cpus, default=None)


def _strip_root(path: Path, root: Path) -> str:
    return "/" + str(path.relative_to(root)) if path != root else "/"


def read_memory_limit_bytes(root: Path) -> int | None:
    """Return the memory that the limits of this process's cgroups leave, or None if they set no limit.

    The page cache counts as used, but the kernel reclaims it when a process needs memory. Reading a model, for example
    to compute its digest, fills the cache with it. Reading it again makes it active, and it can still be reclaimed.

    Source: `si_mem_available` in `mm/show_mem.c` of Linux, which counts both parts of the page cache as available.
    """
    free = []
    names = (
        ("", "memory.max", "memory.current", ""),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    )
    for controller, limit_name, usage_name, prefix in names:
        for directory in cgroup_directories(root, controller):
            limit, usage = _read_int(directory / limit_name), _read_int(directory / usage_name)
            # In v1, "no limit" is a number near 2^63.
            if limit is not None and usage is not None and 0 < limit < 1 << 60:
                stat = read_text(directory / "memory.stat")
                cache = re.findall(rf"^{prefix}(?:in)?active_file (\d{{1,18}})$", stat, re.MULTILINE)
                used = max(usage - sum(map(int, cache)), 0)
                free.append(max(limit - used, 0))
    return min(free, default=None)
