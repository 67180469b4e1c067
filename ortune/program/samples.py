"""Merge the inputs that the processes of a program saved into one folder for each model."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortune.errors import UsageError
from ortune.program.observation import SampleEntry, SavedInputs, Session

MOST_SAVED_BYTES = 100_000_000
"""Largest size of all inputs that are saved."""

SAMPLES_OVERHEAD = 2
"""How many times larger than its inputs a file may be, in addition to 64 KiB."""

PRIVATE = 0o700
"""Mode of these folders. Inputs may be private data."""

UNSORTED = ".unsorted"
"""Folder with the files of the processes, in the folder of the user, until the program has ended."""


def prepare_folder(folder: Path) -> Path:
    """Create the folder for saved inputs, which only its owner may read. Return that for the files of the processes.

    Raises:
        UsageError: It cannot be created, or is not empty.
    """
    try:
        folder.mkdir(PRIVATE, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: is not empty.", "Name a new or empty folder.", option="save_inputs")
        unsorted = folder.absolute() / UNSORTED
        unsorted.mkdir(PRIVATE)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be used as a folder: {error.strerror}.", "Name a new folder.", option="save_inputs"
        ) from None
    return unsorted


def remove_unsorted(folder: Path) -> None:
    """Remove the files of the processes."""
    shutil.rmtree(folder / UNSORTED, ignore_errors=True)


class _Sample(msgspec.Struct, frozen=True):
    entry: SampleEntry
    start_ns: int


def merge_samples(
    folder: Path, groups: Mapping[str, list[Session]], names: Mapping[str, str], max_samples: int
) -> tuple[SavedInputs, ...]:
    """Move the samples of each model to a folder of their own, in the order of the calls.

    All calls of a model have the same chance to be among them, whichever process made them; see
    `ortune.apply.inside.samples`.

    Args:
        folder: Folder of the user. The files of the processes are in it.
        groups: The sessions of each model.
        names: The name of each model.
        max_samples: Largest number of samples of a model.
    """
    chosen = {key: _choose(folder / UNSORTED, group, max_samples) for key, group in groups.items()}
    while sum(map(_count_bytes, chosen.values())) > MOST_SAVED_BYTES:
        max(chosen.values(), key=_count_bytes).pop()
    saved = []
    taken: set[str] = set()
    for key, samples in chosen.items():
        own = folder / _name_folder(names[key], taken)
        n_moved = 0
        if samples:
            own.mkdir(PRIVATE)
        for sample in sorted(samples, key=lambda sample: sample.start_ns + sample.entry.offset_ns):
            with contextlib.suppress(OSError):
                (folder / UNSORTED / sample.entry.file).replace(own / f"sample_{n_moved + 1:04}.npz")
                n_moved += 1
        n_left_out = sum(session.samples.n_left_out for _, session in groups[key] if session.samples)
        n_bytes = _count_bytes(samples)
        saved.append(
            SavedInputs(model=names[key], folder=str(own), n_samples=n_moved, n_bytes=n_bytes, n_left_out=n_left_out)
        )
    return tuple(saved)


def _choose(unsorted: Path, group: list[Session], max_samples: int) -> list[_Sample]:
    """Return the samples of a model, those with the lowest priorities first."""
    states = [(process, session.samples) for process, session in group if session.samples]
    threshold = min((samples.threshold for _, samples in states), default=0.0)
    found = [
        _Sample(entry, process.start_ns)
        for process, samples in states
        for entry in samples.entries
        if entry.priority < threshold or threshold == 1
    ]
    # Names come from the program: two entries may name one file.
    by_file = {sample.entry.file: sample for sample in found if _is_sample(unsorted / sample.entry.file, sample.entry)}
    return sorted(by_file.values(), key=lambda sample: sample.entry.priority)[:max_samples]


def _is_sample(path: Path, entry: SampleEntry) -> bool:
    """Return whether a file is there, is no link, and has a size that fits."""
    try:
        return (
            not path.is_symlink()
            and path.is_file()
            and path.stat().st_size <= SAMPLES_OVERHEAD * entry.n_bytes + (64 << 10)
        )
    except OSError:
        return False


def _count_bytes(samples: list[_Sample]) -> int:
    return sum(sample.entry.n_bytes for sample in samples)


def _name_folder(model: str, taken: set[str]) -> str:
    """Return a name for the folder of a model that no other one has."""
    stem = re.sub(r"\.(onnx|ort)\b", "", model)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:80] or "model"
    name = next(
        candidate
        for candidate in (plain, *(f"{plain}-{n}" for n in range(2, len(taken) + 3)))
        if candidate not in taken
    )
    taken.add(name)
    return name
