"""Reads CPU time, threads and memory from procfs. Other systems report less, but these functions never raise."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ortune.worker.block import Memory
from ortune.worker.session_info import PoolThread

QUIET_SHARE = 0.05
"""Maximum fraction of the usable CPUs that other processes may use without spoiling a block. Below it, two halves of
an A/A comparison differ with a standard deviation of 0.03 instead of 0.11."""

LINUX = sys.platform == "linux"


def tick_ns() -> int:
    """Return the resolution of /proc/stat in nanoseconds."""
    return 1_000_000_000 // os.sysconf("SC_CLK_TCK") if LINUX else 0


def busy_ns(cpus: frozenset[int]) -> int | None:
    """Return the time that these CPUs were busy since boot, including steal time; None if unknown.

    Source: proc(5). User time already includes guest time.
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
    """Return the fraction of the CPUs' time that other processes used, and whether it spoils the block.

    /proc/stat counts in ticks. A difference of one tick is within its resolution and does not spoil a block.

    Args:
        foreign_ns: CPU time of other processes.
        wall_ns: Duration of the block.
        n_cpus: Number of usable CPUs.
    """
    capacity_ns = max(wall_ns * n_cpus, 1)
    contended = foreign_ns > QUIET_SHARE * capacity_ns + tick_ns()
    # Negative values are kept: errors of single blocks have both signs, and cancel in the mean of many blocks.
    return foreign_ns / capacity_ns, contended


def tree_ns(root: int) -> int:
    """Return the CPU time of a process and its descendants, including those that have ended; 0 if unknown.

    Only these processes are read, because a host may have thousands of others.

    Source: proc(5): cutime and cstime contain the time of children that were waited for.
    """
    if not LINUX:
        return 0
    ticks = 0
    pending = [str(root)]
    while pending:
        folder = Path("/proc") / pending.pop()
        try:
            # The name of the process, in parentheses, may contain spaces and parentheses.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            for task in (folder / "task").iterdir():
                pending += (task / "children").read_text().split()
        except OSError:  # it has ended
            continue
    return ticks * tick_ns()


def thread_ids() -> frozenset[int]:
    """Return the ids of this process's threads, or nothing if the system does not report them."""
    try:
        return frozenset(int(path.name) for path in Path("/proc/self/task").iterdir())
    except (OSError, ValueError):
        return frozenset()


def read_threads(ids: frozenset[int]) -> tuple[PoolThread, ...]:
    """Return the CPUs that each of these threads may run on, in order of creation."""
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
        # The peak of getrusage survives exec, so that a small worker would report the size of its parent.
        status = Path("/proc/self/status").read_text()
        sizes = dict(re.findall(r"^(VmHWM|VmRSS):\s*(\d+) kB", status, re.MULTILINE))
        steady = int(sizes.get("VmRSS", 0)) * 1024
        # Some sandboxes do not report the peak.
        return Memory(steady_bytes=steady, peak_bytes=max(int(sizes.get("VmHWM", 0)) * 1024, steady))
    import psutil

    info = psutil.Process().memory_info()
    return Memory(steady_bytes=info.rss, peak_bytes=getattr(info, "peak_wset", info.rss))
