"""Replay searches on hosts with many cores, where any number of threads may be the best.

    python -m benchmarks.cores [--set development] [--cores 24,96] [--shapes cliff] [--replays 20] [--json FILE]
    python -m benchmarks.cores --report FILE
    python -m benchmarks.cores --set development tuning.additive.TAIL=3

Each replay has a landscape of its own. It contains each number of threads from 1 to the number of cores, with all other
settings, while a search begins with the numbers that its space lists. The cost depends on the number of threads through
one of several shapes. Other settings multiply the cost by a factor, and some of them change the best number of threads.

- `overhead`: serial work, divided work, and the overhead that each thread adds.
- `cliff`: the same, but more threads than a certain number cost 15 to 60 % more.
- `boundary`: the same, where this number is the number of cores in some L3 domains or NUMA nodes.
- `bandwidth`: part of the work does not profit from more than a certain number of threads, because memory is too slow.
- `contention`: the universal scalability law.
- `nodes`: each NUMA node that has a thread adds the same time.

The best number of threads is drawn from an eighth of the cores to all of them. Hosts of the test set have other numbers
of cores than those for development, and `contention` and `nodes` are only in the test set.

The report has separate lines for the smooth shapes, whose cost has no steps (`overhead`, `bandwidth` and `contention`),
and for the landscapes whose best number of threads is odd.

- mean regret, p90, largest: how much slower the chosen candidate is than the best of all candidates
- within 1 %, within 2 %: share of the searches whose regret is at most that
- number: largest regret that is left if the chosen number of threads is combined with the best other settings
- reach: largest gap between the best of all and the best candidate that a search could have proposed
- listed: the same for the candidates that a search begins with

Source of the universal scalability law: N. J. Gunther, "Guerrilla Capacity Planning" (2007), chapter 4.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.landscape import Landscape
from benchmarks.parts import Row, add_part_options, reopen_rows, run_part
from benchmarks.regret import replay, summarize
from benchmarks.synthetic import Machine, assemble, list_between, make_host, make_model
from benchmarks.tune import set_constant
from ortune.knobs import SearchSpace, build_space, ids
from ortune.knobs.affinity import Placement
from ortune.knobs.dimension import DEFAULT_LABEL, Choice, Dimension

CALL_NS = 5e6
"""Duration of a call with the default."""

L3_CORES = 8
"""Cores of an L3 domain of all hosts."""

WIDTH = 3
"""Operators of the graph that can run in parallel."""

MOVING = (
    ids.EXECUTION_MODE,
    ids.INTRA_OP_ALLOW_SPINNING,
    ids.INTRA_OP_THREAD_AFFINITIES,
)
MOVE = 0.15
"""Settings that change the best number of threads, and the standard deviation of each change as a log-ratio."""

Numbers = NDArray[np.float64]
Shape = Callable[[Numbers, Numbers, np.random.Generator], Numbers]
"""Returns the costs, given numbers of threads, the best number for each of them, and a source of constants."""


def overhead(n: Numbers, best: Numbers, rng: np.random.Generator) -> Numbers:
    """Return the costs of serial work, of divided work, and of the overhead that each thread adds."""
    return np.asarray(rng.uniform(0, 1) / best.max() + 1 / n + n / best**2)


def cliff(n: Numbers, best: Numbers, rng: np.random.Generator) -> Numbers:
    """Return the same with a step after the best number."""
    rest, weight, step = rng.uniform(0, 1) / best.max(), rng.uniform(0, 0.5), rng.uniform(0.15, 0.6)
    return np.asarray((rest + 1 / n + weight * n / best**2) * np.where(n > np.round(best), 1 + step, 1.0))


def bandwidth(n: Numbers, best: Numbers, rng: np.random.Generator) -> Numbers:
    """Return costs where part of the work does not profit from more threads than the best number."""
    compute, share = rng.uniform(0.1, 0.7), rng.uniform(0.1, 0.9)
    per_thread = (compute + share * (1 - compute)) / best**2
    return np.asarray(compute / n + (1 - compute) / np.minimum(n, best) + per_thread * n)


def contention(n: Numbers, best: Numbers, rng: np.random.Generator) -> Numbers:
    """Return costs by the universal scalability law."""
    serial = rng.uniform(0.0, 0.05)
    return np.asarray((1 + serial * (n - 1) + (1 - serial) / best**2 * n * (n - 1)) / n)


SHAPES: dict[str, Shape] = {
    "overhead": overhead,
    "cliff": cliff,
    "boundary": cliff,
    "bandwidth": bandwidth,
    "contention": contention,
    "nodes": overhead,
}

SMOOTH = ("overhead", "bandwidth", "contention")
"""The shapes whose cost has no steps."""

SETS = {
    "development": ({20: 1, 40: 2, 64: 2, 128: 4}, ("overhead", "cliff", "boundary", "bandwidth")),
    "test": ({24: 1, 48: 2, 96: 2, 192: 4}, tuple(SHAPES)),
}
"""The sets of landscapes: numbers of cores, each with the number of NUMA nodes, and shapes."""


class AllCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The spaces of a host.

    Attributes:
        listed: What a search begins with.
        space: The same with all numbers of threads.
        n_threads: Number of threads of each candidate.
        choices: By dimension: place of the choice of each candidate, 0 for the default.
        listable: Whether a search could propose each candidate.
    """

    listed: SearchSpace
    space: SearchSpace
    n_threads: Numbers
    choices: dict[str, NDArray[np.int64]]
    listable: NDArray[np.bool_]


