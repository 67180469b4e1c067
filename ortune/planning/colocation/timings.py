"""What was measured of each model alone: how long calls take in deployments of several sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.planning.capacity import estimate_utilization
from ortune.planning.deployment import Deployment
from ortune.queueing.simulation import HIGHEST_SIMULATED_UTILIZATION
from ortune.workload import Limit


class Size(msgspec.Struct, frozen=True, order=True):
    """How large a deployment is.

    Attributes:
        processes: Processes.
        threads: Threads of each.
    """

    processes: int
    threads: int

    @property
    def n_cores(self) -> int:
        """Cores that it needs for itself."""
        return self.processes * self.threads


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a deployment while nothing else ran.

    Attributes:
        samples_ns: Durations of calls while all callers are busy.
        cpu_ns_per_call: CPU time of all processes per call.
        peak_bytes: Largest resident memory of all processes together.
    """

    samples_ns: NDArray[np.int64]
    cpu_ns_per_call: float
    peak_bytes: int

    @property
    def mean_ns(self) -> float:
        """Mean duration of a call."""
        return float(self.samples_ns.mean())

    @property
    def cores_per_call(self) -> float:
        """Cores that a call keeps busy."""
        return max(self.cpu_ns_per_call / self.mean_ns, 0.05)


class ModelTimings:
    """Durations of calls of one model, measured for some sizes and estimated for others.

    Attributes:
        measured: What was measured, by size.
        failed: Sizes that were tried and do not work, or do not fit into memory.
    """

    def __init__(self) -> None:
        self.measured: dict[Size, Timing] = {}
        self.failed: set[Size] = set()

    def list_sizes(self, most_cores: int, most_processes: int) -> list[Size]:
        """Return the sizes of which something is known: numbers of threads that were measured, with any processes."""
        threads = {size.threads for size in self.measured}
        return [
            size
            for n_threads in sorted(threads)
            for processes in range(1, min(most_cores // n_threads, most_processes) + 1)
            if (size := Size(processes, n_threads)) not in self.failed
        ]

    def estimate(self, size: Size) -> Timing:
        """Return what was measured, or an estimate.

        Calls are taken to be as long as in the measured deployment with as many threads whose number of processes is
        closest, and memory to be in proportion to the processes.
        """
        if size in self.measured:
            return self.measured[size]
        near = [measured for measured in self.measured if measured.threads == size.threads]
        closest = min(
            near, key=lambda measured: (abs(math.log(measured.processes / size.processes)), measured.processes)
        )
        known = self.measured[closest]
        return msgspec.structs.replace(known, peak_bytes=round(known.peak_bytes * size.processes / closest.processes))

    def find_capacity(self, size: Size, slo: Limit | None) -> float:
        """Return the rate per second that a size can take with cores of its own, about; 0 if there is none."""
        timing = self.estimate(size)
        utilization = HIGHEST_SIMULATED_UTILIZATION
        if slo:
            utilization = estimate_utilization(Deployment(), timing.samples_ns, slo)
        return utilization * size.processes * 1e9 / timing.mean_ns


def list_first_sizes(n_cores: int, n_models: int, most_processes: int) -> list[Size]:
    """Return the sizes that are measured first: one process with several numbers of threads, and several with one.

    The largest that leaves a core for each other model is among them, and that with all cores, as they can be shared.
    """
    most = max(n_cores - n_models + 1, 1)
    counts = sorted({1, *(1 << power for power in range(1, n_cores.bit_length())), most, n_cores})
    sizes = [Size(1, count) for count in counts] + [Size(count, 1) for count in counts if count <= most_processes]
    return list(dict.fromkeys(sizes))


def divide_cores(
    timings: Sequence[ModelTimings],
    demands: Sequence[tuple[float, Limit | None]],
    n_cores: int,
    *,
    most_processes: int,
    most_bytes: float = math.inf,
) -> tuple[tuple[Size, ...], float] | None:
    """Return the division of the cores with which all rates can be scaled most.

    For any scale, each model needs some number of cores at least. The largest scale is that at which these numbers do
    not exceed the cores, and the processes fit into memory.

    Args:
        timings: What is known of each model.
        demands: Rate and target of each model.
        n_cores: Cores of the host.
        most_processes: Processes of a model at most.
        most_bytes: Memory of all processes together at most.

    Returns:
        The size of each model, and the scale; None if the cores or the memory do not suffice at any scale.
    """
    most_each = n_cores - len(timings) + 1
    options: list[list[tuple[int, int, float, Size]]] = []
    for known, (rate_per_s, slo) in zip(timings, demands, strict=True):
        own = []
        for size in known.list_sizes(most_each, most_processes):
            scale = known.find_capacity(size, slo) / rate_per_s
            if scale > 0:
                own.append((size.n_cores, known.estimate(size).peak_bytes, scale, size))
        options.append(sorted(own))

    def choose(scale: float) -> tuple[Size, ...] | None:
        """Return the smallest sizes that can take the rates times a number, those with the least memory first."""
        found = []
        left_bytes = most_bytes
        for own in options:
            fitting = [option for option in own if option[2] >= scale]
            if not fitting:
                return None
            found.append(fitting[0])
            left_bytes -= fitting[0][1]
        if sum(option[0] for option in found) > n_cores:
            return None
        if left_bytes < 0:  # those with the least memory, whatever they need of cores
            found = [
                min((option for option in own if option[2] >= scale), key=lambda option: option[1]) for own in options
            ]
            if sum(option[0] for option in found) > n_cores or sum(option[1] for option in found) > most_bytes:
                return None
        return tuple(option[3] for option in found)

    scales = sorted({option[2] for own in options for option in own})
    low, high = 0, len(scales) - 1
    best = None
    while low <= high:
        middle = (low + high) // 2
        if chosen := choose(scales[middle]):
            best = (chosen, scales[middle])
            low = middle + 1
        else:
            high = middle - 1
    return best
