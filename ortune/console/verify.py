"""What `ortune apply --verify` prints: what is measured, and whether the recorded gain holds on this host."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ortune.apply.fit import find_load_mismatch
from ortune.apply.verify import Verification
from ortune.console.bench import show_comparison
from ortune.console.header import add_subject, show_header
from ortune.console.hosts import add_hosts, describe_hosts
from ortune.console.warnings import (
    warn_load_mismatch,
    warn_mismatch,
    warn_other_data,
)
from ortune.console.widgets import add_note, format_count, format_reason, make_grid, show_note, show_warning
from ortune.fleet.verify import SharedVerification
from ortune.measure.interval import format_speedup
from ortune.measure.judge import Answer, HostsVerdict
from ortune.measure.open import ComparisonSetup
from ortune.record.schema import Record

STYLES: dict[Answer, str] = {
    "holds": "bold green",
    "does_not_hold": "bold red",
    "inconclusive": "bold yellow",
    "nothing_to_verify": "bold",
}
"""Style of each answer."""

UNDECIDED: dict[Answer, str] = {"inconclusive": "Inconclusive", "nothing_to_verify": "Nothing to verify"}
"""Headline of the answers that say nothing about the record's claim."""

HOSTS_STYLES: dict[HostsVerdict, str] = {
    "faster": "bold green",
    "faster_on_average": "bold yellow",
    "slower": "bold red",
    "inconclusive": "bold yellow",
}
"""Style of each conclusion over several hosts."""


def show_plan(console: Console, record: Record, setup: ComparisonSetup) -> None:
    """Print what is measured, and what the record claims."""
    grid = make_grid()
    add_subject(grid, setup)
    claim = format_speedup(record.gain) if record.gain else record.evidence.verdict.replace("_", " ")
    grid.add_row("recorded", f"{claim}  {record.objectives[0]}, {record.search.started[:10]}")
    show_header(console, grid, setup)
    given = sorted({data.origin for data in record.workload.inputs.values() if data.origin.startswith("from ")})
    if given and not any(data.origin.startswith("from ") for data in setup.feed.describe().values()):
        show_warning(console, warn_other_data(given))
    for mismatch in find_load_mismatch(record, setup.beside):
        show_warning(console, warn_load_mismatch(mismatch.recorded, mismatch.here))


def show_verification(
    console: Console,
    verification: Verification,
    path: str | None = None,
    *,
    is_added: bool = False,
) -> None:
    """Print the figures and the answer.

    Args:
        console: Where to print.
        verification: The result.
        path: The record's file, if the result was to be added to it.
        is_added: Whether it was.
    """
    if verification.comparison:
        show_comparison(console, verification.comparison)
    for mismatch in verification.mismatches:
        show_note(console, "mismatch", warn_mismatch(mismatch.what, mismatch.recorded, mismatch.here))
    console.print()
    console.print(Text(format_answer(verification), STYLES[verification.answer]))
    console.print(Text(format_reason(verification.reason), "dim"))
    grid = make_grid()
    for name, speedup in (("recorded", verification.recorded), ("here", verification.here)):
        if speedup:
            grid.add_row(name, format_speedup(speedup))
    if verification.pooled:
        occasions = f"over {verification.n_occasions} occasions, with how much they differ"
        grid.add_row("pooled", add_note(format_speedup(verification.pooled), occasions))
    if path is not None:
        if is_added:
            grid.add_row("added to", path)
        else:
            grid.add_row("not added", explain_not_added(verification))
    console.print(grid)
    if isinstance(verification, SharedVerification):
        show_shared(console, verification)


def format_answer(verification: Verification) -> str:
    """Return the answer in a line: whether what the record claims holds on this host."""
    if verification.answer in UNDECIDED:
        return UNDECIDED[verification.answer]
    holds, recorded = verification.answer == "holds", verification.recorded
    if verification.claims_limits:
        return f"The config {'stays' if holds else 'does not stay'} within the recorded limits on this host"
    if recorded is None or recorded.estimate <= 1:
        return f"The config is {'' if holds else 'not '}better than the baseline on this host"
    return f"The recorded gain {'holds' if holds else 'does not hold'} on this host"


def explain_not_added(verification: Verification) -> str:
    """Return why a verification is not added to the record."""
    if verification.comparison is None:
        return "nothing was measured"
    if verification.here is None:
        return "no speedup was measured"
    return "only measurements on this class of host with this software and load are added"


def show_shared(console: Console, verification: SharedVerification) -> None:
    """Print what all hosts say together, or why that is not known."""
    hosts = verification.hosts
    if hosts:
        console.print()
        console.print(Text(describe_hosts(hosts), HOSTS_STYLES[hosts.verdict]))
        grid = make_grid()
        add_hosts(grid, hosts, verification.nodes)
        console.print(grid)
    elif not verification.fault:
        console.print()
        others = set(verification.nodes.values()) - {verification.node}
        text = (
            f"{format_count(len(others), 'other host')} of this class verified the record, but fewer than two hosts "
            "have a speedup that can be compared."
            if others
            else "No other host of this class has verified the record yet."
        )
        console.print(Text(text, "dim"))
    if verification.fault:
        show_warning(
            console,
            f"{verification.fault} The result of this host is not in the storage: to share it, verify again.",
        )
