"""The outcome of a search, and its progress."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ortune.errors import OrtuneError
from ortune.knobs import Candidate
from ortune.knobs.config import Config
from ortune.measure.comparison import Stage, StageTime
from ortune.measure.interval import Interval
from ortune.record.schema import Evidence
from ortune.record.trials import Trial, TrialRound, TrialSession


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search.

    Attributes:
        config: The recommended config: the winner's if it is proven to be better, else the baseline's.
        evidence: The verdict, and what it rests on.
        interrupted: Whether the search was interrupted.
        budget_s: Its budget.
        trials: All candidates that were tried.
        rounds: What each round measured.
        sessions: Effective settings in the sessions of the confirmation.
        n_candidates: Size of the space.
        stages: Time spent in each stage.
        ended_early: Why screening ended before its time; empty if it did not.
        unseen_gain: Bound of the gain of untried candidates, as a log-ratio; None if unknown.
        tried_gain: Bound of the gain of those that were tried, but not confirmed.
        has_failed: Whether the best candidate failed in confirmation.
        fault: Why the search could not go on, or None. It is raised when what was measured is written.
    """

    config: Config
    evidence: Evidence
    interrupted: bool
    budget_s: float
    trials: tuple[Trial, ...]
    rounds: tuple[TrialRound, ...] = ()
    sessions: tuple[TrialSession, ...] = ()
    n_candidates: int
    stages: tuple[StageTime, ...]
    ended_early: str = ""
    unseen_gain: float | None = None
    tried_gain: float = 0.0
    has_failed: bool = False
    fault: OrtuneError | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a search, reported between blocks.

    Attributes:
        stage: The current stage.
        done: Steps done: candidates screened, launches of racing, rounds of confirmation.
        total: Candidates of the space, or planned rounds of confirmation; None for racing, which ends when it is
            decided.
        share: Share of the stage that is done, as far as is known.
        left_s: Time until the end of the search, as far as is known; 0 if it takes longer than planned.
        may_end_early: Whether it may end long before that: in screening and racing, and in a confirmation that does not
            show a gain so far.
        best: The best candidate so far, or None.
        speedup: Its speedup; None if it is not known yet.
        gain_left: By how much any candidate is better than the best one so far, at most, as a share, with a probability
            of 95 %. It is known in screening only; else None.
        n_nodes: Nodes that take part in the search.
        n_shared: Candidates that only others of them measured.
        notes: Events since the last report, such as a candidate that failed.
    """

    stage: Stage
    done: int
    total: int | None
    share: float = 0.0
    left_s: float
    may_end_early: bool = False
    best: Candidate | None = None
    speedup: Interval | None = None
    gain_left: float | None = None
    n_nodes: int = 1
    n_shared: int = 0
    notes: tuple[str, ...] = ()


Observe = Callable[[Progress], None]
"""Called with the progress of a search. It is never called while a block is measured."""
