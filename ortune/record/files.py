"""Reads, writes and migrates record files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.record.schema import SCHEMA, Bundle, Record, base_of


class _Version(msgspec.Struct):
    schema: int


def read_record(path: str | Path) -> Record:
    """Read a record.

    Raises:
        RecordError: There is no such file, or it is not a record that this version understands.
    """
    records = read_records(path)
    if len(records) > 1:
        raise RecordError(
            f"{path} is a bundle of {len(records)} records, and one is needed here.",
            "Pass one of those that it was made of.",
        )
    return records[0]


def read_records(path: str | Path) -> tuple[Record, ...]:
    """Read a record, or all of a bundle.

    Raises:
        RecordError: There is no such file, or it holds no records that this version understands.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RecordError(f"There is no file {path}.", "Make one: ortune search MODEL -o FILE.") from None
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.") from None
    try:
        version = msgspec.json.decode(data, type=_Version).schema
        document = msgspec.json.decode(data)
    except RecursionError:
        raise RecordError(f"{path} is not a record of ortune: it is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise RecordError(
            f"{path} is not a record of ortune: {error}.", "Make one: ortune search MODEL -o FILE."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} is not JSON: {error}.", "Make one: ortune search MODEL -o FILE.") from None
    if version > SCHEMA:
        raise RecordError(
            f"{path} has schema {version}; this version of ortune reads up to {SCHEMA}.",
            "Upgrade: pip install --upgrade ortune.",
        )
    if version < 1:
        raise RecordError(f"{path} has schema {version}, which never was.")
    try:
        if "records" not in document:
            return (msgspec.convert(migrate(document, version), type=Record),)
        for each in document["records"] if isinstance(document["records"], list) else ():
            migrate(each, version)
        records = msgspec.convert({**document, "schema": SCHEMA}, type=Bundle).records
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(
            f"{path} is not a valid record: {error}.", "Write it anew: ortune search MODEL -o FILE."
        ) from None
    if not records:
        raise RecordError(f"{path} is a bundle without records.", "Make one: ortune merge A.json B.json -o FILE.")
    return records


def migrate(document: Any, version: int) -> Any:
    """Return a document of an older schema in the form of the newest.

    Args:
        document: Dictionaries and lists, as they come out of the file.
        version: Its schema.

    Raises:
        msgspec.ValidationError: It lacks something that a record of that version has.
    """
    if version == 1:
        try:
            workload = document["workload"]
            workload["load"] = {"scenario": workload["load"]}
            workload["objectives"] = [workload.pop("objective")]
            for given in workload["inputs"].values():
                given["shapes"] = [given.pop("shape")]
            for trial in document["search"]["trials"]:
                speedup = trial.pop("speedup")
                trial["speedups"] = None if speedup is None else [speedup]
        except (KeyError, TypeError, AttributeError) as error:
            raise msgspec.ValidationError(f"Object of schema 1 misses {error}") from None
    if isinstance(document, dict):
        document["schema"] = SCHEMA
        if version < 4:
            _rename(document)
    return document


RENAMED = {"utilisation": "utilization", "neighbour": "background_load"}
RENAMED_STAGES = {"screen": "screening", "race": "racing", "duel": "confirmation"}


def _rename(value: Any) -> None:
    if isinstance(value, dict):
        for old, new in RENAMED.items():
            if old in value:
                value[new] = value.pop(old)
        if value.get("stage") in RENAMED_STAGES:
            value["stage"] = RENAMED_STAGES[value["stage"]]
        for each in value.values():
            _rename(each)
    elif isinstance(value, list):
        for each in value:
            _rename(each)


def check_digest(record: Record, path: str | Path, digest: str) -> None:
    """Check that a model's digest is that of the model that the record is for.

    Raises:
        RecordError: It is another model.
    """
    if digest != record.model.digest:
        raise RecordError(
            f"The record is for another model: {record.model.path} with {record.model.digest}; {path} has {digest}.",
            f"Pass that model, or tune this one: ortune search {path}.",
        )


def encode_record(record: Record | Bundle) -> bytes:
    """Return the record, or a bundle of them, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def write_record(record: Record, path: Path) -> Path | None:
    """Write the record so that there is always either the old file or the whole new one.

    Where the new one proves nothing and the old one does, the old one is kept beside it.

    Returns:
        Where the old one was kept, or None.

    Raises:
        UsageError: The file cannot be written.
    """
    kept = None
    if proves_nothing(record) and path.is_file():
        try:
            old = read_record(path)
        except RecordError:
            old = None
        if old is not None and not proves_nothing(old):
            kept = path.with_suffix(f".before{path.suffix}")
            write_atomically(kept, path.read_bytes())
    write_atomically(path, encode_record(record))
    return kept


def proves_nothing(record: Record) -> bool:
    """Return whether the search found out nothing by which one config would be better than another."""
    return record.evidence.verdict in {"inconclusive", "infeasible", "overload"} and record.config == base_of(record)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside the target, and move it into place.

    Raises:
        UsageError: The file cannot be written.
    """
    import tempfile

    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            Path(name).chmod(0o666 & ~mask)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None


def is_record(data: bytes) -> bool:
    """Return whether a file's content looks like a record or a bundle, of whatever schema."""
    try:
        return "schema" in msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError:
        return False


def check_writable(path: Path, option: str = "output", may_replace: Callable[[bytes], bool] | None = None) -> None:
    """Find out before the search whether a file that `option` names can be written.

    Args:
        path: The file.
        option: What named it.
        may_replace: Tells by the content of a file that is there whether it may be replaced; None where all may.

    Raises:
        UsageError: It cannot.
    """
    import tempfile

    if path.is_dir():
        raise UsageError(f"Cannot write {path}: it is a folder.", f"Name a file with {{{option}}}.")
    if not path.parent.is_dir():
        raise UsageError(
            f"Cannot write {path}: there is no folder {path.parent}.",
            f"Create it, or name another file with {{{option}}}.",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
        content = path.read_bytes() if may_replace and path.is_file() else b""
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.", f"Name another file with {{{option}}}.") from None
    if may_replace and content.strip() and not may_replace(content):
        raise UsageError(
            f"{path}: was not written by ortune, so it is not overwritten.",
            "Name another file, or remove it.",
            option=option,
        )
