"""What `ortune apply --verify` shows: what is measured, and whether the recorded gain holds."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ortune.apply.verify import Verification, recorded_speedup
from ortune.compare.results import Speedup
from ortune.console.bench import show_comparison
from ortune.console.search import add_subject, make_grid, show_caveats
from ortune.console.text import interval, ratio
from ortune.record.schema import Record
from ortune.tuning.request import PreparedSearch

COLOURS = {"holds": "green", "does_not_hold": "red", "inconclusive": "yellow"}


def show_plan(console: Console, record: Record, setting: PreparedSearch) -> None:
    """Print what is measured, and what the record claims."""
    grid = make_grid()
    add_subject(grid, setting)
    claim = _claim(recorded_speedup(record)) or record.evidence.verdict.replace("_", " ")
    grid.add_row("recorded", escape(f"{claim}  {record.evidence.objective}, {record.search.started[:10]}"))
    console.print(grid)
    given = sorted({each.origin for each in record.workload.inputs.values() if each.origin.startswith("from ")})
    if given and setting.request.inputs.data is None:
        console.print(
            Text(f"The record was made with data {', '.join(given)}; pass it with --inputs for the same.", "yellow")
        )
    if record.workload.background_load and setting.request.beside is None:
        console.print(
            Text(
                f"The record was made beside `{record.workload.background_load}`; --beside runs it here, too.", "yellow"
            )
        )
    show_caveats(console, setting)


def show_verification(console: Console, verification: Verification) -> None:
    """Print the figures and the answer."""
    if verification.comparison:
        show_comparison(console, verification.comparison)
    for mismatch in verification.mismatches:
        console.print(
            Text.assemble(
                ("differs  ", "bold yellow"),
                f"{mismatch.what}: {mismatch.recorded} in the record, {mismatch.here} here.",
            )
        )
    answer = verification.answer.replace("_", " ")
    here = f" {_claim(verification.here)} here," if verification.here else ""
    recorded = f" {_claim(verification.recorded)} recorded:" if verification.recorded else ""
    console.print(
        Text.assemble((answer, f"bold {COLOURS[verification.answer]}"), f" {here}{recorded} {verification.reason}.")
    )


def _claim(speedup: Speedup | None) -> str:
    return f"{ratio(speedup.estimate)} {interval(speedup.low, speedup.high)}" if speedup else ""
