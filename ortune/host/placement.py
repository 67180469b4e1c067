"""Which CPUs each of several processes gets, so that none of them uses more NUMA nodes or L3 caches than it must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ortune.host.topology import Cpus, Host

Unit = Literal["cores", "L3 domains", "nodes"]
"""What processes are pinned to: to cores of their own, or each to an L3 domain or a NUMA node that it may share with
other processes."""

LEAST_CORE_SHARE = 2 / 3
"""Part of an equal share of the cores that a process gets at least so that it stays within a node."""

Region = tuple[Cpus, ...]
"""The usable CPUs of each of some cores."""


class ProcessPlacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CPUs of each process of a deployment.

    Attributes:
        unit: What processes are pinned to.
        cpus: CPUs of each process.
        nodes_each: NUMA nodes that a process has CPUs of, at most; None on a host with one node.
    """

    unit: Unit
    cpus: tuple[Cpus, ...]
    nodes_each: int | None = None

    def __post_init__(self) -> None:
        """Reject processes without CPUs."""
        if not self.cpus or not all(self.cpus) or any(cpu < 0 for group in self.cpus for cpu in group):
            raise ValueError("each process must have CPUs")

    @property
    def title(self) -> str:
        """A short description, such as `pinned apart within nodes`."""
        if self.unit != "cores":
            return f"pinned to {self.unit}"
        if len(self.cpus) == 1:
            return "pinned"
        if self.nodes_each is None:
            return "pinned apart"
        return "pinned apart within nodes" if self.nodes_each == 1 else f"pinned apart on {self.nodes_each} nodes each"


def list_nodes(host: Host) -> tuple[tuple[Region, ...], ...]:
    """Return the usable cores of each NUMA node, divided into its L3 domains.

    A node without known L3 domains is one domain. Parts without usable cores are left out.
    """
    node_of = {cpu: place for place, node in enumerate(host.topology.numa_nodes) for cpu in node.cpus}
    domain_of = {cpu: place for place, domain in enumerate(host.topology.l3_domains) for cpu in domain}
    nodes: dict[int, dict[int, list[Cpus]]] = {}
    for core in host.usable_cores:
        domains = nodes.setdefault(node_of.get(core[0], -1), {})
        domains.setdefault(domain_of.get(core[0], -1), []).append(core)
    return tuple(tuple(map(tuple, domains.values())) for domains in nodes.values())


def list_units(host: Host) -> tuple[Unit, ...]:
    """Return what processes can be pinned to on a host with these parts."""
    nodes = list_nodes(host)
    n_domains = sum(map(len, nodes))
    units: list[Unit] = ["cores"]
    units += ["nodes"] if len(nodes) > 1 else []
    units += ["L3 domains"] if n_domains > len(nodes) else []
    return tuple(units)


def place_processes(
    host: Host, n_processes: int, *, threads: int | None = None, unit: Unit = "cores"
) -> ProcessPlacement | None:
    """Return the CPUs of each of some processes.

    Processes that get cores of their own all get the same number of them, within one L3 domain where it has enough,
    else within one node, else on whole nodes. They are spread evenly over the nodes. Only where that would leave them
    with too few cores, some have cores of several nodes. Cores that are left over belong to no process.

    Args:
        host: The host.
        n_processes: Processes.
        threads: Threads of each process, which need a core each; None if unknown.
        unit: What processes are pinned to.

    Returns:
        The placement; None if there are too few cores, or no such parts.
    """
    nodes = list_nodes(host)
    if unit not in list_units(host) or n_processes < 1:
        return None
    if unit == "cores":
        parts = _divide(nodes, n_processes, threads)
    else:
        regions = [domain for node in nodes for domain in node] if unit == "L3 domains" else _join_domains(nodes)
        places = _spread([len(region) for region in regions], [n_processes] * len(regions), n_processes)
        parts = [regions[place] for place in places]
    if not parts or not all(parts) or (threads or 1) > min(map(len, parts)):
        return None
    return describe_placement(host, [[cpu for core in part for cpu in core] for part in parts], unit)


def describe_placement(host: Host, cpus: Sequence[Sequence[int]], unit: Unit = "cores") -> ProcessPlacement:
    """Return the placement of processes on these CPUs."""
    nodes = list_nodes(host)
    node_of = {cpu: place for place, node in enumerate(nodes) for domain in node for core in domain for cpu in core}
    nodes_each = max(len({node_of[cpu] for cpu in own}) for own in cpus)
    return ProcessPlacement(
        unit=unit,
        cpus=tuple(tuple(sorted(own)) for own in cpus),
        nodes_each=nodes_each if len(nodes) > 1 else None,
    )


