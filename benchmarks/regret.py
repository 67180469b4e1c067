"""Measure how close search methods get to the best candidate, by replay on landscapes with known costs.

    python -m benchmarks.regret [--replays 6] [--budgets 15,60] [--methods 'ours;tpe-3;...']
                                [--landscapes NAME,...] [--unsteady] [--picks FILE]

The landscapes are the recorded ones in benchmarks/landscapes, the synthetic ones of benchmarks/synthetic.py, and the
held-out ones of benchmarks/held_out.py. They are split into development and test sets, by model and by generator:
constants of the search are chosen on development landscapes, and the published tables are those of the test sets. With
the same seed, every method runs on the same simulated host. A method knows only the search space, and each launch and
block takes simulated time. Its recommendation is compared with the best candidate of the landscape:

- regret: how much slower it is than the best, in percent;
- claimed minus true: the gain that the method reports minus the true gain, in percentage points;
- coverage: share of the confidence intervals that contain the true value, if the method reports intervals;
- missed: share of the searches that call the default best although more than 5 % can be gained;
- set: mean number of settings in the answer;
- padded: share of the answers, other than the default, with a setting that contributes less than 0.5 %;
- harm: share of the settings without which the answer is better by at least 0.5 %.

`ours` is `ortune search` with all of its stages. The others are common strategies: TPE and random search with one,
three or ten blocks per trial, successive halving with twice the blocks in each step, a sweep over all candidates, and a
portfolio of twelve configs that did well elsewhere (benchmarks/portfolio.py).
They recommend the candidate that measured best, and claim the gain that they measured.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import optuna
from threadpoolctl import threadpool_limits

from benchmarks.held_out import all_held_out, kind_of
from benchmarks.host import write_header
from benchmarks.landscape import OUTLYING, Landscape, load_landscape, recorded_paths
from benchmarks.portfolio import run_portfolio
from benchmarks.replay import LAUNCH_DEADLINE_S, ReplayExecutor, open_replay
from benchmarks.synthetic import all_landscapes
from benchmarks.tpe import ChoiceTpe
from benchmarks.varied import all_varied
from ortune.measure.block_plan import Pace, plan_block
from ortune.measure.compute_figures import compute_block_figure, to_cost
from ortune.requests import StrategyName
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.screening import STALE_ASKS
from ortune.worker import Failure

Row = dict[str, Any]


USELESS = 0.005
"""A setting is useless if it contributes less than this, as a log-ratio, and harmful if the answer is better by as much
without it."""

MISSED_GAIN = math.log(1.05)
"""Gain that a search must not miss when it calls the default best."""

TEST_MODELS = ("basic_pitch", "magika", "minilm_l6_int8", "ppocrv2_cls", "silero_vad", "tiny_regressor")
"""Models whose recorded landscapes are for testing; the others are for development."""

UNSTEADY = ((0.062, 0.15), (0.07, 2.0))
"""How the speed of a shared virtual machine varies; see `Landscape.speeds`. It reproduces by how much blocks of 50 ms
differ on an idle guest: by 6 to 7 % if they are 0.1 s apart, 9 % at 0.2 to 0.4 s, 10 % at 0.4 to 0.8 s, and 12 to 14 %
at seconds."""

MOST_LUCK = 0.02
"""Standard deviation of launches up to which a recording shows what the best candidate is to within 2 %."""

RECORDED_TEST, HELD_OUT = "RECORDED, TEST", "HELD OUT"
RECORDED_DEVELOPMENT, SYNTHETIC_DEVELOPMENT = "RECORDED, DEVELOPMENT", "SYNTHETIC, DEVELOPMENT"
VARIED_DEVELOPMENT = "VARIED, DEVELOPMENT"
"""The sets of landscapes."""


def is_for_testing(path: Path) -> bool:
    """Return whether a recording is that of a model for testing. Its name begins with that of the model."""
    return any(path.stem == model or path.stem.startswith(f"{model}_") for model in TEST_MODELS)


def load_recorded(*, for_testing: bool, outlying: float = OUTLYING) -> list[Landscape]:
    """Return the recorded landscapes that are for testing, or those that are not, without reading the others.

    Those whose launches differ too much are left out: their best candidate is not known well enough. So are those with
    a rate of requests, which cannot be replayed.
    """
    paths = [path for path in recorded_paths() if is_for_testing(path) == for_testing]
    found = [load_landscape(path, outlying=outlying) for path in paths]
    return [landscape for landscape in found if landscape.usual_luck <= MOST_LUCK and not landscape.has_queue]


DEVELOPMENT_SETS: dict[str, Callable[[], list[Landscape]]] = {
    RECORDED_DEVELOPMENT: lambda: load_recorded(for_testing=False),
    SYNTHETIC_DEVELOPMENT: all_landscapes,
    VARIED_DEVELOPMENT: all_varied,
}
"""Functions that return the landscapes for development, by set."""


@cache
def development_set(title: str) -> list[Landscape]:
    """Return the landscapes of a set for development, without making the others, which takes long."""
    return DEVELOPMENT_SETS[title]()


@cache
def landscape_sets() -> dict[str, list[Landscape]]:
    """Return all landscapes by set."""
    return {
        RECORDED_TEST: load_recorded(for_testing=True),
        HELD_OUT: all_held_out(),
        **{title: development_set(title) for title in DEVELOPMENT_SETS},
    }


@cache
def landscapes() -> dict[str, Landscape]:
    """Return all landscapes by name."""
    return {landscape.name: landscape for found in landscape_sets().values() for landscape in found}


@cache
def set_of(name: str) -> str:
    """Return the set that a landscape belongs to."""
    return next(
        title for title, found in landscape_sets().items() if any(landscape.name == name for landscape in found)
    )


class Tuner:
    """A common tuner: it measures one candidate after another, and trusts these measurements."""

    def __init__(self, landscape: Landscape, budget_s: float, seed: int) -> None:
        self.landscape = landscape
        self.executor = ReplayExecutor(landscape, seed=seed)
        self.budget_s = budget_s
        self.rng = np.random.default_rng(seed)
        self.found: dict[int, float] = {}
        goal = landscape.goal
        cost_of_default = math.exp(landscape.log_costs[0])
        # The cost of throughput is in seconds per call; all other costs in a replay are in ns.
        gap_ns = 1e9 * cost_of_default if goal.objective == "throughput" else cost_of_default / goal.load.clients
        self.plan = plan_block(
            Pace(load=goal.load, gap_ns=gap_ns, call_ns=gap_ns * goal.load.clients, quota=landscape.quota)
        )

    def is_over(self) -> bool:
        """Return whether the budget is spent."""
        return self.executor.now_s() >= self.budget_s

    def measure(self, number: int, n_blocks: int) -> float:
        """Launch a candidate, measure it, and return the median of its log-costs; infinity if it fails."""
        config = self.landscape.space.candidates[number].config
        (live,) = self.executor.launch([config], deadline_s=LAUNCH_DEADLINE_S)
        if isinstance(live, Failure):
            self.found[number] = math.inf
            return math.inf
        blocks = [live.measure(self.plan) for _ in range(n_blocks)]
        name = self.landscape.goal.objective
        values = [
            math.log(to_cost(name, compute_block_figure(name, block, 0)))
            for block in blocks
            if not isinstance(block, Failure)
        ]
        self.found[number] = statistics.median(values)
        return self.found[number]

    def answer(self, found: dict[int, float] | None = None) -> tuple[int, float]:
        """Return the candidate that measured best, and its measured gain."""
        found = found or self.found
        best = min(found, key=found.__getitem__)
        return best, math.exp(self.found[0] - found[best])


def tpe(tuner: Tuner, seed: int, n_blocks: int) -> tuple[int, float]:
    """Run Optuna's default sampler as in its tutorial: one parameter per dimension, one result per trial.

    A candidate that was measured is not measured again; the sampler gets its result again. If the sampler has no new
    proposal, a random candidate is measured. The time of the sampler itself is not counted. It is minutes for a
    thousand trials of eight choices.
    """
    space = tuner.landscape.space
    sampler = ChoiceTpe([len(dimension.choices) for dimension in space.dimensions], seed)
    labels_of = [[choice.label for choice in dimension.choices] for dimension in space.dimensions]
    names = [dimension.name for dimension in space.dimensions]
    # The sampler knows the choices of the space, and not the values between them.
    untried = {space.numbers[candidate.config.key] for candidate in tuner.landscape.first_space.candidates[1:]}
    known: dict[tuple[int, ...], int] = {}
    tuner.measure(0, n_blocks)
    n_stale = 0
    while untried and not tuner.is_over():
        if n_stale < STALE_ASKS:
            choices = tuple(sampler.ask())
            if choices not in known:
                labels = {name: of[choice] for name, of, choice in zip(names, labels_of, choices, strict=True)}
                known[choices] = space.numbers[space.select(labels).config.key]
            number = known[choices]
        else:
            number = int(tuner.rng.choice(sorted(untried)))
            labels = space.labels_of(space.candidates[number])
            choices = tuple(of.index(labels[name]) for name, of in zip(names, labels_of, strict=True))
        n_stale = n_stale + 1 if number in tuner.found else 0
        value = tuner.found[number] if number in tuner.found else tuner.measure(number, n_blocks)
        untried.discard(number)
        if math.isfinite(value):
            sampler.tell(choices, value)
    return tuner.answer()


def random_search(tuner: Tuner, seed: int, n_blocks: int) -> tuple[int, float]:
    """Measure candidates in random order, none of them twice."""
    tuner.measure(0, n_blocks)
    for number in tuner.rng.permutation(np.arange(1, len(tuner.landscape.space.candidates))):
        if tuner.is_over():
            break
        tuner.measure(int(number), n_blocks)
    return tuner.answer()


def exhaustive(tuner: Tuner, seed: int) -> tuple[int, float]:
    """Measure all candidates in order, with as many blocks each as time allows, until the budget is spent."""
    n = len(tuner.landscape.space.candidates)
    each_s = tuner.budget_s / n - tuner.landscape.start_s - tuner.landscape.launch_s
    n_blocks = min(max(int(each_s / (1.1e-9 * tuner.plan.duration_ns)), 1), 50)
    for number in range(n):
        if number and tuner.is_over():
            break
        tuner.measure(number, n_blocks)
    return tuner.answer()


def successive_halving(tuner: Tuner, seed: int) -> tuple[int, float]:
    """Measure as many candidates as time allows, then repeatedly the better half of them with twice the blocks.

    Source: K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification" (AISTATS 2016).
    """
    n = len(tuner.landscape.space.candidates)
    launch_s = tuner.landscape.start_s + tuner.landscape.launch_s
    block_s = 1.1e-9 * tuner.plan.duration_ns
    first = 2
    while first < n and math.log2(2 * first) * 2 * first * (launch_s / 2 + block_s) < tuner.budget_s:
        first *= 2
    numbers = [0, *(int(k) for k in tuner.rng.permutation(np.arange(1, n))[: min(first, n) - 1])]
    n_blocks = 1
    while True:
        found = {number: tuner.measure(number, n_blocks) for number in numbers if not tuner.is_over()}
        if not found or len(numbers) <= 2 or tuner.is_over():
            break
        numbers = sorted(found, key=found.__getitem__)[: max(len(numbers) // 2, 2)]
        n_blocks *= 2
    return tuner.answer(
        {number: tuner.found[number] for number in numbers if number in tuner.found} | {0: tuner.found[0]}
    )


OTHERS: dict[str, Callable[[Tuner, int], tuple[int, float]]] = {
    **{f"tpe-{n}": lambda tuner, seed, n=n: tpe(tuner, seed, n) for n in (1, 3, 10)},  # type: ignore[misc]
    **{f"random-{n}": lambda tuner, seed, n=n: random_search(tuner, seed, n) for n in (1, 3)},  # type: ignore[misc]
    "halving": successive_halving,
    "exhaustive": exhaustive,
    "portfolio": run_portfolio,
}

OURS: dict[str, StrategyName] = {
    "ours": "adaptive",
    "ours, tpe": "tpe",
    "ours, random": "random",
    "ours, exhaustive": "exhaustive",
}
"""`ortune search`, and its other strategies for screening, with the same racing and confirmation."""


def replay(landscape: Landscape, method: str, budget_s: float, seed: int) -> Row:
    """Run one search and return its result."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    start_s = time.perf_counter()
    row: Row = {"landscape": landscape.name, "method": method, "budget_s": budget_s, "seed": seed}
    if method in OURS:
        opened = open_replay(landscape, seed=seed)
        settings = SearchSettings(budget_s=budget_s, strategy=OURS[method])
        outcome = run_search(landscape.first_space, opened, settings)
        chosen = landscape.space.numbers[outcome.config.key]
        claimed = 1.0
        verdict, speedup, winner = outcome.evidence.verdict, outcome.evidence.speedup, outcome.evidence.winner
        if speedup and winner:
            rival = landscape.space.numbers[winner.config.key]
            row["covered"] = speedup.low <= math.exp(landscape.log_speedup(rival)) <= speedup.high
            claimed = speedup.estimate if chosen else 1.0
        row |= {"verdict": verdict, "spent_s": opened.runner.now_s(), "n_tried": len(outcome.trials)}
        if speedup:
            row["speedup"] = [speedup.low, speedup.estimate, speedup.high]
            row["n_launches"] = speedup.n_launches
    else:
        tuner = Tuner(landscape, budget_s, seed)
        chosen, claimed = OTHERS[method](tuner, seed)
        row |= {"spent_s": tuner.executor.now_s(), "n_tried": len(tuner.found)}
    true = math.exp(landscape.log_speedup(chosen))
    contributions = value_settings(landscape, chosen)
    return row | {
        "n_settings": len(contributions),
        "n_useless": sum(value < USELESS for value in contributions),
        "n_harmful": sum(value < -USELESS for value in contributions),
        "regret": 100 * (math.exp(landscape.log_speedup(landscape.best)) / true - 1),
        "excess": 100 * (claimed - true),
        "worse": true < 1 - 1e-9,
        "missed": row.get("verdict") == "default_is_best" and landscape.log_speedup(landscape.best) > MISSED_GAIN,
        "chosen": chosen,
        "wall_s": time.perf_counter() - start_s,
    }


