"""Reads CPU time, threads and memory from procfs. Other systems report less, but these functions never raise."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
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


def read_thread_times(processes: Iterable[int] | None = None) -> dict[int, ThreadTime]:
    """Return the times of threads by their id, or nothing if the system does not report them.

    Args:
        processes: The processes whose threads are read; None for this process.

    Source: the kernel's documentation, scheduler/sched-stats.
    """
    times: dict[int, ThreadTime] = {}
    for process in ("self",) if processes is None else processes:
        for number in thread_ids(process):
            try:
                path = Path(f"/proc/{process}/task/{number}/schedstat")
                cpu_ns, wait_ns, _ = map(int, path.read_bytes().split())
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


class CpuTimes(NamedTuple):
    """CPU times so far.

    Attributes:
        at_ns: When they were read.
        busy_ns: Time that the usable CPUs were busy; None if unknown.
        own_ns: CPU time of what is measured, and of what measures it.
        background_load_ns: CPU time of the background load; 0 if there is none.
        threads: Times of the threads of what is measured; empty if they are not needed.
    """

    at_ns: int
    busy_ns: int | None
    own_ns: int
    background_load_ns: int
    threads: dict[int, ThreadTime]


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


def find_foreign(before: CpuTimes, after: CpuTimes, n_cpus: int, n_cores: int = 0) -> tuple[float | None, bool]:
    """Return the share of CPU time that other processes used, and whether they spoiled the block.

    Args:
        before: The times before the block.
        after: The times after it.
        n_cpus: Number of usable CPUs.
        n_cores: Number of physical cores that these belong to; 0 if unknown.

    Returns:
        The share, None if unknown, and whether the block is spoiled.
    """
    if before.busy_ns is None or after.busy_ns is None:
        return None, False
    own_ns = after.own_ns - before.own_ns
    background_load_ns = after.background_load_ns - before.background_load_ns
    foreign_ns = after.busy_ns - before.busy_ns - own_ns - background_load_ns
    wall_ns = after.at_ns - before.at_ns
    wait_ns = find_longest_wait(before.threads, after.threads, wall_ns, n_cpus)
    use = CpuUse(wall_ns, n_cpus, n_cores or n_cpus, own_ns, foreign_ns, wait_ns)
    return use.foreign_share, use.contended


def tree_ns(root: int) -> int:
    """Return the CPU time of a process and its descendants, including those that have ended; 0 if unknown.

    Source: proc(5): cutime and cstime contain the time of children that were waited for.
    """
    return sum(sum(map(int, fields[11:15])) for _, fields in walk_tree(root)) * tick_ns()


def walk_tree(root: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the ids of a process and its descendants, with their fields of /proc/PID/stat after the name.

    Only these processes are read, because a host may have thousands of others. Where the kernel does not list children
    (CONFIG_PROC_CHILDREN), all processes are read to find them. Nothing is yielded on systems without procfs.
    """
    if not LINUX:
        return
    children = None if lists_children() else find_children()
    pending = [root]
    while pending:
        number = pending.pop()
        folder = Path(f"/proc/{number}")
        try:
            fields = read_stat(folder)
        except OSError:  # it has ended
            continue
        yield number, fields
        if children is not None:
            pending += children.get(number, [])
            continue
        with contextlib.suppress(OSError):  # it has ended
            for task in (folder / "task").iterdir():
                with contextlib.suppress(OSError):  # this thread has ended
                    pending += map(int, (task / "children").read_text().split())


class TreeTimes(NamedTuple):
    """CPU times of the processes of a tree.

    Attributes:
        live: Of each live process, when they were last found.
        ended_ns: Of ended processes, as their parents report it.
        lost_ns: Of ended processes that no parent reports, such as those that nobody waited for.
    """

    live: dict[int, int]
    ended_ns: int
    lost_ns: int


class TreeClock:
    """The CPU time of a process and its descendants, including those that have ended.

    Live processes are read in nanoseconds, so that the CPU time of a short block is exact. The kernel reports the time
    of processes that have ended in ticks of 10 ms.

    Finding descendants takes up to milliseconds where processes have many threads. `read_ns` therefore only reads the
    clocks of the processes that `refresh_ns` found: a microsecond for each.

    Where the kernel does not report clocks of processes, both are `tree_ns`.

    Args:
        root: Id of the process.

    Source: clock_getcpuclockid(3); for the id of the clock, include/linux/posix-timers.h of the kernel.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._has_clocks = LINUX and read_process_ns(os.getpid()) is not None
        self._lock = threading.Lock()
        self._times = TreeTimes({}, 0, 0)
        self.refresh_ns()

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that `refresh_ns` found."""
        return tuple(self._times.live)

    def read_ns(self) -> int:
        """Return the CPU time so far of the processes that are known, and of those that ended."""
        if not self._has_clocks:
            return tree_ns(self._root)
        times = self._times
        total_ns = times.ended_ns + times.lost_ns
        for number in times.live:
            spent_ns = read_process_ns(number)
            if spent_ns is None:  # it has ended
                return self.refresh_ns()
            total_ns += spent_ns
        return total_ns

    def refresh_ns(self) -> int:
        """Find the processes of the tree, and return their CPU time so far.

        If they are the same as before, it is the time at the start of this function, else at its end.
        """
        with self._lock:
            if not self._has_clocks:
                self._times = TreeTimes({number: 0 for number, _ in walk_tree(self._root)}, 0, 0)
                return tree_ns(self._root)
            before = self._times
            early = {number: read_process_ns(number) for number in before.live}
            found = dict(walk_tree(self._root))
            ended_ns = sum(sum(map(int, fields[13:15])) for fields in found.values()) * tick_ns()
            is_same = found.keys() == early.keys() and ended_ns == before.ended_ns
            read = early if is_same else {number: read_process_ns(number) for number in found}
            live = {number: spent_ns for number, spent_ns in read.items() if spent_ns is not None}
            gone = [early[number] or before.live[number] for number in before.live.keys() - live.keys()]
            missing_ns = sum(gone) + before.ended_ns - ended_ns
            # What a process reports of an ended child is rounded down to ticks, for user and system time.
            is_lost = missing_ns > 3 * tick_ns() * len(gone)
            self._times = TreeTimes(live, ended_ns, before.lost_ns + missing_ns * is_lost)
            return sum(live.values()) + ended_ns + self._times.lost_ns


