"""The ledger: every candidate that was tried, with all that was measured of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from ortune.compare.block_runner import Round, one_regime, raise_default
from ortune.compare.figures import calls_needed, cost, is_pooled, supported_figure, thin
from ortune.compare.paired_run import DEFAULT_POSITION
from ortune.compare.results import Stage
from ortune.knobs import Candidate
from ortune.record.trials import Trial, TrialRound
from ortune.tuning.pareto import rank_of
from ortune.worker import Block, Failure
from ortune.workload import Goal

LENIENCE = 0.05
"""Log-ratio by which a limit may seem broken in the screen or the race: a few blocks are off by as much."""

LENIENCE_OF_FEW_CALLS = 0.4
"""The same for a percentile of which few calls can only tell a lower one, which may rank the other way round: at a
rate, a slower but steadier candidate loses at p90 and wins at p99."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What one round says of a candidate.

    Attributes:
        log_ratios: For each objective: log(cost of the candidate / cost of the default).
        excesses: For each limit, and last for the rate if there is one: by how much it is broken, as a log-ratio;
            below 0 where it is kept.
        contended: Whether the round was.
        blocks: The default's and the candidate's block, where a percentile asks for more calls than one has.
    """

    log_ratios: tuple[float, ...]
    excesses: tuple[float, ...]
    contended: bool
    blocks: tuple[Block, Block] | None


class Entry:
    """One candidate's account.

    Attributes:
        candidate: What was tried.
        goal: What it was tried for.
        number: Position in the order of trying.
        stage: The last stage that it reached.
        scores: Of each round in that stage.
        n_blocks: Blocks measured in all stages.
        failure: Why it is out, or None.
    """

    def __init__(self, candidate: Candidate, number: int, goal: Goal) -> None:
        self.candidate = candidate
        self.goal = goal
        self._sum: tuple[int, tuple[tuple[float, ...], tuple[float, ...]]] | None = None
        self.number = number
        self.stage: Stage = "screening"
        self.scores: list[Score] = []
        self.n_blocks = 0
        self.failure: Failure | None = None

    def enter(self, stage: Stage) -> None:
        """Begin a stage: what was measured before chose this candidate, and is biased by that."""
        self.stage = stage
        self.scores = []
        self._sum = None

    @property
    def counting(self) -> list[Score]:
        """Scores of one regime, quiet if there are two such."""
        return self._regime()[0]

    @property
    def is_contended(self) -> bool:
        """Whether the scores that count are those of a busy host."""
        return self._regime()[1]

    def _regime(self) -> tuple[list[Score], bool]:
        return one_regime([(score, score.contended) for score in self.scores], n_quiet=2)

    @property
    def values(self) -> list[float]:
        """Log-ratios of the first objective, of one regime."""
        return [score.log_ratios[0] for score in self.counting]

    @property
    def vector(self) -> tuple[float, ...] | None:
        """Log-ratio to the default of each objective, below 0 when better; None while nothing is known.

        It is the median of the rounds'; of a percentile beyond the median, that of all their calls together.
        """
        if not self.scores or self.failure:
            return None
        return self._summed_up()[0]

    @property
    def value(self) -> float | None:
        """Median log-ratio of the first objective, or None likewise."""
        return self.vector[0] if self.vector else None

    @property
    def excesses(self) -> tuple[float, ...]:
        """Excess over each limit, and last over the rate if there is one, likewise."""
        return self._summed_up()[1] if self.scores else ()

    def _summed_up(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self._sum and self._sum[0] == len(self.scores):
            return self._sum[1]
        scores = self.counting
        ratios = np.median([score.log_ratios for score in scores], axis=0).tolist()
        excesses = np.median([score.excesses for score in scores], axis=0).tolist()
        pairs = [score.blocks for score in scores if score.blocks]
        if pairs:
            for place, name in enumerate(self.goal.objectives):
                if is_pooled(name):
                    default, own = (supported_figure(name, [pair[side] for pair in pairs]) for side in (0, 1))
                    ratios[place] = math.log(cost(name, own) / cost(name, default))
            for place, limit in enumerate(self.goal.limits):
                if is_pooled(limit.figure):
                    default, own = (supported_figure(limit.figure, [pair[side] for pair in pairs]) for side in (0, 1))
                    n_calls = sum(len(pair[1].samples_ns) for pair in pairs)
                    unknown = 1 - min(n_calls / calls_needed(limit.figure), 1.0)
                    excess = limit.excess(own / default if limit.relative else own)
                    excesses[place] = excess - LENIENCE_OF_FEW_CALLS * unknown
        self._sum = (len(self.scores), (tuple(ratios), tuple(excesses)))
        return self._sum[1]

    @property
    def excess(self) -> float:
        """By how much the worst-kept limit seems broken, beyond what a few blocks may be off by; 0 if none is."""
        return max([0.0, *(excess - LENIENCE for excess in self.excesses)])


class Results:
    """All candidates that were tried, by config."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self._pools = any(is_pooled(name) for name in goal.figures)
        self._entries: dict[str, Entry] = {}
        self.rounds: list[TrialRound] = []

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate.config.key in self._entries

    def __getitem__(self, candidate: Candidate) -> Entry:
        return self._entries[candidate.config.key]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, candidate: Candidate) -> Entry:
        """Return the candidate's entry, which is made if it is new."""
        return self._entries.setdefault(candidate.config.key, Entry(candidate, len(self._entries), self.goal))

    def post(self, entries: list[Entry], measured: Round) -> None:
        """Enter a round; `entries` are in the order of its positions, the default first."""
        default = measured.blocks.get(DEFAULT_POSITION)
        self.rounds.append(self._describe(entries, measured))
        for position, block in measured.blocks.items():
            entry = entries[position]
            entry.n_blocks += 1
            if default is not None:
                entry.scores.append(
                    Score(
                        log_ratios=tuple(
                            math.log(cost(name, measured.figure(name, position)))
                            - math.log(cost(name, measured.figure(name, DEFAULT_POSITION)))
                            for name in self.goal.objectives
                        ),
                        excesses=self._excesses(measured, position),
                        contended=block.contended or default.contended,
                        blocks=(thin(default), thin(block)) if self._pools else None,
                    )
                )
        for position, failure in measured.failures.items():
            if position == DEFAULT_POSITION:
                raise_default(failure)
            entries[position].failure = failure

    def _describe(self, entries: list[Entry], measured: Round) -> TrialRound:
        """Return a round as it is written to the trials file."""
        return TrialRound(
            stage=entries[-1].stage,
            values={
                entries[position].number: tuple(measured.figure(name, position) for name in self.goal.figures)
                for position in measured.blocks
            },
            contended=tuple(entries[position].number for position, block in measured.blocks.items() if block.contended),
        )

    def _excesses(self, measured: Round, position: int) -> tuple[float, ...]:
        excesses = [
            limit.excess(
                measured.figure(limit.figure, position)
                / (measured.figure(limit.figure, DEFAULT_POSITION) if limit.relative else 1)
            )
            for limit in self.goal.limits
        ]
        load = self.goal.load
        if load.rate_per_s:
            # A limit that nobody has to name: requests must not arrive faster than they are served.
            excesses.append(math.log(load.utilization(measured.blocks[position].service_ns)))
        return tuple(excesses)

    def challengers(self) -> list[Entry]:
        """Return the candidates that are known, the default left out, the best first.

        Those that keep to the limits come before those that do not, which are ordered by how near they come. With
        several objectives, those that no other betters in all of them come first.
        """
        known = [entry for entry in self if entry.vector is not None and entry.number != DEFAULT_POSITION]
        vectors = [entry.vector or () for entry in known]
        order = {entry.number: rank_of(vector, vectors) for entry, vector in zip(known, vectors, strict=True)}
        return sorted(known, key=lambda entry: (entry.excess, order[entry.number], entry.number))

    def trials(self) -> tuple[Trial, ...]:
        """Return all accounts as they are written to the record."""
        return tuple(
            Trial(
                number=entry.number,
                config=entry.candidate.config,
                stage=entry.stage,
                speedups=tuple(round(math.exp(-value), 4) for value in entry.vector) if entry.vector else None,
                over_limits=tuple(
                    limit.text for limit, excess in zip(self.goal.limits, entry.excesses, strict=False) if excess > 0
                ),
                n_blocks=entry.n_blocks,
                failure=entry.failure,
            )
            for entry in sorted(self, key=lambda entry: entry.number)
        )
