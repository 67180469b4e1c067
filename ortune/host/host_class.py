"""Host classes: hosts of the same class can share a config."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec

from ortune.host.microarchitectures import name_generation
from ortune.host.processor import MOST_CHARACTERS, Caches, CpuType
from ortune.host.topology import Host
from ortune.numbers import FEW, Count


class HostClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of hosts that can share a config: all properties are the same, including usable CPUs and quota.

    Attributes:
        id: Short hash of all other fields, without `name`.
        name: Short human-readable description. It is not compared.
        system: Operating system, as `platform.system()` names it.
        machine: Architecture, as `platform.machine()` names it.
        cpu_model: Marketing name of the CPU; empty if unknown.
        platform: Manufacturer or model of the machine, if the CPU has no marketing name.
        cpu: Type of the CPU: its generation. None if unknown.
        instructions: Instruction sets of the CPU that ONNX Runtime has kernels for, separated by spaces.
        caches: Sizes of its caches; None if unknown.
        virtual: Whether the host is a virtual machine; None if unknown.
        n_memory_channels: Memory channels in use; None if unknown.
        n_logical: Online logical CPUs.
        n_cores: Physical cores.
        n_packages: Packages (sockets).
        n_numa_nodes: NUMA nodes with CPUs.
        n_usable: Logical CPUs that the process may use.
        n_usable_cores: Physical cores with at least one such CPU.
        n_usable_numa_nodes: NUMA nodes with at least one such CPU.
        n_usable_l3_caches: L3 caches with at least one such CPU; None if unknown.
        usable_cores_by_kind: Number of usable cores of each kind, from slowest to fastest; empty if all cores of the
            host are of one kind.
        cpu_quota: CPU quota, as CPU time per unit of wall time; None if there is none.
    """

    id: str
    name: str
    system: str
    machine: str
    cpu_model: str
    platform: str = ""
    cpu: CpuType | None = None
    instructions: str = ""
    caches: Caches | None = None
    virtual: bool | None = None
    n_memory_channels: Count | None = None
    n_logical: Count
    n_cores: Count
    n_packages: Count
    n_numa_nodes: Count
    n_usable: Count
    n_usable_cores: Count
    n_usable_numa_nodes: Count
    n_usable_l3_caches: Count | None = None
    usable_cores_by_kind: Annotated[tuple[Count, ...], FEW] = ()
    cpu_quota: float | None = None

    @classmethod
    def of(cls, host: Host) -> HostClass:
        """Return the class of a host."""
        topology, processor, usable = host.topology, host.processor, set(host.limits.usable)
        usable_cores = [core for core in topology.cores if usable.intersection(core.cpus)]
        counts = [sum(core.kind == kind for core in usable_cores) for kind in range(len(topology.kinds))]
        found = cls(
            id="",
            name="",
            system=host.system,
            machine=host.machine,
            cpu_model=host.cpu_model,
            platform=processor.platform,
            cpu=processor.cpu,
            instructions=processor.instructions,
            caches=processor.caches,
            virtual=processor.virtual,
            n_memory_channels=processor.n_memory_channels,
            n_logical=len(topology.online),
            n_cores=len(topology.cores),
            n_packages=len(topology.packages),
            n_numa_nodes=sum(1 for node in topology.numa_nodes if node.cpus),
            n_usable=len(host.limits.usable),
            n_usable_cores=len(usable_cores),
            n_usable_numa_nodes=sum(1 for node in topology.numa_nodes if usable.intersection(node.cpus)),
            n_usable_l3_caches=sum(1 for cpus in topology.l3_domains if usable.intersection(cpus)) or None,
            usable_cores_by_kind=tuple(counts),
            cpu_quota=host.limits.quota.cpus if host.limits.quota else None,
        )
        properties = {name: getattr(found, name) for name in PROPERTY_NAMES}
        digest = hashlib.sha256(msgspec.json.encode(properties, order="deterministic")).hexdigest()
        return msgspec.structs.replace(found, id=digest[:16], name=_name(found))

    @property
    def cpu_name(self) -> str:
        """Marketing name of the CPU and its generation, as far as they are known."""
        return _name_cpu(self, self.cpu_model)

    def includes(self, host: HostClass) -> bool:
        """Return whether the hosts of another class belong to this one, as far as it is known."""
        return not self.differences(host)

    def differences(self, host: HostClass) -> dict[str, tuple[object, object]]:
        """Return the properties that differ, with the values of this class and of `host`."""
        return {
            name: (own, other)
            for name in PROPERTY_NAMES
            if (own := getattr(self, name)) != (other := getattr(host, name))
            and not (name in MAY_BE_HIDDEN and (own in UNKNOWN or other in UNKNOWN))
        }


