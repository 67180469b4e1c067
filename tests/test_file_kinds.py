"""What messages say about a file that is not what a command needs."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from ortune import OrtuneError, read_record
from ortune.file_kinds import name_kind
from ortune.model import read_model
from ortune.record.files import encode_record
from ortune.report.source import read_source
from ortune.workload.data import load_data
from tests.conftest import TINY_CNN, run_ortune
from tests.records import ONE_THREAD, make_local_record

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")


@pytest.fixture
def special(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Something that is no file, with the name of a model, and what it is."""
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    path = Path("m.onnx")
    kind = str(request.param)
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "a device":
        path.symlink_to("/dev/null")
    else:
        path.mkdir()
    return path, kind


KINDS = ("a named pipe", "a socket", "a device", "a folder")
for_all_kinds = pytest.mark.parametrize("special", KINDS, indirect=True)


@for_all_kinds
def test_a_model(special: tuple[Path, str]) -> None:
    path, kind = special
    with pytest.raises(OrtuneError) as caught:
        read_model(path)
    assert caught.value.message == f"m.onnx is {kind}, not a file."
    assert "Did you mean" not in caught.value.hint


@for_all_kinds
def test_the_model_of_a_record(special: tuple[Path, str]) -> None:
    """Also where ortune would read only its digest."""
    path, kind = special
    Path("r.json").write_bytes(encode_record(make_local_record(TINY_CNN, ONE_THREAD)))
    for command in (("apply", "r.json", path), ("gate", TINY_CNN, f"{path}@r.json"), ("bench", path)):
        done = run_ortune(*command, cwd=Path.cwd())
        assert done.returncode == 2
        # A folder is searched for models.
        assert kind in done.stderr
        assert "Did you mean" not in done.stderr


@pytest.mark.parametrize("special", ["a socket", "a folder"], indirect=True)
def test_a_record(special: tuple[Path, str]) -> None:
    """Those that cannot be opened. A record may come from a pipe."""
    path, kind = special
    for read in (read_record, lambda path: read_source(str(path))):
        with pytest.raises(OrtuneError) as caught:
            read(path)
        assert kind in caught.value.message


@pytest.mark.parametrize("special", ["a named pipe", "a socket", "a device"], indirect=True)
def test_input_data(special: tuple[Path, str]) -> None:
    path, kind = special
    with pytest.raises(OrtuneError, match=f"is {kind}, and a file or folder is needed"):
        load_data(path, ())


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "007", "0x1", "'a'", "", '"\ud800"', "[1,]"]
)
def test_a_damaged_record_is_a_record(value: str, tmp_path: Path) -> None:
    record = encode_record(make_local_record(TINY_CNN, ONE_THREAD)).decode()
    at = record.index('"budget_s": ') + len('"budget_s": ')
    end = record.index(",", at)
    path = tmp_path / "nan.json"
    path.write_text(record[:at] + value + record[end:], errors="surrogatepass")
    for read in (read_record, lambda path: read_source(str(path))):
        with pytest.raises(OrtuneError) as caught:
            read(path)
        message = caught.value.message
        assert f"{path} is a record, but it cannot be read" in message or f"{path} is not a valid record" in message
        assert "not a record" not in message


def test_plans_and_other_documents(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for document, kind in (
        ({"schema": 1, "rows": [], "recommended": 1}, "a plan"),
        ({"schema": 1, "evidence": {}, "search": {}}, "a record"),
        ({"schema": 1, "records": [{"evidence": {}, "search": {}}]}, "a record"),
        ({"schema": 1}, "a JSON file"),
    ):
        path.write_text(json.dumps(document))
        assert name_kind(path) == kind