def value_settings(landscape: Landscape, number: int) -> list[float]:
    """Return what each setting of a candidate truly contributes beside its others, as log-ratios, above 0 if it helps.

    Settings without which a candidate fails, or is not in the landscape, are left out.
    """
    space, own = landscape.space, landscape.log_costs[number]
    reduced = space.leave_one_out(space.candidates[number]).values()
    numbers = [space.numbers[candidate.config.key] for candidate in reduced if candidate.config.key in space.numbers]
    values = [float(landscape.log_costs[place] - own) for place in numbers]
    return [value for value in values if math.isfinite(value)]


def replay_many(job: tuple[str, str, float, range, bool]) -> list[Row]:
    """Run the searches of several seeds, on hosts whose speed varies if the job says so."""
    name, method, budget_s, seeds, is_unsteady = job
    landscape = landscapes()[name]
    if is_unsteady:
        landscape = msgspec.structs.replace(landscape, speeds=UNSTEADY)
    with threadpool_limits(limits=1):  # each CPU already has a process
        return [replay(landscape, method, budget_s, seed) for seed in seeds]


def summarize(rows: list[Row]) -> Row:
    """Return a summary of some searches."""
    regrets = np.array([row["regret"] for row in rows])
    covered = [row["covered"] for row in rows if "covered" in row]
    answers = [row for row in rows if row["n_settings"]]
    return {
        "n": len(rows),
        "mean": float(regrets.mean()),
        "p90": float(np.quantile(regrets, 0.9)),
        "within_1": float((regrets <= 1).mean()),
        "within_2": float((regrets <= 2).mean()),
        "excess": float(np.mean([row["excess"] for row in rows])),
        "coverage": float(np.mean(covered)) if covered else None,
        "worse": float(np.mean([row["worse"] for row in rows])),
        "missed": float(np.mean([row["missed"] for row in rows])),
        "settings": float(np.mean([row["n_settings"] for row in rows])),
        "padded": float(np.mean([row["n_useless"] > 0 for row in answers])) if answers else 0.0,
        "harmful": sum(row["n_harmful"] for row in rows) / max(sum(row["n_settings"] for row in rows), 1),
        "spent": float(np.mean([row["spent_s"] for row in rows])),
        "tried": float(np.mean([row["n_tried"] for row in rows])),
        "wall_ms": 1000 * float(np.mean([row["wall_s"] for row in rows])),
    }


