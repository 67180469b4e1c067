"""How values are written in languages of C's family, Python, YAML and JSON."""

from __future__ import annotations

import json

from ortune.export.pending_settings import Value

LEVEL_NUMBERS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
    "ORT_ENABLE_ALL": 99,
}
"""Values of GraphOptimizationLevel in ONNX Runtime's C API."""

LOGGING_LEVELS = tuple(f"ORT_LOGGING_LEVEL_{name}" for name in ("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL"))
"""Names of OrtLoggingLevel, by number."""


def literal(value: Value) -> str:
    """Return a value as C++, C#, Java, JavaScript, Rust, YAML and JSON all write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else str(value)


def python_string(text: str) -> str:
    """Return a text as Python writes it; there, JSON's pairs of surrogates would be two characters."""
    return json.dumps(text, ensure_ascii=False)


def pairs(options: dict[str, str], form: str) -> str:
    """Return options separated by commas.

    Args:
        options: Names and values.
        form: How one is written, with `{name}` and `{value}`, such as `[{name}] = {value}`.
    """
    return ", ".join(form.format(name=literal(name), value=literal(value)) for name, value in options.items())
