"""Save a random sample of the inputs of each session, as .npz files, without importing NumPy.

Each call gets a random priority, and the calls with the lowest priorities are kept: a uniform sample of all calls, in
which a mix of shapes has its proportions. Samples of several processes are merged by their priorities.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

NPY_START = b"\x93NUMPY\x01\x00"

NPY_ALIGNMENT = 64

TEXT_KINDS = "OU"
"""Kinds of NumPy's types that hold strings."""

SAVED_KINDS = f"biufc{TEXT_KINDS}"
"""Kinds of NumPy's types that are saved."""


class Entry(NamedTuple):
    """A call that is in the sample.

    Attributes:
        priority: Its random priority, from 0 to 1.
        offset_ns: When it was made, from the start of the observation of the process.
        n_bytes: Size of its inputs.
        file: Name of the file.
    """

    priority: float
    offset_ns: int
    n_bytes: int
    file: str


class Reservoir:
    """The sample of one session.

    Attributes:
        threshold: All calls with a lower priority, and no others, are in the sample.
        entries: The calls, those with the lowest priorities first.
        n_left_out: Number of calls whose inputs cannot be saved, or are too large.
    """

    def __init__(self) -> None:
        self.threshold = 1.0
        self.entries: list[Entry] = []
        self.n_left_out = 0
        self.names: tuple[str, ...] | None = None

    @property
    def n_bytes(self) -> int:
        """Size of the sample."""
        return sum(entry.n_bytes for entry in self.entries)

    def drop_last(self) -> Entry:
        """Remove the call with the highest priority. From now on, none with a higher one is taken."""
        entry = self.entries.pop()
        self.threshold = entry.priority
        return entry


class Sampler:
    """The samples of one process.

    Args:
        folder: Folder for the files.
        max_samples: Largest number of calls in the sample of a session.
        max_bytes: Largest size of all samples.
    """

    def __init__(self, folder: str, max_samples: int, max_bytes: int) -> None:
        self._folder = Path(folder)
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._reservoirs: list[Reservoir] = []
        self._n_files = 0
        self._lock = threading.RLock()
        # The program's own random numbers stay the same.
        self._random = random.Random()  # not for cryptography  # noqa: S311  # nosec B311

    def add_session(self) -> Reservoir:
        """Return the empty sample of another session."""
        reservoir = Reservoir()
        self._reservoirs.append(reservoir)
        return reservoir

    def offer(self, reservoir: Reservoir, feed: Any, offset_ns: int) -> None:
        """Take a call into the sample of its session, or not.

        Args:
            reservoir: The sample of the session.
            feed: Its inputs by name.
            offset_ns: When it was made.
        """
        with self._lock:
            priority = self._random.random()
            if priority >= reservoir.threshold:
                return
            arrays = read_arrays(feed)
            n_bytes = sum(array.nbytes for array in arrays.values()) if arrays else 0
            names = tuple(sorted(arrays or ()))
            if not arrays or n_bytes > self._max_bytes or names != (reservoir.names or names):
                reservoir.n_left_out += 1
                return
            reservoir.names = names
            self._n_files += 1
            entry = Entry(priority, offset_ns, n_bytes, f"{os.getpid()}-{self._n_files}.npz")
            reservoir.entries = sorted((*reservoir.entries, entry))
            dropped = []
            if len(reservoir.entries) > self._max_samples:
                dropped.append(reservoir.drop_last())
            while sum(kept.n_bytes for kept in self._reservoirs) > self._max_bytes:
                dropped.append(max(self._reservoirs, key=lambda reservoir: reservoir.n_bytes).drop_last())
            for old in dropped:
                if old is not entry:
                    with contextlib.suppress(OSError):
                        (self._folder / old.file).unlink()
            if entry not in dropped:
                write_npz(self._folder / entry.file, arrays)


def read_arrays(feed: Any) -> dict[str, Any] | None:
    """Return inputs as NumPy arrays by name; None if one of them cannot be saved."""
    numpy = sys.modules.get("numpy")
    if not isinstance(feed, dict) or numpy is None:
        return None
    arrays = {}
    for name, value in feed.items():
        try:
            array = value.numpy() if callable(getattr(value, "numpy", None)) else numpy.asarray(value)
        except Exception:  # noqa: BLE001  (values on other devices raise anything)
            return None
        if not isinstance(array, numpy.ndarray) or array.dtype.kind not in SAVED_KINDS:
            return None
        if array.dtype.kind in TEXT_KINDS:
            if not all(isinstance(text, str) for text in array.ravel().tolist()):
                return None
            array = array.astype(str)
        arrays[str(name)] = array
    return arrays


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays as `numpy.savez` does, to a file that only its owner may read: inputs may be private data."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as opened, zipfile.ZipFile(opened, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=array.nbytes > 1 << 30) as file:
                file.write(make_header(array))
                file.write(array.tobytes())


def make_header(array: Any) -> bytes:
    """Return the header of an array in NumPy's format, version 1.0."""
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {tuple(array.shape)!r}, }}"
    n_bytes = len(NPY_START) + 2 + len(text) + 1
    text += " " * (-n_bytes % NPY_ALIGNMENT) + "\n"
    return NPY_START + len(text).to_bytes(2, "little") + text.encode("latin-1")
