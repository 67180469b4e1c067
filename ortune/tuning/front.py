"""The front: where several objectives were asked for, the best of the race and the default in one match."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ortune.compare.figures import calls_needed, is_pooled
from ortune.compare.limits import is_overloaded, kept_all, worst_excess
from ortune.compare.paired_run import DEFAULT_POSITION, PairedRun, PairedStats
from ortune.compare.results import CONFIDENCE, Speedup, StageTime, Summary
from ortune.record.schema import Closest, FrontPoint, Verdict
from ortune.tuning.budget import MOST_CHALLENGERS
from ortune.tuning.confirmation import run_pairs
from ortune.tuning.pareto import ALIKE, find_front, find_knee
from ortune.tuning.results import Entry
from ortune.tuning.state import Context


class FrontResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the match showed.

    Attributes:
        verdict: The conclusion.
        reason: Why, a sentence.
        front: The points of the front, in order of the first objective.
        default: The default's figures, or None when there were too few rounds for any.
        closest: Where nothing keeps to all limits: what comes closest.
        contended: Whether the figures rest on rounds that were measured while others used the CPUs.
        time: Where the time went.
    """

    verdict: Verdict
    reason: str
    front: tuple[FrontPoint, ...] = ()
    default: Summary | None = None
    closest: Closest | None = None
    contended: bool
    time: StageTime


def run_front(context: Context, ranked: Sequence[Entry], *, seed: int) -> FrontResult:
    """Let the best of the race and the default meet, and find the front among them."""
    plan, goal = context.plan, context.goal
    chosen = spread(ranked, min(MOST_CHALLENGERS, plan.max_live - 1))
    # The plan is for as many challengers as there may be.
    rounds = max(2, plan.pairs_per_restart * (1 + MOST_CHALLENGERS) // (len(chosen) + 1) // 2 * 2)

    def report(match: PairedRun) -> None:
        standing = [entry for entry in context.ledger.challengers() if entry in chosen]
        context.report("confirmation", match.n_rounds, plan.restarts * rounds, standing[0] if standing else None)

    match, time = run_pairs(context, chosen, rounds=rounds, report=report)
    tally = PairedStats(match, goal, seed)
    if len(match.failures) == len(chosen):
        return FrontResult(
            verdict="inconclusive", reason="all challengers failed in the match", contended=tally.contended, time=time
        )
    if len(tally.launches) < 2:
        reason = "the budget is too small to prove anything: give it more"
        return FrontResult(verdict="inconclusive", reason=reason, contended=tally.contended, time=time)
    return judge_front(context, tally, time)


def spread(ranked: Sequence[Entry], n: int) -> list[Entry]:
    """Return up to `n` candidates: those that keep to the limits, the front first, with its ends among them."""
    known = [entry for entry in ranked if entry.vector is not None]
    known = [entry for entry in known if not entry.excess] or known[:1]
    chosen: list[Entry] = []
    while known and len(chosen) < n:
        vectors = [entry.vector or () for entry in known]
        layer = [known[position] for position in find_front(vectors)]
        room = n - len(chosen)
        if len(layer) > room:
            # Evenly along the front, with both ends.
            layer = [layer[round(step * (len(layer) - 1) / max(room - 1, 1))] for step in range(room)]
        chosen += [entry for entry in layer if entry not in chosen]
        known = [entry for entry in known if entry not in chosen]
    return chosen


def judge_front(context: Context, tally: PairedStats, time: StageTime) -> FrontResult:
    """Find the front and its knee, and draw the conclusion."""
    goal = context.goal
    sides = [position for position in range(len(tally.match.configs)) if position not in tally.match.failures]
    speedups: dict[int, dict[str, Speedup]] = {DEFAULT_POSITION: {}}
    limits = {position: tuple(tally.check(position, limit) for limit in goal.limits) for position in sides}
    summaries = {position: tally.summary(position) for position in sides}
    default = summaries[DEFAULT_POSITION]
    # Several comparisons are made at once: each must be surer, so that all together are as sure as they say
    # (Bonferroni's inequality). And what is measured without noise, as memory is, must differ by something.
    confidence = 1 - (1 - CONFIDENCE) / ((len(sides) - 1) * len(goal.objectives))
    proven: list[int] = [DEFAULT_POSITION]
    for position in sides[1:]:
        found = {name: tally.speedup(position, name) for name in goal.objectives}
        speedups[position] = {name: each for name, each in found.items() if each is not None}
        sure = [tally.speedup(position, name, confidence) for name in goal.objectives]
        if any(each and each.low > 1 and each.estimate > 1 + ALIKE for each in sure):
            proven.append(position)
    vectors = {
        position: tuple(-math.log(speedups[position][name].estimate) if position else 0.0 for name in goal.objectives)
        for position in sides
    }
    kept = {position: "no" if is_overloaded(summaries[position]) else kept_all(limits[position]) for position in sides}

    def result(verdict: Verdict, reason: str, positions: Sequence[int], *, recommend: bool) -> FrontResult:
        # Of those that are alike, the one with fewest settings stays.
        simplest = sorted(positions, key=lambda position: len(tally.match.configs[position].settings))
        front = [simplest[place] for place in find_front([vectors[position] for position in simplest])]
        knee = front[find_knee([vectors[position] for position in front])] if recommend else None
        points = tuple(
            FrontPoint(
                summary=summaries[position],
                speedups=speedups[position],
                limits=limits[position],
                recommended=position == knee,
            )
            for position in front
        )
        closest = None
        if verdict == "infeasible":
            nearest = min(sides, key=lambda position: worst_excess(goal, limits[position]))
            closest = Closest(config=tally.match.configs[nearest], limits=limits[nearest])
        return FrontResult(
            verdict=verdict,
            reason=reason,
            front=points,
            default=default,
            closest=closest,
            contended=tally.contended,
            time=time,
        )

    if all(is_overloaded(summary) for summary in summaries.values()):
        reason = "requests arrive faster than the default or any of its challengers can serve them"
        return result("overload", reason, proven, recommend=False)
    if all(each == "no" for each in kept.values()):
        return result("infeasible", "nothing in the match keeps to all limits", proven, recommend=False)
    keeping = [position for position in sides if kept[position] == "yes"]
    lacking = [
        name
        for name in goal.objectives
        if is_pooled(name) and calls_needed(name) > min(s.n_calls for s in summaries.values())
    ]
    if lacking or not keeping:
        reason = (
            f"{lacking[0]} should rest on {calls_needed(lacking[0])} calls of each side, and there were fewer"
            if lacking
            else "it is uncertain whether anything keeps to the limits"
        )
        return result("inconclusive", f"{reason}: give it a larger --budget", proven, recommend=False)
    if kept[DEFAULT_POSITION] == "no":
        # Whatever keeps to the limits is better than what does not.
        return result("trade_off", "the default breaks a limit, and these keep to all", keeping, recommend=True)
    offered = [position for position in proven if kept[position] == "yes" or position == DEFAULT_POSITION]
    answer = result("trade_off", "none of these is better than another in everything", offered, recommend=True)
    if [point.summary.config for point in answer.front] == [tally.match.configs[DEFAULT_POSITION]]:
        reason = "nothing is better in any of the objectives beyond doubt"
        return msgspec.structs.replace(answer, verdict="default_is_best", reason=reason)
    return answer
