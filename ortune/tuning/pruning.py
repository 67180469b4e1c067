"""Pruning: launches the finalist beside itself without each of its settings, and drops settings that do not contribute.

Source of the idea: ablation analysis, by C. Fawcett and H. Hoos, Journal of Heuristics 22 (2016), pages 431 to 458.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.measure.block_plan import shortest_run_s
from ortune.measure.stats import ERROR_OF_MEDIAN, robust_sigma, student_interval
from ortune.record.schema import SettingEvidence
from ortune.tuning.board import Board
from ortune.tuning.racing import (
    AS_FAST,
    CPU_STEP,
    PRIOR_LAUNCHES,
    expect_launch_s,
    is_near_limit,
    list_log_ratios,
)
from ortune.tuning.results import CandidateResult, Score, find_tie

MIN_CONTRIBUTION = 0.005
"""What a setting must contribute at least, as a log-ratio."""

IDLE_SHARE = 0.75
USUAL_CONTRIBUTION = 0.03
SPREAD_OF_CONTRIBUTIONS = 0.05
"""What is expected of a setting of a finalist before it is measured: the probability that it does nothing, and mean and
standard deviation of what it contributes otherwise, as log-ratios. Source: finalists on the development landscapes of
benchmarks/regret.py, of whose settings 40 % do nothing. With a larger probability, fewer answers on the varied
landscapes have such a setting, and gain the same on average."""

MOST_ERROR = 0.03
"""Standard error up to which a setting is dropped because less than the minimum was measured."""

IDLE_TOGETHER = 0.8
"""Probability that settings do nothing together, if each of them seems to do nothing beside the others."""

IDLE_IF_RISKY = 0.9
"""What is taken as the probability that a setting with a risk does nothing, so that it is kept only if it was measured
to contribute."""

CERTAIN_ERRORS = 2.0
"""Standard errors by which a contribution exceeds what is needed if no further launch is necessary."""

MIN_PRUNING_LAUNCHES = 3
ENOUGH_PRUNING_LAUNCHES = 6
MOST_PRUNING_LAUNCHES = 12
"""Minimum number of launches of each comparison that count, number from which no further one is made, and number of all
launches at most."""

LONGEST_PRUNING = 2.0
"""How many times its planned time pruning may take for the minimum of launches: fewer would show nothing."""


ALL_USELESS = ""
"""Key of the comparison with the candidate without all useless settings."""

Pair = tuple[CandidateResult, CandidateResult]
"""A candidate, and a simpler one."""


class PruningResult(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning found.

    Attributes:
        ranked: The candidates in the order in which they are confirmed.
        contributions: What each setting of the first one contributes, by name.
        dropped: What each setting that it had before contributed.
    """

    ranked: list[CandidateResult]
    contributions: Mapping[str, Contribution] = {}
    dropped: Mapping[str, Contribution] = {}


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting contributes beside the other settings.

    Attributes:
        log_ratio: log(cost without the setting / cost with it), above 0 if the setting helps.
        error: Its standard error.
        cpu: The same for the CPU time of a call; 0 where it is not known.
        cpu_error: Its standard error.
        is_faster: Whether calls are faster with it, where that decides between candidates that are equal in memory.
        n_launches: Number of launches of both.
    """

    log_ratio: float
    error: float
    cpu: float
    cpu_error: float
    is_faster: bool = False
    n_launches: int

    def to_evidence(self) -> SettingEvidence:
        """Return the ratios of costs and of CPU times, as a record holds them."""
        n_free = self.n_launches - 1 + PRIOR_LAUNCHES
        interval = student_interval(self.log_ratio, self.error, n_free).exp()
        return SettingEvidence(
            estimate=interval.estimate,
            low=interval.low,
            high=interval.high,
            confidence=interval.confidence,
            cpu=math.exp(self.cpu),
        )

    def expect(self, idle_share: float = IDLE_SHARE) -> float:
        """Return the log-ratio that is expected, given the measurements and what settings usually contribute.

        Args:
            idle_share: Probability that the setting does nothing, before it is measured.
        """
        return expect_contribution(self.log_ratio, self.error, idle_share)

    def matters(self, idle_share: float = IDLE_SHARE) -> bool:
        """Return whether the setting is kept: it improves the objective, or makes calls cheaper or faster."""
        # Nobody trusts a setting that seems to do harm. A rough measurement alone does not drop what probably helps.
        seems_useless = self.error <= MOST_ERROR and self.log_ratio < MIN_CONTRIBUTION
        contributes = self.expect(idle_share) >= MIN_CONTRIBUTION and not seems_useless
        return contributes or self.is_faster or (self.is_cheaper and not self.does_harm)

    @property
    def is_cheaper(self) -> bool:
        """Whether calls are certain to take less CPU time with the setting, and by as much as counts."""
        return self.cpu >= CPU_STEP and self.cpu > CERTAIN_ERRORS * self.cpu_error

    @property
    def does_harm(self) -> bool:
        """Whether the objective is certain to be worse with the setting."""
        return self.log_ratio + CERTAIN_ERRORS * self.error < -MIN_CONTRIBUTION

    @property
    def is_known(self) -> bool:
        """Whether no further launch is necessary: the setting is certain to matter, or there were enough."""
        is_certain = self.log_ratio - CERTAIN_ERRORS * self.error > MIN_CONTRIBUTION
        return is_certain or self.n_launches >= ENOUGH_PRUNING_LAUNCHES


def expect_contribution(value: float, error: float, idle_share: float) -> float:
    """Return what a setting probably contributes, as a log-ratio: a setting does nothing, or what settings usually do.

    Source: a mixture of a point and a normal distribution as the prior ("spike and slab"), T. J. Mitchell and
    J. J. Beauchamp, "Bayesian variable selection in linear regression", JASA 83 (1988).

    Args:
        value: The measured log-ratio.
        error: Its standard error.
        idle_share: Probability that the setting does nothing, before it is measured.
    """
    spread = math.hypot(SPREAD_OF_CONTRIBUTIONS, error)
    idle = idle_share / error * math.exp(-((value / error) ** 2) / 2)
    active = (1 - idle_share) / spread * math.exp(-(((value - USUAL_CONTRIBUTION) / spread) ** 2) / 2)
    # Far from what both expect, the second is the less unlikely one.
    share = active / (idle + active) if idle + active > 0 else 1.0
    weight = (SPREAD_OF_CONTRIBUTIONS / spread) ** 2
    return share * (weight * value + (1 - weight) * USUAL_CONTRIBUTION)


def prune(board: Board, ranked: Sequence[CandidateResult]) -> PruningResult:
    """Drop the settings of the best candidate that do not contribute.

    Args:
        board: The search.
        ranked: The candidates, in the order in which they are confirmed.
    """
    ranked = list(ranked)
    if not ranked or board.is_unpromising or len(ranked[0].candidate.chosen) < 2:
        return PruningResult(ranked=ranked)
    with board.time_stage("pruning"), keep_earlier_stages(board):
        begin_s = board.now_s()
        proof_s = shortest_run_s(board.pace, board.plan.launch_s, board.plan.fewest_launches)
        latest_s = min(begin_s + LONGEST_PRUNING * board.plan.pruning_s, board.end_s - proof_s)
        pruning = Pruning(board, ranked[0], begin_s + board.plan.pruning_s, latest_s)
        pruning.run()
    best, names = pruning.best, {dimension.name: dimension.setting for dimension in board.space.dimensions}
    return PruningResult(
        ranked=[best, *(result for result in ranked if result is not best)],
        contributions={names[name]: pruning.found[name] for name in best.candidate.chosen if name in pruning.found},
        dropped={names[name]: contribution for name, contribution in pruning.dropped.items()},
    )


@contextlib.contextmanager
def keep_earlier_stages(board: Board) -> Iterator[None]:
    """Let candidates go back to what earlier stages measured of them if pruning is interrupted."""
    try:
        yield
    except BaseException:
        for result in board.results:
            if result.stage == "pruning":
                result.go_back()
        raise


class Pruning:
    """Drops settings of a candidate. What was measured beside another candidate decides nothing.

    A setting that seemed useless may matter once another one is gone. A simpler candidate is therefore launched
    together with those that are simpler still.

    Args:
        board: The search.
        best: The candidate.
        end_s: When its planned time ends, on the runner's clock.
        latest_s: When it ends at the latest.

    Attributes:
        best: The simplest candidate so far that is as good.
        found: What its settings contribute, by the names of their dimensions.
        dropped: What each setting that it had before contributed.
    """

    def __init__(self, board: Board, best: CandidateResult, end_s: float, latest_s: float) -> None:
        self.best = best
        self.found: dict[str, Contribution] = {}
        self.dropped: dict[str, Contribution] = {}
        self._board = board
        self._end_s = min(end_s, latest_s)
        self._latest_s = latest_s

    def run(self) -> None:
        """Drop what does not contribute.

        What the model of screening expects nothing of is tried first, all together. Then each setting is measured.
        Settings are dropped together if the candidate without all of them is as good, else one at a time: each of two
        settings with the same effect seems useless beside the other one.
        """
        if not self.drop_idle():
            self.measure()
        while useless := self.list_useless():
            if not self.drop(useless):
                self.drop_one(useless)

    def measure(self) -> None:
        """Measure what each setting contributes."""
        self.found = self._compare(list_pairs(self._board, self.best))

    def list_useless(self) -> list[str]:
        """Return the settings that do not seem to contribute beside the other ones."""
        if self.best.failure:
            return []
        return [name for name in self.found if not self.found[name].matters(find_idle_share(self._board, name))]

    def drop_idle(self) -> bool:
        """Drop the settings that the model of screening expects to do nothing. Return whether that is as good."""
        idle = list_idle(self._board, self.best)
        simpler = find_without(self._board, self.best, idle) if idle else None
        # A wrong guess must leave time to measure.
        if simpler is None or not count_fitting(self._board, {ALL_USELESS: (self.best, simpler)}, self._end_s):
            return False
        return self.drop(idle)

    def drop(self, useless: Sequence[str]) -> bool:
        """Drop settings if the candidate without all of them is as good. Return whether it is.

        The comparison takes place together with those of its own settings.
        """
        simpler = find_without(self._board, self.best, useless)
        if simpler is None:
            return False
        pairs = list_pairs(self._board, simpler)
        known = self.found.get(useless[0]) if len(useless) == 1 else None
        if not known:
            pairs = {ALL_USELESS: (self.best, simpler), **pairs}
        found = self._compare(pairs)
        lacks = known or found.pop(ALL_USELESS, None)
        if self.best.failure or simpler.failure or not lacks or (not known and lacks.matters(IDLE_TOGETHER)):
            return False
        self._replace(simpler, dict.fromkeys(useless, lacks) | self.found)
        self.found = found
        return True

    def drop_one(self, useless: Sequence[str]) -> None:
        """Drop the setting that seems to contribute least, and measure the other ones again."""
        pairs = list_pairs(self._board, self.best)
        working = [name for name in useless if name in pairs]
        if not working:
            self.found = {}
            return
        name = min(working, key=lambda name: self.found[name].expect())
        self._replace(pairs[name][1], self.found)
        self.measure()

    def _compare(self, pairs: Mapping[str, Pair]) -> dict[str, Contribution]:
        return measure_contributions(self._board, pairs, self._end_s, self._latest_s)

    def _replace(self, simpler: CandidateResult, contributions: Mapping[str, Contribution]) -> None:
        """Go on with a simpler candidate, and note what the settings contributed that it does not have."""
        gone = self.best.candidate.chosen.keys() - simpler.candidate.chosen.keys()
        self.dropped |= {name: found for name, found in contributions.items() if name in gone}
        self.best = simpler


def predict_contributions(board: Board, best: CandidateResult) -> dict[str, float]:
    """Return what the model of screening expects each setting of a candidate to contribute, the least first.

    Values are log-ratios, by the name of the dimension. They are infinite for what the model does not know.
    """
    expected = board.screened.expected
    own = expected.get(best.candidate.config.key, 0.0)
    found = {
        name: expected.get(candidate.config.key, math.inf) - own
        for name, candidate in board.space.leave_one_out(best.candidate).items()
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def list_idle(board: Board, best: CandidateResult) -> list[str]:
    """Return the settings of a candidate that the model of screening expects to do nothing, but not all of them.

    With a limit, there are none: a setting may be necessary to keep it, and the model knows only the objective.
    """
    if board.goal.limits:
        return []
    idle = [name for name, value in predict_contributions(board, best).items() if value < MIN_CONTRIBUTION]
    return idle[: len(best.candidate.chosen) - 1]


def find_idle_share(board: Board, name: str) -> float:
    """Return the probability that a setting does nothing, before it is measured, by the name of its dimension."""
    knob = next(dimension.knob for dimension in board.space.dimensions if dimension.name == name)
    return IDLE_IF_RISKY if knob.risk or knob.numerics else IDLE_SHARE


def list_pairs(board: Board, best: CandidateResult) -> dict[str, Pair]:
    """Return a candidate and the one without one of its settings, by the setting's dimension.

    Those that are most likely to be as good come first. Those that failed are left out.
    """
    candidates = board.space.leave_one_out(best.candidate)
    reduced = {name: board.results.get_or_add(candidates[name]) for name in predict_contributions(board, best)}
    return {
        name: (best, result) for name, result in reduced.items() if not result.failure and result is not board.baseline
    }


def find_without(board: Board, best: CandidateResult, useless: Sequence[str]) -> CandidateResult | None:
    """Return the candidate without several settings, given by their dimensions; None if it failed or has no other."""
    kept = {name: label for name, label in best.candidate.chosen.items() if name not in useless}
    simpler = board.results.get_or_add(board.space.select(kept))
    return None if simpler is board.baseline or simpler.failure else simpler


def measure_contributions(
    board: Board, pairs: Mapping[str, Pair], end_s: float, latest_s: float
) -> dict[str, Contribution]:
    """Launch candidates beside simpler ones, and return what each of these lacks.

    Args:
        board: The search.
        pairs: Candidates and simpler ones, by what these lack. Those that fail, or exceed limits that the other one
            keeps, are left out, and the last ones if there is no memory or time for all.
        end_s: When the last launch ends, on the runner's clock.
        latest_s: When the last one ends that is needed.
    """
    found = compare_all(board, pairs)
    left = find_uncertain(pairs, found)
    left = dict(list(left.items())[: count_fitting(board, left)])
    # If there is no time for all, the confirmation keeps its own.
    if count_fitting(board, left, latest_s) < len(left):
        left = dict(list(left.items())[: count_fitting(board, left, end_s)])
    entered = list_sides(left)
    for result in entered:
        if result.stage != "pruning":
            result.enter("pruning")
    n_launches, launch_s = 0, expect_launch_s(board, 1 + len(entered))
    while left and n_launches < MOST_PRUNING_LAUNCHES:
        # Slow launches, and those that other programs disturbed, do not count.
        n_needed = MIN_PRUNING_LAUNCHES - max(len(list_lacks(board, *pair)) for pair in left.values())
        needed_s, until_s = (n_needed * launch_s, latest_s) if n_needed > 0 else (launch_s, end_s)
        if board.now_s() + needed_s > until_s:
            break
        begin_s = board.now_s()
        with board.launch(list_sides(left)) as live:
            for measured in live.rounds(board.plan.racing_rounds):
                live.add(measured)
                report_launches(board, entered[0], n_launches, end_s)
        left = {name: pair for name, pair in left.items() if not any(side in board.starved for side in pair)}
        board.starved.clear()
        n_launches, launch_s = n_launches + 1, board.now_s() - begin_s
        report_launches(board, entered[0], n_launches, end_s)
        found = compare_all(board, pairs)
        left = find_uncertain(left, found)
        if ALL_USELESS in found and found[ALL_USELESS].matters(IDLE_TOGETHER):
            break
    for result in entered:
        result.return_if_empty()
    return found


def list_sides(pairs: Mapping[str, Pair]) -> list[CandidateResult]:
    """Return the candidates of all pairs, each once."""
    return list(dict.fromkeys(itertools.chain.from_iterable(pairs.values())))


def count_fitting(board: Board, pairs: Mapping[str, Pair], end_s: float = math.inf) -> int:
    """Return how many of the first pairs can be compared with the memory, until a time on the runner's clock."""
    left_s = end_s - board.now_s()
    for n_fitting in range(len(pairs), 0, -1):
        n_sides = 1 + len(list_sides(dict(list(pairs.items())[:n_fitting])))
        fits = n_sides <= board.plan.max_live
        if fits and MIN_PRUNING_LAUNCHES * expect_launch_s(board, n_sides) <= left_s:
            return n_fitting
    return 0


