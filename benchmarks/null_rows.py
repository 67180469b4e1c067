"""Results of A/A tests: comparisons in which there is no difference to find."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.host import note_noise
from benchmarks.parts import Row
from ortune.measure.comparison import Comparison
from ortune.tuning.verdict import judge_interval


def make_row(comparison: Comparison, **about: object) -> Row:
    """Return what a search would claim after a comparison of two candidates.

    Args:
        comparison: The comparison.
        about: What was compared, by name.
    """
    speedup, noise = comparison.rows[1].speedup, comparison.noise
    assert speedup is not None, "a comparison needs two launches: a larger budget"
    return {
        **about,
        "estimate": speedup.estimate,
        "low": speedup.low,
        "high": speedup.high,
        "pairs": speedup.n_pairs,
        "restarts": speedup.n_launches,
        "claimed": not speedup.low <= 1 <= speedup.high,
        "verdict": judge_interval(speedup)[0],
        "regime": noise.regime,
        "contended": noise.n_contended,
        "blocks": noise.n_blocks,
    }


def show_row(row: Row, number: object, name: str) -> str:
    """Return a line with one result."""
    return (
        f"{number:3} {name} {row['estimate']:.4f} [{row['low']:.4f}, {row['high']:.4f}] "
        f"{row['pairs']} pairs {row['regime']:9} {row['verdict']}{'  without 1' if row['claimed'] else ''}"
    )


def print_sums(rows: Sequence[Row], kind: str, width: int) -> None:
    """Print how often an interval excluded 1, and a gain was claimed, for each kind of comparison and for all of them.

    Args:
        rows: The results.
        kind: Name of the entry that holds the kind.
        width: Width of its column.
    """
    print()
    print(f"{kind:{width}} comparisons  without 1  gains claimed  median width  largest error")
    for name in (*dict.fromkeys(row[kind] for row in rows), "all"):
        some = [row for row in rows if name in ("all", row[kind])]
        widths = [100 * (row["high"] - row["low"]) for row in some]
        errors = [100 * abs(math.log(row["estimate"])) for row in some]
        n_without = sum(row["claimed"] for row in some)
        n_gains = sum(row["verdict"] == "faster" for row in some)
        print(
            f"{name:{width}} {len(some):11}  {n_without:9}  {n_gains:13}  {np.median(widths):9.2f} pp  "
            f"{max(errors):10.2f} %"
        )
    print(note_noise(rows))
