"""Temporary folders that name their owner, and that the next run removes if the owner was killed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from ortune.locks import try_to_lock

OWNED_FOLDER_PREFIX = "ortune-"

NAME = re.compile(r"\.?ortune-\d+-[a-z0-9_]{8}")
"""Names of these folders: the process id of the owner, and what `tempfile.mkdtemp` adds. Users have folders of similar
names, such as `ortune-2026-10-01`, which must never be removed."""

OWNER = "owner"
"""File in each folder. Its owner holds a lock on it."""

OWNED_FOLDER_MARK = b"a temporary folder of ortune\n"
"""Content of that file."""

MAX_START_S = 3600.0
"""Time after which a folder without that file was left by a process that was killed when it made the folder."""


class OwnedFolder:
    """A new temporary folder, which this process owns. As a context manager, it is removed on exit.

    Args:
        parent: Folder to create it in; None for the system's folder of temporary files. In others it is hidden.

    The system releases the lock of an owner that was killed. Process ids would not do: those of other containers, which
    may share the folder of temporary files, mean nothing here.

    Attributes:
        path: The folder. Its name contains the process id of the owner.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{_find_prefix(parent)}{os.getpid()}-", dir=parent))
        fresh = self.path / f"{OWNER}.new"
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, OWNED_FOLDER_MARK)
        try_to_lock(descriptor)
        if sys.platform == "win32":  # pragma: no cover  (an open file cannot be renamed there)
            (self.path / OWNER).write_bytes(OWNED_FOLDER_MARK)
        else:
            fresh.rename(self.path / OWNER)  # with this name, it is locked from the beginning
        self._finalizer = weakref.finalize(self, _remove, self.path, descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder. It may be called more than once."""
        self._finalizer()


def _find_prefix(parent: Path | None) -> str:
    return f".{OWNED_FOLDER_PREFIX}" if parent else OWNED_FOLDER_PREFIX


def _remove(path: Path, descriptor: int) -> None:
    if sys.platform == "win32":  # pragma: no cover  (an open file cannot be removed there)
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


def remove_abandoned_folders(parent: Path | None = None) -> list[Path]:
    """Remove the folders of this user whose owners were killed, and return them.

    Args:
        parent: Folder that they are in; None for the system's folder of temporary files.
    """
    removed = []
    for path in sorted((parent or Path(tempfile.gettempdir())).glob(f"{_find_prefix(parent)}[0-9]*-*")):
        try:
            if not _is_abandoned(path):
                continue
        except OSError:
            continue  # another process removes it
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


def _is_abandoned(path: Path) -> bool:
    """Return whether a folder is one of ortune whose owner has ended.

    Raises:
        OSError: It cannot be read.
    """
    status = path.lstat()
    is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    if not stat.S_ISDIR(status.st_mode) or not is_own or not NAME.fullmatch(path.name):
        return False
    try:
        descriptor = os.open(path / OWNER, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        is_new = {entry.name for entry in path.iterdir()} <= {f"{OWNER}.new"}
        return is_new and time.time() - status.st_mtime > MAX_START_S
    try:
        return os.read(descriptor, len(OWNED_FOLDER_MARK) + 1) == OWNED_FOLDER_MARK and try_to_lock(descriptor) is True
    finally:
        os.close(descriptor)
