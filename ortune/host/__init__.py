"""The host: its CPUs and memory, and what this process may use of them."""

from __future__ import annotations

from ortune.host.host_class import HostClass
from ortune.host.placement import ProcessPlacement, place_processes
from ortune.host.read import read_host
from ortune.host.topology import Core, Cpus, Host, HostLimits, NumaNode, Quota, Topology

__all__ = [
    "Core",
    "Cpus",
    "Host",
    "HostClass",
    "HostLimits",
    "NumaNode",
    "ProcessPlacement",
    "Quota",
    "Topology",
    "place_processes",
    "read_host",
]
