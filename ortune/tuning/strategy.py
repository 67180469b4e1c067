"""Names of the strategies: the order in which candidates are screened."""

from __future__ import annotations

from typing import Literal, get_args

from ortune.errors import UsageError

StrategyName = Literal["adaptive", "tpe", "random", "exhaustive"]
"""The order in which candidates are screened.

- "adaptive": the most promising first, going by similar models, the documentation and the measurements so far.
- "tpe": Optuna's tree-structured Parzen estimator.
- "random": at random.
- "exhaustive": all of them, in the order of the space.
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
    raise UsageError(f"{text}: no such strategy.", f"Choose one of {', '.join(STRATEGIES)}.", option="strategy")
