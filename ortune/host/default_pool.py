"""The thread pool that ONNX Runtime creates by default on a host, and its problems there."""

from __future__ import annotations

import math

import msgspec

from ortune.host.runtime_variables import POOL_VARIABLE
from ortune.host.topology import Cpus, Host
from ortune.numbers import format_quota

ENOUGH_OF_QUOTA = 0.8
"""Share of a CPU quota that threads must be able to use. On two cores, two threads of squeezenet need 1.28 times the
CPU time of one, so that one is as fast as two under a quota of 1.28 CPUs. Under 1.5 CPUs, one thread was 0.75 to 0.84
times as fast as the default in four models, and two that do not spin 1.03 to 1.12 times (`benchmarks/quota.py`)."""


class DefaultPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thread pool that ONNX Runtime creates by default.

    Attributes:
        n_threads: Number of threads, including the caller's: one per physical core of the whole machine, unless an
            environment variable sets it.
        pinned: CPUs that each of the pool's own threads is pinned to. The caller's thread is not pinned.
        outside: Those of these CPUs that this process may not use.
        faults: Human-readable problems on this host, one sentence each; empty if the pool fits the host.
        n_fitting: Number of threads of a pool that fits the host: one per usable core, within the CPU quota, which may
            be rounded up.
        variable: The environment variable that sets the number of threads; empty if none does.
    """

    n_threads: int
    pinned: tuple[Cpus, ...]
    outside: Cpus
    faults: tuple[str, ...]
    n_fitting: int
    variable: str = ""


def round_quota(cpus: float) -> int:
    """Return how many threads fit a CPU quota: rounded down, unless too much of it would be left.

    Rounded up, all threads wait for the next period once the quota is used up.
    """
    fewer = max(math.floor(cpus), 1)
    return fewer if fewer >= ENOUGH_OF_QUOTA * cpus else math.ceil(cpus)


def find_default_pool(host: Host, chosen: str = "") -> DefaultPool:
    """Return the thread pool that ONNX Runtime creates by default on this host.

    ONNX Runtime reads the topology of the machine, not what the process may use: it ignores CPU quotas and affinity
    masks.

    Args:
        host: The host.
        chosen: Value of the environment variable that sets the number of threads, which are then not pinned. An empty
            one and 0 set nothing, and ONNX Runtime refuses what is not a number.

    Source: onnxruntime 1.31, `GetDefaultThreadAffinities`, and its behavior under taskset, cpusets and quotas.
    `NumThreadsFromEnvironment` of 1.32, and its behavior with each kind of value.
    """
    cores = host.topology.cores
    n_chosen = int(chosen) if chosen.isdecimal() else 0
    n_threads = n_chosen or len(cores)
    pinned = tuple(core.cpus for core in cores[1:]) if host.system in {"Linux", "Windows"} and not n_chosen else ()
    usable = set(host.limits.usable)
    outside = tuple(sorted({cpu for group in pinned for cpu in group} - usable))
    n_usable_cores = len(host.usable_cores)
    faults = []
    if chosen and not chosen.isdecimal():
        faults.append(f"{POOL_VARIABLE} is not a number of threads, so ONNX Runtime creates no session")
    if outside:
        faults.append(
            "threads are pinned to CPUs that this process may not use: under taskset they run there all the same; in a "
            "cpuset, pinning fails with an error message, and they run unpinned"
        )
    if n_threads > n_usable_cores:
        faults.append(f"{n_threads} threads share {n_usable_cores} usable core{'s' * (n_usable_cores != 1)}")
    quota = host.limits.quota
    if quota and n_threads > quota.cpus:
        faults.append(
            f"{n_threads} threads use up the quota of {format_quota(quota.cpus)} early in each period, "
            "and then all wait for the next one"
        )
    n_fitting = min(n_usable_cores, round_quota(quota.cpus)) if quota else n_usable_cores
    return DefaultPool(
        n_threads=n_threads,
        pinned=pinned,
        outside=outside,
        faults=tuple(faults),
        n_fitting=max(n_fitting, 1),
        variable=POOL_VARIABLE if n_chosen else "",
    )
