"""Measure how much longer calls take after a process is resumed, and for how long. Blocks must leave these calls out.

    python -m benchmarks.resumed_calls [--provider cuda] [--rounds 10] [--dim NAME=N] [MODEL ...]

Three processes with a session each are resumed in turn, as in a search, and make calls for 0.8 s. They call
onnxruntime directly, without ortune's worker. Printed is the duration of calls by the time since the resume, relative
to the last 0.4 s: the geometric mean of the medians of all resumes, and a 95% interval. Run this on an idle host.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.call_times import make_samples
from benchmarks.host import write_header
from models.build import build
from ortune.measure.stats import t_interval

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
MODELS = ("squeezenet", "resnet50_random")
N_PROCESSES = 3
BOUNDS_MS = (0, 20, 50, 150, 400, 800)


def serve(model: str, provider: str, sizes: dict[str, int]) -> None:
    """Make calls for 0.8 s each time a line is read, and print their durations in seconds."""
    if provider == "cuda":
        ort.preload_dlls()
    session = ort.InferenceSession(model, providers=[PROVIDERS[provider]])
    if session.get_providers()[0] != PROVIDERS[provider]:
        raise SystemExit(f"{PROVIDERS[provider]} does not work here")
    sample = make_samples(model, sizes)[0]
    for _ in range(20):
        session.run(None, sample)
    print("ready", flush=True)
    for _ in sys.stdin:
        stamps = [time.perf_counter()]
        while stamps[-1] - stamps[0] < BOUNDS_MS[-1] / 1e3:
            session.run(None, sample)
            stamps.append(time.perf_counter())
        print(json.dumps(np.diff(stamps).tolist()), flush=True)


@contextmanager
def start(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that serves, suspended once its session has been created."""
    command = [sys.executable, "-m", "benchmarks.resumed_calls", "--serve", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            if process.stdout.readline().strip() != "ready":
                raise SystemExit("a process cannot create its session")
            os.kill(process.pid, signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def resume(process: subprocess.Popen[str]) -> list[float]:
    """Resume a process for its calls, and return the median duration in each part of the time, in seconds."""
    assert process.stdin
    assert process.stdout
    os.kill(process.pid, signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    durations_s = np.array(json.loads(process.stdout.readline()))
    os.kill(process.pid, signal.SIGSTOP)
    starts_ms = 1e3 * (np.cumsum(durations_s) - durations_s)
    parts = np.searchsorted(BOUNDS_MS, starts_ms, side="right") - 1
    found = [durations_s[parts == part] for part in range(len(BOUNDS_MS) - 1)]
    return [float(np.median(group)) if len(group) else math.nan for group in found]


def main() -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(description="Time calls after a resume.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--provider", choices=PROVIDERS, default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        sizes = {name: int(size) for name, _, size in (text.partition("=") for text in arguments.dim)}
        serve(str(arguments.serve), arguments.provider, sizes)
        return
    print(f"{write_header()}\nprovider: {PROVIDERS[arguments.provider]}")
    for name in arguments.models or MODELS:
        options = [str(build(name)), "--provider", arguments.provider, *(f"--dim={dim}" for dim in arguments.dim)]
        with ExitStack() as stack:
            processes = [stack.enter_context(start(options)) for _ in range(N_PROCESSES)]
            medians_s = [resume(process) for _ in range(arguments.rounds) for process in processes]
        logs = np.log(medians_s)
        # With long calls, no call begins in some parts.
        for part, (begin, end) in enumerate(itertools.pairwise(BOUNDS_MS[:-1])):
            differences = logs[:, part] - logs[:, -1]
            differences = differences[~np.isnan(differences)]
            if len(differences) < 2:
                continue
            found = t_interval(differences).exp()
            figures = f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
            print(f"{name:18} {begin:4} to {end:4} ms  {figures}", flush=True)


if __name__ == "__main__":
    main()
