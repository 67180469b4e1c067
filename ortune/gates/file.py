"""Gates of `ortune.toml`, or of `[tool.ortune]` in pyproject.toml.

Keys of `[gate]` apply to all gates, keys of `[gate.NAME]` to one. They are the options of `GateRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.errors import OrtuneError, UsageError, spell_in_toml
from ortune.file_values import check_file_value
from ortune.limited import STANDARD_STREAM
from ortune.options import make_request, options_of
from ortune.requests import GateRequest
from ortune.toml_file import FILES, TomlFile, read_toml

MOST_GATES = 1000

TRUST = "If you trust this file, pass --trust. Otherwise pass it on the command line."


def read_gates(
    path: str | None, only: tuple[str, ...] = (), given: Mapping[str, Any] | None = None, *, trust: bool = False
) -> list[GateRequest]:
    """Return the gates of a file, in its order.

    Args:
        path: The file, or `-` for stdin; None for the first of `FILES` in this folder that has gates.
        only: Names of the gates to return; all if empty.
        given: Values from the command line, which take precedence over those of the file.
        trust: Whether the file may name programs to run and files outside of the working folder, and records may have
            settings that need trust.

    Raises:
        UsageError: There is no such file or gate, the file is malformed, or a value is not valid. The message names the
            file, the line and the key.
    """
    file = _find(path)
    source, tables = file.path, file.find_table("gate")
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
        places = {key: f"gate.{name}" if key in own else "gate" for key in {**shared, **own}}
        values = {key.replace("-", "_"): value for key, value in {**shared, **own}.items()}
        try:
            # Check the file without the command line's values, so that these do not hide an error in the file.
            request = make_request(GateRequest, values, "toml")
            if not trust:
                _check_names(values, given or {})
            if given:
                request = make_request(GateRequest, {**values, **given}, "toml")
        except OrtuneError as error:
            from_command_line = error.option in (given or {})
            if from_command_line:
                raise
            key = error.option.replace("_", "-")
            line = file.find_line(key, places.get(key, f"gate.{name}"))
            message, hint = error.render(spell_in_toml, f"{source}, line {line}")
            raise UsageError(message, hint) from None
        is_own = "max_slowdown" in {*(key.replace("-", "_") for key in own), *(given or {})}
        gates.append(request.replace(name=name, trust=trust, shares_slowdown=bool(request.max_slowdown) and not is_own))
    return gates


def list_names(path: str | None = None) -> list[str]:
    """Return the names of the gates of a file; see `read_gates`."""
    tables = _find(path).find_table("gate")
    return [key for key, value in tables.items() if isinstance(value, dict)][:MOST_GATES]


def _check_names(values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check what the values of a file name, except for those that the command line replaces.

    Raises:
        UsageError: One names what a file must not name without trust.
    """
    declared = options_of(GateRequest)
    for name, value in values.items():
        if name not in given:
            check_file_value(declared[name], value, TRUST)


def _find(path: str | None) -> TomlFile:
    """Return the file with gates.

    Raises:
        UsageError: There is none, or it is not valid.
    """
    for candidate in (path,) if path else FILES:
        if candidate != STANDARD_STREAM and not Path(candidate).is_file():
            if path:
                raise UsageError(f"There is no file {path}.", "Write one with gates: see docs/gate.md.")
            continue
        file = read_toml(candidate)
        if any(isinstance(value, dict) for value in file.find_table("gate").values()):
            return file
        if path or (candidate == FILES[0] and not file.tables.keys() - {"gate"}):
            raise UsageError(f"{file.path} has no gates.", "Write [gate.NAME] with base and head: see docs/gate.md.")
    raise UsageError(
        f"There are no gates: neither {' nor '.join(FILES)} in this folder has a [gate.NAME].",
        "Write one: see docs/gate.md.",
    )
