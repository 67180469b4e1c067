"""How values are written in programming languages, YAML and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ortune.export.pending_settings import Value

LEVEL_NUMBERS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
    "ORT_ENABLE_ALL": 99,
}
"""Values of GraphOptimizationLevel in ONNX Runtime's C API."""

LAYOUT = "ORT_ENABLE_LAYOUT"
"""The latest of the optimization levels. Some targets do not have it."""

LEVELS_WITHOUT_LAYOUT = frozenset(LEVEL_NUMBERS) - {LAYOUT}

LOGGING_LEVELS: Mapping[Value, str] = {
    number: f"ORT_LOGGING_LEVEL_{name}" for number, name in enumerate(("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL"))
}
"""Names of OrtLoggingLevel, by number."""


def literal(value: Value) -> str:
    """Return a value as a literal of C++, C#, Java, JavaScript, Rust, YAML and JSON; a string also of Python."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # Not all of these languages have JSON's escape sequences for other characters than ASCII.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def python_literal(value: Value | Mapping[str, str]) -> str:
    """Return a value as a literal of Python."""
    return repr(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def join_pairs(options: Mapping[str, str], form: str) -> str:
    """Return options as a list that is separated by commas.

    Args:
        options: Names and values.
        form: How one is written, with `{name}` and `{value}`, such as `[{name}] = {value}`.
    """
    return ", ".join(form.format(name=literal(name), value=literal(value)) for name, value in options.items())


def call_lines(method: str, entries: Mapping[str, str], end: str = ";") -> list[str]:
    """Return one call of a method for each entry, such as `options.AddConfigEntry("name", "value");`.

    Args:
        method: The method, with its object.
        entries: Names and values: the two arguments.
        end: What follows the call.
    """
    return [f"{method}({literal(name)}, {literal(value)}){end}" for name, value in entries.items()]
