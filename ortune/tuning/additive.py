"""The additive model: predicts all candidates from the few measured ones.

The log-ratio of a candidate to the baseline is a sum of effects: one of each choice that differs from the baseline, a
smaller one of each pair of choices, and one of the candidate alone. A measurement adds the luck of the candidate's
launch and that of the baseline's, which all measurements of one batch share, and which may be larger. A priori, all
effects are normal with mean 0. Their scales maximize the likelihood of the measurements. Given the measurements, the
log-ratios of all candidates are again normal. A draw from this distribution is one set of log-ratios that is consistent
with the measurements.

Sources: W. R. Thompson, "On the likelihood that one unknown probability exceeds another" (Biometrika 25, 1933), for
choosing by a draw; C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning" (2006), sections
2.1 and 5.4, for the posterior and the choice of scales; J. Wilson et al., "Efficiently sampling functions from Gaussian
process posteriors" (ICML 2020), section 3, for drawing by Matheron's rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs

from ortune.knobs import SearchSpace
from ortune.knobs.dimension import DEFAULT_LABEL
from ortune.tuning.noise import USUAL_SHARE

MAIN_SCALES = (0.05, 0.15, 0.4)
PAIR_SHARES = (0.5, 1.0, 1.5)
OWN_SCALES = (0.005, 0.015, 0.05, 0.12)
"""Standard deviations of effects to choose from: of a choice; of a pair, as a share of that; of a candidate alone."""

LUCKS = (0.003, 0.01, 0.03, 0.08)
BASELINE_LUCKS = (*LUCKS, 0.2, 0.5)
"""Standard deviations between launches of one config to choose from: of a candidate, and of the baseline, whose threads
may disturb each other in one launch and not in the next, which a better setting prevents."""

UNEQUAL = 1.0
"""Log-odds against each step between the luck of candidates and that of the baseline, which are usually the same. From
candidates that were launched once, their luck cannot be distinguished from effects of their own."""

CHOICE_SHARE = 1.0
STEP_SHARE = 0.5
WHOLE_STEP = 4 / 3
"""Scale of the effect of a choice, and of the step from one value of a numeric setting to the next, relative to it:
adjacent thread counts cost about the same, the more so if their ratio is smaller than the last number."""

WORST_LOG_RATIO = 0.7
"""Maximum of log-ratios. Larger values are clipped, so that a candidate that takes ten times as long does not distort
the predictions for good candidates. One that fails counts as one that takes twice as long."""

FEWEST_TO_FIT = 8
"""Measurements from which scales and luck are estimated."""

TAIL = 1.5
REWEIGHTINGS = 3
"""Degrees of freedom of the luck of launches, some of which stall or run at another speed, and steps to find these."""

SLOW_SIGMA = 0.4
"""Slow candidates with several choices deviate from the sum of their effects by this share of their log-ratio.
Otherwise, large effects that do not add up would seem to be luck of launches, which affects what is believed of all
candidates."""

BASELINE_NUMBER = 0
"""The baseline is the first candidate of every space, and its log-ratio to itself is 0."""

Array = NDArray[np.float64]


class ObservedLaunch(NamedTuple):
    """A measurement of one launch of a candidate.

    Attributes:
        number: Position of the candidate in the space.
        log_ratio: Its log-ratio to the baseline; below 0 is better.
        variance: Variance of that due to the noise of its rounds.
        batch: Number of the batch. All candidates of a batch are compared with the same launch of the baseline.
    """

    number: int
    log_ratio: float
    variance: float
    batch: int


class AdditiveModel:
    """Predicts the log-ratios of all candidates of a space.

    Args:
        space: The candidates.
        rng: Source of the draws.
        earlier: The model of the space before candidates were added. Scales and luck are those that it estimated.

    Attributes:
        luck: Standard deviation between launches of a candidate, as a log-ratio.
        baseline_luck: The same of the baseline.
        most_baseline_luck: The largest value that the latter may have.
        baseline_share: Share of the variance of measurements that is due to the baseline's blocks, which a batch has in
            common.
    """

    def __init__(self, space: SearchSpace, rng: np.random.Generator, earlier: AdditiveModel | None = None) -> None:
        self.n = len(space.candidates)
        self._rng = rng
        self._main, self._shares, self._pairs = features_of(space)
        self._choices = self._main[:, self._shares == CHOICE_SHARE] > 0
        self._n_choices = np.array(
            [sum(label != DEFAULT_LABEL for label in candidate.labels.values()) for candidate in space.candidates]
        )
        self._scales = (MAIN_SCALES[1], PAIR_SHARES[0], OWN_SCALES[1])
        self.luck = self.baseline_luck = LUCKS[1]
        self.most_baseline_luck = LUCKS[-1]
        self.baseline_share = USUAL_SHARE
        self._n_fitted = 0
        if earlier:
            self._scales, self._n_fitted = earlier._scales, earlier._n_fitted
            self.luck, self.baseline_luck = earlier.luck, earlier.baseline_luck
            self.most_baseline_luck, self.baseline_share = earlier.most_baseline_luck, earlier.baseline_share
        self._seen: NDArray[np.int64] = np.zeros(0, dtype=int)
        self._y: Array = np.zeros(0)
        self._variances: Array = np.zeros(0)
        self._shared_sigmas: Array = np.zeros(0)
        self._batches: NDArray[np.int64] = np.zeros(0, dtype=int)
        self._inflations: Array = np.zeros(0)
        self._own_inflations: Array = np.zeros(0)
        self._factor: Array = np.zeros((0, 0))

    def fit(self, observations: Sequence[ObservedLaunch]) -> None:
        """Fit the model to measurements, which replace earlier ones."""
        self._seen = np.array([launch.number for launch in observations], dtype=int)
        self._y = np.minimum(np.array([launch.log_ratio for launch in observations], dtype=float), WORST_LOG_RATIO)
        self._variances = np.array([launch.variance for launch in observations], dtype=float)
        self._shared_sigmas = np.sqrt(self.baseline_share * self._variances)
        is_combined = self._n_choices[self._seen] > 1
        self._variances += (SLOW_SIGMA * np.maximum(self._y, 0.0) * is_combined) ** 2
        self._batches = np.array([launch.batch for launch in observations], dtype=int)
        self._inflations = np.ones(len(observations))
        self._own_inflations = np.ones(len(observations))
        seen_main, seen_pairs = self._main[self._seen], self._pairs[self._seen]
        of_main, of_pairs = (seen_main * self._shares**2) @ seen_main.T, seen_pairs @ seen_pairs.T
        same = (self._seen[:, None] == self._seen).astype(float)
        shared = (self._batches[:, None] == self._batches).astype(float)
        of_noise = shared * np.outer(self._shared_sigmas, self._shared_sigmas)

        def combine_effects(scales: tuple[float, float, float]) -> Array:
            """Return the covariance of the measurements that is due to the settings, with each luck."""
            main, pair_share, own = scales
            return np.asarray(main**2 * (of_main + pair_share**2 * of_pairs) + own**2 * same)

        def factorize(of_effects: Array, luck: float, baseline_luck: float) -> Array:
            """Return the Cholesky factor of the covariance of the measurements."""
            covariance: Array = baseline_luck**2 * shared * self._inflations
            covariance += of_noise
            covariance += of_effects
            diagonal = luck**2 * self._own_inflations + self._variances - self._shared_sigmas**2
            if not len(covariance):
                return covariance
            covariance.flat[:: len(covariance) + 1] += diagonal
            # Most of the time of a fit is spent here, where the matrices are small. This function has little overhead.
            factor, fault = dpotrf(covariance, lower=1)
            if fault:
                raise np.linalg.LinAlgError("the covariance is not positive definite")
            return np.asarray(factor, dtype=float)

        def choose_luck() -> None:
            """Set the luck that maximizes the likelihood, and the factor with it."""
            lucks = [(self.luck, luck) for luck in BASELINE_LUCKS if luck <= self.most_baseline_luck]
            self._factor, _, self.baseline_luck = choose(lucks)
            self._factor, self.luck, _ = choose([(luck, self.baseline_luck) for luck in LUCKS])

        def choose(lucks: list[tuple[float, float]]) -> tuple[Array, float, float]:
            """Return the factor of the most probable luck of candidates and of the baseline, and these two."""
            factors = [factorize(of_effects, *pair) for pair in lucks]
            scores = [
                self._log_likelihood(factor) - UNEQUAL * abs(BASELINE_LUCKS.index(luck) - BASELINE_LUCKS.index(other))
                for factor, (luck, other) in zip(factors, lucks, strict=True)
            ]
            best = int(np.argmax(scores))
            return factors[best], *lucks[best]

        can_fit = len(self._seen) >= FEWEST_TO_FIT
        if can_fit and len(self._seen) >= 1.25 * self._n_fitted:
            # The scales change little between consecutive measurements.
            self._scales = max(
                itertools.product(MAIN_SCALES, PAIR_SHARES, OWN_SCALES),
                key=lambda scales: self._log_likelihood(
                    factorize(combine_effects(scales), self.luck, self.baseline_luck)
                ),
            )
            of_effects = combine_effects(self._scales)
            choose_luck()
            self._n_fitted = len(self._seen)
        else:
            of_effects = combine_effects(self._scales)
            self._factor = factorize(of_effects, self.luck, self.baseline_luck)
        _, places = np.unique(self._batches, return_inverse=True)
        for _ in range(REWEIGHTINGS if len(self._seen) else 0):
            self._reweight(places)
            if can_fit:
                choose_luck()
            else:
                self._factor = factorize(of_effects, self.luck, self.baseline_luck)

    def _reweight(self, places: NDArray[np.int64]) -> None:
        """Inflate the variance of the luck of launches that seem to be outliers.

        A launch of the baseline that stalled makes all candidates of its batch look better. Luck has Student's
        distribution, and this is a step of the EM algorithm for it.

        Source: K. Lange, R. Little and J. Taylor, "Robust statistical modeling using the t distribution", Journal of
        the American Statistical Association 84 (1989).

        Args:
            places: Number of the batch of each measurement, from 0.
        """
        upper = np.triu(dpotri(self._factor.T)[0])
        inverse = upper + np.triu(upper, 1).T
        solved = inverse @ self._y
        is_in_batch = (np.arange(places.max() + 1)[:, None] == places).astype(float)
        of_batches = ((is_in_batch @ inverse) * is_in_batch).sum(axis=1)

        def inflate(luck: float, inflations: Array, solved: Array, precisions: Array) -> Array:
            variances = luck**2 * inflations
            left = np.maximum(variances - variances**2 * precisions, 0.0)
            return np.asarray((TAIL + ((variances * solved) ** 2 + left) / luck**2) / (TAIL + 1))

        of_launches = (is_in_batch @ solved)[places]
        self._inflations = inflate(self.baseline_luck, self._inflations, of_launches, of_batches[places])
        self._own_inflations = inflate(self.luck, self._own_inflations, solved, np.diag(inverse))

    def count_new_pairs(self, tried: NDArray[np.int64], harmful: float) -> NDArray[np.int64]:
        """Return how many pairs of choices each candidate has that no tried candidate has.

        It is 0 for candidates that are expected to have a log-ratio above `harmful`, and for those with a choice that
        is expected to have it on its own.

        Args:
            tried: Numbers of the candidates that were measured, or are about to be.
            harmful: A log-ratio.
        """
        is_new = ~(self._pairs[tried] > 0).any(axis=0)
        counts = (self._pairs[:, is_new] > 0).sum(axis=1)
        is_slow = self.mean() > harmful
        slow_choices = self._choices[is_slow & (self._n_choices == 1)].any(axis=0)
        counts[is_slow | self._choices[:, slow_choices].any(axis=1)] = 0
        return np.asarray(counts)

    def draw(self, n: int, rng: np.random.Generator | None = None) -> Array:
        """Return `n` draws of the log-ratios of all candidates, of shape (candidates, n).

        Args:
            n: Number of draws.
            rng: Source of randomness; that of the model by default.
        """
        rng = rng or self._rng
        main, pair_share, own = self._scales
        weights_main = rng.standard_normal((self._main.shape[1], n)) * (main * self._shares)[:, None]
        weights_pair = rng.standard_normal((self._pairs.shape[1], n)) * (main * pair_share)
        draws = self._main @ weights_main + self._pairs @ weights_pair + own * rng.standard_normal((self.n, n))
        if len(self._seen):
            own_variances = self._variances - self._shared_sigmas**2 + self.luck**2 * self._own_inflations
            sigmas = np.sqrt(own_variances)[:, None]
            noise = sigmas * rng.standard_normal((len(self._seen), n))
            _, places = np.unique(self._batches, return_inverse=True)
            of_batches = rng.standard_normal((int(places.max()) + 1, n))[places]
            noise += self.baseline_luck * np.sqrt(self._inflations)[:, None] * of_batches
            noise += self._shared_sigmas[:, None] * rng.standard_normal((int(places.max()) + 1, n))[places]
            draws += self._gain(self._y[:, None] - draws[self._seen] - noise)
        draws[BASELINE_NUMBER] = 0.0
        return draws

    def mean(self) -> Array:
        """Return the expected log-ratio of every candidate."""
        if not len(self._seen):
            return np.zeros(self.n)
        expected = self._gain(self._y[:, None])[:, 0]
        expected[BASELINE_NUMBER] = 0.0
        return expected

    def _gain(self, residuals: Array) -> Array:
        """Return the correction of all log-ratios for these residuals of the measurements."""
        main, pair_share, own = self._scales
        solved = cho_solve((self._factor, True), residuals)
        moved = self._main @ (((main * self._shares) ** 2)[:, None] * (self._main[self._seen].T @ solved))
        moved += (main * pair_share) ** 2 * (self._pairs @ (self._pairs[self._seen].T @ solved))
        np.add.at(moved, self._seen, own**2 * solved)
        return np.asarray(moved, dtype=float)

    def _log_likelihood(self, factor: Array) -> float:
        """Return the log-likelihood of the measurements, up to a constant."""
        scaled, _ = dtrtrs(factor, self._y, lower=1)
        return -0.5 * float(scaled @ scaled) - float(np.log(np.diag(factor)).sum())


def features_of(space: SearchSpace) -> tuple[Array, Array, Array]:
    """Return the features of all candidates, which are 0 for the baseline.

    Returns:
        A column for each choice that is not the default, unless it is between others, and for each step of a number, of
        shape (candidates, columns); the scale of each column's effect, relative to that of a choice; and a column for
        each pair of choices of two dimensions.
    """
    labels = [candidate.labels for candidate in space.candidates]
    of_choices: list[list[Array]] = []
    of_steps: list[Array] = []
    step_shares: list[float] = []
    for dimension in space.dimensions:
        places = {choice.label: place for place, choice in enumerate((*dimension.choices, *dimension.between))}
        chosen = np.array([places[selection.get(dimension.name, DEFAULT_LABEL)] for selection in labels])
        # A value between others has only the effects of the steps: two adjacent ones are similar, with all settings.
        columns = [(chosen == place).astype(float) for place in range(1, len(dimension.choices))]
        of_choices.append([column for column in columns if column.any()])
        choices = (*dimension.choices[1:], *dimension.between)
        numbers = [choice.value for choice in choices if isinstance(choice.value, int)]
        if len(numbers) > 2 and len(numbers) == len(choices):
            default = space.default_number(dimension)
            values = np.array([default, *numbers])[chosen]
            # A dimension without effect has its default value.
            for before, step in itertools.pairwise(np.unique(values)):
                of_steps.append((values >= step).astype(float) - float(default >= step))
                step_shares.append(STEP_SHARE * min(1.0, math.log(step / before) / math.log(WHOLE_STEP)) ** 0.5)
    main_columns = [column for columns in of_choices for column in columns]
    products = [
        first * second for one, other in itertools.combinations(of_choices, 2) for first in one for second in other
    ]
    products = [product for product in products if product.any()]
    shares = np.array([CHOICE_SHARE] * len(main_columns) + step_shares)
    empty = np.zeros((len(labels), 0))
    main = np.stack([*main_columns, *of_steps], axis=1) if main_columns else empty
    return main, shares, np.stack(products, axis=1) if products else empty
