"""The candidates that a search screens before its sampler proposes any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ortune.knobs import Candidate, SearchSpace, ids
from ortune.tuning.board import Board
from ortune.tuning.results import CandidateResult

FAR_BEHIND = math.log(1.5)
"""Knobs of providers that are slower than the fastest one by more than this, as a log-ratio, are tried last."""


class FirstCandidates:
    """The baseline, then what is known to be good elsewhere, then each choice alone.

    If there are several execution providers, each is tried first without further settings, and in float32 if it
    multiplies in TF32. Choices of a provider that is far behind another one then come last.

    Args:
        board: The board of the search.
        space: Its candidates.
        n_earlier: How many other hosts began before this one.

    Attributes:
        n: Number of candidates, without the baseline.
        now: The baseline and the candidates of the first batches, or all of them if their order is known.
    """

    def __init__(self, board: Board, space: SearchSpace, n_earlier: int) -> None:
        known = [space.select(selection) for selection in _list_known(board, space)]
        selections = list(space.one_factor()) if board.strategy not in {"random", "exhaustive"} else []
        alone = [space.select(selection) for selection in selections]
        # Two rules, or a rule and a hint, may give the same candidate.
        every = [space.select({}), *known, *alone]
        found = list(
            {candidate.config.key: candidate for candidate in every if candidate.config.key in space.numbers}.values()
        )
        self.n = len(found) - 1
        # Nodes that start at the same time begin in different places.
        place = n_earlier * board.plan.batch % max(self.n, 1)
        baseline, others = found[0], [*found[1 + place :], *found[1 : 1 + place]]
        plain = {
            candidate.config.key
            for selection, candidate in zip(selections, alone, strict=True)
            if ids.PROVIDERS in selection and selection.keys() <= {ids.PROVIDERS, ids.USE_TF32}
        }
        self._own = space.base.provider
        self._plain = [candidate for candidate in others if candidate.config.key in plain]
        n_now = len(others)
        if self._plain:
            first = {candidate.config.key for candidate in known}

            def order(candidate: Candidate) -> tuple[bool, bool, bool]:
                return (
                    candidate.config.key not in plain,
                    candidate.config.key not in first,
                    candidate.config.provider != self._own,
                )

            others.sort(key=order)
            n_now = len(self._plain) + board.plan.batch
        self.now = [baseline, *others[:n_now]]
        self._waiting = others[n_now:]

    def take_waiting(self, find: Callable[[Candidate], CandidateResult | None], n_screened: int) -> list[Candidate]:
        """Return the other candidates, in an order that depends on the first results, once these are known.

        Args:
            find: Returns the result of a candidate; None if there is none yet.
            n_screened: Number of candidates with a result.
        """
        if not self._waiting:
            return []
        costs = {self._own: 0.0}
        unknown = False
        for candidate in self._plain:
            result, provider = find(candidate), candidate.config.provider
            unknown |= result is None
            ratio = result.log_ratio if result is not None else 0.0
            costs[provider] = min(costs.get(provider, math.inf), math.inf if ratio is None else ratio)
        # What another node measures is not waited for.
        if unknown and n_screened < len(self.now) - 1:
            return []
        latest = min(costs.values()) + FAR_BEHIND
        waiting = sorted(self._waiting, key=lambda other: costs.get(other.config.provider, 0.0) > latest)
        self._waiting = []
        return waiting


def _list_known(board: Board, space: SearchSpace) -> Iterator[dict[str, str]]:
    """Yield the labels of candidates that are known to be good elsewhere. Missing labels mean the default.

    "adaptive" starts with the best of earlier searches and the advice of the documentation. "random" and "exhaustive"
    have no first candidates but the baseline, to be comparable with other tuners.
    """
    if board.strategy != "adaptive":
        return
    for config in board.hints:
        number = space.numbers.get(config.key)
        if number is not None:
            yield dict(space.candidates[number].labels)
    for rule in space.rules:
        yield dict(rule.labels)
