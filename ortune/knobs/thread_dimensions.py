"""Dimensions of thread pools on the CPU: execution mode, size, affinity, spinning, block base, global pool."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping

import msgspec

from ortune.host import Host, place_processes
from ortune.host.default_pool import find_default_pool
from ortune.knobs import ids
from ortune.knobs.affinity import Placement
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import BETWEEN_SESSIONS, ThreadPool
from ortune.knobs.dimension import DEFAULT_CHOICE, DEFAULT_LABEL, Choice, Dimension, Skipped, make_dimension
from ortune.knobs.space_options import SpaceOptions
from ortune.model import ModelInfo

BLOCK_BASES = ("2", "4", "8")
BLOCK_BASES_OF_MANY_CORES = ("4",)

MANY_CORES = 16
"""From this number of cores on, thread counts and affinities matter most, and other knobs get fewer values."""

RESOLUTION = 1.02
"""Largest ratio of two consecutive thread counts that a search can try, unless they differ by one. If the cost is
inversely proportional to the number of threads up to a step, the best count that it can try is slower by at most this
ratio."""

POLICIES = {
    "compact": "one core per worker, adjacent cores first, to share caches",
    "scattered": "one core per worker, spread over the cache domains, for bandwidth",
    "siblings": "both hardware threads of a core per worker, so that it can move between them",
    "threads": "one hardware thread per worker, one core after the other",
    "l3": "all workers within one L3 domain, free to move inside it",
    "node": "all workers within one NUMA node, close to their memory",
    "fast": "all workers on the fastest kind of core",
}
"""Reason to try each placement policy; see `Placement.place`."""

PARALLEL = "parallel"
"""Label of ORT_PARALLEL."""

SPINNING_OFF = Choice(label="off", value="0", why="workers sleep while they wait and use no CPU between calls")

Found = list[Dimension | Skipped]


def pool_dimension(host: Host, options: SpaceOptions) -> Dimension:
    """Return the choice between one thread pool per session and one for all sessions, of several sizes."""
    n_cores = len(host.usable_cores)
    n_own = max(1, n_cores // options.processes) if options.pinned else n_cores
    counts = sorted({1, max(1, n_cores // (options.sessions * options.processes)), max(1, n_own // 2), n_own})
    choices = [
        Choice(
            label=str(n),
            value=ThreadPool(intra_op_num_threads=n, inter_op_num_threads=1),
            why=f"one pool of {n} for all {options.sessions} sessions: no more threads than cores",
        )
        for n in counts
    ]
    return Dimension(knob=KNOBS[ids.GLOBAL_THREAD_POOL], choices=(DEFAULT_CHOICE, *choices))


def execution_dimensions(host: Host, model: ModelInfo) -> Found:
    """Return the execution mode and its thread pool."""
    width = model.traits.width
    names = (ids.EXECUTION_MODE, ids.INTER_OP_NUM_THREADS, ids.INTER_OP_ALLOW_SPINNING)
    if width < 2:
        why = "this graph has no operators that can run in parallel"
        return [Skipped(knob=KNOBS[name], why=why) for name in names]
    sequential = {ids.EXECUTION_MODE: frozenset({DEFAULT_LABEL})}
    why = f"up to {width} operators of this graph can run in parallel"
    parallel = Choice(label=PARALLEL, value="ORT_PARALLEL", why=why)
    counts = [
        (n, f"{n} operators at a time")
        for n in _inter_counts(width, len(host.usable_cores))
        if n != len(host.topology.cores)
    ]
    return [
        Dimension(knob=KNOBS[ids.EXECUTION_MODE], choices=(DEFAULT_CHOICE, parallel)),
        make_dimension(ids.INTER_OP_NUM_THREADS, *counts, no_effect_when=sequential),
        Dimension(
            knob=KNOBS[ids.INTER_OP_ALLOW_SPINNING],
            choices=(DEFAULT_CHOICE, SPINNING_OFF),
            no_effect_when=sequential,
        ),
    ]


def thread_dimensions(host: Host, options: SpaceOptions, pool: Dimension | None) -> Found:
    """Return the intra-op pool: its size, the affinity and spinning of its workers, and how work is split.

    Args:
        host: The host.
        options: What the space is for.
        pool: The choice of a global pool, under which none of these has an effect, or None.
    """
    counts = thread_counts(host, options.processes)
    if n_fitting := choose_fitting(host, options).get(ids.INTRA_OP_NUM_THREADS):
        fitting = {int(n_fitting): "the threads of all callers together fit the host"}
        counts = dict(sorted((fitting | counts).items()))
    if options.pinned:
        placement = place_processes(host, options.processes)
        most = len(placement.cpus[0]) if placement else 1
        counts = {count: why for count, why in counts.items() if count <= most}
    between = counts_between(counts)
    without_workers = one_thread(host)
    one = {ids.INTRA_OP_NUM_THREADS: without_workers}
    sizes = ((n, why) for n, why in counts.items())
    choices = tuple(Choice(label=str(n), value=n, why=why) for n, why in between.items())
    dimensions = [make_dimension(ids.INTRA_OP_NUM_THREADS, *sizes, between=choices)]
    skipped = []
    # The processes of a load have the same config, and would pin their threads to the same CPUs.
    is_alone = options.processes == 1
    affinities = _affinity_choices(host, counts | between, options.sessions) if is_alone else []
    if affinities:
        no_effect_when = {
            ids.INTRA_OP_NUM_THREADS: without_workers | {DEFAULT_LABEL},
            # Any thread of the inter-op pool may call an operator, so there is no CPU next to the caller.
            ids.EXECUTION_MODE: frozenset({PARALLEL}),
        }
        dimensions.append(
            Dimension(
                knob=KNOBS[ids.INTRA_OP_THREAD_AFFINITIES],
                choices=(DEFAULT_CHOICE, *affinities),
                no_effect_when=no_effect_when,
            )
        )
    else:
        why = "there is only one usable core" if is_alone else "all processes would pin their threads to the same CPUs"
        why = "ONNX Runtime cannot pin threads on macOS" if host.system == "Darwin" else why
        skipped.append(Skipped(knob=KNOBS[ids.INTRA_OP_THREAD_AFFINITIES], why=why))
    bases = BLOCK_BASES if len(host.usable_cores) < MANY_CORES else BLOCK_BASES_OF_MANY_CORES
    blocks = ((base, f"blocks of decreasing size, base {base}: less waiting for late threads") for base in bases)
    spinning = (DEFAULT_CHOICE, SPINNING_OFF)
    dimensions += [
        Dimension(knob=KNOBS[ids.INTRA_OP_ALLOW_SPINNING], choices=spinning, no_effect_when=one),
        make_dimension(ids.DYNAMIC_BLOCK_BASE, *blocks, no_effect_when=one),
    ]
    if pool:
        shared = {pool.name: frozenset(choice.label for choice in pool.choices[1:])}
        dimensions = [
            msgspec.structs.replace(dimension, no_effect_when={**dimension.no_effect_when, **shared})
            for dimension in dimensions
        ]
    return [*dimensions, *skipped]


def one_thread(host: Host) -> frozenset[str]:
    """Return the labels of `intra_op_num_threads` under which the pool has no workers."""
    return frozenset({"1"} | ({DEFAULT_LABEL} if host.n_default_threads == 1 else set()))


def thread_counts(host: Host, n_processes: int = 1) -> dict[int, str]:
    """Return the intra-op thread counts to try, ascending, each with the reason.

    Args:
        host: The host.
        n_processes: Processes that run the model at the same time.
    """
    n_cores = len(host.usable_cores)
    n_cpus = len(host.limits.usable)
    placement = Placement(host)
    reasons: dict[int, str] = {1: "no workers: the calling thread does all the work, without waiting or spinning"}

    def add(count: int, why: str) -> None:
        if 1 <= count <= n_cpus:
            reasons.setdefault(count, why)

    if host.limits.quota:
        quota = host.limits.quota.cpus
        add(max(1, math.floor(quota)), f"fits the CPU quota of {quota:g}")
        add(math.ceil(quota), f"the CPU quota of {quota:g}, rounded up")
    add(n_cores, "one thread per usable physical core")
    add(n_cores // n_processes, f"the cores, divided among {n_processes} processes")
    for domains, name in ((placement.l3_domains, "L3 domain"), (placement.nodes, "NUMA node")):
        if len(domains) > 1:
            add(placement.count_cores(domains[0]), f"the cores of one {name}")
    if placement.fast and len(placement.fast) < n_cpus:
        add(placement.count_cores(placement.fast), "only the fastest kind of core")
    if n_cpus > n_cores:
        add(n_cpus, "one thread per usable hardware thread")
    if n_cores <= MANY_CORES:
        add(n_cores - 1, "leaves one core to the rest of the host")
    for exponent in range(1, n_cores.bit_length()):
        for count in (1 << exponent, 3 << exponent >> 1):  # 2, 3, 4, 6, 8, 12, 16, 24, ...
            if count < n_cores:
                add(count, f"{count} threads: less waiting than with all cores")
    return dict(sorted(reasons.items()))


def counts_between(counts: Collection[int]) -> dict[int, str]:
    """Return thread counts between these, ascending, each with the reason.

    Two consecutive ones differ by one, or by at most `RESOLUTION`.
    """
    found = []
    for low, high in itertools.pairwise(sorted(counts)):
        n = low
        while (n := max(n + 1, math.floor(RESOLUTION * n))) < high:
            found.append(n)
    return dict.fromkeys(found, "between two thread counts, one of which is among the best")


def has_caller_per_core(host: Host, options: SpaceOptions) -> bool:
    """Return whether concurrent callers keep all cores busy with one thread each.

    Further threads then only wait, or take CPU time from other calls.
    """
    n_callers = options.processes * options.clients
    return n_callers > 1 and n_callers >= len(host.usable_cores) and not options.has_rate


def count_fitting_threads(host: Host, options: SpaceOptions) -> int:
    """Return the size of each pool with which the threads of all processes, and their callers, fit the host.

    The callers of a process share the pools of its sessions, and each of them is a thread itself.
    """
    n_workers = find_default_pool(host).n_fitting // options.processes - options.clients
    return max(1 + n_workers // options.sessions, 1)


def choose_fitting(host: Host, options: SpaceOptions) -> dict[str, str]:
    """Return the labels of a pool that fits the host and its load; nothing where ONNX Runtime's own does."""
    pool, n_threads = find_default_pool(host), count_fitting_threads(host, options)
    if not pool.faults and not has_caller_per_core(host, options):
        return {}
    labels = {} if n_threads == pool.n_threads else {ids.INTRA_OP_NUM_THREADS: str(n_threads)}
    quota = host.limits.quota
    if quota and n_threads > max(quota.cpus, 1):
        # More threads than the quota has CPUs must not use it up by spinning.
        labels[ids.INTRA_OP_ALLOW_SPINNING] = SPINNING_OFF.label
    return labels


