"""Share a host among several models: each with ONNX Runtime's defaults, and as `ortune plan` recommends.

    python -m benchmarks.plan_many [--budget 300] [--shares 0.15,0.25,0.35,0.45] [--factor 5] [--json FILE] [MODEL ...]

First, the median call of each model is measured alone with ONNX Runtime's defaults. The target of each model is a p99
of at most --factor times that. The rates are the same share of what each model could serve alone. The shares are tried
in turn, until the default deployment breaks a target and the plan keeps all of them.

For each share, a plan is made. Then the default deployment and the recommended sharing are launched again and measured
in interleaved blocks with other random seeds, so that the luck of the plan's measurements does not count. Run this on
an idle host.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.errors import MeasureError
from ortune.measure.compute_figures import compute_percentile
from ortune.measure.open import open_comparison
from ortune.options import make_request
from ortune.planning.colocation import measuring
from ortune.planning.colocation.measuring import OpenHost
from ortune.planning.colocation.prepare import PreparedHostPlan, prepare_host_plan
from ortune.planning.colocation.result import PlannedSharing
from ortune.planning.colocation.run import judge, make_host_plan
from ortune.planning.colocation.sharing import Sharing
from ortune.planning.measuring import DeploymentRunner
from ortune.requests import HostPlanRequest

MODELS = ("squeezenet", "shufflenet")
SHARES = (0.15, 0.25, 0.35, 0.45)

Row = dict[str, Any]


def prepare(names: Sequence[str], rates: Sequence[float], targets_ms: Sequence[float], **more: Any) -> PreparedHostPlan:
    """Return what a plan of these models at these rates starts from."""
    paths = [str(build(name)) for name in names]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        shapes |= {key: tuple(shape) for key, shape in shapes_of(name).items()}
    options = {
        "models": dict(zip(paths, rates, strict=True)),
        "slo": {path: f"p99<{target:.3f}ms" for path, target in zip(paths, targets_ms, strict=True)},
        "shape": shapes,
        **more,
    }
    return prepare_host_plan(make_request(HostPlanRequest, options))


def find_medians_ns(names: Sequence[str]) -> list[float]:
    """Return the median duration of a call of each model alone, with ONNX Runtime's defaults."""
    found = []
    prepared = prepare(names, [1.0] * len(names), [1000.0] * len(names))
    for setup, space in zip(prepared.setups, prepared.spaces, strict=True):
        with open_comparison(setup) as opened:
            runner = DeploymentRunner(opened, space.default)
            run = runner.confirm([], runner.plan_confirmation([], 8.0), lambda done, total: None)
            found.append(compute_percentile(run.blocks(0), 50))
    return found


def confirm(prepared: PreparedHostPlan, sharings: Sequence[Sharing], scale: float, time_s: float) -> list[Row]:
    """Measure sharings again, and return the figures of each."""
    demands = prepared.demands
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_comparison(setup)) for setup in prepared.setups]
        host = OpenHost(opened, [space.default for space in prepared.spaces])
        plan = measuring.plan_block(sharings, demands, scale)
        rounds = measuring.count_rounds(host, sharings, plan, demands, scale, time_s)
        found = measuring.measure_together(host, sharings, demands, scale, plan=plan, rounds=rounds)
    rows = []
    for together in found:
        if together.failure:
            raise MeasureError(f"{together.sharing.title}: {together.failure.message}")
        streams = [stream for stream in together.streams if stream]
        contended = measuring.is_contended(streams)
        models = []
        blocks = [block for stream in streams for block in stream]
        latencies = measuring.find_latencies(streams, together.sharing, demands, scale)
        utilizations = measuring.find_utilizations(streams, together.sharing, demands, scale)
        for number, (demand, latency) in enumerate(zip(demands, latencies, strict=True)):
            own = [block.parts[number] for block in blocks]
            models.append(
                {
                    "model": demand.name,
                    "deployment": together.sharing.deployments[number].title,
                    "target": demand.slo.text if demand.slo else "",
                    "p99_ms": [p99_ns / 1e6 for p99_ns in (latency.estimate, latency.low, latency.high)],
                    "verdict": judge(latency, utilizations[number], demand),
                    "n_requests": sum(len(block.samples_ns) for block in own),
                }
            )
        cores = sum(block.cpu_ns for block in blocks) / sum(block.wall_ns for block in blocks)
        peak = max(block.memory.peak_bytes for block in blocks)
        rows.append(
            {
                "title": together.sharing.title,
                "models": models,
                "cpu_cores": cores,
                "memory_bytes": peak,
                "contended": contended,
            }
        )
    return rows


