"""What is run and measured of a program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortune.apply.placeholders import PORT_PLACEHOLDER, find_own_workers
from ortune.errors import UsageError


class ProgramTask(msgspec.Struct, frozen=True, kw_only=True):
    """A program, and what is measured of it.

    Attributes:
        command: Program and arguments.
        stdin: File for its stdin.
        call: Function whose calls are measured, as `package.module:function`; empty for none.
        metric: Regular expression for a number that the program prints; empty for none.
        maximize: Whether a larger number is better.
        check: Command that checks the output of a run, which it gets on stdin; empty for none.
        ignore_outputs: Whether only the exit status is compared.
    """

    command: tuple[str, ...]
    stdin: Path = Path(os.devnull)
    call: str = ""
    metric: str = ""
    maximize: bool = False
    check: str = ""
    ignore_outputs: bool = False

    @property
    def compares_values(self) -> bool:
        """Whether outputs are compared by ortune itself."""
        return not self.check and not self.ignore_outputs

    @property
    def own_workers(self) -> int:
        """The number of worker processes of the program as it is; 0 if it is not a setting."""
        return find_own_workers(self.command)

    @property
    def has_port(self) -> bool:
        """Whether the program takes a port."""
        return any(PORT_PLACEHOLDER in word for word in self.command)


def parse_call(text: str) -> str:
    """Check the name of a function, such as `package.module:function`.

    Raises:
        UsageError: It is not one.
    """
    module, separator, name = text.partition(":")
    if not separator or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise UsageError(f"{text}: is not the name of a function.", "Write {call=package.module:function}.")
    return text


def can_encode(text: str, encoding: str) -> bool:
    """Return whether a text can be encoded. Words of a command line may hold bytes that are not UTF-8."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def make_environment(inherited: Mapping[str, str], *more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: the inherited one, without what ortune set for itself, and more."""
    own = {name: value for name, value in inherited.items() if not name.startswith("ORTUNE_")}
    for variables in more:
        own |= variables
    return own
