"""ONNX Runtime's affinity strings: the grammar, and the ways to place workers on a host's CPUs.

A string has one group for each worker, that is one less than the threads: the caller's own thread is not pinned.
Ids count from 1. A group is either one range, `1-4`, or a list, `1,3,5`, never both.
Source: `onnxruntime_session_options_config_keys.h`, and the parser's behaviour in onnxruntime 1.31.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ortune.host import Cpus, Host

AFFINITIES = "session.intra_op_thread_affinities"
"""The session config entry that holds one."""

MAX_LENGTH = 8192
"""The longest value that a session config entry may have, in characters."""


def format_group(cpus: Iterable[int]) -> str:
    """Write one worker's CPUs, numbered from 0, in ONNX Runtime's grammar."""
    ids = sorted(cpu + 1 for cpu in set(cpus))
    if len(ids) > 1 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}-{ids[-1]}"
    return ",".join(map(str, ids))


def format_affinity(groups: Sequence[Cpus]) -> str:
    """Write the CPUs, numbered from 0, of each worker in turn."""
    return ";".join(format_group(group) for group in groups)


def parse_affinity(text: str) -> tuple[Cpus, ...]:
    """Return the CPUs, numbered from 0, of each worker in turn.

    Raises:
        ValueError: The text is not in ONNX Runtime's grammar, read strictly.
    """
    groups = []
    for group in text.split(";"):
        if match := re.fullmatch(r"([1-9]\d*)-([1-9]\d*)", group):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise ValueError(f"the range {group} runs backwards")
            ids = list(range(first, last + 1))
        elif re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", group):
            ids = [int(part) for part in group.split(",")]
        else:
            raise ValueError(f"{group!r} is neither a range such as 1-4 nor a list such as 1,3,5")
        groups.append(tuple(sorted({number - 1 for number in ids})))
    return tuple(groups)


class Placement:
    """The ways to place the workers of a pool of any size on a host, all inside the usable CPUs."""

    def __init__(self, host: Host) -> None:
        usable = set(host.limits.usable)
        topology = host.topology
        node_of = {cpu: node.id for node in topology.numa_nodes for cpu in node.cpus}
        l3_of = {cpu: number for number, domain in enumerate(topology.l3_domains) for cpu in domain}
        kind_of = {cpu: number for number, kind in enumerate(topology.kinds) for cpu in kind}
        package_of = {cpu: number for number, package in enumerate(topology.packages) for cpu in package}
        # The fastest kind first: the first workers are the ones that every pool size has.
        self.cores = sorted(
            host.usable_cores,
            key=lambda core: (
                -kind_of.get(core[0], 0),
                package_of.get(core[0], 0),
                node_of.get(core[0], 0),
                l3_of.get(core[0], 0),
                core[0],
            ),
        )
        self.cpus = tuple(sorted(usable))
        self.nodes = _largest_first(usable, [node.cpus for node in topology.numa_nodes])
        self.l3_domains = _largest_first(usable, list(topology.l3_domains))
        self.fast = tuple(cpu for cpu in topology.kinds[-1] if cpu in usable) if topology.kinds else ()
        self._domains = self.l3_domains if len(self.l3_domains) > 1 else self.nodes

    def place(self, policy: str, n_threads: int) -> str | None:
        """Return the affinity string for a pool of `n_threads` under `policy`, or None where it has no meaning.

        Policies: `compact` (a core each, neighbours first), `scattered` (a core each, domains in turn),
        `siblings` (both hardware threads of a core each), `threads` (a hardware thread each, cores filled up),
        `l3`, `node`, `fast` (all workers free within one L3 domain, NUMA node, or the fastest kind of core).
        """
        n_workers = n_threads - 1
        if n_workers < 1:
            return None
        groups = getattr(self, f"_{policy}")(n_workers)
        if groups is None or len(groups) != n_workers:
            return None
        text = format_affinity(groups)
        return text if len(text) <= MAX_LENGTH else None

    def _compact(self, n_workers: int) -> list[Cpus]:
        return [core[:1] for core in self.cores[1 : n_workers + 1]]

    def _siblings(self, n_workers: int) -> list[Cpus] | None:
        cores = self.cores[1 : n_workers + 1]
        return list(cores) if any(len(core) > 1 for core in cores) else None

    def _threads(self, n_workers: int) -> list[Cpus] | None:
        if all(len(core) == 1 for core in self.cores):
            return None
        threads: list[Cpus] = [(cpu,) for core in self.cores for cpu in core]
        return threads[1 : n_workers + 1]

    def _scattered(self, n_workers: int) -> list[Cpus] | None:
        if len(self._domains) < 2:
            return None
        remaining = [[core for core in self.cores if core[0] in set(domain)] for domain in self._domains]
        order = []
        while any(remaining):
            for cores in remaining:
                if cores:
                    order.append(cores.pop(0)[:1])
        return order[1 : n_workers + 1]

    def _within(self, cpus: Cpus, n_workers: int) -> list[Cpus] | None:
        if not cpus or len(cpus) == len(self.cpus) or n_workers + 1 > len(cpus):
            return None
        return [cpus] * n_workers

    def _l3(self, n_workers: int) -> list[Cpus] | None:
        return self._within(self.l3_domains[0], n_workers) if self.l3_domains else None

    def _node(self, n_workers: int) -> list[Cpus] | None:
        return self._within(self.nodes[0], n_workers) if self.nodes else None

    def _fast(self, n_workers: int) -> list[Cpus] | None:
        return self._within(self.fast, n_workers)


def _largest_first(usable: set[int], domains: list[Cpus]) -> list[Cpus]:
    """Return the usable part of each domain that has one, the one with most CPUs first."""
    parts = [tuple(cpu for cpu in domain if cpu in usable) for domain in domains]
    return sorted((part for part in parts if part), key=lambda part: (-len(part), part[0]))
