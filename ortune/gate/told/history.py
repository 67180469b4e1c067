"""A history of gates: a line of JSON for each run, which `ortune report` draws."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.gate.told.words import decision_of, reason_of
from ortune.gate.values import GateError, GateResult
from ortune.measure.interval import Interval


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
        with path.open("ab") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None


def read_history(path: Path) -> tuple[Entry, ...]:
    """Read all lines.

    Raises:
        RecordError: There is no such file, or a line is no entry.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.", "ortune gate --history FILE writes one.") from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except msgspec.MsgspecError as error:
            raise RecordError(f"{path}, line {number}: {error}.", "ortune gate --history FILE writes one.") from None
    if not entries:
        raise RecordError(f"{path} is empty.", "ortune gate --history FILE adds to it.")
    return tuple(entries)
