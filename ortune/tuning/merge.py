"""Merges what other nodes measured into the results of a search, and describes own results for them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from ortune.knobs import Candidate, SearchSpace
from ortune.storage import Measurement, SharedRound
from ortune.storage.schema import MOST_ROUNDS, limit_log_ratio
from ortune.tuning.results import FIRST_SHARED, CandidateResult, Results, Score
from ortune.tuning.shared_exchange import SharedExchange
from ortune.worker import Failure
from ortune.workload import Goal


class Merger:
    """Keeps the results of a search up to date with the measurements of others that count.

    Args:
        results: The results of this search.
        goal: What the search is for.

    Attributes:
        emptied: Candidates without measurements: only nodes that are set apart had measured them.
    """

    def __init__(self, results: Results, goal: Goal) -> None:
        self.emptied: dict[str, Candidate] = {}
        self._results = results
        self._goal = goal
        self._launches: dict[tuple[str, int], int] = {}
        self._merged: dict[str, tuple[str, ...]] = {}
        self._failed: dict[str, Failure] = {}

    def merge(self, measurements: Sequence[Measurement], space: SearchSpace) -> tuple[list[CandidateResult], set[str]]:
        """Return the results that changed, and the keys of those candidates that are new.

        Args:
            measurements: All measurements of others that count. Those that do not fit the search are left out.
            space: What may be tried. No config is taken over that this space cannot express.
        """
        by_key: dict[str, list[Measurement]] = defaultdict(list)
        for measurement in measurements:
            by_key[measurement.config.key].append(measurement)
        changed, new = [], set()
        for key in {**by_key, **self._merged}:
            members = [measurement for measurement in by_key.get(key, ()) if fits(measurement, self._goal)]
            ids = tuple(measurement.id for measurement in members)
            if self._merged.get(key, ()) == ids:
                continue
            candidate = self._results.find(key) or (find_candidate(space, members[0]) if members else None)
            if candidate is None:
                continue
            if candidate not in self._results:
                new.add(key)
            result = self._results.get_or_add(candidate)
            self._merged[key] = ids
            self._replace(result, members)
            changed.append(result)
        return changed, new

    def _replace(self, result: CandidateResult, measurements: Sequence[Measurement]) -> None:
        """Replace what others measured of a candidate."""
        key = result.candidate.config.key
        own = [score for score in result.scores if score.launch < FIRST_SHARED]
        shared = [score for measurement in measurements for score in make_scores(measurement, self._launches)]
        result.n_blocks += len(shared) - (len(result.scores) - len(own))
        result.replace_scores([*own, *shared])
        if result.failure is self._failed.get(key):
            result.failure = None
        failures = [measurement.failure for measurement in measurements if measurement.failure]
        if failures and not result.scores and not result.failure:
            result.failure = self._failed[key] = failures[0]
        if result.scores or result.failure:
            self.emptied.pop(key, None)
        else:
            self.emptied[key] = result.candidate


def fits(measurement: Measurement, goal: Goal) -> bool:
    """Return whether a measurement has the values that a search for this goal has."""
    n_excesses = len(goal.limits) + (1 if goal.load.rate_per_s else 0)
    return all(
        len(measured_round.log_ratios) == len(goal.objectives) and len(measured_round.excesses) == n_excesses
        for measured_round in measurement.rounds[:1]
    )


def make_scores(measurement: Measurement, numbers: dict[tuple[str, int], int]) -> list[Score]:
    """Return the rounds of a measurement as scores.

    Args:
        measurement: The measurement.
        numbers: Numbers of launches of other nodes, by the worker and its own number. A new launch gets the next one.
    """
    launch = numbers.setdefault((measurement.worker, measurement.launch), FIRST_SHARED + len(numbers))
    return [
        Score(
            log_ratios=measured_round.log_ratios,
            excesses=measured_round.excesses,
            contended=measured_round.contended,
            launch=launch,
            blocks=None,
        )
        for measured_round in measurement.rounds
    ]


def find_candidate(space: SearchSpace, measurement: Measurement) -> Candidate | None:
    """Return the candidate of a space that another node measured, or None if the space cannot express it."""
    key = measurement.config.key
    if key in space.numbers:
        return space.candidates[space.numbers[key]]
    try:
        candidate = space.select(measurement.labels)
    except (KeyError, StopIteration, ValueError):
        return None
    return candidate if candidate.config.key == key else None


def describe_launches(result: CandidateResult, first_launch: int) -> list[tuple[int, tuple[SharedRound, ...]]]:
    """Return the number and the rounds of own launches of a candidate for other nodes.

    A percentile beyond the median is computed over all calls of a launch, which do not travel: the rounds are shifted,
    so that their median is the percentile of the launch.

    Args:
        result: The candidate.
        first_launch: Number of the first launch to return.
    """
    launches: dict[int, list[Score]] = defaultdict(list)
    for score in result.scores:
        if first_launch <= score.launch < FIRST_SHARED:
            launches[score.launch].append(score)
    found = []
    for launch, scores in launches.items():
        ratios, excesses = result.summarize(scores)
        of_ratios = _shift([score.log_ratios for score in scores], ratios)
        of_excesses = _shift([score.excesses for score in scores], excesses)
        rounds = [
            SharedRound(log_ratios=ratios, excesses=excesses, contended=score.contended)
            for score, ratios, excesses in zip(scores, of_ratios, of_excesses, strict=True)
        ]
        found.append((launch, tuple(rounds[:MOST_ROUNDS])))
    return found


def _shift(rounds: Sequence[tuple[float, ...]], medians: Sequence[float]) -> list[tuple[float, ...]]:
    """Return values of rounds, shifted so that they have other medians."""
    shifts = [
        wanted - statistics.median(column) for wanted, column in zip(medians, zip(*rounds, strict=True), strict=True)
    ]
    return [
        tuple(limit_log_ratio(value + shift) for value, shift in zip(values, shifts, strict=True)) for values in rounds
    ]


def send_launches(
    exchange: SharedExchange, results: Sequence[CandidateResult], first_launch: int, *, spent_s: float, race: str = ""
) -> None:
    """Send what own launches of candidates showed to other nodes.

    Args:
        exchange: The exchange with them.
        results: The candidates.
        first_launch: Number of the first launch to send.
        spent_s: Share of each candidate in the time of its launches, in seconds.
        race: The worker whose race the launches belong to; empty in screening.
    """
    for result in results:
        candidate = result.candidate
        if result.failure:
            # Other nodes may have time to compile the model for this candidate.
            if result.failure.stage != "skipped":
                failure = shorten_failure(result.failure)
                exchange.send(candidate, first_launch, (), failure, spent_s=spent_s, race=race)
            continue
        for launch, rounds in describe_launches(result, first_launch):
            exchange.send(candidate, launch, rounds, None, spent_s=spent_s, race=race)


def shorten_failure(failure: Failure | None) -> Failure | None:
    """Return a failure for other nodes. Its message may name files of this host, so it is left out."""
    return failure and msgspec.structs.replace(failure, message=f"{failure.title} on another node")
