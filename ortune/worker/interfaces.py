"""The interfaces between measuring and searching.

Search code depends on these protocols only. `ortune.worker.executor` implements them with processes; tests and
benchmarks implement them with simulations and recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ortune.knobs.config import Config
from ortune.worker.block import Block, BlockPlan
from ortune.worker.failure import Failure
from ortune.worker.session_info import Runtime, SessionInfo


class LiveCandidate(Protocol):
    """A candidate whose session exists and can be measured. It uses no CPU time between blocks."""

    @property
    def config(self) -> Config:
        """The config of the candidate."""

    @property
    def session_info(self) -> SessionInfo:
        """Facts about the session."""

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure one block. After a failure the candidate is closed."""

    def close(self) -> None:
        """Close the candidate. It may be called more than once."""


class Executor(Protocol):
    """Launches candidates.

    Attributes:
        runtime: The software of the workers. Known after the first successful launch.
    """

    runtime: Runtime

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch all candidates at the same time, and return one result per config, in the same order.

        The first config that is ever launched must be the baseline: its outputs are the reference.

        Args:
            configs: The configs.
            deadline_s: Maximum time to create the sessions of all candidates, and the same to run them once.
            independent: Whether each worker is started on its own. If not, they may be copies of one process, which are
                ready earlier, but share its layout of memory.
        """

    def now_s(self) -> float:
        """Return the time of a monotonic clock, in seconds."""
