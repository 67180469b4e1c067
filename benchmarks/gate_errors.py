"""Simulate how often gates are wrong if head is exactly as slow as allowed, over all checks of a gate.

    python -m benchmarks.gate_errors [--gates 10000] [--seed 0]

For each kind of noise, the launches of base, head and their copies get costs of their own. Head is 3 % slower, which is
the allowed slowdown: each gate that fails, and each that passes, is an error. For comparison, the rule of the first
version has one copy of head, and a 99 % interval after each launch from 5 to 30. Its bootstrap is left out, because it
only mattered where Student's interval decided as well. `python -m benchmarks.gate_power replay --ours --slowdown 3`
does the same with recorded noise.

With `--slow-launches`, a few launches of head alone are slow, so that its mean is worse than allowed: each gate that
passes is an error. It also prints how many launches gates of equal models, and of a head that is 10 % slower, take.

With `--rare`, launches have calls, of which a few are slow in head only, so that its mean is worse than allowed. Each
gate that passes is an error. It shows what gates cannot know: calls that do not occur.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from benchmarks.host import write_header
from ortune.gates.decision import CHECKS, GATE_CONFIDENCE, judge_objective
from ortune.measure.compute_figures import is_total
from ortune.workload import Objective

ALLOWED = 1.03
MAX_LAUNCHES = CHECKS[-1]
FIRST_VERSION = range(5, 31)

Draw = Callable[[np.random.Generator], NDArray[np.float64]]
"""Returns the log-costs of the launches of one side."""


def normal(sigma: float) -> Draw:
    """Launches that differ by a normal deviation."""
    return lambda rng: rng.normal(0, sigma, MAX_LAUNCHES)


def heavy(n_free: int) -> Draw:
    """Launches whose deviations have heavy tails."""
    return lambda rng: 0.01 * rng.standard_t(n_free, MAX_LAUNCHES)


def two_speeds(share: float, factor: float) -> Draw:
    """Launches of which some are slower by a factor."""
    return lambda rng: rng.normal(0, 0.01, MAX_LAUNCHES) + math.log(factor) * (rng.random(MAX_LAUNCHES) < share)


# At the threshold, the rule does not depend on the scale of normal deviations: 1 % and 10 % give the same decisions.
KINDS: dict[str, Draw] = {
    "launches differ by 1 to 10 %": normal(0.03),
    "heavy tails (t, 2 degrees of freedom)": heavy(2),
    "heavy tails (t, 3 degrees of freedom)": heavy(3),
    "half of the launches 1.35x as slow": two_speeds(0.5, 1.35),
    "30 % of the launches 1.15x as slow": two_speeds(0.3, 1.15),
    "10 % of the launches 1.35x as slow": two_speeds(0.1, 1.35),
    "2 % of the launches 2.7x as slow": two_speeds(0.02, 2.7),
}


def decide_gate(objective: Objective, sides: NDArray[np.float64]) -> tuple[str, int]:
    """Return the decision of all checks of a gate, and the number of launches that it took.

    Args:
        objective: The objective.
        sides: The log-costs of base, its copy, head, and its copy: for each, those of its launches.
    """
    base, copy, head, head_copy = sides
    ratios = (head + head_copy - base - copy) / 2
    for check, n in enumerate(CHECKS):
        found = judge_objective(
            objective,
            [[ratio] for ratio in ratios[:n].tolist()],
            ALLOWED,
            check=check,
            of_head=(sides[2:, :n] - (base + copy)[:n] / 2).ravel().tolist() if is_total(objective) else (),
        )
        if found.decision != "inconclusive":
            return found.decision, n
    return "inconclusive", CHECKS[-1]


def decide_as_before(ratios: NDArray[np.float64]) -> list[str]:
    """Return the decisions of the first version; `ratios` has a row for each gate."""
    decisions = np.full(len(ratios), "inconclusive")
    for n in FIRST_VERSION:
        means = ratios[:, :n].mean(axis=1) - math.log(ALLOWED)
        errors = ratios[:, :n].std(axis=1, ddof=1) / math.sqrt(n)
        half = errors * stdtrit(n - 1, (1 + GATE_CONFIDENCE) / 2)
        is_open = decisions == "inconclusive"
        decisions[is_open & (means > half)] = "fail"
        decisions[is_open & (means < -half)] = "pass"
    return decisions.tolist()


SLOW_LAUNCHES = [(0.0, 1.0), (0.05, 2.0), (0.1, 2.0), (0.05, 1.35), (0.1, 1.35), (0.2, 1.35)]
"""Share of the launches of head that are slow, and by which factor."""


def print_slow_launches(n_gates: int, seed: int) -> None:
    """Print how often gates pass although a few launches of head make it worse than allowed."""
    objectives: tuple[Objective, ...] = ("p50", "mean")
    print(f"{n_gates} gates each, allowed 3 %: share that fails / passes, %, and the median of the launches")
    print(f"{'launches of head':<34}{'mean':>8}" + "".join(f"{objective:>24}" for objective in objectives))
    for share, factor, slowdown in ((0.0, 1.0, 0.1), *((*slow, 0.0) for slow in SLOW_LAUNCHES)):
        name = f"{share:.0%} are {factor:g}x as slow" if share else "none is slow"
        row = f"{name:<34}{(1 + slowdown) * factor**share - 1:>+8.1%}"
        for objective in objectives:
            rng = np.random.default_rng(seed)
            found = []
            for _ in range(n_gates):
                sides = rng.normal(0, 0.02, (4, MAX_LAUNCHES))
                sides[2:] += math.log1p(slowdown) + math.log(factor) * (rng.random((2, MAX_LAUNCHES)) < share)
                found.append(decide_gate(objective, sides))
            shares = (sum(outcome == decision for outcome, _ in found) / n_gates for decision in ("fail", "pass"))
            launches = float(np.median([n for _, n in found]))
            row += f"{' / '.join(f'{100 * share:.2f}' for share in shares) + f'  ({launches:.0f})':>24}"
        print(row, flush=True)


RARE = [(1000, 60.0), (2000, 200.0), (200, 11.0), (50, 3.5)]
"""Slow calls of head: one in how many, and their duration as a multiple of the usual one."""

RARE_CALLS = (40, 160, 640)
"""Calls of each process in a launch."""


def draw_rare_calls(rng: np.random.Generator, n_calls: int, one_in: int, factor: float) -> NDArray[np.float64]:
    """Return the log-means of the launches of all sides if a few calls of head are slow; see `decide_gate`."""
    # The sum of many usual calls is normal.
    shape = (4, MAX_LAUNCHES)
    means = np.exp(rng.normal(0, 0.003, shape)) * rng.normal(1, 0.03 / math.sqrt(n_calls), shape)
    means[2:] += rng.binomial(n_calls, 1 / one_in, (2, MAX_LAUNCHES)) * (factor - 1) / n_calls
    return np.log(means)


def print_rare_calls(n_gates: int, seed: int) -> None:
    """Print how often gates pass although rare calls make head worse than allowed."""
    print(f"{n_gates} gates each, allowed 3 %: share that fails / passes, %, and the median of the calls of head")
    print(
        f"{'slow calls of head':<34}{'mean':>10}" + "".join(f"{f'{count} calls a launch':>28}" for count in RARE_CALLS)
    )
    for one_in, factor in RARE:
        row = f"{f'1 of {one_in} takes {factor:g} times as long':<34}{(factor - 1) / one_in:>+10.1%}"
        for n_calls in RARE_CALLS:
            rng = np.random.default_rng(seed)
            found = [decide_gate("mean", draw_rare_calls(rng, n_calls, one_in, factor)) for _ in range(n_gates)]
            shares = (sum(outcome == decision for outcome, _ in found) / n_gates for decision in ("fail", "pass"))
            calls = 2 * n_calls * float(np.median([n for _, n in found]))
            row += f"{' / '.join(f'{100 * share:.1f}' for share in shares) + f'  ({calls:.0f})':>28}"
        print(row, flush=True)


def main() -> None:
    """Print the errors of each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow-launches", action="store_true", help="simulate slow launches of head alone instead")
    parser.add_argument("--rare", action="store_true", help="simulate rare slow calls of head instead")
    options = parser.parse_args()
    print(write_header())
    if options.slow_launches:
        print_slow_launches(options.gates, options.seed)
        return
    if options.rare:
        print_rare_calls(options.gates, options.seed)
        return
    print(f"{options.gates} gates each, head 3 % slower, allowed 3 %: share that fails / passes, %")
    print(f"{'noise':<40}{'p50':>14}{'mean':>16}{'first version':>16}")
    for name, draw in KINDS.items():
        rng = np.random.default_rng(options.seed)
        # Base, its copy, head, its copy; each with a row for each gate.
        sides = np.array([[draw(rng) for _ in range(options.gates)] for _ in range(4)])
        sides[2:] += math.log(ALLOWED)
        decisions = [
            [decide_gate("p50", sides[:, gate])[0] for gate in range(options.gates)],
            [decide_gate("mean", sides[:, gate])[0] for gate in range(options.gates)],
            decide_as_before(sides[2] - (sides[0] + sides[1]) / 2),
        ]
        cells = [
            " / ".join(f"{100 * found.count(decision) / options.gates:.2f}" for decision in ("fail", "pass"))
            for found in decisions
        ]
        print(f"{name:<40}{cells[0]:>14}{cells[1]:>16}{cells[2]:>16}", flush=True)


if __name__ == "__main__":
    main()
