"""Reads the host that this process runs on, with the most detailed source that the system has."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from ortune.host import cpuinfo, linux
from ortune.host.topology import Core, Host, HostLimits, NumaNode, Topology
from ortune.replaceable import replaceable


@replaceable
def read_host(root: Path = Path("/"), *, memory: bool = True) -> Host:
    """Read the host that this process runs on.

    Args:
        root: Folder that contains `/sys` and `/proc` of a Linux host. Another root reads a dump of another host.
        memory: Whether to read the available memory, which needs psutil.
    """
    if sys.platform == "linux" or root != Path("/"):
        topology = linux.read_topology(root)
        if topology is not None:
            allowed = set(linux.read_allowed_cpus(root))
            usable = tuple(cpu for cpu in topology.online if cpu in allowed) or topology.online
            text = linux.read_text(root / "proc/cpuinfo")
            return Host(
                system="Linux",
                machine=platform.machine(),
                cpu_model=cpuinfo.find_model_name(text),
                processor=cpuinfo.read_processor(root, topology, usable, text),
                topology=topology,
                limits=HostLimits(
                    usable=usable,
                    quota=linux.read_quota(root),
                    memory_bytes=_free_memory_bytes(linux.read_memory_limit_bytes(root)) if memory else None,
                ),
            )
    if sys.platform == "darwin":
        from ortune.host import macos

        values = macos.parse_sysctl(macos.run_sysctl())
        topology = macos.build_topology(values)
        if topology is not None:
            return Host(
                system="Darwin",
                machine=platform.machine(),
                cpu_model=values.get("machdep.cpu.brand_string", ""),
                processor=macos.build_processor(values),
                topology=topology,
                limits=HostLimits(usable=topology.online, memory_bytes=_free_memory_bytes(None) if memory else None),
            )
    return _read_portable(memory=memory)


def read_free_memory_bytes() -> int:
    """Return the memory that is still available, within the limit of the cgroup, in bytes."""
    limit = linux.read_memory_limit_bytes(Path("/")) if sys.platform == "linux" else None
    return _free_memory_bytes(limit)


def _free_memory_bytes(limit: int | None) -> int:
    import psutil

    available = int(psutil.virtual_memory().available)
    return available if limit is None else min(available, limit)


def _count_cpus() -> tuple[int, int]:
    """Return the number of logical CPUs and of physical cores. Without psutil, each CPU counts as a core."""
    try:
        import psutil
    except ImportError:
        n_logical = os.cpu_count() or 1
        return n_logical, n_logical
    n_logical = psutil.cpu_count() or 1
    return n_logical, min(psutil.cpu_count(logical=False) or n_logical, n_logical)


def _read_affinity_mask() -> set[int]:
    """Return the CPUs that this process may use; empty if the system does not report them, as on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    try:
        import psutil
    except ImportError:
        return set()
    try:
        return set(psutil.Process().cpu_affinity() or ())
    except (AttributeError, OSError, psutil.Error):
        return set()


def _read_portable(*, memory: bool) -> Host:
    """Read what Python and psutil report on any system: the number of CPUs, and the affinity mask if there is one.

    ortune-apply contains this module, and has no psutil on Linux and macOS.
    """
    import itertools

    from ortune.host.windows import parse_identifier

    n_logical, n_cores = _count_cpus()
    online = tuple(range(n_logical))
    # psutil does not report which CPUs are siblings. Outside Linux, siblings usually have adjacent ids.
    bounds = [position * n_logical // n_cores for position in range(n_cores + 1)]
    cores = tuple(Core(cpus=online[first:last]) for first, last in itertools.pairwise(bounds))
    mask = _read_affinity_mask() or set(online)
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        cpu_model=platform.processor(),
        processor=parse_identifier(platform.processor()),
        topology=Topology(
            online=online,
            cores=cores,
            packages=(online,),
            numa_nodes=(NumaNode(id=0, cpus=online),),
            source="psutil",
        ),
        limits=HostLimits(
            usable=tuple(cpu for cpu in online if cpu in mask) or online,
            memory_bytes=_free_memory_bytes(None) if memory else None,
        ),
    )
