"""The thread pool that ONNX Runtime creates by default on a host, and its problems there."""

from __future__ import annotations

import math

import msgspec

from ortune.host.topology import Cpus, Host
from ortune.numbers import format_quota

ENOUGH_OF_QUOTA = 0.8
"""Share of a CPU quota that threads must be able to use. On two cores, two threads of squeezenet need 1.28 times the
CPU time of one, so that one is as fast as two under a quota of 1.28 CPUs. Under 1.5 CPUs, one thread was 0.75 to 0.84
times as fast as the default in four models, and two that do not spin 1.03 to 1.12 times (`benchmarks/quota.py`)."""


class DefaultPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thread pool that ONNX Runtime creates by default.

    Attributes:
        n_threads: Number of threads, including the caller's: one per physical core of the whole machine.
        pinned: CPUs that each of the pool's own threads is pinned to. The caller's thread is not pinned.
        outside: Those of these CPUs that this process may not use.
        faults: Human-readable problems on this host, one sentence each; empty if the pool fits the host.
        n_fitting: Number of threads of a pool that fits the host: one per usable core, within the CPU quota, which may
            be rounded up.
    """

    n_threads: int
    pinned: tuple[Cpus, ...]
    outside: Cpus
    faults: tuple[str, ...]
    n_fitting: int


def round_quota(cpus: float) -> int:
    """Return how many threads fit a CPU quota: rounded down, unless too much of it would be left.

    Rounded up, all threads wait for the next period once the quota is used up.
    """
    fewer = max(math.floor(cpus), 1)
    return fewer if fewer >= ENOUGH_OF_QUOTA * cpus else math.ceil(cpus)


def find_default_pool(host: Host) -> DefaultPool:
    """Return the thread pool that ONNX Runtime creates by default on this host.

    ONNX Runtime reads the topology of the machine, not what the process may use: it ignores CPU quotas and affinity
    masks.

    Source: onnxruntime 1.31, `GetDefaultThreadAffinities`, and its behavior under taskset, cpusets and quotas.
    """
    cores = host.topology.cores
    pinned = tuple(core.cpus for core in cores[1:]) if host.system in {"Linux", "Windows"} else ()
    usable = set(host.limits.usable)
    outside = tuple(sorted({cpu for group in pinned for cpu in group} - usable))
    n_usable_cores = len(host.usable_cores)
    faults = []
    if outside:
        faults.append(
            "threads are pinned to CPUs that this process may not use: under taskset they run there all the same; in a "
            "cpuset, pinning fails with an error message, and they run unpinned"
        )
    if len(cores) > n_usable_cores:
        faults.append(f"{len(cores)} threads share {n_usable_cores} usable core{'s' * (n_usable_cores != 1)}")
    quota = host.limits.quota
    if quota and len(cores) > quota.cpus:
        faults.append(
            f"{len(cores)} threads use up the quota of {format_quota(quota.cpus)} early in each period, "
            "and then all wait for the next one"
        )
    n_fitting = min(n_usable_cores, round_quota(quota.cpus)) if quota else n_usable_cores
    return DefaultPool(
        n_threads=len(cores),
        pinned=pinned,
        outside=outside,
        faults=tuple(faults),
        n_fitting=max(n_fitting, 1),
    )
