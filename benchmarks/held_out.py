"""Held-out landscapes: kinds that the constants of the search were not chosen on.

They are for judging a strategy, and not for developing it. The kinds are failures that a tuner of real models meets:

- `plateau_40`, `plateau_80`: one choice alone is the best. All combinations of several other choices have 40 % or 80 %
  of its gain, and support one another in a model of single choices.
- `families`: two choices gain, but not together, and all others have different effects beside each of them.
- `pair`: the best needs two choices, each of which is slightly harmful alone.
- `triple`: the best needs three choices. One or two of them gain nothing.
- `needle`: one candidate of the whole space is better, and nothing points to it.
- `luck_5`, `luck_10`: choices multiply the cost independently, but launches of one config differ by 5 % or 10 %.
- `tails`: the same with usual launches, and with blocks of which 5 % take up to several times as long.
- `two_speeds`: the same, while 30 % of the default's launches are 15 % slower.
- `slow_150ms`, `slow_1s`: the same with slow calls, so that only few candidates can be tried.
- `slow_launch`: the same with launches of three seconds.
- `cores_3`, `cores_24`, `cores_96`: the same on larger hosts.
- `threads_14`, `threads_24`, `threads_48`, `threads_96`, `threads_192`: the cost depends smoothly on the number of
  threads, and is lowest at any number; the last host has four NUMA nodes. All other choices contribute factors.
- `substitutes`: either of two choices gains, and both together gain no more.
- `masked`: one choice gains. Another one gains beside it, and is harmful alone.
- `unlocked`: one choice gains. Three others gain beside it, and nothing alone.
- `ceiling`: choices contribute factors, but no combination gains more than a quarter.
- `crowded`: several choices gain, but each further setting costs 2 %.
- `pairwise`: choices contribute factors, and so do 30 % of the pairs of choices.
- `nothing`: no candidate is better than the default.

The hosts have two cores where the name says nothing else. Each kind has several instances, whose constants are drawn
with their number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np

from benchmarks.landscape import Landscape
from benchmarks.synthetic import (
    Machine,
    assemble,
    drop_between,
    list_between,
    make_host,
    make_model,
    make_pool,
)
from ortune.knobs import Candidate, SearchSpace, build_space, ids

CALL_NS = 5e6
BEST_GAIN = math.log(1.376)
"""The gain of one thread for an int8 transformer with two clients, as it was measured."""

SECOND_SPEED = 0.15
SECOND_SPEED_SHARE = 0.3
"""By how much some launches of a default with two speeds are slower, as a log-ratio, and the share of these."""

N_INSTANCES = 3

Cost = Callable[[Candidate], float]


def choose_labels(space: SearchSpace, rng: np.random.Generator, n: int) -> list[tuple[str, str]]:
    """Return choices of several dimensions that can be combined with others, at most one of each."""
    combined = [dimension for dimension in space.dimensions if not dimension.alone]
    dimensions = [combined[int(place)] for place in rng.permutation(len(combined))[:n]]
    return [
        (dimension.name, dimension.choices[int(rng.integers(1, len(dimension.choices)))].label)
        for dimension in dimensions
    ]


def plateau(space: SearchSpace, rng: np.random.Generator, share: float) -> Cost:
    """Return costs with one best choice, beside a family of combinations with a share of its gain."""
    ((name, label),) = choose_labels(space, rng, 1)

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        if labels.get(name) == label:
            return -BEST_GAIN if len(labels) == 1 else 0.02 * len(labels)
        return -share * BEST_GAIN if len(labels) > 1 else 0.01 * len(labels)

    return cost


def plateau_40(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with one best choice, beside a family with 40 % of its gain."""
    return plateau(space, rng, 0.4)


