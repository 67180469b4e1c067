"""Results of a comparison: figures, speedups, limits, noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ortune.compare.interval import Interval
from ortune.knobs.config import DEFAULT, Config
from ortune.worker import SessionInfo
from ortune.workload import Objective

if TYPE_CHECKING:
    pass


Stage = Literal["screening", "racing", "confirmation"]


CONFIDENCE = 0.95


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of the duel, over all of its blocks that count.

    Attributes:
        config: Its settings.
        p50_ns: Median latency of a call; p90, p95, p99 and the mean likewise. Where requests arrive at a rate, it
            counts from the arrival. Of several cases, percentiles are geometric means.
        calls_per_s: Throughput, all callers together.
        cpu_ns_per_call: CPU time of the whole process for each call, with what spins between calls.
        cpu_ns_between_calls: Where requests arrive at a rate: the part of it spent while no call was under way.
        utilization: Where requests arrive at a rate: the share of the callers' time that calls take. From 1 on, the
            queue grows without end.
        n_calls: Calls that the figures rest on; where there are several cases, those of the one with fewest.
        load_ns: Median time to create the session.
        steady_bytes: Resident memory of the whole process after its blocks.
        peak_bytes: Largest resident memory.
        gpu_bytes: Memory that it takes on the GPU, where it uses one and that is told.
        nodes: Number of nodes that each execution provider got; empty for the CPU alone.
        build_s: Time that the execution provider took to compile the model; None where it does not compile.
        session: What took effect, read back from a session; None in a record, as its trials file has it.
    """

    config: Config = DEFAULT
    p50_ns: float
    p90_ns: float
    p95_ns: float
    p99_ns: float
    mean_ns: float
    calls_per_s: float
    cpu_ns_per_call: float
    cpu_ns_between_calls: float | None = None
    utilization: float | None = None
    n_calls: int
    load_ns: float
    steady_bytes: int | None = None
    peak_bytes: int | None = None
    gpu_bytes: int | None = None
    nodes: dict[str, int] = {}
    build_s: float | None = None
    session: SessionInfo | None = None


class Speedup(Interval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times better a challenger is than the default: a ratio of costs, above 1 when it is better.

    Attributes:
        pairs: Pairs of blocks that the interval rests on.
        restarts: Launches of each side that these pairs are spread over.
    """

    pairs: int
    restarts: int


class LimitCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether one side of the duel keeps to a limit.

    Attributes:
        limit: As the user wrote it.
        figure: What it bounds.
        bound: In ns, bytes, or calls a second; or as a multiple of the default's.
        relative: Whether it and the value are such multiples.
        value: The figure, the geometric mean of the launches'.
        low: Lower end of its 95 % interval.
        high: Upper end; None where it cannot be told.
        kept: "yes" or "no" if the whole interval lies on one side of the bound, else "unsure".
    """

    limit: str
    figure: Objective
    bound: float
    relative: bool = False
    value: float
    low: float
    high: float | None = None
    kept: Literal["yes", "no", "unsure"]


class Noise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How quiet the host was.

    Attributes:
        blocks: Blocks measured in all.
        contended: Of these, blocks during which others used the CPUs.
        repeated: Blocks that were measured again for that reason.
        foreign_share_mean: Mean share of the usable CPUs' time that others used, or None where it is not told.
        foreign_share_p90: Its 90th percentile.
        regime: Which blocks the duel's claim rests on: "quiet", "contended", or "unknown" where the system
            does not tell. The two are never mixed.
        drift: The challenger's speed-up in the race over that in the duel, or None without both. Some above 1 is
            usual, as the luckiest candidate is chosen; far from 1 it tells of a host that changes with time.
        slowed: Blocks at whose end the GPU ran slower than it might, for heat or power.
    """

    blocks: int
    contended: int
    repeated: int
    foreign_share_mean: float | None = None
    foreign_share_p90: float | None = None
    regime: Literal["quiet", "contended", "unknown"]
    drift: float | None = None
    slowed: int = 0


class StageTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a stage's time went: its wall time, and the part of it in which calls were made."""

    stage: Stage
    wall_s: float
    inference_s: float
