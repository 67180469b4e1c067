"""Reads the file of a report, and finds out what it holds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.errors import RecordError
from ortune.file_kinds import find_document, name_kind
from ortune.gates.reporters.history import MOST_HISTORY_BYTES, HistoryEntry, is_history, parse_history
from ortune.limited import STANDARD_STREAM
from ortune.measure.bench import BenchResult
from ortune.record.check import check_configs
from ortune.record.files import find_trials, name_of_input, parse_records, read_content
from ortune.record.json_text import check_json_text
from ortune.record.schema import Record
from ortune.record.trials import Trials, is_trials_file

REPORTED_KINDS = "a record, a bundle, the output of ortune bench --json, or a history of gates"

REPORT_HINT = (
    "Reports are made of what ortune search, ortune merge, ortune bench --json and ortune gate --history write."
)


class RecordSource(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was read.

    Attributes:
        record: The record.
        trials: Its trials; None if there are none.
        lack: Why there are none; empty if there are.
        fault: Why the record must not be applied as it is; empty if it may.
    """

    record: Record
    trials: Trials | None = None
    lack: str = ""
    fault: str = ""


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """A record, or the records of a bundle."""

    records: tuple[RecordSource, ...]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A history of gates, and the numbers of its lines that are no entries."""

    entries: tuple[HistoryEntry, ...]
    broken: tuple[int, ...] = ()


Source = Records | BenchResult | History


def read_source(path: str) -> Source:
    """Read the file of a report.

    Args:
        path: Path of the file; `-` for stdin.

    Raises:
        RecordError: It cannot be read, or holds nothing that reports are made of.
    """
    name = name_of_input(path)
    try:
        content = read_content(path, MOST_HISTORY_BYTES, REPORTED_KINDS, REPORT_HINT)
    except RecordError as error:
        # Models may be larger than what reports are made of.
        raise recognize(path, name, b"") or error from None
    if is_trials_file(content):
        raise RecordError(f"{name} holds the trials of a search.", "Name the record next to it.")
    match find_document(content):
        case "record" | "bundle":
            return read_records(content, path)
        case "bench":
            return read_bench(content, name)
    if is_history(content):
        entries, broken = parse_history(content, name)
        return History(entries=entries, broken=broken)
    raise recognize(path, name, content) or RecordError(f"{name} is not {REPORTED_KINDS}.", REPORT_HINT)


def recognize(path: str, name: str, content: bytes) -> RecordError | None:
    """Return the error for a file of another kind, or for a damaged record; None if it is not recognized."""
    kind = "" if path == STANDARD_STREAM else name_kind(Path(path))
    if kind == "an ONNX model":
        advice = f"Search first: ortune search {path} -o tuned.json, then write its page: ortune report tuned.json"
        return RecordError(f"{name} is {kind}, not {REPORTED_KINDS}.", advice)
    if kind == "a record" and content:
        try:
            parse_records(content, name)
        except RecordError as error:
            return error
    if kind in ("", "a record", "a JSON file", "a named pipe", "a device"):
        return None
    return RecordError(f"{name} is {kind}, not {REPORTED_KINDS}.", REPORT_HINT)


def read_records(content: bytes, path: str) -> Records:
    """Return the records of a file, each with its trials.

    Settings that a record must not have are no error: a report shows them, and applies nothing.
    """
    found = []
    for record in parse_records(content, name_of_input(path)).records:
        trials, lack = None, ""
        if path == STANDARD_STREAM:
            lack = "A record from stdin has no trials file next to it."
        else:
            try:
                trials, _ = find_trials(record, Path(path))
            except RecordError as error:
                lack = error.message
        found.append(RecordSource(record=record, trials=trials, lack=lack, fault=find_fault(record)))
    return Records(records=tuple(found))


def find_fault(record: Record) -> str:
    """Return why a record must not be applied; empty if it may."""
    try:
        check_configs(record, "The record", trust=False)
    except RecordError as error:
        return error.message
    return ""


def read_bench(content: bytes, name: str) -> BenchResult:
    """Return the result of a bench.

    Raises:
        RecordError: It is not valid.
    """
    try:
        check_json_text(content)
        result = msgspec.json.decode(content, type=BenchResult)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise RecordError(f"{name} is not a result of ortune bench: {error}.", REPORT_HINT) from None
    if not result.rows:
        raise RecordError(f"{name} has no configs.", REPORT_HINT)
    return result