@functools.cache
def make_counts(cores: int, nodes: int) -> AllCounts:
    """Return the spaces of a host."""
    host = make_host(Machine(packages=1, nodes=nodes, cores=cores // nodes, threads=1))
    listed = build_space(host, make_model(WIDTH))
    threads = next(
        listed_dimension for listed_dimension in listed.dimensions if listed_dimension.name == ids.INTRA_OP_NUM_THREADS
    )
    missing = [n for n in range(1, cores) if str(n) not in {choice.label for choice in threads.choices}]
    placement = Placement(host)

    def complete(dimension: Dimension) -> Dimension:
        if dimension.name == ids.INTRA_OP_NUM_THREADS:
            more = tuple(Choice(label=str(n), value=n, why="") for n in missing)
            return msgspec.structs.replace(dimension, between=more)
        if dimension.name != ids.INTRA_OP_THREAD_AFFINITIES:
            return dimension
        choices = [
            msgspec.structs.replace(choice, value_by=dict(choice.value_by) | place_all(choice.label))
            for choice in dimension.choices[1:]
        ]
        return msgspec.structs.replace(dimension, choices=(dimension.choices[0], *choices))

    def place_all(policy: str) -> dict[str, str]:
        strings = ((str(n), placement.place(policy, n)) for n in missing)
        return {label: text for label, text in strings if text is not None}

    complete_space = msgspec.structs.replace(listed, dimensions=tuple(map(complete, listed.dimensions)))
    space = list_between(complete_space)
    labels = [candidate.labels for candidate in space.candidates]
    counts = [candidate_labels.get(ids.INTRA_OP_NUM_THREADS, DEFAULT_LABEL) for candidate_labels in labels]
    proposed = {choice.label for choice in (*threads.choices, *threads.between)}
    return AllCounts(
        listed=listed,
        space=space,
        n_threads=np.array([cores if count == DEFAULT_LABEL else int(count) for count in counts], dtype=float),
        choices={
            dimension.name: np.array(
                [
                    {choice.label: place for place, choice in enumerate(dimension.choices)}[
                        candidate_labels.get(dimension.name, DEFAULT_LABEL)
                    ]
                    for candidate_labels in labels
                ]
            )
            for dimension in space.dimensions
            if dimension.name != ids.INTRA_OP_NUM_THREADS
        },
        listable=np.array([count in proposed for count in counts]),
    )


def draw_best(shape: str, cores: int, nodes: int, rng: np.random.Generator) -> int:
    """Return the best number of threads with the default of all other settings."""
    if shape == "boundary":
        part = cores // nodes if nodes > 1 and rng.random() < 0.5 else L3_CORES
        return part * int(rng.integers(1, math.ceil(cores / part)))
    return round(math.exp(rng.uniform(math.log(cores / 8), math.log(cores))))


def make_landscape(shape: str, cores: int, nodes: int, seed: int) -> Landscape:
    """Return a landscape, whose constants are drawn with its seed."""
    counts = make_counts(cores, nodes)
    rng = np.random.default_rng([seed, cores, *shape.encode()])
    best = np.full(len(counts.n_threads), float(draw_best(shape, cores, nodes, rng)))
    if shape != "boundary":
        for name in MOVING:
            moves = rng.normal(0, MOVE, 1 + counts.choices[name].max())
            best *= np.exp(np.where(counts.choices[name] > 0, moves[counts.choices[name]], 0.0))
        best = np.clip(best, 1, cores)
    costs = SHAPES[shape](counts.n_threads, best, rng)
    if shape == "nodes":
        costs += rng.uniform(0.05, 0.3) / best.max() * np.ceil(counts.n_threads * nodes / cores)
    log_costs = np.log(costs)
    for places in counts.choices.values():
        n = 1 + int(places.max())
        # As in the held-out landscapes: most choices matter little.
        effects = np.where(rng.random(n) < 0.2, rng.normal(0, 0.15, n), rng.normal(0.01, 0.01, n))
        log_costs += np.where(places > 0, effects[places], 0.0)
    log_costs += math.log(CALL_NS) - log_costs[0]
    found = assemble(f"{shape}_{cores}-{seed}", counts.space, log_costs, rng)
    return msgspec.structs.replace(found, unrefined=counts.listed)


def find_regret(landscape: Landscape, chosen: NDArray[np.int64]) -> float:
    """Return by how much the best of some candidates is slower than the best of all, in percent."""
    return 100 * math.expm1(float(landscape.log_costs[chosen].min() - landscape.log_costs.min()))


def replay_one(job: tuple[str, int, int, int, float]) -> Row:
    """Run one search."""
    shape, cores, nodes, seed, budget_s = job
    landscape = make_landscape(shape, cores, nodes, seed)
    counts = make_counts(cores, nodes)
    with threadpool_limits(limits=1):  # each CPU already has a process
        row = replay(landscape, "ours", budget_s, seed)
    return row | {
        "shape": shape,
        "cores": cores,
        "best_threads": int(counts.n_threads[landscape.best]),
        "threads": int(counts.n_threads[row["chosen"]]),
        "smooth": shape in SMOOTH,
        "odd": bool(counts.n_threads[landscape.best] % 2),
        "number": find_regret(landscape, np.flatnonzero(counts.n_threads == counts.n_threads[row["chosen"]])),
        "reach": find_regret(landscape, np.flatnonzero(counts.listable)),
        "listed": find_regret(landscape, np.arange(len(counts.listed.candidates))),
    }


def show(row: Row) -> str:
    """Return a line about a replay."""
    return (
        f"{row['landscape']:18} best {row['best_threads']:3} threads, chosen {row['threads']:3}  "
        f"regret {row['regret']:6.2f} %  number {row['number']:5.2f} %  reach {row['reach']:5.2f} %  "
        f"tried {row['n_tried']:3}"
    )


def group(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the rows of each number of cores, of each shape, and all rows, each with the smooth and the odd ones."""
    wholes = [
        *((f"{n} cores", [row for row in rows if row["cores"] == n]) for n in sorted({row["cores"] for row in rows})),
        ("all", rows),
    ]
    for title, some in wholes:
        smooth = [row for row in some if row["smooth"]]
        yield title, some
        yield "  smooth", smooth
        yield "  odd", [row for row in some if row["odd"]]
        yield "  smooth, odd", [row for row in smooth if row["odd"]]
    for shape in dict.fromkeys(row["shape"] for row in rows):
        some = [row for row in rows if row["shape"] == shape]
        yield shape, some
        yield "  odd", [row for row in some if row["odd"]]


def report(rows: Sequence[Row]) -> None:
    """Print a line for each group of rows."""
    print(
        "                n  mean regret     p90  largest  within 1 %  within 2 %  coverage  spent  tried  number  "
        " reach  listed"
    )
    for title, some in group(rows):
        if not some:
            continue
        figures = summarize(list(some))
        number, reach, listed = (max(row[name] for row in some) for name in ("number", "reach", "listed"))
        print(
            f"{title:13} {figures['n']:3}  {figures['mean']:9.2f} %  {figures['p90']:5.2f} %  "
            f"{max(row['regret'] for row in some):5.2f} %  {figures['within_1']:10.1%}  {figures['within_2']:10.1%}  "
            f"{figures['coverage'] or 0:8.0%}  {figures['spent']:3.0f} s  {figures['tried']:5.0f}  "
            f"{number:4.2f} %  {reach:5.2f} %  {listed:4.1f} %"
        )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("constants", nargs="*", metavar="NAME=VALUE", help="constants of ortune, for development")
    parser.add_argument("--set", choices=list(SETS), default="test")
    parser.add_argument("--cores", default="", help="numbers of cores (default: all of the set)")
    parser.add_argument("--shapes", default="", help="shapes (default: all of the set)")
    parser.add_argument("--replays", type=int, default=20, help="replays of each shape and number of cores")
    parser.add_argument("--budget", type=float, default=60.0, help="budget in seconds")
    add_part_options(parser)
    arguments = parser.parse_args()
    if arguments.report:
        rows = {(row["landscape"], row["budget_s"]): row for row in reopen_rows(arguments.report)}
        report(list(rows.values()))
        return
    if arguments.constants and arguments.set == "test":
        parser.error("constants are chosen on the development set")
    for text in arguments.constants:
        set_constant(text)
    hosts, shapes = SETS[arguments.set]
    cores = [int(text) for text in arguments.cores.split(",")] if arguments.cores else list(hosts)
    shapes = tuple(arguments.shapes.split(",")) if arguments.shapes else shapes
    seeds = range(arguments.first, arguments.first + arguments.replays)
    for n in cores:
        make_counts(n, hosts[n])
    jobs = [(shape, n, hosts[n], seed, arguments.budget) for n, shape, seed in itertools.product(cores, shapes, seeds)]
    # Forked processes have the constants and the spaces.
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        report(run_part(pool.map(replay_one, jobs), arguments.json, show))


if __name__ == "__main__":
    main()
