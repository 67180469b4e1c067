"""Compare ways to group items of different lengths into calls, with real calls: the stage of `ortune plan --lengths`.

    python -m benchmarks.lengths [--lengths lognormal:29,8-256] [--time 120] [--threads N] [--seed 0] [MODEL ...]

MODEL is `encoder` (a float encoder of the size of MiniLM-L3 with random weights, made here), a model of
models/manifest.toml, or a path. All policies are measured in interleaved rounds, with 64 items. The reference is
batches of 32 in order of arrival, each padded to its longest item. The outputs of each item are compared with those of
the item alone. Ratios depend on the longest items of the sample, which --seed draws. Run this on an idle host.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import msgspec

from benchmarks.host import write_header
from models.build import build
from models.make_transformer import MINILM_L3, make_transformer
from ortune.knobs import Config
from ortune.measure.open import open_comparison
from ortune.options import make_request
from ortune.planning.deployment import Deployment
from ortune.planning.length_policies import plan_lengths
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.prepare import prepare_plan
from ortune.planning.result import Estimate, LengthPlan
from ortune.requests import PlanRequest

MODELS = ("encoder", "minilm_l6_int8")
WANTED = 3.5
"""Items per second of the recommended policy relative to the reference, for lengths as skewed as those of texts."""


def find_model(name: str, folder: Path) -> Path:
    """Return the path of a model."""
    if name == "encoder":
        path = folder / "encoder.onnx"
        make_transformer(path, MINILM_L3, pooled=False)
        return path
    return Path(name) if Path(name).is_file() else build(name)


def compare(path: Path, arguments: argparse.Namespace) -> LengthPlan:
    """Measure all policies with one caller."""
    options = {"model": str(path), "lengths": arguments.lengths, "seed": arguments.seed}
    prepared = prepare_plan(make_request(PlanRequest, options))
    assert prepared.options.lengths
    config = prepared.setup.base
    if arguments.threads:
        config = Config(session_options={"intra_op_num_threads": arguments.threads})
    with open_comparison(msgspec.structs.replace(prepared.setup, base=config)) as opened:
        runner = DeploymentRunner(opened, Deployment(config=config))
        end_s = runner.now_s() + arguments.time
        found = plan_lengths(runner, prepared.options.lengths, Deployment(config=config), place=0, end_s=end_s)
        noise = opened.runner.describe_noise(contended=False)
    print(f"{noise.n_contended} of {noise.n_blocks} blocks beside other processes")
    return found


def show(name: str, found: LengthPlan) -> None:
    """Print a row for each policy that was measured, and whether the recommended one is as fast as wanted."""
    print(f"{name}: {len(found.lengths)} items, {found.n_points} points of the grid")
    heading = f"  {'policy':34} {'items/s':>8} {'predicted':>9}  {'ratio':22} {'to one':>6} {'calls':>5} {'padding':>7}"
    print(f"{heading}  error")
    for policy in found.policies:
        if policy.items_per_s.source == "predicted":
            continue
        single = f"{policy.to_single.estimate:5.2f}x" if policy.to_single else ""
        print(
            f"  {policy.title:34} {policy.items_per_s.estimate:8.1f} {policy.predicted_per_s:9.1f}  "
            f"{describe_ratio(policy.to_reference):22} {single:>6} {policy.n_calls:5} {policy.padding:7.0%}  "
            f"{policy.max_error or 0:.1e} {policy.problem}"
        )
    ratio = found.choice.to_reference
    verdict = "as fast as wanted" if ratio and ratio.estimate >= WANTED else f"below {WANTED}x"
    print(f"  recommended: {found.choice.title}, {describe_ratio(ratio)}: {verdict}", flush=True)


def describe_ratio(ratio: Estimate | None) -> str:
    """Return a ratio with its interval."""
    if ratio is None:
        return "1 (the reference)"
    return f"{ratio.estimate:.2f}x [{ratio.low:.2f}, {ratio.high or 0:.2f}]"


def main() -> None:
    """Measure all models, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--lengths", default="lognormal:29,8-256")
    parser.add_argument("--time", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(write_header())
    print(f"lengths: {arguments.lengths}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            show(name, compare(find_model(name, Path(folder)), arguments))


if __name__ == "__main__":
    main()
