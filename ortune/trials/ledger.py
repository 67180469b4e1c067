"""The ledger: every candidate that was tried, with all that was measured of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ortune.knobs import Candidate
from ortune.measure import Failure
from ortune.trials.meter import Round, one_regime, raise_default
from ortune.trials.values import Stage, Trial

DEFAULT_POSITION = 0
"""In every round, the default is the first of the list."""


class Entry:
    """One candidate's account.

    Attributes:
        candidate: What was tried.
        number: Position in the order of trying.
        stage: The last stage that it reached.
        log_ratios: In that stage, log(candidate / default) of each round, with whether the round was contended.
        n_blocks: Blocks measured in all stages.
        failure: Why it is out, or None.
    """

    def __init__(self, candidate: Candidate, number: int) -> None:
        self.candidate = candidate
        self.number = number
        self.stage: Stage = "screen"
        self.log_ratios: list[tuple[float, bool]] = []
        self.n_blocks = 0
        self.failure: Failure | None = None

    def enter(self, stage: Stage) -> None:
        """Begin a stage: what was measured before chose this candidate, and is biased by that."""
        self.stage = stage
        self.log_ratios = []

    @property
    def values(self) -> list[float]:
        """Log-ratios of one regime, quiet if there are two such."""
        return one_regime(self.log_ratios, n_quiet=2)[0]

    @property
    def value(self) -> float | None:
        """Median log-ratio to the default, below 0 when faster; None while nothing is known or it failed."""
        return float(np.median(self.values)) if self.log_ratios and not self.failure else None


class Ledger:
    """All candidates that were tried, by config."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

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
        return self._entries.setdefault(candidate.config.key, Entry(candidate, len(self._entries)))

    def post(self, entries: list[Entry], measured: Round) -> None:
        """Enter a round; `entries` are in the order of its positions, the default first."""
        default = measured.blocks.get(DEFAULT_POSITION)
        for position, block in measured.blocks.items():
            entry = entries[position]
            entry.n_blocks += 1
            if default is not None:
                contended = block.contended or default.contended
                entry.log_ratios.append((math.log(block.p50_ns / default.p50_ns), contended))
        for position, failure in measured.failures.items():
            if position == DEFAULT_POSITION:
                raise_default(failure)
            entries[position].failure = failure

    def challengers(self) -> list[Entry]:
        """Return the candidates that have a value, the default left out, the fastest first."""
        known = [entry for entry in self if entry.value is not None and not entry.candidate.config.is_default]
        return sorted(known, key=lambda entry: (entry.value, entry.number))

    def trials(self) -> tuple[Trial, ...]:
        """Return all accounts as they are written to the record."""
        return tuple(
            Trial(
                number=entry.number,
                config=entry.candidate.config,
                stage=entry.stage,
                speedup=None if entry.value is None else round(math.exp(-entry.value), 4),
                blocks=entry.n_blocks,
                failure=entry.failure,
            )
            for entry in sorted(self, key=lambda entry: entry.number)
        )
