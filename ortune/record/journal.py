"""The journal of a search: what it has measured so far, in a file next to its record, until the record is written.

The file has a line with a checksum for each event: the begin of the search, each launch, each block. Its content is a
JSON object. Lines are only appended, each by a single write, and flushed to the disk every few seconds. What an
interrupted write or a crash of the system left at the end is ignored. The content is checked like that of any file, and
read line by line, as that of a long search may not fit into memory.

While a search runs, it holds a lock on the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from ortune.checked_lines import MOST_LINE_BYTES, has_line_after, make_line, read_lines
from ortune.errors import UsageError
from ortune.knobs.config import Config
from ortune.limited import STANDARD_STREAM, open_regular
from ortune.locks import is_same_file, try_to_lock
from ortune.record.files import follow_link, is_special
from ortune.worker import Block, BlockPlan, Failure, Runtime, SessionInfo
from ortune.worker.protocol import BlockReply

JOURNAL_FORMAT = 1

JOURNAL_SUFFIX = ".unfinished.jsonl"

ANOTHER = "Name another file with {output=FILE}, or remove it."
"""What to do about a file that is no journal."""

SYNC_EVERY_S = 5.0
"""Time between two flushes to the disk. A flush takes up to a second on a slow disk."""

MOST_JOURNAL_BYTES = 256 << 30
"""Largest journal that is read. Each second of calls adds a megabyte at most."""

FIRST = b'{"type":"begin"'
"""What the first line begins with, after its checksum."""

LONGEST = 1e18
"""Bound of all durations, in whatever unit."""

MOST_SAMPLES_BYTES = 256 << 20
"""Largest size to which the samples of a block may expand."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="begin"):
    """The first line of a journal.

    Attributes:
        format: Version of the format.
        id: Random identifier of the search.
        pid: Process that began it.
        started: When it began, in ISO 8601 with the time zone.
        identity: What must be the same to go on, as text by name.
        hints: The best configs of earlier searches, as they were when this one began.
        suggested: The config that `ortune suggest` suggested; empty if there was none.
        free_bytes: Memory that was free, which decides how many candidates are live; None if unknown.
        shares: Of a program: the share of the time of each model by its digest, which decides what is tried.
        spent_s: Part of the budget that was spent before the first launch, in seconds.
    """

    format: int = JOURNAL_FORMAT
    id: str
    pid: int
    started: str
    identity: dict[str, str]
    hints: tuple[Config, ...] = ()
    suggested: tuple[Config, ...] = ()
    free_bytes: int | None = None
    shares: dict[str, Share] = {}
    spent_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="resume"):
    """A process that went on with the search.

    Attributes:
        pid: The process.
        started: When it began, in ISO 8601 with the time zone.
        n_void: Number of events before it that it does again.
    """

    pid: int
    started: str
    n_void: Annotated[int, msgspec.Meta(ge=0)] = 0


class LaunchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What launching one candidate gave: facts about its session, or why it failed."""

    session_info: SessionInfo | None = None
    failure: Failure | None = None


class Launched(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="launch"):
    """Candidates that were launched at the same time.

    Attributes:
        configs: Keys of their configs.
        answers: One for each.
        runtime: The software of the workers; None if all of them failed.
        at_s: When it was done, on the clock of the search.
    """

    configs: tuple[str, ...]
    answers: tuple[LaunchResult, ...]
    runtime: Runtime | None = None
    at_s: float


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="block"):
    """A block that was measured, or the failure of its candidate.

    Attributes:
        launch: Number of the launch of its candidate, from 0.
        position: Position of the candidate in it.
        plan: How it was measured.
        block: The block, with compressed samples; None if the candidate failed.
        failure: Why it failed, or None.
        at_s: When it was done, on the clock of the search.
    """

    launch: int
    position: int
    plan: BlockPlan
    block: BlockReply | None = None
    failure: Failure | None = None
    at_s: float

    def unpack(self) -> Block | Failure:
        """Return the block or the failure.

        Raises:
            ValueError: It holds neither, or the block is not one that a worker sends.
        """
        if self.failure is not None:
            return self.failure
        if self.block is None:
            raise ValueError("a block without content")
        block = self.block.map_arrays(_expand).to_block()
        _check_block(block)
        return block


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="check"):
    """A finalist whose program was run to its end, to compare its outputs.

    Attributes:
        config: Key of its config.
        failure: What was wrong; None if nothing was, or if there was no time for it.
        at_s: When it was done, on the clock of the search.
    """

    config: str
    failure: Failure | None = None
    at_s: float


def pack_block(block: Block) -> BlockReply:
    """Return a block as a journal holds it. Compressed, a call takes about two bytes."""
    return BlockReply.of(block).map_arrays(lambda data: zlib.compress(data, 1))


def _expand(data: bytes) -> bytes:
    expander = zlib.decompressobj()
    try:
        content = expander.decompress(data, MOST_SAMPLES_BYTES)
    except zlib.error as error:
        raise ValueError(f"samples that cannot be decompressed: {error}") from None
    if not expander.eof:
        raise ValueError("samples that are incomplete or too large")
    return content


def _check_block(block: Block) -> None:
    """Check that a block is one that a worker sends.

    Raises:
        ValueError: It is not.
    """
    arrays = [array for array in (block.samples_ns, block.creations_ns) if array is not None]
    durations = (block.n_calls, block.batch, block.wall_ns, block.service_ns)
    others = (
        block.lead_in_ns,
        block.service_sd_ns,
        block.cpu_ns,
        block.cpu_between_ns or 0.0,
        block.metric or 0.0,
        block.frequency_hz or 0.0,
        *(getattr(block.memory, name) or 0 for name in block.memory.__struct_fields__),
        *(getattr(place, name) for place in block.places for name in place.__struct_fields__),
    )
    is_sound = (
        len(block.samples_ns) > 0
        and all((array > 0).all() for array in arrays)
        and all(0 < value < LONGEST for value in durations)
        and all(0 <= value < LONGEST for value in others)
        # The share of other processes may be below 0 by a tick of the kernel's clock.
        and all(abs(value) < LONGEST for value in (block.clock_jump_s, block.foreign_share or 0.0))
        and all(array is None or len(array) == len(block.samples_ns) for array in (block.cases, block.processes))
    )
    if not is_sound:
        raise ValueError("a block that no worker sends")


def _is_sound(line: Line) -> bool:
    """Return whether a line is one that a search writes."""
    if isinstance(line, Launched):
        answers = line.answers
        is_complete = all((answer.session_info is None) != (answer.failure is None) for answer in answers)
        has_runtime = (line.runtime is not None) == any(answer.session_info for answer in answers)
        return is_complete and has_runtime and len(line.configs) == len(answers) and 0 <= line.at_s < LONGEST
    if isinstance(line, Measured):
        is_complete = (line.block is None) != (line.failure is None)
        return is_complete and min(line.launch, line.position) >= 0 and 0 <= line.at_s < LONGEST
    return not isinstance(line, Checked) or 0 <= line.at_s < LONGEST


Event = Launched | Measured | Checked
"""What a search does again without measuring."""

Line = Begin | Resume | Launched | Measured | Checked

_decode = msgspec.json.Decoder(Line).decode


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal contains.

    Attributes:
        begin: Its first line; None if it has none that is complete.
        pid: The process that wrote to it last; None if unknown.
        n_resumes: Number of processes that went on with the search.
        n_events: Number of launches, blocks and checks, without those that were done again.
        n_blocks: Number of blocks that were measured.
        n_failed: Number of events at the end that may have ended the search, so that a process that goes on does them
            again: from the first failure of a baseline that did not work any more, else after the last block that was
            measured.
        n_failed_blocks: Number of blocks among them.
        void: Events that were done again: the numbers of the first one and of the one after the last.
        n_bytes: Size of the complete lines. What follows is damaged.
    """

    begin: Begin | None = None
    pid: int | None = None
    n_resumes: int = 0
    n_events: int = 0
    n_blocks: int = 0
    n_failed: int = 0
    n_failed_blocks: int = 0
    void: tuple[tuple[int, int], ...] = ()
    n_bytes: int = 0

    def without_failures(self) -> Content:
        """Return the content without the events that may have ended the search."""
        end = self.n_events + sum(last - first for first, last in self.void)
        return msgspec.structs.replace(
            self,
            n_events=self.n_events - self.n_failed,
            n_blocks=self.n_blocks - self.n_failed_blocks,
            n_failed=0,
            n_failed_blocks=0,
            void=(*self.void, (end - self.n_failed, end)) if self.n_failed else self.void,
        )


