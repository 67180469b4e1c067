"""Racing: launches the best candidates of screening again and again, and drops those that are probably slower."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.knobs import KNOBS, ids
from ortune.measure.block_plan import SHORTEST_WARM_UP_NS, block_wall_s, expect_warm_up_ns
from ortune.measure.compute_figures import is_pooled
from ortune.measure.judge import NEGLIGIBLE_GAIN
from ortune.tuning.board import Board, LiveRound
from ortune.tuning.outliers import limit_rounds
from ortune.tuning.results import CandidateResult, find_tie

MIN_CANDIDATES = 2
MAX_CANDIDATES = 8
WORTH_RACING = 0.25
"""Minimum and maximum number of candidates in racing, and their maximum distance from the best of screening, as a
log-ratio. Part of the lead of the best is due to chance: up to 15 % with several clients."""

MIN_RACING_LAUNCHES = 2
MAX_RACING_LAUNCHES = 12
"""Minimum and maximum number of launches. With several callers, two launches of one config differed by 10 %, and more
rounds per launch do not reduce this difference: a candidate is judged by its launches."""

LAG_ERRORS = 2.0
"""A candidate is dropped when its lag behind the best one exceeds this many standard errors."""

SHORTEST_SIDE_S = 1e-6
"""Least time of a launch of one candidate, so that the number of launches is finite."""

PRIOR_LAUNCHES = 4
"""Weight, in launches, of the estimate of how much they differ."""

AS_GOOD = 0.005
MOST_AS_GOOD = 0.02
"""Candidates within a standard error of the best of racing count as equally good: at least and at most within these
log-ratios."""

CPU_STEP = math.log(1.1)
"""Log-ratio of CPU times that counts: candidates are compared in steps of it."""

AS_FAST = 0.03
"""Those that are equal in memory count as equally fast within this log-ratio of the fastest of them."""

CLEARANCE = 0.03
"""Minimum distance below a limit, as a log-ratio, at which a candidate clearly stays within it."""


def race(board: Board, racing: Race) -> bool:
    """Launch candidates again and again, and drop those that are slower.

    Args:
        board: The search.
        racing: The race. There is none if it has fewer than two candidates.

    Returns:
        Whether it showed that no candidate is better than the baseline by more than is negligible.
    """
    if len(racing.left) < MIN_CANDIDATES:
        return False
    with board.time_stage("racing"), contextlib.closing(racing):
        racing.begin()
        while (n_missing := racing.count_missing()) > 0:
            if not racing.was_launched_elsewhere(n_missing):
                with racing.launch() as live:
                    for measured in live.rounds(board.plan.racing_rounds):
                        live.add(measured)
                        racing.report()
            if is_hopeless(board, racing.left):
                return True
            racing.finish_launch()
            if is_decided(board, racing.left):
                # Pruning shows which settings of the best candidate matter, among those that are as good.
                pruning_s = board.plan.pruning_s + racing.count_left_s()
                board.replan(msgspec.structs.replace(board.plan, pruning_s=pruning_s))
                break
    return False


class Race:
    """A race of the best candidates of screening: as many as there is time to launch twice.

    It is over when one candidate is left, when no other one is likely to be better than the best one by more than is
    negligible, or when the time or the number of launches is used up.

    Args:
        board: The search.
        racing_s: The time of all launches, in seconds.

    Attributes:
        left: The candidates that are left.
        best: The best of them, or None.
    """

    def __init__(self, board: Board, racing_s: float) -> None:
        most = count_affordable(board, racing_s)
        self.left = choose_candidates(board, most) if most >= MIN_CANDIDATES else []
        self.best: CandidateResult | None = None
        self._board = board
        self._racers = self.left
        self._start_s = board.now_s()
        self._end_s = self._start_s + racing_s
        self._n_own = 0
        self._side_s = 0.0

    # What a search on several hosts does in another way; see `ortune.tuning.shared_race`.

    @property
    def n_launches(self) -> int:
        """Launches so far."""
        return self._n_own

    def was_launched_elsewhere(self, n_missing: int) -> bool:
        """Return whether the next of so many launches took place elsewhere."""
        return False

    def close(self) -> None:
        """Let others know that the race is over."""

    # The steps of a launch.

    @property
    def launch_s(self) -> float:
        """Duration of the next launch, in seconds."""
        return max(self._side_s, SHORTEST_SIDE_S) * (1 + len(self.left))

    def begin(self) -> None:
        """Begin with the results of screening."""
        for result in self._racers:
            result.enter("racing")
        self.best = self._find_best()
        self.report()

    @contextlib.contextmanager
    def launch(self) -> Iterator[LiveRound]:
        """Launch the candidates. Those that work are left."""
        board, begin_s, n_begin = self._board, self._board.now_s(), len(self.left)
        try:
            with board.launch(self.left) as live:
                yield live
                self.left = [result for _, result in live.candidates()]
        finally:
            # In a race, there is no time to measure them alone.
            board.starved.clear()
            # What screening measured stays where racing was interrupted, or where memory was lacking.
            for result in self._racers:
                result.return_if_empty()
        self._n_own += 1
        self._side_s = (board.now_s() - begin_s) / (1 + n_begin)

    def finish_launch(self) -> None:
        """Drop the candidates that are slower, and those that there is no time for."""
        self._board.results.correct_slow_launches(self._board.screened.expected)
        self.left = self._keep_affordable(drop_slower(self._board, self.left))
        self.best = self._find_best()
        self.report()

    def count_left_s(self) -> float:
        """Return how much time is left, in seconds."""
        return self._end_s - self._board.now_s()

    def count_missing(self) -> int:
        """Return how many more launches there is time for, and at least those that are needed to compare."""
        if not self.left:
            return 0
        if not self._n_own:
            return MIN_RACING_LAUNCHES
        if self.n_launches >= MIN_RACING_LAUNCHES and len(self.left) == 1:
            return 0
        affordable = int(self.count_left_s() / self.launch_s)
        return min(max(affordable, MIN_RACING_LAUNCHES - self.n_launches), MAX_RACING_LAUNCHES - self.n_launches)

    def _keep_affordable(self, racing: list[CandidateResult]) -> list[CandidateResult]:
        """Return the best candidates that there is time for, if a launch takes longer than planned.

        Racing would otherwise take the time in which confirmation proves the gain of the winner.
        """
        if self.n_launches >= MIN_RACING_LAUNCHES:
            return racing
        n_sides = int((self._end_s - self._board.now_s()) / max(self._side_s, SHORTEST_SIDE_S))
        ranked = [result for result in self._board.results.rank() if result in racing]
        best = ranked[: max(n_sides - 1, MIN_CANDIDATES)]
        return [result for result in racing if result in best]

    def _find_best(self) -> CandidateResult | None:
        return next((result for result in self._board.results.rank() if result in self.left), None)

    def report(self) -> None:
        """Report progress, between rounds."""
        board = self._board
        # It ends before a launch that would take longer than planned, and when one candidate is left.
        latest_s = self._start_s + MAX_RACING_LAUNCHES * self.launch_s if self._n_own else self._end_s
        ends_s = min(self._end_s, latest_s) if len(self.left) > 1 else board.now_s()
        then_s = min(max(board.end_s - ends_s, 0.0), board.plan.pruning_s + board.plan.confirmation_s)
        board.report("racing", self.n_launches, None, self.best, end_s=ends_s, then_s=then_s)


def count_affordable(board: Board, racing_s: float) -> int:
    """Return how many candidates can race in the minimum of launches within this time."""
    most = MAX_CANDIDATES
    while most and MIN_RACING_LAUNCHES * expect_launch_s(board, most + 1) > racing_s:
        most -= 1
    return most


def expect_launch_s(board: Board, n_sides: int) -> float:
    """Return how long a launch of so many sides with its rounds probably takes, in seconds."""
    plan = board.plan
    round_s = plan.racing_rounds * block_wall_s(plan.block, board.pace)
    warm_up_s = expect_warm_up_ns(board.pace, SHORTEST_WARM_UP_NS) / 1e9
    one_by_one_s = n_sides * plan.racing_rounds * plan.launch_s
    launches_s = one_by_one_s if plan.one_at_a_time else board.expect_launch_s(n_sides)
    return launches_s + n_sides * (warm_up_s + round_s)


def choose_candidates(board: Board, most: int = MAX_CANDIDATES) -> list[CandidateResult]:
    """Return the best candidates of screening: up to eight, and as many as memory and time allow.

    They stay within the limits and are close to the best in at least one objective. If none stays within the limits,
    all candidates may race. Places are given in turn to the candidates that the model expects to be best, to cheaper
    ones that it expects to be as good, to those that were measured best, and to simple ones: the model may be wrong,
    and so may be the measurements.
    """
    ranked = board.results.rank()
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
    if board.screened.expected and worth_racing and len(board.goal.objectives) == 1:
        # Part of the best candidate's lead is due to chance, especially if similar candidates are slower.
        expected = {result.number: board.screened.expected[result.candidate.config.key] for result in worth_racing}
        worth_racing = take_turns(
            sorted(worth_racing, key=lambda result: (result.excess, expected[result.number])),
            list_cheaper(worth_racing, expected),
            worth_racing,
            [result for result in worth_racing if count_changes(board, result) == 1],
            list_simpler(board, min(worth_racing, key=lambda result: expected[result.number]), worth_racing),
        )
    elif len(board.goal.objectives) > 1:
        # Those that chance puts on the front must not take the places of the best one in an objective.
        def rank(place: int) -> list[CandidateResult]:
            return sorted(worth_racing, key=lambda result: (result.excess, vectors[result.number][place]))

        worth_racing = take_turns(*map(rank, range(len(board.goal.objectives))), worth_racing)
    return worth_racing[: min(MAX_CANDIDATES, most, board.plan.max_live - 1)]


def list_cheaper(worth_racing: Sequence[CandidateResult], expected: Mapping[int, float]) -> list[CandidateResult]:
    """Return the candidates that are expected to be as good as the best one with less CPU time, the cheapest first.

    Args:
        worth_racing: The candidates.
        expected: The log-ratio that is expected of each, by its number.
    """
    best = min(worth_racing, key=lambda result: (result.excess, expected[result.number]))
    alike = [
        result
        for result in worth_racing
        if expected[result.number] <= expected[best.number] + MOST_AS_GOOD and result.excess <= best.excess
    ]
    cpu = {result.number: result.cpu for result in alike if result.cpu is not None}
    most = cpu.get(best.number, -math.inf) - CPU_STEP
    cheaper = [result for result in alike if cpu.get(result.number, math.inf) <= most]
    return sorted(cheaper, key=lambda result: cpu[result.number])


def list_simpler(board: Board, best: CandidateResult, worth_racing: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return the candidates without one of the best one's settings, of those that were tried."""
    simpler = {candidate.config.key for candidate in board.space.leave_one_out(best.candidate).values()}
    return [result for result in worth_racing if result.candidate.config.key in simpler]


