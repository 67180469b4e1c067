"""Search where several configs are equally fast and take different CPU time, with the rule among equals and without it.

    python -m benchmarks.equals [--searches 10]

The searches run on simulated hosts with four to eight cores. Fewer threads than the default gain 10 to 40 %, and how
many there are changes the duration of a call by less than 1 %, but not its CPU time: one CPU for each thread. The rule
(`rate_cost_to_others` in ortune/tuning/racing.py) prefers what costs others least. Without it, the answer is the config
that seems fastest. The columns are the speedup and the CPU time of a call of both answers, the latter as a multiple of
the default's.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from unittest.mock import patch

import numpy as np

import ortune
from benchmarks.host import write_header
from ortune import Record
from tests.simulated import Effect, Scenario, simulate

TINY_CNN = Path(__file__).parents[1] / "models" / "tiny_cnn.onnx"
THREADS = "intra_op_num_threads"
MOST_DIFFERENCE = 0.01
"""By how much calls with different numbers of threads differ at most, as a log-ratio."""


def make_scenario(seed: int) -> Scenario:
    """Return a host on which several numbers of threads are equally fast."""
    rng = np.random.default_rng(seed)
    n_cores = int(rng.choice([4, 6, 8]))
    gain = rng.uniform(0.1, 0.4)
    of_threads = [
        Effect(
            settings={THREADS: n_threads},
            factor=math.exp(-gain + rng.uniform(-MOST_DIFFERENCE, MOST_DIFFERENCE) / 2),
            cpus=float(n_threads),
        )
        for n_threads in range(1, n_cores)
    ]
    return Scenario(
        n_cores=n_cores, call_ms=float(rng.uniform(1, 10)), effects=(Effect(cpus=n_cores), *of_threads), seed=seed
    )


def search(seed: int, *, has_rule: bool) -> Record:
    """Search on a simulated host."""
    rule = "ortune.tuning.racing.rate_cost_to_others"
    with simulate(make_scenario(seed)):
        if has_rule:
            return ortune.search(TINY_CNN, history=False, seed=seed)
        with patch(rule, lambda result, *, with_cpu: (0, 0, 0, 0)):
            return ortune.search(TINY_CNN, history=False, seed=seed)


def compare_cpu(record: Record) -> float:
    """Return the CPU time of a call with the answer, as a multiple of that with the default."""
    baseline, winner = record.evidence.baseline, record.evidence.winner
    assert baseline and winner and baseline.cpu_ns_per_call and winner.cpu_ns_per_call
    return winner.cpu_ns_per_call / baseline.cpu_ns_per_call


def main() -> None:
    """Print a line for each search, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=10)
    n_searches = parser.parse_args().searches
    print(write_header())
    print(f"{'host':14}{'without the rule':>20}{'with the rule':>20}  answer with the rule")
    found = []
    for seed in range(n_searches):
        records = [search(seed, has_rule=has_rule) for has_rule in (False, True)]
        assert all(record.gain for record in records), f"seed {seed}: no gain was found"
        texts = [f"{record.gain.estimate:.3f}x, CPU {compare_cpu(record):.2f}x" for record in records if record.gain]
        settings = ", ".join(f"{name}={value}" for name, value in records[1].config.settings.items())
        print(f"{make_scenario(seed).n_cores:5} cores   {texts[0]:>20}{texts[1]:>20}  {settings}", flush=True)
        found.append([compare_cpu(record) for record in records])
    without, with_rule = (statistics.fmean(values) for values in zip(*found, strict=True))
    print(f"mean CPU time of a call: {without:.2f}x that of the default without the rule, {with_rule:.2f}x with it")


if __name__ == "__main__":
    main()
