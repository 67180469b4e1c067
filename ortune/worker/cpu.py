"""Reads what CPUs, threads and memory did, from procfs; elsewhere it tells less, but never raises."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ortune.worker.block import Memory
from ortune.worker.session_info import PoolThread

QUIET_SHARE = 0.05
"""Foreign use above this share of the usable CPUs spoils a block: below it, two halves of an A/A comparison
differ with a standard deviation of 0.03 instead of 0.11."""

LINUX = sys.platform == "linux"


def tick_ns() -> int:
    """Return the resolution of /proc/stat."""
    return 1_000_000_000 // os.sysconf("SC_CLK_TCK") if LINUX else 0


def busy_ns(cpus: frozenset[int]) -> int | None:
    """Return the time that these CPUs have been busy since boot, steal included, or None where it is not told.

    Source: proc(5). Guest time is part of user time already.
    """
    if not LINUX:
        return None
    ticks = 0
    found = False
    try:
        with Path("/proc/stat").open("rb") as file:
            for line in file:
                if not line.startswith(b"cpu"):
                    break
                name, *fields = line.split()
                if len(name) > 3 and int(name[3:]) in cpus:
                    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
                    ticks += user + nice + system + irq + softirq + steal
                    found = True
    except (OSError, ValueError):
        return None
    return ticks * tick_ns() if found else None


def foreign_share(foreign_ns: float, wall_ns: int, n_cpus: int) -> tuple[float, bool]:
    """Return the share of the CPUs' time that others used, and whether it spoils the block.

    /proc/stat counts in ticks, and each CPU's count may be off by one: that much is no sign of contention.
    """
    capacity_ns = max(wall_ns * n_cpus, 1)
    contended = foreign_ns > QUIET_SHARE * capacity_ns + tick_ns()
    # Not cut off at 0: the error of one block is as often below as above, and cancels in the mean of many.
    return foreign_ns / capacity_ns, contended


def tree_ns(root: int) -> int:
    """Return the CPU time of a process and all below it since they began, those that have ended included.

    Source: proc(5): cutime and cstime hold the time of children that were waited for. Returns 0 where it is not told.
    """
    if not LINUX:
        return 0
    times: dict[int, int] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold anything.
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.name)
        parents[number] = int(fields[1])
        times[number] = sum(map(int, fields[11:15]))
    ticks = 0
    for number, time in times.items():
        above: int | None = number
        while above is not None and above != root:
            above = parents.get(above)
        if above == root:
            ticks += time
    return ticks * tick_ns()


def thread_ids() -> frozenset[int]:
    """Return the ids of this process's threads, or nothing where they are not told."""
    try:
        return frozenset(int(path.name) for path in Path("/proc/self/task").iterdir())
    except (OSError, ValueError):
        return frozenset()


def read_threads(ids: frozenset[int]) -> tuple[PoolThread, ...]:
    """Return the CPUs that each of these threads is allowed on, in order of creation."""
    from ortune.host.linux import parse_cpu_list

    threads = []
    for number in sorted(ids):
        try:
            status = Path(f"/proc/self/task/{number}/status").read_text()
        except OSError:
            continue
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
        if match:
            threads.append(PoolThread(cpus=parse_cpu_list(match[1])))
    return tuple(threads)


def read_memory() -> Memory:
    """Return this process's resident memory."""
    if LINUX:
        # Not getrusage: its peak survives exec, so that a small worker shows its parent's size.
        status = Path("/proc/self/status").read_text()
        sizes = dict(re.findall(r"^(VmHWM|VmRSS):\s*(\d+) kB", status, re.MULTILINE))
        steady = int(sizes.get("VmRSS", 0)) * 1024
        # Some sandboxes do not tell the peak.
        return Memory(steady_bytes=steady, peak_bytes=max(int(sizes.get("VmHWM", 0)) * 1024, steady))
    import psutil

    info = psutil.Process().memory_info()
    return Memory(steady_bytes=info.rss, peak_bytes=getattr(info, "peak_wset", info.rss))
