"""The duel: the challenger against the default, and what it proves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ortune.compare.figures import calls_needed
from ortune.compare.limits import capacity, is_overloaded, kept_all, names_of
from ortune.compare.paired_run import DEFAULT_POSITION, PairedRun, PairedStats
from ortune.compare.results import LimitCheck, Speedup, StageTime, Summary
from ortune.record.schema import Verdict
from ortune.tuning.outcome import NEGLIGIBLE_GAIN
from ortune.tuning.results import Entry
from ortune.tuning.state import Context
from ortune.worker import Failure
from ortune.workload import Goal

CHALLENGER_POSITION = 1


class ConfirmationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the duel showed.

    Attributes:
        speedup: The interval, or None when there were too few pairs for one.
        challenger: The challenger's figures, or None likewise.
        default: The default's.
        limits: Whether the challenger keeps to each limit.
        default_limits: Whether the default does.
        enough_calls: Whether there were calls enough for a percentile, or the sides are so far apart that few suffice.
        contended: Whether the claim rests on pairs that were measured while others used the CPUs.
        failure: Why the challenger is out after all, or None.
        time: Where the time went.
    """

    speedup: Speedup | None = None
    challenger: Summary | None = None
    default: Summary | None = None
    limits: tuple[LimitCheck, ...] = ()
    default_limits: tuple[LimitCheck, ...] = ()
    enough_calls: bool = True
    contended: bool
    failure: Failure | None = None
    time: StageTime


def run_confirmation(context: Context, entry: Entry, *, seed: int) -> ConfirmationResult:
    """Fight the duel as it was planned."""
    plan, goal = context.plan, context.goal

    def report(match: PairedRun) -> None:
        tally = PairedStats(match, goal, seed)
        context.report(
            "confirmation",
            match.n_rounds,
            plan.restarts * plan.pairs_per_restart,
            entry,
            tally.speedup(CHALLENGER_POSITION, goal.objective),
        )

    match, time = run_pairs(context, [entry], rounds=plan.pairs_per_restart, report=report)
    tally = PairedStats(match, goal, seed)
    failure = match.failures.get(CHALLENGER_POSITION)
    speedup = None if failure else tally.speedup(CHALLENGER_POSITION, goal.objective)
    if speedup is None:
        return ConfirmationResult(contended=tally.contended, failure=failure, time=time)
    return ConfirmationResult(
        speedup=speedup,
        challenger=tally.summary(CHALLENGER_POSITION),
        default=tally.summary(DEFAULT_POSITION),
        limits=tuple(tally.check(CHALLENGER_POSITION, limit) for limit in goal.limits),
        default_limits=tuple(tally.check(DEFAULT_POSITION, limit) for limit in goal.limits),
        enough_calls=tally.rests_on_enough(CHALLENGER_POSITION, goal.objective),
        contended=tally.contended,
        time=time,
    )


def run_pairs(
    context: Context, entries: Sequence[Entry], *, rounds: int, report: Callable[[PairedRun], None]
) -> tuple[PairedRun, StageTime]:
    """Let the default and some challengers meet for the time of the duel, and enter all rounds in the ledger.

    Args:
        context: The search.
        entries: The challengers.
        rounds: Rounds in each launch.
        report: Is called after each launch.
    """
    plan, meter = context.plan, context.meter
    start_s, inference_s = context.now_s(), meter.inference_s
    for entry in entries:
        entry.enter("confirmation")
    match = PairedRun([context.space.base, *(entry.candidate.config for entry in entries)], context.goal.load)

    def post() -> None:
        for each in match.launches[-1]:
            context.ledger.post([context.default, *entries], each)
        report(match)

    match.play(
        meter,
        plan.confirmation_block,
        launches=plan.restarts,
        rounds=rounds,
        # Noise may stretch it, but not without end.
        end_s=max(start_s + 1.5 * plan.confirmation_s, context.end_s),
        report=post,
    )
    for position, failure in match.failures.items():
        context.fail(entries[position - 1], failure)
    return match, meter.stage_time("confirmation", start_s, inference_s)


def judge(goal: Goal, duel: ConfirmationResult, *, others_left: bool = False) -> tuple[Verdict, str]:
    """Return the verdict on a duel that was fought to its end, and the reason in a sentence.

    Args:
        goal: What the search is for.
        duel: The last duel.
        others_left: Whether there are candidates that seemed better and within the limits, and had no duel.
    """
    assert duel.speedup and duel.challenger and duel.default
    if is_overloaded(duel.challenger):
        served = f"{capacity(duel.challenger, goal.load):.3g} of {goal.load.rate_per_s:g} requests a second"
        if is_overloaded(duel.default):
            return "overload", (
                f"the default can serve {capacity(duel.default, goal.load):.3g}, and the best other candidate "
                f"{served}: the queue grows without end"
            )
        return "default_is_best", f"the best other candidate can serve {served} only"
    challenger, default = kept_all(duel.limits), kept_all(duel.default_limits)
    if challenger == "no":
        broken = names_of(duel.limits, "no")
        if others_left:
            return "inconclusive", f"the best candidate breaks {broken}, and there was no time to try the next one"
        if default == "yes":
            return "default_is_best", f"the best other candidate breaks {broken}"
        if default == "no":
            return "infeasible", (
                f"the best other candidate breaks {broken}, the default {names_of(duel.default_limits, 'no')}"
            )
    if challenger == "yes" and default == "no":
        return "within_limits", f"the default breaks {names_of(duel.default_limits, 'no')}, this keeps to every limit"
    if not duel.enough_calls:
        n_calls = min(duel.challenger.n_calls, duel.default.n_calls)
        return "inconclusive", (
            f"{goal.objective} should rest on {calls_needed(goal.objective)} calls of each side, the duel had "
            f"{n_calls}, and the two sides are too close for so few: "
            "give it a larger --budget, or take a lower percentile"
        )
    verdict, reason = judge_interval(duel.speedup)
    if verdict == "default_is_best" and default != "yes":
        broken = names_of(duel.default_limits, "no", "unsure")
        return "inconclusive", f"nothing is better than the default, which may break {broken}"
    if verdict == "faster" and challenger != "yes":
        unsure = names_of(duel.limits, "no", "unsure")
        what = f"it is uncertain whether the best candidate keeps to {unsure}"
        return "inconclusive", f"{what}: give it a larger --budget"
    if verdict == "faster" and is_overloaded(duel.default):
        return verdict, (
            f"the default can serve {capacity(duel.default, goal.load):.3g} of {goal.load.rate_per_s:g} requests a "
            "second: its queue grows without end, and the ratio with the time that is looked at"
        )
    return verdict, reason


def judge_interval(speedup: Speedup) -> tuple[Verdict, str]:
    """Return what an interval says by itself."""
    if speedup.low > 1:
        return "faster", "the whole interval lies above 1"
    if speedup.high < 1 + NEGLIGIBLE_GAIN:
        return (
            "default_is_best",
            f"the best other candidate gains less than {NEGLIGIBLE_GAIN:.0%}, if anything",
        )
    return (
        "inconclusive",
        "the interval holds both no gain and a gain worth having: give it a larger --budget, or a quieter host",
    )
