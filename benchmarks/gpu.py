"""Search settings on a host with an NVIDIA GPU, and check each claim with a program that does not use ortune.

    python -m benchmarks.gpu [--budget 60] [--launches 5] [--seconds 3] [--provider cuda,cpu] [--json FILE] [MODEL ...]

For each model, `ortune search` chooses among the providers and their options. Then `benchmarks/call_times.py` times the
code that `ortune apply --to python` writes for the record, and sessions of each provider without options. Each is
launched several times, in turn, with other inputs than the search had. The claim holds if its interval and the one of
these launches overlap. `--provider cpu` runs the same on a host without a GPU.

All models of models/build.py can be named. `resnet50_random` and `bert_base_random` are built without a download.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import run_ortune, time_search
from benchmarks.host import describe_run, write_header
from models.build import build, find_search_options
from ortune.measure.stats import t_interval
from ortune.worker.gpu import list_gpus

MODELS = ("resnet50_random", "bert_base_random", "squeezenet")
OPTIONS = {"bert_base_random": ["--dim", "batch=1", "--dim", "sequence=128"]}
PLAIN = {
    "cuda": 'ort.preload_dlls()\nsession = ort.InferenceSession({model}, providers=["CUDAExecutionProvider"])\n',
    "cpu": 'session = ort.InferenceSession({model}, providers=["CPUExecutionProvider"])\n',
}
"""Code of sessions without settings, by the provider."""


def describe_gpus() -> str:
    """Return the names of the GPUs and the driver's version."""
    names, driver = list_gpus()
    return f"{', '.join(names)}, driver {driver}" if names else "no NVIDIA GPU"


def time_calls(model: Path, code: Path, options: list[str]) -> dict[str, Any]:
    """Launch the program once, and return what it printed."""
    program = Path(__file__).with_name("call_times.py")
    command = [sys.executable, str(program), str(model), str(code), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{code.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Search one model, check the claim, print both, and return the figures."""
    model, record_path, code = build(name), folder / f"{name}.json", folder / f"{name}.py"
    options = [*find_search_options(name), *OPTIONS.get(name, [])]
    wall_s = time_search(
        name, record_path, *options, "--provider", arguments.provider, budget_s=arguments.budget, seed=0
    )
    record = json.loads(record_path.read_text())
    run_ortune("apply", str(record_path), "--to", "python", "-o", str(code))
    codes = {"tuned": code}
    providers = arguments.provider.split(",")
    for provider in providers:
        codes[provider] = folder / f"{name}-{provider}.py"
        codes[provider].write_text(PLAIN[provider].format(model=repr(str(model))))
    launches: dict[str, list[dict[str, Any]]] = {title: [] for title in codes}
    own = [*OPTIONS.get(name, []), "--seconds", f"{arguments.seconds:g}"]
    for number in range(arguments.launches):
        order = list(codes) if number % 2 else list(codes)[::-1]
        for title in order:
            launches[title].append(time_calls(model, codes[title], own))
    times = {title: [launch["ms"] for launch in found] for title, found in launches.items()}
    ratio = t_interval(np.log(times[providers[0]]) - np.log(times["tuned"])).exp()
    evidence = record["evidence"]
    row = {
        "model": name,
        "search_s": wall_s,
        "verdict": evidence["verdict"],
        "claim": evidence.get("speedup"),
        "config": record["config"],
        "checked": (ratio.estimate, ratio.low, ratio.high),
        "times_ms": times,
        "sums": {title: [launch["sum"] for launch in found] for title, found in launches.items()},
    }
    print(f"{name}: {evidence['verdict']} in {wall_s:.0f} s, claim {json.dumps(row['claim'])}")
    print(f"  {json.dumps(record['config'])}")
    print("  " + ", ".join(f"{title} {statistics.median(values):.3f} ms" for title, values in times.items()))
    checked = f"{ratio.estimate:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
    print(f"  checked: {checked} as fast as {providers[0]} without settings", flush=True)
    return row


def main() -> None:
    """Check the models of the command line."""
    parser = argparse.ArgumentParser(description="Search settings on a GPU, and check the claims.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="time of each launch")
    parser.add_argument("--provider", default="cuda,cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{write_header()}\nGPU: {describe_gpus()}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models or MODELS:
            rows.append(check(name, arguments, Path(folder)))
            if arguments.json:
                arguments.json.write_text(json.dumps({**describe_run(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
