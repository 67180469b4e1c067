"""Measure how much faster a session starts from a model that its execution provider has already compiled.

    python -m benchmarks.second_start [--provider openvino] [--starts 10] [--json FILE] [MODEL ...]

Each start is a new process that creates one session and runs it once: without a cache, with an empty folder, and with
the folder that an earlier process has filled. The three alternate in random order, and their ratios come with
intervals. The benchmark also reports whether a start from a filled folder wrote to it again, which shows that the
provider did not use it. Run this on an idle host, in an environment with the provider.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.knobs import Config
from ortune.knobs.caches import with_caches
from ortune.knobs.providers import chain_of, find_provider
from ortune.measure.stats import t_interval
from ortune.model import read_model
from ortune.worker.compiled_models import list_files
from ortune.worker.providers import find_plugins_of
from ortune.workload import InputOptions, make_feed

MODELS = ("squeezenet", "densenet121", "resnet50")

CODE = """
import json, sys, time
import msgspec, numpy
from ortune.knobs import Config
from ortune.worker.session import make_session
model, config, feed = sys.argv[1:]
config = msgspec.json.decode(config, type=Config)
with numpy.load(feed) as arrays:
    inputs = dict(arrays)
import onnxruntime
begin = time.perf_counter_ns()
session = make_session(model, config)
created = time.perf_counter_ns()
session.run(None, inputs)
print(json.dumps([created - begin, time.perf_counter_ns() - created]))
"""


def start(model: Path, config: Config, feed: Path) -> tuple[int, int]:
    """Return the time that creating a session took in a new process, and that of its first run, in ns."""
    command = [sys.executable, "-c", CODE, str(model), msgspec.json.encode(config).decode(), str(feed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    created, run = json.loads(done.stdout.splitlines()[-1])
    return created, run


def measure_model(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the starts of a model, and print them."""
    path = build(name)
    model = read_model(path)
    config = find_plugins_of(Config(providers=chain_of(find_provider(arguments.provider).name)))
    times: dict[str, list[tuple[int, int]]] = {"no cache": [], "first": [], "second": []}
    n_written = 0
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        feed, filled = folder / "feed.npz", folder / "filled"
        sample = make_feed(model, InputOptions(shapes=shapes_of(name)))
        arrays: dict[str, Any] = {input_name: tensor.array for input_name, tensor in sample.tensors.items()}
        np.savez(feed, **arrays)
        filled.mkdir()
        start(path, with_caches(config, filled), feed)
        size_bytes = sum(size for size, _ in list_files(filled).values())
        for number in range(arguments.starts):
            for kind in random.sample(sorted(times), 3):
                if kind == "no cache":
                    own = config
                elif kind == "second":
                    own = with_caches(config, filled)
                else:
                    (folder / str(number)).mkdir()
                    own = with_caches(config, folder / str(number))
                before = list_files(filled)
                times[kind].append(start(path, own, feed))
                n_written += kind == "second" and list_files(filled) != before
    row: dict[str, Any] = {"model": name, "starts": arguments.starts, "size_bytes": size_bytes, "n_written": n_written}
    print(f"{name}: {size_bytes / 1e6:.1f} MB; {n_written} of {arguments.starts} second starts wrote to the folder")
    for kind, measured in times.items():
        totals = np.array(measured, dtype=float).sum(axis=1)
        ratio = t_interval(np.log(np.array(times["no cache"], dtype=float).sum(axis=1) / totals))
        row[kind] = {"median_ns": float(np.median(totals))}
        text = f"    {kind:9} session and first run {np.median(totals) / 1e6:8.1f} ms"
        if kind != "no cache":
            estimate, low, high = (float(np.exp(log_ratio)) for log_ratio in (ratio.estimate, ratio.low, ratio.high))
            row[kind] |= {"speedup": [estimate, low, high]}
            text += f", {estimate:.2f}x [{low:.2f}, {high:.2f}] as fast as without a cache"
        print(text, flush=True)
    return row


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--provider", default="openvino")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    print(write_header(), flush=True)
    rows = [measure_model(name, arguments) for name in arguments.models]
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_run(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
