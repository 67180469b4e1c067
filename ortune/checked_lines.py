"""Lines with checksums, for files that are only appended to.

A line is a checksum (CRC-32, as eight hexadecimal digits), a space, and the content. What an interrupted write or a
crash of the system left at the end is thus recognized. The checksum does not protect against intent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator


def make_line(content: bytes) -> bytes:
    """Return a line.

    Args:
        content: Its content, without line breaks.
    """
    return b"%08x %s\n" % (zlib.crc32(content), content)


def has_line_after(data: bytes, place: int) -> bool:
    """Return whether there is a sound line after the damaged one that begins at a place.

    An interrupted write damages only the end of a file. Sound lines after it mean that something else changed the file.
    """
    while (end := data.find(b"\n", place)) >= 0:
        place = end + 1
        if next(read_lines(data[place : data.find(b"\n", place) + 1]), None):
            return True
    return False


def read_lines(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the content of each line up to the first damaged one, and the position after the line."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        checksum, content = data[start : start + 9], data[start + 9 : end]
        if checksum != b"%08x " % zlib.crc32(content):
            return
        start = end + 1
        yield content, start
