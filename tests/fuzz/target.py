"""What all fuzz targets share: a target, the folder for its files, and what it pretends about the host."""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from ortune import OrtuneError
from ortune.errors import spell_as_flag, spell_in_toml
from tests.conftest import ROOT
from tests.simulated import make_host

FREE_BYTES = 64 << 20
"""Free memory that targets pretend to have, so that an estimate that is too low shows in the memory of the process."""

DATA = ROOT / "tests" / "data"
RAM = Path("/dev/shm")


class Target(NamedTuple):
    """A kind of input.

    Attributes:
        run: Reads an input.
        seeds: Returns valid inputs.
        mutate: Returns a changed input.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    mutate: Callable[[bytes, Random], bytes]

    def make(self, random: Random) -> bytes:
        """Return a changed valid input."""
        return self.mutate(random.choice(self.seeds()), random)


@functools.cache
def find_folder() -> Path:
    """Return the folder for files of this process, in memory where the system has such a folder."""
    found = tempfile.TemporaryDirectory(prefix="ortune-fuzz-", dir=RAM if RAM.is_dir() else None)
    _folders.append(found)
    return Path(found.name)


_folders: list[tempfile.TemporaryDirectory[str]] = []
"""They are removed when the process ends."""


def remove_folders() -> None:
    """Remove the folders of this process."""
    while _folders:
        _folders.pop().cleanup()


def write_input(name: str, data: bytes) -> Path:
    """Write an input to a file."""
    path = find_folder() / name
    path.write_bytes(data)
    return path


def attempt(action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of an action; None if it ends with a message for the user."""
    try:
        return action(*arguments, **options)
    except OrtuneError as error:
        for spell in (spell_as_flag, spell_in_toml):
            message, _ = error.render(spell)
            assert message.strip()
            message.encode()
        return None


@contextlib.contextmanager
def pretending() -> Iterator[None]:
    """Replace what does not depend on the input, within the block.

    That is the free memory, the host, similar words, and the script that draws charts.
    """
    with (
        mock.patch("ortune.workload.size.read_free_memory_bytes", lambda: FREE_BYTES),
        mock.patch("ortune.record.select.read_host", lambda **_: make_host(4)),
        mock.patch("difflib.get_close_matches", find_matches),
        mock.patch("ortune.report.write.read_vega", lambda: "/* Vega */"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


_n_matches = itertools.count()


def find_matches(word: str, possibilities: Sequence[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return similar words: most of the time the first ones, because the comparison takes longer than all else."""
    if next(_n_matches) % 16 == 0:
        return _get_close_matches(word, possibilities, n, cutoff)
    return list(possibilities)[:n]


_get_close_matches = difflib.get_close_matches
