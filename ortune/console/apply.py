"""What `ortune apply` prints: the settings, what took effect, mismatches, code, and what was exported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ortune.apply.check import CheckResult
from ortune.apply.fit import Mismatch
from ortune.apply.messages import describe_missing_cache
from ortune.apply.warm import WarmResult
from ortune.console.few_calls import describe_few_calls
from ortune.console.warnings import warn_mismatch
from ortune.console.widgets import (
    add_note,
    format_baseline,
    format_bytes,
    format_count,
    format_duration,
    format_reason,
    make_grid,
    make_settings_table,
    show_note,
    show_warning,
)
from ortune.errors import spell_as_flag
from ortune.export.installed import ListedTarget
from ortune.export.target import Export, describe_deployment
from ortune.measure.interval import format_speedup
from ortune.planning.pick import PickedDeployment
from ortune.record.schema import Record
from ortune.sanitize import printable
from ortune.worker import Failure, SessionInfo

MAX_THREADS = 8
"""Number of worker threads whose CPUs are listed."""


def show_apply(
    console: Console, record: Record, result: CheckResult, snippet: str, picked: PickedDeployment | None = None
) -> None:
    """Print the settings, what took effect, mismatches, and the code to use.

    Args:
        console: Where to print.
        record: The record.
        result: What took effect.
        snippet: The code.
        picked: The deployment of a plan that the record is of.
    """
    if picked:
        show_deployment(console, picked)
    else:
        show_config(console, record)
    console.print()
    if isinstance(result.loaded, Failure):
        failure = f"{result.loaded.title}: {result.loaded.message}"
        show_note(console, "failed", f"the config does not work on this host: {failure}", "bold red")
    else:
        console.print(make_session_grid(result.loaded))
    show_mismatches(console, result.mismatches)
    if missing := describe_missing_cache(record, spell_as_flag):
        show_warning(console, f"{missing[0].upper()}{missing[1:]}.")
    console.print()
    for line in Syntax(snippet, "python", background_color="default").highlight(snippet.rstrip("\n")).split():
        # Not folded, so that it can be copied.
        console.print(line, soft_wrap=True)


def show_deployment(console: Console, picked: PickedDeployment) -> None:
    """Print the deployment of a plan, and its settings."""
    first, *rest = describe_deployment(picked)
    console.print(Text(first, "bold"))
    for line in rest:
        console.print(Text(line))
    if not picked.record.config.is_default:
        console.print()
        console.print(make_settings_table(picked.record.config, console.width))


def show_config(console: Console, record: Record) -> None:
    """Print what a record recommends, and how much better it was when the record was made."""
    is_front = bool(record.evidence.front)
    if record.config == record.base:
        start = "This point of the front is" if is_front else "The record recommends"
        console.print(Text.assemble(f"{start} ", (format_baseline(record.base), "bold"), "."))
        if not is_front:
            console.print(Text(format_reason(record.evidence.reason), "dim"))
    else:
        claim = ""
        if record.gain:
            objective = "" if record.objectives == ("p50",) else f" in {record.objectives[0]}"
            few = describe_few_calls(record)
            calls = f", from {few}," if few else ""
            claim = f": {format_speedup(record.gain)}{objective}{calls} when the record was made"
        n_settings = format_count(len(record.config.settings), "setting")
        console.print(Text.assemble((n_settings, "bold"), f" for {record.model.path}{claim}"))
    if not record.config.is_default:
        console.print()
        console.print(make_settings_table(record.config, console.width))


def make_session_grid(session: SessionInfo) -> Table:
    """Return what took effect in a session."""
    grid = make_grid()
    grid.add_row("session", f"created in {format_duration(session.load_ns)} on {', '.join(session.providers)}")
    if session.nodes:
        grid.add_row("nodes", ", ".join(f"{count} on {name}" for name, count in session.nodes.items()))
    if session.preloaded:
        grid.add_row("preloaded", ", ".join(session.preloaded))
    if session.settings:
        grid.add_row("in effect", ", ".join(f"{name}={value}" for name, value in session.settings.items()))
    if session.threads:
        cpus = "; ".join(",".join(map(str, thread.cpus)) for thread in session.threads[:MAX_THREADS])
        more = "; ..." if len(session.threads) > MAX_THREADS else ""
        threads = format_count(len(session.threads), "thread")
        grid.add_row("workers", add_note(f"{threads} on CPUs {cpus}{more}", "numbered from 0"))
    error = session.max_error
    difference = "" if error is None else f"; the largest difference is {error:.2g} of the largest value"
    grid.add_row("outputs", "identical to the default's" if error == 0 else f"match the default's{difference}")
    return grid


def show_mismatches(console: Console, mismatches: Iterable[Mismatch]) -> None:
    """Print the differences between the recorded host and software and these."""
    for mismatch in mismatches:
        text = warn_mismatch(mismatch.what, mismatch.recorded, mismatch.here)
        show_note(console, "mismatch", f"{text} {mismatch.hint}")


def show_warm(console: Console, result: WarmResult, folder: Path) -> None:
    """Print the result of filling a cache of compiled models."""
    if not result.options:
        console.print("No execution provider of this config keeps compiled models: there is nothing to fill.")
        return
    if result.check and isinstance(result.check.loaded, Failure):
        failure = f"{result.check.loaded.title}: {result.check.loaded.message}"
        show_note(console, "failed", f"the config does not work on this host: {failure}", "bold red")
        return
    session = result.session
    assert session
    size = f"{format_count(result.n_files, 'file')}, {format_bytes(result.size_bytes)}"
    grid = make_grid()
    grid.add_row("cache", add_note(str(folder), size))
    grid.add_row("options", ", ".join(result.options))
    grid.add_row("session", f"created in {format_duration(session.load_ns)}")
    if session.build_s is not None:
        what = "compiled and run" if result.n_written else "run; the folder was filled before"
        grid.add_row("first session", f"{what} in {session.build_s:.1f} s")
    console.print(grid)
    show_mismatches(console, result.mismatches)
    if session.build_s is None:
        wrote = "wrote to the folder, but compiled the model again" if result.n_files else "wrote nothing"
        show_note(
            console, "not used", f"the execution provider {wrote}: leave out {spell_as_flag('cache_dir')}.", "red"
        )


def show_export(console: Console, export: Export, output: str | None) -> None:
    """Print where a config was written, and which settings the target does not support."""
    if output is not None:
        if export.binary:
            for line in export.text.splitlines():
                console.print(line)
        else:
            show_note(console, "written", output, "green", fold=False)
    for line in export.unsupported:
        show_note(console, "not supported", line, fold=False)


def show_target_list(console: Console, targets: Iterable[ListedTarget]) -> None:
    """Print the targets of exports, one per line, with the packages of those that ortune does not contain."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for target in targets:
        what = Text(printable(target.summary))
        if target.fault:
            what = Text(printable(f"cannot be used: {target.fault}"), "yellow")
        if target.package:
            what.append(printable(f" ({target.package})"), "dim")
        grid.add_row(printable(target.name), what)
    console.print(grid)
    console.print()
    console.print(Text(f"ortune apply CONFIG MODEL {spell_as_flag('to', 'TARGET')} -o FILE", "dim"))
