"""The deployments that are worth trying on a host: where a search begins, and where it may go from there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ortune.bounds import MOST_CLIENTS, MOST_PROCESSES
from ortune.host import Host, ProcessPlacement, place_processes
from ortune.host.placement import Unit, list_units
from ortune.knobs import Config, ids, knob_of
from ortune.knobs.canonical import canonical
from ortune.knobs.knob import Value
from ortune.planning.deployment import Deployment

MOST_THREADS_PER_CORE = 2
"""Threads of all processes together, for each core, at most. Beyond it, throughput falls on every host that we know."""

MOST_FIRST_COUNTS = 9
MOST_FIRST_BATCHES = 4
"""Numbers of processes, and of items in a call, with which a search begins, at most."""

Setting = tuple[str, Value]
"""The id of a knob and a value."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment as a point of the space.

    Attributes:
        processes: Processes.
        threads: Threads of each session.
        clients: Calls that each process makes at a time.
        unit: What processes are pinned to; None if all run on all CPUs.
        settings: Further settings, sorted.
        batch: Items in each call.
    """

    processes: int
    threads: int
    clients: int = 1
    unit: Unit | None = None
    batch: int = 1
    settings: tuple[Setting, ...] = ()


class DeploymentSpace(msgspec.Struct, frozen=True, kw_only=True):
    """The deployments that are worth trying.

    Attributes:
        n_cores: Cores that may be used, or the CPU quota rounded up if it is smaller.
        n_default_threads: Threads of ONNX Runtime's default pool on this host.
        quota: CPU time per time that all processes together may use; infinite without a limit.
        host: Where processes are pinned; None if they cannot be.
        parts: Numbers of parts that the host consists of: nodes and L3 domains.
        processes: Numbers of processes that the user wants to try; empty for what suits the host.
        threads: Numbers of threads that the user wants to try; empty for what suits the host.
        are_threads_fixed: Whether all deployments have the number of threads of the base.
        most_clients: Calls that a process makes at a time, at most.
        settings: Values of further knobs to try.
        base: Settings of all deployments: ONNX Runtime's default, with what the user fixes.
        batches: Numbers of items in a call to try, in ascending order; empty for that of the base.
    """

    n_cores: int
    n_default_threads: int
    quota: float = math.inf
    host: Host | None = None
    parts: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    are_threads_fixed: bool = False
    most_clients: int = MOST_CLIENTS
    settings: tuple[Setting, ...] = ()
    base: Config = Config()
    batches: tuple[int, ...] = ()

    @property
    def default(self) -> Deployment:
        """What all others are compared with: one process with the settings of the base, and one caller."""
        return Deployment(config=self.base)

    @property
    def first_counts(self) -> tuple[int, ...]:
        """Numbers of processes with which a search begins, in ascending order."""
        if self.processes:
            return self.processes
        most = min(max(self.n_cores, 2), MOST_PROCESSES)
        # One for each part of the host and one for each core matter more than the powers of two between them.
        wanted = [1, 2, min(self.n_cores, most), *self.parts]
        wanted += [self.n_cores // 2, *(1 << power for power in range(2, most.bit_length() + 1))]
        fitting = list(dict.fromkeys(count for count in wanted if 1 <= count <= most))
        return tuple(sorted(fitting[:MOST_FIRST_COUNTS]))

    def list_first(self) -> list[Deployment]:
        """Return the deployments that a search tries first, without the default."""
        cores, pool = self.n_cores, self.n_default_threads
        counts = self.first_counts
        shapes = [Shape(processes=n, threads=self.divide_cores(n)) for n in counts]
        # Calls side by side in one process need less memory than processes.
        shapes += [
            Shape(processes=n, threads=1, clients=max(cores // n, 1)) for n in counts if n in {1, *self.parts} or n <= 2
        ]
        shapes += [Shape(processes=n, threads=pool, clients=3 - n) for n in (1, 2) if n in counts]
        shapes += [Shape(processes=n, threads=max(cores // n // 2, 1)) for n in counts[1:3]]
        # Threads that move to another node find their data in the memory and the caches of the first one.
        if self.parts:
            shapes += [Shape(processes=n, threads=self.divide_cores(n), unit="cores") for n in counts if n > 1]
        shapes = [msgspec.structs.replace(shape, batch=self.base.batch) for shape in shapes]
        # Where larger batches are better, they are with most numbers of processes.
        shapes += [Shape(processes=1, threads=pool, batch=n) for n in self.find_first_batches()]
        return self.make_all(shapes)

    def find_first_batches(self) -> tuple[int, ...]:
        """Return numbers of items in a call with which a search begins: the smallest, the largest, and some between."""
        if len(self.batches) <= MOST_FIRST_BATCHES:
            return self.batches
        last = len(self.batches) - 1
        return tuple(self.batches[place * last // (MOST_FIRST_BATCHES - 1)] for place in range(MOST_FIRST_BATCHES))

    def divide_cores(self, n_processes: int) -> int:
        """Return the threads of each process if they share the cores equally, or the closest number to try."""
        return self._closest(max(self.n_cores // n_processes, 1))

    def list_sizes(self, shape: Shape, factor: float) -> list[Deployment]:
        """Return deployments with more or fewer processes or threads.

        Args:
            shape: Where to start.
            factor: By which numbers change; they change by 1 at least.
        """
        found = []
        for count in self._counts_near(shape.processes, factor):
            same_total = self._closest(max(round(shape.processes * shape.threads / count), 1))
            for threads in dict.fromkeys((self.divide_cores(count), same_total, shape.threads)):
                found.append(msgspec.structs.replace(shape, processes=count, threads=threads))
        for threads in self._threads_near(shape.threads, factor):
            found.append(msgspec.structs.replace(shape, threads=threads))
        return self.make_all(found)

    def list_variants(self, shape: Shape) -> list[Deployment]:
        """Return deployments of the same size with more or fewer callers, other batches, and other settings."""
        clients = {shape.clients * 2, shape.clients // 2}
        found = [msgspec.structs.replace(shape, clients=n) for n in sorted(clients) if n]
        found += [msgspec.structs.replace(shape, batch=n) for n in _next_to(shape.batch, self.batches)]
        known = dict(shape.settings)
        for name, value in self.settings:
            settings = {**known, name: value}
            if known.get(name) == value:
                settings = {other: known[other] for other in known if other != name}
            found.append(msgspec.structs.replace(shape, settings=tuple(sorted(settings.items()))))
        for unit in (None, *self.units):
            if unit != shape.unit:
                found.append(msgspec.structs.replace(shape, unit=unit))
        return self.make_all(found)

    def make_all(self, shapes: Iterable[Shape]) -> list[Deployment]:
        """Return the distinct deployments of those shapes that are worth trying, without the default."""
        made = (self.make(shape) for shape in shapes if self._is_worth_trying(shape))
        found = {deployment.key: deployment for deployment in made}
        found.pop(self.default.key, None)
        return list(found.values())

    def make(self, shape: Shape) -> Deployment:
        """Return a deployment without settings that have no effect."""
        config = self.base
        if not self.are_threads_fixed and shape.threads != self.n_default_threads:
            config = config.with_setting("session_options", ids.INTRA_OP_NUM_THREADS, shape.threads)
        for name, value in shape.settings:
            knob = knob_of(name)
            if value != knob.default:
                config = config.with_setting(knob.where, knob.name, value, knob.provider)
        if msgspec.structs.replace(self.base, batch=1).is_default:
            config = canonical(config, self.n_default_threads)
        if self.batches:
            config = msgspec.structs.replace(config, batch=shape.batch)
        return Deployment(
            processes=shape.processes, clients=shape.clients, placement=self.find_placement(shape), config=config
        )

    @property
    def units(self) -> tuple[Unit, ...]:
        """What processes can be pinned to."""
        return list_units(self.host) if self.host else ()

    def find_placement(self, shape: Shape) -> ProcessPlacement | None:
        """Return the CPUs of each process of a shape; None if they are not pinned, or cannot be."""
        if shape.unit is None or self.host is None or shape.processes < 2:
            return None
        return place_processes(self.host, shape.processes, threads=shape.threads, unit=shape.unit)

    def find_shape(self, deployment: Deployment) -> Shape:
        """Return the point of the space that a deployment is at."""
        own = deployment.config.settings
        return Shape(
            processes=deployment.processes,
            threads=deployment.n_threads or self.n_default_threads,
            clients=deployment.clients,
            unit=deployment.placement.unit if deployment.placement else None,
            settings=tuple(sorted({(name, value) for name, value in self.settings if own.get(name) == value})),
            batch=deployment.config.batch,
        )

    def _is_worth_trying(self, shape: Shape) -> bool:
        if self.processes and shape.processes not in self.processes:
            return False
        if not 1 <= shape.processes <= MOST_PROCESSES or not 1 <= shape.clients <= self.most_clients:
            return False
        if shape.unit is not None and self.find_placement(shape) is None:
            return False
        if self.batches and shape.batch not in self.batches:
            return False
        if self.threads and shape.threads not in (*self.threads, self.n_default_threads):
            return False
        most = MOST_THREADS_PER_CORE * max(self.n_cores, 1)
        # The default settings are what most services run, whatever the number of threads is.
        is_default = shape.processes <= 2 and shape.threads == self.n_default_threads
        if shape.processes * shape.clients > most and shape.clients > 2:
            return False
        return is_default or self._is_asked_for(shape) or shape.processes * shape.threads <= most

    def _is_asked_for(self, shape: Shape) -> bool:
        """Return whether the user gave the number of processes or of threads, and the other one is the smallest."""
        fewest = min(self.threads, default=1)
        if self.are_threads_fixed:
            fewest = self.n_default_threads
        return bool(self.processes and shape.threads == fewest) or bool(
            self.threads and shape.processes == min(self.processes, default=1)
        )

    def _counts_near(self, n: int, factor: float) -> Sequence[int]:
        if self.processes:
            return _next_to(n, self.processes)
        most = min(MOST_THREADS_PER_CORE * self.n_cores, MOST_PROCESSES)
        return [number for number in _scale(n, factor) if 1 <= number <= most]

    def _threads_near(self, n: int, factor: float) -> Sequence[int]:
        if self.are_threads_fixed:
            return ()
        if self.threads:
            return _next_to(n, self.threads)
        most = max(self.n_cores, self.n_default_threads)
        return [number for number in _scale(n, factor) if 1 <= number <= most]

    def _closest(self, n_threads: int) -> int:
        if self.are_threads_fixed:
            return self.n_default_threads
        return min(self.threads, key=lambda n: abs(math.log(n / n_threads))) if self.threads else n_threads


def _scale(n: int, factor: float) -> list[int]:
    """Return a number divided and multiplied by a factor, but at least one more or less."""
    return [min(round(n / factor), n - 1), max(round(n * factor), n + 1)]


def _next_to(n: int, values: Sequence[int]) -> list[int]:
    """Return the largest of some values below a number, and the smallest above it."""
    below = [value for value in values if value < n]
    above = [value for value in values if value > n]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def make_deployment_space(
    host: Host,
    base: Config,
    *,
    processes: Sequence[int] = (),
    tune: Mapping[str, Sequence[Value]] | None = None,
    fix: Mapping[str, Value] | None = None,
    only: Sequence[str] = (),
    batches: Sequence[int] = (),
) -> DeploymentSpace:
    """Return the deployments that are worth trying on a host.

    Args:
        host: The host.
        base: Settings of all deployments, with those of `fix`.
        processes: Numbers of processes to try; empty for what suits the host.
        tune: Values to try, by the id of a knob.
        fix: Values that all deployments have, by the id of a knob.
        only: Ids of the knobs to try; empty for all.
        batches: Numbers of items in a call to try; empty for that of the base.
    """
    tune, fix = dict(tune or {}), fix or {}
    quota = host.limits.quota
    n_cores = max(len(host.usable_cores), 1)
    if quota:
        n_cores = max(min(n_cores, math.ceil(quota.cpus)), 1)
    threads = tuple(sorted({int(text) for text in tune.pop(ids.INTRA_OP_NUM_THREADS, ()) if int(text) > 0}))
    if ids.INTRA_OP_ALLOW_SPINNING not in tune:
        tune[ids.INTRA_OP_ALLOW_SPINNING] = ("0",)
    is_free = {name: name not in fix and (not only or name in only) for name in (*tune, ids.INTRA_OP_NUM_THREADS)}
    topology, usable = host.topology, set(host.limits.usable)
    nodes = sum(1 for node in topology.numa_nodes if not usable.isdisjoint(node.cpus))
    domains = sum(1 for domain in topology.l3_domains if not usable.isdisjoint(domain))
    fixed_threads = int(fix.get(ids.INTRA_OP_NUM_THREADS, 0) or 0)
    n_default_threads = fixed_threads or host.n_default_threads
    return DeploymentSpace(
        n_cores=n_cores,
        n_default_threads=n_default_threads,
        quota=quota.cpus if quota else math.inf,
        host=host if host.system != "Darwin" and not quota else None,
        parts=tuple(sorted({n_parts for n_parts in (nodes, domains) if n_parts > 1})),
        processes=tuple(sorted(set(processes))),
        threads=threads if is_free[ids.INTRA_OP_NUM_THREADS] else (),
        are_threads_fixed=not is_free[ids.INTRA_OP_NUM_THREADS],
        settings=tuple(
            (name, value)
            for name, values in tune.items()
            for value in values
            if is_free[name] and value != knob_of(name).default
        ),
        base=base,
        batches=tuple(sorted(set(batches))),
    )
