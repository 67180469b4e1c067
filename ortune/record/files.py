"""Reads and writes the files of records and trials.

Every program that `ortune apply` starts loads this module first. Modules that only writing needs are therefore
imported on use.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.file_kinds import find_document, is_record, name_kind, name_special
from ortune.limited import STANDARD_STREAM, STDIN, TooLargeError, read_limited
from ortune.locks import try_to_lock
from ortune.record.check import EvidenceError, check_configs, check_evidence, check_files, check_schema, shorten
from ortune.record.json_text import check_json_text
from ortune.record.schema import RECORD_SCHEMA, Bundle, Record, TrialsFile
from ortune.streams import find_descriptor

if TYPE_CHECKING:
    from ortune.record.trials import Trials

TRIALS_SUFFIX = ".trials.jsonl.gz"

MOST_RECORD_BYTES = 16 << 20
"""Largest size of a file that is read as a record or a bundle. A record has a few kilobytes."""

PROBE_BYTES = 64 << 10
"""Bytes that must be free at the start for each file to be written. A small search needs fewer."""

SEARCH_HINT = "Create one: ortune search MODEL -o FILE."
WRITE_AGAIN = "Write it again: ortune search MODEL -o FILE."


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file.

    Attributes:
        records: Its records: one, or those of a bundle.
        is_bundle: Whether it is a bundle.
    """

    records: tuple[Record, ...]
    is_bundle: bool = False


def read_record(path: str | Path, *, trust: bool = False) -> Record:
    """Read a record.

    Args:
        path: Path of the file; `-` for stdin.
        trust: Whether its settings may name files, libraries and other environment variables. Each such setting causes
            a `TrustWarning`.

    Raises:
        RecordError: There is no such file, it is not a record that this version can read, or one of its settings is not
            legal or not allowed in a record.

    Example:
        >>> import ortune
        >>> record = ortune.read_record("tuned.json")
        >>> record.config.session_options
        {'intra_op_num_threads': 1}
    """
    return _only_record(path, read_document(path, trust=trust))


def read_records(path: str | Path, *, trust: bool = False) -> tuple[Record, ...]:
    """Read a record, or all records of a bundle; see `read_record`."""
    return read_document(path, trust=trust).records


def read_document(path: str | Path, *, trust: bool = False) -> Document:
    """Read a file with one record or several; see `read_record`."""
    return decode_document(read_any(path), name_of_input(path), trust=trust)


def read_any(path: str | Path) -> bytes:
    """Return the content of a file that is expected to be a record, a bundle or a plan.

    Raises:
        RecordError: There is no such file, or it cannot be read, or it is too large.
    """
    return read_content(path, MOST_RECORD_BYTES, "an ortune record", SEARCH_HINT)


def decode_document(data: bytes, name: str, *, trust: bool = False) -> Document:
    """Return the records that the content of a file holds; see `read_record`.

    Args:
        data: The content.
        name: Name of the file for messages.
        trust: As for `read_record`.
    """
    found = parse_records(data, name)
    for number, record in enumerate(found.records):
        place = f"$.records[{number}]" if found.is_bundle else "$"
        check_files(record, name, place)
        check_configs(record, name, trust=trust, place=place)
    return found


def read_content(path: str | Path, most_bytes: int, kind: str, hint: str) -> bytes:
    """Read a file that is expected to hold a document of some kind.

    Args:
        path: Path of the file; `-` for stdin.
        most_bytes: Largest size of such a document.
        kind: What it is, with its article, such as "an ortune record".
        hint: How to get one.

    Raises:
        RecordError: There is no such file, or it cannot be read, or it is too large.
    """
    name = name_of_input(path)
    try:
        return read_limited(path, most_bytes)
    except FileNotFoundError:
        raise RecordError(f"There is no file {path}.", hint) from None
    except TooLargeError as error:
        raise RecordError(f"{name} is not {kind}: {error}.", hint) from None
    except OSError as error:
        special = name_special(Path(path))
        reason = f"it is {special}" if special else error.strerror
        raise RecordError(f"Cannot read {name}: {reason}.", hint if special else "") from None


def parse_document(path: str | Path) -> Document:
    """Parse a file with one record or several, without a check of their settings.

    Raises:
        RecordError: There is no such file, or it holds no records that this version can read.
    """
    return parse_records(read_any(path), name_of_input(path))


