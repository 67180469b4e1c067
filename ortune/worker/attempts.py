"""Decides whether a process that ended suddenly is launched again: the one policy of all that launch something."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortune.worker.failure import Failure

MAX_FIRST_FAILURES = 3
MAX_FAILURES_IN_A_ROW = 8
MAX_FIRST_TIMEOUTS = 2
MAX_TIMEOUTS_IN_A_ROW = 4
MAX_FAILING_SHARE = 0.35
"""A candidate is given up after this many sudden ends of its process without a block in between: at first, and once it
has been measured. Waiting for one that hangs takes long. In total, about a third of its launches may end suddenly."""

T = TypeVar("T")


class Attempts:
    """The launches of one candidate. Decides whether it is launched again when its process ended suddenly.

    Anything on a host may end a process, so a single end says nothing about the candidate. One that ends again and
    again is not worth having, even if it is measured in between.

    Args:
        max_first_failures: Sudden ends before the first block after which it is given up.
        max_first_timeouts: How many of them may be timeouts.
        should_work: Whether lack of memory is taken for a sudden end before the first block, too.

    Attributes:
        n_failures: Number of failures after which it was launched again.
    """

    def __init__(
        self,
        *,
        max_first_failures: int = MAX_FIRST_FAILURES,
        max_first_timeouts: int = MAX_FIRST_TIMEOUTS,
        should_work: bool = False,
    ) -> None:
        self.n_failures = 0
        self._max_first_failures = max_first_failures
        self._max_first_timeouts = max_first_timeouts
        self._should_work = should_work
        self._has_worked = False
        self._n_launches = 0
        self._in_a_row = 0
        self._timeouts_in_a_row = 0

    def launch(self, launch: Callable[[], T | Failure]) -> T | Failure:
        """Launch the candidate, again while it may be, and return the last answer."""
        while True:
            self.add_launch()
            answer = launch()
            if not isinstance(answer, Failure) or not self.may_launch_again(answer):
                return answer

    def add_launch(self) -> None:
        """Count a launch that is about to be made."""
        self._n_launches += 1

    def add_block(self) -> None:
        """Count a block that was measured."""
        self._has_worked = True
        self._in_a_row = self._timeouts_in_a_row = 0

    def may_launch_again(self, failure: Failure) -> bool:
        """Return whether the candidate, which failed, is launched again, and count the failure if so."""
        has_worked = self._has_worked
        is_lack = failure.kind == "out_of_memory" and (has_worked or self._should_work)
        if not failure.is_sudden and not is_lack:
            return False
        most = MAX_FAILURES_IN_A_ROW if has_worked else self._max_first_failures
        if self._in_a_row + 1 >= most:
            return False
        most = MAX_TIMEOUTS_IN_A_ROW if has_worked else self._max_first_timeouts
        if failure.kind == "timeout" and self._timeouts_in_a_row + 1 >= most:
            return False
        if self.n_failures + 1 > self._max_first_failures + MAX_FAILING_SHARE * self._n_launches:
            return False
        self._in_a_row += 1
        self._timeouts_in_a_row += failure.kind == "timeout"
        self.n_failures += 1
        return True