HEAD = (
    f"{'landscape':24} {'method':17} {'budget':>6} {'n':>5} {'mean':>6} {'p90':>6} {'<1 %':>5} {'<2 %':>5} "
    f"{'over':>6} {'cover':>5} {'worse':>5} {'missed':>6} {'set':>4} {'padded':>6} {'harm':>5} {'spent':>5} "
    f"{'tried':>5} {'ms':>6}"
)


def line(landscape: str, method: str, budget_s: float, figures: Row) -> str:
    """Return a line of the table."""
    coverage = "" if figures["coverage"] is None else f"{figures['coverage']:.2f}"
    return (
        f"{landscape:24} {method:17} {budget_s:6.0f} {figures['n']:5} {figures['mean']:6.2f} {figures['p90']:6.2f} "
        f"{figures['within_1']:5.2f} {figures['within_2']:5.2f} {figures['excess']:+6.1f} {coverage:>5} "
        f"{figures['worse']:5.3f} {figures['missed']:6.3f} {figures['settings']:4.2f} {figures['padded']:6.2f} "
        f"{figures['harmful']:5.2f} {figures['spent']:5.0f} "
        f"{figures['tried']:5.0f} {figures['wall_ms']:6.0f}"
    )


def groups(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each landscape, those of each kind of held-out landscapes, then those of each set."""
    names = list(dict.fromkeys(row["landscape"] for row in rows))
    sets = {name: set_of(name) for name in names}
    kinds = {name: kind_of(name) if sets[name] == HELD_OUT else name for name in names}
    for of in (kinds, sets):
        for name in dict.fromkeys(of.values()):
            yield name, [row for row in rows if of[row["landscape"]] == name]


def summarize_all(rows: list[Row]) -> list[Row]:
    """Return the figures of each landscape, budget and method, and of all recorded and all synthetic landscapes."""
    summaries = []
    for name, members in groups(rows):
        pairs = {(row["budget_s"], row["method"]) for row in members}
        for budget_s, method in sorted(pairs, key=lambda pair: (pair[0], order(pair[1]))):
            chosen = [row for row in members if row["method"] == method and row["budget_s"] == budget_s]
            summaries.append({"landscape": name, "method": method, "budget_s": budget_s, **summarize(chosen)})
    return summaries


def show(summaries: list[Row]) -> None:
    """Print all summaries."""
    print(HEAD)
    for row in summaries:
        print(line(row["landscape"], row["method"], row["budget_s"], row))


def order(method: str) -> int:
    """Return the position of a method in tables."""
    return [*OURS, *OTHERS].index(method)


def main() -> None:
    """Run the replays that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replays", type=int, default=6)
    parser.add_argument("--budgets", default="15,60")
    parser.add_argument(
        "--methods",
        default="ours;tpe-3;random-3;portfolio",
        help=f"methods, separated by semicolons, of {', '.join([*OURS, *OTHERS])}",
    )
    parser.add_argument("--landscapes", default="test", help="names, or 'test', 'development', 'recorded' or 'all'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--unsteady", action="store_true", help="replay on hosts whose speed varies within tenths of a second"
    )
    parser.add_argument("--picks", type=Path, help="where to write the choice of each search with its interval")
    arguments = parser.parse_args()
    rows = replay_all(arguments)
    if arguments.picks:
        write_picks(rows, arguments.picks)
    print(write_header())
    show(summarize_all(rows))


def write_picks(rows: list[Row], path: Path) -> None:
    """Write a line of JSON for each search: its choice and claim, without times that depend on this host."""
    names = ("landscape", "method", "budget_s", "seed", "verdict", "chosen", "speedup", "spent_s", "n_tried")
    lines = [json.dumps({name: row.get(name) for name in names}) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def replay_all(arguments: argparse.Namespace) -> list[Row]:
    """Run all searches that the command line asks for."""
    names = {
        "all": list(landscapes()),
        "recorded": [name for name in landscapes() if set_of(name) in {RECORDED_TEST, RECORDED_DEVELOPMENT}],
        "test": [name for name in landscapes() if set_of(name) in {RECORDED_TEST, HELD_OUT}],
        "development": [name for name in landscapes() if set_of(name) not in {RECORDED_TEST, HELD_OUT}],
    }.get(arguments.landscapes, arguments.landscapes.split(","))
    budgets = [float(text) for text in arguments.budgets.split(",")]
    step = max(1, min(25, arguments.replays // 4))
    jobs = [
        (
            name,
            method,
            budget_s,
            range(first, min(first + step, arguments.seed + arguments.replays)),
            arguments.unsteady,
        )
        for name, method, budget_s, first in itertools.product(
            names,
            arguments.methods.split(";"),
            budgets,
            range(arguments.seed, arguments.seed + arguments.replays, step),
        )
    ]
    rows: list[Row] = []
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, found in enumerate(pool.map(replay_many, jobs), 1):
            rows += found
            if sys.stderr.isatty():
                print(f"\r{done} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
