"""What ONNX Runtime's default thread pool does on a host, and where it does harm."""

from __future__ import annotations

import msgspec

from ortune.host.topology import Cpus, Host


class DefaultPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pool that ONNX Runtime makes when nothing is set.

    Attributes:
        n_threads: Threads, the caller's own included: one per physical core of the whole machine.
        pinned: CPUs that each of the workers is pinned to; the caller's thread is not pinned.
        outside: CPUs among these that this process may not use.
        faults: What is wrong with it here, a sentence each; nothing when it fits.
    """

    n_threads: int
    pinned: tuple[Cpus, ...]
    outside: Cpus
    faults: tuple[str, ...]


def default_pool(host: Host) -> DefaultPool:
    """Return what ONNX Runtime's default would be on this host.

    Source: onnxruntime 1.31, `GetDefaultThreadAffinities` and its behaviour under taskset, cpusets and quotas. It
    reads the machine, not what the process may use: a CPU quota changes nothing, and a mask does not keep workers in.
    """
    cores = host.topology.cores
    pinned = tuple(core.cpus for core in cores[1:]) if host.system in {"Linux", "Windows"} else ()
    usable = set(host.limits.usable)
    outside = tuple(sorted({cpu for group in pinned for cpu in group} - usable))
    n_usable_cores = len(host.usable_cores)
    faults = []
    if outside:
        faults.append(
            "workers are pinned to CPUs that this process may not use: under taskset they escape the mask, in a cpuset "
            "the pinning fails with an error line and they run unpinned"
        )
    if len(cores) > n_usable_cores:
        faults.append(f"{len(cores)} threads share {n_usable_cores} usable core{'s' * (n_usable_cores != 1)}")
    quota = host.limits.quota
    if quota and len(cores) > quota.cpus:
        faults.append(
            f"{len(cores)} threads use up a quota of {quota.cpus:g} CPUs early in each period, "
            "and all stand still for the rest of it"
        )
    return DefaultPool(n_threads=len(cores), pinned=pinned, outside=outside, faults=tuple(faults))
