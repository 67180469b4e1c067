"""Reads files of unknown origin up to a size limit.

A path may lead to a device that never ends, or to a file that would fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

STANDARD_STREAM = "-"
"""Path that stands for stdin when reading and for stdout when writing."""

STDIN = "stdin"
"""Name of stdin where the name of an input file is shown."""

CHUNK_BYTES = 1 << 16


class TooLargeError(ValueError):
    """The file is larger than its limit; the message says so, as part of a sentence."""


def read_limited(path: str | Path, most_bytes: int, *, only_regular: bool = False) -> bytes:
    """Return the content of a file.

    Args:
        path: Path of the file; `-` for stdin.
        most_bytes: Largest size that is read.
        only_regular: Whether to refuse pipes and devices, which may block. It is for paths that a file names.

    Raises:
        OSError: It cannot be read.
        TooLargeError: It is larger.
    """
    try:
        if str(path) == STANDARD_STREAM:
            data = read_open(sys.stdin.buffer, most_bytes + 1)
        else:
            found = path if isinstance(path, Path) else Path(path)  # copying a path takes longer than opening a file
            if only_regular and not stat.S_ISREG(found.stat().st_mode):
                raise OSError(None, "it is not a regular file")
            with found.open("rb") as file:
                data = read_open(file, most_bytes + 1)
    except ValueError:  # a null character in the path
        raise OSError(None, "that is not a legal path") from None
    if len(data) > most_bytes:
        raise TooLargeError(f"it has more than {most_bytes >> 10} KiB")
    return data


def open_regular(path: Path, flags: int, mode: int) -> int:
    """Open a file that the user did not name, such as one next to a record. Return its descriptor.

    A link in its place may have come with the folder, and may lead to any file of the user.

    Args:
        path: Path of the file.
        flags: Flags of `os.open`.
        mode: Mode of a new file.

    Raises:
        OSError: It cannot be opened, or is a link, a pipe or a device. The error says so, as part of a sentence.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link")
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def explain_no_access(path: Path) -> str:
    """Return why the system does not say whether there is a file; empty if it does.

    Depending on the version of Python, `is_file` raises such an error, or says that there is none.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"cannot be accessed: {error.strerror}"
    return ""


def read_open(file: BinaryIO, most_bytes: int) -> bytes:
    """Return the content of an open file up to a limit. Memory for the limit is not allocated in advance.

    Raises:
        OSError: It cannot be read.
    """
    chunks = []
    left = most_bytes
    while left > 0 and (chunk := file.read(min(left, CHUNK_BYTES))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
