"""What a node has measured and not yet written to the storage, in a file next to its record.

The file has a line for each measurement, result or proof, with a checksum as in the journal of a search. Lines are only
appended. What an interrupted write left at the end is cut off. Lines do not depend on one another, so that one that is
damaged before others is left out. Once all other lines are in the storage, the file is emptied, and it is removed when
the search ends. The next search with the same record sends what a killed process left.

The file may have come with the folder, from someone who must not write to the storage. Each line is therefore signed
with a secret of the user, which is kept elsewhere. Nothing that others signed is sent.

While a search runs, it holds a lock on the file.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import itertools
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortune.checked_lines import make_line, read_sound_lines
from ortune.errors import UsageError
from ortune.limited import open_regular, read_open
from ortune.locks import is_same_file, try_to_lock
from ortune.state_folder import find_state_folder
from ortune.storage.schema import Measurement

SUFFIX = ".outbox.jsonl"

MOST_OUTBOX_BYTES = 1 << 30
"""Largest file that is read."""

MOST_AT_ONCE = 16
"""Measurements that are written in one transaction, which locks the study."""

KEY_FILE = "outbox.key"
"""Name of the file with the secret of the user, in the folder for what ortune remembers."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
"""Lengths of the secret, and of a signature: a SHA-256 as hexadecimal digits."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something to send: a measurement, or an attribute of the study.

    Attributes:
        study: Name of the study that it is for.
        measurement: The measurement, or None.
        name: Name of the attribute.
        text: Its value, as JSON text.
    """

    study: str
    measurement: Measurement | None = None
    name: str = ""
    text: str = ""


class Outbox:
    """Messages that were not sent yet, oldest first.

    Args:
        path: The file; None to keep them in memory only.
        study: Name of the study that they are for.

    Attributes:
        path: The file, or None.
        messages: What was not sent.
        doubtful: Identifiers of measurements that may have arrived, although the connection was lost.
        n_damaged: Lines before others that cannot be read, and are not sent.
        is_foreign: Whether the file has lines that are signed with another secret. It is then left as it is, nothing of
            it is sent, and messages are kept in memory only.

    Raises:
        UsageError: The file cannot be used, another search uses it, or it holds messages for another study.
    """

    def __init__(self, path: Path | None, study: str) -> None:
        self.path = path
        self.study = study
        self.messages: list[Message] = []
        self.doubtful: set[str] = set()
        self.n_damaged = 0
        self.is_foreign = False
        self._descriptor = -1
        if path is None:
            return
        self._key = read_key()
        try:
            self._open(path)
            self._load(path)
        except OSError as error:
            self._release()
            raise UsageError(
                f"{path}: cannot be used: {error.strerror}.",
                "Remove it, or name another record with {output=FILE}.",
                option="output",
            ) from None
        except UsageError:
            self._release()
            raise

    def _open(self, path: Path) -> None:
        """Open and lock the file. A search that ends may remove it between the two."""
        while self._descriptor < 0:
            self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            if try_to_lock(self._descriptor) is False:
                raise UsageError(
                    f"Another process is running a search for the same record: it writes {path}.",
                    "Wait for its end, or name another file with {output=FILE}.",
                )
            if not is_same_file(self._descriptor, path):
                self._release()

    def _load(self, path: Path) -> None:
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            data = read_open(file, MOST_OUTBOX_BYTES)
        self.messages, n_bytes, has_foreign = decode_messages(data, self._key)
        if has_foreign:
            # It stays as it is, for whoever has the secret.
            self.is_foreign, self.messages = True, []
            self._release()
            return
        if data and not n_bytes and b"\n" in data:
            raise UsageError(
                f"{path}: this file exists and is not ortune's, so it is not overwritten.",
                "Name another file with {output=FILE}, or remove it.",
            )
        others = [message for message in self.messages if message.study != self.study]
        if others:
            raise UsageError(
                f"{path}: holds {len(others)} results of another search, which were not sent to its storage yet.",
                "Repeat that search to send them, or remove the file.",
            )
        os.ftruncate(self._descriptor, n_bytes)
        self.n_damaged = data.count(b"\n", 0, n_bytes) - len(self.messages)
        self.doubtful = {message.measurement.id for message in self.messages if message.measurement}

    def add(self, message: Message) -> None:
        """Keep something to send. If the file cannot be written, it is kept in memory."""
        self.messages.append(message)
        if self._descriptor >= 0:
            content = msgspec.json.encode(message)
            line = make_line(sign(self._key, content) + content)
            with contextlib.suppress(OSError):
                n_bytes = os.fstat(self._descriptor).st_size
                # A part of a line, from a disk that became full, would spoil those that follow.
                if os.write(self._descriptor, line) < len(line):
                    os.ftruncate(self._descriptor, n_bytes)

    def first(self) -> list[Message]:
        """Return what is sent next: an attribute, or the measurements before the next one, at most a batch."""
        measured = itertools.takewhile(lambda message: message.measurement is not None, self.messages)
        return list(itertools.islice(measured, MOST_AT_ONCE)) or self.messages[:1]

    def doubt(self, messages: Sequence[Message]) -> None:
        """Note that measurements may have arrived, although sending them failed."""
        self.doubtful.update(message.measurement.id for message in messages if message.measurement)

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove the first messages, which were sent. The file is emptied once nothing is left."""
        del self.messages[: len(messages)]
        self.doubtful.difference_update(message.measurement.id for message in messages if message.measurement)
        if not self.messages and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Close the file, and remove it if nothing is left to send."""
        if self.path is not None and self._descriptor >= 0 and not self.messages:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._release()

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def decode_messages(data: bytes, key: bytes) -> tuple[list[Message], int, bool]:
    """Read the lines of a file that are not damaged.

    Args:
        data: The file.
        key: The secret that its messages are signed with.

    Returns:
        The messages, the end of the last line with one, and whether a line was signed with another secret.
    """
    messages: list[Message] = []
    n_bytes, has_foreign = 0, False
    for line, end in read_sound_lines(io.BytesIO(data)):
        signature, content = line[:SIGNATURE_BYTES], line[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, sign(key, content)):
            has_foreign = True
            continue
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            messages.append(msgspec.json.decode(content, type=Message))
            n_bytes = end
    return messages, n_bytes, has_foreign


def sign(key: bytes, content: bytes) -> bytes:
    """Return the signature of a message."""
    return hmac.digest(key, content, "sha256").hex().encode()


def read_key() -> bytes:
    """Return the secret of the user on this host, which is made when it is needed first.

    Where it cannot be kept, as without a home folder, this process has one of its own. What it leaves is then not sent
    by another one.
    """
    own = secrets.token_bytes(KEY_BYTES)
    folder = find_state_folder()
    if folder is None:
        return own
    path = folder / KEY_FILE
    with contextlib.suppress(OSError):
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_once(path, own)
        with os.fdopen(open_regular(path, os.O_RDONLY, 0o600), "rb") as file:
            if len(key := file.read(KEY_BYTES)) == KEY_BYTES:
                return key
    return own


def write_once(path: Path, content: bytes) -> None:
    """Write a private file, unless there is one. Of several processes and hosts that do so, the first one counts.

    Raises:
        OSError: It cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
