"""The CPUs of a host, and what this process may use of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from ortune.host.processor import Processor
from ortune.numbers import Count

Cpus = tuple[Count, ...]
"""Ids of logical CPUs as in the operating system (from 0), in ascending order."""


def list_ranges(cpus: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last CPU of each range of consecutive ones, in the given order."""
    found: list[tuple[int, int]] = []
    for cpu in cpus:
        if found and cpu == found[-1][1] + 1:
            found[-1] = found[-1][0], cpu
        else:
            found.append((cpu, cpu))
    return found


class Core(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A physical core.

    Attributes:
        cpus: Its online hardware threads.
        package: Position of its package in `Topology.packages`.
        kind: Position of its kind in `Topology.kinds`; None if all cores are of one kind.
    """

    cpus: Cpus
    package: Count = 0
    kind: Count | None = None


class NumaNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NUMA node. Ids may have gaps. `cpus` is empty if the node has only memory."""

    id: Count
    cpus: Cpus = ()


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The online CPUs, grouped in several ways.

    Attributes:
        online: All online logical CPUs.
        cores: Physical cores, ordered by their first CPU.
        packages: CPUs of each package (socket), ordered by their first CPU.
        numa_nodes: NUMA nodes, ordered by id. A host without NUMA has one node with all CPUs.
        l3_domains: CPUs that share an L3 cache, for each such cache; empty if unknown.
        kinds: CPUs of each kind of core, such as efficiency and performance cores, from slowest to fastest; empty if
            all cores are of one kind.
        source: Where the topology was read. With "psutil" only the counts are reliable: which CPUs are siblings is a
            guess, and packages, NUMA nodes and caches are unknown.
    """

    online: Cpus
    cores: tuple[Core, ...]
    packages: tuple[Cpus, ...]
    numa_nodes: tuple[NumaNode, ...]
    l3_domains: tuple[Cpus, ...] = ()
    kinds: tuple[Cpus, ...] = ()
    source: Literal["sysfs", "sysctl", "psutil"]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CPU quota.

    Attributes:
        cpus: CPU time per unit of wall time, such as 1.5.
        where: The cgroup directory that sets it.
    """

    cpus: float
    where: str


class HostLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of the host that this process may use.

    Attributes:
        usable: Online CPUs in the affinity mask, which is always within the cpuset.
        quota: The smallest CPU quota of this process's cgroup and its ancestors; None if there is none.
        memory_bytes: Memory that is still available, within the limit of the cgroup; None if it was not read.
    """

    usable: Cpus
    quota: Quota | None = None
    memory_bytes: int | None = None

    @property
    def throttled(self) -> bool:
        """Whether a program that uses all usable CPUs is throttled, because the quota is smaller."""
        return self.quota is not None and self.quota.cpus < len(self.usable)


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host as seen by one process.

    Attributes:
        system: Operating system, as `platform.system()` names it.
        machine: Architecture, as `platform.machine()` names it.
        cpu_model: Marketing name of the CPU; empty if unknown.
        processor: Type, instruction sets and caches of the CPUs that the process may use.
        topology: The CPUs.
        limits: What the process may use.
    """

    system: str
    machine: str
    cpu_model: str
    processor: Processor = Processor()
    topology: Topology
    limits: HostLimits

    @property
    def usable_cores(self) -> tuple[Cpus, ...]:
        """The usable CPUs of each physical core that has any, ordered by their first CPU."""
        usable = set(self.limits.usable)
        cores = (tuple(cpu for cpu in core.cpus if cpu in usable) for core in self.topology.cores)
        return tuple(core for core in cores if core)

    @property
    def n_default_threads(self) -> int:
        """Number of threads that ONNX Runtime uses by default: one per physical core of the whole machine."""
        return len(self.topology.cores)
