"""Commands that take a program after `--`: `ortune search`, `ortune apply --verify` and `ortune gate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortune.errors import UsageError

NAMES = {"search": "search --", "apply": "apply --verify --", "gate": "gate --"}
"""Names in Typer of the forms with a program. `route` puts them in place of the others."""

SEPARATOR = "--"


def route(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a process, with the name of another command if they name a program after `--`."""
    return [arguments[0], NAMES[arguments[1]], *arguments[2:]] if names_program(arguments) else list(arguments)


def names_program(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of a process name a program after `--`.

    What follows `--` may also be a model whose name begins with a hyphen.
    """
    if len(arguments) < 2 or arguments[1] not in NAMES or SEPARATOR not in arguments:
        return False
    before, command = split(arguments[2:])
    is_model = len(command) == 1 and Path(command[0]).suffix.lower() in {".onnx", ".ort"}
    if is_model or (arguments[1] == "apply" and "--verify" not in before):
        return False
    return arguments[1] != "gate" or bool(command)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what comes before `--` and what follows it."""
    place = list(arguments).index(SEPARATOR)
    return list(arguments[:place]), list(arguments[place + 1 :])


def check_single_config(given: Sequence[str], arguments: Sequence[str], usage: str) -> None:
    """Check that there is exactly one file before `--`, so that all other words are the command.

    Args:
        given: The words that were taken for the command.
        arguments: The arguments of this process.
        usage: How to write the command.

    Raises:
        UsageError: There is none, or more than one.
    """
    _, command = split(arguments)
    if len(given) < len(command):
        raise UsageError("There is no CONFIG before --.", f"Write: {usage}.")
    if len(given) > len(command):
        raise UsageError(
            f"{given[0]}: there is more than one CONFIG before --.",
            f"Write: {usage}. The bundle that a search of a program wrote has the records of all of its models.",
        )