def _inter_counts(width: int, n_cores: int) -> list[int]:
    """Return 2, 4, 8, ... up to what the graph and the host can use."""
    most = max(2, min(width, n_cores))
    counts = {2, most}
    step = 4
    while step < most:
        counts.add(step)
        step *= 2
    return sorted(counts)


def _affinity_choices(host: Host, counts: Mapping[int, str], n_sessions: int) -> list[Choice]:
    if host.system == "Darwin":
        return []
    placement = Placement(host)
    choices = []
    taken: set[tuple[str, str]] = set()
    for policy, why in POLICIES.items():
        strings = {}
        for n_threads in counts:
            text = placement.place(policy, n_threads)
            if text is not None and (str(n_threads), text) not in taken:
                taken.add((str(n_threads), text))
                strings[str(n_threads)] = text
        if strings:
            choices.append(Choice(label=policy, why=why, value_by=strings))
    if n_sessions > 1 and (apart := _separate_cores(host, counts, n_sessions)):
        choices.append(Choice(label="apart", why="separate cores for the workers of each session", value_by=apart))
    return choices


def _separate_cores(host: Host, counts: Mapping[int, str], n_sessions: int) -> dict[str, str]:
    """Return affinity strings that give the workers of each session their own cores, by number of threads.

    The first core of each share is left to the session's caller.
    """
    cores = host.usable_cores
    share = len(cores) // n_sessions
    strings = {}
    for n_threads in counts:
        if 2 <= n_threads <= share:
            workers = [cores[number * share + 1 : number * share + n_threads] for number in range(n_sessions)]
            strings[str(n_threads)] = BETWEEN_SESSIONS.join(
                ";".join(",".join(str(cpu + 1) for cpu in core) for core in own) for own in workers
            )
    return strings
