"""A summary as a piece of HTML, for notebooks. Notebooks run no scripts of outputs, so it has none."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ortune.sanitize import printable

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The headings of a table, and its rows."""


def render_summary(title: str, lines: Sequence[str], tables: Sequence[Table]) -> str:
    """Return a title, lines and tables as HTML, in which all texts are escaped. Tables without rows are left out."""
    parts = [f"<strong>{_escape(title)}</strong>"]
    parts += [f"<div>{_escape(line)}</div>" for line in lines if line]
    parts += [_render_table(columns, rows) for columns, rows in tables if rows]
    return f"<div>{''.join(parts)}</div>"


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
