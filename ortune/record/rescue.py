"""Keeps a result that cannot be written to its file, such as on a full disk: a search may have taken an hour."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic

import msgspec

from ortune.errors import UsageError
from ortune.limited import STANDARD_STREAM
from ortune.record.files import Kind, encode_record, write_record
from ortune.record.schema import Bundle, Record

RESCUE_PREFIX = "rescued-by-ortune-"
"""Beginning of the name of the folder with a rescued result."""


class Saved(msgspec.Struct, Generic[Kind], frozen=True, kw_only=True):
    """A record or a bundle that was written, or rescued.

    Attributes:
        record: The record or bundle, as it is in the file if it was written.
        kept: Path of the copy of a replaced one with stronger evidence, or None.
        fault: Why it could not be written, and where it is instead; None if it was written.
    """

    record: Kind
    kept: Path | None = None
    fault: UsageError | None = None


def save_record(record: Kind, path: Path, trials: bytes) -> Saved[Kind]:
    """Write a record or a bundle with its trials, elsewhere if need be."""
    try:
        written = write_record(record, path, trials)
    except UsageError as error:
        return Saved(record=record, fault=rescue_record(record, path, trials, error))
    except OSError as error:  # such as that of a folder on another host that cannot be reached
        fault = UsageError(f"Cannot write {path}: {error.strerror}.", option="output")
        return Saved(record=record, fault=rescue_record(record, path, trials, fault))
    return Saved(record=written.record, kept=written.kept)


def rescue_record(record: Record | Bundle, path: Path, trials: bytes | None, fault: UsageError) -> UsageError:
    """Write a record to another folder, and return the error to report, which states where it is.

    If it cannot be written anywhere, the error contains its text.

    Args:
        record: The record or bundle.
        path: Where it could not be written.
        trials: Content of its trials file, or None.
        fault: Why not.
    """
    name = "record.json" if str(path) == STANDARD_STREAM else path.name
    return rescue("record", name, encode_record(record), lambda target: write_record(record, target, trials), fault)


def rescue(noun: str, name: str, content: bytes, write: Callable[[Path], object], fault: UsageError) -> UsageError:
    """Write a result to another folder, and return the error to report, which states where it is.

    If it cannot be written anywhere, the error contains its text.

    Args:
        noun: What it is, such as "record".
        name: Name of its file.
        content: Its text.
        write: Writes it, and what belongs to it.
        fault: Why it cannot be written where it belongs.
    """
    for parent in find_folders():
        with contextlib.suppress(OSError, UsageError):
            folder = Path(tempfile.mkdtemp(prefix=RESCUE_PREFIX, dir=parent))
            try:
                write(folder / name)
            except BaseException:
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()
                raise
            return UsageError(fault.message, f"The {noun} was written to {folder / name} instead.")
    return UsageError(
        f"{fault.message} Nor can any other folder be written. This is the {noun}:",
        "Save the lines above to a file.",
        details=content.decode().splitlines(),
    )


def find_folders() -> Iterator[Path]:
    """Yield folders that may have space: the temporary one, and the user's own."""
    with contextlib.suppress(OSError):
        yield Path(tempfile.gettempdir())
    with contextlib.suppress(RuntimeError):
        yield Path.home()