def compare(names: Sequence[str], medians_ns: Sequence[float], share: float, arguments: argparse.Namespace) -> Row:
    """Make a plan at a share of what each model can serve alone, and measure its choice against the defaults."""
    rates = [round(share * 1e9 / median, 2) for median in medians_ns]
    targets = [arguments.factor * median / 1e6 for median in medians_ns]
    plan = make_host_plan(prepare(names, rates, targets, budget=arguments.budget, seed=arguments.seed))
    again = prepare(names, rates, targets, seed=arguments.seed + 1)
    default = Sharing(kind="default", deployments=tuple(space.default for space in again.spaces))
    sharings = [default]
    if plan.choice and plan.choice.kind != "default":
        sharings.append(as_sharing(plan.choice))
    return {
        "share": share,
        "rates": rates,
        "recommended": plan.recommended,
        "reason": plan.reason,
        "measured_scale": plan.measured_scale,
        "scale": msgspec.to_builtins(plan.choice.scale) if plan.choice else None,
        "replicas": plan.choice.replicas if plan.choice else None,
        "spent_s": plan.spent_s,
        "confirmed": confirm(again, sharings, plan.measured_scale, arguments.budget / 2),
    }


def as_sharing(row: PlannedSharing) -> Sharing:
    """Return the sharing of a row of a plan."""
    return Sharing(kind=row.kind, deployments=tuple(model.deployment for model in row.models))


def is_shown(row: Row) -> bool:
    """Return whether the default deployment breaks a target at the asked rates, and what is recommended keeps all."""
    if len(row["confirmed"]) < 2 or row["measured_scale"] != 1:
        return False
    default, chosen = ([model["verdict"] for model in sharing["models"]] for sharing in row["confirmed"])
    return "broken" in default and set(chosen) == {"kept"}


def report(row: Row) -> None:
    """Print what was found at one share."""
    rates = ", ".join(f"{rate:g}/s" for rate in row["rates"])
    print(f"\n{row['share']:.0%} of what each model can serve alone: {rates}, times {row['measured_scale']:.3g}")
    print(f"  plan: {row['reason']} ({row['spent_s']:.0f} s)")
    if row["scale"]:
        high = row["scale"]["high"] or math.inf
        print(
            f"  all rates can be multiplied by {row['scale']['estimate']:.2f} [{row['scale']['low']:.2f}, {high:.2f}] "
            f"({row['scale']['source']}); hosts: {row['replicas']}"
        )
    for sharing in row["confirmed"]:
        noise = ", contended" if sharing["contended"] else ""
        print(f"  {sharing['title']}: {sharing['cpu_cores']:.2f} CPUs, {sharing['memory_bytes'] / 1e6:.0f} MB{noise}")
        for model in sharing["models"]:
            estimate, low, high = model["p99_ms"]
            print(
                f"    {model['model']:14} p99 {estimate:8.2f} ms [{low:.2f}, {high:.2f}]  {model['target']:14} "
                f"{model['verdict']:8} {model['n_requests']:6} requests, {model['deployment']}",
                flush=True,
            )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--budget", type=float, default=300.0, help="budget of a plan in seconds")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="parts of what each can serve alone")
    parser.add_argument("--factor", type=float, default=5.0, help="target, as a multiple of the median call")
    parser.add_argument(
        "--all", action="store_true", help="try all shares, also after the first that shows a difference"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    names = list(arguments.models)
    print(write_header())
    medians_ns = find_medians_ns(names)
    for name, median in zip(names, medians_ns, strict=True):
        print(f"{name}: median {median / 1e6:.2f} ms alone, target p99 < {arguments.factor * median / 1e6:.2f} ms")
    rows = []
    for share in map(float, arguments.shares.split(",")):
        rows.append(compare(names, medians_ns, share, arguments))
        report(rows[-1])
        if arguments.json:
            arguments.json.write_text(json.dumps({**describe_run(), "rows": rows}, indent=1) + "\n")
        if is_shown(rows[-1]) and not arguments.all:
            break
    shown = ", ".join(f"{row['share']:.0%}" for row in rows if is_shown(row))
    print(f"\nthe default deployment breaks a target and the plan keeps all at: {shown or 'none of the shares'}")


if __name__ == "__main__":
    main()
