"""Search settings for several callers, and compare each pick with settings by hand and with those of Olive.

    python -m benchmarks.by_hand [--models encoder_int8] [--clients 2] [--times 10] [--budget 60]

Each search is a real `ortune search`, followed by a real `ortune bench` that compares the pick with the default, one
thread, spinning off, and what Olive recommended for the model in the runs of `benchmarks.versus_olive`. Olive measures
one caller, and cannot measure more. Target: the pick is within 3 % of the best of these in each search.

`encoder_int8` is made by models/build.py: a transformer encoder whose weights are quantized dynamically.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands import run_ortune, time_search
from benchmarks.host import write_header
from models.build import build, find_search_options

MODELS = ("encoder_int8",)
BY_HAND = {"one thread": "intra_op_num_threads=1", "spinning off": "session.intra_op.allow_spinning=0"}
OLIVE = Path(__file__).parent / "results" / "versus_olive.json"
WITHIN = 0.03


def list_rivals(name: str) -> dict[str, str]:
    """Return the settings that a pick is compared with, as the values of `--set`, by a title."""
    found = dict(BY_HAND)
    for run in json.loads(OLIVE.read_text())["runs"]:
        settings = ",".join(f"{key}={value}" for key, value in run["olive"].items())
        if run["model"] == name and settings and settings not in found.values():
            found[f"Olive's {settings}"] = settings
    return found


def describe_settings(record: dict[str, Any]) -> str:
    """Return the settings of a record in one line."""
    settings = record["config"].get("session_options", {}) | record["config"].get("session_config", {})
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "default"


def search_and_compare(name: str, n_clients: int, seed: int, budget_s: float, folder: Path) -> bool:
    """Search once, compare the pick, print both, and return whether it is close enough to the best."""
    output = folder / f"{name}-{seed}.json"
    load = ("--clients", str(n_clients), *find_search_options(name))
    wall_s = time_search(name, output, *load, budget_s=budget_s, seed=seed)
    record = json.loads(output.read_text())
    rivals = list_rivals(name)
    settings = [word for setting in rivals.values() for word in ("--set", setting)]
    compared = json.loads(run_ortune("bench", str(build(name)), str(output), *settings, *load, "--json"))
    pick, *others = [row["speedup"]["estimate"] for row in compared["rows"][1:]]
    is_close = bool(pick >= (1 - WITHIN) * max(1.0, *others))
    of_others = ", ".join(f"{title} {value:.3f}" for title, value in zip(rivals, others, strict=True))
    print(
        f"{name} {seed:3} {wall_s:5.1f} s  {record['evidence']['verdict']:15} pick {pick:.3f}, {of_others}  "
        f"{'within' if is_close else 'NOT within'} {WITHIN:.0%}  {describe_settings(record)}",
        flush=True,
    )
    return is_close


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--clients", type=int, default=2, help="concurrent callers")
    parser.add_argument("--times", type=int, default=10, help="number of searches of each model")
    parser.add_argument("--budget", type=float, default=60, help="budget of each search in seconds")
    arguments = parser.parse_args()
    print(write_header())
    print("Speedups over the default in one run of `ortune bench`.")
    with tempfile.TemporaryDirectory(prefix="ortune-by-hand-") as folder:
        close = [
            search_and_compare(name, arguments.clients, seed, arguments.budget, Path(folder))
            for name in arguments.models
            for seed in range(arguments.times)
        ]
    print(f"{sum(close)} of {len(close)} within {WITHIN:.0%} of the best")


if __name__ == "__main__":
    main()