def count_changes(board: Board, result: CandidateResult) -> int:
    """Return how many settings of a candidate differ from the baseline's."""
    base = board.space.base.settings
    return sum(base.get(name) != value for name, value in result.candidate.config.settings.items())


def take_turns(*rankings: list[CandidateResult]) -> list[CandidateResult]:
    """Return the candidates of several rankings: the first of each, then the second of each, and so on."""
    turns = itertools.chain.from_iterable(itertools.zip_longest(*rankings))
    return list(dict.fromkeys(result for result in turns if result is not None))


class Standing(NamedTuple):
    """How candidates stand in a race, by the launches that all of them have.

    Attributes:
        means: Mean log-ratios to the baseline, of shape (candidates, objectives).
        errors: Their standard errors without what all candidates share, likewise.
    """

    means: NDArray[np.float64]
    errors: NDArray[np.float64]

    @classmethod
    def estimate(cls, values: NDArray[np.float64], luck: float, limited: NDArray[np.float64] | None = None) -> Standing:
        """Return how candidates stand after at least two launches.

        Args:
            values: Log-ratios of shape (candidates, launches, objectives).
            luck: Expected standard deviation between launches of one config.
            limited: The log-ratios whose means count, if they are others; see `limit_rounds`.
        """
        return cls((values if limited is None else limited).mean(axis=1), find_errors(values, luck))

    @property
    def bounds(self) -> NDArray[np.float64]:
        """Pessimistic estimates: of two equal candidates, the one whose launches differ less is probably better."""
        return self.means + self.errors

    @property
    def best(self) -> int:
        """Position of the best candidate by the pessimistic estimates.

        Otherwise, a candidate that has stalled launches, or the luck of a few good ones, could drop all others.
        """
        return int(self.bounds.sum(axis=1).argmin())

    @property
    def lag_errors(self) -> NDArray[np.float64]:
        """Standard errors of the differences to the best candidate."""
        return np.asarray(np.hypot(self.errors, self.errors[self.best]))

    def find_slower(self, tie: float = 0.0) -> NDArray[np.bool_]:
        """Return which candidates are probably slower than the best one in every objective.

        Args:
            tie: Log-ratio up to which candidates are equal.
        """
        lags = self.means - self.means[self.best]
        return np.asarray((lags > np.maximum(LAG_ERRORS * self.lag_errors, tie)).all(axis=1))

    def is_decided(self) -> bool:
        """Return whether no candidate is likely to be better than the best one by more than is negligible."""
        leads = self.means[self.best] - self.means + LAG_ERRORS * self.lag_errors
        return bool(np.delete(leads, self.best, axis=0).max() < math.log1p(NEGLIGIBLE_GAIN))

    def excludes_relevant_gain(self) -> bool:
        """Return whether no candidate is likely to be better than the baseline by more than is negligible."""
        # The baseline has the same error.
        bounds = LAG_ERRORS * math.sqrt(2) * self.errors - self.means
        return bool(bounds.max() < math.log1p(NEGLIGIBLE_GAIN))


