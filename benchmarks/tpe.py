"""Optuna's TPE for categorical parameters, without a study: the same proposals, a hundred times as fast.

A study stores all trials as objects, and its sampler reads them for each proposal. In a comparison of thousands of
searches, this takes nearly all of the time. This module contains only the formulas. `tests/test_regret.py` checks that
the proposals are those of `optuna.samplers.TPESampler`.

Source: S. Watanabe, "Tree-Structured Parzen Estimator" (arXiv 2304.11127), with the defaults of Optuna 5.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

N_STARTUP = 10
N_CANDIDATES = 24
MOST_BELOW = 25
N_FLAT = 25


class ChoiceTpe:
    """Proposes one choice for each dimension.

    Args:
        n_choices: Number of choices of each dimension.
        seed: Random seed.
    """

    def __init__(self, n_choices: Sequence[int], seed: int) -> None:
        self._sizes = np.asarray(n_choices)
        # The same generators as in Optuna, which has a separate one for the first proposals.
        self._startup = np.random.RandomState(seed)
        self._rng = np.random.RandomState(seed)
        self._table = Table(self._sizes)
        self._rows: list[int] = []
        self._values: list[float] = []

    def ask(self) -> list[int]:
        """Return a proposal: the number of a choice for each dimension."""
        n = len(self._values)
        if n < N_STARTUP:
            # Optuna draws a number for each choice, and takes the choice with the largest number.
            return [int(np.argmax(self._startup.uniform(np.zeros(size), np.ones(size)))) for size in self._sizes]
        is_below = np.zeros(n, dtype=bool)
        is_below[np.argsort(self._values, kind="stable")[: min(math.ceil(0.1 * n), MOST_BELOW)]] = True
        rows = np.asarray(self._rows)
        below, above = Kernels(self._table, rows[is_below]), Kernels(self._table, rows[~is_below])
        proposals = below.sample(self._rng)
        # Many proposals are equal.
        unlike, places = np.unique(proposals, axis=0, return_inverse=True)
        ratios = below.log_pdf(unlike) - above.log_pdf(unlike)
        best = int(np.argmax(ratios[places.ravel()]))
        return [int(label) for label in proposals[best]]

    def tell(self, labels: Sequence[int], value: float) -> None:
        """Add the value of a proposal. Lower is better."""
        self._rows.append(self._table.row(tuple(labels)))
        self._values.append(value)


class Table:
    """The distinct proposals with values, one row each, also one-hot encoded."""

    def __init__(self, sizes: Labels) -> None:
        self.sizes = sizes
        self.firsts = np.cumsum(sizes) - sizes
        self.labels = np.zeros((64, len(sizes)), dtype=np.int64)
        self.hot = np.zeros((64, int(sizes.sum())))
        self._rows: dict[tuple[int, ...], int] = {}

    def row(self, labels: tuple[int, ...]) -> int:
        """Return the row of a proposal. Add it if it is new."""
        if labels not in self._rows:
            row = self._rows[labels] = len(self._rows)
            if row == len(self.labels):
                self.labels = np.concatenate([self.labels, np.zeros_like(self.labels)])
                self.hot = np.concatenate([self.hot, np.zeros_like(self.hot)])
            self.labels[row] = labels
            self.hot[row, self.firsts + labels] = 1
        return self._rows[labels]


class Kernels:
    """A mixture of one kernel per observation and a uniform kernel, the prior."""

    def __init__(self, table: Table, rows: Labels) -> None:
        n = len(rows)
        flat = np.ones(min(n, N_FLAT))
        ramp = np.linspace(1 / n, 1, n - N_FLAT) if n > N_FLAT else np.ones(0)
        weights = np.concatenate([ramp, flat, [1.0]])
        self._table, self._rows = table, rows
        self._weights = weights / weights.sum()
        share = 1 / (n + 1)
        self._miss = share / (1 + table.sizes * share)
        self._hit = (1 + share) / (1 + table.sizes * share)

    def sample(self, rng: np.random.RandomState) -> Labels:
        """Draw some proposals, one per row."""
        n, sizes = len(self._rows), self._table.sizes
        chosen = rng.choice(n + 1, p=self._weights, size=N_CANDIDATES)
        observed = np.flatnonzero(chosen < n)
        labels = self._table.labels[self._rows[chosen[observed]]]
        drawn = np.empty((N_CANDIDATES, len(sizes)), dtype=np.int64)
        for column, size in enumerate(sizes):
            shares = np.full((N_CANDIDATES, size), self._miss[column])
            shares[observed, labels[:, column]] = self._hit[column]
            shares[chosen == n] = 1 / size
            cumulated = np.cumsum(shares, axis=1)
            cumulated[:, -1] = 1
            drawn[:, column] = (cumulated < rng.rand(N_CANDIDATES)[:, None]).sum(axis=1)
        return drawn

    def log_pdf(self, proposals: Labels) -> Array:
        """Return the logarithm of the density of each proposal."""
        table = self._table
        # Repeated observations are one kernel with the sum of their weights.
        sums = np.bincount(self._rows, self._weights[:-1])
        kept = np.flatnonzero(sums)
        gains = np.zeros((len(proposals), table.hot.shape[1]))
        for column, gain in enumerate(np.log(self._hit / self._miss)):
            gains[np.arange(len(proposals)), table.firsts[column] + proposals[:, column]] = gain
        logs = np.empty((len(proposals), len(kept) + 1))
        logs[:, :-1] = gains @ table.hot[kept].T + (np.log(self._miss).sum() + np.log(sums[kept]))
        logs[:, -1] = np.log(self._weights[-1]) - np.log(table.sizes).sum()
        most = logs.max(axis=1)
        return np.asarray(np.log(np.exp(logs - most[:, None]).sum(axis=1)) + most)
