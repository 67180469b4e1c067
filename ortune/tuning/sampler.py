"""Samplers: the order in which candidates are screened, and the remaining expected gain.

Each strategy is an Optuna sampler, so that its study can be inspected, stored and shared like any other.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from ortune.knobs import SearchSpace
from ortune.knobs.dimension import DEFAULT_LABEL
from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.requests import StrategyName
from ortune.tuning.additive import BASELINE_NUMBER, LUCKS, WORST_LOG_RATIO, AdditiveModel, Array, ObservedLaunch

Numbers = NDArray[np.int64]

CONFIG = "config"
"""Attribute of a trial: the key of the candidate's config."""

NEIGHBORS_EVERY = 2
"""One in this many proposals is a neighbor of the best measured candidates."""

ADJACENT_EVERY = 4
"""One in this many proposals is next to the candidate that is expected to be the best, in a number for which the space
lists only some values."""

HARMFUL = 0.25
"""Pairs with choices that have a log-ratio above this on their own are not tried."""

BASELINE_EXCESS = 1.5
"""Launches of the baseline may differ by so many times as much as its costs in all launches so far do."""

DRAWS_PER_FIT = 8
DRAWS_FOR_GAIN = 32
DRAWS_FOR_BOUND = 400
DRAWS_FOR_GAIN_LEFT = 200
FAILURE_SIGMA = 0.22
"""A failed candidate counts as very slow, but with this standard deviation, because it says little about candidates
with the same choices."""


