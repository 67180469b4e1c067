"""What `ortune doctor` shows: what to hint, what to try, what is fine, and what could not be checked."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ortune.console.text import plural, size
from ortune.doctor import Diagnosis, Finding

STYLES = {"problem": "bold red", "advice": "bold yellow", "fine": "green"}

INDENT = 9


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print the whole page."""
    facts = [size(diagnosis.size_bytes)]
    if diagnosis.opset:
        facts.append(f"opset {diagnosis.opset}")
    facts.append(plural(diagnosis.n_nodes, "node"))
    if diagnosis.n_optimized is not None:
        facts.append(f"{diagnosis.n_optimized} when optimised by onnxruntime {diagnosis.onnxruntime}")
    console.print(f"[bold]{escape(Path(diagnosis.model).name)}[/]  [dim]{escape(', '.join(facts))}[/]")
    console.print()
    for finding in diagnosis.findings:
        if finding.severity != "fine":
            _show_finding(console, finding)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=INDENT - 2)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in diagnosis.findings:
        if finding.severity == "fine":
            table.add_row(Text("fine", STYLES["fine"]), finding.check, Text(finding.what, "dim"))
    for unchecked in diagnosis.unchecked:
        table.add_row(Text("?", "yellow"), unchecked.check, Text(f"not checked: {unchecked.why}", "dim"))
    console.print(table)
    console.print()
    console.print(summary(diagnosis))


def _show_finding(console: Console, finding: Finding) -> None:
    console.print(
        Text.assemble(
            (f"{finding.severity:<{INDENT}}", STYLES[finding.severity]), (f"{finding.check}: ", "bold"), finding.what
        )
    )
    for text in (f"{finding.why}.", f"{finding.hint}."):
        if text != ".":
            console.print(
                Padding(Text(text, "dim" if text.startswith(finding.why) else ""), (0, 0, 0, INDENT), expand=False)
            )
    if finding.command:
        # One line, however long: it is there to be copied.
        console.print(Text(f"{'':{INDENT}}{finding.command}", "cyan"), soft_wrap=True)
    console.print()


def summary(diagnosis: Diagnosis) -> str:
    """Return the result in a line."""
    counts = {name: sum(each.severity == name for each in diagnosis.findings) for name in STYLES}
    parts = []
    if counts["problem"]:
        parts.append(f"[bold red]{plural(counts['problem'], 'problem')}[/]")
    if counts["advice"]:
        parts.append(f"[bold yellow]{plural(counts['advice'], 'piece of advice', 'pieces of advice')}[/]")
    parts.append(f"{counts['fine']} fine")
    if diagnosis.unchecked:
        parts.append(f"{len(diagnosis.unchecked)} not checked")
    return ", ".join(parts)
