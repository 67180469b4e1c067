"""Measure how long searches take where little or nothing is to be gained: models without quantization, one caller.

    python -m benchmarks.nulls [--times 2] [--budget 60] [--models NAME ...]

Each search is a real `ortune search` in a process of its own. Target: 20 s by the median on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.commands import time_search
from benchmarks.host import write_header
from models.build import find_search_options
from ortune.record.files import read_record

MODELS = ("squeezenet", "shufflenet", "ppocrv2_cls", "magika", "tiny_regressor")


def search(name: str, budget_s: float, seed: int, folder: Path) -> float:
    """Search once, print how it went, and return its wall time in seconds."""
    output = folder / f"{name}-{seed}.json"
    wall_s = time_search(name, output, *find_search_options(name), budget_s=budget_s, seed=seed)
    record = read_record(output)
    evidence, speedup = record.evidence, record.evidence.speedup
    gain = f"{speedup.estimate:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]" if speedup else "-"
    print(
        f"{name:16} {seed:4} {wall_s:6.1f} s  {record.search.n_tried:4} tried  {evidence.verdict:15} {gain:24} "
        f"{evidence.noise.regime}",
        flush=True,
    )
    return wall_s


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2, help="searches of each model")
    parser.add_argument("--budget", type=float, default=60, help="budget of each search in seconds")
    parser.add_argument("--models", nargs="+", default=MODELS)
    arguments = parser.parse_args()
    print(write_header())
    with tempfile.TemporaryDirectory(prefix="ortune-nulls-") as folder:
        times_s = [
            search(name, arguments.budget, seed, Path(folder))
            for seed in range(arguments.times)
            for name in arguments.models
        ]
    print(f"median {statistics.median(times_s):.1f} s")


if __name__ == "__main__":
    main()
