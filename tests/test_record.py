"""The record: strict, versioned, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune.errors import RecordError, UsageError
from ortune.record.files import (
    check_writable,
    encode_record,
    is_record,
    proves_nothing,
    read_record,
    write_atomically,
    write_record,
)
from ortune.record.json_schema import json_schema
from ortune.record.schema import SCHEMA, Record
from ortune.workload import Load
from tests.conftest import ROOT

EXAMPLE = ROOT / "tests" / "data" / "server.ortune.json"
OLD_EXAMPLE = ROOT / "tests" / "data" / "schema-1.ortune.json"
SECOND_EXAMPLE = ROOT / "tests" / "data" / "schema-2.ortune.json"
SCHEMA_FILE = ROOT / "docs" / "record.schema.json"


def change(function: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(EXAMPLE.read_bytes())
    function(document)
    return json.dumps(document).encode()


def test_a_record_comes_back() -> None:
    record = read_record(EXAMPLE)
    assert isinstance(record, Record)
    assert msgspec.json.decode(encode_record(record), type=Record) == record
    assert encode_record(record) == EXAMPLE.read_bytes()


def test_a_record_of_schema_2_is_the_same_in_the_new_one() -> None:
    assert read_record(SECOND_EXAMPLE) == read_record(EXAMPLE)


def test_it_is_plain_enough_to_be_applied_by_hand() -> None:
    document = json.loads(EXAMPLE.read_bytes())
    assert set(document) == {"schema", "config", "evidence", "model", "workload", "host", "runtime", "search"}
    assert {"session_options", "session_config", "run_config", "providers", "environment"} <= set(document["config"])
    assert document["config"]["providers"] == [["CPUExecutionProvider", {}]]
    assert document["evidence"]["verdict"] in {"faster", "default_is_best", "inconclusive"}
    assert {"estimate", "low", "high", "confidence", "pairs"} <= set(document["evidence"]["speedup"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a record"),
        (b"{}", "not a record"),
        (b'{"schema": 1}', "misses 'workload'"),
        (b'{"schema": 2}', "not a valid record"),
        (change(lambda d: d.update(schema=99)), "has schema 99.*reads up to 3"),
        (change(lambda d: d.update(schema=0)), "never was"),
        (change(lambda d: d.update(extra=1)), "unknown field `extra`"),
        (change(lambda d: d["config"].update(sesion_options={})), r"unknown field `sesion_options` - at `\$\.config`"),
        (change(lambda d: d["config"].update(session_config={"a": 1})), r"Expected `str`.*\$\.config\.session_config"),
        (change(lambda d: d["evidence"].update(verdict="great")), r"\$\.evidence\.verdict"),
        (change(lambda d: d["model"].update(digest=None)), r"\$\.model\.digest"),
        (change(lambda d: d["config"].update(providers=[])), r"there are no providers - at `\$\.config`"),
        (change(lambda d: d["config"].update(environment={"A=B": "x"})), r"'A=B'='x' is no environment variable"),
        (change(lambda d: d["config"].update(environment={"A": "\0"})), "is no environment variable"),
        (change(lambda d: d["workload"]["load"].update(clients=0)), r"0 clients .* - at `\$\.workload\.load`"),
        (change(lambda d: d["workload"]["load"].update(rate_per_s=None)), "scenario server with a rate of None"),
        (change(lambda d: d["workload"]["inputs"]["image"].update(shapes=[])), "there are no shapes"),
        (change(lambda d: d["search"].update(seed=-1)), r"seed is -1, below 0 - at `\$\.search`"),
        (change(lambda d: d["search"].update(started="soon")), r"'soon' - at `\$\.search`"),
        (b'{"schema": 3, "config": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_what_is_not_a_record_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message):
        read_record(path)


def test_a_record_of_an_older_schema_is_migrated() -> None:
    record = read_record(OLD_EXAMPLE)
    old = json.loads(OLD_EXAMPLE.read_bytes())
    assert (old["schema"], record.schema) == (1, SCHEMA)
    assert record.workload.load == Load()
    assert record.workload.objectives == ("p50",)
    assert record.workload.inputs["image"].shapes == (tuple(old["workload"]["inputs"]["image"]["shape"]),)
    assert [trial.speedups and trial.speedups[0] for trial in record.search.trials] == [
        trial["speedup"] for trial in old["search"]["trials"]
    ]
    assert record.config.session_options == old["config"]["session_options"]
    assert msgspec.json.decode(encode_record(record), type=Record) == record


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no file"):
        read_record(tmp_path / "nothing.json")
    with pytest.raises(RecordError, match="Cannot read"):
        read_record(tmp_path)


def test_the_committed_schema_is_that_of_the_code() -> None:
    """If this fails, run `python -m docs.generate`."""
    assert json.loads(SCHEMA_FILE.read_text()) == json.loads(json.dumps(json_schema()))


def test_writing_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_proves_more_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    unproven = read_record(EXAMPLE)
    assert unproven.evidence.verdict == "inconclusive" and proves_nothing(unproven)
    evidence = msgspec.structs.replace(unproven.evidence, verdict="default_is_best")
    proven = msgspec.structs.replace(unproven, evidence=evidence)
    assert write_record(unproven, path) is None
    assert write_record(proven, path) is None
    assert write_record(proven, path) is None
    assert write_record(unproven, path) == tmp_path / "c.before.json"
    assert read_record(path) == unproven
    assert read_record(tmp_path / "c.before.json") == proven
    assert write_record(unproven, path) is None


def test_what_is_there_and_is_no_record_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content, is_replaced in ((b"\x08\x07onnx", False), (b"[1]", False), (b"", True), (EXAMPLE.read_bytes(), True)):
        path.write_bytes(content)
        if is_replaced:
            check_writable(path, may_replace=is_record)
        else:
            with pytest.raises(UsageError, match=r"-o .*model.onnx: this file is there already"):
                check_writable(path, may_replace=is_record)
        assert path.read_bytes() == content


def test_what_cannot_be_written_is_told_beforehand(tmp_path: Path) -> None:
    check_writable(tmp_path / "c.json")
    with pytest.raises(UsageError, match="no folder"):
        check_writable(tmp_path / "nowhere" / "c.json")
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
