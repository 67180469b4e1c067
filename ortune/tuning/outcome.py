"""What a search takes, tells on the way, and gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from ortune.compare.interval import Interval
from ortune.compare.results import LimitCheck, Noise, Speedup, Stage, StageTime, Summary
from ortune.errors import UsageError
from ortune.knobs.config import Config
from ortune.record.schema import BestSoFar, Closest, FrontPoint, Verdict
from ortune.record.trials import Trial, TrialRound

if TYPE_CHECKING:
    from ortune.knobs import Candidate


StrategyName = Literal["adaptive", "tpe", "random", "exhaustive"]
"""In which order candidates are screened.

- "adaptive": what similar models, the documentation and the measurements so far make most promising.
- "tpe": Optuna's tree-structured Parzen estimator.
- "random": at random.
- "exhaustive": all of them.
"""


STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


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


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a search may spend.

    Attributes:
        seconds: Wall time, from start to verdict; None for what the model and the objective need.
        n_trials: Candidates to screen at most, or None.
    """

    seconds: float | None
    n_trials: int | None = None


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
        rounds: What each round measured.
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
    rounds: tuple[TrialRound, ...] = ()
    n_candidates: int
    stages: tuple[StageTime, ...]
    deterministic: bool
    ended_early: str = ""


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
