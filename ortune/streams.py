"""The standard streams: closed ones, those that cannot show every character, and paths that lead to them."""

from __future__ import annotations

import codecs
import os
import sys
from pathlib import Path
from typing import TextIO

STDOUT = 1

MOST_LINKS = 40
"""Links that are followed from one path. More of them are a cycle."""

LOOKALIKES = {
    "µ": "u",
    "·": "+",
    "…": "...",
    "→": ">",
    "●": "o",
    "¦": ":",
    **dict.fromkeys("─━═", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰", "+"),
}
"""What stands for characters of ortune's output where an encoding lacks them. All others become question marks."""

ERRORS = "ortune.lookalikes"


def open_closed_streams() -> None:
    """Open the standard streams that are closed, as with `>&-`, before another file gets their numbers.

    What a worker prints would go to that file. stdout is opened for reading, so that writing to it fails as it does in
    other programs; what goes to stderr is discarded.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:  # pragma: no cover  (the lowest free number is taken)
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    # Python has no stream object where it found a closed one.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(STDOUT, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def show_what_fits(stream: TextIO) -> None:
    """Let a stream replace characters that its encoding lacks. Otherwise, writing them is an error."""
    codecs.register_error(ERRORS, replace_characters)
    reconfigure = getattr(stream, "reconfigure", None)  # the streams of tests and notebooks may lack it
    if reconfigure is not None:
        reconfigure(errors=ERRORS)


def replace_characters(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that cannot be encoded, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(LOOKALIKES.get(character, "?") for character in text), error.end


def find_descriptor(path: Path) -> int | None:
    """Return the number of the open file that a path leads to: 1 for /dev/stdout. None if it leads to none."""
    for _ in range(MOST_LINKS):
        try:
            folder = os.path.realpath(path.parent)
        except OSError:  # the working directory was removed
            return None
        if folder in {f"/proc/{os.getpid()}/fd", "/dev/fd"}:
            return int(path.name) if path.name.isdecimal() else None
        try:
            if not path.is_symlink():
                return None
            path = Path(folder, path.readlink())
        except OSError:  # the name is too long, or the link was removed
            return None
    return None
