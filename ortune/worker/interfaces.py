"""What the search needs of measuring: an executor that launches candidates, and candidates that measure blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ortune.knobs.config import Config
from ortune.worker.block import Block, BlockPlan
from ortune.worker.failure import Failure
from ortune.worker.session_info import SessionInfo


class LiveCandidate(Protocol):
    """A candidate with a session that can be measured; it does not run while it is not measured."""

    @property
    def config(self) -> Config:
        """The candidate's config."""

    @property
    def session_info(self) -> SessionInfo:
        """What the session turned out to be."""

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure one block. After a Failure the candidate is gone."""

    def close(self) -> None:
        """End it; may be called more than once."""


class Executor(Protocol):
    """Makes candidates live. Search code cannot tell whether they are processes or recordings."""

    def launch(self, configs: Sequence[Config], *, deadline_s: float) -> list[LiveCandidate | Failure]:
        """Make all of them live, side by side; one answer for each config, in the same order.

        The first config ever launched must be the default: its outputs are the reference.
        """

    def now_s(self) -> float:
        """Return the time on a clock that only goes forward, in seconds."""
