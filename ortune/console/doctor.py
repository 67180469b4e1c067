"""Shows a diagnosis: problems and advice in full, then one line for each of the other checks."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.widgets import format_bytes, format_count
from ortune.doctor.findings import Diagnosis, DoctorFinding

STYLES = {"problem": "bold red", "advice": "bold yellow", "ok": "green"}

DETAIL_INDENT = 9


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""
    _show_model(console, diagnosis)
    console.print()
    for finding in diagnosis.findings:
        if finding.severity != "ok":
            _show_finding(console, finding)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=DETAIL_INDENT - 2)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in diagnosis.findings:
        if finding.severity == "ok":
            text = f"{finding.what}. {finding.fix}." if finding.fix else finding.what
            table.add_row(Text("ok", STYLES["ok"]), finding.check, Text(text, "dim"))
    console.print(table)
    console.print()
    _show_skipped(console, diagnosis)
    console.print(summarize(diagnosis))


def _show_model(console: Console, diagnosis: Diagnosis) -> None:
    nodes = format_count(diagnosis.n_nodes, "node")
    if diagnosis.n_optimized is not None:
        nodes += f" ({diagnosis.n_optimized} optimized)"
    opset = [f"opset {diagnosis.opset}"] if diagnosis.opset else []
    facts = ", ".join([format_bytes(diagnosis.size_bytes), *opset, nodes, f"onnxruntime {diagnosis.onnxruntime}"])
    console.print(Text.assemble((Path(diagnosis.model).name, "bold"), "  ", (facts, "dim")))


def _show_finding(console: Console, finding: DoctorFinding) -> None:
    grid = _make_grid()
    grid.add_row(
        Text(finding.severity, STYLES[finding.severity]), Text.assemble((f"{finding.check}: ", "bold"), finding.what)
    )
    grid.add_row("", Text(_end_sentence(finding.why), "dim"))
    grid.add_row("", Text(_end_sentence(finding.fix)))
    console.print(grid)
    if finding.command:
        # Never wrapped, so that it can be copied.
        console.print(Text(f"{'':{DETAIL_INDENT}}{finding.command}", "cyan"), soft_wrap=True)
    console.print()


def _show_skipped(console: Console, diagnosis: Diagnosis) -> None:
    """Print the checks that could not be made, those with the same cause together."""
    names: dict[tuple[str, str], list[str]] = {}
    for skipped in diagnosis.skipped:
        names.setdefault((skipped.why, skipped.fix), []).append(skipped.check)
    for (why, fix), checks in names.items():
        grid = _make_grid()
        grid.add_row(Text("skipped", "yellow"), Text.assemble((f"{', '.join(checks)}: ", "bold"), _end_sentence(why)))
        if fix:
            grid.add_row("", Text(_end_sentence(fix)))
        console.print(grid)
        console.print()


def _make_grid() -> Table:
    """Return a table of two columns: the severity, and wrapped text."""
    grid = Table.grid()
    grid.add_column(width=DETAIL_INDENT)
    grid.add_column(overflow="fold")
    return grid


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "…")) else f"{text}."


def summarize(diagnosis: Diagnosis) -> Text:
    """Return the number of findings of each severity."""
    counts = {name: sum(finding.severity == name for finding in diagnosis.findings) for name in STYLES}
    parts = []
    if counts["problem"]:
        parts.append(Text(format_count(counts["problem"], "problem"), STYLES["problem"]))
    if counts["advice"]:
        parts.append(Text(format_count(counts["advice"], "piece of advice", "pieces of advice"), STYLES["advice"]))
    parts.append(Text(f"{counts['ok']} ok"))
    if diagnosis.skipped:
        parts.append(Text(f"{len(diagnosis.skipped)} skipped"))
    return Text(", ").join(parts)
