"""Measure the cost of measuring: whether latencies are right, and how much of the time is spent in inference.

    python -m benchmarks.overhead [--restarts 10] [--budget 60] [SMALL LARGE]

1. Latency of the default as a worker measures it, relative to a bare timing loop in a separate process, with
   alternating launches of both. Target: within 3 %, for a model below 20 µs and one above 5 ms.
2. Cost of the load generators, with calls that do nothing: time per call for several callers, and how late a request
   is served with a request rate.
3. Share of the wall time that is spent in inference calls, by stage, in a search of LARGE. Target: at least 60 % in
   screening.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.host import write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.host import read_host
from ortune.knobs import DEFAULT
from ortune.measure.block_plan import Pace, plan_block
from ortune.measure.compute_figures import compute_figure, percentiles
from ortune.measure.stats import clustered_interval
from ortune.model import read_model
from ortune.requests import SearchRequest
from ortune.tuning.prepare import prepare
from ortune.tuning.search import search
from ortune.worker import BlockPlan, Failure
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.load_generator import generate_load
from ortune.workload import InputOptions, Tolerance, make_feed, make_load

BARE_LOOP = """
import sys, time
import numpy as np
import onnxruntime
from ortune.workload.feed import load_feed
from pathlib import Path
(feed, *_), _ = load_feed(Path(sys.argv[2]))
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
end = time.perf_counter() + 0.1
while time.perf_counter() < end:
    session.run(names, feed)
times = []
end = time.perf_counter() + float(sys.argv[3])
while time.perf_counter() < end:
    start = time.perf_counter_ns()
    session.run(names, feed)
    times.append(time.perf_counter_ns() - start)
print(np.median(times))
"""

SECONDS = 0.6
BLOCKS = 4


def compare(name: str, restarts: int) -> None:
    """Print the ratio of the two measurements of one model."""
    host, model = read_host(), read_model(build(name))
    feed = make_feed(model, InputOptions(shapes=shapes_of(name)))
    ratios: list[list[float]] = []
    bare_ns: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessExecutor(model, feed, Tolerance(), usable=host.limits.usable) as executor,
    ):
        feed_path = Path(folder) / "feed.npz"
        feed.save(feed_path)
        launch_reference(executor, model, feed).close()

        def bare() -> float:
            command = [sys.executable, "-c", BARE_LOOP, model.path, str(feed_path), str(SECONDS)]
            return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        def worker(call_ns: float) -> float:
            (live,) = executor.launch([DEFAULT], deadline_s=60)
            assert not isinstance(live, Failure)
            plan = plan_block(Pace(gap_ns=call_ns, call_ns=call_ns), int(SECONDS / BLOCKS * 1e9))
            blocks = [live.measure(plan) for _ in range(BLOCKS)]
            live.close()
            return float(
                np.median([compute_figure("p50", [block]) for block in blocks if not isinstance(block, Failure)])
            )

        call_ns = bare()
        for number in range(restarts):
            pairs = []
            for order in ((0, 1), (1, 0)) if number % 2 else ((1, 0), (0, 1)):
                found = {side: bare() if side == 0 else worker(call_ns) for side in order}
                pairs.append(float(np.log(found[1] / found[0])))
                bare_ns.append(found[0])
            ratios.append(pairs)
    interval = clustered_interval(ratios).exp()
    print(
        f"{name:16} bare loop {np.median(bare_ns) / 1e3:9.1f} µs, worker / bare "
        f"{interval.estimate:.4f} [{interval.low:.4f}, {interval.high:.4f}] at 95 %, {restarts} restarts",
        flush=True,
    )


def generators() -> None:
    """Print the cost of the load generators."""
    for clients in (1, 2, 4, 8):
        plan = BlockPlan(
            load=make_load(clients=clients), duration_ns=10**9, lead_in_ns=10**8, min_calls=1, deadline_s=60
        )
        window = generate_load(lambda sample: None, [0], plan, time.process_time_ns)
        print(
            f"{clients} callers: {window.wall_ns / window.n_calls / 1e3:.3f} µs of wall time a call that does nothing"
        )
    for rate in (20, 50, 500):
        plan = BlockPlan(
            load=make_load(rate_per_s=rate), duration_ns=10**10, lead_in_ns=10**8, min_calls=1, deadline_s=60
        )
        window = generate_load(lambda sample: None, [0], plan, time.process_time_ns)
        p50, p99 = percentiles(window.latencies_ns, [50, 99])
        cpu_ns = window.cpu_ns / window.n_calls
        print(
            f"{rate:3} requests a second: a call that does nothing is done {p50 / 1e3:.0f} µs (p50) and "
            f"{p99 / 1e3:.0f} µs (p99) after its arrival, and costs {cpu_ns / 1e3:.0f} µs of CPU time"
        )


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["tiny_regressor", "ppocrv4_rec"], metavar="MODEL")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--budget", type=float, default=60.0)
    arguments = parser.parse_args()
    print(write_header())
    generators()
    for name in arguments.models:
        compare(name, arguments.restarts)
    for name in arguments.models:
        request = SearchRequest(model=str(build(name)), budget=arguments.budget, shape=shapes_of(name))
        record = search(prepare(request)).record
        for stage in record.search.stages:
            share = stage.inference_s / stage.wall_s
            print(f"{name:16} {stage.stage:6} {stage.wall_s:5.1f} s, {share:.0%} of it inside inference")
        print(f"{name:16} {record.search.n_tried} candidates screened")


if __name__ == "__main__":
    main()
