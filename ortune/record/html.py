"""A record as a piece of HTML, for notebooks. Notebooks run no scripts of outputs, so it has none."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortune.sanitize import printable

if TYPE_CHECKING:
    from ortune.record.schema import Record

VERDICTS = {
    "faster": "Faster than the default",
    "default_is_best": "The default is best",
    "nothing_found": "Nothing better found",
    "inconclusive": "Inconclusive",
    "within_limits": "Within the limits, unlike the default",
    "infeasible": "No candidate stays within the limits",
    "overload": "Overload",
    "trade_off": "Pareto front",
}


def render_record(record: Record) -> str:
    """Return what a notebook shows of a record: the verdict, what it rests on, and the settings."""
    evidence, speedup = record.evidence, record.gain
    lines = []
    if speedup:
        lines.append(
            f"{evidence.objective}: {speedup.estimate:.3g}x [{speedup.low:.3g}, {speedup.high:.3g}] with "
            f"{speedup.confidence:.0%} confidence"
        )
    lines += [
        evidence.reason,
        f"{record.model.path}, {record.workload.load}",
        f"{record.host.cpu_model}, {record.host.n_usable} CPUs, onnxruntime {record.runtime.onnxruntime}",
    ]
    rows = [(name, str(value)) for name, value in record.config.settings.items()]
    points = [
        (str(number), *(f"{each.estimate:.3g}x" for each in point.speedups.values()))
        for number, point in enumerate(evidence.front, 1)
    ]
    parts = [f"<strong>{_escape(VERDICTS[evidence.verdict])}</strong>"]
    parts += [f"<div>{_escape(line)}</div>" for line in lines if line]
    parts += [_tabulate(("setting", "value"), rows)] if rows else []
    parts += [_tabulate(("point", *(f"{name} ratio" for name in record.workload.objectives)), points)] if points else []
    return f"<div>{''.join(parts)}</div>"


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _tabulate(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escape(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_escape(each)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
