"""The host as pure values: what CPUs there are, and which of them this process may use."""

from __future__ import annotations

from typing import Literal

import msgspec

Cpus = tuple[int, ...]
"""Logical CPU ids as the operating system numbers them (from 0), ascending."""


class Core(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A physical core.

    Attributes:
        cpus: Its online hardware threads.
        package: Position of its package in `Topology.packages`.
        kind: Position of its kind in `Topology.kinds`, or None where all cores are alike.
    """

    cpus: Cpus
    package: int = 0
    kind: int | None = None


class NumaNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NUMA node; `id` may be sparse, and `cpus` is empty for a memory-only node."""

    id: int
    cpus: Cpus = ()


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The online CPUs and how they are grouped.

    Attributes:
        online: All online logical CPUs.
        cores: Physical cores, ordered by their first CPU.
        packages: CPUs of each package (socket), ordered by their first CPU.
        numa_nodes: NUMA nodes, ordered by id; one node with all CPUs where the host has none.
        l3_domains: CPUs that share a last-level cache; empty where it is unknown.
        kinds: CPUs of each kind of core, from least to most performant; empty where all are alike.
        source: Where it was read. With "psutil" only the counts are true: which CPUs are siblings
            is a guess, and nothing is known of packages, nodes and caches.
    """

    online: Cpus
    cores: tuple[Core, ...]
    packages: tuple[Cpus, ...]
    numa_nodes: tuple[NumaNode, ...]
    l3_domains: tuple[Cpus, ...] = ()
    kinds: tuple[Cpus, ...] = ()
    source: Literal["sysfs", "sysctl", "psutil"]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CPU bandwidth limit: CPUs' worth of time, and the cgroup directory that sets it."""

    cpus: float
    where: str


class HostLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this process may use of the host.

    Attributes:
        usable: Online CPUs inside the affinity mask (and so inside any cpuset).
        quota: The tightest CPU quota on the way up from this process's cgroup, or None.
        memory_bytes: Memory that can still be used, within the cgroup limit if there is one.
    """

    usable: Cpus
    quota: Quota | None = None
    memory_bytes: int | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host as one process sees it."""

    system: str
    machine: str
    cpu_model: str
    topology: Topology
    limits: HostLimits

    @property
    def usable_cores(self) -> tuple[Cpus, ...]:
        """Usable CPUs of each physical core that has any, ordered by their first CPU."""
        usable = set(self.limits.usable)
        cores = (tuple(cpu for cpu in core.cpus if cpu in usable) for core in self.topology.cores)
        return tuple(core for core in cores if core)

    @property
    def n_default_threads(self) -> int:
        """Threads that ONNX Runtime makes by default: one per physical core of the whole machine."""
        return len(self.topology.cores)
