"""The noise of screening: how far the log-ratios of a few rounds are from those of a launch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from ortune.measure.stats import MAD_OF_NORMAL
from ortune.tuning.outliers import FARTHEST
from ortune.tuning.results import FIRST_SHARED, CandidateResult

FEWEST_VARIANCES = 4
USUAL_NOISE = 0.03
"""Standard deviation of a block's log-ratio, until it is known of so many candidates."""

MEDIAN_VARIANCE = 1.3
"""Variance of the median of a few values, as a multiple of the variance of their mean."""

LAUNCH_WEIGHT = 4.0
OWN_WEIGHT = 4.0
"""Weights of the usual noise in that of a group of candidates, and of the group's noise in that of a candidate, as
degrees of freedom. A host that is disturbed for a second or two disturbs a group."""

USUAL_SHARE = 0.5
SHARE_WEIGHT = 8.0
LARGEST_SHARE = 0.98
"""Share of the variance of a log-ratio's noise that is due to the baseline's blocks, which all candidates of a launch
have in common: usually, the weight of this as degrees of freedom, and its maximum."""

BUSY_SIGMA = 0.25
"""Standard deviation of a candidate that was measured while the host was busy."""

Rounds = Sequence[tuple[float, ...]]
"""The log-ratios of one candidate in the rounds of a launch."""

Launches = Sequence[tuple[int, tuple[float, ...], float]]
"""For each launch of a candidate: its number, its log-ratios, and their variance due to the noise of its rounds."""


class RoundNoise:
    """The noise of the rounds of a search.

    Some blocks stall. A median hardly depends on them, so that they do not count in full: rounds that are far from the
    median of their candidate and launch are moved closer.

    Attributes:
        variance: Usual variance of the log-ratio of one round.
        farthest: By launch: maximum distance of a round from this median, in each objective.
        squares: By launch: sum of the squared deviations of all rounds, and its degrees of freedom.
        shared: By launch of this node: variance that its candidates have in common, that of each alone, and its degrees
            of freedom.
    """

    def __init__(self) -> None:
        self.variance = USUAL_NOISE**2
        self.farthest: dict[int, tuple[float, ...]] = {}
        self.squares: dict[int, tuple[float, int]] = {}
        self.shared: dict[int, tuple[float, float, int]] = {}
        self._own: dict[int, list[float]] = {}

    @property
    def baseline_share(self) -> float:
        """Share of the variance that is due to the baseline's blocks."""
        common = SHARE_WEIGHT * USUAL_SHARE * self.variance
        alone = SHARE_WEIGHT * (1 - USUAL_SHARE) * self.variance
        for of_baseline, of_candidates, n_free in self.shared.values():
            common += n_free * of_baseline
            alone += n_free * of_candidates
        return min(max(common, 0.0) / max(max(common, 0.0) + alone, 1e-12), LARGEST_SHARE)

    def update(self, changed: Sequence[CandidateResult]) -> None:
        """Take new launches into account.

        Args:
            changed: All results with new launches.
        """
        measured: dict[int, list[CandidateResult]] = {}
        for result in changed:
            for launch in {score.launch for score in result.scores}:
                measured.setdefault(launch, []).append(result)
        new = {
            launch: results
            for launch, results in measured.items()
            if launch >= FIRST_SHARED or launch not in self.squares
        }
        for launch, results in new.items():
            self.farthest[launch] = limit_distances(
                [list_rounds(result, launch) for result in results if result.number]
            )
        for result in changed:
            self._own.pop(result.number, None)
            if variances := self._estimate_own(result):
                self._own[result.number] = variances
        if len(self._own) >= FEWEST_VARIANCES:
            # With several objectives, the noisiest counts.
            self.variance = max(map(statistics.median, zip(*self._own.values(), strict=True)))
        for launch, results in new.items():
            self._update_launch(launch, results)

    def _update_launch(self, launch: int, results: Sequence[CandidateResult]) -> None:
        """Take the rounds of a launch into account, which may arrive in parts from another node."""
        if launch < FIRST_SHARED:
            parts = split_variance([self._list_limited(result, launch) for result in results if result.number])
            if parts:
                self.shared[launch] = parts
        sums = [self._sum_squares(result, launch) for result in results]
        total = (sum(of for of, _ in sums), sum(n for _, n in sums))
        if total[1] >= self.squares.get(launch, (0.0, -1))[1]:
            self.squares[launch] = total

    def list_launches(
        self, result: CandidateResult, *, is_doubtful: bool
    ) -> list[tuple[int, tuple[float, ...], float]]:
        """Return the number of each launch of a candidate, its log-ratios, and their variance due to noise.

        Args:
            result: The candidate.
            is_doubtful: Whether it was measured while the host was busy, on a host that is usually quiet.
        """
        return [
            (launch, log_ratios, self._estimate_variance(result, launch, n_rounds, is_doubtful=is_doubtful))
            for launch, log_ratios, n_rounds in result.launch_log_ratios()
        ]

    def _estimate_variance(self, result: CandidateResult, launch: int, n_rounds: int, *, is_doubtful: bool) -> float:
        """Return the variance of a candidate's log-ratio in one launch due to the noise of its rounds.

        The noise of a host varies. It is estimated from all candidates of the launch, and from the candidate itself, as
        the mean of the posterior distribution of a variance, with the noise of the search as the prior.
        """
        own, n_own = self._sum_squares(result, launch)
        group, n_group = self.squares[launch]
        variance = (LAUNCH_WEIGHT * self.variance + group) / (LAUNCH_WEIGHT + n_group)
        variance = (OWN_WEIGHT * variance + own) / (OWN_WEIGHT + n_own)
        busy_sigma = BUSY_SIGMA if is_doubtful else 0.0
        return MEDIAN_VARIANCE * variance / n_rounds + busy_sigma**2

    def _list_limited(self, result: CandidateResult, launch: int) -> Rounds:
        """Return the log-ratios of a candidate in each round of one launch, at most so far from their median."""
        rounds = list_rounds(result, launch)
        farthest = self.farthest[launch]
        if len(rounds) < 2 or not farthest:
            return rounds
        columns = []
        for values, limit in zip(zip(*rounds, strict=True), farthest, strict=True):
            center = statistics.median(values)
            columns.append([min(max(value, center - limit), center + limit) for value in values])
        return list(zip(*columns, strict=True))

    def _estimate_own(self, result: CandidateResult) -> list[float]:
        """Return the variance of a candidate's log-ratio between the rounds of its last launch, for each objective.

        It is empty if there are too few. The variance of few values has a skewed distribution, whose median is too
        small.

        Source of the correction: E. B. Wilson and M. M. Hilferty, "The distribution of chi-square" (1931).
        """
        if result.number == 0 or not result.scores:
            return []
        rounds = self._list_limited(result, result.scores[-1].launch)
        n_free = len(rounds) - 1
        if n_free < 1:
            return []
        correction = (1 - 2 / (9 * n_free)) ** 3
        return [squares / n_free / correction for squares in sum_squares(rounds)]

    def _sum_squares(self, result: CandidateResult, launch: int) -> tuple[float, int]:
        """Return the sum of the squared deviations of a candidate's rounds in one launch, and its degrees of freedom.

        With several objectives, the noisiest counts.
        """
        rounds = self._list_limited(result, launch)
        return (max(sum_squares(rounds)), len(rounds) - 1) if len(rounds) > 1 else (0.0, 0)


