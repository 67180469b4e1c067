"""What is run and measured of a program."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortune.apply.placeholders import PORT, find_own_workers
from ortune.errors import UsageError
from ortune.sanitize import printable


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
        return any(PORT in word for word in self.command)


def parse_call(text: str) -> str:
    """Check the name of a function, such as `package.module:function`.

    Raises:
        UsageError: It is not one.
    """
    module, separator, name = text.partition(":")
    if not separator or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise UsageError(f"{text}: is not the name of a function.", "Write {call=package.module:function}.")
    return text


def parse_metric(text: str) -> str:
    """Check a regular expression that finds a number: in its first group, or as a whole if it has none.

    Raises:
        UsageError: It is not one.
    """
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{text}: is not a regular expression: {error}.") from None
    if not can_encode(text, "utf-8"):
        raise UsageError(f"{printable(text)}: holds bytes that are not UTF-8.", "Write it in UTF-8.")
    if pattern.groups > 1:
        raise UsageError(f"{text}: has {pattern.groups} groups.", r"Write one group, as in {metric='fps: ([\d.]+)'}.")
    return text


def can_encode(text: str, encoding: str) -> bool:
    """Return whether a text can be encoded. Words of a command line may hold bytes that are not UTF-8."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def find_metric(pattern: str, text: str) -> float | None:
    """Return the last number in a text that a pattern finds; None if there is none above 0."""
    found = None
    for match in re.finditer(pattern, text):
        found = match
    if found is None:
        return None
    try:
        value = float(found[found.re.groups])
    except (TypeError, ValueError):
        return None
    return value if 0 < value < float("inf") else None


def make_environment(inherited: Mapping[str, str], *more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: the inherited one, without what ortune set for itself, and more."""
    own = {name: value for name, value in inherited.items() if not name.startswith("ORTUNE_")}
    for each in more:
        own |= each
    return own
