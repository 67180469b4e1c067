"""What a search takes, tells on the way, and gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from ortune.knobs import Candidate, Config
from ortune.measure import Failure, Loaded
from ortune.measure.stats import Interval

Stage = Literal["screen", "race", "duel"]

Verdict = Literal["faster", "default_is_best", "inconclusive"]

NEGLIGIBLE_GAIN = 0.02
"""A gain that is not worth a setting: when the interval excludes more than this, the default is called best."""

CONFIDENCE = 0.95


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a search may spend.

    Attributes:
        seconds: Wall time, from start to verdict.
        n_trials: Candidates to screen at most, or None.
    """

    seconds: float
    n_trials: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of the duel, over all of its blocks that count.

    Attributes:
        config: Its settings.
        p50_ns: Median latency of a call; p90, p95, p99 and the mean likewise.
        calls_per_s: Throughput of one caller, back to back.
        cpu_ns_per_call: CPU time of the whole process for each call, spinning included.
        n_calls: Calls that the figures rest on.
        load_ns: Median time to create the session.
        steady_bytes: Resident memory of the whole process after its blocks.
        peak_bytes: Largest resident memory.
        session: What took effect, read back from a session: providers, and the CPUs of its pool threads.
    """

    config: Config
    p50_ns: float
    p90_ns: float
    p95_ns: float
    p99_ns: float
    mean_ns: float
    calls_per_s: float
    cpu_ns_per_call: float
    n_calls: int
    load_ns: float
    steady_bytes: int | None = None
    peak_bytes: int | None = None
    session: Loaded


class Speedup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times faster the challenger is than the default: a ratio of latencies, above 1 when it is faster.

    Attributes:
        pairs: Pairs of blocks that the interval rests on.
        restarts: Launches of each side that these pairs are spread over.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    pairs: int
    restarts: int


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
    """

    blocks: int
    contended: int
    repeated: int
    foreign_share_mean: float | None = None
    foreign_share_p90: float | None = None
    regime: Literal["quiet", "contended", "unknown"]
    drift: float | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate that was tried.

    Attributes:
        number: Position in the order of trying; 0 is the default.
        config: Its settings.
        stage: The last stage that it reached.
        speedup: Speed relative to the default in that stage, or None when it failed.
        blocks: Blocks measured in all stages.
        failure: Why it is out, or None.
    """

    number: int
    config: Config
    stage: Stage
    speedup: float | None = None
    blocks: int = 0
    failure: Failure | None = None


class StageTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a stage's time went: its wall time, and the part of it spent inside inference calls."""

    stage: Stage
    wall_s: float
    inference_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        verdict: "faster" only if the duel's interval lies above 1 as a whole.
        reason: Why it is this verdict, a sentence.
        config: What is recommended: the challenger when it is faster, else the default.
        speedup: The duel's result, or None when there was none.
        baseline: The default in the duel, or None.
        winner: The challenger in the duel, or None.
        best_so_far: The best candidate of an interrupted search, unproven; else None.
        interrupted: Whether the user ended it early.
        noise: How quiet the host was.
        trials: All candidates that were tried.
        n_candidates: Size of the space.
        stages: Where the time went.
        deterministic: Whether the default's outputs are the same in each run.
    """

    verdict: Verdict
    reason: str
    config: Config
    speedup: Speedup | None
    baseline: Summary | None
    winner: Summary | None
    best_so_far: BestSoFar | None
    interrupted: bool
    noise: Noise
    trials: tuple[Trial, ...]
    n_candidates: int
    stages: tuple[StageTime, ...]
    deterministic: bool


class BestSoFar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best candidate before a search was interrupted. Its speed-up is a first impression, not a claim."""

    config: Config
    speedup: float
    proven: Literal[False] = False


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a search stands, told between blocks.

    Attributes:
        stage: What is being done.
        done: Steps done of `total`: candidates screened, rounds of the race, pairs of the duel.
        total: Steps that are planned, at most.
        left_s: Time that is left of the budget.
        best: The best candidate so far, or None.
        speedup: Its speed relative to the default, as an interval; None until there is one.
        notes: What happened since the last time, such as a candidate that failed.
    """

    stage: Stage
    done: int
    total: int
    left_s: float
    best: Candidate | None = None
    speedup: Interval | None = None
    notes: tuple[str, ...] = ()


Observe = Callable[[Progress], None]
"""Is told where the search stands. It is never called while a block is measured."""
