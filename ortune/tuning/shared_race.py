"""Collects what other nodes measure for a race of this one.

Those that wait for its result launch the candidates, too, each beside its own control, and send log-ratios. A launch on
another node counts like one on this node: candidates are compared within launches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ortune.storage import Measurement
from ortune.tuning.merge import fits, make_scores
from ortune.tuning.results import FIRST_SHARED, CandidateResult
from ortune.tuning.state import SearchState


class RaceElsewhere:
    """The part of a race that other nodes run. A search on this host only has none.

    Args:
        state: The search whose race it is.

    Attributes:
        n_launches: Launches of other nodes that were added to the results.
        spent_s: What all launches of other nodes took, in seconds.
    """

    def __init__(self, state: SearchState) -> None:
        self.n_launches = 0
        self.spent_s = 0.0
        self._state = state
        self._added: set[tuple[str, int]] = set()
        self._announced: list[str] = []

    def announce(self, racing: Sequence[CandidateResult]) -> None:
        """Tell other nodes which candidates are left."""
        configs = [result.candidate.config for result in racing]
        keys = [config.key for config in configs]
        if keys != self._announced:
            self._announced = keys
            self._state.exchange.announce_race(configs, is_over=not configs)

    def collect(self, racing: Sequence[CandidateResult]) -> None:
        """Add the launches of other nodes in which all candidates worked.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        exchange = self._state.exchange
        exchange.refresh()
        received = exchange.received_race()
        self.spent_s = sum(each.spent_s for each in received)
        launches: dict[tuple[str, int], dict[str, Measurement]] = defaultdict(dict)
        for each in received:
            if each.rounds and fits(each, self._state.goal):
                launches[each.worker, each.launch][each.config.key] = each
        for place, measured in launches.items():
            if place in self._added or not all(result.candidate.config.key in measured for result in racing):
                continue
            self._added.add(place)
            for result in racing:
                scores = make_scores(measured[result.candidate.config.key], FIRST_SHARED + self.n_launches)
                result.replace_scores([*result.scores, *scores])
                result.n_blocks += len(scores)
            self.n_launches += 1

    def wait(self, racing: Sequence[CandidateResult], n_wanted: int, longest_s: float) -> None:
        """Wait for launches of other nodes if enough of them take part.

        Args:
            racing: The candidates that are left.
            n_wanted: The number of launches.
            longest_s: How long to wait, in seconds.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        exchange = self._state.exchange
        if exchange.count_racing() < n_wanted:
            return
        n_enough, waited_s = self.n_launches + n_wanted, 0.0
        while self.n_launches < n_enough and waited_s < longest_s:
            waited_s += exchange.pause()
            self.collect(racing)
