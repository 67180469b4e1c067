"""Racing: launches the best candidates of screening again and again, and drops those that are probably slower."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ortune.errors import MeasureError
from ortune.measure.block_plan import SHORTEST_WARM_UP_NS, block_wall_s, expect_warm_up_ns, launch_sides_s
from ortune.measure.figures import is_pooled
from ortune.storage import SharedRace
from ortune.tuning.merge import send_launches
from ortune.tuning.outliers import limit_rounds
from ortune.tuning.results import CandidateResult
from ortune.tuning.shared_race import RaceElsewhere
from ortune.tuning.state import SearchState
from ortune.tuning.verdict import NEGLIGIBLE_GAIN

MIN_CANDIDATES = 2
MAX_CANDIDATES = 8
WORTH_RACING = 0.25
"""Minimum and maximum number of candidates in racing, and their maximum distance from the best of screening, as a
log-ratio. Part of the lead of the best is due to chance: up to 15 % with several clients."""

MIN_LAUNCHES = 2
MAX_LAUNCHES = 12
"""Minimum and maximum number of launches. With several callers, two launches of one config differed by 10 %, and more
rounds per launch do not reduce this difference: a candidate is judged by its launches."""

STANDARD_ERRORS = 2.0
"""A candidate is dropped when its lag behind the best one exceeds this many standard errors."""

SHORTEST_SIDE_S = 1e-6
"""Least time of a launch of one candidate, so that the number of launches is finite."""

USUAL_LUCK = 0.01
PRIOR_LAUNCHES = 4
"""Standard deviation between launches where no model estimates it, and the weight of the estimate in launches."""


AS_GOOD = 0.005
"""Candidates within this log-ratio of the best of racing count as equally good."""

CLEARANCE = 0.03
"""Minimum distance below a limit, as a log-ratio, at which a candidate clearly stays within it."""


def run_racing(state: SearchState, racing_s: float) -> None:
    """Race the best candidates of screening for a time, if there is time for two launches of two candidates."""
    most = count_affordable(state, racing_s)
    racing = choose_candidates(state, most) if most >= MIN_CANDIDATES else []
    if len(racing) < MIN_CANDIDATES:
        return
    with state.time_stage("racing"):
        Race(state, racing, racing_s).run()


class Race:
    """Launches candidates again and again, until one is left, or the time or the number of launches is used up.

    Launches of other nodes count like own ones, and so does the time that they take.

    Args:
        state: The search.
        racing: The candidates.
        racing_s: The time of all launches, in seconds.

    Attributes:
        racing: The candidates that are left.
        best: The best of them, or None.
    """

    def __init__(self, state: SearchState, racing: list[CandidateResult], racing_s: float) -> None:
        self.racing = racing
        self.best: CandidateResult | None = None
        self._state = state
        self._racers = racing
        self._others = RaceElsewhere(state)
        self._start_s = state.now_s()
        self._end_s = self._start_s + racing_s
        self._n_own = 0
        self._side_s = 0.0

    @property
    def n_launches(self) -> int:
        """Launches so far, on all nodes."""
        return self._n_own + self._others.n_launches

    @property
    def _launch_s(self) -> float:
        """Duration of the next launch, in seconds."""
        return max(self._side_s, SHORTEST_SIDE_S) * (1 + len(self.racing))

    def run(self) -> None:
        """Race."""
        for result in self._racers:
            result.enter("racing")
        self.best = self._find_best()
        self._report()
        try:
            while self.racing and (n_missing := self._count_missing()) > 0:
                self._advance(n_missing)
                if is_hopeless(self._state, self.racing):
                    self._state.is_unpromising = True
                    return
                self.racing = self._keep_affordable(drop_slower(self._state, self.racing))
                self.best = self._find_best()
                self._report()
        finally:
            self._others.announce(())

    def _count_missing(self) -> int:
        """Return how many more launches there is time for, and at least those that are needed to compare."""
        if not self._n_own:
            return MIN_LAUNCHES
        if self.n_launches >= MIN_LAUNCHES and len(self.racing) == 1:
            return 0
        affordable = int((self._end_s - self._state.now_s() - self._others.spent_s) / self._launch_s)
        return min(max(affordable, MIN_LAUNCHES - self.n_launches), MAX_LAUNCHES - self.n_launches)

    def _keep_affordable(self, racing: list[CandidateResult]) -> list[CandidateResult]:
        """Return the best candidates that there is time for, if a launch takes longer than planned.

        Racing would otherwise take the time in which confirmation proves the gain of the winner.
        """
        if self.n_launches >= MIN_LAUNCHES:
            return racing
        n_sides = int((self._end_s - self._state.now_s()) / max(self._side_s, SHORTEST_SIDE_S))
        ranked = [result for result in self._state.results.rank() if result in racing]
        best = ranked[: max(n_sides - 1, MIN_CANDIDATES)]
        return [result for result in racing if result in best]

    def _advance(self, n_missing: int) -> None:
        """Wait for launches of other nodes that complete the race, or launch the candidates here."""
        others = self._others
        others.announce(self.racing)
        if self._n_own:
            n_elsewhere = others.n_launches
            others.wait(self.racing, n_missing, self._launch_s)
            if others.n_launches != n_elsewhere or self._count_missing() <= 0:
                return
        begin_s, n_begin = self._state.now_s(), len(self.racing)
        try:
            self.racing = race_launch(self._state, self.racing, self._report)
        finally:
            # What screening measured stays where racing was interrupted, or where memory was lacking.
            for result in self._racers:
                result.return_if_empty()
        self._n_own += 1
        self._side_s = (self._state.now_s() - begin_s) / (1 + n_begin)
        others.collect(self.racing)

    def _find_best(self) -> CandidateResult | None:
        return next((result for result in self._state.results.rank() if result in self.racing), None)

    def _report(self) -> None:
        state = self._state
        # It ends before a launch that would take longer than planned, and when one candidate is left.
        latest_s = self._start_s + MAX_LAUNCHES * self._launch_s if self._n_own else self._end_s
        ends_s = min(self._end_s, latest_s) if len(self.racing) > 1 else state.now_s()
        then_s = min(max(state.end_s - ends_s, 0.0), state.plan.confirmation_s)
        state.report("racing", self.n_launches, None, self.best, end_s=ends_s, then_s=then_s)


def race_launch(
    state: SearchState, racing: list[CandidateResult], on_round: Callable[[], None]
) -> list[CandidateResult]:
    """Launch the candidates, measure their rounds, and return those that work.

    Args:
        state: The search.
        racing: The candidates.
        on_round: Called after each round, to report progress.
    """
    baseline, lives = state.launch(racing)
    try:
        for _ in range(state.plan.racing_rounds):
            if lives:
                lives = state.measure_round(baseline, lives)
                on_round()
    finally:
        baseline.close()
        for _, live in lives:
            live.close()
        # In a race, there is no time to measure them alone.
        state.starved.clear()
    return [result for result, _ in lives]


def take_part(state: SearchState, race: SharedRace) -> bool:
    """Launch the candidates of another node's race once, and send what they showed.

    Returns:
        False if this node cannot take part, or not again: a candidate was not measured by any node that counts, one
        failed, they do not fit into memory together, or the baseline failed.
    """
    known = [candidate for each in race.configs if (candidate := state.results.find(each.key)) is not None]
    if not known or len(known) < len(race.configs) or len(known) >= state.plan.max_live:
        return False
    # The results of this node stay as they are: its own race may follow.
    racers = [CandidateResult(each, state.results[each].number, state.goal) for each in known]
    for racer in racers:
        racer.enter("racing")
    begin_s, launch = state.now_s(), state.n_launches + 1
    state.end_s = begin_s + state.plan.racing_s
    try:
        working = race_launch(state, racers, state.exchange.beat)
    except MeasureError:
        return False
    spent_s = (state.now_s() - begin_s) / len(racers)
    send_launches(state.exchange, racers, launch, spent_s=spent_s, race=race.worker)
    return len(working) == len(racers)


def count_affordable(state: SearchState, racing_s: float) -> int:
    """Return how many candidates can race in the minimum of launches within this time."""
    plan = state.plan
    round_s = plan.racing_rounds * block_wall_s(plan.block, state.pace)

    warm_up_s = expect_warm_up_ns(state.pace, SHORTEST_WARM_UP_NS) / 1e9

    def takes_s(n: int) -> float:
        launches_s = n * plan.racing_rounds * plan.launch_s if plan.one_at_a_time else launch_sides_s(plan.launch_s, n)
        return MIN_LAUNCHES * (launches_s + n * (warm_up_s + round_s))

    most = MAX_CANDIDATES
    while most and takes_s(most + 1) > racing_s:
        most -= 1
    return most


def choose_candidates(state: SearchState, most: int = MAX_CANDIDATES) -> list[CandidateResult]:
    """Return the best candidates of screening: up to eight, and as many as memory and time allow.

    They stay within the limits and are close to the best in at least one objective. If none stays within the limits,
    all candidates may race. Places are given in turn to the candidates that the model expects to be best, to those that
    were measured best, and to those with one setting: the model may be wrong, and so may be the measurements.
    """
    ranked = state.results.rank()
    keeping = [result for result in ranked if not result.excess] or ranked
    vectors = {result.number: result.log_ratios or () for result in keeping}
    # If the baseline was measured while the host was busy, a candidate may seem to be far better than all others.
    quiet = [vectors[result.number] for result in keeping if not result.is_contended] or list(vectors.values())
    bests = [min(values) for values in zip(*quiet, strict=True)]
    worth_racing = [
        result
        for result in keeping
        if any(value <= best + WORTH_RACING for value, best in zip(vectors[result.number], bests, strict=True))
    ]
    if state.expected and len(state.goal.objectives) == 1:
        # Part of the best candidate's lead is due to chance, especially if similar candidates are slower.
        expected = {result.number: state.expected[result.candidate.config.key] for result in worth_racing}
        worth_racing = take_turns(
            sorted(worth_racing, key=lambda result: (result.excess, expected[result.number])),
            worth_racing,
            [result for result in worth_racing if count_changes(state, result) == 1],
        )
    return worth_racing[: min(MAX_CANDIDATES, most, state.plan.max_live - 1)]


def count_changes(state: SearchState, result: CandidateResult) -> int:
    """Return how many settings of a candidate differ from the baseline's."""
    base = state.space.base.settings
    return sum(base.get(name) != value for name, value in result.candidate.config.settings.items())