def report_launches(board: Board, best: CandidateResult, n_launches: int, end_s: float) -> None:
    """Report progress after so many launches."""
    board.report("pruning", n_launches, None, best, end_s=end_s, then_s=board.plan.confirmation_s)


def compare_all(board: Board, pairs: Mapping[str, Pair]) -> dict[str, Contribution]:
    """Return what simpler candidates lack that work and do not exceed limits that the other one keeps."""
    working = {
        name: (best, reduced)
        for name, (best, reduced) in pairs.items()
        if not best.failure and not reduced.failure and keeps_limits(reduced, best)
    }
    lacks = {name: list_lacks(board, *pair) for name, pair in working.items()}
    compared = {name: values for name, values in lacks.items() if len(values) >= MIN_PRUNING_LAUNCHES}
    found = {}
    for name in compared:
        of_objectives = []
        for place in range(len(board.goal.objectives)):
            of_others = [values[:, place].tolist() for other, values in compared.items() if other != name]
            spread = estimate_spread(of_others, expect_spread(board))
            values = compared[name][:, place].tolist()
            of_objectives.append(compare_launches(board, *working[name], values, spread))
        found[name] = max(of_objectives, key=Contribution.expect)
    return found


def keeps_limits(reduced: CandidateResult, best: CandidateResult) -> bool:
    """Return whether a simpler candidate stays within the limits as clearly as the best one."""
    excess = max(reduced.excesses, default=-math.inf)
    return excess <= max(best.excesses, default=-math.inf) or not (excess > 0 or is_near_limit(reduced))