def encode_event(event: Line) -> bytes:
    """Return a line of a journal."""
    return make_line(msgspec.json.encode(event))


def _read_sound_lines(file: BinaryIO) -> Iterator[tuple[Line, int]]:
    """Yield each line up to the first that is damaged, and the position after it."""
    has_begin = False
    for content, end in read_lines(file):
        try:
            line = _decode(content)
        except (ValueError, RecursionError):
            return
        # The begin is the first line, and no other.
        if isinstance(line, Begin) == has_begin or not _is_sound(line):
            return
        has_begin = True
        yield line, end


class _Scan:
    """Counts what a journal contains, line by line.

    Attributes:
        content: What was counted.
    """

    def __init__(self) -> None:
        self.content = Content()
        self._launched: list[tuple[str, ...]] = []
        # Numbers of events, blocks and launches up to the last success, and up to the first failure of the baseline
        # that no success of it follows.
        self._good = (0, 0, 0)
        self._fault: tuple[int, int, int] | None = None

    def add(self, line: Line, n_bytes: int) -> None:
        """Count a line, which ends at this position."""
        content = msgspec.structs.replace(self.content, n_bytes=n_bytes)
        if isinstance(line, Begin):
            content = msgspec.structs.replace(content, begin=line, pid=line.pid)
        elif isinstance(line, Resume):
            content = msgspec.structs.replace(content, pid=line.pid, n_resumes=content.n_resumes + 1)
            if line.n_void:
                content = content.without_failures()
                del self._launched[(self._fault or self._good)[2] :]
                self._good, self._fault = (content.n_events, content.n_blocks, len(self._launched)), None
        else:
            content = self._add_event(line, content)
        self.content = content

    def _add_event(self, event: Event, content: Content) -> Content:
        before = (content.n_events, content.n_blocks, len(self._launched))
        is_block = isinstance(event, Measured) and event.block is not None
        is_success = isinstance(event, Checked) and not (event.failure and event.failure.is_sudden)
        fails: set[str] = set()
        if isinstance(event, Launched):
            self._launched.append(event.configs)
            fails = {key for key, answer in zip(event.configs, event.answers, strict=True) if answer.failure}
        elif isinstance(event, Measured):
            # A file that no search wrote may name a launch that it does not contain.
            keys = self._launched[event.launch] if event.launch < len(self._launched) else ()
            key = keys[event.position] if event.position < len(keys) else ""
            is_success = event.block is not None and not event.block.clock_jump_s
            fails = set() if event.block else {key}
            if is_success and key == self._baseline:
                self._fault = None
        if self._baseline in fails:
            self._fault = self._fault or before
        if is_success:
            self._good = (content.n_events + 1, content.n_blocks + is_block, len(self._launched))
        n_events, n_blocks = content.n_events + 1, content.n_blocks + is_block
        good_events, good_blocks, _ = self._fault or self._good
        return msgspec.structs.replace(
            content,
            n_events=n_events,
            n_blocks=n_blocks,
            n_failed=n_events - good_events,
            n_failed_blocks=n_blocks - good_blocks,
        )

    @property
    def _baseline(self) -> str:
        """Key of the config that was launched first."""
        return self._launched[0][0] if self._launched and self._launched[0] else ""


def scan_journal(file: BinaryIO) -> Content:
    """Return what a journal contains up to the first line that is damaged."""
    file.seek(0)
    scan = _Scan()
    for line, n_bytes in _read_sound_lines(file):
        scan.add(line, n_bytes)
    return scan.content


