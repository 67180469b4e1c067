"""Reads .npz archives of unknown origin.

The headers of all arrays are read first, and nothing is expanded before the caller has accepted them: a few megabytes
can expand to any size. What NumPy writes is read, and nothing else: no objects, no pickles, no other compression.

Source: `numpy.lib.format` for the format of arrays.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ortune.errors import InputsError
from ortune.workload.size import check_size, format_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

MOST_ARRAYS = 10_000
"""Largest number of arrays: an archive has one for each input."""

MOST_BYTES_AT_ONCE = 4 << 20
"""Largest piece of a file that is read. The directory of an archive, which comes in one piece, is smaller."""

MOST_HEADER_BYTES = 10_000

MOST_AXES = 64
"""NumPy's limit."""

ALWAYS_EXPANDED_BYTES = 256 << 20
MOST_EXPANSION = 100
"""Arrays of more than that size may be at most so many times larger than the archive."""

ARRAY_SUFFIX = ".npy"

METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Those of NumPy. Others need memory for decompression that the archive determines."""

ENCRYPTED = 0x1

MAGIC = b"\x93NUMPY"

LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
"""Size of the length of the header, by version."""

HEADER = re.compile(
    r"\{(?=[^{}]*'descr':\s*'(?P<dtype>[^'{}]*)')(?=[^{}]*'fortran_order':\s*(?:True|False)\s*[,}])"
    r"(?=[^{}]*'shape':\s*\((?P<shape>[0-9,\s]*)\))[^{}]*\}\s*",
    re.ASCII,
)
"""A header, with its entries in any order."""

DTYPE = re.compile(r"[<>=|](?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[SU][0-9]{1,9})")
"""The types that can be inputs, or that a message can name."""


class ArrayHeader(NamedTuple):
    """What an array in an archive is.

    Attributes:
        shape: Its sizes.
        dtype: NumPy's text for its type.
        n_bytes: Size of its values.
    """

    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


def read_npz(
    path: Path, check: Callable[[Mapping[str, ArrayHeader]], None] | None = None, *, loaded_bytes: int = 0
) -> dict[str, Array]:
    """Return the arrays of an archive, by name.

    Args:
        path: Path of the archive.
        check: Called with the headers, before values are read. It raises an `InputsError` to refuse them.
        loaded_bytes: Size of the arrays that were already read from other files.

    Raises:
        InputsError: It is not an archive of arrays, or its arrays do not fit into memory.
    """
    place = ""
    try:
        with _PiecewiseFile(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MOST_ARRAYS:
                raise ValueError(f"{len(members)} arrays; at most {MOST_ARRAYS} are read")
            headers: dict[str, ArrayHeader] = {}
            for member in members:
                place = member.filename
                name = place.removesuffix(ARRAY_SUFFIX)
                if name in headers:
                    raise ValueError("it is there twice")
                headers[name] = _read_header(archive, member)
            place = ""
            _check_expansion(path, sum(header.n_bytes for header in headers.values()), loaded_bytes)
            if check is not None:
                check(headers)
            arrays = {}
            for name, member in zip(headers, members, strict=True):
                place = member.filename
                arrays[name] = _read_array(archive, member)
            return arrays
    except InputsError:
        raise
    except OSError as error:
        raise _reject(path, place, error.strerror or f"{error}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _reject(path, place, f"{error}" or "the archive is damaged") from None
    except Exception as error:  # noqa: BLE001  (zipfile and NumPy raise a dozen kinds for malformed files)
        raise _reject(path, place, f"{error}" or type(error).__name__) from None


class _PiecewiseFile(io.FileIO):
    """A file of which only small pieces are read: zipfile reads the directory, whose size the file states, at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0 or size > MOST_BYTES_AT_ONCE:
            position = self.tell()
            left = self.seek(0, io.SEEK_END) - position
            self.seek(position)
            if (left if size is None or size < 0 else min(left, size)) > MOST_BYTES_AT_ONCE:
                raise zipfile.BadZipFile(f"its directory has more than {MOST_BYTES_AT_ONCE >> 20} MiB")
        return super().read(size) or b""


