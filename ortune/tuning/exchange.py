"""What a search exchanges with searches of the same model on other hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortune.knobs import Candidate, Config
from ortune.storage import Measurement, SharedRace, SharedResult, SharedRound
from ortune.storage.schema import Stage
from ortune.worker import Failure


class Exchange:
    """The exchange of a search on this host only: there are no other nodes, and nothing is exchanged.

    `ortune.tuning.shared.SharedExchange` exchanges measurements through a storage. No method fails because a connection
    is lost.

    Attributes:
        is_shared: Whether there may be other nodes.
    """

    is_shared = False

    def draw_seed(self, seed: int) -> int:
        """Return a random seed for this worker, given that of the command."""
        return seed

    def join(
        self, base: Config, rounds: Sequence[SharedRound], *, sigma: float, bias: float, unfit: str, silent_s: float
    ) -> None:
        """Take part, with the result of the A/A check."""

    def refresh(self) -> None:
        """Read what others wrote, and send what was not sent yet.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """

    def received(self) -> Sequence[Measurement]:
        """Return all measurements of others that count."""
        return ()

    def count_nodes(self) -> int:
        """Return how many nodes take part now."""
        return 1

    def count_earlier(self) -> int:
        """Return how many of them joined before this one."""
        return 0

    def spent_elsewhere_s(self) -> float:
        """Return the time that others spent in screening, in seconds."""
        return 0.0

    def leased(self) -> frozenset[str]:
        """Return the keys of the configs that others measure now."""
        return frozenset()

    def lease(self, keys: Sequence[str], *, spent_s: float) -> frozenset[str]:
        """Announce the configs that this node is about to measure, and return those that it must leave to others."""
        return frozenset()

    def send(
        self,
        candidate: Candidate,
        launch: int,
        rounds: Sequence[SharedRound],
        failure: Failure | None,
        *,
        spent_s: float,
        race: str = "",
    ) -> None:
        """Send what one launch of a candidate showed, in screening or in the race of a worker."""

    def has_own(self, key: str) -> bool:
        """Return whether this node measured a config."""
        return True

    def beat(self) -> None:
        """Show others that this node runs, if it is time to."""

    def enter(self, stage: Stage, *, spent_s: float | None = None) -> None:
        """Announce a stage. Nothing is leased any more."""

    def is_screened(self) -> bool:
        """Return whether a node has ended screening, which then ends for all."""
        return False

    def wait_for_result(
        self, observe: Callable[[str], None], take_part: Callable[[SharedRace], bool]
    ) -> SharedResult | None:
        """Return the result of another node, or None if racing and confirmation are up to this one.

        Args:
            observe: Called with what it waits for.
            take_part: Launches the candidates of another node's race once; returns False if it cannot do so again.
        """
        return None

    def announce_race(self, configs: Sequence[Config]) -> None:
        """Announce to nodes that wait which candidates race on this node, for them to take part; none if it is over."""

    def received_race(self) -> Sequence[Measurement]:
        """Return what other nodes measured for the race of this one."""
        return ()

    def count_racing(self) -> int:
        """Return how many other nodes take part in a race now."""
        return 0

    def pause(self) -> float:
        """Wait a little for other nodes, read what they wrote, and return how long the wait was, in seconds."""
        return 0.0

    def take_notes(self) -> list[str]:
        """Return what happened since the last call."""
        return []
