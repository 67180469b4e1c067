"""Host classes: hosts of the same class can share a config."""

from __future__ import annotations

import hashlib

import msgspec

from ortune.host.topology import Host


class HostClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of hosts that can share a config: all properties are the same, including usable CPUs and quota.

    Attributes:
        id: Short hash of all other fields.
        system: Operating system, as `platform.system()` names it.
        machine: Architecture, as `platform.machine()` names it.
        cpu_model: Marketing name of the CPU; empty if unknown.
        n_logical: Online logical CPUs.
        n_cores: Physical cores.
        n_packages: Packages (sockets).
        n_numa_nodes: NUMA nodes with CPUs.
        n_usable: Logical CPUs that the process may use.
        n_usable_cores: Physical cores with at least one such CPU.
        cpu_quota: CPU quota, as CPU time per unit of wall time; None if there is none.
    """

    id: str
    system: str
    machine: str
    cpu_model: str
    n_logical: int
    n_cores: int
    n_packages: int
    n_numa_nodes: int
    n_usable: int
    n_usable_cores: int
    cpu_quota: float | None = None

    @classmethod
    def of(cls, host: Host) -> HostClass:
        """Return the class of a host."""
        fields = {
            "system": host.system,
            "machine": host.machine,
            "cpu_model": host.cpu_model,
            "n_logical": len(host.topology.online),
            "n_cores": len(host.topology.cores),
            "n_packages": len(host.topology.packages),
            "n_numa_nodes": sum(1 for node in host.topology.numa_nodes if node.cpus),
            "n_usable": len(host.limits.usable),
            "n_usable_cores": len(host.usable_cores),
            "cpu_quota": host.limits.quota.cpus if host.limits.quota else None,
        }
        digest = hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()
        return cls(id=digest[:16], **fields)  # type: ignore[arg-type]

    def differences(self, other: HostClass) -> dict[str, tuple[object, object]]:
        """Return the fields that differ, with the values of this class and of `other`. The id is not included."""
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in self.__struct_fields__
            if name != "id" and getattr(self, name) != getattr(other, name)
        }


PROPERTY_NAMES = {
    "system": "operating system",
    "machine": "architecture",
    "cpu_model": "CPU",
    "n_logical": "logical CPUs",
    "n_cores": "physical cores",
    "n_packages": "packages",
    "n_numa_nodes": "NUMA nodes",
    "n_usable": "usable CPUs",
    "n_usable_cores": "usable cores",
    "cpu_quota": "CPU quota",
}


def format_property(value: object) -> str:
    """Return a human-readable value of a property."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def describe_difference(name: str, recorded: object, here: object) -> str:
    """Return a human-readable difference, such as `logical CPUs 64 in the record, 2 here`."""
    return f"{PROPERTY_NAMES[name]} {format_property(recorded)} in the record, {format_property(here)} here"