class CandidateSampler(optuna.samplers.BaseSampler, ABC):  # type: ignore[misc]
    """Proposes new candidates of the space as long as there are any.

    Attributes:
        space: The candidates.
        excluded: Keys of the configs that other nodes measure now.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.excluded: frozenset[str] = frozenset()
        self._known: tuple[SearchSpace, list[int], int] = space, [], 0

    @abstractmethod
    def choose(self, study: optuna.Study, untried: Numbers) -> int:
        """Return the number of the next candidate."""

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all dimensions: a candidate is chosen as a whole."""
        return {dimension.name: CategoricalDistribution(dimension.labels) for dimension in self.space.dimensions}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the labels of an untried candidate, or those of the baseline if there is none."""
        untried = self.untried(study.get_trials(deepcopy=False))
        if self.excluded:
            numbers = [self.space.numbers[key] for key in self.excluded if key in self.space.numbers]
            untried = np.setdiff1d(untried, numbers, assume_unique=True)
        number = self.choose(study, untried) if len(untried) else BASELINE_NUMBER
        return self.space.labels_of(self.space.candidates[number])

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the default choice, for dimensions that an enqueued trial leaves open."""
        return DEFAULT_LABEL

    def untried(self, trials: Sequence[FrozenTrial]) -> Numbers:
        """Return the numbers of the candidates that are in none of these trials; the baseline counts as tried."""
        mask = np.ones(len(self.space.candidates), dtype=bool)
        mask[BASELINE_NUMBER] = False
        mask[self._list_tried(trials)] = False
        return np.flatnonzero(mask)

    def _list_tried(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Return the numbers of the candidates of trials. Those of finished trials are kept for the next time."""
        space, numbers, n_finished = self._known
        if space is not self.space or n_finished > len(trials):
            numbers, n_finished = [], 0
        rest: list[int | None] = []
        for trial in trials[n_finished:]:
            number = self.number_of(trial)
            if trial.state.is_finished() and not rest:
                n_finished += 1
                numbers += [] if number is None else [number]
            else:
                rest.append(number)
        self._known = self.space, numbers, n_finished
        return numbers + [number for number in rest if number is not None]

    def number_of(self, trial: FrozenTrial) -> int | None:
        """Return the number of a trial's candidate, or None if it is not known yet."""
        return self.space.numbers.get(trial.user_attrs.get(CONFIG, ""))


class ExhaustiveSampler(CandidateSampler):
    """Proposes all candidates in the order of the space."""

    def choose(self, study: optuna.Study, untried: Numbers) -> int:
        """Return the first."""
        return int(untried[0])


class Observed(NamedTuple):
    """What one launch of a candidate showed.

    Attributes:
        number: Position of the candidate in the space.
        log_ratios: Log-ratio to the baseline of each objective; None if it failed.
        variance: Variance of these due to the noise of its rounds.
        excess: By how much more than the baseline it seems to exceed its limits, as a log-ratio.
        keeps: Whether it seems to stay within them.
        batch: Number of the batch.
    """

    number: int
    log_ratios: tuple[float, ...] | None
    variance: float
    excess: float
    keeps: bool
    batch: int


class ThompsonSampler(CandidateSampler):
    """Draws the log-ratios of all candidates from the additive model, and proposes the best candidate of the draw.

    The probability of proposing a candidate is the probability that it is the best, given the measurements. Every
    second proposal is limited to candidates that differ in one choice from one of the best measured ones, because the
    model may be wrong. Others refine a number, such as that of threads. While nothing is promising, the candidate with
    the most pairs of choices that were not tried together is proposed instead: two settings may gain only together.

    Attributes:
        baseline_keeps: Whether the baseline seems to stay within the limits.
        observed: What all launches showed.
        leaders: Numbers of the best measured candidates.
        adjacent: Numbers of the candidates next to the one that is expected to be the best; see `SearchSpace.refine`.
        is_promising: Whether a candidate is expected to gain enough to matter.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space)
        self._rng = np.random.default_rng([seed, 1])
        self._model = AdditiveModel(space, self._rng)
        self._n_fitted = 0
        self.baseline_keeps = True
        self.observed: list[Observed] = []
        self.leaders: list[int] = []
        self.adjacent: list[int] = []
        self.is_promising = True
        self._draws: list[Array] = []
        self._n_chosen = 0
        self._n_proposed = 0

    def choose(self, study: optuna.Study, untried: Numbers) -> int:
        """Return the best untried candidate of one draw."""
        if len(self.observed) != self._n_fitted or not self._draws:
            self.fit()
            self._draws = list(self._model.draw(DRAWS_PER_FIT).T)
        draw = self._draws.pop()
        self._n_proposed += 1
        if self._n_proposed % ADJACENT_EVERY == 0:
            near = untried[np.isin(untried, self.adjacent)]
            if len(near):
                return int(near[np.argmin(draw[near])])
        if not self.is_promising and (number := self._choose_pairs(untried, draw)) is not None:
            return number
        self._n_chosen += 1
        if self.leaders and self._n_chosen % NEIGHBORS_EVERY == 0:
            leader = self.leaders[int(self._rng.integers(len(self.leaders)))]
            near = untried[np.isin(untried, self.space.neighbors(leader))]
            if len(near):
                return int(near[np.argmin(draw[near])])
        return int(untried[np.argmin(draw[untried])])

    def extend(self, space: SearchSpace) -> None:
        """Add the new candidates of a space that was extended."""
        self.space = space
        self._model = AdditiveModel(space, self._rng, self._model)
        self._n_fitted = 0
        self._draws = []

    def _choose_pairs(self, untried: Numbers, draw: Array) -> int | None:
        """Return the untried candidate with the most new pairs of choices, by a draw among equals; None for no pair."""
        counts = self._count_new_pairs(untried)[untried]
        if not counts.any():
            return None
        most = untried[counts == counts.max()]
        return int(most[np.argmin(draw[most])])

    def has_new_pairs(self, study: optuna.Study) -> bool:
        """Return whether there are pairs of choices that were not tried together, and do not seem harmful."""
        return bool(self._count_new_pairs(self.untried(study.get_trials(deepcopy=False))).any())

    def _count_new_pairs(self, untried: Numbers) -> Numbers:
        """Return how many pairs of choices each candidate has that were not tried together."""
        tried = np.setdiff1d(np.arange(self._model.n), untried, assume_unique=True)
        return self._model.count_new_pairs(tried, HARMFUL)

    @property
    def luck(self) -> float:
        """Standard deviation between launches of one config, as a log-ratio."""
        return self._model.luck

    @property
    def pair_luck(self) -> float:
        """Standard deviation of a log-ratio due to the launches of its candidate and of the baseline."""
        return math.hypot(self._model.luck, self._model.baseline_luck)

    def describe_baseline(self, sigma: float, share: float) -> None:
        """Let the model know what was seen of the baseline.

        Args:
            sigma: Standard deviation of its log-cost between launches, which do not differ by more.
            share: Share of the variance of a log-ratio in one round that is due to it.
        """
        self._model.most_baseline_luck = max(LUCKS[-1], BASELINE_EXCESS * sigma)
        self._model.baseline_share = share

    def fit(self, weights: Array | None = None) -> None:
        """Fit the model to everything that was observed.

        Args:
            weights: Weight of each objective. By default, the weights are drawn at random.
        """
        self._n_fitted = len(self.observed)
        observations = []
        for launch in self.observed:
            if launch.log_ratios is None:
                observations.append(ObservedLaunch(launch.number, WORST_LOG_RATIO, FAILURE_SIGMA**2, launch.batch))
                continue
            if weights is None:
                weights = self._rng.dirichlet(np.ones(len(launch.log_ratios)))
            log_ratio = float(weights @ np.array(launch.log_ratios)) + launch.excess
            observations.append(ObservedLaunch(launch.number, log_ratio, launch.variance, launch.batch))
        self._model.fit(observations)

    def expected_gain(self, study: optuna.Study) -> float:
        """Return how much better the best untried candidate is expected to be than the best tried one.

        The gain is a log-ratio of at least 0. It is infinite while no candidate is known to stay within the limits.
        With several objectives, it is the largest gain in any of them.
        """
        untried = self.untried(study.get_trials(deepcopy=False))
        if not len(untried):
            return 0.0
        tried = sorted({launch.number for launch in self.observed if launch.keeps})
        tried += [BASELINE_NUMBER] if self.baseline_keeps else []
        if not tried:
            return math.inf
        gains = []
        for weights in np.eye(len(study.directions)):
            self.fit(weights)
            draws = self._model.draw(DRAWS_FOR_GAIN)
            gains.append(float(np.maximum(draws[tried].min(axis=0) - draws[untried].min(axis=0), 0.0).mean()))
        self._draws = []
        return max(gains)

    def bound_gain(self, study: optuna.Study) -> float:
        """Return a bound that no untried candidate's gain over the baseline exceeds, with a probability of 95 %.

        It follows from the model and the measurements. It is a log-ratio, at least 0. With several objectives, it
        holds for each of them.
        """
        untried = self.untried(study.get_trials(deepcopy=False))
        if not len(untried):
            return 0.0
        bounds = [0.0]
        for weights in np.eye(len(study.directions)):
            self.fit(weights)
            gains = -self._model.draw(DRAWS_FOR_BOUND)[untried].min(axis=0)
            bounds.append(float(np.quantile(gains, DEFAULT_CONFIDENCE)))
        self._draws = []
        return max(bounds)

    def bound_gain_left(self, best: int) -> float:
        """Return a bound of how much better than one candidate any other is, with a probability of 95 %.

        It follows from the model, as it was fitted last. It holds whenever it is looked at, as far as the model is
        right: what was measured does not depend on when the search ends.

        Source: S. L. Scott, "Multi-armed bandit experiments in the online service economy", Applied Stochastic Models
        in Business and Industry 31 (2015): an experiment ends when little value is potentially left.

        Args:
            best: Number of the candidate.

        Returns:
            A log-ratio, at least 0.
        """
        draws = self._model.draw(DRAWS_FOR_GAIN_LEFT, np.random.default_rng(0))
        return float(np.quantile(draws[best] - draws.min(axis=0), DEFAULT_CONFIDENCE))

    def expected(self, weights: Array | None = None) -> Array:
        """Return the expected log-ratio of every candidate."""
        self.fit(weights)
        self._draws = []
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
