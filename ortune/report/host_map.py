"""Draws the host of a measurement, with the CPUs on which threads ran, and those that they are pinned to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ortune.console.widgets import format_count
from ortune.host import Cpus, HostClass, Topology
from ortune.host.host_class import PROPERTY_NAMES, UNKNOWN, format_property
from ortune.numbers import format_quota
from ortune.report.blocks import Cpu, Facts, HostMap
from ortune.worker import CpuPlace, Runtime, SessionInfo


def draw_host(
    title: str, topology: Topology, usable: Cpus, session: SessionInfo | None, places: Sequence[CpuPlace] = ()
) -> HostMap:
    """Return a drawing of the CPUs, with the CPU time of a session's threads on each, and those that are pinned to it.

    Args:
        title: Whose threads they are.
        topology: The CPUs.
        usable: Those that the processes could use; empty if that is unknown.
        session: The session; None if what took effect is unknown.
        places: CPU time of the threads on each CPU; empty if unknown.
    """
    free = set(usable) or set(topology.online)
    pinned: Counter[int] = Counter()
    n_free = n_pinned = 0
    for thread in session.threads if session else ():
        if set(thread.cpus) >= free:
            n_free += 1
        else:
            n_pinned += 1
            pinned.update(set(thread.cpus))
    total_ns = sum(place.pool_ns + place.calls_ns for place in places)
    by_cpu = {place.cpu: place for place in places} if total_ns else {}
    none = CpuPlace(cpu=-1, pool_ns=0, calls_ns=0)

    def draw(cpu: int) -> Cpu:
        place = by_cpu.get(cpu, none)
        return Cpu(
            id=cpu,
            usable=cpu in free,
            n_threads=pinned[cpu],
            pool_share=place.pool_ns / max(total_ns, 1),
            calls_share=place.calls_ns / max(total_ns, 1),
        )

    packages = topology.packages or (topology.online,)
    drawn = []
    for package in packages:
        members = set(package)
        cores = [core for core in topology.cores if set(core.cpus) & members]
        drawn.append(tuple(tuple(map(draw, core.cpus)) for core in cores))
    notes = [describe_places(places) if total_ns else "", describe_threads(session, n_pinned, n_free)]
    return HostMap(title=title, packages=tuple(drawn), note=" ".join(filter(None, notes)))


def describe_places(places: Sequence[CpuPlace]) -> str:
    """Return what the shares on a drawing are, in two sentences."""
    pool_ns = sum(place.pool_ns for place in places)
    total_ns = pool_ns + sum(place.calls_ns for place in places)
    return (
        "Each CPU shows its share of the CPU time of all threads: after each block, the time of a thread counts on the "
        f"CPU where it ran last. Pool threads used {pool_ns / total_ns:.0%} of it, threads that make calls the rest."
    )


def describe_threads(session: SessionInfo | None, n_pinned: int, n_free: int) -> str:
    """Return where the pool threads of a session may run, in a sentence."""
    if session is None:
        return "The threads of this config were not recorded."
    if not session.threads:
        return "There are no pool threads: each call runs on the thread that makes it."
    parts = []
    if n_pinned:
        parts.append(f"{format_count(n_pinned, 'pool thread')} only on the CPUs with a frame")
    if n_free:
        parts.append(f"{format_count(n_free, 'pool thread')} on any usable CPU")
    return f"Allowed: {', '.join(parts)}."


def describe_host(host: HostClass, runtime: Runtime) -> Facts:
    """Return what is known of the host and its software."""
    details = [
        (PROPERTY_NAMES[name], format_property(name, value))
        for name in ("cpu", "instructions", "caches", "virtual", "n_memory_channels")
        if (value := getattr(host, name)) not in UNKNOWN
    ]
    quota = [("CPU quota", format_quota(host.cpu_quota))] if host.cpu_quota is not None else []
    return Facts(
        facts=(
            ("CPU", host.cpu_name),
            *details,
            (
                "cores",
                f"{host.n_cores} with {format_count(host.n_logical, 'logical CPU')}; "
                f"usable: {host.n_usable_cores} with {format_count(host.n_usable, 'logical CPU')}",
            ),
            ("packages", f"{host.n_packages}, {format_count(host.n_numa_nodes, 'NUMA node')}"),
            *quota,
            ("system", f"{host.system}, {host.machine}"),
            ("software", describe_runtime(runtime)),
            ("host class", host.id),
        )
    )


def describe_runtime(runtime: Runtime) -> str:
    """Return the versions of the software."""
    return f"onnxruntime {runtime.onnxruntime}, Python {runtime.python}"
