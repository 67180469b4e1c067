"""Measure how long blocks should be: the time until the standard error of a comparison is 0.5 %.

    python -m benchmarks.variance [--sides 2] [--clients 1] [--launches 3] [--json FILE] [MODEL ...]

Several processes of one config, the default, are measured in rounds, as both sides are in a confirmation (2 sides), or
as candidates are in screening (9). Blocks have different lengths by turns, so that all see the same host. Each stretch
of two seconds gives an estimate of the ratio of each side to the first one, whose true value is 1: the median over its
rounds. How much these estimates differ within a launch says how long it takes until the standard error is 0.5 %.

Calls right after a resume are slower, by a share that depends on the config (`python -m benchmarks.resumed_calls`).
Blocks of one call without a lead-in consist of such calls, so that they are biased where configs differ.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.knobs import DEFAULT
from ortune.measure.block_plan import PAIRED_LEAD_IN_SHARE, Pace, plan_block
from ortune.measure.compute_figures import compute_block_figure, to_cost
from ortune.measure.open import open_comparison, prepare_comparison
from ortune.worker import BlockPlan, Failure
from ortune.workload import Goal, InputOptions, Load

MODELS = ("squeezenet", "ppocrv2_cls", "magika", "minilm_l6_int8")
STRETCH_S = 2.0
TARGET = 0.005


def list_plans(pace: Pace) -> dict[str, BlockPlan]:
    """Return the plans of blocks to compare, by name."""
    plans = {}
    for duration_ms in (150, 100, 50, 25):
        shortest_ns = duration_ms * 1_000_000
        usual = plan_block(pace, shortest_ns, longest_ns=shortest_ns, largest_lead_in_share=PAIRED_LEAD_IN_SHARE)
        plans[f"{duration_ms} ms"] = msgspec.structs.replace(usual, duration_ns=shortest_ns, min_calls=1)
    plans["one call"] = msgspec.structs.replace(plans["50 ms"], duration_ns=0, lead_in_ns=0, min_calls=1)
    return plans


def find_sd(stretches: list[dict[str, Any]], n_sides: int) -> float:
    """Return the standard deviation of the estimates of stretches of one plan, within launches."""
    estimates: dict[int, list[list[float]]] = {}
    for stretch in stretches:
        rounds: dict[int, dict[int, float]] = {}
        for number, position, _, cost, _ in stretch["blocks"]:
            rounds.setdefault(number, {})[position] = cost
        ratios = [statistics.median(costs[side] - costs[0] for costs in rounds.values()) for side in range(1, n_sides)]
        estimates.setdefault(stretch["launch"], []).append(ratios)
    sides = [values for launch in estimates.values() for values in zip(*launch, strict=True)]
    return math.sqrt(statistics.fmean(statistics.variance(values) for values in sides))


def measure(model: str, n_sides: int, clients: int, n_launches: int) -> list[dict[str, Any]]:
    """Measure stretches of blocks of each plan, and return them."""
    goal = Goal(load=Load(clients=clients))
    setup = prepare_comparison(str(build(model)), goal, InputOptions(shapes=shapes_of(model)))
    stretches: list[dict[str, Any]] = []
    with open_comparison(setup) as opened:
        runner, plans = opened.runner, list_plans(opened.calibration.pace)
        for launch in range(n_launches):
            lives = dict(enumerate(runner.executor.launch([DEFAULT] * n_sides, deadline_s=60)))
            for _ in range(3):
                for name in [list(plans)[place] for place in runner.rng.permutation(len(plans))]:
                    blocks: list[tuple[int, int, float, float, bool]] = []
                    start_s = runner.executor.now_s()
                    number = 0
                    while (now_s := runner.executor.now_s()) < start_s + STRETCH_S:
                        for position in map(int, runner.rng.permutation(n_sides)):
                            live = lives[position]
                            assert not isinstance(live, Failure)
                            block = live.measure(plans[name])
                            assert not isinstance(block, Failure)
                            cost = math.log(to_cost("p50", compute_block_figure("p50", block, 0)))
                            blocks.append((number, position, now_s - start_s, cost, block.contended))
                        number += 1
                    stretches.append({"launch": launch, "plan": name, "blocks": blocks})
            for live in lives.values():
                assert not isinstance(live, Failure)
                live.close()
    return stretches


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--sides", nargs="+", type=int, default=[2])
    parser.add_argument("--clients", nargs="+", type=int, default=[1])
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(write_header())
    found = []
    for model in arguments.models:
        for clients in arguments.clients:
            for n_sides in arguments.sides:
                stretches = measure(model, n_sides, clients, arguments.launches)
                found.append({"model": model, "clients": clients, "sides": n_sides, "stretches": stretches})
                for name in dict.fromkeys(stretch["plan"] for stretch in stretches):
                    sd = find_sd([stretch for stretch in stretches if stretch["plan"] == name], n_sides)
                    print(
                        f"{model:16} {clients} clients  {n_sides} sides  {name:9} {100 * sd:5.2f} %  "
                        f"{STRETCH_S * (sd / TARGET) ** 2:6.1f} s",
                        flush=True,
                    )
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_run(), "found": found}))


if __name__ == "__main__":
    main()