def read_events(file: BinaryIO, content: Content) -> Iterator[Event]:
    """Yield the launches, blocks and checks of a journal that were not done again, in the order of measuring.

    Args:
        file: The journal.
        content: What it contains.

    Raises:
        OSError: It cannot be read.
        ValueError: It was changed since its content was read.
    """
    file.seek(0)
    n_left = content.n_events
    number = 0
    for line, end in _read_sound_lines(file):
        if end > content.n_bytes:
            break
        if isinstance(line, (Launched, Measured, Checked)):
            if not any(first <= number < last for first, last in content.void):
                n_left -= 1
                yield line
            number += 1
    if n_left:
        raise ValueError("it was changed while it was read")


def path_of_journal(record: Path) -> Path | None:
    """Return the path of the journal of a record; None for a record that goes to a stream, a device or a pipe."""
    if str(record) == STANDARD_STREAM or is_special(record):
        return None
    target = follow_link(record)
    return target.with_name(target.name.removesuffix(".json") + JOURNAL_SUFFIX)


def _is_interrupted(data: bytes) -> bool:
    """Return whether an interrupted first write leaves this: the begin of a line, or zeros if the system crashed."""
    if not data.strip(b"\0"):
        return True
    content = data[9:]
    is_checksum = re.fullmatch(rb"[0-9a-f]{0,8}|[0-9a-f]{8} ", data[:9]) is not None
    return is_checksum and content[: len(FIRST)] == FIRST[: len(content)] and not data.endswith(b"\n")


def read_unfinished(path: Path) -> Content | None:
    """Return the content of the journal of a search that ended before it was done; None if there is no file.

    Raises:
        UsageError: Its search is running, or the file cannot be read or is not a journal.
    """
    try:
        descriptor = open_regular(path, os.O_RDWR, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror}.", ANOTHER) from None
    try:
        return _read(path, descriptor, is_locked=try_to_lock(descriptor) is not False)
    finally:
        os.close(descriptor)


