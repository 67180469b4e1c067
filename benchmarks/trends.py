"""How soon changes in a history of gates are found, and how often one is found where there is none.

    python -m benchmarks.trends

Histories are made up: the logarithm of the slowdown is a level plus noise with a standard deviation of 1 %. Noise is
normal, or has Student's distribution with 4 degrees of freedom and the same standard deviation, which has outliers.

- Steps: after 50 runs, and after 30, the level changes by 2 %. A step is found in time if a change in its direction is
  found with one of the first 10 runs after it. How far off it is placed is printed, too.
- Drifts: after 50 runs, the level rises by 1 % per week, with a run a day. The week in which it is found is printed.
- False alarms: nothing changes in 1,000 runs. Each change that is found is one.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from ortune.gates.trends import find_changes

Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]

SIGMA = 0.01
BEFORE, FEW_BEFORE, IN_TIME = 50, 30, 10
QUIET_RUNS = 1000

HEAVY = 4
"""Degrees of freedom of the noise with outliers."""

NOISES: dict[str, Noise] = {
    "normal": lambda rng, n: rng.normal(0, SIGMA, n),
    "outliers": lambda rng, n: SIGMA * rng.standard_t(HEAVY, n) / math.sqrt(HEAVY / (HEAVY - 2)),
}


def find_step(noise: Noise, rng: np.random.Generator, step: float, before: int) -> int | None:
    """Return by how many runs the place of a step is missed if it is found in time, else None."""
    logs = noise(rng, before + IN_TIME)
    logs[before:] += step
    for change in find_changes(np.exp(logs).tolist()):
        if change.found >= before and (change.ratio > 1) == (step > 0):
            return abs(change.first - before)
    return None


def find_drift(noise: Noise, rng: np.random.Generator) -> int:
    """Return the week in which a drift is found; 0 if it is not found."""
    n = 70
    logs = noise(rng, BEFORE + n)
    logs[BEFORE:] += 0.01 * np.arange(1, n + 1) / 7
    found = [change.found for change in find_changes(np.exp(logs).tolist()) if change.found >= BEFORE]
    return math.ceil((found[0] - BEFORE + 1) / 7) if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=2000, help="histories with a step")
    n = parser.parse_args().histories
    print(write_header())
    print(f"# python -m benchmarks.trends --histories {n}")
    with ProcessPoolExecutor() as pool:
        for lines in pool.map(judge_noise, NOISES, itertools.repeat(n)):
            print("\n".join(lines))


def judge_noise(name: str, n: int) -> list[str]:
    """Return what is found in histories with a kind of noise, as lines.

    Args:
        name: The noise.
        n: Number of histories for each kind of step.
    """
    noise, rng, lines = NOISES[name], np.random.default_rng(0), []
    for step, before in itertools.product((math.log(1.02), -math.log(1.02)), (BEFORE, FEW_BEFORE)):
        found = [find_step(noise, rng, step, before) for _ in range(n)]
        known = [off for off in found if off is not None]
        share, off = len(known) / n, np.quantile(known, 0.9)
        lines.append(
            f"{name}: steps of {100 * math.expm1(step):+.1f} % after {before} runs found within {IN_TIME} runs: "
            f"{share:.1%} of {n}, placed at most {off:.0f} runs off in 90 %"
        )
    weeks = [find_drift(noise, rng) for _ in range(n // 4)]
    late = np.quantile([week or 99 for week in weeks], [0.5, 0.95])
    lines.append(f"{name}: drifts of 1 % a week found in week {late[0]:.0f} (median), {late[1]:.0f} (95 %) of {n // 4}")
    n_quiet = n // 10
    alarms = sum(len(find_changes(np.exp(noise(rng, QUIET_RUNS)).tolist())) for _ in range(n_quiet))
    runs = n_quiet * QUIET_RUNS
    rate = f"1 in {runs / alarms:.0f}" if alarms else "none"
    lines.append(f"{name}: false alarms: {alarms} in {runs} runs ({rate})")
    return lines


if __name__ == "__main__":
    main()
