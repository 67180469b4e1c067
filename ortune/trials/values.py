"""What a search takes, tells on the way, and gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from ortune.errors import UsageError
from ortune.knobs.config import Config
from ortune.measure import Failure, Loaded
from ortune.measure.interval import Interval
from ortune.workload import Objective

if TYPE_CHECKING:
    from ortune.knobs import Candidate

Stage = Literal["screen", "race", "duel"]

Verdict = Literal["faster", "default_is_best", "inconclusive", "within_limits", "infeasible", "overload", "trade_off"]
"""What a search concludes.

- "faster": the challenger is better than the default in the objective, beyond doubt, and keeps to all limits.
- "default_is_best": nothing is.
- "inconclusive": it could not be told.
- "within_limits": the default breaks a limit, and the challenger keeps to all of them.
- "infeasible": nothing that was tried keeps to all limits.
- "overload": requests arrive faster than the default or any candidate can serve them.
- "trade_off": several objectives were asked for, and there is a front to choose from.
"""

StrategyName = Literal["adaptive", "tpe", "random", "exhaustive"]
"""In which order candidates are screened.

- "adaptive": what similar models, the documentation and the measurements so far make most promising.
- "tpe": Optuna's tree-structured Parzen estimator.
- "random": at random.
- "exhaustive": all of them.
"""

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JOURNAL_SUFFIXES = (".log", ".journal")
"""What Optuna's study can be kept in, by the file's suffix."""

STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


def check_study(path: Path) -> None:
    """Check that a file can take a new study.

    Raises:
        UsageError: It exists, or has another suffix.
    """
    if path.exists():
        raise UsageError(f"--study {path}: the file exists.", "Name a new file; each search gets its own study.")
    if path.suffix not in {*SQLITE_SUFFIXES, *JOURNAL_SUFFIXES}:
        raise UsageError(
            f"--study {path}: the suffix {path.suffix!r} is not known.",
            "Use .db for SQLite, or .journal for Optuna's journal file.",
        )


def parse_strategy(text: str) -> StrategyName:
    """Return the strategy of that name.

    Raises:
        UsageError: There is none.
    """
    for name in STRATEGIES:
        if text == name:
            return name
    raise UsageError(f"--strategy {text}: there is no such strategy.", f"Choose one of {', '.join(STRATEGIES)}.")


NEGLIGIBLE_GAIN = 0.02
"""A gain that is not worth a setting: when the interval excludes more than this, the default is called best."""

CONFIDENCE = 0.95


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a search may spend.

    Attributes:
        seconds: Wall time, from start to verdict; None for what the model and the objective need.
        n_trials: Candidates to screen at most, or None.
    """

    seconds: float | None
    n_trials: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of the duel, over all of its blocks that count.

    Attributes:
        config: Its settings.
        p50_ns: Median latency of a call; p90, p95, p99 and the mean likewise. Where requests arrive at a rate, it
            counts from the arrival. Of several cases, percentiles are geometric means.
        calls_per_s: Throughput, all callers together.
        cpu_ns_per_call: CPU time of the whole process for each call, with what spins between calls.
        cpu_ns_between_calls: Where requests arrive at a rate: the part of it spent while no call was under way.
        utilisation: Where requests arrive at a rate: the share of the callers' time that calls take. From 1 on, the
            queue grows without end.
        n_calls: Calls that the figures rest on; where there are several cases, those of the one with fewest.
        load_ns: Median time to create the session.
        steady_bytes: Resident memory of the whole process after its blocks.
        peak_bytes: Largest resident memory.
        gpu_bytes: Memory that it takes on the GPU, where it uses one and that is told.
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
    cpu_ns_between_calls: float | None = None
    utilisation: float | None = None
    n_calls: int
    load_ns: float
    steady_bytes: int | None = None
    peak_bytes: int | None = None
    gpu_bytes: int | None = None
    session: Loaded


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
    high: float | None
    kept: Literal["yes", "no", "unsure"]


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A config that nothing betters in all objectives.

    Attributes:
        summary: Its figures, with its settings.
        speedups: By objective, how many times better than the default; empty for the default itself.
        limits: Whether it keeps to each limit.
        recommended: Whether it is the knee of the front: where gaining 1 % in one objective begins to cost more than
            1 % of another.
    """

    summary: Summary
    speedups: dict[str, Speedup] = {}
    limits: tuple[LimitCheck, ...] = ()
    recommended: bool = False


class Closest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all that break a limit, what comes closest to keeping to them."""

    config: Config
    limits: tuple[LimitCheck, ...]


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


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate that was tried.

    Attributes:
        number: Position in the order of trying; 0 is the default.
        config: Its settings.
        stage: The last stage that it reached.
        speedups: How many times better than the default in that stage, for each objective; None when it failed.
        over_limits: Limits that it seemed to break.
        blocks: Blocks measured in all stages.
        failure: Why it is out, or None.
    """

    number: int
    config: Config
    stage: Stage
    speedups: tuple[float, ...] | None = None
    over_limits: tuple[str, ...] = ()
    blocks: int = 0
    failure: Failure | None = None


class StageTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a stage's time went: its wall time, and the part of it in which calls were made."""

    stage: Stage
    wall_s: float
    inference_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        verdict: The conclusion.
        reason: Why it is this verdict, a sentence.
        config: What is recommended: the challenger when it is faster, else the default.
        speedup: The duel's result, or None when there was none.
        baseline: The default in the duel, or None.
        winner: The challenger in the duel, or None.
        limits: Whether the challenger keeps to each limit.
        baseline_limits: Whether the default does.
        closest: Where nothing keeps to all limits: what comes closest.
        front: Where several objectives were asked for: the front, in order of the first of them.
        best_so_far: The best candidate of an interrupted search, unproven; else None.
        interrupted: Whether it was ended early.
        budget_s: Wall time that it was given.
        noise: How quiet the host was.
        trials: All candidates that were tried.
        n_candidates: Size of the space.
        stages: Where the time went.
        deterministic: Whether the default's outputs are the same in each run.
        ended_early: Why the screen ended before its time, a sentence; empty if it did not.
    """

    verdict: Verdict
    reason: str
    config: Config
    speedup: Speedup | None = None
    baseline: Summary | None = None
    winner: Summary | None = None
    limits: tuple[LimitCheck, ...] = ()
    baseline_limits: tuple[LimitCheck, ...] = ()
    closest: Closest | None = None
    front: tuple[FrontPoint, ...] = ()
    best_so_far: BestSoFar | None = None
    interrupted: bool
    budget_s: float
    noise: Noise
    trials: tuple[Trial, ...]
    n_candidates: int
    stages: tuple[StageTime, ...]
    deterministic: bool
    ended_early: str = ""


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
