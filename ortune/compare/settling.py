"""How long calls take longer after a worker was resumed.

While a worker is suspended, the clocks of its CPU and of a GPU may be lowered. On an H100, calls that launch many
kernels took 1.5 times as long for about a tenth of a second. Settings that need fewer launches, such as captured
graphs, would seem to gain by as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.compare.block_plan import Pace, is_long
from ortune.knobs.config import CPU, Config
from ortune.worker import Block, BlockPlan

OBSERVED_NS = 1_000_000_000
IDLE_S = 0.3
"""How long calls are observed, and how long the worker is suspended before that."""

LONGEST_SETTLING_NS = 500_000_000
"""The longest lead-in. Calls that have not settled then are compared as they are."""

BIN_NS = 20_000_000
CALLS_PER_BIN = 5
N_BINS = 2
SETTLED = 1.05
"""Calls have settled when the medians of so many bins in a row exceed those of the second half by at most this factor.
A bin has a duration, or more if it needs that for so many calls."""


def observe_settling(config: Config, pace: Pace, measure: Callable[[BlockPlan], Block]) -> Pace:
    """Return the pace with the time that calls take to settle, where it matters.

    It is measured for other execution providers than the CPU, and for one caller whose calls are short.

    Args:
        config: The config of the baseline.
        pace: Its pace.
        measure: Measures a block of the baseline.
    """
    if config.provider == CPU or pace.load.rate_per_s or pace.load.n_callers > 1 or is_long(pace):
        return pace
    time.sleep(IDLE_S)
    plan = BlockPlan(load=pace.load, duration_ns=OBSERVED_NS, lead_in_ns=0, min_calls=2, deadline_s=60)
    return msgspec.structs.replace(pace, settling_ns=find_settling_ns(measure(plan).samples_ns))


def find_settling_ns(durations_ns: NDArray[np.int64]) -> int:
    """Return the time after which calls are as fast as later ones: 0 if the first ones are, at most half a second.

    Args:
        durations_ns: Durations of calls, one after another, in ns, of shape (calls,).
    """
    ends_ns = np.cumsum(durations_ns)
    late = durations_ns[ends_ns > ends_ns[-1] / 2]
    per_bin = max(CALLS_PER_BIN, int(np.ceil(BIN_NS / np.median(durations_ns))))
    n_bins = len(durations_ns) // per_bin
    if n_bins < 2 * N_BINS or not len(late):
        return 0
    medians = np.median(durations_ns[: n_bins * per_bin].reshape(n_bins, per_bin), axis=1)
    settled = medians <= SETTLED * np.median(late)
    in_a_row = np.all([settled[each : n_bins - N_BINS + 1 + each] for each in range(N_BINS)], axis=0)
    first = int(np.argmax(in_a_row)) if in_a_row.any() else n_bins
    return min(int(ends_ns[first * per_bin - 1]) if first else 0, LONGEST_SETTLING_NS)