def _divide(nodes: Sequence[Sequence[Region]], n_parts: int, threads: int | None) -> list[Region]:
    """Return parts with the same number of cores, which cross as few borders as possible."""
    cores = tuple(core for node in nodes for domain in node for core in domain)
    equal = len(cores) // n_parts
    if not equal:
        return []
    domains = [domain for node in nodes for domain in node]
    whole = _join_domains(nodes)
    n_nodes = len(nodes) // n_parts
    starts = range(0, n_parts * n_nodes, n_nodes) if n_nodes > 1 else ()
    runs = [tuple(core for node in whole[start : start + n_nodes] for core in node) for start in starts]
    # Without a number of threads, a domain must be large enough for an equal share, and nodes for most of it.
    for regions, least in (
        (domains, threads or equal),
        (whole, threads or LEAST_CORE_SHARE * equal),
        (runs, threads or 1),
    ):
        size = _find_size([len(region) for region in regions], n_parts, equal if regions is not runs else len(cores))
        if size and size >= least:
            return _cut(regions, nodes, n_parts, size)
    return [cores[first : first + equal] for first in range(0, n_parts * equal, equal)]


def _join_domains(nodes: Sequence[Sequence[Region]]) -> list[Region]:
    """Return the cores of each node."""
    return [tuple(core for domain in node for core in domain) for node in nodes]


def _find_size(sizes: Sequence[int], n_parts: int, most: int) -> int:
    """Return the largest number of cores of which regions of these sizes hold so many parts; 0 if there is none."""
    return next((size for size in range(most, 0, -1) if sum(n_cores // size for n_cores in sizes) >= n_parts), 0)


def _cut(regions: Sequence[Region], nodes: Sequence[Sequence[Region]], n_parts: int, size: int) -> list[Region]:
    """Return parts of a size, spread evenly over the regions, and over the nodes first."""
    node_of = {core: place for place, node in enumerate(nodes) for domain in node for core in domain}
    by_node: dict[int, list[int]] = {}
    for place, region in enumerate(regions):
        by_node.setdefault(node_of[region[0]], []).append(place)
    groups = list(by_node.values())
    n_slots = [[len(regions[place]) // size for place in group] for group in groups]
    weights = [sum(len(regions[place]) for place in group) for group in groups]
    chosen = _spread(weights, [sum(slots) for slots in n_slots], n_parts)
    found = []
    for number, group in enumerate(groups):
        in_group = _spread([len(regions[place]) for place in group], n_slots[number], chosen.count(number))
        for place in dict.fromkeys(in_group):
            region = regions[group[place]]
            found += [region[first * size : (first + 1) * size] for first in range(in_group.count(place))]
    return found


def _spread(weights: Sequence[int], most: Sequence[int], n: int) -> list[int]:
    """Return a place for each of `n` items, in ascending order: in proportion to weights, but at most so many each."""
    counts = [0] * len(weights)
    for _ in range(n):
        free = [place for place, count in enumerate(counts) if count < most[place]]
        place = min(free, key=lambda number: ((counts[number] + 1) / weights[number], number))
        counts[place] += 1
    return [place for place, count in enumerate(counts) for _ in range(count)]


def pack_processes(host: Host, sizes: Sequence[int]) -> tuple[Cpus, ...] | None:
    """Return CPUs for processes that need different numbers of cores, each core for one process only.

    The largest come first. Each gets cores of one L3 domain, or else of one node, where enough are left, from the one
    with the fewest left.

    Args:
        host: The host.
        sizes: Cores of each process.

    Returns:
        The CPUs of each process; None if there are too few cores.
    """
    if sum(sizes) > len(host.usable_cores):
        return None
    nodes = list_nodes(host)
    free = {
        core: (node, domain) for node, parts in enumerate(nodes) for domain, part in enumerate(parts) for core in part
    }
    found: dict[int, Cpus] = {}
    for place in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size = sizes[place]
        chosen = list(free)
        for width in (1, 2):  # nodes, then domains
            regions: dict[tuple[int, ...], list[Cpus]] = {}
            for core in chosen:
                regions.setdefault(free[core][:width], []).append(core)
            enough = [region for region in regions.values() if len(region) >= size]
            if not enough:
                break
            chosen = min(enough, key=len)
        for core in chosen[:size]:
            del free[core]
        found[place] = tuple(sorted(cpu for core in chosen[:size] for cpu in core))
    return tuple(found[place] for place in range(len(sizes)))
