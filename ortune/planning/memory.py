"""How much memory deployments need, learned from those that were measured.

A process needs more memory with more items in a call and with more callers, whose calls run at the same time. How much
of it is fixed and how much belongs to the items is not known before two sizes were measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ortune.planning.deployment import Deployment


def count_items(deployment: Deployment) -> int:
    """Return how many items each process works on at the same time, at most."""
    in_call = deployment.batching.max_batch if deployment.batching else deployment.config.batch
    return deployment.clients * in_call


class MemoryNeeds:
    """Predicts the memory of deployments.

    Args:
        limit_bytes: Memory that all live processes may take; None if it is unknown.
        most_processes: Processes that may be live at the same time, for another reason; None for any number.
    """

    def __init__(self, limit_bytes: float | None, most_processes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._most_processes = most_processes
        # Largest memory of a process by the number of items.
        self._measured: dict[int, float] = {}

    def add(self, deployment: Deployment, peak_bytes: float) -> None:
        """Note what all processes of a deployment took together."""
        n_items = count_items(deployment)
        self._measured[n_items] = max(self._measured.get(n_items, 0.0), peak_bytes / deployment.processes)

    @property
    def n_sizes(self) -> int:
        """For how many numbers of items the memory is known."""
        return len(self._measured)

    def predict(self, deployment: Deployment) -> float:
        """Return what all processes of a deployment take together, in bytes.

        Beyond the sizes that were measured, the memory grows as it did from the smallest to the largest of them. If
        only one was measured, all of it is taken to belong to the items, which is too much.
        """
        return deployment.processes * self._predict_process(count_items(deployment))

    def _predict_process(self, n_items: int) -> float:
        if not self._measured:
            return 0.0
        sizes = sorted(self._measured)
        # More items do not need less, whatever was measured.
        peaks = list(itertools.accumulate((self._measured[size] for size in sizes), max))
        for size, peak in zip(sizes, peaks, strict=True):
            if size >= n_items:
                return peak
        if len(sizes) == 1:
            return peaks[0] * n_items / sizes[0]
        slope = (peaks[-1] - peaks[0]) / (sizes[-1] - sizes[0])
        return peaks[-1] + slope * (n_items - sizes[-1])

    def fit(self, deployments: Sequence[Deployment]) -> bool:
        """Return whether deployments fit into memory at the same time."""
        if (
            self._most_processes is not None
            and sum(deployment.processes for deployment in deployments) > self._most_processes
        ):
            return False
        return self._limit_bytes is None or sum(map(self.predict, deployments)) <= self._limit_bytes
