"""Varied landscapes of small and large hosts, for development: their costs and their noise are drawn at random.

Unlike the kinds of `benchmarks/held_out.py`, on which a strategy is judged, these have no names: each landscape mixes
several kinds of effects.

- Choices have effects with heavy tails, and only some of them have any.
- Some pairs of choices have an effect of their own, which may exceed those of the two choices.
- A bottleneck may limit the gain, so that effects do not add up.
- A family of candidates, those with certain choices, may share a gain.
- Each candidate has an effect of its own, of up to a few percent.
- Some landscapes have nothing to gain.
- In the last ones, launches of the default have one of two speeds, and those of other candidates do not.
- Calls take 0.3 ms to 1.5 s. Launches of one config differ by 0.3 to 8 %, blocks by 0.5 to 5 %, with light or heavy
  tails. Some launches run at a second speed. Some hosts are disturbed for seconds at a time, and nothing shows it.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np

from benchmarks.landscape import Landscape
from benchmarks.synthetic import Machine, assemble, drop_between, make_host, make_model, make_pool
from ortune.knobs import SearchSpace, build_space

N_LANDSCAPES = 42
FIRST_UNSTEADY = 36
"""Number of landscapes, and the first one whose default has two speeds."""

LARGEST_GAIN = 1.0
"""Largest gain of a candidate, as a log-ratio."""

DISTURBANCE_STEP_S = 0.05

CORES = (2, 2, 2, 4, 2, 2, 12, 2, 2, 8, 2, 36)
"""Number of cores of the first landscape, the second, and so on. Most have two, as most containers are small."""


def draw_costs(space: SearchSpace, rng: np.random.Generator) -> np.ndarray:
    """Return the log-costs of all candidates, relative to the default."""
    changes = [candidate.chosen for candidate in space.candidates]
    choices = [(dimension.name, choice.label) for dimension in space.dimensions for choice in dimension.choices[1:]]
    density, scale = rng.uniform(0.1, 0.5), 10 ** rng.uniform(-2, -0.9)
    effects = {
        item: float(scale * rng.standard_t(2) if rng.random() < density else rng.normal(0.004, 0.006))
        for item in choices
    }
    pairs = [pair for pair in itertools.combinations(choices, 2) if pair[0][0] != pair[1][0]]
    n_pairs = int(rng.integers(0, 6))
    together = {
        pairs[int(place)]: float(2 * scale * rng.standard_t(2)) for place in rng.permutation(len(pairs))[:n_pairs]
    }
    most = rng.uniform(0.05, 0.5) if rng.random() < 0.4 else math.inf
    family = {choices[int(place)] for place in rng.permutation(len(choices))[: int(rng.integers(1, 4))]}
    of_family = float(rng.uniform(0.03, 0.3)) if rng.random() < 0.3 else 0.0
    own = rng.normal(0, 10 ** rng.uniform(-3, -1.5), len(changes))
    costs = np.zeros(len(changes))
    for number, labels in enumerate(changes):
        items = set(labels.items())
        cost = sum(effects[item] for item in items)
        cost += sum(effect for pair, effect in together.items() if items.issuperset(pair))
        if of_family and len(items) > 1 and family & items:
            cost = min(cost, -of_family)
        costs[number] = max(cost, -most, -LARGEST_GAIN) + own[number]
    return np.asarray(costs - costs[0])


def make_landscape(number: int) -> Landscape:
    """Return one of the landscapes."""
    rng = np.random.default_rng([number, 5])
    cores = CORES[number % len(CORES)]
    nodes = 2 if cores > 24 else 1
    machine = Machine(packages=1, nodes=nodes, cores=cores // nodes, threads=1)
    space = drop_between(build_space(make_host(machine), make_model(width=int(rng.integers(1, 6)))))
    costs = draw_costs(space, rng)
    if number % 5 == 4:
        costs = np.abs(costs)
    call_ns = 10 ** (rng.uniform(5.5, 8) if rng.random() < 0.75 else rng.uniform(8, 9.2))
    luck = 10 ** rng.uniform(-2.5, -1.1)
    noise = 10 ** rng.uniform(-2.3, -1.3)
    quiet = make_pool(rng, 0.0, noise, (0.0, 0.03), len(costs))
    if rng.random() < 0.3:
        quiet.residuals[:] += np.where(rng.random(len(quiet.residuals)) < 0.05, rng.exponential(0.5, 400), 0.0)
    found = assemble(f"varied-{number}", space, costs + math.log(call_ns), rng, quiet=quiet, luck=luck)
    if rng.random() < 0.2:
        # A second speed of some launches.
        found.lucks[:] += np.where(rng.random(len(found.lucks)) < 0.3, rng.uniform(0.05, 0.3), 0.0)
    if number >= FIRST_UNSTEADY:
        is_slow = rng.random(len(found.lucks)) < rng.uniform(0.2, 0.6)
        of_default = found.lucks + rng.uniform(0.1, 0.8) * (is_slow - is_slow.mean())
        found = msgspec.structs.replace(found, own_lucks={0: of_default})
    if number % 3 == 1:
        found = msgspec.structs.replace(found, drift=draw_disturbances(number), drift_step_s=DISTURBANCE_STEP_S)
    return found


def draw_disturbances(number: int) -> np.ndarray:
    """Return a series of log-costs of two minutes in which the host is slower at times.

    Nothing marks these times: another virtual machine uses the same CPUs. This adds a number of its own for each block.
    """
    rng = np.random.default_rng([number, 6])
    series = rng.normal(0.0, 0.01, round(120 / DISTURBANCE_STEP_S))
    share, spell_s, slowdown = rng.uniform(0.1, 0.4), rng.uniform(0.5, 4), rng.uniform(0.2, 0.6)
    time_s = 0.0
    while (time_s := time_s + rng.exponential(spell_s * (1 - share) / share)) < 120:
        end_s = time_s + rng.exponential(spell_s)
        steps = slice(round(time_s / DISTURBANCE_STEP_S), round(end_s / DISTURBANCE_STEP_S))
        series[steps] += np.abs(rng.normal(slowdown, slowdown / 3, len(series[steps])))
        time_s = end_s
    return series


def all_varied() -> list[Landscape]:
    """Return all varied landscapes."""
    return [make_landscape(number) for number in range(N_LANDSCAPES)]
