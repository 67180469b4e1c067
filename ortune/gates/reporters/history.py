"""A history of gates: a file with one line of JSON per gate and run, which `ortune report` reads."""

from __future__ import annotations

import datetime
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.gates.results import GateError, GateResult
from ortune.limited import TooLargeError, read_limited
from ortune.measure.interval import Interval
from ortune.sanitize import encode_json
from ortune.times import stamp

YEARS = range(1970, 3000)
"""Years of entries. A plot needs some time before and after."""

MOST_HISTORY_BYTES = 32 << 20
"""Largest size of a history that is read. An entry has less than a kilobyte."""

MOST_BROKEN = 1000
"""Number of broken lines of a file that is taken for a history. Each causes a warning."""

HISTORY_HINT = "Such files are written by ortune gate with {history=FILE}."


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One gate of one run. If the gate ended with an error, only the first four fields say something.

    Attributes:
        time: When it ended, in ISO 8601 with the time zone.
        name: Name of the gate.
        decision: "pass", "fail", "inconclusive" or "error".
        reason: Why.
        is_void: Whether nothing could be decided, whatever the slowdowns are.
        slowdowns: Cost of head relative to base, by objective.
        allowed: Largest relative cost that passes, by objective.
        head: Head as the user named it.
        onnxruntime: Version that ran head.
        base: Base as the user named it.
        base_digest: Digest of its model.
        base_settings: Its settings, as `Config.settings`.
        base_onnxruntime: Version that ran base.
        load: How calls arrived.
        host: Id of the host class.
        wall_s: Duration.
    """

    time: str
    name: str
    decision: str
    reason: str
    is_void: bool = False
    slowdowns: dict[str, Interval] = {}
    allowed: dict[str, float] = {}
    head: str = ""
    onnxruntime: str = ""
    base: str = ""
    base_digest: str = ""
    base_settings: dict[str, int | bool | str] = {}
    base_onnxruntime: str = ""
    load: str = ""
    host: str = ""
    wall_s: float = 0.0

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must be the same for slowdowns to be comparable. The path of base may differ."""
        settings = str(sorted(self.base_settings.items()))
        return self.base_digest, settings, self.base_onnxruntime, self.load, self.host


def make_entry(result: GateResult | GateError, time: str) -> HistoryEntry:
    """Return the entry of one gate.

    Args:
        result: The gate.
        time: When it ended, in ISO 8601 with the time zone.
    """
    entry = HistoryEntry(time=time, name=result.name, decision=result.decision, reason=result.reason)
    if isinstance(result, GateError):
        return entry
    return msgspec.structs.replace(
        entry,
        is_void=result.is_void,
        slowdowns={finding.objective: finding.slowdown for finding in result.findings},
        allowed={finding.objective: finding.allowed for finding in result.findings},
        head=result.head.text,
        onnxruntime=result.head.runtime.onnxruntime,
        base=result.base.text,
        base_digest=result.base.model.digest,
        base_settings=result.base.config.settings,
        base_onnxruntime=result.base.runtime.onnxruntime,
        load=str(result.workload.load),
        host=result.host.id,
        wall_s=round(result.wall_s, 3),
    )


def append_history(path: Path, results: Sequence[GateResult | GateError]) -> None:
    """Add one line per gate.

    Raises:
        UsageError: The file cannot be written.
    """
    now = stamp()
    text = b"".join(encode_json(make_entry(result, now)) + b"\n" for result in results)
    try:
        if not path.is_file() and path.exists():  # a pipe or a device, which cannot be read back
            with path.open("wb") as pipe:
                pipe.write(text)
            return
        with path.open("a+b") as file:
            # An earlier run may have been killed in the middle of a line: start a new one.
            file.seek(max(file.seek(0, 2) - 1, 0))
            file.write(b"\n" * (file.read(1) not in {b"", b"\n"}) + text)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None


def is_history(content: bytes) -> bool:
    """Return whether at least one line of a file is an entry of a history."""
    return any(_read_entry(line) for line in itertools.islice(io.BytesIO(content), MOST_BROKEN))


def _read_entry(line: bytes) -> HistoryEntry | None:
    try:
        entry = msgspec.json.decode(line, type=HistoryEntry)
        year = datetime.datetime.fromisoformat(entry.time).year
    except (ValueError, RecursionError):
        return None
    return entry if year in YEARS and entry.slowdowns.keys() <= entry.allowed.keys() else None


def read_history(path: Path) -> tuple[tuple[HistoryEntry, ...], tuple[int, ...]]:
    """Read a history.

    Returns:
        The entries, and the numbers of lines that are not entries: a run that was killed may leave half a line.

    Raises:
        RecordError: The file cannot be read, or has no entry.
    """
    try:
        content = read_limited(path, MOST_HISTORY_BYTES)
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.", HISTORY_HINT) from None
    except TooLargeError as error:
        raise RecordError(
            f"{path} is not a history that ortune can read: {error}.",
            "If it is one, move its oldest lines to another file.",
        ) from None
    return parse_history(content, str(path))


def parse_history(content: bytes, name: str) -> tuple[tuple[HistoryEntry, ...], tuple[int, ...]]:
    """Parse the content of a history; see `read_history`.

    Args:
        content: The content.
        name: Name of the file, for messages.
    """
    entries, broken = [], []
    for number, line in enumerate(io.BytesIO(content), 1):
        entry = _read_entry(line)
        if entry is not None:
            entries.append(entry)
        elif line.strip():
            broken.append(number)
            if len(broken) > MOST_BROKEN:
                raise RecordError(
                    f"{name} is not a history of gates: more than {MOST_BROKEN} lines are no entries.", HISTORY_HINT
                )
    if not entries:
        fault = f"{name} is not a history of gates." if broken else f"{name} is empty."
        raise RecordError(fault, HISTORY_HINT)
    return tuple(entries), tuple(broken)
