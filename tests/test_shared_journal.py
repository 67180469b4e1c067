"""The journal that several hosts append to: what a killed host or a full disk leaves, and what cannot be read."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from ortune import UsageError
from ortune.storage import SharedStudy, StorageError, open_storage, parse_location
from tests.conftest import run_ortune
from tests.test_storage import make_measurement, open_study

TORN = b'{"op_code":4,"worker_id":"a","study_id":0,"datetime_st'
"""What a host that was killed while it wrote leaves."""


@contextlib.contextmanager
def nearly_full_disk(n_bytes: int) -> Iterator[None]:
    """Let each file of this process have at most so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def add(study: SharedStudy, number: int) -> None:
    study.add(make_measurement(number))


def read_ids(folder: Path) -> list[str]:
    """Return what a host that joins now reads."""
    return [measurement.id for measurement in open_study(folder).receive()]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "fleet.journal"


def test_a_full_disk_leaves_the_journal_as_it_was(journal: Path) -> None:
    one, other = open_study(journal.parent), open_study(journal.parent)
    add(one, 0)
    before = journal.read_bytes()
    with nearly_full_disk(len(before) + 40), pytest.raises(StorageError, match="File too large"):
        add(one, 1)
    assert journal.read_bytes() == before
    add(other, 2)
    add(one, 3)
    assert read_ids(journal.parent) == [measurement.id for measurement in one.receive()] == ["w:0", "w:2", "w:3"]


@pytest.mark.parametrize("left", [TORN, b"{", b"\0" * 100, TORN + b"\n", b"\xff\n", b"3\n"], ids=repr)
def test_what_a_killed_host_leaves_is_cut_off(left: bytes, journal: Path) -> None:
    one, other = open_study(journal.parent), open_study(journal.parent)
    add(one, 0)
    journal.write_bytes(journal.read_bytes() + left)
    assert [measurement.id for measurement in other.receive()] == ["w:0"]
    assert read_ids(journal.parent) == ["w:0"]
    add(other, 1)
    add(one, 2)
    assert read_ids(journal.parent) == ["w:0", "w:1", "w:2"]
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())


@pytest.mark.parametrize("left", [TORN[:5], TORN])
def test_the_first_line_may_be_torn(left: bytes, journal: Path) -> None:
    journal.write_bytes(left)
    add(open_study(journal.parent), 0)
    assert read_ids(journal.parent) == ["w:0"]


def test_hosts_write_while_others_are_killed(journal: Path) -> None:
    studies = [open_study(journal.parent) for _ in range(4)]

    def work(host: int) -> None:
        for turn in range(8):
            number = 8 * host + turn
            add(studies[host], number)
            if turn % 3 == 0:
                lock = JournalFileSymlinkLock(str(journal))
                lock.acquire()
                with journal.open("ab") as file:
                    file.write(TORN)
                lock.release()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    expected = sorted(f"w:{number}" for number in range(32))
    assert sorted(read_ids(journal.parent)) == expected
    for study in studies:
        assert sorted(measurement.id for measurement in study.receive()) == expected


def test_a_damaged_line_before_others_is_named(journal: Path) -> None:
    """Optuna's own tools append to a line that is not complete."""
    study = open_study(journal.parent)
    add(study, 0)
    n_lines = len(journal.read_bytes().splitlines())
    journal.write_bytes(journal.read_bytes() + TORN)
    for _ in range(2):
        JournalFileBackend(str(journal)).append_logs(
            [{"op_code": 3, "worker_id": "b", "study_id": 99, "system_attr": {"a": 1}}]
        )
    before = journal.read_bytes()
    for use in (study.receive, lambda: add(study, 1), lambda: open_study(journal.parent)):
        with pytest.raises(StorageError, match=rf"fleet\.journal: line {n_lines + 1} is damaged.*remove this line"):
            use()
    # Lines that were complete are kept.
    assert journal.read_bytes().startswith(before)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:n_lines] + lines[n_lines + 1 :]))
    add(study, 2)
    assert "w:2" in read_ids(journal.parent)


def test_the_command_names_the_damaged_line(journal: Path) -> None:
    add(open_study(journal.parent), 0)
    n_lines = len(journal.read_bytes().splitlines())
    journal.write_bytes(journal.read_bytes() + TORN + b"\n" + TORN + b"\n")
    done = run_ortune("fleet", "status", "--storage", "fleet.journal", cwd=journal.parent)
    assert done.returncode == 2
    assert f"fleet.journal: line {n_lines + 1} is damaged" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["a note", "one\ntwo\n", '{"other": 1}\n', "\n"], ids=repr)
def test_another_file_is_refused_and_not_changed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.log"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a journal, so it is not used"):
        open_storage(parse_location(str(path), "storage"))
    assert path.read_text() == text


def test_a_journal_that_was_replaced_is_not_written(journal: Path) -> None:
    study = open_study(journal.parent)
    add(study, 0)
    journal.write_bytes(b"")
    for use in (study.receive, lambda: add(study, 1)):
        with pytest.raises(StorageError, match="shorter than it was"):
            use()
    assert journal.read_bytes() == b""
