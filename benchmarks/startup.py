"""Measure what `ortune apply ... -- PROGRAM` adds to the start of a program and to each of its inferences.

    python -m benchmarks.startup [--runs 40] [--json FILE]

Three programs are started with and without ortune, in random order: one that does nothing, one that imports
onnxruntime, and one that creates a session of the tuned model. The benchmark reports the difference. It also compares
calls of a tuned session with calls of a session that the program creates with the same options.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.host import describe_run, write_header
from ortune.knobs import Config
from ortune.measure.stats import t_interval
from tests.records import make_record, write

MODEL = Path(__file__).parent.parent / "models" / "tiny_cnn.onnx"

PROGRAMS = {
    "nothing": "pass",
    "import onnxruntime": "import onnxruntime",
    "create a session": f"import onnxruntime; onnxruntime.InferenceSession({str(MODEL)!r})",
}

SESSION = f"""
import statistics, time, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession({str(MODEL)!r}, options, providers=["CPUExecutionProvider"])
image = {{"image": numpy.zeros((1, 3, 32, 32), numpy.float32)}}
for _ in range(2000):
    session.run(None, image)
"""
"""Creates a session of a tiny model, and calls it until it is warm."""

CALLS = f"""{SESSION}
start = time.perf_counter_ns()
for _ in range(10000):
    session.run(None, image)
print((time.perf_counter_ns() - start) / 10000)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, object] = {**describe_run()}
    print(write_header())
    with tempfile.TemporaryDirectory() as folder:
        record = write(make_record(MODEL, Config(session_options={"intra_op_num_threads": 1})), Path(folder, "r.json"))
        ortune = [sys.executable, "-P", "-m", "ortune", "apply", str(record), "--quiet", "--"]
        for name, code in PROGRAMS.items():
            added = [difference(ortune, [sys.executable, "-c", code]) for _ in range(options.runs)]
            interval = t_interval([added_s * 1e3 for added_s in added])
            found[name] = {"added_ms": statistics.median(added) * 1e3, "mean_ms": interval.estimate}
            print(
                f"{name:<20} {statistics.median(added) * 1e3:6.1f} ms more by the median, "
                f"{interval.estimate:.1f} [{interval.low:.1f}, {interval.high:.1f}] by the mean"
            )
        ratios = []
        for _ in range(max(options.runs // 4, 3)):
            sides = [[sys.executable, "-c", CALLS], [*ortune, sys.executable, "-c", CALLS]]
            order = random.sample([0, 1], 2)
            times = {side: float(subprocess.check_output(sides[side])) for side in order}
            ratios.append(times[1] / times[0])
        interval = t_interval(ratios)
        found["call_ratio"] = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
        print(f"a call under ortune  {interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}] times as long")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def difference(ortune: list[str], program: list[str]) -> float:
    """Return how much longer a start takes with ortune than without, in seconds."""
    sides = {"with": [*ortune, *program], "without": program}
    times = {}
    for side in random.sample(sorted(sides), 2):
        start = time.perf_counter()
        subprocess.run(sides[side], check=True)
        times[side] = time.perf_counter() - start
    return times["with"] - times["without"]


if __name__ == "__main__":
    main()
