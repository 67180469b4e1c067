"""`ortune apply --verify`, in order: set the recorded workload up, fight the duel anew, tell whether the gain holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from ortune.apply.fit import Mismatch, find_mismatches
from ortune.compare.bench import Comparison, Entrant, Observe, bench
from ortune.compare.limits import is_overloaded, kept_all, names_of
from ortune.compare.results import Speedup
from ortune.host import read_host
from ortune.model import read_model
from ortune.record.schema import Record
from ortune.record.select import check_model
from ortune.tuning.request import PreparedSearch, SearchRequest
from ortune.tuning.request import prepare as prepare_search
from ortune.worker.runtime import read_installed_runtime
from ortune.workload import Goal, InputOptions

Answer = Literal["holds", "does_not_hold", "inconclusive"]

HELD_SHARE = 0.5
"""Part of the recorded gain, on a log scale, that must be there for it to hold.

A gain changes somewhat with whatever else goes on on a host; what is left of 3.7x at 3.5x is still what was promised,
and what is left at 1.05x is not.
"""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        answer: Whether the gain holds.
        reason: Why, a sentence.
        recorded: What the record claims, or None where it claims no ratio.
        here: What was measured here, or None where nothing was.
        mismatches: What differs between where the record was made and here.
        comparison: All figures of both sides, or None where there is nothing to verify.
    """

    answer: Answer
    reason: str
    recorded: Speedup | None = None
    here: Speedup | None = None
    mismatches: tuple[Mismatch, ...] = ()
    comparison: Comparison | None = None


def prepare(
    record: Record,
    model: str | Path,
    *,
    inputs: str | None = None,
    beside: str | None = None,
    time_s: float | None = None,
    seed: int = 0,
) -> PreparedSearch:
    """Set up the workload of a record, on this host.

    Args:
        record: The record.
        model: Path of the ONNX file.
        inputs: Data as for a search; None to synthesise it, in the recorded sizes.
        beside: A command to run beside it, or None. The record's own is not run unasked: a file is not to decide that.
        time_s: Wall time to spend, or None for what the model needs.
        seed: Seed of everything that is drawn.

    Raises:
        OrtuneError: The record is for another model, or something that was given does not make sense.
    """
    check_model(record, model)
    workload = record.workload
    return prepare_search(
        SearchRequest(
            model=str(model),
            goal=Goal(load=workload.load, objectives=record.objectives, limits=workload.limits),
            beside=beside,
            budget_s=time_s,
            seed=seed,
            inputs=recorded_inputs(record, inputs),
            tolerance=workload.tolerance,
            providers=("cpu",),
        )
    )


def recorded_inputs(record: Record, data: str | None, model: str | None = None) -> InputOptions:
    """Return what to feed: data where it is given, else values made up in the recorded sizes.

    Args:
        record: The record.
        data: Path of data, or None.
        model: The model that is fed, where it may be another than the record's; what it does not take is left out.
    """
    taken = None if model is None else {each.name for each in read_model(model).inputs}
    shapes = {name: given.shapes for name, given in record.workload.inputs.items() if taken is None or name in taken}
    n_cases = max((len(each) for each in shapes.values()), default=1)
    return InputOptions(
        data=data,
        seed=record.search.seed,
        shapes={name: each[0] for name, each in shapes.items()} if n_cases == 1 and not data else {},
        cases=tuple({name: each[place % len(each)] for name, each in shapes.items()} for place in range(n_cases))
        if n_cases > 1
        else (),
    )


def verify(record: Record, setting: PreparedSearch, observe: Observe = lambda done, total: None) -> Verification:
    """Let the record's config and its baseline meet, and judge.

    Raises:
        OrtuneError: The model does not run, or the default cannot be measured.
    """
    if record.config == record.base:
        return Verification(answer="holds", reason="the record recommends the default: there is no gain to verify")
    comparison = bench(setting, [Entrant(name="tuned", config=record.config)], observe, base=record.base)
    row = comparison.rows[1]
    runtime = read_installed_runtime()
    recorded = record.gain
    answer, reason = judge(row.speedup, recorded) if row.speedup else ("inconclusive", "there were too few pairs")
    sides = [each.summary for each in comparison.rows if each.summary]
    if min((side.n_calls for side in sides), default=0) < comparison.calls_needed:
        needed = f"{comparison.objective} should rest on {comparison.calls_needed} calls of each side"
        answer, reason = "inconclusive", f"{needed}: give it more --time"
    if any(map(is_overloaded, sides)):
        answer, reason = "inconclusive", "requests arrive faster than they are served"
    if row.failure:
        answer, reason = "does_not_hold", f"the config fails here: {row.failure.message}"
    elif (kept := kept_all(row.limits)) != "yes":
        broken = names_of(row.limits, "no", "unsure")
        if kept == "no":
            answer, reason = "does_not_hold", f"it breaks {broken}"
        elif answer == "holds":
            answer, reason = "inconclusive", f"it may break {broken}"
    elif record.evidence.verdict == "within_limits":
        answer, reason = "holds", "it keeps to every limit"
    return Verification(
        answer=answer,
        reason=reason,
        recorded=recorded,
        here=row.speedup,
        mismatches=find_mismatches(record, read_host(), runtime) if runtime else (),
        comparison=comparison,
    )


def judge(here: Speedup, recorded: Speedup | None) -> tuple[Answer, str]:
    """Return whether what was measured here upholds what was recorded."""
    needed = math.exp(HELD_SHARE * math.log(recorded.estimate)) if recorded and recorded.estimate > 1 else 1.0
    if here.low > needed:
        return (
            "holds",
            "the whole interval lies above 1" if needed == 1 else "at least half of the recorded gain is here",
        )
    if here.high < needed:
        if here.low > 1:
            return "does_not_hold", "it is still better than the default, but by less than half of the recorded gain"
        if here.high < 1:
            return "does_not_hold", "it is worse than the default here"
        return "does_not_hold", "less than half of the recorded gain is here, if any"
    return "inconclusive", f"the interval holds {needed:.3g}x, half of the recorded gain: give it more --time"