def find_standing(board: Board, results: list[CandidateResult]) -> Standing | None:
    """Return how candidates stand in a race; None before they have enough launches in common."""
    luck = board.screened.expected_luck
    limited, values = list_log_ratios(results, luck)
    return Standing.estimate(values, luck, limited) if values.shape[1] >= MIN_RACING_LAUNCHES else None


def drop_slower(board: Board, racing: list[CandidateResult]) -> list[CandidateResult]:
    """Return the candidates that may be the best in any objective, given their launches in this race.

    All candidates were measured in the same rounds, so whatever affects a whole launch, including the baseline, cancels
    in their differences.
    """
    comparable = [result for result in racing if not result.excess]
    if comparable:
        racing = [result for result in racing if not result.excess or result.n_launches < MIN_RACING_LAUNCHES]
    standing = find_standing(board, comparable)
    if not standing or len(comparable) < MIN_CANDIDATES:
        return racing
    slower = standing.find_slower(find_tie(board.goal))
    dropped = {result.number for result, is_slower in zip(comparable, slower, strict=True) if is_slower}
    return [result for result in racing if result.number not in dropped]


def is_hopeless(board: Board, racing: list[CandidateResult]) -> bool:
    """Return whether all candidates are unlikely to be better than the baseline by more than is negligible."""
    standing = find_standing(board, racing) if is_of_one_figure(board) else None
    return standing is not None and standing.excludes_relevant_gain()


