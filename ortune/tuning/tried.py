"""What candidates may gain that were measured briefly, and not confirmed.

If all candidates of a space were tried and the one that was confirmed is not better than the baseline, another one may
be: noise decides which of many candidates that were measured once seems to be the best.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ortune.measure.interval import DEFAULT_CONFIDENCE
from ortune.tuning.noise import Launches, RoundNoise
from ortune.tuning.results import CandidateResult, Results

N_DRAWS = 400

PRIOR_LUCK = 0.03
USUAL_WEIGHT = 2.0
"""Standard deviation between launches that is usual, as a log-ratio, and its weight as degrees of freedom."""

PRIOR_ERRORS = 0.75
"""Standard errors that are added to the prior's variance. With this, the bound holds in 90 % or more of simulated cases
of any scale of gains."""


def bound_tried_gain(
    results: Results, noise: RoundNoise, luck: float | None, is_doubtful: Callable[[CandidateResult], bool]
) -> float:
    """Return a bound that no candidate's gain over the baseline exceeds, with a nominal probability of 95 %.

    Each gain has a normal prior distribution around 0, whose variance is estimated from the candidates that seem better
    than the baseline: by how much the mean of their squares exceeds what noise explains. Those that seem worse are left
    out of this estimate, because many settings are harmful. With several objectives, the bound holds for each.

    Source: B. Efron and C. Morris, "Stein's Estimation Rule and Its Competitors" (1973), for the prior's variance.

    Args:
        results: All candidates that were tried.
        noise: The noise of their rounds.
        luck: Standard deviation between launches, as a log-ratio; None if it is not known.
        is_doubtful: Returns whether a candidate was measured while the host was busy, on a host that is usually quiet.

    Returns:
        A log-ratio, at least 0.
    """
    others = [
        result
        for result in results
        # More is known of the baseline and of those that were confirmed.
        if result.number and result.stage != "confirmation" and result.log_ratios is not None and not result.excess
    ]
    noise.update(others)
    launches = [noise.list_launches(result, is_doubtful=is_doubtful(result)) for result in others]
    luck = estimate_luck(launches) if luck is None else luck
    bounds = [0.0]
    for place in range(len(results.goal.objectives)):
        estimates = [_estimate_gain(candidate, place, luck) for candidate in launches]
        bounds.append(_bound_largest(np.array(estimates).reshape(-1, 2)))
    return max(bounds)


def estimate_luck(candidates: Iterable[Launches]) -> float:
    """Return the standard deviation between launches of a candidate, from those with several launches in one stage."""
    squares, n_free = USUAL_WEIGHT * PRIOR_LUCK**2, USUAL_WEIGHT
    for launches in candidates:
        if len(launches) < 2:
            continue
        ratios = [log_ratios[0] for _, log_ratios, _ in launches]
        explained = statistics.fmean(variance for _, _, variance in launches)
        squares += (len(launches) - 1) * max(float(np.var(ratios, ddof=1)) - explained, 0.0)
        n_free += len(launches) - 1
    return math.sqrt(squares / n_free)


def _estimate_gain(launches: Launches, place: int, luck: float) -> tuple[float, float]:
    """Return the gain of a candidate in one objective, as a log-ratio, and its variance."""
    weights = [1 / (luck**2 + variance) for _, _, variance in launches]
    total = sum(weights)
    gain = -sum(weight * log_ratios[place] for weight, (_, log_ratios, _) in zip(weights, launches, strict=True))
    return gain / total, 1 / total


def _bound_largest(estimates: NDArray[np.float64]) -> float:
    gains, variances = estimates[:, 0], estimates[:, 1]
    better = gains > 0
    if not better.any():
        return 0.0
    prior = max(float(np.mean(gains[better] ** 2 - variances[better])), 0.0)
    # If it happens to be estimated as 0, gains as large as the noise would be excluded.
    prior += PRIOR_ERRORS * math.sqrt(2 / better.sum()) * float(np.mean(variances[better]))
    share = prior / (prior + variances)
    draws = np.random.default_rng(0).standard_normal((N_DRAWS, len(gains)))
    largest = (share * gains + np.sqrt(share * variances) * draws).max(axis=1)
    return max(float(np.quantile(largest, DEFAULT_CONFIDENCE)), 0.0)
