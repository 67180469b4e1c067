"""The rules that all verdicts follow, and their words.

A judge answers one kind of question, such as that of a search or of a gate. It asks these functions where intervals lie
and whether limits are kept, and adds what only its question needs: what it asks first, and the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

Place = Literal["above", "below", "unclear"]
"""Where an interval lies: wholly above a bound, wholly below it, or neither."""

Kept = Literal["yes", "unsure", "no"]
"""Whether a limit is kept, or all requests are served."""

KEPT: tuple[Kept, ...] = ("no", "unsure", "yes")
"""What decides for several limits, first to last: one that is broken, then one that may be."""

Verdict = Literal[
    "faster",
    "default_is_best",
    "nothing_found",
    "inconclusive",
    "within_limits",
    "infeasible",
    "overload",
    "trade_off",
]
"""The conclusion of a search.

- "faster": the winner is proven to be better than the baseline, and stays within all limits.
- "default_is_best": no candidate is better than the baseline. Either all were tried, or those that were not probably
  gain little.
- "nothing_found": the best candidate that was tried is not better than the baseline, but another one may be.
- "inconclusive": neither could be proven.
- "within_limits": the baseline exceeds a limit, and the winner stays within all of them.
- "infeasible": all configs that were compared exceed a limit.
- "overload": requests arrive faster than the baseline or any candidate can serve them.
- "trade_off": several objectives were given, and there is a Pareto front to choose from.
"""

HostsVerdict = Literal["faster", "faster_on_average", "slower", "inconclusive"]
"""The conclusion over several hosts.

- "faster": better than the baseline over all hosts of the class, and on none of those measured proven to be worse.
- "faster_on_average": the same, but proven to be worse on some, or not working there.
- "slower": worse than the baseline over all hosts of the class.
- "inconclusive": neither could be proven.
"""

RolloutVerdict = Literal["better", "not_worse", "worse", "inconclusive"]
"""Whether the canaries of a rollout are better than the other processes, or at most allowably worse."""

Answer = Literal["holds", "does_not_hold", "inconclusive", "nothing_to_verify"]
"""Whether a recorded gain holds on this host."""

Decision = Literal["pass", "fail", "inconclusive"]
"""The decision of a gate, or on one of its objectives."""

DECISIONS: tuple[Decision, ...] = ("fail", "inconclusive", "pass")
"""What decides for several objectives, first to last."""

TargetVerdict = Literal["kept", "unclear", "broken"]
"""Whether a target is kept: the interval of the latency lies below it, contains it, or lies above it. It is also broken
if requests arrive faster than they are served. Without a target, the interval of the utilization is compared with 1."""

TARGET_VERDICTS: dict[Kept, TargetVerdict] = {"no": "broken", "unsure": "unclear", "yes": "kept"}
"""The words of plans, for what is said of limits elsewhere. The first that occurs decides for several targets."""

LAUNCHES_OF_A_PROOF = 5
"""Launches of each side that a claim rests on, without rounds that were left out."""

COUNTED_LAUNCHES_OF_A_PROOF = 3
"""How many of them must count in a median. In the others, one side may have been slow."""

LAUNCHES_AT_TWO_SPEEDS = 8
"""Launches that are planned where launches of the baseline were slow before: of fewer, most may be slow by chance."""

NEGLIGIBLE_GAIN = 0.02
"""Largest gain that does not justify a setting. If the interval excludes a larger gain, recommend the baseline."""

Word = TypeVar("Word", bound=str)


class Ends(Protocol):
    """The ends of an interval; the upper one is None if there is no finite one."""

    @property
    def low(self) -> float:
        """Lower end."""

    @property
    def high(self) -> float | None:
        """Upper end."""


def compare(found: Ends, bound: float) -> Place:
    """Return where an interval lies. One that ends at the bound contains it."""
    if found.low > bound:
        return "above"
    return "below" if found.high is not None and found.high < bound else "unclear"


def describe_few_launches(n_launches: int) -> str:
    """Return that too few launches count for a claim, as a clause."""
    counted = "one launch of each config counts" if n_launches == 1 else f"{n_launches} launches of each config count"
    return f"only {counted}, where a proof needs {LAUNCHES_OF_A_PROOF}"


def is_negligible(speedup: Ends) -> bool:
    """Return whether a relevant gain is excluded."""
    return compare(speedup, 1 + NEGLIGIBLE_GAIN) == "below"


def judge_utilization(low: float, high: float) -> Kept:
    """Return whether all requests are served, given the ends of the utilization. From 1 on, the queue grows forever."""
    if high < 1:
        return "yes"
    return "no" if low >= 1 else "unsure"


def find_deciding(found: Iterable[Word], order: Sequence[Word]) -> Word:
    """Return the word that decides for all: the first one of `order` that occurs, or its last one if none does."""
    words = set(found)
    return next((word for word in order if word in words), order[-1])