def take_turns(*rankings: list[CandidateResult]) -> list[CandidateResult]:
    """Return the candidates of several rankings: the first of each, then the second of each, and so on."""
    turns = itertools.chain.from_iterable(itertools.zip_longest(*rankings))
    return list(dict.fromkeys(result for result in turns if result is not None))


def drop_slower(state: SearchState, racing: list[CandidateResult]) -> list[CandidateResult]:
    """Return the candidates that may be the best in any objective, given their launches in this race.

    All candidates were measured in the same rounds, so whatever affects a whole launch, including the baseline, cancels
    in their differences.
    """
    comparable = [result for result in racing if not result.excess]
    if comparable:
        racing = [result for result in racing if not result.excess or result.n_launches < MIN_LAUNCHES]
    luck = state.luck or USUAL_LUCK
    limited, values = list_log_ratios(comparable, luck)
    if values.shape[1] < MIN_LAUNCHES or len(comparable) < 2:
        return racing
    slower = find_slower(values, luck, limited)
    dropped = {result.number for result, is_slower in zip(comparable, slower, strict=True) if is_slower}
    return [result for result in racing if result.number not in dropped]


def is_hopeless(state: SearchState, racing: list[CandidateResult]) -> bool:
    """Return whether all candidates are unlikely to be better than the baseline by more than is negligible."""
    if len(state.goal.objectives) > 1 or state.goal.limits:
        return False
    luck = state.luck or USUAL_LUCK
    limited, values = list_log_ratios(racing, luck)
    return values.shape[1] >= MIN_LAUNCHES and excludes_relevant_gain(values, luck, limited)


