"""The class of a host: hosts that can share a config, and how their properties are named for people."""

from __future__ import annotations

import hashlib

import msgspec

from ortune.host.topology import Host


class HostClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The class of a host: hosts with the same fingerprint can share a config.

    Attributes:
        id: A short hash of all the other fields.
        cpu_quota: CPUs' worth of time, or None.
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
        """Return the class that `host` belongs to."""
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
        """Return the fields that differ, each with its value here and in `other`."""
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in self.__struct_fields__
            if name != "id" and getattr(self, name) != getattr(other, name)
        }


HOST_NAMES = {
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


def show_property(value: object) -> str:
    """Return the value of a property, as it is shown."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def describe_difference(name: str, recorded: object, here: object) -> str:
    """Return how a property differs, as `logical CPUs 64 in the record, 2 here`."""
    return f"{HOST_NAMES[name]} {show_property(recorded)} in the record, {show_property(here)} here"
