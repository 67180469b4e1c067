"""The default against itself, as if it were a candidate: how often is a difference claimed, how wide is the interval?

    python -m benchmarks.aa [--duels 10] [--budget 60] [--json FILE] [MODEL ...]

Each duel is the one that a search of that budget ends with. A right tool claims a difference in at most 1 of 40.
Run it on an idle host, after `python -m models.build` for the models.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

from benchmarks.host import describe_host, note_noise
from benchmarks.inputs import inputs_of
from models.build import build
from ortune.compare.block_runner import BlockRunner
from ortune.compare.calibrate import calibrate
from ortune.host import read_host
from ortune.knobs import DEFAULT, Candidate, build_space
from ortune.model import read_model
from ortune.tuning.budget import make_plan
from ortune.tuning.confirmation import judge_interval, run_confirmation
from ortune.tuning.outcome import Budget
from ortune.tuning.results import Entry
from ortune.tuning.state import Context
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.workload import Goal, Tolerance, make_feed

MODELS = ("tiny_regressor", "squeezenet", "ppocrv2_cls", "minilm_l6_int8")


def duel_once(name: str, budget_s: float, seed: int) -> dict[str, object]:
    """Run one duel of the default against itself, and return what it would claim."""
    host, model = read_host(), read_model(build(name))
    feed = make_feed(model, inputs_of(name))
    with ProcessExecutor(model, feed, Tolerance(), usable=host.limits.usable) as executor:
        first = launch_reference(executor, model, feed)
        meter = BlockRunner(executor, np.random.default_rng(seed))
        goal = Goal()
        start = calibrate(meter, first, goal, n_cases=1, quota=False)
        plan = make_plan(
            goal=goal,
            pace=start.pace,
            left_s=budget_s,
            launch_s=start.launch_s,
            peak_bytes=start.peak_bytes,
            free_bytes=host.limits.memory_bytes,
        )
        context = Context(
            meter=meter,
            space=build_space(host, model),
            goal=goal,
            plan=plan,
            budget=Budget(seconds=budget_s),
            end_s=executor.now_s() + plan.confirmation_s,
            observe=lambda progress: None,
        )
        result = run_confirmation(context, Entry(Candidate(config=DEFAULT), 1, goal), seed=seed)
        noise = meter.noise(contended=result.contended, drift=None)
    speedup = result.speedup
    assert speedup is not None
    return {
        "model": name,
        "estimate": speedup.estimate,
        "low": speedup.low,
        "high": speedup.high,
        "pairs": speedup.pairs,
        "restarts": speedup.restarts,
        "claimed": not speedup.low <= 1 <= speedup.high,
        "verdict": judge_interval(speedup)[0],
        "regime": noise.regime,
        "contended": noise.contended,
        "blocks": noise.blocks,
    }


def main() -> None:
    """Run the duels, models in turn, so that a busy spell of the host does not hit one model alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--duels", type=int, default=10, help="duels for each model")
    parser.add_argument("--budget", type=float, default=60.0, help="budget of the search that the duel would end, in s")
    parser.add_argument("--json", type=Path, help="where to write all results")
    arguments = parser.parse_args()
    print(describe_host())
    rows = []
    for number in range(arguments.duels):
        for name in arguments.models:
            row = duel_once(name, arguments.budget, seed=number)
            rows.append(row)
            print(
                f"{number:3} {name:16} {row['estimate']:.4f} [{row['low']:.4f}, {row['high']:.4f}] "
                f"{row['pairs']} pairs {row['regime']:9} {row['verdict']}{'  CLAIMED' if row['claimed'] else ''}",
                flush=True,
            )
    print()
    print(f"{'model':16} duels  claimed  median width  largest error")
    for name in (*arguments.models, "all"):
        some = [row for row in rows if name in ("all", row["model"])]
        widths = [100 * (float(str(row["high"])) - float(str(row["low"]))) for row in some]
        errors = [100 * abs(math.log(float(str(row["estimate"])))) for row in some]
        claimed = sum(bool(row["claimed"]) for row in some)
        print(f"{name:16} {len(some):5}  {claimed:7}  {np.median(widths):9.2f} pp  {max(errors):10.2f} %")
    print(note_noise(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"host": describe_host(), "duels": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
