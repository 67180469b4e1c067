"""Locks on open files, which the system releases when their owner ends, however it ends."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems that have no locks, as some network file systems."""


def try_to_lock(descriptor: int) -> bool | None:
    """Lock an open file. Return whether it is locked now, or None if the file system has no locks.

    It is not if another process has locked it. Processes of other containers see the lock as well.

    Args:
        descriptor: The open file. Closing it releases the lock.

    Raises:
        OSError: The descriptor cannot be used.
    """
    try:
        if sys.platform == "win32":  # pragma: no cover
            import msvcrt

            # A byte far beyond the content: others cannot read a locked byte.
            position = os.lseek(descriptor, 0, os.SEEK_CUR)
            os.lseek(descriptor, 1 << 40, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(descriptor, position, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}:
            return False
        if error.errno in UNSUPPORTED:
            return None
        raise
    return True


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether a path leads to an open file. Another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
