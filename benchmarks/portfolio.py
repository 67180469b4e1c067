"""A rival that cannot be argued with: a portfolio of twelve configs, each launched up to three times.

    python -m benchmarks.portfolio

The portfolio is chosen on the recordings of other models: one config after the other, such that the best of them is as
close as possible to the best candidate of each recording. A search of `benchmarks.regret` with the method `portfolio`
launches them in turn until its budget is spent, and recommends the one that measured best. It proves nothing.

The command prints the portfolio that is chosen on all recordings.

Source: L. Xu, H. Hoos and K. Leyton-Brown, "Hydra: automatically configuring algorithms for portfolio-based selection"
(AAAI 2010): configurations are added greedily by what they contribute to the portfolio.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.landscape import Landscape, Recording, load_landscape, recorded_paths
from ortune.knobs import Config, describe

if TYPE_CHECKING:
    from benchmarks.regret import Tuner

N_CONFIGS = 12
MOST_PASSES = 3
"""Configs of the portfolio, and launches of each."""

N_BLOCKS = 3
"""Blocks of each launch."""


@functools.cache
def load_recordings() -> dict[str, Landscape]:
    """Return all recordings that can be replayed, by name."""
    loaded = [load_landscape(path) for path in recorded_paths()]
    return {landscape.name: landscape for landscape in loaded if not landscape.has_queue}


@functools.cache
def list_models() -> dict[str, str]:
    """Return the name of the model of each recording."""
    abouts = [Recording.load(path).about for path in recorded_paths()]
    return {about.name: about.model.partition(" ")[0] for about in abouts}


@functools.cache
def choose_portfolio(name: str = "") -> tuple[Config, ...]:
    """Return the configs that are chosen on all recordings but those of the model of one of them, best first."""
    models = list_models()
    recordings = [
        recording for other, recording in load_recordings().items() if models[other] != models.get(name, "none")
    ]
    configs = {
        candidate.config.key: candidate.config
        for recording in recordings
        for candidate in recording.space.candidates[1:]
    }
    keys = list(configs)
    # How much slower than the best candidate each config is, by recording; the default where it is no candidate.
    lags = np.empty((len(keys), len(recordings)))
    for column, recording in enumerate(recordings):
        costs = np.nan_to_num(recording.log_costs, nan=math.inf) - recording.log_costs[recording.best]
        numbers = [recording.space.numbers.get(key, 0) for key in keys]
        lags[:, column] = np.minimum(costs[numbers], costs[0])
    chosen: list[int] = []
    reached = np.full(len(recordings), math.inf)
    for _ in range(N_CONFIGS):
        best = int(np.minimum(lags, reached).mean(axis=1).argmin())
        chosen.append(best)
        reached = np.minimum(reached, lags[best])
    return tuple(configs[keys[row]] for row in dict.fromkeys(chosen))


def find_numbers(landscape: Landscape, configs: Sequence[Config]) -> list[int]:
    """Return the candidates of a landscape that have these configs."""
    found = (landscape.space.numbers.get(config.key) for config in configs)
    return [number for number in found if number is not None]


def run_portfolio(tuner: Tuner, seed: int) -> tuple[int, float]:
    """Measure the portfolio in turn, and return the config that measured best, and its measured gain."""
    landscape = tuner.landscape
    numbers = [0, *find_numbers(landscape, choose_portfolio(landscape.name))]
    costs: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(MOST_PASSES):
        for number in numbers:
            if not tuner.is_over():
                costs[number].append(tuner.measure(number, N_BLOCKS))
    return tuner.answer({number: statistics.fmean(found) for number, found in costs.items() if found})


def main() -> None:
    """Print the portfolio."""
    for config in choose_portfolio():
        print(describe(config))


if __name__ == "__main__":
    main()
