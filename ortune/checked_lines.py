"""Lines with checksums, for files that are only appended to.

A line is a checksum (CRC-32, as eight hexadecimal digits), a space, and the content. What an interrupted write or a
crash of the system left at the end is thus recognized. The checksum does not protect against intent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

MOST_LINE_BYTES = 64 << 20
"""Length of the longest line that is read. A longer one counts as damaged."""


def make_line(content: bytes) -> bytes:
    """Return a line.

    Args:
        content: Its content, without line breaks.
    """
    return b"%08x %s\n" % (zlib.crc32(content), content)


def has_line_after(file: BinaryIO) -> bool:
    """Return whether there is a sound line after the damaged one that begins at the place of the file.

    An interrupted write damages only the end of a file. Sound lines after it mean that something else changed the file.
    """
    _skip_line(file)
    return any(True for _ in read_sound_lines(file))


def read_lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the content of each line up to the first damaged one, and the position after the line.

    Args:
        file: The file, read from where it is.
    """
    end = file.tell()
    while (content := _find_content(line := file.readline(MOST_LINE_BYTES))) is not None:
        end += len(line)
        yield content, end


def read_sound_lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the content of each line that is not damaged, and the position after the line.

    Args:
        file: The file, read from where it is.
    """
    while line := file.readline(MOST_LINE_BYTES):
        content = _find_content(line)
        if content is not None:
            yield content, file.tell()
        elif not line.endswith(b"\n"):
            _skip_line(file)


def _find_content(line: bytes) -> bytes | None:
    """Return the content of a line; None if the line is damaged or is not complete."""
    content = line[9:-1]
    return content if line.endswith(b"\n") and line[:9] == b"%08x " % zlib.crc32(content) else None


def _skip_line(file: BinaryIO) -> None:
    """Go to the begin of the next line."""
    while (part := file.readline(MOST_LINE_BYTES)) and not part.endswith(b"\n"):
        pass
