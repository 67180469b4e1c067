"""Verifies a record: repeats the comparison with the baseline on this host, for `ortune apply --verify`."""

from __future__ import annotations

import math

import msgspec

from ortune.apply.fit import Mismatch, find_all_mismatches, find_speed_mismatch
from ortune.errors import RecordError
from ortune.measure.bench import BenchResult, Observe, bench
from ortune.measure.comparison import Comparison, Row, Speedup, describe_lack
from ortune.measure.hosts import can_pool
from ortune.measure.interval import Interval
from ortune.measure.judge import Answer, compare, describe_few_launches
from ortune.measure.limits import kept_all, may_be_overloaded, name_limits
from ortune.measure.open import ComparisonSetup, prepare_comparison
from ortune.measure.paired_run import Side
from ortune.measure.stats import pool_intervals
from ortune.model import read_model
from ortune.record.schema import Occasion, Record
from ortune.record.select import check_model
from ortune.requests import VerifyRequest
from ortune.times import stamp
from ortune.workload import Goal, InputOptions
from ortune.workload.batching import with_batches
from ortune.workload.workload import list_cases

FEWEST_OCCASIONS = 3
"""Occasions that are pooled at least. How much two differ says almost nothing about how much others will."""

HELD_SHARE = 0.5
"""Share of the recorded gain, on a log scale, that must be left for it to hold.

A gain varies somewhat with the conditions on a host. A recorded speedup of 3.7x holds at 3.5x, but not at 1.05x.
"""