def is_decided(board: Board, racing: list[CandidateResult]) -> bool:
    """Return whether no candidate is likely to be better than the best one by more than is negligible."""
    standing = find_standing(board, racing) if is_of_one_figure(board) and len(racing) > 1 else None
    return standing is not None and standing.is_decided()


def is_of_one_figure(board: Board) -> bool:
    """Return whether one objective alone says which candidate is better."""
    return len(board.goal.objectives) == 1 and not board.goal.limits


def list_log_ratios(
    results: list[CandidateResult], luck: float, left_out: Set[int] = frozenset()
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log-ratios of the launches that all candidates have: for their means, and for their errors.

    Rounds that stalled are limited, unless a percentile is computed over all calls of a launch together.

    Args:
        results: Candidates of a race.
        luck: Expected standard deviation between launches of one config.
        left_out: Numbers of launches that do not count.

    Returns:
        Two arrays of shape (candidates, launches, objectives); see `limit_rounds`.
    """
    launches = [{members[0].launch: members for members in result.launches()} for result in results]
    common = sorted(set.intersection(*map(set, launches)) - left_out) if launches else []
    if not common:
        nothing = np.zeros((len(results), 0, 1))
        return nothing, nothing
    if any(map(is_pooled, results[0].goal.objectives)):
        pooled = [{launch: ratios for launch, ratios, _ in result.launch_log_ratios()} for result in results]
        values = np.array([[of[launch] for launch in common] for of in pooled])
        return values, values
    rounds = [[np.array([score.log_ratios for score in of[launch]]) for launch in common] for of in launches]
    return limit_rounds(rounds, luck)


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


def rank_finalists(board: Board) -> list[CandidateResult]:
    """Return the candidates in the order in which they are confirmed: those that raced first.

    Candidates that are as good as the best are in the order of `rate_cost_to_others`: a setting without effect on this
    host may be harmful on another. If only memory is optimized, those that are as fast as the fastest come before.
    """
    ranked = board.results.rank()
    raced = [result for result in ranked if result.stage != "screening"]
    rest = [result for result in ranked if result.stage == "screening"]
    if len(board.goal.objectives) > 1:
        return raced or rest
    if not raced:
        if not board.is_enough:
            return rest
        # There was no race because the candidate that the model expects to be best is good enough.
        expected = board.screened.expected
        return sorted(rest, key=lambda result: (result.excess, expected[result.candidate.config.key]))
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
    standing = find_standing(board, contenders)
    bounds = standing.bounds[:, 0].tolist() if standing else [result.log_ratio or 0.0 for result in contenders]
    # That of the difference between the best one and another one.
    error = math.sqrt(2) * float(standing.errors[standing.best].max()) if standing else 0.0
    order = {result.number: bound for result, bound in zip(contenders, bounds, strict=True)}
    raced.sort(key=lambda result: order.get(result.number, math.inf))
    tie = find_tie(board.goal) or min(max(error, AS_GOOD), MOST_AS_GOOD)
    alike = [result for result in contenders if order[result.number] <= min(bounds) + tie]
    fast = min(result.slowdown for result in alike) + AS_FAST
    alike.sort(
        key=lambda result: (
            max(result.slowdown, fast),
            *rate_cost_to_others(result, with_cpu=all(other.cpu is not None for other in alike)),
            order[result.number],
            result.number,
        )
    )
    return [*alike, *(result for result in raced if result not in alike), *rest]


def rate_cost_to_others(result: CandidateResult, *, with_cpu: bool = True) -> tuple[int, int, int, int]:
    """Return what decides between candidates that are equally good; the smallest is preferred.

    First come those without affinities, then those with less CPU time for a call, fewer settings, and fewer settings
    with a risk.

    Args:
        result: The candidate.
        with_cpu: Whether the CPU time of all of them is known.
    """
    # Entries that differ between sessions have one name for each of them.
    names = {name.partition(" of session ")[0] for name in result.candidate.config.settings}
    knobs = [KNOBS[name] for name in names if name in KNOBS]
    return (
        int(ids.INTRA_OP_THREAD_AFFINITIES in names),
        round((result.cpu or 0.0) / CPU_STEP) if with_cpu else 0,
        len(names),
        sum(bool(knob.risk or knob.numerics) for knob in knobs),
    )


def is_near_limit(result: CandidateResult) -> bool:
    """Return whether a candidate is so close to a limit that confirmation may not show whether it stays within it."""
    return max(result.excesses, default=-math.inf) > -CLEARANCE
