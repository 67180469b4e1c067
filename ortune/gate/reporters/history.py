"""A history of gates: a line of JSON for each run, which `ortune report` draws."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortune.compare.interval import Interval
from ortune.errors import RecordError, UsageError
from ortune.gate.reporters.messages import decision_of, reason_of
from ortune.gate.results import GateError, GateResult


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One gate of one run.

    Attributes:
        time: When it ended, in ISO 8601 with the time zone.
        name: The gate's name.
        decision: "pass", "fail", "inconclusive" or "error".
        reason: Why.
        slowdowns: By objective, how many times as costly head was.
        allowed: By objective, how many times as costly it might be.
        head: Head as it was named.
        onnxruntime: Version that ran head.
        host: Id of the class of host.
        wall_s: Time that it took.
    """

    time: str
    name: str
    decision: str
    reason: str
    slowdowns: dict[str, Interval] = {}
    allowed: dict[str, float] = {}
    head: str = ""
    onnxruntime: str = ""
    host: str = ""
    wall_s: float = 0.0


def make_entry(result: GateResult | GateError, time: str) -> Entry:
    """Return the line of one gate."""
    entry = Entry(time=time, name=result.name, decision=decision_of(result), reason=reason_of(result))
    if isinstance(result, GateError):
        return entry
    return msgspec.structs.replace(
        entry,
        slowdowns={finding.objective: finding.slowdown for finding in result.findings},
        allowed={finding.objective: finding.allowed for finding in result.findings},
        head=result.head.text,
        onnxruntime=result.head.runtime.onnxruntime,
        host=result.host.id,
        wall_s=round(result.wall_s, 3),
    )


def append_history(path: Path, results: Sequence[GateResult | GateError]) -> None:
    """Add a line for each gate.

    Raises:
        UsageError: The file cannot be written.
    """
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    text = b"".join(msgspec.json.encode(make_entry(result, now)) + b"\n" for result in results)
    try:
        with path.open("a+b") as file:
            # Whatever ended the run before in the middle of a line, this one begins a line of its own.
            file.seek(max(file.seek(0, 2) - 1, 0))
            file.write(b"\n" * (file.read(1) not in {b"", b"\n"}) + text)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None


def is_history(content: bytes) -> bool:
    """Return whether a file's content looks like a history: each line is an entry, but for some that were cut off."""
    return any(_read_entry(line) for line in content.splitlines())


def _read_entry(line: bytes) -> Entry | None:
    try:
        entry = msgspec.json.decode(line, type=Entry)
        datetime.datetime.fromisoformat(entry.time)
    except (msgspec.MsgspecError, ValueError):
        return None
    return entry if entry.slowdowns.keys() <= entry.allowed.keys() else None


def read_history(path: Path) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
    """Read all lines.

    Returns:
        The entries, and the numbers of lines that are none: a run that was killed may have written half of one.

    Raises:
        RecordError: There is no such file, or no line is an entry.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.", "ortune gate --history FILE writes one.") from None
    entries, broken = [], []
    for number, line in enumerate(lines, 1):
        entry = _read_entry(line)
        if entry is not None:
            entries.append(entry)
        elif line.strip():
            broken.append(number)
    if not entries:
        what = f"no line of {path} is one of a gate's history" if broken else f"{path} is empty"
        raise RecordError(f"{what[0].upper()}{what[1:]}.", "ortune gate --history FILE writes one.")
    return tuple(entries), tuple(broken)
