"""The record: the JSON document that a search writes, and that everything else reads.

It is plain enough to be applied by hand. It is strict: a newer schema, an unknown field or a wrong type is refused
with the path of the fault, as a config that is half understood would be half applied.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.host import Fingerprint
from ortune.knobs.config import DEFAULT, Config
from ortune.measure import Runtime
from ortune.model import ModelFile
from ortune.trials.values import (
    BestSoFar,
    Closest,
    FrontPoint,
    LimitCheck,
    Noise,
    Speedup,
    StageTime,
    Summary,
    Trial,
    Verdict,
)
from ortune.workload import Tolerance, Workload

SCHEMA = 3
"""2 brought loads; 3 provider options, IO binding, pools and run options, which need no change of older documents."""


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How outputs were compared with the default's.

    Attributes:
        tolerance: How far they may lie apart.
        compared: "values", or "shapes" where the default's own outputs differ from run to run.
        max_error: The winner's largest difference, as a share of the output's largest value; None without a winner.
        rejected: Candidates that were dropped for their outputs.
    """

    tolerance: Tolerance
    compared: str
    max_error: float | None
    rejected: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the recommendation rests on.

    Attributes:
        verdict: The conclusion; "faster" means better in the objective, beyond doubt.
        reason: Why, a sentence.
        objective: What was to be made better; several are separated by commas.
        speedup: The final duel's result, or None when there was none.
        baseline: ONNX Runtime's default in the duel.
        winner: The challenger in the duel. It is recommended only if the verdict is "faster" or "within_limits".
        limits: Whether the challenger keeps to each limit.
        baseline_limits: Whether the default does.
        closest: Where nothing keeps to all limits: what comes closest.
        front: Where several objectives were asked for: the configs that nothing betters in all of them.
        best_so_far: The best candidate of an interrupted search, unproven.
        output_check: How outputs were compared.
        noise: How quiet the host was.
    """

    verdict: Verdict
    reason: str
    objective: str
    speedup: Speedup | None = None
    baseline: Summary | None = None
    winner: Summary | None = None
    limits: tuple[LimitCheck, ...] = ()
    baseline_limits: tuple[LimitCheck, ...] = ()
    closest: Closest | None = None
    front: tuple[FrontPoint, ...] = ()
    best_so_far: BestSoFar | None = None
    output_check: OutputCheck
    noise: Noise


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's identity: its path at the time, the digest of all its files, and each file's own."""

    path: str
    digest: str
    files: tuple[ModelFile, ...]


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the search went.

    Attributes:
        started: When it began, in ISO 8601 with the time zone.
        interrupted: Whether the user ended it early.
        n_candidates: Distinct candidates in the space.
        strategy: In which order they were screened.
        hints: How many of those screened first came from earlier searches.
        ended_early: Why the screen ended before its time, a sentence; empty if it did not.
        trials: Those that were tried.
        stages: Where the time went.
    """

    seed: int
    budget_s: float
    started: str
    interrupted: bool
    n_candidates: int
    strategy: str = "tpe"
    hints: int = 0
    ended_early: str = ""
    trials: tuple[Trial, ...]
    stages: tuple[StageTime, ...]

    def __post_init__(self) -> None:
        """Refuse what no search writes."""
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, below 0")
        datetime.datetime.fromisoformat(self.started)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document.

    Attributes:
        schema: Version of this format.
        config: What to apply.
        evidence: What it rests on.
        model: Which model it is for.
        workload: What was measured.
        host: The class of host it was measured on.
        runtime: The software it was measured with.
        search: How it was found.
    """

    schema: int
    config: Config
    evidence: Evidence
    model: Model
    workload: Workload
    host: Fingerprint
    runtime: Runtime
    search: Search


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several records in one file: for other hosts, other loads, other models.

    Attributes:
        schema: Version of this format, and of all records in it.
        records: In the order in which they were given.
    """

    schema: int
    records: tuple[Record, ...]


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
    return document


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


def base_of(record: Record) -> Config:
    """Return what the record's config was compared with."""
    return record.evidence.baseline.config if record.evidence.baseline else DEFAULT


def tried_by(record: Record) -> dict[str, list[str]]:
    """Return the settings that the search tried: attributes and entries. For them, the default is a finding too."""
    configs = [record.config, *(trial.config for trial in record.search.trials)]
    return {
        "options": sorted({name for config in configs for name in config.session_options}),
        "entries": sorted({name for config in configs for name in config.session_config}),
    }


def pick_point(record: Record, number: int) -> Record:
    """Return a record that recommends another point of its front.

    Args:
        record: One with a front.
        number: Which point, counted from 1, as they are shown.

    Raises:
        RecordError: There is no such point.
    """
    front = record.evidence.front
    if not front:
        raise RecordError(
            f"--pick {number}: the record has no front to pick from.",
            "Make one with a front: ortune search MODEL --pareto p99,cpu.",
        )
    if not 1 <= number <= len(front):
        raise RecordError(f"--pick {number}: the front has the points 1 to {len(front)}.")
    return msgspec.structs.replace(record, config=front[number - 1].summary.config)


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


def check_writable(path: Path, option: str = "-o", may_replace: Callable[[bytes], bool] | None = None) -> None:
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
        raise UsageError(f"Cannot write {path}: it is a folder.", f"Name a file with {option}.")
    if not path.parent.is_dir():
        raise UsageError(
            f"Cannot write {path}: there is no folder {path.parent}.",
            f"Make it, or name another file with {option}.",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
        content = path.read_bytes() if may_replace and path.is_file() else b""
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.", f"Name another file with {option}.") from None
    if may_replace and content.strip() and not may_replace(content):
        raise UsageError(
            f"{option} {path}: this file is there already, and is nothing that would be written here.",
            "It is left as it is: name another file, or remove it.",
        )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    schema = _dedent(msgspec.json.schema(Record))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ortune record", **schema}


def _dedent(value: Any) -> Any:
    """Take the indentation out of descriptions: Python 3.13 does, earlier versions do not."""
    import inspect

    if isinstance(value, dict):
        return {key: _dedent(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_dedent(each) for each in value]
    return inspect.cleandoc(value) if isinstance(value, str) else value
