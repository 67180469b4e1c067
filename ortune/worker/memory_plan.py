"""Divides the memory of the host among workers, also among those of several executors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class MemoryPlan:
    """The memory that all live workers of a comparison share.

    Args:
        total_bytes: Maximum private memory of all live workers together; None for no limit.

    Attributes:
        usual_bytes: Memory that a worker usually takes. Each may take what is left if all others take this much.
    """

    def __init__(self, total_bytes: int | None) -> None:
        self.usual_bytes = 0
        self._total_bytes = total_bytes
        self._live: set[object] = set()
        self._n_expected = 0

    def add(self, worker: object) -> None:
        """Note that a worker has been started."""
        self._live.add(worker)

    def remove(self, worker: object) -> None:
        """Note that a worker has ended. It may be noted more than once."""
        self._live.discard(worker)

    @contextlib.contextmanager
    def expect(self, n_live: int) -> Iterator[None]:
        """Leave room for so many live workers within the block, of which some are only started later."""
        before, self._n_expected = self._n_expected, n_live
        try:
            yield
        finally:
            self._n_expected = before

    def find_limit(self, n_new: int) -> int | None:
        """Return the maximum private memory of each of some workers that are about to start; None for no limit."""
        if self._total_bytes is None:
            return None
        n_live = max(len(self._live) + n_new, self._n_expected)
        return max(self._total_bytes - (n_live - 1) * self.usual_bytes, self._total_bytes // n_live)
