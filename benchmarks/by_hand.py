"""Search the settings of an int8 transformer with two callers, and compare each pick with what people set by hand.

    python -m benchmarks.int8_callers [--times 10] [--budget 60]

The model is made by models/build.py: a transformer encoder whose weights are quantized dynamically. Each search is a
real `ortune search`, followed by a real `ortune bench` that compares the pick with the default, one thread, and
spinning off. Target: the pick is within 3 % of the best of these in each of ten searches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands import run_ortune, time_search
from benchmarks.host import describe_host
from models.build import build

MODEL = "encoder_int8"
BY_HAND = {"one thread": "intra_op_num_threads=1", "spinning off": "session.intra_op.allow_spinning=0"}
WITHIN = 0.03


def describe_settings(record: dict[str, Any]) -> str:
    """Return the settings of a record in one line."""
    settings = record["config"].get("session_options", {}) | record["config"].get("session_config", {})
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "default"


def search_and_compare(seed: int, budget_s: float, folder: Path) -> bool:
    """Search once, compare the pick, print both, and return whether it is close enough to the best."""
    output = folder / f"{seed}.json"
    load = ("--clients", "2")
    wall_s = time_search(MODEL, output, *load, budget_s=budget_s, seed=seed)
    record = json.loads(output.read_text())
    settings = [word for setting in BY_HAND.values() for word in ("--set", setting)]
    compared = json.loads(run_ortune("bench", str(build(MODEL)), str(output), *settings, *load, "--json"))
    pick, *others = [row["speedup"]["estimate"] for row in compared["rows"][1:]]
    best = max(1.0, *others)
    is_close = bool(pick >= (1 - WITHIN) * best)
    by_hand = ", ".join(f"{name} {value:.3f}" for name, value in zip(BY_HAND, others, strict=True))
    print(
        f"{seed:3} {wall_s:5.1f} s  {record['evidence']['verdict']:15} pick {pick:.3f}, {by_hand}  "
        f"{'within' if is_close else 'NOT within'} {WITHIN:.0%}  {describe_settings(record)}",
        flush=True,
    )
    return is_close


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="number of searches")
    parser.add_argument("--budget", type=float, default=60, help="budget of each search in seconds")
    arguments = parser.parse_args()
    print(describe_host())
    print("Speedups over the default in one run of `ortune bench`.")
    with tempfile.TemporaryDirectory(prefix="ortune-int8-") as folder:
        close = [search_and_compare(seed, arguments.budget, Path(folder)) for seed in range(arguments.times)]
    print(f"{sum(close)} of {len(close)} within {WITHIN:.0%} of the best")


if __name__ == "__main__":
    main()
