"""Simulate races of candidates whose launches differ: how often is a candidate lost that is better by 2 %?

    python -m benchmarks.races [--races 2500]

Eight candidates race as in `ortune.tuning.racing`, until one is left or the time is up. The difference between launches
of one config has Student's distribution with three degrees of freedom, scaled to a standard deviation. The one that is
chosen has the best mean less a standard error, as finalists have.

- steady: all launches differ by 0.5 %
- one: launches of one candidate, which gains nothing, differ by 8 %
- two: launches of two candidates, which gain nothing, differ by 15 and by 5 %
- luck: all launches differ by 5 %
- mixed: by 1 % as the median, and by three times as much for one of six
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from ortune.tuning.racing import MAX_RACING_LAUNCHES, MIN_RACING_LAUNCHES, Standing

Array = NDArray[np.float64]

N_CANDIDATES = 8
MOST_BLOCKS = 45
"""Time of a race: launches of candidates and of the baseline."""

LUCK = 0.005
BASELINE_LUCK = 0.01
"""What the search expects launches to differ by, and what those of the baseline differ by."""

NEAR = 0.02

KINDS: dict[str, Callable[[np.random.Generator], tuple[Array, Array]]] = {
    "steady": lambda rng: (rng.normal(0.02, 0.02, 8), np.full(8, 0.005)),
    "one": lambda rng: (np.r_[rng.normal(0.02, 0.01, 7), 0.0], np.r_[np.full(7, 0.005), 0.08]),
    "two": lambda rng: (np.r_[rng.normal(0.03, 0.01, 6), 0.0, 0.0], np.r_[np.full(6, 0.004), 0.15, 0.05]),
    "luck": lambda rng: (rng.normal(0.05, 0.03, 8), np.full(8, 0.05)),
    "mixed": lambda rng: (rng.normal(0.03, 0.02, 8), np.exp(rng.normal(math.log(0.01), 1.0, 8))),
}
"""Return the gains of the candidates, and how much their launches differ."""


def race(rng: np.random.Generator, gains: Array, sigmas: Array) -> tuple[float, int]:
    """Return the gain of the candidate that is chosen, and the number of launches."""
    live = np.arange(N_CANDIDATES)
    launches: list[Array] = []
    n_blocks = 0
    while len(launches) < MAX_RACING_LAUNCHES:
        can_end = len(launches) >= MIN_RACING_LAUNCHES
        if can_end and (len(live) == 1 or n_blocks + 1 + len(live) > MOST_BLOCKS):
            break
        luck = sigmas * rng.standard_t(3, N_CANDIDATES) / math.sqrt(3)
        launches.append(-gains + luck + rng.normal(0, BASELINE_LUCK))
        n_blocks += 1 + len(live)
        if len(launches) >= MIN_RACING_LAUNCHES:
            live = live[~Standing.estimate(np.array(launches).T[live, :, None], LUCK).find_slower()]
    bounds = Standing.estimate(np.array(launches).T[live, :, None], LUCK).bounds
    return float(gains[live[bounds[:, 0].argmin()]]), len(launches)


def main() -> None:
    """Simulate races of each kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--races", type=int, default=2500)
    arguments = parser.parse_args()
    print(write_header())
    for kind, draw in KINDS.items():
        rng = np.random.default_rng(1)
        regrets, n_launches = [], []
        for _ in range(arguments.races):
            gains, sigmas = draw(rng)
            gain, n = race(rng, gains, sigmas)
            regrets.append(gains.max() - gain)
            n_launches.append(n)
        lost = np.mean(np.array(regrets) > NEAR)
        print(f"{kind:7} regret {np.mean(regrets):.2%}, lost {lost:.1%}, {np.mean(n_launches):.1f} launches")


if __name__ == "__main__":
    main()
