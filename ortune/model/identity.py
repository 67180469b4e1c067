"""The identity of a model: the SHA-256 of its files, including external data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from ortune.errors import ModelError
from ortune.model.data_files import locate_data_file
from ortune.model.info import ModelFile
from ortune.numbers import MANY


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identity of a model.

    Attributes:
        path: Path that it had.
        digest: Digest of all its files.
        files: The ONNX file, then the files with external data.
    """

    path: str
    digest: str
    files: Annotated[tuple[ModelFile, ...], MANY]


def hash_data_file(folder: Path, name: str) -> ModelFile:
    """Return the size and SHA-256 of a file with external data.

    Args:
        folder: The folder of the model.
        name: Path of the file relative to the folder, as the model or a record has it.

    Raises:
        ModelError: The name leads out of the folder, or the file cannot be read.
    """
    path = locate_data_file(folder, name)
    if path.exists() and not path.is_file():
        raise ModelError(f"Cannot read {folder / name}: it is not a file.")
    return _hash(path, name)


def hash_file(directory: Path, name: str) -> ModelFile:
    """Return the size and SHA-256 of a file that the user named, without loading it into memory.

    Raises:
        ModelError: The file cannot be read.
    """
    return _hash(directory / name, name)


def _hash(path: Path, name: str) -> ModelFile:
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return ModelFile(name=name, size_bytes=path.stat().st_size, sha256=sha256)
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from None


def compute_digest(files: Iterable[ModelFile]) -> str:
    """Return one digest for all files of a model: the digest of a single file, or of the list of names and digests."""
    files = tuple(files)
    if len(files) == 1:
        return f"sha256:{files[0].sha256}"
    # The ONNX file, which comes first, may be renamed. External data is found by name.
    lines = [f"{file.sha256} {file.name if position else ''}" for position, file in enumerate(files)]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()