def excludes_relevant_gain(
    values: NDArray[np.float64], luck: float, limited: NDArray[np.float64] | None = None
) -> bool:
    """Return whether no candidate is likely to be better than the baseline by more than is negligible.

    Args:
        values: Log-ratios to the baseline, of shape (candidates, launches, 1).
        luck: Expected standard deviation between launches of one config.
        limited: The log-ratios whose means count, if they are others; see `limit_rounds`.
    """
    means = find_means(values, limited)
    # The baseline has the same error.
    bounds = STANDARD_ERRORS * math.sqrt(2) * find_errors(values, luck) - means
    return bool(bounds.max() < math.log1p(NEGLIGIBLE_GAIN))


def list_log_ratios(results: list[CandidateResult], luck: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log-ratios of the launches that all candidates have: for their means, and for their errors.

    Rounds that stalled are limited, unless a percentile is computed over all calls of a launch together.

    Args:
        results: Candidates of a race.
        luck: Expected standard deviation between launches of one config.

    Returns:
        Two arrays of shape (candidates, launches, objectives); see `limit_rounds`.
    """
    launches = [{members[0].launch: members for members in result.launches()} for result in results]
    common = sorted(set.intersection(*map(set, launches))) if launches else []
    if not common:
        nothing = np.zeros((len(results), 0, 1))
        return nothing, nothing
    if any(map(is_pooled, results[0].goal.objectives)):
        pooled = [{launch: ratios for launch, ratios, _ in result.launch_log_ratios()} for result in results]
        values = np.array([[of[launch] for launch in common] for of in pooled])
        return values, values
    rounds = [[np.array([score.log_ratios for score in of[launch]]) for launch in common] for of in launches]
    return limit_rounds(rounds, luck)


def bound_log_ratios(results: list[CandidateResult], luck: float) -> list[float]:
    """Return for each candidate its log-ratio plus a standard error, from the launches that all of them have.

    Of two candidates that seem equally good, the one whose launches differ less is probably better.

    Args:
        results: Candidates of a race with one objective.
        luck: Expected standard deviation between launches of one config.
    """
    limited, values = list_log_ratios(results, luck)
    if values.shape[1] < MIN_LAUNCHES:
        return [result.log_ratio or 0.0 for result in results]
    return [float(each) for each in bound_means(values, luck, limited)[:, 0]]


def find_means(values: NDArray[np.float64], limited: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the mean over launches of the limited log-ratios, if there are any, or of the others."""
    return np.asarray((values if limited is None else limited).mean(axis=1))


def bound_means(
    values: NDArray[np.float64], luck: float, limited: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the mean of each candidate plus a standard error; see `find_slower` for the arguments."""
    return np.asarray(find_means(values, limited) + find_errors(values, luck))


def find_slower(
    values: NDArray[np.float64], luck: float, limited: NDArray[np.float64] | None = None
) -> NDArray[np.bool_]:
    """Return which candidates are probably slower than the best one in every objective.

    The best one is the best by a pessimistic estimate: otherwise, a candidate that has stalled launches, or the luck of
    a few good ones, could drop all others.

    Args:
        values: Log-ratios of shape (candidates, launches, objectives).
        luck: Expected standard deviation between launches of one config.
        limited: The log-ratios whose means count, if they are others; see `limit_rounds`.
    """
    means, errors = find_means(values, limited), find_errors(values, luck)
    best = (means + errors).sum(axis=1).argmin()
    lag_errors = np.hypot(errors, errors[best])
    return np.asarray((means - means[best] > STANDARD_ERRORS * lag_errors).all(axis=1))


def find_errors(values: NDArray[np.float64], luck: float) -> NDArray[np.float64]:
    """Return the standard error of each candidate's mean, without what all candidates share.

    Args:
        values: Log-ratios of shape (candidates, launches, objectives), of at least two launches.
        luck: Expected standard deviation between launches of one config.

    Returns:
        Errors of shape (candidates, objectives).
    """
    n, n_launches, _ = values.shape
    n_free = n_launches - 1
    # What is left after removing candidates and launches is luck and noise.
    deviations = values - values.mean(axis=1, keepdims=True)
    squares = ((deviations - np.median(deviations, axis=0)) ** 2).sum(axis=1)
    usual = luck**2
    if n > 1:
        # A few candidates with large deviations must not hide that the others have small ones.
        typical = np.median(squares, axis=0) / (n_free * median_of_chi_square(n_free) * (1 - 1 / n))
        n_all = (n - 1) * n_free
        usual = (n_all * typical + PRIOR_LAUNCHES * luck**2) / (n_all + PRIOR_LAUNCHES)
    # Launches of a candidate that agree by chance prove nothing, but those that differ make it uncertain.
    variances = np.maximum(usual, squares / n_free)
    return np.asarray(np.sqrt(variances / n_launches))


def median_of_chi_square(n_free: int) -> float:
    """Return the median of a chi-square distribution, divided by its mean.

    Source: E. B. Wilson and M. M. Hilferty, "The distribution of chi-square", PNAS 17 (1931).
    """
    return (1 - 2 / (9 * n_free)) ** 3


def rank_finalists(state: SearchState) -> list[CandidateResult]:
    """Return the candidates in the order in which they are confirmed: those that raced first.

    Among candidates that are as good as the best, the one with the fewest settings comes first: a setting without
    effect on this host may be harmful on another.
    """
    ranked = state.results.rank()
    raced = [result for result in ranked if result.stage != "screening"]
    rest = [result for result in ranked if result.stage == "screening"]
    if len(state.goal.objectives) > 1:
        return raced or rest
    if not raced:
        return rest
    # Candidates that clearly stay within the limits come first: a confirmation near a limit may prove nothing. Those
    # that racing dropped come last: what they showed cannot be compared with what others showed in more launches.
    n_launches = max(result.n_launches for result in raced)
    raced.sort(key=lambda result: (result.excess, is_near_limit(result), result.n_launches < n_launches))
    first = raced[0]
    contenders = [
        result
        for result in raced
        if result.excess <= first.excess
        and is_near_limit(result) <= is_near_limit(first)
        and result.n_launches >= first.n_launches
    ]
    bounds = bound_log_ratios(contenders, state.luck or USUAL_LUCK)
    order = {result.number: bound for result, bound in zip(contenders, bounds, strict=True)}
    raced.sort(key=lambda result: order.get(result.number, math.inf))
    alike = [result for result in contenders if order[result.number] <= min(bounds) + AS_GOOD]
    alike.sort(key=lambda result: (len(result.candidate.config.settings), order[result.number], result.number))
    return [*alike, *(result for result in raced if result not in alike), *rest]


def is_near_limit(result: CandidateResult) -> bool:
    """Return whether a candidate is so close to a limit that confirmation may not show whether it stays within it."""
    return max(result.excesses, default=-math.inf) > -CLEARANCE
