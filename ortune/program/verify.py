"""Verifies the records of a program: repeats the comparison of the program with and without their settings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.apply.fit import find_all_mismatches
from ortune.apply.verify import Verification, add_occasion, judge_comparison, list_speedups, pool_occasions
from ortune.host import HostClass
from ortune.measure.bench import BenchResult, Observe, compare
from ortune.measure.paired_run import Side
from ortune.program.outputs import is_unjudged, make_check_error
from ortune.program.search import open_program
from ortune.program.tuned import AS_IT_IS, TunedProgram
from ortune.record.files import check_unchanged, encode_record, follow_link, read_document, write_atomically
from ortune.record.rounding import round_record
from ortune.record.schema import RECORD_SCHEMA, Bundle, Occasion, Record
from ortune.times import stamp


class ProgramVerification(Verification, frozen=True, kw_only=True):
    """Result of a verification of the records of a program. `record` is None.

    Attributes:
        records: The records with this verification added; empty if it does not belong there, because nothing was
            measured, or not on this class of host with this software and background load.
        notes: What differs from the program that was tuned, as sentences.
    """

    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()


NOTHING_TO_VERIFY = ProgramVerification(
    answer="nothing_to_verify", reason="the records leave the program as it is, so there is no gain to verify"
)


def verify_program(
    tuned: TunedProgram, observe: Observe = lambda done, total: None, *, budget_s: float | None = None
) -> ProgramVerification:
    """Compare the program as it is with the program under its records, and judge whether the recorded gain holds.

    Args:
        tuned: The program and its records.
        observe: Called with the progress.
        budget_s: Wall time to spend, or None to choose it from the program and the goal.

    Raises:
        OrtuneError: The program does not work as it is, or cannot be measured, or the check of the user does not run.
    """
    started = stamp()
    record, program = tuned.record, tuned.program
    sides = (Side(name=AS_IT_IS, config=tuned.base), Side(name="tuned", config=tuned.config))
    with open_program(program) as opened:
        comparison = compare(opened, sides, observe, budget_s=budget_s)
    failure = comparison.rows[1].failure
    if failure and is_unjudged(program.task, failure):
        raise make_check_error(f"{Path(program.task.command[0]).name} with its records", failure)
    result = BenchResult(
        objective=comparison.objective,
        rows=comparison.rows,
        calls_needed=comparison.calls_needed,
        noise=comparison.noise,
        workload=msgspec.structs.replace(record.workload, program=program.describe_run()),
        model=program.identities[0],
        host=HostClass.of(program.host),
        runtime=program.runtime,
    )
    answer, reason = judge_comparison(record, result, record.gain)
    here = result.rows[1].speedup
    mismatches = find_all_mismatches(record, program.host, program.runtime, program.request.beside)
    added: tuple[Record, ...] = ()
    if here and not mismatches:
        added = tuple(
            add_occasion(model_record, Occasion(started=started, speedup=here)) for model_record in tuned.records
        )
    return ProgramVerification(
        answer=answer,
        reason=reason,
        claims_limits=record.claims_limits,
        recorded=record.gain,
        here=here,
        mismatches=mismatches,
        comparison=result,
        pooled=pool_occasions(added[0]) if added else None,
        n_occasions=len(list_speedups(added[0])) if added else 1,
        records=added,
        notes=tuned.notes,
    )


def replace_records(path: Path, before: tuple[Record, ...], after: tuple[Record, ...], *, trust: bool) -> None:
    """Replace records in a file. Other records of a bundle are kept.

    Args:
        path: The file.
        before: The records as they are in the file.
        after: What they are replaced by, in the same order.
        trust: Whether records may have settings that need trust.

    Raises:
        UsageError: The file cannot be written, or does not hold the records any more.
        RecordError: It cannot be read any more.
    """
    check_unchanged(path, before, trust=trust)
    document = read_document(path, trust=trust)
    found = list(document.records)
    for old, new in zip(before, after, strict=True):
        found[found.index(old)] = round_record(new)
    whole = Bundle(schema=RECORD_SCHEMA, records=tuple(found)) if document.is_bundle else found[0]
    write_atomically(follow_link(path), encode_record(whole))