PROPERTY_NAMES = {
    "system": "operating system",
    "machine": "architecture",
    "cpu_model": "CPU",
    "platform": "platform",
    "cpu": "CPU type",
    "instructions": "instruction sets",
    "caches": "caches",
    "virtual": "virtual machine",
    "n_memory_channels": "memory channels",
    "n_logical": "logical CPUs",
    "n_cores": "physical cores",
    "n_packages": "packages",
    "n_numa_nodes": "NUMA nodes",
    "n_usable": "usable CPUs",
    "n_usable_cores": "usable cores",
    "n_usable_numa_nodes": "usable NUMA nodes",
    "n_usable_l3_caches": "usable L3 caches",
    "usable_cores_by_kind": "usable cores of each kind",
    "cpu_quota": "CPU quota",
}
"""The properties that decide whether two hosts are of one class, with their names in messages."""

UNKNOWN = (None, "", ())

MAY_BE_HIDDEN = frozenset({"caches", "virtual", "n_memory_channels", "n_usable_l3_caches"})
"""Those that a host reports only with a driver, or outside a sandbox. Unknown on one side, they do not differ."""

OF_LIMITS = frozenset(
    {"n_usable", "n_usable_cores", "n_usable_numa_nodes", "n_usable_l3_caches", "usable_cores_by_kind", "cpu_quota"}
)
"""Those that follow from the limits of a process or container. Several may hold on one machine at a time."""

MARKETING = re.compile(r"\((?:R|TM|tm|C)\)|\bCPU\b|@ .*| with .*| (?:\w+-Core )?Processor\b.*|\s+")
"""Parts of marketing names that distinguish nothing."""


def _name(host: HostClass) -> str:
    """Return a short description, such as "AMD EPYC 9B14 (Zen 4), 8 cores, quota 2"."""
    facts = [
        _name_cpu(host, " ".join(MARKETING.sub(" ", host.cpu_model[:MOST_CHARACTERS]).split())),
        f"{host.n_usable_cores} core{'s' * (host.n_usable_cores != 1)}",
    ]
    if host.n_usable > host.n_usable_cores:
        facts.append(f"{host.n_usable} threads")
    if host.n_usable_numa_nodes > 1:
        facts.append(f"{host.n_usable_numa_nodes} NUMA nodes")
    if host.cpu_quota is not None:
        facts.append(f"quota {host.cpu_quota:g}")
    return ", ".join(facts)


def _name_cpu(host: HostClass, brand: str) -> str:
    generation = name_generation(host.cpu) if host.cpu else ""
    if brand:
        return f"{brand} ({generation})" if generation else brand
    name = generation or (str(host.cpu) if host.cpu else "") or host.machine or "unknown CPU"
    return f"{name} ({host.platform})" if host.platform else name


def format_property(name: str, value: object) -> str:
    """Return a human-readable value of a property.

    Args:
        name: Name of its field.
        value: The value.
    """
    match value:
        case None | "" | ():
            return "none" if name == "cpu_quota" else "unknown"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case tuple():
            return "+".join(map(str, value))
        case CpuType():
            generation = name_generation(value)
            return f"{generation} ({value})" if generation else str(value)
    return str(value)


def format_difference(name: str, recorded: object, here: object) -> tuple[str, str]:
    """Return both values of a property that differs. Only instruction sets that one side lacks are listed."""
    if name != "instructions" or not recorded or not here:
        return format_property(name, recorded), format_property(name, here)
    sets = [str(text).split() for text in (recorded, here)]
    more, others = (
        [instruction for instruction in own if instruction not in other] for own, other in (sets, sets[::-1])
    )
    return ", ".join(more) or "fewer", ", ".join(others) or "fewer"


def describe_difference(name: str, recorded: object, here: object) -> str:
    """Return a human-readable difference, such as `logical CPUs 64 in the record, 2 here`."""
    there, this = format_difference(name, recorded, here)
    return f"{PROPERTY_NAMES[name]} {there} in the record, {this} here"
