"""The outcome of a search, and its progress."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ortune.compare.comparison import LimitCheck, Noise, Speedup, Stage, StageTime, Summary
from ortune.compare.interval import Interval
from ortune.knobs import Candidate
from ortune.knobs.config import Config
from ortune.record.schema import BestSoFar, Closest, FrontPoint, Verdict
from ortune.record.trials import Trial, TrialRound, TrialSession


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search.

    Attributes:
        verdict: The conclusion.
        reason: The reason for it, as a sentence without a period.
        config: The recommended config: the winner's if it is proven to be better, else the baseline's.
        speedup: Speedup of the winner in confirmation; None if it was not confirmed.
        baseline: Figures of the baseline in confirmation, or None.
        winner: Figures of the winner in confirmation, or None.
        limits: Whether the winner keeps to each limit.
        baseline_limits: Whether the baseline keeps to each limit.
        closest: The config that comes closest to keeping to all limits, if none keeps to them.
        front: With several objectives: the Pareto front, in order of the first objective.
        best_so_far: The best candidate of an interrupted search, unproven; else None.
        interrupted: Whether the search was interrupted.
        budget_s: Its budget.
        noise: CPU use by other processes.
        trials: All candidates that were tried.
        rounds: What each round measured.
        sessions: Effective settings in the sessions of the confirmation.
        n_candidates: Size of the space.
        stages: Time spent in each stage.
        deterministic: Whether the baseline's outputs are the same in each run.
        ended_early: Why screening ended before its time; empty if it did not.
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
    sessions: tuple[TrialSession, ...] = ()
    n_candidates: int
    stages: tuple[StageTime, ...]
    deterministic: bool
    ended_early: str = ""

    @property
    def max_error(self) -> float | None:
        """Largest difference of the winner's outputs from the baseline's; None without a winner."""
        config = self.winner and self.winner.config
        return next((each.session.max_error for each in self.sessions if each.config == config), None)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a search, reported between blocks.

    Attributes:
        stage: The current stage.
        done: Steps done: candidates screened, rounds of racing, rounds of confirmation.
        total: Steps planned, at most.
        left_s: Time left of the budget.
        best: The best candidate so far, or None.
        speedup: Its speedup; None if it is not known yet.
        notes: Events since the last report, such as a candidate that failed.
    """

    stage: Stage
    done: int
    total: int
    left_s: float
    best: Candidate | None = None
    speedup: Interval | None = None
    notes: tuple[str, ...] = ()


Observe = Callable[[Progress], None]
"""Called with the progress of a search. It is never called while a block is measured."""
