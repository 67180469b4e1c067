"""`ortune.toml`, or `[tool.ortune]` in pyproject.toml: gates by name, with what all of them share."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

from ortune.errors import UsageError

FILES = ("ortune.toml", "pyproject.toml")

SHARED = "gate"

KEYS: dict[str, Any] = {
    "base": str,
    "head": str,
    "base-python": str,
    "head-python": str,
    "max-slowdown": (str, list),
    "max-time": str,
    "also": (str, list),
    "objective": str,
    "limit": (str, list),
    "clients": int,
    "rate": (str, int, float),
    "arrivals": str,
    "sessions": int,
    "beside": str,
    "dim": (str, list),
    "shape": (str, list),
    "inputs": str,
    "rtol": (int, float),
    "atol": (int, float),
    "ignore-outputs": bool,
    "busy": bool,
    "seed": int,
}
"""What a gate may hold: the options of the command, by their names."""

NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list of texts"}


def read_gates(path: str | None) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Return the gates of a file by name, in its order, each with what all of them share.

    Args:
        path: The file; None for the first of `FILES` in this folder that has gates.

    Raises:
        UsageError: There is no such file, it is broken, or has no gates; the message tells the line.
    """
    candidates = [Path(path)] if path else [Path(name) for name in FILES]
    for candidate in candidates:
        if not candidate.is_file():
            if path:
                raise UsageError(f"There is no file {path}.", "Write one with gates: see docs/gate.md.")
            continue
        found = _read(candidate, must=path is not None or candidate.name == FILES[0])
        if found:
            return candidate, found
    raise UsageError(
        f"There are no gates: neither {' nor '.join(FILES)} here has a [gate.NAME].", "Write one: see docs/gate.md."
    )


def _read(path: Path, *, must: bool) -> dict[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is broken: {error}.", "Correct that line.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from None
    prefix = ""
    if path.name == "pyproject.toml":
        prefix = "tool.ortune."
        for name in ("tool", "ortune"):
            document = _table(path, text, document, name)
    gates = _table(path, text, document, SHARED)
    shared = {key: value for key, value in gates.items() if not isinstance(value, dict)}
    named = {key: value for key, value in gates.items() if isinstance(value, dict)}
    if not named:
        if must:
            raise UsageError(f"{path} has no gates.", "Write [gate.NAME] with base and head: see docs/gate.md.")
        return {}
    _check(path, text, f"{prefix}{SHARED}", shared)
    for name, gate in named.items():
        _check(path, text, f"{prefix}{SHARED}.{name}", gate)
        if "base" not in {**shared, **gate}:
            line = _line_of_table(text, f"{prefix}{SHARED}.{name}")
            raise UsageError(
                f"{path}, line {line}: gate {name} has no base.", 'Write base = "model.onnx" and head = "other.onnx".'
            )
    return {name: {**shared, **gate} for name, gate in named.items()}


def _table(path: Path, text: str, document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a document, empty where there is none.

    Raises:
        UsageError: There is something else in its place.
    """
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"{path}, line {_line(text, name)}: {name} is no table.", "Write [gate.NAME].")
    return found


def _check(path: Path, text: str, table: str, gate: dict[str, Any]) -> None:
    """Check the keys of a table and the types of their values.

    Raises:
        UsageError: One of them is unknown, or of another type.
    """
    for key, value in gate.items():
        where = f"{path}, line {_line(text, key, table)}: {key}"
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            raise UsageError(
                f"{where} is not known.", f"Did you mean {near[0]}?" if near else f"Known are {', '.join(KEYS)}."
            )
        kinds = KEYS[key] if isinstance(KEYS[key], tuple) else (KEYS[key],)
        is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        fits = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
        if not fits or (isinstance(value, list) and not is_texts):
            wanted = " or ".join(NAMES[kind] for kind in kinds)
            raise UsageError(f"{where} = {_shown(value)} is not {wanted}.", _hint(key, value, kinds))


def _shown(value: Any) -> str:
    """Return a value as TOML writes it, as far as that is short."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _hint(key: str, value: Any, kinds: tuple[Any, ...]) -> str:
    """Return what to write instead."""
    examples = {"max-slowdown": '"3%"', "max-time": '"3m"', "limit": '"p99<20ms"', "also": '"memory"'}
    if key in examples:
        return f"Write {key} = {examples[key]}."
    if isinstance(value, (int, float)) and not isinstance(value, bool) and str in kinds:
        return f'Write it in quotes: {key} = "{value}".'
    return "Correct that line."


def _line_of_table(text: str, table: str) -> int:
    """Return the line of a table's header, counted from 1; 1 where it is not found."""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*(.+?)\s*\]\s*(#.*)?$", line)
        if header and header[1].replace('"', "").replace("'", "").replace(" ", "") == table.replace(" ", ""):
            return number
    return 1


def _line(text: str, key: str, table: str = "") -> int:
    """Return the line of a key in a table, counted from 1; that of the table where it is not found."""
    start = _line_of_table(text, table) if table else 1
    for number, line in enumerate(text.splitlines()[start - 1 :], start):
        if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line) or f"[{key}]" in line.replace(" ", ""):
            return number
    return start
