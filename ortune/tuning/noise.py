"""The noise of screening: how far the log-ratios of a few rounds are from those of a launch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

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

BUSY_SIGMA = 0.25
"""Standard deviation of a candidate that was measured while the host was busy."""

Launches = Sequence[tuple[int, tuple[float, ...], float]]
"""For each launch of a candidate: its number, its log-ratios, and their variance due to the noise of its rounds."""


class RoundNoise:
    """The noise of the rounds of a search.

    Attributes:
        variance: Usual variance of the log-ratio of one round.
        squares: By launch: sum of the squared deviations of all rounds, and its degrees of freedom.
    """

    def __init__(self) -> None:
        self.variance = USUAL_NOISE**2
        self.squares: dict[int, tuple[float, int]] = {}
        self._own: dict[int, list[float]] = {}

    def update(self, changed: Sequence[CandidateResult]) -> None:
        """Take new launches into account.

        Args:
            changed: All results with new launches.
        """
        for result in changed:
            self._own.pop(result.number, None)
            if variances := estimate_variances(result):
                self._own[result.number] = variances
        if len(self._own) >= FEWEST_VARIANCES:
            # With several objectives, the noisiest counts.
            self.variance = max(map(statistics.median, zip(*self._own.values(), strict=True)))
        for launch in {score.launch for result in changed for score in result.scores}:
            if launch < FIRST_SHARED and launch in self.squares:
                continue
            sums = [sum_squares(result, launch) for result in changed]
            total = (sum(of for of, _ in sums), sum(n for _, n in sums))
            # Launches of other nodes may arrive in parts.
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
        own, n_own = sum_squares(result, launch)
        group, n_group = self.squares[launch]
        variance = (LAUNCH_WEIGHT * self.variance + group) / (LAUNCH_WEIGHT + n_group)
        variance = (OWN_WEIGHT * variance + own) / (OWN_WEIGHT + n_own)
        busy_sigma = BUSY_SIGMA if is_doubtful else 0.0
        return MEDIAN_VARIANCE * variance / n_rounds + busy_sigma**2


def estimate_variances(result: CandidateResult) -> list[float]:
    """Return the variance of a candidate's log-ratio between the rounds of its last launch, for each objective.

    It is empty if there are too few. The variance of few values has a skewed distribution, whose median is too small.
    Source of the correction: E. B. Wilson and M. M. Hilferty, "The distribution of chi-square" (1931).
    """
    if result.number == 0 or not result.scores:
        return []
    rounds = list_rounds(result, result.scores[-1].launch)
    n_free = len(rounds) - 1
    if n_free < 1:
        return []
    correction = (1 - 2 / (9 * n_free)) ** 3
    return [statistics.variance(values) / correction for values in zip(*rounds, strict=True)]


def list_rounds(result: CandidateResult, launch: int) -> list[tuple[float, ...]]:
    """Return the log-ratios of a candidate in each round of one launch."""
    return [score.log_ratios for score in result.selected_scores if score.launch == launch]


def sum_squares(result: CandidateResult, launch: int) -> tuple[float, int]:
    """Return the sum of the squared deviations of a candidate's rounds in one launch, and its degrees of freedom.

    With several objectives, the noisiest counts.
    """
    rounds = np.array(list_rounds(result, launch))
    if len(rounds) < 2:
        return 0.0, 0
    return float(((rounds - rounds.mean(axis=0)) ** 2).sum(axis=0).max()), len(rounds) - 1