def parse_records(data: bytes, name: str) -> Document:
    """Parse the content of a file with one record or several, without a check of their settings.

    Args:
        data: The content.
        name: Name of the file, for messages.

    Raises:
        RecordError: It holds no records that this version can read.
    """
    if find_document(data) in {"plan", "plan for several models"}:
        raise RecordError(
            f"{name} is a plan of deployments, and a record is needed here.",
            "`ortune apply` uses plans. To create a record: ortune search MODEL -o FILE.",
        )
    versions = _read_versions(data, name)
    try:
        if versions.records is msgspec.UNSET:
            found = Document(records=(msgspec.json.decode(data, type=Record),))
        else:
            found = Document(records=msgspec.json.decode(data, type=Bundle).records, is_bundle=True)
        for number, record in enumerate(found.records):
            check_evidence(record.evidence, f"$.records[{number}]" if found.is_bundle else "$")
    except (msgspec.ValidationError, RecursionError, EvidenceError) as error:
        raise RecordError(f"{name} is not a valid record: {error}.", WRITE_AGAIN) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain_damage(name, error) from None
    if not found.records:
        raise RecordError(f"{name} is a bundle without records.", "Create one: ortune merge A.json B.json -o FILE.")
    return found


def _read_versions(data: bytes, name: str) -> _Versions:
    """Return the schemas of a document, after a check that it can be decoded.

    Raises:
        RecordError: It holds no records, or none that this version can read.
    """
    try:
        check_json_text(data)
        versions = msgspec.json.decode(data, type=_Versions)
    except RecursionError:
        raise RecordError(f"{name} is not an ortune record: it is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise RecordError(f"{name} is not an ortune record: {error}.", SEARCH_HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain_damage(name, error) from None
    except ValueError as error:
        raise RecordError(f"{name} is not a valid record: {error}.", WRITE_AGAIN) from None
    for versioned in (versions, *(versions.records or ())):
        check_schema(versioned.schema, RECORD_SCHEMA, name, WRITE_AGAIN)
    return versions


def name_of_input(path: str | Path) -> str:
    """Return the name of an input file for messages."""
    return STDIN if str(path) == STANDARD_STREAM else str(path)


def _explain_damage(name: str, error: Exception) -> RecordError:
    """Return the error for a file that is not valid JSON."""
    kind = name_kind(Path(name)) if name != name_of_input(STANDARD_STREAM) else ""
    if kind in ("a record", "a plan"):
        again = WRITE_AGAIN if kind == "a record" else "Write it again: ortune plan MODEL -o FILE."
        return RecordError(
            f"{name} is {kind}, but it cannot be read: {error}.", f"{again} JSON has no numbers such as NaN."
        )
    if kind not in ("", "a JSON file", "a named pipe", "a device"):
        return RecordError(f"{name} is {kind}, not a record.", SEARCH_HINT)
    return RecordError(f"{name} is not JSON: {error}.", SEARCH_HINT)


class _Versions(msgspec.Struct):
    """The schemas of a document and, if it is a bundle, of its records."""

    schema: int
    records: list[_Versions] | msgspec.UnsetType = msgspec.UNSET


def _only_record(path: str | Path, document: Document) -> Record:
    if len(document.records) > 1:
        raise RecordError(
            f"{name_of_input(path)} is a bundle of {len(document.records)} records, and one is needed here.",
            "Pass one of the records that it was made of.",
        )
    return document.records[0]


def read_trials(path: str | Path, *, trust: bool = False) -> Trials:
    """Read all trials of a record, from the file next to it.

    The file may have been renamed together with its record.

    Args:
        path: Path of the record.
        trust: As for `read_record`.

    Raises:
        RecordError: The record has no trials file, or the file is missing, was changed or cannot be read.
    """
    trials, place = find_trials(read_record(path, trust=trust), Path(path))
    check_configs(trials, str(place), trust=trust)
    return trials


def find_trials(record: Record, path: Path) -> tuple[Trials, Path]:
    """Return the trials of a record, without a check of their settings, and the file that holds them.

    Args:
        record: The record.
        path: The file that it was read from.

    Raises:
        RecordError: The record has no trials file, or the file is missing, was changed or cannot be read.
    """
    from ortune.record.trials import decode_trials

    named = record.search.trials
    if named is None:
        raise RecordError(f"{path} names no trials file.", "A search writes one next to the record that it writes.")
    file = follow_link(path)
    paths = (file.with_name(named.file), path_of_trials(file))
    contents = {trials_path: _read_if_present(trials_path) for trials_path in paths}
    for trials_path, data in contents.items():
        if data is not None and hashlib.sha256(data).hexdigest() == named.sha256:
            try:
                return decode_trials(data), trials_path
            except ValueError as error:
                raise RecordError(f"{trials_path} is not a trials file that ortune can read: {error}.") from None
    hint = "The record is valid without it. To have one, search again."
    if all(data is None for data in contents.values()):
        raise RecordError(f"There is no file {paths[0]} with the trials of {path}.", hint)
    raise RecordError(f"{paths[0]} does not have the digest that {path} names: it was changed or replaced.", hint)


def _read_if_present(path: Path) -> bytes | None:
    from ortune.record.trials import MOST_TRIALS_BYTES

    try:
        return read_limited(path, MOST_TRIALS_BYTES, only_regular=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.") from None
    except TooLargeError as error:
        raise RecordError(f"{path} is not a trials file that ortune can read: {error}.") from None


def path_of_trials(record: Path) -> Path:
    """Return the path of the trials file of a record: `tuned.trials.jsonl.gz` for `tuned.json`."""
    return record.with_name(record.name.removesuffix(".json") + TRIALS_SUFFIX)


def encode_record(record: Record | Bundle) -> bytes:
    """Return the text of a record or a bundle."""
    from ortune.record.layout import encode

    return encode(record)


Kind = TypeVar("Kind", bound=Record | Bundle)


class Written(msgspec.Struct, Generic[Kind], frozen=True, kw_only=True):
    """A record or a bundle that was written.

    Attributes:
        record: The record or bundle as it is in the file, with the name of its trials file.
        kept: Path of the copy of a replaced one with stronger evidence; None if there was none.
    """

    record: Kind
    kept: Path | None = None


def write_record(record: Kind, path: Path, trials: bytes | None = None) -> Written[Kind]:
    """Write a record or a bundle, and its trials next to it.

    Both files are complete before they are moved to their places, one directly after the other, so that a full disk
    leaves the old ones. The trials are moved first, so that a record never names a missing file. If an old record
    proves more than the new ones of its model, the old file is kept under another name.

    Args:
        record: The record or bundle.
        path: Path of the file; `-` for stdout. Trials are not written to a stream or a device.
        trials: Content of the trials file, or None. All records of a bundle name it.

    Raises:
        UsageError: A file cannot be written. If that is the trials file, the record is written without it.
    """
    if str(path) == STANDARD_STREAM or is_special(path):
        write_atomically(path, encode_record(record))
        return Written(record=record)
    path = follow_link(path)
    kept = _keep_stronger(path, list_records(record))
    if trials is None:
        write_atomically(path, encode_record(record))
        return Written(record=record, kept=kept)
    file = path_of_trials(path)
    named = _name_trials(record, TrialsFile(file=file.name, sha256=hashlib.sha256(trials).hexdigest()))
    try:
        if is_special(file):
            write_atomically(file, trials)
            write_atomically(path, encode_record(named))
            return Written(record=named, kept=kept)
        target = follow_link(file)
        with write_complete(target, trials) as complete, write_complete(path, encode_record(named)) as complete_record:
            _move(complete, target)
            _move(complete_record, path)
    except (OSError, UsageError) as error:
        # The result matters more than the trials. Without space for both, there may be space for the record.
        write_atomically(path, encode_record(record))
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"Cannot write {file}: {error.strerror}.") from None
    return Written(record=named, kept=kept)


def list_records(record: Record | Bundle) -> tuple[Record, ...]:
    """Return the records of a bundle, or a single record."""
    return record.records if isinstance(record, Bundle) else (record,)


def _name_trials(record: Kind, trials: TrialsFile) -> Kind:
    if isinstance(record, Bundle):
        return msgspec.structs.replace(
            record, records=tuple(_name_trials(contained, trials) for contained in record.records)
        )
    return msgspec.structs.replace(record, search=msgspec.structs.replace(record.search, trials=trials))


def _keep_stronger(path: Path, new: Sequence[Record]) -> Path | None:
    """Copy the records in a file, with their trials, if any may prove more than new ones. Return where."""
    if not path.is_file():
        return None
    try:
        content = read_any(path)
    except RecordError:
        return None
    if not _may_prove_more(content, str(path), new):
        return None
    trials = path_of_trials(path).read_bytes() if path_of_trials(path).is_file() else None
    kept = next(
        backup_path
        for backup_path in _backup_paths(path)
        if _is_free_for(backup_path, content) and (trials is None or _is_free_for(path_of_trials(backup_path), trials))
    )
    write_atomically(kept, content, like=path)
    if trials is not None:
        write_atomically(path_of_trials(kept), trials, like=path_of_trials(path))
    return kept


def _may_prove_more(content: bytes, name: str, new: Sequence[Record]) -> bool:
    """Return whether a record in a file proves more than new ones of its model, or is one that cannot be read."""
    try:
        old = parse_records(content, name).records
    except RecordError:
        return is_record(content) and max(map(_rate_proof, new), default=0) < PROVEN_GAIN
    return any(_rate_proof(record) > max(map(_rate_proof, _find_successors(record, new)), default=0) for record in old)


PROVEN_GAIN = 2


def _rate_proof(record: Record) -> int:
    """Return how much a record proves: a gain (2), that no other config is better (1), or nothing (0)."""
    if not record.is_proven:
        return 0
    return PROVEN_GAIN if record.config != record.base else 1


def _find_successors(old: Record, new: Sequence[Record]) -> list[Record]:
    """Return the new records of the model of an old one, which may have been changed or moved since."""
    same_path = [record for record in new if record.model.path == old.model.path]
    return same_path or [record for record in new if record.model.digest == old.model.digest]


def _is_free_for(path: Path, data: bytes) -> bool:
    """Return whether data can be written to a path without losing another file, which may be the user's."""
    try:
        return not path.exists() or (path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data)
    except OSError:
        return False


def _backup_paths(path: Path) -> Iterator[Path]:
    """Yield the paths to which a record may be copied before it is replaced."""
    yield path.with_suffix(f".before{path.suffix}")
    for number in itertools.count(2):
        yield path.with_suffix(f".before-{number}{path.suffix}")


@contextlib.contextmanager
def write_complete(target: Path, data: bytes, like: Path | None = None) -> Iterator[Path]:
    """Write a complete file that is to be moved to a path, next to it. It is removed in the end if it was not moved.

    Args:
        target: The path.
        data: Its content.
        like: File whose mode and owner it gets. Without one, that is the file that it replaces.
    """
    import tempfile

    from ortune.record.leftovers import find_prefix

    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=find_prefix(target))
    complete = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            try_to_lock(descriptor)  # so that it is not taken for a leftover
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            _set_mode(complete, like or target)
            if os.name == "nt":
                file.close()  # Windows moves no file that is open
            yield complete
    finally:
        complete.unlink(missing_ok=True)


