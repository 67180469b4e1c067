"""ONNX Runtime's affinity strings: the grammar, and the policies for placing workers on a host's CPUs.

A string has one group per worker, which is one fewer than threads: the calling thread is not pinned. Ids start at 1. A
group is either one range, `1-4`, or a list, `1,3,5`, never both.

Source: `onnxruntime_session_options_config_keys.h`, and the behavior of the parser in onnxruntime 1.31.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A worker imports this module and must start fast.
    from ortune.host import Cpus, Host

MAX_LENGTH = 8192
"""Maximum length of a session config entry's value, in characters."""

LARGEST_ID = 16_384
"""Largest id of a CPU in a string. ONNX Runtime logs a line for each CPU that it does not know."""

MAX_CPUS = 1_000_000
"""Maximum number of CPUs in all groups of a string."""


def format_group(cpus: Iterable[int]) -> str:
    """Return the CPUs of one worker, numbered from 0, in ONNX Runtime's grammar."""
    ids = sorted(cpu + 1 for cpu in set(cpus))
    if len(ids) > 1 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}-{ids[-1]}"
    return ",".join(map(str, ids))


def parse_affinity(text: str) -> tuple[Cpus, ...]:
    """Return the CPUs of each worker, numbered from 0.

    Raises:
        ValueError: The text does not follow ONNX Runtime's grammar, read strictly, or names too many CPUs.
    """
    return tuple(tuple(sorted({number - 1 for number in ids})) for ids in split_affinity(text))


def split_affinity(text: str) -> list[Sequence[int]]:
    """Return the ids of each worker, numbered from 1 as in the text. Ranges are not expanded.

    Raises:
        ValueError: As for `parse_affinity`.
    """
    groups: list[Sequence[int]] = []
    n_cpus = 0
    for group in text.split(";"):
        ids: Sequence[int]
        if match := re.fullmatch(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})", group):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise ValueError(f"the range {group} runs backwards")
            largest, ids = last, range(first, last + 1)
        elif re.fullmatch(r"[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*", group):
            ids = [int(part) for part in group.split(",")]
            largest = max(ids)
        else:
            raise ValueError(f"{group!r} is neither a range such as 1-4 nor a list such as 1,3,5")
        # Not the largest of a range, which has a value for each CPU.
        if largest > LARGEST_ID:
            raise ValueError(f"there is no CPU {largest}")
        n_cpus += len(ids)
        if n_cpus > MAX_CPUS:
            raise ValueError(f"there are more than {MAX_CPUS} CPUs")
        groups.append(ids)
    return groups


class Placement:
    """Policies for placing the workers of a thread pool on the usable CPUs of a host."""

    def __init__(self, host: Host) -> None:
        usable = set(host.limits.usable)
        topology = host.topology
        node_of = {cpu: node.id for node in topology.numa_nodes for cpu in node.cpus}
        l3_of = {cpu: number for number, domain in enumerate(topology.l3_domains) for cpu in domain}
        kind_of = {cpu: number for number, kind in enumerate(topology.kinds) for cpu in kind}
        package_of = {cpu: number for number, package in enumerate(topology.packages) for cpu in package}
        # The fastest kind first: a pool of any size has the first workers.
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
        self._groups: dict[str, list[str]] = {}

    def place(self, policy: str, n_threads: int) -> str | None:
        """Return the affinity string for a pool, or None if the policy does not apply.

        Args:
            policy: `compact` (one core per worker, adjacent cores first), `scattered` (one core per worker, from each
                domain in turn), `siblings` (both hardware threads of a core per worker), `threads` (one hardware
                thread per worker, one core after the other), `l3`, `node` or `fast` (all workers within one L3 domain,
                one NUMA node, or the fastest kind of core).
            n_threads: Number of threads, including the calling thread.
        """
        n_workers = n_threads - 1
        groups = self._groups_of(policy)
        if not 1 <= n_workers <= len(groups):
            return None
        text = ";".join(groups[:n_workers])
        return text if len(text) <= MAX_LENGTH else None

    def count_cores(self, cpus: Cpus) -> int:
        """Return the number of usable cores with one of these CPUs."""
        return sum(1 for core in self.cores if not set(cpus).isdisjoint(core))

    def _groups_of(self, policy: str) -> list[str]:
        """Return the groups of as many workers as the policy can place. A smaller pool uses the first groups."""
        if policy not in self._groups:
            groups: list[Cpus] = getattr(self, f"_{policy}")()
            self._groups[policy] = [format_group(group) for group in groups]
        return self._groups[policy]

    def _compact(self) -> list[Cpus]:
        return [core[:1] for core in self.cores[1:]]

    def _siblings(self) -> list[Cpus]:
        return list(self.cores[1:]) if any(len(core) > 1 for core in self.cores) else []

    def _threads(self) -> list[Cpus]:
        if all(len(core) == 1 for core in self.cores):
            return []
        threads: list[Cpus] = [(cpu,) for core in self.cores for cpu in core]
        return threads[1:]

    def _scattered(self) -> list[Cpus]:
        if len(self._domains) < 2:
            return []
        domains = [set(domain) for domain in self._domains]
        remaining = [[core[:1] for core in self.cores if core[0] in domain] for domain in domains]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*remaining))
        return [core for core in turns if core is not None][1:]

    def _within(self, cpus: Cpus) -> list[Cpus]:
        return [] if len(cpus) == len(self.cpus) else [cpus] * (len(cpus) - 1)

    def _l3(self) -> list[Cpus]:
        return self._within(self.l3_domains[0]) if self.l3_domains else []

    def _node(self) -> list[Cpus]:
        return self._within(self.nodes[0]) if self.nodes else []

    def _fast(self) -> list[Cpus]:
        return self._within(self.fast)


def _largest_first(usable: set[int], domains: list[Cpus]) -> list[Cpus]:
    """Return the usable CPUs of each domain that has some, the largest domain first."""
    parts = [tuple(cpu for cpu in domain if cpu in usable) for domain in domains]
    return sorted((part for part in parts if part), key=lambda part: (-len(part), part[0]))
