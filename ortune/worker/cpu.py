"""Reads CPU time, threads and memory from procfs. Other systems report less, but these functions never raise."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from ortune.worker.block import Memory
from ortune.worker.session_info import PoolThread

QUIET_SHARE = 0.05
"""Maximum fraction of the usable CPUs that other processes may use without spoiling a block. Below it, two halves of
an A/A comparison differ with a standard deviation of 0.03 instead of 0.11. On hosts with many CPUs, a few busy
processes stay below it. There, a block is also spoiled if other processes use this fraction of one CPU, and a thread
of the worker waits for a CPU for this fraction of the time, because the other threads of a parallel operator wait for
it; or if they share a physical core with it."""

BUSY_THREAD = 0.1
"""A thread that wants a CPU for more than this fraction of a block counts when threads are compared with CPUs."""

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


class ThreadTime(NamedTuple):
    """Time of a thread so far: on a CPU, and ready to run but waiting for one."""

    cpu_ns: int
    wait_ns: int


def read_thread_times() -> dict[int, ThreadTime]:
    """Return the times of this process's threads by their id, or nothing if the system does not report them.

    Source: the kernel's documentation, scheduler/sched-stats.
    """
    times: dict[int, ThreadTime] = {}
    for number in thread_ids():
        try:
            cpu_ns, wait_ns, _ = map(int, Path(f"/proc/self/task/{number}/schedstat").read_bytes().split())
        except (OSError, ValueError):  # it has ended, or the kernel has no such file
            continue
        times[number] = ThreadTime(cpu_ns, wait_ns)
    return times


def find_longest_wait(before: dict[int, ThreadTime], after: dict[int, ThreadTime], wall_ns: int, n_cpus: int) -> int:
    """Return how long the most delayed thread waited for a CPU while there was one for each thread.

    Args:
        before: Times of the threads at the start of the block.
        after: The same at its end.
        wall_ns: Duration of the block.
        n_cpus: Number of usable CPUs.

    Returns:
        The time in ns; 0 if the worker has more busy threads than CPUs, so that its own threads delay each other.
    """
    none = ThreadTime(0, 0)
    spent = [
        ThreadTime(time.cpu_ns - before.get(number, none).cpu_ns, time.wait_ns - before.get(number, none).wait_ns)
        for number, time in after.items()
    ]
    n_busy = sum(time.cpu_ns + time.wait_ns > BUSY_THREAD * wall_ns for time in spent)
    return max((time.wait_ns for time in spent), default=0) if n_busy <= n_cpus else 0


class CpuUse(NamedTuple):
    """How the CPUs were used during a block.

    Attributes:
        wall_ns: Duration of the block.
        n_cpus: Number of usable CPUs.
        n_cores: Number of physical cores that these belong to.
        own_ns: CPU time of the worker.
        foreign_ns: CPU time of other processes. It may be negative by a tick of the kernel's clock.
        longest_wait_ns: How long the most delayed thread of the worker waited for a CPU, where others may be the cause.
    """

    wall_ns: int
    n_cpus: int
    n_cores: int
    own_ns: int
    foreign_ns: int
    longest_wait_ns: int = 0

    @property
    def foreign_share(self) -> float:
        """The fraction of the CPUs' time that other processes used.

        Negative values are kept: errors of single blocks have both signs, and cancel in the mean of many blocks.
        """
        return self.foreign_ns / max(self.wall_ns * self.n_cpus, 1)

    @property
    def contended(self) -> bool:
        """Whether other processes spoiled the block.

        They did if they used many of the CPUs, or some time of one CPU, and either a thread of the worker had to wait,
        or there was not a core for each of the worker's threads and the others. /proc/stat counts in ticks. A
        difference of one tick is within its resolution and does not spoil a block.
        """
        threshold_ns = QUIET_SHARE * self.wall_ns
        foreign_ns = self.foreign_ns - tick_ns()
        if foreign_ns > threshold_ns * self.n_cpus:
            return True
        shares_core = self.n_cores < self.n_cpus and self.own_ns + foreign_ns > self.n_cores * self.wall_ns
        return foreign_ns > threshold_ns and (self.longest_wait_ns > threshold_ns or shares_core)


def tree_ns(root: int) -> int:
    """Return the CPU time of a process and its descendants, including those that have ended; 0 if unknown.

    Only these processes are read, because a host may have thousands of others. Where the kernel does not list children
    (CONFIG_PROC_CHILDREN), all processes are read to find them.

    Source: proc(5): cutime and cstime contain the time of children that were waited for.
    """
    if not LINUX:
        return 0
    children = None if lists_children() else find_children()
    ticks = 0
    pending = [root]
    while pending:
        number = pending.pop()
        folder = Path(f"/proc/{number}")
        try:
            ticks += sum(map(int, read_stat(folder)[11:15]))
            if children is not None:
                pending += children.get(number, [])
                continue
            for task in (folder / "task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended
            continue
    return ticks * tick_ns()


def read_stat(folder: Path) -> list[str]:
    """Return the fields of a process after its name, which is in parentheses and may contain spaces and parentheses."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def lists_children() -> bool:
    """Return whether the kernel lists the children of each thread."""
    return Path("/proc/self/task", str(os.getpid()), "children").exists()


def find_children() -> dict[int, list[int]]:
    """Return the children of all processes."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                children.setdefault(int(read_stat(folder)[1]), []).append(int(folder.name))
    return children


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