def _read(path: Path, descriptor: int, *, is_locked: bool) -> Content:
    """Return the content of an open journal.

    Raises:
        UsageError: This process could not lock it, or it cannot be read or is not a journal.
    """
    try:
        n_bytes = os.fstat(descriptor).st_size
        if n_bytes > MOST_JOURNAL_BYTES and is_locked:
            raise UsageError(
                f"{path}: has {n_bytes >> 30} GiB, more than the journal of any search.",
                ANOTHER,
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = scan_journal(file)
            file.seek(0)
            is_other = content.begin is None and not _is_interrupted(file.readline(MOST_LINE_BYTES))
            file.seek(content.n_bytes)
            has_more = content.begin is not None and has_line_after(file)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from None
    if not is_locked:
        who = f"Process {content.pid}" if content.pid else "Another process"
        raise UsageError(
            f"{who} is running a search for the same record: it writes {path}.",
            "Wait for its end, or name another file with {output=FILE}.",
        )
    if is_other:
        raise UsageError(
            f"{path}: this file exists and is not the journal of a search, so it is not overwritten.",
            ANOTHER,
        )
    if content.begin and content.begin.format != JOURNAL_FORMAT:
        raise UsageError(
            f"{path}: this is the journal of a search by another version of ortune (format {content.begin.format}).",
            "Use that version, or remove the file to start over.",
        )
    if has_more:
        raise UsageError(
            f"{path}: the file is damaged after {content.n_blocks} blocks, but more of the search follows.",
            "Restore the file, or remove it to start over.",
        )
    return content


class Journal:
    """An open journal, which this process has locked. As a context manager, it is closed on exit.

    Args:
        path: The file. It is created if there is none.
        begin: The first line of a new journal.
        resume: The line that this process adds if it goes on with blocks that are in the file; None to start anew.
        check: Called with what the file contains before it is changed. It raises if that must not be.

    Attributes:
        path: The file.
        begin: The first line.
        n_resumes: How often it was resumed.
        n_blocks: Number of blocks in the file.

    Raises:
        UsageError: Another search has locked the file, it is not a journal, or it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        begin: Begin,
        resume: Resume | None = None,
        check: Callable[[Content], None] = lambda content: None,
    ) -> None:
        self.path = path
        self._n_bytes = 0
        self._descriptor, is_locked = self._open()
        try:
            content = _read(path, self._descriptor, is_locked=is_locked)
            check(content)
            self.n_blocks = self.n_resumes = 0
            self._earlier: Content | None = None
            self._reader: BinaryIO | None = None
            self._synced_s = time.monotonic()
            kept = content.without_failures()
            if resume and kept.begin and kept.n_blocks:
                self.begin, self._earlier = kept.begin, kept
                self.n_blocks, self.n_resumes = kept.n_blocks, kept.n_resumes + 1
                self._n_bytes = kept.n_bytes
                os.ftruncate(self._descriptor, self._n_bytes)
                self.append(msgspec.structs.replace(resume, n_void=content.n_failed))
            else:
                self.begin = begin
                os.ftruncate(self._descriptor, 0)
                self.append(begin)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _open(self) -> tuple[int, bool]:
        """Return the descriptor of the file, and whether it could be locked."""
        try:
            while True:
                descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT, 0o666)
                is_locked = try_to_lock(descriptor) is not False  # without locks, there is nothing to wait for
                # The search that held the lock may have removed the file in the meantime.
                if not is_locked or is_same_file(descriptor, self.path):
                    return descriptor, is_locked
                os.close(descriptor)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}.", ANOTHER, option="output") from None

    @property
    def is_there(self) -> bool:
        """Whether the file is still in its folder, as far as can be seen."""
        try:
            return self.path.exists()
        except OSError:
            return False

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_earlier(self) -> Iterator[Event]:
        """Yield what the search did before this process went on with it. Nothing may be added in the meantime.

        Raises:
            UsageError: The file cannot be read, or was changed by something else.
        """
        if self._earlier is None:
            return
        try:
            # A second descriptor would keep the lock after this journal is closed.
            with os.fdopen(self._descriptor, "rb", closefd=False) as self._reader:
                yield from read_events(self._reader, self._earlier)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise UsageError(f"{self.path}: {error}.", "Start over with {restart}.") from None

    def append(self, line: Line) -> None:
        """Add a line.

        Raises:
            UsageError: It cannot be written. The file is as it was before.
        """
        data = encode_event(line)
        try:
            os.lseek(self._descriptor, self._n_bytes, os.SEEK_SET)
            n_written = os.write(self._descriptor, data)
            if n_written < len(data):
                n_written += os.write(self._descriptor, data[n_written:])  # raises the cause, such as a full disk
            if time.monotonic() - self._synced_s > SYNC_EVERY_S:
                os.fsync(self._descriptor)
                self._synced_s = time.monotonic()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._n_bytes)
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}.") from None
        self._n_bytes += len(data)
        self.n_blocks += isinstance(line, Measured) and line.block is not None

    def close(self) -> None:
        """Close the file, and remove it if it holds no block. It may be called more than once."""
        if self._descriptor >= 0:
            if not self.n_blocks:
                self.remove()
                return
            descriptor = self._take_descriptor()
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
            os.close(descriptor)

    def _take_descriptor(self) -> int:
        """Return the descriptor, which is about to be closed, so that nothing reads or writes it any more."""
        if self._reader:
            self._reader.close()
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def remove(self) -> None:
        """Remove the file: its search is done."""
        if self._descriptor >= 0:
            descriptor = self._take_descriptor()
            # While it is locked, no other search can have made it its own.
            with contextlib.suppress(OSError):
                if sys.platform == "win32":  # pragma: no cover  (an open file cannot be removed there)
                    os.close(descriptor)
                    self.path.unlink()
                    return
                if is_same_file(descriptor, self.path):
                    self.path.unlink()
            os.close(descriptor)
