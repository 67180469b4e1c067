"""Compare the choice of `ortune plan` with an exhaustive measurement of the usual deployments.

    python -m benchmarks.plan [--first N] [--count N] [--budget 120] [--launches 8] [--json FILE] [MODEL ...]

For each model there are two targets: the highest throughput, and a p99 of at most three times the median of a call with
ONNX Runtime's default. First a plan is made. Then its choice and all usual deployments are measured in interleaved
blocks, in launches of their own, so that the luck of the plan's measurements does not count. For the target, the
capacity of each is that of the simulated queue with the durations of calls that this second measurement found.

A choice is right if it is within 3 % of the best of all of them. Run this on an idle host. With --first and --count, it
runs in parts, and --json adds to the results that the file already has.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.host import Host, place_processes
from ortune.knobs import Config
from ortune.measure.compute_figures import compute_percentile
from ortune.measure.evaluate import compute_speedup
from ortune.measure.open import open_comparison
from ortune.options import make_request
from ortune.planning.capacity import predict_capacity
from ortune.planning.deployment import Deployment
from ortune.planning.measuring import DeploymentRunner, thin
from ortune.planning.prepare import prepare_plan
from ortune.planning.run import plan_deployment
from ortune.requests import PlanRequest
from ortune.workload import parse_limit

MODELS = ("squeezenet", "minilm_l6_int8", "ppocrv4_rec", "shufflenet", "silero_vad", "resnet50")
TARGETS = ("throughput", "p99")
LIMIT_FACTOR = 3.0
NEAR = 0.03
NOT_WORSE = 0.99

Row = dict[str, Any]


def list_usual(host: Host) -> list[Deployment]:
    """Return the deployments that are measured exhaustively, without the default."""
    n_cores = max(len(host.usable_cores), 2)
    one = Config(session_options={"intra_op_num_threads": 1})
    quiet = Config(session_config={"session.intra_op.allow_spinning": "0"})
    found = [
        Deployment(config=one),
        Deployment(config=one, clients=2),
        Deployment(clients=2),
        Deployment(processes=2),
        Deployment(processes=2, config=one),
        Deployment(processes=2, config=quiet),
        Deployment(processes=2, config=one, placement=place_processes(host, 2, threads=1)),
        Deployment(processes=n_cores, config=one),
        Deployment(config=one, clients=n_cores),
    ]
    if (half := n_cores // 2) > 1:
        found.append(Deployment(processes=2, config=Config(session_options={"intra_op_num_threads": half})))
    return list({deployment.key: deployment for deployment in found}.values())


def compare(name: str, target: str, arguments: argparse.Namespace) -> Row:
    """Make a plan for a model, measure everything, and return the figures."""
    options: dict[str, Any] = {"model": str(build(name)), "shape": shapes_of(name), "seed": arguments.seed}
    options["budget"] = arguments.budget
    if target == "p99":
        options["slo"] = f"p99<{LIMIT_FACTOR * find_median_ns(options) / 1e6:.3f}ms"
    plan = plan_deployment(prepare_plan(make_request(PlanRequest, options)))
    prepared = prepare_plan(make_request(PlanRequest, {**options, "seed": arguments.seed + 1}))
    usual = list_usual(prepared.setup.host)
    chosen = plan.choice.deployment
    others = [deployment for deployment in usual if deployment.key != chosen.key]
    deployments = [*others, *([chosen] if chosen != prepared.space.default else [])]
    everything = [prepared.space.default, *deployments]
    with open_comparison(prepared.setup) as opened:
        runner = DeploymentRunner(opened, prepared.space.default)
        planned = runner.plan_confirmation(deployments, 1.0)
        size = msgspec.structs.replace(planned, launches=arguments.launches, rounds=arguments.rounds)
        run = runner.confirm(deployments, size, lambda done, total: None).in_one_regime()
    values: dict[str, Row] = {}
    for position, deployment in enumerate(everything):
        if position in run.failures:
            continue
        ratio = compute_speedup(run, position, "throughput")
        assert ratio
        value = {"title": deployment.title, "ratio": ratio.estimate, "low": ratio.low, "high": ratio.high}
        score = ratio.estimate
        if target == "p99":
            samples = thin(np.concatenate([block.samples_ns for block in run.blocks(position)]))
            score = predict_capacity(deployment, samples, parse_limit(options["slo"]), seed=0).estimate
        values[deployment.key] = {**value, "score": score}
    best = max(values.values(), key=lambda value: value["score"])
    own, default = values[chosen.key], values[prepared.space.default.key]
    return {
        "model": name,
        "target": options.get("slo", "throughput"),
        "chosen": own,
        "best": best,
        "default": default,
        "all": list(values.values()),
        "right": own["score"] >= (1 - NEAR) * best["score"],
        "worse": own["score"] < NOT_WORSE * default["score"],
        "contended": run.contended,
        "spent_s": plan.spent_s,
    }


def find_median_ns(options: dict[str, Any]) -> float:
    """Return the median duration of a call with ONNX Runtime's default."""
    prepared = prepare_plan(make_request(PlanRequest, options))
    with open_comparison(prepared.setup) as opened:
        runner = DeploymentRunner(opened, prepared.space.default)
        run = runner.confirm([], runner.plan_confirmation([], 10.0), lambda done, total: None)
        return compute_percentile(run.blocks(0), 50)


def report(rows: Sequence[Row]) -> None:
    """Print a line for each model and target, and how many choices are right."""
    for row in rows:
        own, best, default = row["chosen"], row["best"], row["default"]
        share = own["score"] / best["score"] if best["score"] else math.nan
        text = f"{row['model']:16} {row['target']:16} {share:7.1%} of the best"
        if default["score"]:
            text += f", {own['score'] / default['score']:.2f}x of the default"
            text += ", contended" if row["contended"] else ""
        else:
            text += "; the default never keeps the target"
        print(text)
        print(f"    chosen {own['title']}; best {best['title']}", flush=True)
    right, worse = sum(row["right"] for row in rows), sum(row["worse"] for row in rows)
    print(f"{right} of {len(rows)} within {NEAR:.0%} of the best; {worse} worse than the default")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--first", type=int, default=0, help="first of the pairs of model and target")
    parser.add_argument("--count", type=int, help="how many of them; all by default")
    parser.add_argument("--budget", type=float, default=120.0, help="budget of a plan in seconds")
    parser.add_argument("--launches", type=int, default=8, help="launches of the exhaustive measurement")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of a launch, an even number")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--json", type=Path, help="file with the results, to which new ones are added")
    arguments = parser.parse_args()
    pairs = [(name, target) for name in arguments.models for target in TARGETS][arguments.first :]
    print(write_header())
    known: list[Row] = []
    if arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())["rows"]
    for name, target in pairs[: arguments.count]:
        row = {**describe_run(), **compare(name, target, arguments)}
        report([row])
        known.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps({**describe_run(*known), "rows": known}, indent=1) + "\n")
    print("\nall results:")
    report(known)


if __name__ == "__main__":
    main()
