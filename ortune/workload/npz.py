"""Reads .npz archives of unknown origin: sizes are checked before anything is allocated, and objects are refused."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ortune.errors import InputsError
from ortune.workload.size import check_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

MOST_ARRAYS = 100_000
SUFFIX = ".npy"


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of an archive, by name.

    Raises:
        InputsError: It is not an archive of arrays, or its arrays do not fit into memory.
    """
    if not zipfile.is_zipfile(path):
        raise _reject(path, "not a ZIP archive")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MOST_ARRAYS:
                raise _reject(path, f"{len(members)} arrays; at most {MOST_ARRAYS} are read")
            check_size(sum(member.file_size for member in members), f"{path}: its arrays take", option="inputs")
            return {member.filename.removesuffix(SUFFIX): _read_member(archive, member) for member in members}
    except (InputsError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  (zipfile, zlib and NumPy raise a dozen kinds for malformed files)
        raise _reject(path, f"{error}" or type(error).__name__) from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        size = _read_header(file, member.filename)
        if size != member.file_size - file.tell():
            raise ValueError(f"{member.filename} declares {size} bytes, and has {member.file_size - file.tell()}")
    import numpy as np

    with archive.open(member) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_header(file: IO[bytes], name: str) -> int:
    """Return how many bytes the array has, from its header.

    Raises:
        ValueError: It is not an array, or it is an array of objects.
    """
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in {(1, 0), (2, 0)}:
        raise ValueError(f"{name} has version {version[0]}.{version[1]} of the format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} has a negative size")
    return math.prod(shape) * dtype.itemsize


def _reject(path: Path, reason: str) -> InputsError:
    return InputsError(
        f"{path}: cannot be read as an .npz file: {reason.rstrip('.')}.",
        "Write it with numpy.savez(path, NAME=array); strings as arrays of type str, not object.",
        option="inputs",
    )
