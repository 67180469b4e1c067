"""The candidates that a search screens before its sampler proposes any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ortune.knobs import Candidate, SearchSpace, ids
from ortune.tuning.results import CandidateResult
from ortune.tuning.state import SearchState

FAR_BEHIND = math.log(1.5)
"""Knobs of providers that are slower than the fastest one by more than this, as a log-ratio, are tried last."""


class FirstCandidates:
    """The baseline, then what is known to be good elsewhere, then each choice alone.

    If there are several execution providers, each is tried without further settings in the first batch. The knobs of
    one that is far behind another then come last.

    Args:
        state: The state of the search.
        space: Its candidates.

    Attributes:
        n: Number of candidates, without the baseline.
    """

    def __init__(self, state: SearchState, space: SearchSpace) -> None:
        selections = list(_list_selections(state, space))
        chosen = [space.select(selection) for selection in selections]
        # Two rules, or a rule and a hint, may give the same candidate.
        found = list({each.config.key: each for each in chosen if each.config.key in space.numbers}.values())
        self.n = len(found) - 1
        # Nodes that start at the same time begin in different places.
        place = state.exchange.count_earlier() * state.plan.batch % max(self.n, 1)
        baseline, others = found[0], [*found[1 + place :], *found[1 : 1 + place]]
        plain = {
            each.config.key
            for selection, each in zip(selections, chosen, strict=True)
            if selection.keys() == {ids.PROVIDERS}
        }
        self._own = space.base.provider
        self._plain = {each.config.provider: each for each in others if each.config.key in plain}
        n_now = len(others)
        if self._plain:
            others.sort(key=lambda each: (each.config.key not in plain, each.config.provider != self._own))
            n_now = len(self._plain) + state.plan.batch
        self._now = [baseline, *others[:n_now]]
        self._waiting = others[n_now:]

    def take(self) -> list[Candidate]:
        """Return the candidates of the first batch, or all of them if their order is known."""
        now, self._now = self._now, []
        return now

    def take_waiting(self, find: Callable[[Candidate], CandidateResult | None]) -> list[Candidate]:
        """Return the other candidates, in an order that depends on the first results.

        Args:
            find: Returns the result of a candidate; None if there is none yet.
        """
        costs = {self._own: 0.0}
        for provider, candidate in self._plain.items() if self._waiting else ():
            if (result := find(candidate)) is not None:
                costs[provider] = math.inf if result.log_ratio is None else result.log_ratio
        latest = min(costs.values()) + FAR_BEHIND
        waiting = sorted(self._waiting, key=lambda each: costs.get(each.config.provider, 0.0) > latest)
        self._waiting = []
        return waiting


def _list_selections(state: SearchState, space: SearchSpace) -> Iterator[dict[str, str]]:
    """Yield the labels of the candidates. Missing labels mean the default.

    "random" and "exhaustive" start with the baseline only, to be comparable with other tuners. "adaptive" starts with
    the best of earlier searches, the advice of the documentation, and each choice alone, to learn the effects.
    """
    yield {}
    if state.strategy in {"random", "exhaustive"}:
        return
    if state.strategy == "adaptive":
        for config in state.hints:
            number = space.numbers.get(config.key)
            if number is not None:
                yield dict(space.candidates[number].labels)
        for rule in space.rules:
            yield dict(rule.labels)
    yield from space.one_factor()
