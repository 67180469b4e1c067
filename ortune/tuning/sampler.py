"""Strategies: in which order candidates are screened, and when there is nothing left to gain.

Each is a sampler of Optuna's, so that a study can be looked at, kept and shared as any other.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from ortune.knobs import SearchSpace
from ortune.knobs.dimension import DEFAULT_LABEL
from ortune.tuning.additive import DEFAULT_NUMBER, WORST, AdditiveModel, Array
from ortune.tuning.outcome import StrategyName

Numbers = NDArray[np.int64]

CONFIG = "config"
VARIANCE = "variance"
EXCESS = "excess"
KEEPS = "keeps"
"""Attributes of a trial: the key of the candidate's config; the variance of its values by noise; by how much more than
the default it seems to break its limits, as a log-ratio; whether it seems to keep to them."""

DRAWS_AT_A_TIME = 8
DRAWS_OF_GAIN = 32
FAILURE_SIGMA = 0.22
"""A candidate that fails counts as a loser, but with this standard deviation: it tells little of those that share its
choices."""


class CandidateSampler(optuna.samplers.BaseSampler, ABC):  # type: ignore[misc]
    """Proposes candidates of the space that were not proposed before, as long as there are any."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    @abstractmethod
    def choose(self, study: optuna.Study, untried: Numbers) -> int:
        """Return the number of the next candidate."""

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all dimensions: a candidate is chosen as a whole."""
        return {
            dimension.name: CategoricalDistribution([choice.label for choice in dimension.choices])
            for dimension in self.space.dimensions
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the labels of an untried candidate; where there is none, those of the default."""
        untried = self.untried(study.get_trials(deepcopy=False))
        number = self.choose(study, untried) if len(untried) else DEFAULT_NUMBER
        return self.space.labels_of(self.space.candidates[number])

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the default choice; it is asked for what an enqueued trial leaves open."""
        return DEFAULT_LABEL

    def untried(self, trials: Sequence[FrozenTrial]) -> Numbers:
        """Return the numbers of the candidates that none of these trials is of; the default counts as tried."""
        mask = np.ones(len(self.space.candidates), dtype=bool)
        mask[DEFAULT_NUMBER] = False
        mask[[number for trial in trials if (number := self.number_of(trial)) is not None]] = False
        return np.flatnonzero(mask)

    def number_of(self, trial: FrozenTrial) -> int | None:
        """Return the number of a trial's candidate, or None while that is not known."""
        return self.space.numbers.get(trial.user_attrs.get(CONFIG, ""))


class ExhaustiveSampler(CandidateSampler):
    """Proposes one candidate after the other, in the order of the space."""

    def choose(self, study: optuna.Study, untried: Numbers) -> int:
        """Return the first."""
        return int(untried[0])


class ThompsonSampler(CandidateSampler):
    """Guesses at the whole landscape, as the additive model allows, and proposes the best of the guess.

    So each candidate is proposed as often as it may well be the best, as far as is known.

    Attributes:
        default_keeps: Whether the default seems to keep to the limits.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space)
        self._rng = np.random.default_rng([seed, 1])
        self._model = AdditiveModel(space, self._rng)
        self._n_learnt = 0
        self.default_keeps = True
        self._guesses: list[Array] = []

    def choose(self, study: optuna.Study, untried: Numbers) -> int:
        """Return the best by one guess."""
        told = self.told(study)
        if len(told) != self._n_learnt or not self._guesses:
            self.learn(told)
            self._guesses = list(self._model.draw(DRAWS_AT_A_TIME).T)
        guess = self._guesses.pop()
        return int(untried[np.argmin(guess[untried])])

    def told(self, study: optuna.Study) -> list[FrozenTrial]:
        """Return the trials that are over."""
        return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))  # type: ignore[no-any-return]

    def learn(self, told: Sequence[FrozenTrial], weights: Array | None = None) -> None:
        """Take in all trials that are over.

        Args:
            told: The trials.
            weights: How much each objective counts; drawn anew when it is left out, so that each counts at times.
        """
        self._n_learnt = len(told)
        numbers, log_ratios, variances = [], [], []
        for trial in told:
            number = self.number_of(trial)
            if number is None or number == DEFAULT_NUMBER:
                continue
            numbers.append(number)
            if trial.values is None:
                log_ratios.append(WORST)
                variances.append(FAILURE_SIGMA**2)
                continue
            if weights is None:
                weights = self._rng.dirichlet(np.ones(len(trial.values)))
            log_ratios.append(float(weights @ np.array(trial.values)) + trial.user_attrs.get(EXCESS, 0.0))
            variances.append(trial.user_attrs[VARIANCE])
        self._model.learn(numbers, log_ratios, variances)

    def gain_left(self, study: optuna.Study) -> float:
        """Return how much better the best untried candidate is expected to be than the best tried one, as a log-ratio.

        Not below 0: nobody takes a worse one. Infinity while nothing is known that keeps to the limits. Of several
        objectives, that in which most is left to gain counts.
        """
        told = self.told(study)
        untried = self.untried(told)
        if not len(untried):
            return 0.0
        keeping = [self.number_of(trial) for trial in told if trial.user_attrs.get(KEEPS)]
        tried = [number for number in keeping if number is not None and number != DEFAULT_NUMBER]
        tried += [DEFAULT_NUMBER] if self.default_keeps else []
        if not tried:
            return math.inf
        gains = []
        for weights in np.eye(len(study.directions)):
            self.learn(told, weights)
            guesses = self._model.draw(DRAWS_OF_GAIN)
            gains.append(float(np.maximum(guesses[tried].min(axis=0) - guesses[untried].min(axis=0), 0.0).mean()))
        self._guesses = []
        return max(gains)

    def expected(self, study: optuna.Study) -> Array:
        """Return the expected log-ratio of every candidate."""
        self.learn(self.told(study))
        return self._model.mean()


def make_sampler(strategy: StrategyName, space: SearchSpace, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of a strategy."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    if strategy == "adaptive":
        return ThompsonSampler(space, seed)
    if strategy == "exhaustive":
        return ExhaustiveSampler(space)
    if strategy == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)
