"""A race in which other nodes take part.

Those that wait for its result launch the candidates, too, each beside its own control, and send log-ratios. A launch on
another node counts like one on this node: candidates are compared within launches.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ortune.storage import Measurement
from ortune.tuning.board import Board, LiveRound
from ortune.tuning.merge import fits, make_scores
from ortune.tuning.racing import Race
from ortune.tuning.results import FIRST_SHARED, CandidateResult
from ortune.tuning.shared_exchange import SharedExchange
from ortune.workload import Goal


class RaceElsewhere:
    """The part of a race that other nodes run.

    A race with limits on absolute figures is not divided, because hosts of a class differ in speed: by how much a
    candidate exceeds a limit on another host says little about this one.

    Args:
        goal: What the search is for.
        exchange: Exchanges measurements with other nodes.

    Attributes:
        n_launches: Launches of other nodes that count.
        spent_s: What they took, in seconds.
    """

    def __init__(self, goal: Goal, exchange: SharedExchange) -> None:
        self.n_launches = 0
        self.spent_s = 0.0
        self._goal = goal
        self._exchange = exchange
        self._is_divided = not goal.load.rate_per_s and all(limit.relative for limit in goal.limits)
        self._numbers: dict[tuple[str, int], int] = {}
        self._announced: list[str] = []

    def announce(self, racing: Sequence[CandidateResult]) -> None:
        """Announce to other nodes which candidates are left; none if the race is over."""
        configs = [result.candidate.config for result in racing]
        keys = [config.key for config in configs]
        if self._is_divided and keys != self._announced:
            self._announced = keys
            self._exchange.announce_race(configs)

    def collect(self, racing: Sequence[CandidateResult]) -> None:
        """Put the launches of other nodes in which all candidates worked beside own ones.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        exchange = self._exchange
        exchange.refresh()
        launches: dict[tuple[str, int], dict[str, Measurement]] = defaultdict(dict)
        for measurement in exchange.received_race():
            if measurement.rounds and fits(measurement, self._goal):
                launches[measurement.worker, measurement.launch][measurement.config.key] = measurement
        keys = [result.candidate.config.key for result in racing]
        complete = [of for of in launches.values() if all(key in of for key in keys)]
        self.n_launches = len(complete)
        self.spent_s = sum(measurement.spent_s for of in complete for measurement in of.values())
        for result, key in zip(racing, keys, strict=True):
            own = [score for score in result.scores if score.launch < FIRST_SHARED]
            shared = [score for of in complete for score in make_scores(of[key], self._numbers)]
            # A node that was set apart meanwhile no longer counts.
            if shared or len(own) < len(result.scores):
                result.n_blocks += len(own) + len(shared) - len(result.scores)
                result.replace_scores([*own, *shared])

    def wait(self, racing: Sequence[CandidateResult], n_wanted: int, longest_s: float) -> None:
        """Wait for launches of other nodes if enough of them take part.

        Args:
            racing: The candidates that are left.
            n_wanted: The number of launches.
            longest_s: How long to wait, in seconds.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        exchange = self._exchange
        if not self._is_divided or exchange.count_racing() < n_wanted:
            return
        n_enough, waited_s = self.n_launches + n_wanted, 0.0
        while self.n_launches < n_enough and waited_s < longest_s:
            waited_s += exchange.pause()
            self.collect(racing)


class RaceOfSeveral(Race):
    """A race in which other nodes take part. Their launches count like own ones, and so does the time that they take.

    Args:
        board: The search.
        racing_s: The time of all launches, in seconds.
        exchange: Exchanges measurements with other nodes.
    """

    def __init__(self, board: Board, racing_s: float, exchange: SharedExchange) -> None:
        super().__init__(board, racing_s)
        self._others = RaceElsewhere(board.goal, exchange)

    @property
    def n_launches(self) -> int:
        """Launches so far, on all nodes."""
        return super().n_launches + self._others.n_launches

    def count_left_s(self) -> float:
        """Return how much time is left, in seconds."""
        return super().count_left_s() - self._others.spent_s

    def was_launched_elsewhere(self, n_missing: int) -> bool:
        """Wait for launches of other nodes that complete the race. Return whether there were new ones."""
        others = self._others
        others.announce(self.left)
        if not super().n_launches:
            return False
        n_elsewhere = others.n_launches
        others.wait(self.left, n_missing, self.launch_s)
        return others.n_launches != n_elsewhere or self.count_missing() <= 0

    @contextlib.contextmanager
    def launch(self) -> Iterator[LiveRound]:
        """Launch the candidates, and put the launches of other nodes beside."""
        with super().launch() as live:
            yield live
        self._others.collect(self.left)

    def close(self) -> None:
        """Let others know that the race is over."""
        self._others.announce(())