def find_uncertain(pairs: Mapping[str, Pair], found: Mapping[str, Contribution]) -> dict[str, Pair]:
    """Return the pairs of which more launches are needed, and that work."""
    return {
        name: pair
        for name, pair in pairs.items()
        if not any(result.failure for result in pair) and not (name in found and found[name].is_known)
    }


def list_lacks(board: Board, best: CandidateResult, reduced: CandidateResult) -> NDArray[np.float64]:
    """Return by how much a simpler candidate is worse in each launch of both in pruning that counts.

    By launches of racing, the better one was chosen. Launches in which one of both was slow by chance say nothing.

    Returns:
        Log-ratios of shape (launches, objectives).
    """
    if not best.stage == reduced.stage == "pruning":
        return np.zeros((0, len(board.goal.objectives)))
    _, values = list_log_ratios([best, reduced], expect_spread(board), find_slow(board, best, reduced))
    return np.asarray(values[1] - values[0])


def find_slow(board: Board, best: CandidateResult, reduced: CandidateResult) -> set[int]:
    """Return the launches in which one of two candidates was slow by chance."""
    return board.results.find_slow_by_chance(best) | board.results.find_slow_by_chance(reduced)


def compare_launches(
    board: Board, best: CandidateResult, reduced: CandidateResult, lacks: list[float], spread: float
) -> Contribution:
    """Return what a simpler candidate lacks.

    Args:
        board: The search.
        best: The candidate with all settings.
        reduced: The simpler one.
        lacks: By how much it is slower in each launch of both, as a log-ratio.
        spread: Standard deviation of this between launches, as other pairs of candidates show it.
    """
    slow = find_slow(board, best, reduced)
    slowdowns = compare_figure(best, reduced, slow, lambda score: score.slowdown)
    cpu = compare_figure(best, reduced, slow, lambda score: score.cpu)

    def find_error(values: list[float]) -> float:
        return ERROR_OF_MEDIAN * estimate_spread([values], spread) / math.sqrt(len(values))

    # A launch of either one that stalls must not decide.
    return Contribution(
        log_ratio=statistics.median(lacks),
        error=find_error(lacks),
        cpu=statistics.median(cpu),
        cpu_error=find_error(cpu),
        is_faster=find_tie(board.goal) > 0 and statistics.median(slowdowns) >= AS_FAST,
        n_launches=len(lacks),
    )


