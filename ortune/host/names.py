"""How the properties of a class of hosts are named for people."""

from __future__ import annotations

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
