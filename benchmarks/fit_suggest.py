"""Fit what `ortune suggest` knows of the gains of the documentation's rules to the recorded landscapes.

    python -m benchmarks.fit_suggest

The log-speedups of a rule in all recordings of one kind of situation are taken as draws from one normal distribution.
The range for another model is that of the predictive distribution with the conjugate prior, which is Student's. The
prior is no gain, and models that differ by 30 %.

It writes `ortune/tuning/data/effects.json`. A test checks that this file is up to date. Run it after a landscape was
recorded or removed.

Source: K. P. Murphy, "Conjugate Bayesian analysis of the Gaussian distribution" (2007), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy import stats

from benchmarks.landscape import Landscape, Recording, fit, recorded_paths
from ortune.record.layout import encode
from ortune.tuning.effects import CONFIDENCE, FILE, Effect
from ortune.tuning.situation import Situation

PRIOR_WEIGHT = 0.5
"""Number of recordings that the prior of the mean, no gain, is worth."""

PRIOR_SIGMA = 0.3
PRIOR_FREE = 2.0
"""Prior of the standard deviation between models, about that of one thread for a single client, and the number of
recordings that it is worth."""

DIGITS = 4


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A landscape with what `ortune suggest` would know of it.

    Attributes:
        recording: The recording.
        landscape: The costs of its candidates.
        situation: How the model was used.
    """

    recording: Recording
    landscape: Landscape
    situation: Situation

    @property
    def name(self) -> str:
        """Name of the landscape."""
        return self.landscape.name

    @property
    def model(self) -> str:
        """Name of the model in models/manifest.toml."""
        return self.recording.about.model.partition(" ")[0]

    def gains(self) -> dict[str, float]:
        """Return the log-speedup of each rule of the documentation."""
        space, found = self.landscape.space, {}
        for rule in space.rules:
            candidate = space.select(rule.labels)
            number = space.numbers.get(candidate.config.key)
            gain = self.landscape.log_speedup(number) if number else math.nan
            if math.isfinite(gain):
                found[self.situation.name_rule(candidate)] = gain
        return found


def read_recorded(paths: Iterable[Path]) -> list[Recorded]:
    """Return recorded landscapes."""
    found = []
    for path in paths:
        recording = Recording.load(path)
        about = recording.about
        situation = Situation.of(about.host, about.goal, has_background_load=about.background_load is not None)
        found.append(Recorded(recording=recording, landscape=fit(recording), situation=situation))
    return found


def predict(gains: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the range of the gain of another model, given those of some models, as log-speedups."""
    y = np.asarray(gains)
    n = len(y)
    weight, free = PRIOR_WEIGHT + n, PRIOR_FREE + n
    mean = float(y.sum()) / weight
    squares = (
        PRIOR_FREE * PRIOR_SIGMA**2 + float(((y - y.mean()) ** 2).sum()) + PRIOR_WEIGHT * n / weight * y.mean() ** 2
    )
    scale = math.sqrt(squares / free * (1 + 1 / weight))
    half = scale * float(stats.t.ppf((1 + CONFIDENCE) / 2, free))
    return mean, mean - half, mean + half


def fit_effects(recorded: Sequence[Recorded]) -> tuple[Effect, ...]:
    """Return the effect of each rule in each kind of situation."""
    groups: dict[tuple[str, str], list[tuple[Recorded, float]]] = {}
    for recording in recorded:
        for name, gain in recording.gains().items():
            groups.setdefault((recording.situation.kind, name), []).append((recording, gain))
    effects = []
    for (kind, name), members in sorted(groups.items()):
        gains = [gain for _, gain in members]
        mean, low, high = (round(value, DIGITS) for value in predict(gains))
        cores = [recording.situation.n_cores for recording, _ in members]
        effects.append(
            Effect(
                rule=name,
                kind=kind,
                mean=mean,
                low=low,
                high=high,
                least=round(min(gains), DIGITS),
                most=round(max(gains), DIGITS),
                recordings=tuple(sorted(recording.name for recording, _ in members)),
                models=tuple(sorted({recording.model for recording, _ in members})),
                n_cores=(min(cores), max(cores)),
            )
        )
    return tuple(effects)


def main() -> None:
    """Write the data file."""
    effects = fit_effects(read_recorded(recorded_paths()))
    FILE.write_bytes(encode(effects))
    for effect in effects:
        print(
            f"{effect.kind:20} {effect.rule:75} {effect.mean:+.3f} "
            f"[{effect.low:+.3f}, {effect.high:+.3f}] {effect.recordings}"
        )


if __name__ == "__main__":
    main()