def check_unchanged(path: Path, records: Sequence[Record], *, trust: bool, alone: bool = False) -> None:
    """Check that a file holds these records, so that they can be replaced in it.

    Args:
        path: The file.
        records: The records.
        trust: Whether records may have settings that need trust.
        alone: Whether it must hold no others.

    Raises:
        UsageError: It does not.
        RecordError: It cannot be read as records.
    """
    if not path.is_file():
        raise UsageError(f"{path}: is not a file.", "Pass the records as a file.", option="update")
    found = read_document(path, trust=trust).records
    if not all(record in found for record in records) or (alone and len(found) > len(records)):
        raise UsageError(f"{path}: was changed in the meantime.", "Try again.", option="update")


def write_atomically(path: Path, data: bytes, like: Path | None = None) -> None:
    """Write a file atomically.

    Links are followed. Special files, such as pipes and devices, are opened and written to.

    Args:
        path: Path of the file; `-` for stdout.
        data: Its content.
        like: File whose mode and owner it gets. Without one, that is the file that it replaces.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        if str(path) == STANDARD_STREAM:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            if fault := getattr(sys.stdout, "find_fault", str)():
                raise UsageError(f"Cannot write to stdout: {fault}.")
            return
        if is_special(path):
            with _open_special(path) as file:
                file.write(data)
            return
        target = follow_link(path)
        with write_complete(target, data, like) as complete:
            _move(complete, target)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None


def place_file(complete: Path, path: Path) -> None:
    """Move a file that is complete to where it belongs. Links are followed, and special files are written to.

    Args:
        complete: The file, on the file system of `find_folder(path)`.
        path: Where it belongs.

    Raises:
        UsageError: It cannot be written.
    """
    import shutil

    try:
        if is_special(path):
            with complete.open("rb") as source, _open_special(path) as file:
                shutil.copyfileobj(source, file)
            complete.unlink()
        else:
            target = follow_link(path)
            _set_mode(complete, target)
            _move(complete, target)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None


def _move(complete: Path, target: Path) -> None:
    """Move a complete file to its place. A file that is a mount point cannot be replaced, so it is written to."""
    try:
        complete.replace(target)
    except OSError as error:
        if error.errno != errno.EBUSY or not target.is_file():
            raise
        import shutil

        shutil.copyfile(complete, target)
        complete.unlink()


def find_folder(path: Path) -> Path | None:
    """Return the folder of the file that a path leads to; None for a special file, which has none of its own."""
    return None if is_special(path) else follow_link(path).parent


def _read_begin(path: Path) -> bytes:
    """Return the content of a file up to a size that only histories exceed, which the begin identifies."""
    from ortune.record.trials import MOST_TRIALS_BYTES

    with path.open("rb") as file:
        return file.read(MOST_TRIALS_BYTES)


def _open_special(path: Path) -> BinaryIO:
    """Open a special file to write to it. A file that this process has open is not opened again: that truncates it."""
    descriptor = find_descriptor(path)
    return path.open("wb") if descriptor is None else os.fdopen(descriptor, "wb", closefd=False)


def _set_mode(path: Path, like: Path) -> None:
    """Give a temporary file, which only its owner may read, the mode of another file, and its owner where possible.

    If there is no such file, it gets the mode of other new files.
    """
    mask = os.umask(0)
    os.umask(mask)
    mode = 0o666 & ~mask
    if os.name != "nt" and like.is_file():
        found = like.stat()
        mode = found.st_mode & 0o777
        for owner in ((-1, found.st_gid), (found.st_uid, -1)):  # a user may have the one right only
            with contextlib.suppress(OSError):
                os.chown(path, *owner)
    path.chmod(mode)


def follow_link(path: Path) -> Path:
    """Return the file that a link leads to, or the path itself if it is not a link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_special(path: Path) -> bool:
    """Return whether a path leads to something that is written to and never replaced.

    That is a device, a pipe or a socket, or a file that this process has open, such as /dev/stdout.
    """
    return find_descriptor(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


def check_record_writable(path: Path, option: str = "output") -> None:
    """Check before a search that its record and its trials can be written.

    Raises:
        UsageError: A file cannot be written, or was not written by ortune.
    """
    from ortune.record.trials import is_trials_file

    check_writable(path, option, is_record)
    if str(path) != STANDARD_STREAM and not is_special(path):
        check_writable(path_of_trials(follow_link(path)), option, is_trials_file)


def check_writable(path: Path, option: str = "output", may_replace: Callable[[bytes], bool] | None = None) -> None:
    """Check before a long measurement that a file can be written, and that there is some space for it.

    Args:
        path: Path of the file; `-` for stdout.
        option: Name of the option or parameter with the path.
        may_replace: Returns whether an existing file may be replaced, given the begin of its content; None if any file
            may be.

    Raises:
        UsageError: It cannot be written, or must not be replaced.
    """
    import tempfile

    from ortune.record.leftovers import find_prefix, remove_leftovers

    if str(path) == STANDARD_STREAM:
        return
    another = "Name another file."
    try:
        is_folder = path.is_dir()
    except OSError as error:  # the name is too long
        raise UsageError(
            f"{shorten(str(path))}: cannot be written: {error.strerror}.", another, option=option
        ) from None
    if is_folder:
        raise UsageError(f"{path}: this is a folder.", another, option=option)
    if is_special(path):
        if path.is_socket():
            raise UsageError(f"{path}: this is a socket.", another, option=option)
        if not os.access(path, os.W_OK):
            raise UsageError(f"{path}: permission denied.", another, option=option)
        try:
            if (descriptor := find_descriptor(path)) is not None:
                os.write(descriptor, b"")  # an error if it is open for reading only
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}.", another, option=option) from None
        return
    target = follow_link(path)
    if not target.parent.is_dir():
        raise UsageError(
            f"{path}: there is no folder {target.parent}.", "Create it, or name another file.", option=option
        )
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=find_prefix(target)) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())  # some file systems notice only then that they are full
        content = _read_begin(path) if may_replace and path.is_file() else b""
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}.", another, option=option) from None
    if may_replace and content.strip() and not may_replace(content):
        raise UsageError(
            f"{path}: this file exists and was not written by ortune, so it is not overwritten.",
            "Name another file, or remove it.",
            option=option,
        )
    remove_leftovers(target)