def _check_expansion(path: Path, n_bytes: int, loaded_bytes: int) -> None:
    """Check that the arrays fit into memory, and that the archive is not made to fill it.

    Raises:
        InputsError: They do not, or it is.
    """
    what = f"{path}: with those of other files, its arrays take" if loaded_bytes else f"{path}: its arrays take"
    check_size(n_bytes + loaded_bytes, what, option="inputs")
    file_bytes = path.stat().st_size
    if n_bytes > ALWAYS_EXPANDED_BYTES and n_bytes > MOST_EXPANSION * file_bytes:
        raise InputsError(
            f"{path}: {format_bytes(file_bytes)} expand to {format_bytes(n_bytes)}, more than {MOST_EXPANSION}-fold.",
            "If these are your data, save them without compression: numpy.savez(path, NAME=array).",
            option="inputs",
        )


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    """Return the header of an array.

    Raises:
        ValueError: It is not an array that can be an input, or its size is not that of its values.
        Exception: Whatever zipfile raises.
    """
    if member.compress_type not in METHODS:
        raise ValueError(f"it is compressed with method {member.compress_type}, which NumPy does not use")
    if member.flag_bits & ENCRYPTED:
        raise ValueError("it is encrypted")
    with archive.open(member) as file:
        start = file.read(len(MAGIC) + 2)
        version = tuple(start[len(MAGIC) :])
        if not start.startswith(MAGIC) or len(version) != 2:
            raise ValueError("it is not an array")
        if version not in LENGTH_BYTES:
            raise ValueError(f"it has version {version[0]}.{version[1]} of the format")
        length = file.read(LENGTH_BYTES[version])
        n_header_bytes = int.from_bytes(length, "little")
        if n_header_bytes > MOST_HEADER_BYTES:
            raise ValueError(f"its header has {n_header_bytes} bytes; at most {MOST_HEADER_BYTES} are read")
        text = file.read(n_header_bytes).decode("latin-1")
    left_bytes = member.file_size - len(start) - len(length) - n_header_bytes
    return _parse_header(text, left_bytes)


def _parse_header(text: str, left_bytes: int) -> ArrayHeader:
    """Return a header, given its text and the size of the values that follow.

    Raises:
        ValueError: It is not that of an array that can be an input, or declares another size.
    """
    found = HEADER.fullmatch(text)
    if not found or any(text.count(key) != 1 for key in ("'descr'", "'fortran_order'", "'shape'")):
        kind = "it holds records" if "[(" in text else "its header is malformed"
        raise ValueError(kind)
    dtype = found["dtype"]
    if "O" in dtype:
        raise ValueError("it holds Python objects")
    if not DTYPE.fullmatch(dtype):
        raise ValueError(f"it has type {dtype[:50]!r}, which no input has")
    sizes = [size.strip() for size in found["shape"].split(",")]
    if sizes[-1] == "":
        sizes.pop()
    if not all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes) or len(sizes) > MOST_AXES:
        raise ValueError(f"its shape ({found['shape'][:50]}) is malformed")
    shape = tuple(map(int, sizes))
    item_bytes = int(dtype[2:]) * (4 if dtype[1] == "U" else 1)
    n_bytes = math.prod(shape) * item_bytes
    if n_bytes != left_bytes:
        raise ValueError(f"it declares {n_bytes} bytes, and has {max(left_bytes, 0)}")
    return ArrayHeader(shape=shape, dtype=dtype, n_bytes=n_bytes)


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    import numpy as np

    with archive.open(member) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # zipfile compares the checksum at the end
    return array


def _reject(path: Path, member: str, reason: str) -> InputsError:
    where = f"{path}: {member[:200]!r}" if member else f"{path}"
    return InputsError(
        f"{where}: cannot be read as an .npz file: {reason.partition(chr(10))[0][:300].rstrip('.')}.",
        "Write it with numpy.savez(path, NAME=array); strings as arrays of type str, not object.",
        option="inputs",
    )