NOT_SERVED = "requests may arrive faster than they are served"


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verification.

    Attributes:
        answer: Whether the recorded gain holds; "nothing_to_verify" for a record that recommends the baseline.
        reason: Why, as a sentence without its full stop.
        claims_limits: Whether the record claims only that the config stays within the limits, unlike the baseline.
        recorded: The recorded speedup, or None if the record claims none.
        here: The speedup on this host, or None if nothing was measured.
        mismatches: Differences between the recorded host, software and background load and these.
        comparison: All figures of both sides, or None if there is nothing to verify.
        pooled: The speedup over all occasions, with an interval that covers how much they differ; None for fewer than
            three occasions, and on another host or with other software.
        n_occasions: The search, the verifications that were added to the record, and this one; without those whose
            intervals say nothing.
        record: The record with this verification added; None if it does not belong there, because nothing was measured,
            or not on this class of host with this software and background load, or at another speed.
    """

    answer: Answer
    reason: str
    claims_limits: bool = False
    recorded: Speedup | None = None
    here: Speedup | None = None
    mismatches: tuple[Mismatch, ...] = ()
    comparison: BenchResult | None = None
    pooled: Interval | None = None
    n_occasions: int = 1
    record: Record | None = None


def prepare_verification(record: Record, request: VerifyRequest) -> ComparisonSetup:
    """Set up the workload of a record on this host.

    The recorded background load is not started, because a file must not decide what is executed.

    Args:
        record: The record.
        request: Model, inputs, background load, seed, and whether the sustained speed counts although the record is not
            about it. Its `config` is not read.

    Raises:
        OrtuneError: The record is for another model, or the inputs do not fit the model.
    """
    model = request.model or record.model.path
    check_alone(record)
    check_model(record, model)
    workload = record.workload
    goal = Goal(
        load=workload.load,
        objectives=record.objectives,
        limits=workload.limits,
        sustained=workload.sustained or request.sustained,
    )
    return msgspec.structs.replace(
        prepare_comparison(
            model,
            with_batches(goal, record.base.batch, record.config.batch),
            recorded_inputs(record, request.inputs),
            tolerance=workload.tolerance,
            beside=request.beside,
            seed=request.seed,
        ),
        base=record.base,
    )


def check_alone(record: Record, usage: str = "ortune apply CONFIG --verify -- COMMAND") -> None:
    """Check that a record was made with its model alone, and not with a program.

    Args:
        record: The record.
        usage: What measures the program instead.

    Raises:
        RecordError: It was made with a program.
    """
    program = record.workload.program
    if program:
        raise RecordError(
            f"The record of {record.model.path} was made with a program, {program.program}. Its gain is that of the "
            "program.",
            f"Name the program: {usage}.",
        )


def recorded_inputs(record: Record, data: str | None, model: str | None = None) -> InputOptions:
    """Return the input data: the user's data if a path is given, otherwise values in the recorded sizes.

    Args:
        record: The record.
        data: Path of input data, or None.
        model: The model to run, if it may differ from the recorded one. Inputs that it lacks are left out.
    """
    names = None if model is None else {info.name for info in read_model(model).inputs}
    shapes = {name: given.shapes for name, given in record.workload.inputs.items() if names is None or name in names}
    cases = list_cases(shapes)
    if record.workload.batches:
        # Each of the items that were synthesized for one case has an entry.
        cases = [case for number, case in enumerate(cases) if case not in cases[:number]]
        return InputOptions(data=data, seed=record.search.seed, cases=tuple(cases))
    return InputOptions(
        data=data,
        seed=record.search.seed,
        shapes=cases[0] if len(cases) == 1 and not data else {},
        cases=tuple(cases) if len(cases) > 1 else (),
    )


def verify(
    record: Record,
    setup: ComparisonSetup,
    observe: Observe = lambda done, total: None,
    *,
    budget_s: float | None = None,
) -> Verification:
    """Compare the recorded config with its baseline, and judge whether the recorded gain holds.

    Args:
        record: The record.
        setup: Its workload, set up on this host.
        observe: Called with the progress.
        budget_s: Wall time to spend, or None to choose it from the model and the goal.

    Raises:
        OrtuneError: The model does not run, or the baseline cannot be measured.
    """
    if record.config == record.base:
        reason = "the record recommends the baseline, so there is no gain to verify"
        return Verification(answer="nothing_to_verify", reason=reason)
    started = stamp()
    comparison = bench(setup, [Side(name="tuned", config=record.config)], observe, budget_s=budget_s)
    recorded = record.gain
    answer, reason = judge_comparison(record, comparison, recorded)
    here = comparison.rows[1].speedup
    mismatches = (
        *find_all_mismatches(record, setup.host, comparison.runtime, setup.beside),
        *find_speed_mismatch(record, sustained=setup.goal.sustained),
    )
    added = add_occasion(record, Occasion(started=started, speedup=here)) if here and not mismatches else None
    return Verification(
        answer=answer,
        reason=reason,
        claims_limits=record.claims_limits,
        recorded=recorded,
        here=here,
        mismatches=mismatches,
        comparison=comparison,
        pooled=pool_occasions(added) if added else None,
        n_occasions=len(list_speedups(added)) if added else 1,
        record=added,
    )


def add_occasion(record: Record, occasion: Occasion) -> Record:
    """Return the record with another verification."""
    evidence = record.evidence
    return msgspec.structs.replace(
        record, evidence=msgspec.structs.replace(evidence, occasions=(*evidence.occasions, occasion))
    )


def list_speedups(record: Record) -> list[Speedup]:
    """Return the speedups of all occasions: of the search, if its config is recommended, and of verifications.

    Those whose intervals say nothing are left out: the few launches of a short verification may differ by any factor.
    """
    speedups = [*([record.gain] if record.gain else []), *(occasion.speedup for occasion in record.evidence.occasions)]
    return [speedup for speedup in speedups if can_pool(speedup)]


def pool_occasions(record: Record) -> Interval | None:
    """Return the speedup over all occasions of a record, or None for too few."""
    speedups = list_speedups(record)
    if len(speedups) < FEWEST_OCCASIONS:
        return None
    return pool_intervals([speedup.log() for speedup in speedups], [speedup.n_launches for speedup in speedups]).exp()


def judge_comparison(record: Record, comparison: Comparison, recorded: Speedup | None) -> tuple[Answer, str]:
    """Return whether the recorded gain holds, and why."""
    row = comparison.rows[1]
    if row.failure:
        return "does_not_hold", f"the config fails on this host: {row.failure.message}"
    kept = kept_all(row.limits)
    if kept == "no":
        return "does_not_hold", f"the config exceeds {name_limits(row.limits, 'no')}"
    answer, reason = judge_recorded_gain(row, comparison, recorded)
    if row.speedup is None or not row.speedup.has_enough_launches:
        return answer, reason
    if kept == "unsure":
        if answer == "holds":
            return "inconclusive", f"the config may exceed {name_limits(row.limits, 'unsure')}"
    elif record.claims_limits:
        if row.summary and may_be_overloaded(row.summary):
            return "inconclusive", NOT_SERVED
        return "holds", "the config stays within all limits"
    return answer, reason


def judge_recorded_gain(row: Row, comparison: Comparison, recorded: Speedup | None) -> tuple[Answer, str]:
    """Return whether the gain holds, apart from limits."""
    sides = [side.summary for side in comparison.rows if side.summary]
    if any(map(may_be_overloaded, sides)):
        return "inconclusive", NOT_SERVED
    if row.speedup is None:
        return "inconclusive", "fewer than two launches count: use a larger budget or a quieter host"
    if not row.speedup.has_enough_launches:
        few_launches = describe_few_launches(row.speedup.n_launches)
        return "inconclusive", f"{few_launches}: use a larger budget or a quieter host"
    answer, reason = judge_speedup(row.speedup, recorded)
    if (few := row.few_calls) is None:
        return answer, reason
    needed = describe_lack(comparison.objective, comparison.calls_needed, few.n_calls)
    if compare(row.speedup, 1) == "unclear":
        return "inconclusive", f"{needed}: {few}: use a larger budget"
    return answer, f"{reason}; {needed}: {few}"


def judge_speedup(here: Speedup, recorded: Speedup | None) -> tuple[Answer, str]:
    """Return whether the speedup on this host confirms the recorded one."""
    needed = math.exp(HELD_SHARE * math.log(recorded.estimate)) if recorded and recorded.estimate > 1 else 1.0
    place, of_gain = compare(here, needed), compare(here, 1)
    if place == "above":
        if needed == 1:
            return "holds", "the whole confidence interval lies above 1"
        return "holds", "at least half of the recorded gain is left"
    if place == "below":
        if of_gain == "above":
            return "does_not_hold", "the config is better than the baseline, but by less than half of the recorded gain"
        if of_gain == "below":
            return "does_not_hold", "the config is worse than the baseline on this host"
        return "does_not_hold", "less than half of the recorded gain is left, if any"
    threshold = "1" if needed == 1 else f"{needed:.3g}x, half of the recorded gain"
    return "inconclusive", f"the confidence interval includes {threshold}: use a larger budget"
