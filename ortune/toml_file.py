"""TOML files of users: `ortune.toml`, or `[tool.ortune]` in pyproject.toml. Their errors name the file and the line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from ortune.errors import UsageError
from ortune.limited import STANDARD_STREAM, TooLargeError, read_limited

FILES = ("ortune.toml", "pyproject.toml")
"""Files that are looked for in the working folder, the first one first."""

MOST_TOML_BYTES = 1 << 20
"""Largest size of a file that is read. A file with a hundred gates has a few kilobytes."""

MOST_DOTS = 64
"""Largest number of dots in a key. The time that tomllib takes grows with the square of it."""

NO_KEYS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)|\'\'\'.*?(?:\'{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?|\'[^\'\n]*\'?|#[^\n]*', re.DOTALL
)
"""Strings and comments of TOML. Strings that do not end match too, so that no text is looked at again and again."""


class TomlFile(NamedTuple):
    """A file.

    Attributes:
        path: Its path; `<stdin>` for stdin.
        text: Its text.
        tables: What it has for ortune: the whole document, or the table [tool.ortune] of pyproject.toml.
        prefix: What the names of these tables begin with in the file.
    """

    path: Path
    text: str
    tables: dict[str, Any]
    prefix: str

    def find_line(self, key: str, table: str = "") -> int:
        """Return the line of a key in a table, counted from 1; the line of the table if it is not found.

        Args:
            key: The key.
            table: Name of the table, without the prefix.
        """
        return find_line(self.text, key, f"{self.prefix}{table}" if table else "")

    def find_table(self, name: str) -> dict[str, Any]:
        """Return a table; empty if there is none.

        Raises:
            UsageError: It is not a table.
        """
        table = self.tables.get(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{self.path}, line {self.find_line(name)}: {name} is not a table.", f"Write [{name}].")
        return table


def read_toml(path: Path | str) -> TomlFile:
    """Read a file.

    Args:
        path: Its path, or `-` for stdin.

    Raises:
        UsageError: It cannot be read, or is not valid.
    """
    source = Path("<stdin>") if str(path) == STANDARD_STREAM else Path(path)
    try:
        text = read_limited(path, MOST_TOML_BYTES).decode()
    except TooLargeError as error:
        raise UsageError(f"{source} is not read: {error}.", "Write a file for ortune only.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {source}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{source}, line {line}: is not UTF-8.", "Save the file as UTF-8.") from None
    tables = _parse(source, text)
    is_project = source.name == "pyproject.toml"
    for name in ("tool", "ortune") if is_project else ():
        tables = tables.get(name, {})
        if not isinstance(tables, dict):
            raise UsageError(f"{source}, line {find_line(text, name)}: {name} is not a table.", f"Write [{name}].")
    return TomlFile(source, text, tables, "tool.ortune." if is_project else "")


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
        raise UsageError(f"{path} is nested too deeply.", "Write each table as [NAME].") from None
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
    for key, inner in value.items() if isinstance(value, dict) else ():
        _check_numbers(path, inner, f"{place}.{key}" if place else key)
    for element in value if isinstance(value, list) else ():
        _check_numbers(path, element, place)


def _find_line_of_table(text: str, table: str) -> int:
    """Return the line of a table's header, counted from 1; 1 if it is not found."""
    for number, line in enumerate(text.splitlines(), 1):
        header = line.partition("#")[0].strip()
        if header.startswith("[") and header.endswith("]"):
            name = header[1:-1].replace('"', "").replace("'", "").replace(" ", "").replace("\t", "")
            if name == table.replace(" ", ""):
                return number
    return 1


def find_line(text: str, key: str, table: str = "") -> int:
    """Return the line of a key in a table, counted from 1; the line of the table if it is not found."""
    start = _find_line_of_table(text, table) if table else 1
    for number, line in enumerate(text.splitlines()[start - 1 :], start):
        if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line) or f"[{key}]" in line.replace(" ", ""):
            return number
    return start
