"""Gates of `ortune.toml`, or of `[tool.ortune]` in pyproject.toml.

Keys of `[gate]` apply to all gates, keys of `[gate.NAME]` to one. They are the options of `GateRequest`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.errors import OrtuneError, UsageError, spell_in_toml
from ortune.limited import TooLargeError, read_limited
from ortune.options import make_request
from ortune.requests import GateRequest

FILES = ("ortune.toml", "pyproject.toml")

MOST_BYTES = 1 << 20
"""Largest size of a file that is read. A file with a hundred gates has a few kilobytes."""

MOST_GATES = 1000

MOST_DOTS = 64
"""Largest number of dots in a key. The time that tomllib takes grows with the square of it."""

NO_KEYS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
"""Strings and comments of TOML."""

PROGRAMS = ("beside", "base_python", "head_python")
"""Options whose values are programs that a gate runs. A file may have them only if the user trusts it."""


def read_gates(
    path: str | None, only: tuple[str, ...] = (), given: Mapping[str, Any] | None = None, *, trust: bool = False
) -> list[GateRequest]:
    """Return the gates of a file, in its order.

    Args:
        path: The file, or `-` for stdin; None for the first of `FILES` in this folder that has gates.
        only: Names of the gates to return; all if empty.
        given: Values from the command line, which take precedence over those of the file.
        trust: Whether the file may name programs to run, and records may have settings that need trust.

    Raises:
        UsageError: There is no such file or gate, the file is malformed, or a value is not valid. The message names the
            file, the line and the key.
    """
    source, text, tables = _find(path)
    prefix = "tool.ortune." if source.name == "pyproject.toml" else ""
    shared = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    named = {key: value for key, value in tables.items() if isinstance(value, dict)}
    if len(named) > MOST_GATES:
        raise UsageError(f"{source} has {len(named)} gates; at most {MOST_GATES} are read.", "Write several files.")
    for name in only:
        if name not in named:
            raise UsageError(f"{name}: {source} has no such gate; it has {', '.join(named)}.", option="only")
    gates = []
    for name, own in named.items():
        if only and name not in only:
            continue
        places = {key: f"{prefix}gate.{name}" if key in own else f"{prefix}gate" for key in {**shared, **own}}
        values = {key.replace("-", "_"): value for key, value in {**shared, **own}.items()}
        try:
            # Check the file without the command line's values, so that these do not hide an error in the file.
            request = make_request(GateRequest, values, "toml")
            if not trust:
                _reject_programs(values, given or {})
            if given:
                request = make_request(GateRequest, {**values, **given}, "toml")
        except OrtuneError as error:
            from_command_line = error.option in (given or {})
            if from_command_line:
                raise
            key = error.option.replace("_", "-")
            line = _line(text, key, places.get(key, f"{prefix}gate.{name}"))
            message, hint = error.render(spell_in_toml, f"{source}, line {line}")
            raise UsageError(message, hint) from None
        gates.append(request.replace(name=name, trust=trust))
    return gates


def list_names(path: str | None = None) -> list[str]:
    """Return the names of the gates of a file; see `read_gates`."""
    _, _, tables = _find(path)
    return [key for key, value in tables.items() if isinstance(value, dict)][:MOST_GATES]


def _reject_programs(values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Reject the values of a file that name a program to run, unless the command line replaces them.

    Raises:
        UsageError: There is one.
    """
    for name in PROGRAMS:
        if name in values and name not in given:
            raise UsageError(
                f"{values[name]}: this names a program to run.",
                "If you trust this file, pass --trust. Otherwise pass the program on the command line.",
                option=name,
            )


def _find(path: str | None) -> tuple[Path, str, dict[str, Any]]:
    """Return the file, its text, and its table of gates."""
    for candidate in [Path(path)] if path else [Path(name) for name in FILES]:
        if path != "-" and not candidate.is_file():
            if path:
                raise UsageError(f"There is no file {path}.", "Write one with gates: see docs/gate.md.")
            continue
        source = Path("<stdin>") if path == "-" else candidate
        text, tables = _read(source, is_stdin=path == "-")
        if any(isinstance(value, dict) for value in tables.values()):
            return source, text, tables
        if path or candidate.name == FILES[0]:
            raise UsageError(f"{source} has no gates.", "Write [gate.NAME] with base and head: see docs/gate.md.")
    raise UsageError(
        f"There are no gates: neither {' nor '.join(FILES)} in this folder has a [gate.NAME].",
        "Write one: see docs/gate.md.",
    )


def _read(path: Path, *, is_stdin: bool) -> tuple[str, dict[str, Any]]:
    try:
        text = read_limited("-" if is_stdin else path, MOST_BYTES).decode()
    except TooLargeError as error:
        raise UsageError(f"{path} is not a file with gates: {error}.", "Write gates in a file of their own.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: is not UTF-8.", "Save the file as UTF-8.") from None
    document = _parse(path, text)
    for name in (*(("tool", "ortune") if path.name == "pyproject.toml" else ()), "gate"):
        document = document.get(name, {})
        if not isinstance(document, dict):
            raise UsageError(f"{path}, line {_line(text, name)}: {name} is not a table.", "Write [gate.NAME].")
    return text, document


def _parse(path: Path, text: str) -> dict[str, Any]:
    """Return the document of a TOML file.

    Raises:
        UsageError: It is not valid, nested too deeply, or has a number that does not fit into 64 bits.
    """
    segments = re.split(r"[=,\n]", NO_KEYS.sub(lambda found: "\n" * found[0].count("\n"), text))
    try:
        if any(segment.count(".") > MOST_DOTS for segment in segments):
            raise RecursionError
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", "Correct that line.") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply.", "Write [gate.NAME] with base and head.") from None
    except (ValueError, OverflowError) as error:
        # Python refuses to read integers of more than 4300 digits.
        found = re.search(r"[0-9][0-9_]{1000}", text)
        line = text.count("\n", 0, found.start()) + 1 if found else 1
        reason = str(error).partition(";")[0]
        raise UsageError(f"{path}, line {line}: cannot be read: {reason}.", "Correct that line.") from None
    _check_numbers(path, document, "")
    return document


def _check_numbers(path: Path, value: Any, place: str) -> None:
    """Check that integers have 64 bits at most, as TOML says.

    Raises:
        UsageError: One has more.
    """
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise UsageError(f"{path}: {place[:200]} is a number that does not fit into 64 bits.", "Correct it.")
    for key, each in value.items() if isinstance(value, dict) else ():
        _check_numbers(path, each, f"{place}.{key}" if place else key)
    for each in value if isinstance(value, list) else ():
        _check_numbers(path, each, place)


def _line_of_table(text: str, table: str) -> int:
    """Return the line of a table's header, counted from 1; 1 if it is not found."""
    for number, line in enumerate(text.splitlines(), 1):
        header = line.partition("#")[0].strip()
        if header.startswith("[") and header.endswith("]"):
            name = header[1:-1].replace('"', "").replace("'", "").replace(" ", "").replace("\t", "")
            if name == table.replace(" ", ""):
                return number
    return 1


def _line(text: str, key: str, table: str = "") -> int:
    """Return the line of a key in a table, counted from 1; the line of the table if it is not found."""
    start = _line_of_table(text, table) if table else 1
    for number, line in enumerate(text.splitlines()[start - 1 :], start):
        if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line) or f"[{key}]" in line.replace(" ", ""):
            return number
    return start
