"""Placeholders in the command of a program: the number of its worker processes, and a port."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORKERS_PLACEHOLDER = re.compile(r"\{workers(?:=(\d{1,4}))?\}")
"""The number of worker processes. `{workers=2}` names that of the program as it is, which is 1 otherwise."""

PORT_PLACEHOLDER = "{port}"
"""A free TCP port, so that several candidates can be live."""


def find_own_workers(command: Sequence[str]) -> int:
    """Return the number of worker processes of the program as it is; 0 if the command has no placeholder for it."""
    found = [match for word in command if (match := WORKERS_PLACEHOLDER.search(word))]
    return int(found[0][1] or 1) if found else 0


def fill_command(command: Sequence[str], *, workers: int = 0, port: int = 0) -> list[str]:
    """Return a command without placeholders.

    Args:
        command: Program and arguments.
        workers: Number of worker processes; 0 for that of the program as it is.
        port: TCP port; 0 to leave its placeholder.
    """
    filled = [WORKERS_PLACEHOLDER.sub(lambda match: str(workers or int(match[1] or 1)), word) for word in command]
    return [word.replace(PORT_PLACEHOLDER, str(port)) for word in filled] if port else filled