def compare_figure(
    best: CandidateResult, reduced: CandidateResult, left_out: Set[int], read: Callable[[Score], float | None]
) -> list[float]:
    """Return by how much a log-ratio of a simpler candidate is higher in each launch of both; 0 if unknown.

    Args:
        best: The candidate with all settings.
        reduced: The simpler one.
        left_out: Numbers of launches that do not count.
        read: Returns the log-ratio of a score; None where it is not known.
    """
    medians = [
        {
            members[0].launch: statistics.median(known)
            for members in result.launches()
            if (known := [value for score in members if (value := read(score)) is not None])
        }
        for result in (best, reduced)
    ]
    of_best, of_reduced = medians
    common = of_best.keys() & of_reduced.keys() - left_out
    return [of_reduced[launch] - of_best[launch] for launch in common] or [0.0]


def estimate_spread(comparisons: Sequence[list[float]], expected: float) -> float:
    """Return the standard deviation of a launch's log-ratio of two candidates.

    Launches that agree by chance prove nothing: what is expected counts like a few launches.

    Source: G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression", Statistical
    Applications in Genetics and Molecular Biology 3 (2004), for the moderated variance.

    Args:
        comparisons: The log-ratios of the launches of one or several pairs of candidates.
        expected: The standard deviation that is expected.
    """
    n_free = sum(len(lacks) - 1 for lacks in comparisons)
    squares = sum((len(lacks) - 1) * robust_sigma(lacks) ** 2 for lacks in comparisons)
    return math.sqrt((PRIOR_LAUNCHES * expected**2 + squares) / (PRIOR_LAUNCHES + n_free))


def expect_spread(board: Board) -> float:
    """Return the standard deviation of a launch's log-ratio of two candidates, as screening saw it.

    The luck of the default's launches cancels in it. The noise of a round is taken as that of a ratio to the default:
    as if the blocks of all candidates were as noisy as its own.
    """
    luck = board.screened.expected_luck
    if of_baseline := board.results.spread_baseline():
        luck = min(luck, of_baseline)
    luck *= math.sqrt(2)
    if board.screened.sigmas is None:
        return luck
    _, round_sigma = board.screened.sigmas
    return math.hypot(luck, round_sigma / math.sqrt(board.plan.racing_rounds))
