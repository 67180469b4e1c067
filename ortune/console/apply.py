"""What `ortune apply` and `ortune merge` show: settings, what took effect, what does not fit, code, bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ortune.apply.check import CheckResult
from ortune.console.search import settings_table
from ortune.console.text import duration, interval, plural, ratio
from ortune.export.target import Export, Target
from ortune.knobs import describe
from ortune.record.schema import Bundle, Record
from ortune.record.select import Sourced
from ortune.worker import Failure


def show_apply(console: Console, record: Record, run: CheckResult, snippet: str) -> None:
    """Print the whole page."""
    evidence = record.evidence
    if record.config.is_default and evidence.front:
        console.print("This point of the front is [bold]ONNX Runtime's default[/].")
    elif record.config.is_default:
        console.print(f"This record recommends [bold]ONNX Runtime's default[/]: {evidence.reason}.")
    else:
        speedup = evidence.speedup
        what = "" if record.workload.objectives == ("p50",) else f" ({', '.join(record.workload.objectives)})"
        claim = (
            f", {ratio(speedup.estimate)} {interval(speedup.low, speedup.high)}{what} when it was tuned"
            if speedup
            else ""
        )
        console.print(
            f"[bold]{plural(len(record.config.settings), 'setting')}[/] for {escape(record.model.path)}{escape(claim)}"
        )
        console.print()
        console.print(settings_table(record.config))
    console.print()
    _show_run(console, run)
    for mismatch in run.mismatches:
        console.print(
            Text.assemble(
                ("does not fit  ", "bold yellow"),
                f"{mismatch.what}: {mismatch.recorded} in the record, {mismatch.here} here. {mismatch.hint}",
            )
        )
    console.print()
    # Not broken at the edge: it is to be copied.
    code = Syntax(snippet, "python", background_color="default").highlight(snippet)
    console.print(code, soft_wrap=True)


def _show_run(console: Console, run: CheckResult) -> None:
    loaded = run.loaded
    if isinstance(loaded, Failure):
        console.print(
            Text.assemble(("does not work  ", "bold red"), f"{loaded.kind.replace('_', ' ')}: {loaded.message}")
        )
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="green", justify="right")
    table.add_column(overflow="fold")
    table.add_row("session", f"created in {duration(loaded.load_ns)}, on {', '.join(loaded.providers)}")
    if loaded.nodes:
        nodes = ", ".join(f"{count} on {name}" for name, count in loaded.nodes.items())
        table.add_row("nodes", nodes)
    if loaded.preloaded:
        table.add_row("preloaded", escape(", ".join(loaded.preloaded)))
    if loaded.settings:
        table.add_row("read back", escape(", ".join(f"{name}={value}" for name, value in loaded.settings.items())))
    if loaded.threads:
        cpus = "; ".join(",".join(map(str, thread.cpus)) for thread in loaded.threads[:8])
        more = " ..." if len(loaded.threads) > 8 else ""
        table.add_row(
            "workers",
            f"{plural(len(loaded.threads), 'thread')}, allowed on CPUs {cpus}{more} (counted from 0)",
        )
    error = f", largest difference {loaded.max_error:.2g} of the largest value" if loaded.max_error is not None else ""
    table.add_row("outputs", f"agree with the default's{error}")
    console.print(table)


def show_export(console: Console, export: Export, output: str | None) -> None:
    """Print the output file, and the settings that the target does not support. The text itself is not printed here."""
    if output is not None:
        if export.binary:
            console.print(Text(export.text.rstrip()))
        else:
            console.print(Text.assemble(("written  ", "green"), output))
    for line in export.unsupported:
        console.print(Text.assemble(("not supported  ", "bold yellow"), line), soft_wrap=True)


def show_target_list(console: Console, targets: Iterable[Target]) -> None:
    """Print the targets, one per line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for target in targets:
        table.add_row(target.name, target.summary)
    console.print(table)
    console.print()
    console.print("[dim]ortune apply CONFIG MODEL --to TARGET -o FILE[/]")


def show_bundle(console: Console, bundle: Bundle, dropped: Sequence[Sourced], path: Path) -> None:
    """Print what is in a bundle, and what was left out."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("model", "host", "load", "config"):
        table.add_column(column)
    for record in bundle.records:
        host = record.host
        quota = f", quota {host.cpu_quota:g}" if host.cpu_quota else ""
        table.add_row(
            escape(Path(record.model.path).name),
            escape(f"{host.cpu_model}, {host.n_usable} of {host.n_logical} CPUs{quota}"),
            str(record.workload.load),
            escape(describe(record.config)),
        )
    console.print(table)
    console.print()
    for each in dropped:
        why = (
            "it is there twice"
            if each.record in bundle.records
            else "there is a later one for the same model, host, load and objective"
        )
        console.print(Text.assemble(("left out  ", "bold yellow"), f"{each.source}: {why}."))
    console.print(Text.assemble(("written  ", "green"), f"{path}, {plural(len(bundle.records), 'record')}"))
