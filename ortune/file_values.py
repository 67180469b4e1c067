"""What a file may decide about options: `ortune.toml`, or `[tool.ortune]` in pyproject.toml.

The file may come from somebody else, like the folder that it is in. Each option says what the texts in its value name,
see `ortune.options.Option.names`. A file may name files of the working folder, and settings that a record may have,
too. It may name no other file, no host and no program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ortune.errors import UsageError
from ortune.knobs.catalogue import KNOBS, find_knob
from ortune.model.data_files import follow_links
from ortune.options import DeclaredOption, parse_value, show

REFUSED = {"host": "names a host to connect to", "program": "names a program to run"}
"""What no value of a file may name, and the end of the message about it."""

CONTENTS = ("*.npz", "input_*.pb", "*/input_*.pb")
"""What is read of a folder with input data; see `ortune.workload.data`."""


def check_file_value(declared: DeclaredOption, value: Any, hint: str) -> None:
    """Check that a value of a file names nothing that the file must not decide.

    Args:
        declared: The option.
        value: The value, as it is in the file.
        hint: What the user can do, as a sentence.

    Raises:
        UsageError: It does.
    """
    names = declared.option.names or "nothing"
    if names in REFUSED:
        raise UsageError(f"{show(value)}: this {REFUSED[names]}.", hint, option=declared.name)
    if names == "file":
        for path in list_paths(value):
            if not is_in_working_folder(path):
                raise UsageError(f"{show(path)}: this file is not in the working folder.", hint, option=declared.name)
    if names == "settings":
        check_settings(parse_value(declared, value), hint, declared.name)


def list_paths(value: Any) -> Iterator[str]:
    """Yield the paths in a value: texts, the parts of MODEL@CONFIG, and the files of a folder with input data.

    A folder comes before its files, so that one that is elsewhere is not looked into.
    """
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, str):
            yield entry
            yield from entry.split("@")
            # There is no folder whose name is too long.
            with contextlib.suppress(OSError, ValueError):
                yield from [str(path) for pattern in CONTENTS for path in Path(entry).glob(pattern)]


def is_in_working_folder(path: str) -> bool:
    """Return whether a path leads to a file of the working folder. A link must not lead out of it."""
    folder = Path.cwd()
    # On Windows, following a path such as \\HOST\SHARE would connect to the host, so that its text is checked first.
    if not Path(os.path.normpath(folder / path)).is_relative_to(folder):
        return False
    try:
        return follow_links(folder / path).is_relative_to(folder.resolve())
    except (OSError, ValueError):  # such as a loop of links, or a null character
        return False


def check_settings(settings: Iterable[str], hint: str, option: str) -> None:
    """Check that settings are some that a record may have, too.

    Args:
        settings: Their names.
        hint: What the user can do, as a sentence.
        option: The option that they are from.

    Raises:
        UsageError: One is not, such as one that names a file to write.
    """
    for name in settings:
        knob = find_knob(name)
        fault = knob.unsafe if knob.id in KNOBS else "it is not in the catalog of knobs"
        if fault:
            raise UsageError(f"{name}: {fault}.", hint, option=option)
