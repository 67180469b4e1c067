"""Search live, and measure what each setting of the answers contributes, with `ortune bench`.

    python -m benchmarks.contributions [--models NAME ...] [--times 2] [--budget 60] [--bench-budget 60]

Each search is a real `ortune search`. A real `ortune bench` then compares its answer, and the answer without each of
its settings, in the same launches. What a setting contributes is how many times as fast the answer is as without it,
with a 95 % interval over the launches. A setting that contributes less than half a percent beyond doubt does not belong
in the answer. The CPU time of a call is that of the answer, as a multiple of that of the default.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands import run_ortune, time_search
from benchmarks.host import write_header
from benchmarks.regret import USELESS
from models.build import build, find_search_options
from ortune.measure.interval import Interval
from ortune.measure.stats import clustered_interval
from ortune.record.files import read_record

TINY_CNN = Path(__file__).parents[1] / "models" / "tiny_cnn.onnx"
SEARCHES = (("tiny_cnn", 1), ("silero_vad", 1), ("minilm_l6_int8", 2), ("magika", 1))
"""Models, and concurrent callers."""


def compare_pairs(answer: dict[str, Any], reduced: dict[str, Any]) -> Interval:
    """Return how many times as fast an answer is as the one without a setting, given the rows of `ortune bench`."""
    clusters = [
        [math.log(own / other) for own, other in zip(of_answer, of_reduced, strict=True)]
        for of_answer, of_reduced in zip(answer["pairs"], reduced["pairs"], strict=True)
    ]
    return clustered_interval(clusters).exp()


def search_and_reduce(
    name: str, n_clients: int, seed: int, options: argparse.Namespace, folder: Path
) -> list[Interval]:
    """Search once, print what each setting of the answer contributes, and return it."""
    model = TINY_CNN if name == "tiny_cnn" else build(name)
    output = folder / f"{name}-{seed}.json"
    load = ("--clients", str(n_clients), *(() if name == "tiny_cnn" else find_search_options(name)))
    wall_s = time_search(model, output, *load, budget_s=options.budget, seed=seed)
    record = read_record(output)
    settings = {name: str(value) for name, value in record.config.settings.items()}
    title = f"{name}, {n_clients} client{'s' if n_clients > 1 else ''}, seed {seed}"
    print(f"{title}: {wall_s:.0f} s, {record.evidence.verdict}, {len(settings)} settings", flush=True)
    if not settings:
        return []
    others = [{name: value for name, value in settings.items() if name != left_out} for left_out in settings]
    sides = [word for reduced in others if reduced for word in ("--set", ",".join(map("=".join, reduced.items())))]
    budget = ("--budget", f"{options.bench_budget:g}s")
    compared = json.loads(run_ortune("bench", str(model), str(output), *sides, *load, *budget, "--json"))
    default, answer, *rows = compared["rows"]
    cpu = answer["summary"]["cpu_ns_per_call"] / default["summary"]["cpu_ns_per_call"]
    print(f"  {answer['speedup']['estimate']:.3f}x, CPU time of a call {cpu:.2f}x that of the default")
    if len(settings) == 1:
        only = answer["speedup"]
        found = [Interval(estimate=only["estimate"], low=only["low"], high=only["high"], confidence=only["confidence"])]
    else:
        found = [compare_pairs(answer, row) for row in rows]
    for (setting, value), interval in zip(settings.items(), found, strict=True):
        print(f"  {interval.estimate:.3f}x [{interval.low:.3f}, {interval.high:.3f}]  {setting}={value}", flush=True)
    return found


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[name for name, _ in SEARCHES], help="which of the models")
    parser.add_argument("--times", type=int, default=2, help="number of searches of each model")
    parser.add_argument("--budget", type=float, default=60, help="budget of each search in seconds")
    parser.add_argument("--bench-budget", type=float, default=60, help="budget of each comparison in seconds")
    options = parser.parse_args()
    print(write_header())
    with tempfile.TemporaryDirectory(prefix="ortune-contributions-") as folder:
        found = [
            interval
            for name, n_clients in SEARCHES
            if name in options.models
            for seed in range(options.times)
            for interval in search_and_reduce(name, n_clients, seed, options, Path(folder))
        ]
    n_useless = sum(math.log(interval.high) < USELESS for interval in found)
    n_shown = sum(interval.low > 1 for interval in found)
    print(f"of {len(found)} settings, {n_shown} contribute beyond doubt, and {n_useless} less than {USELESS:.1%}")


if __name__ == "__main__":
    main()
