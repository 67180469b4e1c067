"""The search: Optuna screens candidates, a race narrows them down, a duel proves the winner."""

from __future__ import annotations

from ortune.trials.run import Basis, run_search
from ortune.trials.values import Budget, Noise, Observe, Outcome, Progress, Speedup, Summary, Trial, Verdict

__all__ = [
    "Basis",
    "Budget",
    "Noise",
    "Observe",
    "Outcome",
    "Progress",
    "Speedup",
    "Summary",
    "Trial",
    "Verdict",
    "run_search",
]