def plateau_80(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with one best choice, beside a family with 80 % of its gain."""
    return plateau(space, rng, 0.8)


def families(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with two choices that gain, but not together, and beside which all others have different effects."""
    anchors = choose_labels(space, rng, 2)
    others = [independent(space, rng) for _ in range(len(anchors) + 1)]
    gains = rng.uniform(0.1, 0.25, len(anchors))

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        found = [place for place, (name, label) in enumerate(anchors) if labels.get(name) == label]
        if len(found) != 1:
            return others[-1](candidate) + 0.1 * len(found)
        (place,) = found
        rest = {name: label for name, label in labels.items() if name != anchors[place][0]}
        return others[place](msgspec.structs.replace(candidate, labels=rest)) - float(gains[place])

    return cost


def pair(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs whose best needs two choices."""
    wanted = choose_labels(space, rng, 2)

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        n = sum(labels.get(name) == label for name, label in wanted)
        return (0.0, 0.03, -BEST_GAIN)[n] + 0.005 * (len(labels) - n)

    return cost


def triple(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs whose best needs three choices."""
    wanted = choose_labels(space, rng, 3)

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        n = sum(labels.get(name) == label for name, label in wanted)
        return (0.0, 0.01, 0.01, -BEST_GAIN)[n] + 0.005 * (len(labels) - n)

    return cost


def needle(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with a single better candidate."""
    best = space.candidates[int(rng.integers(1, len(space.candidates)))].config.key
    return lambda candidate: -BEST_GAIN if candidate.config.key == best else 0.003 * len(candidate.chosen)


def independent(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs to which each choice contributes a factor; most of the factors are almost 1."""
    effects = {
        (dimension.name, choice.label): float(rng.normal(0, 0.15) if rng.random() < 0.2 else rng.normal(0.01, 0.01))
        for dimension in space.dimensions
        for choice in dimension.choices[1:]
    }
    return lambda candidate: sum(effects[item] for item in candidate.chosen.items())


def substitutes(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with two choices of which one is enough."""
    wanted = choose_labels(space, rng, 2)

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        n = sum(labels.get(name) == label for name, label in wanted)
        return (-0.2 if n else 0.0) + 0.01 * (len(labels) - n)

    return cost


def masked(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with a choice that gains beside another one, and is harmful alone."""
    (name, label), (second_name, second_label) = choose_labels(space, rng, 2)
    others = independent(space, rng)

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        rest = {key: value for key, value in labels.items() if key not in {name, second_name}}
        found = others(msgspec.structs.replace(candidate, labels=rest))
        is_first = labels.get(name) == label
        found -= 0.15 * is_first
        if labels.get(second_name) == second_label:
            found += -0.1 if is_first else 0.05
        return found

    return cost


def unlocked(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with three choices that gain only beside another one."""
    (name, label), *others = choose_labels(space, rng, 4)
    gains = dict(zip(others, rng.uniform(0.04, 0.08, len(others)).tolist(), strict=True))

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        found = 0.005 * len(labels)
        if labels.get(name) == label:
            found -= 0.1 + sum(gains.get(item, 0.0) for item in labels.items())
        return found

    return cost


def ceiling(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs to which each choice contributes a factor, while no gain exceeds a quarter."""
    most = math.log(1.25)
    cost = independent(space, rng)
    return lambda candidate: max(cost(candidate), 0.0) - most * -math.expm1(min(cost(candidate), 0.0) / most)


def crowded(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs with several choices that gain, while each further setting costs something."""
    gains = {item: float(rng.uniform(0.02, 0.1)) for item in choose_labels(space, rng, 5)}

    def cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        return 0.02 * max(len(labels) - 1, 0) - sum(gains.get(item, -0.01) for item in labels.items())

    return cost


def pairwise(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs to which choices and pairs of choices contribute factors."""
    cost = independent(space, rng)
    items = [(dimension.name, choice.label) for dimension in space.dimensions for choice in dimension.choices[1:]]
    effects = {pair: float(rng.normal(0, 0.05)) for pair in itertools.combinations(items, 2) if rng.random() < 0.3}

    def log_cost(candidate: Candidate) -> float:
        own = [item for item in items if item in candidate.chosen.items()]
        return cost(candidate) + sum(effects.get(pair, 0.0) for pair in itertools.combinations(own, 2))

    return log_cost


def scaling(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs that depend smoothly on the number of threads, and to which other choices contribute factors.

    A call takes `rest + 1 / n + n / best**2`: work that is not divided, work that is, and what each thread adds.
    """
    cost = independent(space, rng)
    best = math.exp(rng.uniform(math.log(4), math.log(space.n_default_threads)))
    rest = rng.uniform(0, 1) / best

    def log_cost(candidate: Candidate) -> float:
        labels = candidate.chosen
        text = labels.pop(ids.INTRA_OP_NUM_THREADS, "")
        n = int(text) if text else space.n_default_threads
        others = msgspec.structs.replace(candidate, labels=labels)
        return math.log(rest + 1 / n + n / best**2) + cost(others)

    return log_cost


def nothing(space: SearchSpace, rng: np.random.Generator) -> Cost:
    """Return costs of which none is below that of the default."""
    cost = independent(space, rng)
    return lambda candidate: abs(cost(candidate))


def make_landscape(
    name: str,
    make_cost: Callable[[SearchSpace, np.random.Generator], Cost],
    seed: int,
    *,
    cores: int = 2,
    nodes: int = 0,
    between: bool = False,
    luck: float = 0.008,
    tails: bool = False,
    has_two_speeds: bool = False,
    call_ns: float = CALL_NS,
    launch_s: float | None = None,
) -> Landscape:
    """Return a landscape.

    Args:
        name: Its name.
        make_cost: Makes the function that returns the log-cost of a candidate.
        seed: Random seed of its constants.
        cores: Number of cores.
        nodes: Number of NUMA nodes; by default two from 49 cores on.
        between: Whether a search can refine the numbers of threads.
        luck: Standard deviation of launches, in log-cost.
        tails: Whether some blocks take several times as long.
        has_two_speeds: Whether some launches of the default are slower than others. Its cost is their mean.
        call_ns: Duration of a call with the default.
        launch_s: Time that each additional worker adds to a launch, or None for the usual time.
    """
    rng = np.random.default_rng([seed, 77, *name.encode()])
    nodes = nodes or (2 if cores > 48 else 1)
    machine = Machine(packages=1, nodes=nodes, cores=cores // nodes, threads=1)
    listed = build_space(make_host(machine), make_model(width=3))
    space = list_between(listed) if between else drop_between(listed)
    cost = make_cost(space, rng)
    costs = np.array([cost(candidate) for candidate in space.candidates])
    quiet = make_pool(rng, 0.0, 0.02, (0.0, 0.03), len(costs))
    if tails:
        spikes = np.where(rng.random(len(quiet.residuals)) < 0.05, rng.exponential(0.7, len(quiet.residuals)), 0.0)
        quiet.residuals[:] += spikes
    log_costs = costs - costs[0] + math.log(call_ns)
    found = assemble(name, space, log_costs, rng, quiet=quiet, luck=luck)
    if has_two_speeds:
        is_slow = rng.random(len(found.lucks)) < SECOND_SPEED_SHARE
        of_default = found.lucks + SECOND_SPEED * (is_slow - SECOND_SPEED_SHARE)
        found = msgspec.structs.replace(found, own_lucks={0: of_default})
    if launch_s is not None:
        found = msgspec.structs.replace(found, launch_s=launch_s)
    return msgspec.structs.replace(found, unrefined=listed) if between else found


KINDS: dict[str, Callable[[str, int], Landscape]] = {
    "plateau_40": lambda name, seed: make_landscape(name, plateau_40, seed),
    "plateau_80": lambda name, seed: make_landscape(name, plateau_80, seed),
    "families": lambda name, seed: make_landscape(name, families, seed),
    "pair": lambda name, seed: make_landscape(name, pair, seed),
    "triple": lambda name, seed: make_landscape(name, triple, seed),
    "needle": lambda name, seed: make_landscape(name, needle, seed),
    "luck_5": lambda name, seed: make_landscape(name, independent, seed, luck=0.05),
    "luck_10": lambda name, seed: make_landscape(name, independent, seed, luck=0.1),
    "tails": lambda name, seed: make_landscape(name, independent, seed, tails=True),
    "two_speeds": lambda name, seed: make_landscape(name, independent, seed, has_two_speeds=True),
    "slow_150ms": lambda name, seed: make_landscape(name, independent, seed, call_ns=150e6),
    "slow_1s": lambda name, seed: make_landscape(name, independent, seed, call_ns=1e9),
    "slow_launch": lambda name, seed: make_landscape(name, independent, seed, launch_s=3.0),
    "cores_3": lambda name, seed: make_landscape(name, independent, seed, cores=3),
    "cores_24": lambda name, seed: make_landscape(name, independent, seed, cores=24),
    "cores_96": lambda name, seed: make_landscape(name, independent, seed, cores=96),
    "threads_14": lambda name, seed: make_landscape(name, scaling, seed, cores=14, nodes=1, between=True),
    "threads_24": lambda name, seed: make_landscape(name, scaling, seed, cores=24, nodes=1, between=True),
    "threads_48": lambda name, seed: make_landscape(name, scaling, seed, cores=48, nodes=2, between=True),
    "threads_96": lambda name, seed: make_landscape(name, scaling, seed, cores=96, nodes=2, between=True),
    "threads_192": lambda name, seed: make_landscape(name, scaling, seed, cores=192, nodes=4, between=True),
    "substitutes": lambda name, seed: make_landscape(name, substitutes, seed),
    "masked": lambda name, seed: make_landscape(name, masked, seed),
    "unlocked": lambda name, seed: make_landscape(name, unlocked, seed),
    "ceiling": lambda name, seed: make_landscape(name, ceiling, seed),
    "crowded": lambda name, seed: make_landscape(name, crowded, seed),
    "pairwise": lambda name, seed: make_landscape(name, pairwise, seed),
    "nothing": lambda name, seed: make_landscape(name, nothing, seed),
}
"""Functions that make the landscapes of each kind, given a name and the number of the instance."""


def make_held_out(kind: str, number: int) -> Landscape:
    """Return one held-out landscape. Making all of them takes several seconds."""
    return KINDS[kind](f"{kind}-{number}", number)


def all_held_out() -> list[Landscape]:
    """Return all held-out landscapes."""
    return [make_held_out(kind, number) for number in range(N_INSTANCES) for kind in KINDS]


def kind_of(name: str) -> str:
    """Return the kind of a held-out landscape, given its name."""
    return name.rpartition("-")[0]
