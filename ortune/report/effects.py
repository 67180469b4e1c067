"""Which settings matter: the effect of each setting and of pairs of settings, from all trials of a search.

The logarithm of a candidate's speedup is a sum of effects of its settings, of pairs of its settings, and of noise. All
effects are normally distributed around 0 with a scale that is estimated together with the noise, so that a setting that
was tried rarely has a wide interval and not a large effect. The intervals are those of the posterior distribution.
They describe the candidates that were tried under this load, and prove nothing: only the confirmation does.

Source: C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", section 2.1 (2006).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.knobs import KNOBS, Config
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval

Array = NDArray[np.float64]

FEWEST_TRIALS = 8
"""Trials without which nothing is said about effects."""

TOGETHER = " and "
"""Between the names of settings whose effect is that of all of them together."""

FEWEST_TOGETHER = 2
"""Candidates with both settings without which nothing is said about a pair."""

MOST_MAIN, MOST_DRAWN_PAIRS = 60, 200
"""Settings and pairs that are considered, those with the most trials first: time grows with the cube of the number."""

LOWEST_LOG_SPEEDUP = math.log(1 / 4)
"""Log-speedups below this count as this: what makes a candidate many times slower is not a sum of effects."""

SCALES = (0.02, 0.05, 0.1, 0.2, 0.4)
PAIR_SHARES = (0.1, 0.3, 0.6)
NOISES = (0.003, 0.01, 0.03, 0.1)
"""Scales of the effects of settings, those of pairs relative to them, and the noise, among which is chosen."""

Z = 1.96
"""Half the width of an interval of `DEFAULT_CONFIDENCE`, in standard deviations."""


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """Effects as factors, those that are the farthest from 1 in relation to their uncertainty first.

    Attributes:
        settings: The effect of each setting, with its name and value. One that was tried only together with others has
            the effect of all of them, and their names.
        pairs: By how much two settings together are better than the product of their effects.
    """

    settings: tuple[tuple[str, Interval], ...]
    pairs: tuple[tuple[str, Interval], ...]


def estimate_effects(trials: Sequence[tuple[Config, float]]) -> Effects | None:
    """Return the effects of settings, or None if there are too few trials.

    Args:
        trials: The settings and the speedup of each candidate that was measured.
    """
    known = [(config, speedup) for config, speedup in trials if math.isfinite(speedup) and speedup > 0]
    if len(known) < FEWEST_TRIALS:
        return None
    labels = [{name_setting(name, value) for name, value in config.settings.items()} for config, _ in known]
    y = np.maximum(np.log([speedup for _, speedup in known]), LOWEST_LOG_SPEEDUP)
    main = choose_columns(labels)
    if not main:
        return None
    features = merge_twins({name: np.array([name in settings for settings in labels], dtype=float) for name in main})
    main, pairs = list(features), choose_pairs(features)
    x = np.stack([*features.values(), *(features[one] * features[other] for one, other in pairs)], axis=1)
    fitted, root = fit(x, y, len(main))
    needed = find_needed(features)
    sums = np.eye(x.shape[1])
    for place, name in enumerate(main):
        together = {name, *needed[name]}
        sums[place] = [*(one in together for one in main), *(together.issuperset(pair) for pair in pairs)]
    mean, sigma = sums @ fitted, np.linalg.norm(sums @ root, axis=1)
    intervals = [
        Interval(
            estimate=math.exp(middle),
            low=math.exp(middle - Z * spread),
            high=math.exp(middle + Z * spread),
            confidence=DEFAULT_CONFIDENCE,
        )
        for middle, spread in zip(mean.tolist(), sigma.tolist(), strict=True)
    ]
    certainty = np.abs(mean) / sigma
    order = np.argsort(-certainty, kind="stable").tolist()
    names = [TOGETHER.join((name, *needed[name])) for name in main]
    names += [f"{one} with {other}" for one, other in pairs]
    return Effects(
        settings=tuple((names[place], intervals[place]) for place in order if place < len(main)),
        pairs=tuple((names[place], intervals[place]) for place in order if place >= len(main) and certainty[place] > Z),
    )


def name_setting(name: str, value: int | bool | str) -> str:
    """Return a setting as a label, such as `intra-op threads=2`."""
    return f"{KNOBS[name].title if name in KNOBS else name}={str(value).removeprefix('ORT_').lower()}"


def merge_twins(features: dict[str, Array]) -> dict[str, Array]:
    """Return the columns that differ. Settings that were always tried together are one, with the names of both."""
    twins: dict[bytes, list[str]] = {}
    for name, column in features.items():
        twins.setdefault(column.tobytes(), []).append(name)
    return {TOGETHER.join(names): features[names[0]] for names in twins.values()}


def find_needed(features: dict[str, Array]) -> dict[str, list[str]]:
    """Return for each setting: the others that all candidates with it have, too.

    Alone, it was never tried. Its column says how candidates with it differ from those with the others alone: it may
    only undo the harm of these. What is known is the effect of all of them together.
    """
    return {
        name: [other for other, one in features.items() if other != name and bool((one >= column).all())]
        for name, column in features.items()
    }


def choose_columns(labels: Sequence[set[str]]) -> list[str]:
    """Return the settings that some candidates have and others do not, the most frequent first."""
    counts: dict[str, int] = {}
    for label in sorted(set().union(*labels)):
        counts[label] = sum(label in settings for settings in labels)
    varied = [label for label, count in counts.items() if count < len(labels)]
    return sorted(varied, key=lambda label: -counts[label])[:MOST_MAIN]


def choose_pairs(features: dict[str, Array]) -> list[tuple[str, str]]:
    """Return the pairs of settings that several candidates have together, and that differ from a single setting."""
    found = []
    for one, other in itertools.combinations(features, 2):
        together = float(features[one] @ features[other])
        if FEWEST_TOGETHER <= together < min(features[one].sum(), features[other].sum()):
            found.append((together, one, other))
    found.sort(key=lambda pair: -pair[0])
    return [(one, other) for _, one, other in found[:MOST_DRAWN_PAIRS]]


def fit(x: Array, y: Array, n_main: int) -> tuple[Array, Array]:
    """Return the means of the effects and a root of their covariance, with the scales that maximize the likelihood.

    The root is a matrix R whose product with its transpose is the covariance.

    Args:
        x: A row for each trial, and a column for each effect.
        y: The log-speedup of each trial.
        n_main: Number of columns of settings; pairs follow.
    """
    best: tuple[float, Array, Array] | None = None
    for share in PAIR_SHARES:
        # In units of their spread, all effects have the same, and one decomposition serves all scales and noises.
        units = np.ones(x.shape[1])
        units[n_main:] = share
        scaled = x * units
        values, vectors = np.linalg.eigh(scaled.T @ scaled)
        values = np.maximum(values, 0.0)
        moments = vectors.T @ (scaled.T @ y)
        for scale, noise in itertools.product(SCALES, NOISES):
            precisions = values / noise**2 + 1 / scale**2
            means = moments / noise**2 / precisions
            log_determinant = float(np.log(precisions).sum()) + 2 * len(values) * math.log(scale)
            misfit = (float(y @ y) - float(moments @ means)) / noise**2
            likelihood = -0.5 * (misfit + log_determinant + 2 * len(y) * math.log(noise))
            if best is None or likelihood > best[0]:
                best = likelihood, units * (vectors @ means), units[:, None] * vectors / np.sqrt(precisions)
    assert best
    return best[1], best[2]
