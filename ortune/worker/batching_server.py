"""A small server of single requests that puts those that wait together into batches (dynamic batching).

The rules are those of the dynamic batcher of NVIDIA's Triton Inference Server, without preferred sizes: a batch starts
when a caller is free, and the batch is full or its first request has waited for the longest delay. If no caller is free
by then, the batch goes on growing until one is. `ortune.queueing.batching` simulates the same rules.

The server runs in a worker, under the load of `ortune.worker.open_loop`. It does in each call what such a server has to
do: it joins the arrays of the requests, calls the session, and takes the outputs apart.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from ortune.worker.batches import Item, join_items, split_outputs
from ortune.worker.window import Clock


class RequestQueue:
    """The queue of one process, from which its callers take requests in order of arrival.

    Args:
        arrivals: Arrival time of each request, in ascending order.
        clock: The clock.
        max_batch: Requests in a batch, at most.
        max_delay_ns: Longest time that the first request of a batch waits for more, where a caller is free.
    """

    def __init__(self, arrivals: Sequence[int], clock: Clock, max_batch: int, max_delay_ns: int) -> None:
        self._arrivals = arrivals
        self._clock = clock
        self._max_batch = max_batch
        self._max_delay_ns = max_delay_ns
        self._first = 0
        self._lock = threading.Lock()

    def take(self, free_ns: int = 0) -> range:
        """Wait until a batch may start, and return the numbers of its requests.

        Args:
            free_ns: When the caller is free.

        Returns:
            The numbers; an empty range if there are no more requests.
        """
        while True:
            with self._lock:
                first = self._first
                if first >= len(self._arrivals):
                    return range(0)
                now_ns = self._clock.now_ns()
                start_ns = max(free_ns, self._find_start_ns(first))
                if now_ns >= start_ns:
                    last = min(first + self._max_batch, len(self._arrivals))
                    self._first = bisect_right(self._arrivals, now_ns, first, last)
                    return range(first, self._first)
            # All callers that are free wait for the same batch. One of them gets it, and the others for the next one.
            self._clock.sleep_ns(int(start_ns - now_ns))

    def _find_start_ns(self, first: int) -> float:
        """Return when a batch that begins with this request is full, or its first request has waited long enough."""
        last = first + self._max_batch - 1
        full_ns = self._arrivals[last] if last < len(self._arrivals) else math.inf
        return min(full_ns, self._arrivals[first] + self._max_delay_ns)


class BatchingServer:
    """Makes calls with several requests each.

    Args:
        call: Makes one call with one sample, and returns its outputs.
    """

    def __init__(self, call: Callable[[Item], Sequence[Any]]) -> None:
        self._call = call

    def serve(self, requests: Sequence[Item]) -> list[list[Any]]:
        """Make one call with requests of equal shapes, and return the outputs of each of them.

        Raises:
            SplitError: An output does not have an entry for each request.
        """
        if len(requests) == 1:
            return [list(self._call(requests[0]))]
        return split_outputs(self._call(join_items(requests)), len(requests))
