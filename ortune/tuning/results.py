"""Results of all candidates that were tried."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Set

import msgspec

from ortune.knobs import Candidate
from ortune.measure.block_runner import BASELINE_NAME, Round, raise_failure, select_regime
from ortune.measure.comparison import SLOW_LAUNCH, Stage
from ortune.measure.compute_figures import (
    compute_cpu,
    compute_supported_percentile,
    is_of_calls,
    is_pooled,
    is_total,
    required_calls,
    thin_samples,
    to_cost,
)
from ortune.measure.paired_run import BASELINE_POSITION
from ortune.measure.slow_launches import EarlierLaunches, find_usual
from ortune.record.trials import Trial, TrialRound
from ortune.tuning.pareto import rank_ties, rank_vectors
from ortune.worker import Block, Failure
from ortune.workload import Goal, Objective

LENIENCE = 0.05
"""Log-ratio by which a limit may appear exceeded in screening or racing, because of the error of a few blocks."""

LENIENCE_OF_FEW_CALLS = 0.4
"""The same for a percentile that rests on few calls, which support only a lower one. The two may rank differently: with
a request rate, a slower but steadier candidate loses at p90 and wins at p99."""

FEWEST_LEVELS = 3
"""Launches of the baseline from which it is known how much these differ."""

HALFWAY = 0.5
"""A candidate beside a slow launch of the baseline was not slow as well if it gained more than this share of the
slowdown more than otherwise: the middle between both cases."""

MEMORY_TIE = 0.02
"""Log-ratio up to which two candidates count as equal if only memory is optimized: it differs between launches. Of
equal ones, the faster one is better."""

FIRST_SHARED = 1 << 40
"""Number of the first launch of other nodes: those of this one are below."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a candidate in one round.

    Attributes:
        log_ratios: For each objective: log(cost of the candidate / cost of the baseline).
        excesses: For each limit, and last for the request rate if there is one: by how much it is exceeded, as a
            log-ratio; below 0 if it is kept.
        contended: Whether other processes used the CPUs.
        launch: Number of the launch: scores of one process have the same.
        blocks: The baseline's and the candidate's block, if a percentile needs more calls than one block has.
        cpu: log(CPU time of a call / that of the baseline); None where it is not known, as other nodes do not send it.
        slowdown: The log-ratio of p50, where it decides among candidates that are equal in the objective; None where
            it does not, or is not known, as other nodes do not send it.
        correction: By how much they were raised, as was that of the CPU time, because the baseline was slow.
    """

    log_ratios: tuple[float, ...]
    excesses: tuple[float, ...]
    contended: bool
    launch: int
    blocks: tuple[Block, Block] | None
    cpu: float | None = None
    slowdown: float | None = None
    correction: float = 0.0

    def correct(self, correction: float) -> Score:
        """Return the scores with another correction."""
        if correction == self.correction:
            return self
        added = correction - self.correction
        log_ratios = tuple(ratio + added for ratio in self.log_ratios)
        # Slow calls of the baseline take more CPU time, too.
        cpu = None if self.cpu is None else self.cpu + added
        return msgspec.structs.replace(self, log_ratios=log_ratios, cpu=cpu, correction=correction)


class CandidateResult:
    """All measurements of one candidate.

    Attributes:
        candidate: The candidate.
        goal: The goal of the search.
        number: Position in the order of trying; 0 is the baseline.
        stage: The last stage that it reached.
        scores: One for each round in that stage.
        n_blocks: Blocks measured in all stages.
        failure: Why it failed, or None.
    """

    def __init__(self, candidate: Candidate, number: int, goal: Goal) -> None:
        self.candidate = candidate
        self.goal = goal
        self.number = number
        self.stage: Stage = "screening"
        self.scores: list[Score] = []
        self.n_blocks = 0
        self.failure: Failure | None = None
        self._before: tuple[Stage, list[Score]] = self.stage, self.scores
        self._summary: tuple[int, tuple[tuple[float, ...], tuple[float, ...]]] | None = None

    def return_if_empty(self) -> None:
        """Return to the stage before this one if nothing was measured in this one."""
        if not self.scores and not self.failure:
            self.go_back()

    def go_back(self) -> None:
        """Return to the stage before this one, whatever was measured in this one."""
        self.stage, self.scores = self._before
        self._summary = None

    def enter(self, stage: Stage) -> None:
        """Begin a stage. Earlier scores are left out, because selecting the candidate by them makes them biased."""
        self._before = self.stage, self.scores
        self.stage = stage
        self.scores = []
        self._summary = None

    @property
    def selected_scores(self) -> list[Score]:
        """Scores of one regime: the quiet one if there are two quiet scores."""
        return self._select_regime()[0]

    @property
    def is_contended(self) -> bool:
        """Whether the selected scores were measured while other processes used the CPUs."""
        return self._select_regime()[1]

    def _select_regime(self) -> tuple[list[Score], bool]:
        return select_regime([(score, score.contended) for score in self.scores], n_quiet=2)

    @property
    def round_log_ratios(self) -> list[float]:
        """Log-ratio of the first objective in each round of the selected regime."""
        return [score.log_ratios[0] for score in self.selected_scores]

    @property
    def cpu(self) -> float | None:
        """Log-ratio of the CPU time of a call to the baseline's; None where it is not known."""
        known = [score.cpu for score in self.selected_scores if score.cpu is not None]
        return statistics.median(known) if known else None

    @property
    def log_ratios(self) -> tuple[float, ...] | None:
        """Log-ratio to the baseline of each objective, below 0 if better; None if unknown.

        It is the mean over the launches of the median over their rounds. A percentile beyond the median is computed
        over all calls together.
        """
        if not self.scores or self.failure:
            return None
        return self._summarize()[0]

    @property
    def log_ratio(self) -> float | None:
        """Log-ratio to the baseline of the first objective, or None if unknown."""
        return self.log_ratios[0] if self.log_ratios else None

    @property
    def slowdown(self) -> float:
        """Log-ratio of p50 to the baseline, above 0 if slower, where it decides among equal candidates; else 0."""
        launches = [
            statistics.median(known)
            for members in self.launches()
            if (known := [score.slowdown for score in members if score.slowdown is not None])
        ]
        return statistics.fmean(launches) if launches else 0.0

    @property
    def excesses(self) -> tuple[float, ...]:
        """By how much each limit is exceeded, and last the request rate if there is one; empty if unknown."""
        return self._summarize()[1] if self.scores else ()

    @property
    def excess(self) -> float:
        """Largest excess over a limit, beyond the error of a few blocks; 0 if no limit appears exceeded."""
        return max([0.0, *(excess - LENIENCE for excess in self.excesses)])

    @property
    def n_launches(self) -> int:
        """Number of launches in this stage."""
        return len({score.launch for score in self.scores})

    def launches(self) -> list[list[Score]]:
        """Return the selected scores of each launch."""
        return [list(members) for _, members in itertools.groupby(self.selected_scores, lambda score: score.launch)]

    def launch_log_ratios(self) -> list[tuple[int, tuple[float, ...], int]]:
        """Return the number of each launch, its log-ratios, and the number of its rounds."""
        found = []
        for members in self.launches():
            ratios = average_medians([[score.log_ratios for score in members]])
            self._pool_percentiles(ratios, members)
            found.append((members[0].launch, tuple(ratios), len(members)))
        return found

    def _pool_percentiles(self, log_ratios: list[float], scores: list[Score]) -> None:
        """Replace the log-ratios of percentiles beyond the median by those of all calls of some scores together."""
        pairs = [score.blocks for score in scores if score.blocks]
        for place, name in enumerate(self.goal.objectives):
            if pairs and is_pooled(name):
                base, own = (compute_supported_percentile(name, [pair[side] for pair in pairs]) for side in (0, 1))
                log_ratios[place] = math.log(to_cost(name, own) / to_cost(name, base))

    def correct_launches(self, corrections: Mapping[int, float]) -> bool:
        """Correct launches of this stage, and no others, by their number. Return whether this changes anything."""
        wanted = [corrections.get(score.launch, 0.0) for score in self.scores]
        if wanted == [score.correction for score in self.scores]:
            return False
        self.replace_scores([score.correct(value) for score, value in zip(self.scores, wanted, strict=True)])
        return True

    def replace_scores(self, scores: list[Score]) -> None:
        """Replace all scores of this stage."""
        self.scores = scores
        self._summary = None

    def _summarize(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return log-ratios and excesses over all selected scores."""
        if not self._summary or self._summary[0] != len(self.scores):
            self._summary = (len(self.scores), self.summarize(self.selected_scores))
        return self._summary[1]

    def summarize(self, scores: list[Score]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return log-ratios and excesses over some scores."""
        kept = [score for score in scores if score.blocks]
        if kept and len(kept) < len(scores):
            # Other nodes measured a part, whose calls are not known.
            parts = [self.summarize(kept), self.summarize([score for score in scores if not score.blocks])]
            weights = [
                len({score.launch for score in scores if bool(score.blocks) == is_own}) for is_own in (True, False)
            ]
            ratios, excesses = (
                [statistics.fmean(values, weights) for values in zip(*(part[place] for part in parts), strict=True)]
                for place in (0, 1)
            )
            return tuple(ratios), tuple(excesses)
        launches = [list(members) for _, members in itertools.groupby(scores, lambda score: score.launch)]
        ratios = average_medians([[score.log_ratios for score in members] for members in launches])
        excesses = average_medians([[score.excesses for score in members] for members in launches])
        pairs = [score.blocks for score in scores if score.blocks]
        self._pool_percentiles(ratios, scores)
        if pairs:
            sides = [[pair[side] for pair in pairs] for side in (0, 1)]
            for place, limit in enumerate(self.goal.limits):
                if is_pooled(limit.figure):
                    base, own = (compute_supported_percentile(limit.figure, blocks) for blocks in sides)
                    n_calls = sum(len(pair[1].samples_ns) for pair in pairs)
                    unknown = 1 - min(n_calls / required_calls(limit.figure), 1.0)
                    excess = limit.excess(own / base if limit.relative else own)
                    excesses[place] = excess - LENIENCE_OF_FEW_CALLS * unknown
        return tuple(ratios), tuple(excesses)


def compare_cpu(baseline: Block, block: Block) -> float | None:
    """Return the logarithm of the ratio of the CPU times of a call; None where one of them is not known."""
    base, own = (compute_cpu([side], [0]) for side in (baseline, block))
    return math.log(own / base) if min(base, own) > 0 else None


def find_tie(goal: Goal) -> float:
    """Return up to which log-ratio candidates are equal, so that the faster one is better; 0 for other objectives."""
    return MEMORY_TIE if goal.objectives == ("memory",) else 0.0


def average_medians(launches: list[list[tuple[float, ...]]]) -> list[float]:
    """Return the mean over launches of the median over their rounds, of each of several values."""
    # There are few values: NumPy's functions would take ten times as long.
    medians = [[statistics.median(values) for values in zip(*rounds, strict=True)] for rounds in launches]
    return [statistics.fmean(values) for values in zip(*medians, strict=True)]


class Results:
    """Results of all candidates that were tried, by config.

    Attributes:
        goal: What the search is for.
        rounds: All rounds, as the trials file holds them.

    Args:
        goal: What the search is for.
        start_s: When the search began, on the runner's clock.
    """

    def __init__(self, goal: Goal, start_s: float = 0.0) -> None:
        self.goal = goal
        self._start_s = start_s
        self.rounds: list[TrialRound] = []
        self._keeps_blocks = any(is_pooled(name) for name in goal.figures)
        self._results: dict[str, CandidateResult] = {}

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate.config.key in self._results

    def __getitem__(self, candidate: Candidate) -> CandidateResult:
        return self._results[candidate.config.key]

    def __iter__(self) -> Iterator[CandidateResult]:
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def find(self, key: str) -> Candidate | None:
        """Return the candidate whose config has a key, or None if it was not tried."""
        return self._results[key].candidate if key in self._results else None

    def count_shared(self) -> int:
        """Return how many candidates only other nodes measured."""
        return sum(
            1 for result in self if result.scores and all(score.launch >= FIRST_SHARED for score in result.scores)
        )

    def get_or_add(self, candidate: Candidate) -> CandidateResult:
        """Return the result of a candidate; add an empty one if it is new."""
        return self._results.setdefault(candidate.config.key, CandidateResult(candidate, len(self._results), self.goal))

    def add_round(self, results: list[CandidateResult], measured: Round, stage: Stage, launch: int) -> None:
        """Add a round.

        Args:
            results: The candidates in the order of the round's positions, the baseline first.
            measured: The round.
            stage: The stage that it belongs to.
            launch: Number of the launch.

        Raises:
            MeasureError: The baseline failed.
        """
        self.rounds.append(self._describe_round(results, measured, stage, launch))
        baseline = measured.blocks.get(BASELINE_POSITION)

        def find_log_ratio(name: Objective, position: int) -> float:
            own, base = (to_cost(name, measured.figure(name, side)) for side in (position, BASELINE_POSITION))
            return math.log(own) - math.log(base)

        for position, block in measured.blocks.items():
            result = results[position]
            result.n_blocks += 1
            if baseline is not None:
                result.scores.append(
                    Score(
                        log_ratios=tuple(find_log_ratio(name, position) for name in self.goal.objectives),
                        excesses=self._excesses(measured, position),
                        contended=block.contended or baseline.contended,
                        launch=launch,
                        blocks=(thin_samples(baseline), thin_samples(block)) if self._keeps_blocks else None,
                        cpu=compare_cpu(baseline, block),
                        slowdown=find_log_ratio("p50", position) if find_tie(self.goal) else None,
                    )
                )
        for position, failure in measured.failures.items():
            if position == BASELINE_POSITION:
                raise_failure(BASELINE_NAME, failure)
            results[position].failure = failure

    def _describe_round(self, results: list[CandidateResult], measured: Round, stage: Stage, launch: int) -> TrialRound:
        """Return a round as the trials file holds it."""
        shares = [block.foreign_share for block in measured.blocks.values() if block.foreign_share is not None]
        return TrialRound(
            stage=stage,
            launch=launch,
            values={
                results[position].number: tuple(measured.figure(name, position) for name in self.goal.figures)
                for position in measured.blocks
            },
            contended=tuple(results[position].number for position, block in measured.blocks.items() if block.contended),
            at_s=round(measured.at_s - self._start_s, 2),
            foreign_share=None if not shares else round(max(shares), 3),
            frequencies_hz={
                results[position].number: block.frequency_hz
                for position, block in measured.blocks.items()
                if block.frequency_hz is not None
            },
        )

    def _excesses(self, measured: Round, position: int) -> tuple[float, ...]:
        excesses = [
            limit.excess(
                measured.figure(limit.figure, position)
                / (measured.figure(limit.figure, BASELINE_POSITION) if limit.relative else 1)
            )
            for limit in self.goal.limits
        ]
        load = self.goal.load
        if load.rate_per_s:
            # An implicit limit: requests must not arrive faster than they are served.
            excesses.append(math.log(load.utilization(measured.blocks[position].service_ns)))
        return tuple(excesses)

    def spread_baseline(self) -> float:
        """Return the standard deviation of the baseline's log-cost between launches of this node; 0 if unknown.

        It is an upper limit of how much its launches differ, as the host may have changed as well: by less between
        consecutive launches, whose differences it is estimated from. Slow launches do not count.

        Source: J. von Neumann and others, "The mean square successive difference", Annals of Mathematical Statistics 12
        (1941).
        """
        found = self._list_levels()
        slow = self._find_slowdowns(found.keys())
        levels = [level for launch, level in found.items() if launch not in slow]
        if len(levels) < FEWEST_LEVELS:
            return 0.0
        return math.sqrt(statistics.fmean((after - before) ** 2 for before, after in itertools.pairwise(levels)) / 2)

    def _list_levels(self, number: int = BASELINE_POSITION, *, quiet: bool = False) -> dict[int, float]:
        """Return the logarithm of a candidate's cost in the first objective, in each launch of this node.

        Args:
            number: The candidate's number, by default that of the baseline.
            quiet: Whether only rounds count in which no other process used the CPUs.
        """
        name = self.goal.objective
        place = self.goal.figures.index(name)
        launches: dict[int, list[float]] = {}
        for trial_round in self.rounds:
            is_known = number in trial_round.values and not (quiet and trial_round.contended)
            if trial_round.launch is not None and is_known and trial_round.stage != "confirmation":
                launches.setdefault(trial_round.launch, []).append(trial_round.values[number][place])
        return {
            launch: math.log(to_cost(name, statistics.median(values)))
            for launch, values in launches.items()
            if min(values) > 0
        }

    def correct_slow_launches(self, expected: Mapping[str, float] = {}) -> list[CandidateResult]:
        """Compare candidates with a usual launch of the baseline where it was slow, and they were not.

        Such launches are rare, or belong to a phase of the host in which threads wait for each other. They are far off:
        of the candidates beside one, any that is not slow as well would seem to be the best of all. Only quiet launches
        are looked at. A percentile beyond the median is that of all calls, also of these.

        Args:
            expected: The log-ratio that candidates are expected to have, by the key of their config. It counts for
                those without a usual launch. Else, these are expected to gain what others do in usual launches.

        Returns:
            The candidates whose results changed.
        """
        if not self._is_of_usual_calls():
            return []
        gains = self._list_gains()
        slowdowns = self._find_slowdowns({launch for of_candidate in gains.values() for launch in of_candidate})
        usual = {
            number: [gain for launch, gain in of_candidate.items() if launch not in slowdowns]
            for number, of_candidate in gains.items()
        }
        of_all = statistics.median([statistics.median(found) for found in usual.values() if found] or [0.0])
        surprises: dict[int, dict[int, float]] = {launch: {} for launch in slowdowns}
        for result in self:
            if found := gains.get(result.number):
                known = usual[result.number] or [-expected.get(result.candidate.config.key, -of_all)]
                for launch in found.keys() & slowdowns.keys():
                    surprises[launch][result.number] = found[launch] - statistics.median(known)
        corrections: dict[int, dict[int, float]] = {number: {} for number in gains}
        for launch, slowdown in slowdowns.items():
            for number in self._find_unaffected(surprises[launch], slowdown):
                corrections[number][launch] = slowdown
        return [result for result in self if result.correct_launches(corrections.get(result.number, {}))]

    def _list_gains(self) -> dict[int, dict[int, float]]:
        """Return what each candidate gained in its quiet launches as measured, as log-ratios, by number and launch."""
        gains: dict[int, dict[int, float]] = {}
        for result in self:
            if result.number and not result.is_contended:
                corrections = {score.launch: score.correction for score in result.scores}
                gains[result.number] = {
                    launch: corrections[launch] - log_ratios[0] for launch, log_ratios, _ in result.launch_log_ratios()
                }
        return gains

    def describe_earlier(self, result: CandidateResult | None = None) -> EarlierLaunches:
        """Return what launches before the confirmation show of the baseline, and of a candidate."""
        levels = self._list_levels(quiet=True)
        slow = self._find_slowdowns(levels.keys())
        if result is None or len(levels) < FEWEST_LEVELS:
            return EarlierLaunches(len(slow), len(levels))
        own = self._list_levels(result.number, quiet=True)
        gains = (levels[launch] - level for launch, level in own.items() if launch in levels and launch not in slow)
        return EarlierLaunches(len(slow), len(levels), find_usual(list(levels.values())), tuple(gains))

    def find_slow_by_chance(self, result: CandidateResult) -> set[int]:
        """Return the launches of a candidate on this node, before the confirmation, in which it was slow by chance.

        More of them than the baseline may have by chance belong to the candidate: there are none then.
        """
        if not self._is_of_usual_calls() or is_total(self.goal.objective):
            return set()
        levels = self._list_levels(result.number)
        slowest = find_usual(list(levels.values()) or [0.0]) + math.log(SLOW_LAUNCH)
        slow = {launch for launch, level in levels.items() if level >= slowest}
        return slow if len(slow) <= self.describe_earlier().bound(len(levels)) else set()

    def _is_of_usual_calls(self) -> bool:
        """Return whether the objective is that of usual calls or a total, of which launches can be slow."""
        name = self.goal.objective
        return len(self.goal.objectives) == 1 and is_of_calls(name) and not is_pooled(name)

    def _find_slowdowns(self, launches: Set[int]) -> dict[int, float]:
        """Return by how much the baseline was slower than usual in its slow launches, as log-ratios.

        Args:
            launches: Those that are looked at.
        """
        levels = {launch: level for launch, level in self._list_levels(quiet=True).items() if launch in launches}
        if len(levels) < FEWEST_LEVELS:
            return {}
        slowest = find_usual(list(levels.values())) + math.log(SLOW_LAUNCH)
        usual = statistics.median(level for level in levels.values() if level < slowest)
        return {launch: level - usual for launch, level in levels.items() if level >= slowest}

    def _find_unaffected(self, surprises: Mapping[int, float], slowdown: float) -> list[int]:
        """Return the numbers of the candidates that were not slow in a launch in which the baseline was.

        Args:
            surprises: How much more than otherwise each of them gained in it, as a log-ratio: nothing if it was slow as
                well, and else the slowdown.
            slowdown: How much slower than usual the baseline was.
        """
        least = HALFWAY * slowdown
        if statistics.median_low(surprises.values()) > least:
            # The baseline was slow alone. A candidate that seems to be slow as well is slow for reasons of its own.
            return list(surprises)
        if is_total(self.goal.objective):
            # A phase of the host is a part of what counts.
            return []
        return [number for number, surprise in surprises.items() if surprise > least]

    def rank(self) -> list[CandidateResult]:
        """Return all candidates with known results except the baseline, best first.

        Candidates that stay within the limits come before those that do not, which are sorted by how much they exceed
        them. With several objectives, the Pareto front comes first. If only memory is optimized, of those that are
        equal in it, the faster one does.
        """
        known = [result for result in self if result.log_ratios is not None and result.number != 0]
        vectors = [result.log_ratios or () for result in known]
        tie = find_tie(self.goal)
        if tie:
            keys = rank_ties([vector[0] for vector in vectors], [result.slowdown for result in known], tie)
        else:
            keys = rank_vectors(vectors)
        order = {result.number: key for result, key in zip(known, keys, strict=True)}
        return sorted(known, key=lambda result: (result.excess, order[result.number], result.number))

    def trials(self) -> tuple[Trial, ...]:
        """Return all results as records hold them."""
        return tuple(
            Trial(
                number=result.number,
                config=result.candidate.config,
                stage=result.stage,
                speedups=tuple(round(math.exp(-value), 4) for value in result.log_ratios)
                if result.log_ratios
                else None,
                over_limits=tuple(
                    limit.text for limit, excess in zip(self.goal.limits, result.excesses, strict=False) if excess > 0
                ),
                n_blocks=result.n_blocks,
                failure=result.failure,
            )
            for result in self
        )
