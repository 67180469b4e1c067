"""A journal of Optuna that several hosts append to, in a file of a file system that all of them see.

It has the format of Optuna's `JournalFileBackend` and takes its lock, so that Optuna's tools can use the file at the
same time. A host that is killed, or whose disk becomes full, leaves a part of a line at the end. If the next line were
appended to it, as Optuna does, no host could read what follows. It is cut off instead. No host has used it, because
lines that are not complete are not read.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend

from ortune.errors import UsageError
from ortune.file_kinds import name_special

START = b'{"op_code"'
"""How a journal begins."""

MOST_STORAGE_BYTES = 1 << 30
"""Largest part of a journal that is read at a time, into memory."""

REMEDY = "Restore the file, or remove this line: no host has used what follows it."
LATER = "If a later version of Optuna wrote it, update Optuna here. Otherwise, restore the file, or remove this line."

LOCK_SUFFIX = ".lock"
LOCK_GRACE_S = 30.0
"""How the lock of Optuna is named, and for how long it stays the same until its owner counts as killed."""

LONGEST_PAUSE_S = 1.0
"""Longest time between two tries to get the lock."""


class JournalError(ValueError):
    """A journal cannot be read. The message says why, and what to do."""


class SharedJournal(BaseJournalBackend):  # type: ignore[misc]
    """The lines of a file. They are called logs in Optuna, and are numbered from 0.

    Args:
        path: The file. It is created if there is none.

    Attributes:
        in_use: Number of the line that Optuna applies now, or at which it failed; None if it applied all.

    Raises:
        OSError: It cannot be created.
        UsageError: It is something else than a file, such as a pipe. Reading that may never end.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._starts = [0]  # of the lines that have been read, and of the one after them
        self.in_use: int | None = None
        if special := name_special(self._path):
            raise UsageError(
                f"{self._path}: this is {special}, and a journal is a file.", "Name another file.", option="storage"
            )
        if not self._path.exists():
            self._path.touch()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the lines from a number on. A damaged line at the end may be one that is being written.

        Raises:
            OSError: The file cannot be read.
            UsageError: It is not a journal.
            JournalError: A line before others is damaged, or Optuna cannot read a line.
        """
        if self.in_use is not None:
            # Optuna would go on after a line at which it failed. A line of this process that came too late, as for a
            # study that was deleted meanwhile, is none.
            check_lines(self._path)
            self.in_use = None
        with self._path.open("rb") as file:
            data = self._read_from(file, log_number_from)
        if log_number_from == 0 and not data.startswith(START[: len(data)]):
            raise UsageError(
                f"{self._path}: this file exists and is not a journal, so it is not used.",
                "Name another file.",
                option="storage",
            )
        is_damaged = False
        for number, line in enumerate(io.BytesIO(data), log_number_from):
            if is_damaged:
                # Logs are numbered from 0 and lines from 1, so this is the number of the line before.
                raise JournalError(f"line {number} is damaged, and others follow it. {REMEDY}")
            log = decode_line(line)
            if log is None:
                is_damaged = True
                continue
            if number + 1 == len(self._starts):
                self._starts.append(self._starts[number] + len(line))
            self.in_use = number
            yield log
            self.in_use = None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, after what an earlier writer left incomplete has been cut off.

        Raises:
            OSError: They cannot be written, or may be lost when the host crashes.
            JournalError: The file was replaced.
        """
        lines = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        with hold_lock(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0))
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                self._cut_damaged_end(file)
                try:
                    write_all(file, lines)
                except BaseException:
                    with contextlib.suppress(OSError, ValueError):
                        self._cut_damaged_end(file)
                    raise
                os.fsync(file.fileno())

    def _read_from(self, file: IO[bytes], number: int) -> bytes:
        """Return what a file has from a line on.

        Raises:
            JournalError: It no longer has the lines that have been read, or it is too large.
        """
        start = self._starts[number]
        end = file.seek(0, os.SEEK_END)
        if end < start:
            raise JournalError("the file is shorter than it was. Restore it, or start again with a new one.")
        if end - start > MOST_STORAGE_BYTES:
            raise JournalError(f"the file has more than {MOST_STORAGE_BYTES >> 20} MiB. Start again with a new one.")
        file.seek(start)
        return file.read()

    def _cut_damaged_end(self, file: IO[bytes]) -> None:
        """Remove what follows the last line that is sound. The lock is held, so that nobody is writing it."""
        end = sound_end = self._starts[-1]
        for line in io.BytesIO(self._read_from(file, -1)):
            end += len(line)
            if decode_line(line) is not None:
                sound_end = end
        if sound_end < end:
            file.truncate(sound_end)


def check_lines(path: Path) -> None:
    """Check that Optuna can read all lines of a journal.

    Optuna checks none of them: what is missing in a line, or has another type, is an error that does not say which line
    it is, and may be of any type.

    Raises:
        OSError: The file cannot be read.
        JournalError: It cannot. The message has the number of the line.
    """
    path.stat()  # none is created in place of one that was removed
    journal = SharedJournal(str(path))
    try:
        JournalStorage(journal)
    except (OSError, JournalError):
        raise
    except Exception:
        if journal.in_use is None:
            raise
        raise JournalError(f"line {journal.in_use + 1} is not one that Optuna can read. {LATER}") from None


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a journal, which is Optuna's: a link next to it.

    A lock that stays the same for `LOCK_GRACE_S` was left by a killed process, and is removed. Optuna itself looks at
    the file that the link leads to. If there is none, as where hosts have mounted the file system in different places,
    it waits forever.

    Raises:
        OSError: The lock cannot be made or removed.
    """
    lock = path.with_name(path.name + LOCK_SUFFIX)
    found: tuple[int, int] | None = None
    since_s = time.monotonic()
    pause_s = 0.001
    while not _make_link(lock, path):
        # Between two looks, another process may have released it and a third one taken it.
        if (now := _identify(lock)) != found:
            found, since_s = now, time.monotonic()
        if found is not None and time.monotonic() - since_s > LOCK_GRACE_S:
            _remove_link(lock)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    own = _identify(lock)
    try:
        yield
    finally:
        # If writing took longer than others wait, they have taken the lock.
        if _identify(lock) == own:
            _remove_link(lock)


def _identify(lock: Path) -> tuple[int, int] | None:
    """Return what tells a lock from others with the same name, or None if there is none."""
    try:
        status = lock.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _make_link(lock: Path, path: Path) -> bool:
    """Return whether a lock that was free is held now."""
    try:
        lock.symlink_to(path)
    except FileExistsError:
        return False
    return True


def _remove_link(lock: Path) -> None:
    """Remove a lock. It is renamed first, so that of several processes that remove it, one does."""
    own = lock.with_name(f"{lock.name}{uuid.uuid4()}")
    try:
        lock.rename(own)
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):  # it may be a folder
        own.unlink()


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return what a line holds, or None if it is damaged or not complete."""
    if not line.endswith(b"\n"):
        return None
    try:
        log = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return log if isinstance(log, dict) and "op_code" in log else None


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to a file without a buffer. A disk that becomes full takes a part of the data.

    Raises:
        OSError: Not all could be written.
    """
    while data:
        data = data[file.write(data) :]
