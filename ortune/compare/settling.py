"""How long calls are slower after a worker is resumed.

In a new process on an H100, the first 50 calls of ResNet-50, which launch many kernels, took 1.6 times as long as later
ones, possibly because clocks are lowered while nothing runs. Settings with fewer kernel launches, such as captured
graphs, would seem faster than they are.
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

USUAL_SETTLING_NS = 150_000_000
"""What is assumed where it is not measured. In the process above, calls were slow for at least 118 ms."""

BIN_NS = 20_000_000
CALLS_PER_BIN = 5
N_BINS = 2
SETTLED = 1.05
"""Calls have settled when the medians of `N_BINS` consecutive bins are at most `SETTLED` times the median of the second
half. A bin lasts `BIN_NS`, or longer to contain `CALLS_PER_BIN` calls."""


def observe_settling(config: Config, pace: Pace, measure: Callable[[BlockPlan], Block]) -> Pace:
    """Return the pace with the time that calls take to settle, where it matters: on other providers than the CPU.

    Args:
        config: The config of the baseline.
        pace: Its pace.
        measure: Measures a block of the baseline.
    """
    if config.provider == CPU or not can_settle(pace):
        return pace
    time.sleep(IDLE_S)
    plan = BlockPlan(load=pace.load, duration_ns=OBSERVED_NS, lead_in_ns=0, min_calls=2, deadline_s=60)
    block = measure(plan)
    return msgspec.structs.replace(pace, settling_ns=find_settling_ns(block.samples_ns, block.cases))


def assume_settling(pace: Pace) -> Pace:
    """Return the pace for candidates on a GPU whose baseline runs elsewhere, and does not show how they settle."""
    settling_ns = max(pace.settling_ns, USUAL_SETTLING_NS)
    return msgspec.structs.replace(pace, settling_ns=settling_ns) if can_settle(pace) else pace


def can_settle(pace: Pace) -> bool:
    """Return whether it matters how calls settle: for one caller that makes short calls back to back."""
    return not pace.load.rate_per_s and pace.load.n_callers == 1 and not is_long(pace)


def find_settling_ns(durations_ns: NDArray[np.int64], cases: NDArray[np.int64] | None = None) -> int:
    """Return the time after which calls are as fast as later ones: 0 if the first ones are, at most half a second.

    Args:
        durations_ns: Durations of calls, one after another, in ns, of shape (calls,).
        cases: Input case of each call, of the same shape; None for one case. Calls of a case are compared.
    """
    ends_ns = np.cumsum(durations_ns)
    usual_ns = np.full(len(durations_ns), np.median(durations_ns))
    for case in set(cases.tolist()) if cases is not None else ():
        usual_ns[cases == case] = np.median(durations_ns[cases == case])
    relative = durations_ns / usual_ns
    late = relative[ends_ns > ends_ns[-1] / 2]
    per_bin = max(CALLS_PER_BIN, int(np.ceil(BIN_NS / np.median(durations_ns))))
    n_bins = len(durations_ns) // per_bin
    if n_bins < 2 * N_BINS or not len(late):
        return 0
    medians = np.median(relative[: n_bins * per_bin].reshape(n_bins, per_bin), axis=1)
    settled = medians <= SETTLED * np.median(late)
    in_a_row = np.all([settled[each : n_bins - N_BINS + 1 + each] for each in range(N_BINS)], axis=0)
    first = int(np.argmax(in_a_row)) if in_a_row.any() else n_bins
    return min(int(ends_ns[first * per_bin - 1]) if first else 0, LONGEST_SETTLING_NS)
