"""How values are written in languages of C's family, YAML and JSON."""

from __future__ import annotations

import json

from ortune.export.sheet import Value


def literal(value: Value) -> str:
    """Return a value as C++, C#, Java, JavaScript, Rust, YAML and JSON all write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else str(value)


def pairs(options: dict[str, str], form: str) -> str:
    """Return options separated by commas.

    Args:
        options: Names and values.
        form: How one is written, with `{name}` and `{value}`, such as `[{name}] = {value}`.
    """
    return ", ".join(form.format(name=literal(name), value=literal(value)) for name, value in options.items())
