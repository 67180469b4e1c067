"""Defaults of options from `ortune.toml` or pyproject.toml: `[search]` for `ortune search`, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.errors import OrtuneError, UsageError, spell_in_toml
from ortune.file_values import check_file_value
from ortune.options import Request, make_request, options_of, parse_value
from ortune.requests import COMMANDS
from ortune.toml_file import FILES, TomlFile, read_toml

TABLES = ("search", "bench", "plan", "suggest", "space", "doctor", "profile")
"""Commands whose options a file may have. `ortune gate` has `[gate]`, and `ortune apply` applies what was measured."""


def read_defaults(table: str, request: type[Request]) -> dict[str, Any]:
    """Return the values of a command's options that a file in the working folder has, unparsed.

    Args:
        table: Name of the command.
        request: Its options. Those of another form of the command, such as the one with a program, are left out.

    Raises:
        UsageError: The file is not valid, or a value is not. The message has the file, the line and the key.
    """
    forms = tuple(requests[0] for name, requests in COMMANDS.items() if name.split()[0] == table)
    found: dict[str, Any] = {}
    for name in FILES:
        if not Path(name).is_file():
            continue
        file = read_toml(name)
        values = file.find_table(table)
        check_values(file, table, values, (*(form for form in forms if form is not request), request))
        known = options_of(request)
        own = {key.replace("-", "_"): value for key, value in values.items()}
        # The first file has precedence.
        found = {**{key: value for key, value in own.items() if key in known}, **found}
    return found


def check_values(file: TomlFile, table: str, values: Mapping[str, Any], forms: tuple[type[Request], ...]) -> None:
    """Check the options of a table.

    Raises:
        UsageError: One is unknown, names what a file must not name, or has a value that is not valid.
    """
    # The form that runs is the last one: an option of the same name may have other values in another one.
    declared = {name: declaration for form in forms for name, declaration in options_of(form).items()}
    for key, value in values.items():
        name = key.replace("-", "_")
        try:
            if name not in declared or "toml" not in declared[name].option.interfaces:
                owner = next((form for form in forms if name in options_of(form)), forms[0])
                make_request(owner, {name: value}, "toml")
            check_file_value(declared[name], value, "Pass it on the command line.")
            parse_value(declared[name], value)
        except OrtuneError as error:
            message, hint = error.render(spell_in_toml, f"{file.path}, line {file.find_line(key, table)}")
            raise UsageError(message, hint) from None