def limit_distances(candidates: Sequence[Rounds]) -> tuple[float, ...]:
    """Return how far a round of a launch may be from the median of its candidate, in each objective.

    It is a multiple of the standard deviation, which is estimated by the median distance of two rounds of a candidate.
    Without two rounds of any candidate, there is no limit.

    Source: M. I. Shamos, "Geometry and Statistics: Problems at the Interface" (1976), for the estimator.

    Args:
        candidates: The rounds of each candidate of the launch.
    """
    pairs = [pair for rounds in candidates for pair in itertools.combinations(rounds, 2)]
    if not pairs:
        return ()
    distances = zip(*([abs(a - b) for a, b in zip(*pair, strict=True)] for pair in pairs), strict=True)
    return tuple(FARTHEST * statistics.median(values) / (math.sqrt(2) * MAD_OF_NORMAL) for values in distances)


def list_rounds(result: CandidateResult, launch: int) -> list[tuple[float, ...]]:
    """Return the log-ratios of a candidate in each round of one launch."""
    return [score.log_ratios for score in result.selected_scores if score.launch == launch]


def split_variance(candidates: Sequence[Rounds]) -> tuple[float, float, int] | None:
    """Return the variance between rounds that candidates of a launch share, that of each alone, and degrees of freedom.

    Only the first objective counts. It is None if there are too few candidates or rounds.

    Source: H. Scheffé, "The Analysis of Variance" (1959), section 7.4, for the expected mean squares.

    Args:
        candidates: The rounds of each candidate.
    """
    rows = [[values[0] for values in rounds] for rounds in candidates]
    n_rounds = max(map(len, rows), default=0)
    y = np.array([row for row in rows if len(row) == n_rounds])
    if n_rounds < 2 or len(y) < 2:
        return None
    n_free = n_rounds - 1
    of_rounds = y.mean(axis=0)
    residuals = y - y.mean(axis=1, keepdims=True) - of_rounds + y.mean()
    alone = float((residuals**2).sum()) / ((len(y) - 1) * n_free)
    between = len(y) * float(((of_rounds - y.mean()) ** 2).sum()) / n_free
    return (between - alone) / len(y), alone, n_free


def sum_squares(rounds: Rounds) -> list[float]:
    """Return the sum of the squared deviations of each objective."""
    # There are few values: NumPy's functions would take several times as long.
    columns = list(zip(*rounds, strict=True))
    means = [math.fsum(values) / len(values) for values in columns]
    return [math.fsum((value - mean) ** 2 for value in values) for values, mean in zip(columns, means, strict=True)]