def read_process_ns(number: int) -> int | None:
    """Return the CPU time of a process, summed over its threads; None if it has ended, or if this is not reported."""
    try:
        return time.clock_gettime_ns((~number << 3) | 2)
    except OSError:
        return None


def find_process_ns(number: int) -> int:
    """Return the CPU time of a process, in ticks of the kernel's clock where it is not reported; 0 if unknown."""
    spent_ns = read_process_ns(number) if LINUX else None
    return tree_ns(number) if spent_ns is None else spent_ns


def pin_process(cpus: Iterable[int]) -> None:
    """Let this process run on these CPUs only, with all threads that it starts from now on.

    Raises:
        OSError: The system does not allow it.
    """
    if sys.platform == "linux":
        os.sched_setaffinity(0, cpus)
    else:  # pragma: no cover
        import psutil

        psutil.Process().cpu_affinity(list(cpus))


def read_stat(folder: Path) -> list[str]:
    """Return the fields of a process after its name, which is in parentheses and may contain spaces and parentheses."""
    # Names are cut after 15 bytes, which may be within a character.
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


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


def thread_ids(process: int | str = "self") -> frozenset[int]:
    """Return the ids of a process's threads, by default this one's; nothing if the system does not report them."""
    try:
        return frozenset(int(path.name) for path in Path(f"/proc/{process}/task").iterdir())
    except (OSError, ValueError):
        return frozenset()


def read_threads(ids: frozenset[int]) -> tuple[PoolThread, ...]:
    """Return the CPUs that each of these threads may run on, in order of creation."""
    from ortune.host.linux import parse_cpu_list

    threads = []
    for number in sorted(ids):
        try:
            status = Path(f"/proc/self/task/{number}/status").read_text(errors="replace")
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
        steady, peak = read_resident("self")
        return Memory(steady_bytes=steady, peak_bytes=peak)
    import psutil

    info = psutil.Process().memory_info()
    return Memory(steady_bytes=info.rss, peak_bytes=getattr(info, "peak_wset", info.rss))


def read_resident(process: int | str) -> tuple[int, int]:
    """Return the resident memory of a process in bytes, now and at its peak; zeros for one without memory.

    Raises:
        OSError: It has ended.
    """
    sizes = read_sizes(f"/proc/{process}/status")
    steady = sizes.get("VmRSS", 0)
    # Some sandboxes do not report the peak.
    return steady, max(sizes.get("VmHWM", 0), steady)


def read_sizes(path: str) -> dict[str, int]:
    """Return the sizes in bytes that a file of procfs gives in kB, by their names.

    Raises:
        OSError: It cannot be read.
    """
    text = Path(path).read_text(errors="replace")  # the name of a process may be cut within a character
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s*(\d+) kB", text, re.M)}


def read_tree_memory(root: int) -> Memory:
    """Return the memory of a process and its live descendants.

    Pages that n processes share count as 1/n in each of them, where this is reported (PSS), so that the memory of
    processes that were forked is not counted several times. The peak is the sum of what each process had more at its
    own peak, and therefore an upper bound. On systems without procfs, it is the memory at the moment.
    """
    if not LINUX:
        return _read_tree_memory_elsewhere(root)
    steady = more = 0
    for number, _ in walk_tree(root):
        try:
            resident, peak = read_resident(number)
            try:
                proportional = read_sizes(f"/proc/{number}/smaps_rollup").get("Pss", resident)
            except (PermissionError, FileNotFoundError):  # of another user, or an old kernel
                proportional = resident
        except OSError:  # it has ended
            continue
        steady += proportional
        more += peak - resident
    return Memory(steady_bytes=steady, peak_bytes=steady + more)


def _read_tree_memory_elsewhere(root: int) -> Memory:  # pragma: no cover
    import psutil

    total = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(root)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return Memory(steady_bytes=total, peak_bytes=total)
