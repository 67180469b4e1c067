"""Measure what counting the calls of canaries adds to each call of a session.

    python -m benchmarks.canary [--launches 20] [--json FILE]

Programs call a session of a tiny model, whose calls are short, so that what is added is large in comparison. They are
started in random order in four ways: alone; under `ortune apply` without a canary, after the first 1000 calls, which
are compared with the record; as a canary with metrics; and in the control arm. All sessions have the same options.
Blocks of calls are timed, and the ratio of their medians is compared between ways. Interval: Student's, over the
launches.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.host import describe_run, write_header
from benchmarks.startup import MODEL, SESSION
from ortune.knobs import Config
from ortune.measure.stats import t_interval
from tests.records import make_record, write

CALLS = f"""{SESSION}
times = []
for _ in range(100):
    start = time.perf_counter_ns()
    for _ in range(200):
        session.run(None, image)
    times.append((time.perf_counter_ns() - start) / 200)
print(statistics.median(times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, object] = {**describe_run()}
    print(write_header())
    with tempfile.TemporaryDirectory() as folder:
        record = write(make_record(MODEL, Config(session_options={"intra_op_num_threads": 1})), Path(folder, "r.json"))
        ortune = [sys.executable, "-P", "-m", "ortune", "apply", str(record), "--quiet"]
        metrics = ["--metrics", str(Path(folder, "metrics"))]
        ways = {
            "alone": [],
            "apply": [*ortune, "--"],
            "canary": [*ortune, "--canary", "100%", *metrics, "--"],
            "control": [*ortune, "--canary", "0%", *metrics, "--"],
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.launches):
            for way in random.sample(list(ways), len(ways)):
                times[way].append(float(subprocess.check_output([*ways[way], sys.executable, "-c", CALLS])))
    for way, base in (("apply", "alone"), ("canary", "alone"), ("canary", "apply"), ("canary", "control")):
        interval = t_interval([math.log(one / other) for one, other in zip(times[way], times[base], strict=True)]).exp()
        added = t_interval([one - other for one, other in zip(times[way], times[base], strict=True)])
        found[f"{way} to {base}"] = {"ratio": interval.estimate, "low": interval.low, "high": interval.high}
        print(
            f"{way:>8} / {base:<8} {interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}] times as long, "
            f"{added.estimate:+.0f} [{added.low:+.0f}, {added.high:+.0f}] ns"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
